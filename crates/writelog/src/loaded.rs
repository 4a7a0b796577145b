//! Segments in RAM for level 2, read or assembled from cached records, and the marking of lost data
//! in them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::stream::{self, Stream, StreamExt};
use store::Sequence;
use uuid::Uuid;

use crate::found::{Found, record_at, records_in};
use crate::images::Images;
use crate::limits::{SEGMENT_READ_BYTES_MAX, UNIT_BYTES};
use crate::log_state::LogState;
use crate::lost::LostData;
use crate::map::Piece;
use crate::numbers::{Sector, SegmentNumber};
use crate::salvage::segment_image;
use crate::segments::SegmentState;
use crate::settings::Settings;
use crate::unit::LogUnit;
use crate::used_buffers::UsedBuffers;

/// The image of a segment, read or assembled from cached records, with its records.
pub(crate) struct Loaded {
    pub(crate) images: Images,
    /// Whole records, in the order of their places.
    pub(crate) records: Vec<Found>,
    /// Whether the segment gets no further records.
    pub(crate) is_all: bool,
    /// Whether none of the records is missing.
    pub(crate) is_whole: bool,
    /// Unit behind the last record that was applied when it was read: later records were not looked
    /// for.
    end: LogUnit,
}

/// Loads segments of the log for level 2 and for reads that check what they find.
pub(crate) struct SegmentLoader {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) uuid: Uuid,
    pub(crate) buffers: UsedBuffers,
    pub(crate) settings: Arc<Settings>,
    pub(crate) lost: Arc<LostData>,
}

impl SegmentLoader {
    /// Reads of the log device at once: fewer the more slots are in use, since level 1 goes first on that device,
    /// unless it waits for room.
    pub(crate) fn reads_in_flight(&self) -> usize {
        let state = self.log.state();
        let free = state
            .contents
            .stage
            .as_ref()
            .filter(|_| !state.room.is_wanted())
            .map_or(1.0, |stage| 1.0 - stage.share_used());
        ((self.settings.level2().writes_in_flight as f64 * free).round() as usize).max(1)
    }

    /// Loads segments one after the other, with the next ones already being read.
    pub(crate) fn load_in_order(
        &self,
        segments: Vec<SegmentNumber>,
    ) -> impl Stream<Item = (SegmentNumber, Loaded)> + Unpin + '_ {
        let loading = stream::iter(segments).map(async move |segment| (segment, self.load_segment(segment).await));
        let at_once = (SEGMENT_READ_BYTES_MAX / self.log.layout.segment_bytes).max(1) as usize;
        Box::pin(loading.buffered(self.reads_in_flight().min(at_once)))
    }

    /// Loads the image of a segment and the records in it that were applied.
    pub(crate) async fn load_segment(&self, segment: SegmentNumber) -> Loaded {
        let range = self.log.layout.segment(segment);
        let (first, last, end, is_all) = {
            let state = self.log.state();
            let entry = state.contents.segments.get(segment);
            let applied = &state.contents.applied;
            let end = if applied.segment == segment { applied.position.offset } else { range.length };
            let is_all = entry.state == SegmentState::Used && entry.last_sequence < applied.position.sequence;
            (entry.first_sequence, entry.last_sequence.min(applied.position.sequence.before()), end, is_all)
        };
        let unit = self.log.layout.unit(segment, 0);
        let end = unit + end / UNIT_BYTES;
        if let Some((images, records)) = self.records_in_ram(segment, first..=last) {
            return Loaded { images, records, is_all, is_whole: true, end };
        }
        let image = match self.log_device.read(range.offset, self.buffers.take(range.length as usize)).await {
            Ok(image) => image,
            Err(error) => {
                tracing::error!(%error, segment = segment.0, "a segment of the log cannot be read as a whole");
                let mut image = segment_image(&self.log_device, &self.log.layout, segment).await;
                self.copy_records_in_ram(unit, &mut image);
                image
            }
        };
        let records = records_in(&image, first..=last, segment, self.uuid, unit);
        let is_whole = records.iter().map(|record| record.sequence).eq(first.up_to(last));
        Loaded { images: Images::of(unit, image), records, is_all, is_whole, end }
    }

    /// Copies cached records of a segment that begins at `first` into its image.
    fn copy_records_in_ram(&self, first: LogUnit, image: &mut [u8]) {
        let state = self.log.state();
        for (unit, bytes) in state.contents.records.records_in(first, image.len() as u64 / UNIT_BYTES) {
            let at = ((unit - first) * UNIT_BYTES) as usize;
            image[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The records of a segment, if all of these are still in RAM: neither read nor checked.
    fn records_in_ram(
        &self,
        segment: SegmentNumber,
        sequences: RangeInclusive<Sequence>,
    ) -> Option<(Images, Vec<Found>)> {
        let first = self.log.layout.unit(segment, 0);
        let kept: Vec<(LogUnit, Arc<Buffer>)> = {
            let state = self.log.state();
            let records = state.contents.records.records_in(first, self.log.layout.segment_bytes / UNIT_BYTES);
            records.map(|(unit, bytes)| (unit, Arc::clone(bytes))).collect()
        };
        let found =
            kept.iter().map(|(unit, bytes)| record_at(bytes, (*unit - first) * UNIT_BYTES, segment, self.uuid, first));
        let found = found.collect::<Option<Vec<Found>>>()?;
        let found: Vec<Found> = found.into_iter().filter(|record| sequences.contains(&record.sequence)).collect();
        let is_whole = found.iter().map(|record| record.sequence).eq(sequences.start().up_to(*sequences.end()));
        is_whole.then(|| (kept.into_iter().collect(), found))
    }

    /// Marks as lost what the log has in damaged records of a segment.
    pub(crate) fn lose_damaged(&self, segment: SegmentNumber, loaded: &Loaded) {
        if loaded.is_whole {
            return;
        }
        let lost: Vec<Piece> = {
            let state = self.log.state();
            let owed = state
                .contents
                .owed_from(Sector::FIRST)
                .filter(|piece| self.is_in(segment, piece) && !piece.tag.is_lost());
            owed.flat_map(|piece| loaded.missing_of(&piece)).collect()
        };
        lost.iter().for_each(|piece| self.lost.lose(piece, &damaged_records(segment)));
    }

    fn is_in(&self, segment: SegmentNumber, piece: &Piece) -> bool {
        piece.is_in_segment() && self.log.layout.segment_of(piece.unit()) == segment
    }
}

impl Loaded {
    /// The parts of a piece in this segment that are in no whole record, as far as records were
    /// looked for.
    pub(crate) fn missing_of(&self, piece: &Piece) -> Vec<Piece> {
        without(piece, self.end, LogUnit(u64::MAX)).iter().flat_map(|part| outside(part, &self.records)).collect()
    }
}

/// The error for data in damaged records.
pub(crate) fn damaged_records(segment: SegmentNumber) -> Error {
    Error::new(ErrorKind::Corrupt, format!("records in segment {segment} of the log are damaged"))
}

/// The parts of a piece that are in none of these records, or there belong to other sectors.
fn outside(piece: &Piece, records: &[Found]) -> Vec<Piece> {
    let mut parts = vec![*piece];
    let is_of = |held: &&Piece| {
        held.is_in_segment() && held.sector.0.wrapping_sub(held.unit().0) == piece.sector.0.wrapping_sub(piece.unit().0)
    };
    for held in records.iter().flat_map(|record| &record.pieces).filter(is_of) {
        parts = parts.iter().flat_map(|part| without(part, held.unit(), held.unit_end())).collect();
    }
    parts
}

/// The parts of a piece that are not at the units `start..end`.
pub(crate) fn without(piece: &Piece, start: LogUnit, end: LogUnit) -> Vec<Piece> {
    let (from, to) = (piece.unit(), piece.unit_end());
    let sector_of = |unit: LogUnit| piece.sector + (unit - from);
    let (start, end) = (start.clamp(from, to), end.clamp(from, to));
    let left = (from < start).then(|| piece.clip(piece.sector, sector_of(start)));
    let right = (end < to).then(|| piece.clip(sector_of(end), piece.end()));
    if start == end { vec![*piece] } else { left.into_iter().chain(right).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Parts;

    #[test]
    fn a_damaged_record_of_a_segment_is_missing_and_lost_and_the_others_are_not() {
        let mut parts = Parts::new(|_| {});
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let [first, second] = [1, 2].map(|byte| parts.append(&records, 8 * u64::from(byte), 4, byte));
        let segment = loader.log.layout.segment_of(first.unit());
        let mut load = || {
            let loader = Arc::clone(&loader);
            parts.executor.block_on(async move { loader.load_segment(segment).await })
        };
        let loaded = load();
        assert!(loaded.is_whole && !loaded.is_all, "its segment gets more records");
        assert_eq!(loaded.records.iter().map(|record| record.sequence).collect::<Vec<_>>(), [1, 2].map(Sequence));
        assert_eq!(loaded.images.get(second.unit(), 512), Some(&[2; 512][..]));
        parts.device.corrupt(loader.log.layout.offset_of(first.unit()), &[9; 512]);
        let loaded = load();
        assert!(!loaded.is_whole);
        assert_eq!((loaded.missing_of(&first), loaded.missing_of(&second)), (vec![first], Vec::new()));
        loader.lose_damaged(segment, &loaded);
        assert_eq!(loader.lost.bytes_now(), first.sectors * UNIT_BYTES);
    }
}
