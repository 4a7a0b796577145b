//! Reading pieces of the log by their places; each is compared with its checksum before it may go
//! to the origin.
//!
//! Extents in order of LBA lie all over the log: what is in RAM is copied from there, and the rest
//! is read in the order of its places, near pieces with one request. Whole entries are read, since
//! only they have checksums ([`crate::sums`]); an entry that is not as it was written is marked
//! lost. A segment whose checksums are not known yet is read as a whole, and its records are
//! checked.
//!
//! A read that the device refuses is repeated entry by entry; an entry that it refuses again is
//! marked lost.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use base::buffer::Buffer;
use base::checksum::crc32c;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::images::Images;
use crate::limits::{LOG_READ_BYTES, READ_GAP_BYTES_MAX, UNIT_BYTES};
use crate::loaded::{Loaded, SegmentLoader, damaged_records};
use crate::log_state::LogState;
use crate::lost::LostData;
use crate::map::Piece;
use crate::numbers::SegmentNumber;
use crate::salvage::read_after_all;
use crate::sums::Entry;
use crate::unit::LogUnit;

/// A piece to read from the log device, with the entries that it lies in.
struct Wanted {
    piece: Piece,
    /// Ascending, each directly behind the one before.
    entries: Vec<Entry>,
}

impl Wanted {
    fn start(&self) -> LogUnit {
        self.entries.first().map_or(self.piece.unit(), |entry| entry.unit)
    }

    fn end(&self) -> LogUnit {
        self.entries.last().map_or(self.piece.unit(), Entry::end)
    }
}

/// The pieces sorted by how they are read.
#[derive(Default)]
struct Sorted {
    wanted: Vec<Wanted>,
    /// Pieces of segments whose checksums are not known.
    unknown: Vec<Piece>,
}

/// Reads pieces of the log by their places.
pub(crate) struct PlaceReader {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) loader: Arc<SegmentLoader>,
    pub(crate) lost: Arc<LostData>,
}

impl PlaceReader {
    /// The bytes of these pieces, as far as RAM has them, or the log device returns them as they
    /// were written.
    pub(crate) async fn read(&self, pieces: &[Piece]) -> Images {
        let mut images = Images::default();
        let sorted = self.sort(pieces, &mut images);
        self.learn_segments(&sorted.unknown, &mut images).await;
        let mut wanted = sorted.wanted;
        wanted.sort_unstable_by_key(Wanted::start);
        let mut near: VecDeque<Near> = groups(wanted).into();
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < self.loader.reads_in_flight()
                && let Some(group) = near.pop_front()
            {
                reads.push(self.read_near(group));
            }
            let Some((group, bytes)) = reads.next().await else { return images };
            match bytes {
                Ok(bytes) => self.take_whole(&group, &bytes, &mut images),
                // Read one by one, the readable ones succeed.
                Err(_) if group.wanted.len() > 1 => near.extend(group.wanted.into_iter().map(Near::of)),
                Err(_) => {
                    let bytes = self.read_entries(&group).await;
                    self.take_whole(&group, &bytes, &mut images);
                }
            }
        }
    }

    /// Copies the pieces that are in RAM, and sorts the rest by how they are read.
    fn sort(&self, pieces: &[Piece], images: &mut Images) -> Sorted {
        let mut sorted = Sorted::default();
        let state = self.log.state();
        for &piece in pieces.iter().filter(|piece| piece.is_in_segment()) {
            if let Some((unit, record)) = state.contents.records.record_of(piece.unit(), length_of(&piece)) {
                images.insert(unit, record);
                continue;
            }
            let segment = self.log.layout.segment_of(piece.unit());
            let first = self.log.layout.unit(segment, 0);
            match state.contents.sums.entries(segment, first, piece.unit(), piece.sectors) {
                Some(entries) => sorted.wanted.push(Wanted { piece, entries }),
                None => sorted.unknown.push(piece),
            }
        }
        sorted
    }

    /// Reads the segments of these pieces as a whole, and learns their checksums.
    async fn learn_segments(&self, pieces: &[Piece], images: &mut Images) {
        let segments: BTreeSet<SegmentNumber> =
            pieces.iter().map(|piece| self.log.layout.segment_of(piece.unit())).collect();
        let mut loading = self.loader.load_in_order(segments.into_iter().collect());
        while let Some((segment, loaded)) = loading.next().await {
            let here: Vec<&Piece> =
                pieces.iter().filter(|piece| self.log.layout.segment_of(piece.unit()) == segment).collect();
            let missing = here.iter().flat_map(|piece| loaded.missing_of(piece)).collect::<Vec<Piece>>();
            missing.iter().for_each(|piece| self.lost.lose(piece, &damaged_records(segment)));
            self.learn(segment, &loaded);
            for piece in here {
                if let Some(bytes) = loaded.images.get(piece.unit(), length_of(piece)) {
                    images.insert(piece.unit(), Arc::new(Buffer::copy_of(bytes)));
                }
            }
        }
    }

    fn learn(&self, segment: SegmentNumber, loaded: &Loaded) {
        if !loaded.is_all {
            return;
        }
        let first = self.log.layout.unit(segment, 0);
        self.log.state().contents.sums.learn(segment, first, &loaded.images, &loaded.records);
    }

    async fn read_near(&self, group: Near) -> (Near, Result<Buffer, Error>) {
        let length = (group.end - group.start) * UNIT_BYTES;
        let bytes = self.log_device.read(self.log.layout.offset_of(group.start), Buffer::zeroed(length as usize)).await;
        (group, bytes)
    }

    /// Reads the entries of a group one by one; where the device refuses there are zeroes, which
    /// fail the checksum.
    async fn read_entries(&self, group: &Near) -> Buffer {
        let mut bytes = Buffer::zeroed(((group.end - group.start) * UNIT_BYTES) as usize);
        for entry in group.wanted.iter().flat_map(|wanted| &wanted.entries) {
            let (at, length) = ((entry.unit - group.start) * UNIT_BYTES, entry.sectors * UNIT_BYTES);
            let offset = self.log.layout.offset_of(entry.unit);
            if let Some(read) = read_after_all(&self.log_device, offset, length as usize).await {
                bytes[at as usize..(at + length) as usize].copy_from_slice(&read);
            }
        }
        bytes
    }

    /// Takes the entries that are as they were written; the others are marked lost.
    fn take_whole(&self, group: &Near, bytes: &[u8], images: &mut Images) {
        let at = |unit: LogUnit| ((unit - group.start) * UNIT_BYTES) as usize;
        let is_as_written = |entry: &Entry| {
            let start = at(entry.unit);
            let bytes = bytes.get(start..start + (entry.sectors * UNIT_BYTES) as usize);
            bytes.is_some_and(|bytes| crc32c(bytes) == entry.checksum)
        };
        // Several remaining pieces may belong to one entry.
        let mut last: Option<(Entry, bool)> = None;
        for Wanted { piece, entries } in &group.wanted {
            let mut take = |part: Option<Piece>| {
                if let Some(part) = part {
                    let bytes = Buffer::copy_of(&bytes[at(part.unit())..][..length_of(&part)]);
                    images.insert(part.unit(), Arc::new(bytes));
                }
            };
            let mut whole: Option<Piece> = None;
            for entry in entries {
                let known = last.filter(|(known, _)| known == entry).map(|(_, is_whole)| is_whole);
                let is_whole = known.unwrap_or_else(|| is_as_written(entry));
                last = Some((*entry, is_whole));
                let part = part_of(piece, entry);
                if is_whole {
                    let sectors = whole.map_or(0, |whole| whole.sectors) + part.sectors;
                    whole = Some(Piece { sectors, ..whole.unwrap_or(part) });
                } else {
                    take(whole.take());
                    let segment = self.log.layout.segment_of(part.unit());
                    let context = format!("bytes in segment {segment} of the log are not as they were written");
                    self.lost.lose(&part, &Error::new(ErrorKind::Corrupt, context));
                }
            }
            take(whole);
        }
    }
}

/// The part of a piece that lies in an entry; there is some.
fn part_of(piece: &Piece, entry: &Entry) -> Piece {
    let sector_at = |unit: LogUnit| piece.sector + unit.saturating_since(piece.unit());
    piece.clip(sector_at(entry.unit), sector_at(entry.end()))
}

fn length_of(piece: &Piece) -> usize {
    (piece.sectors * UNIT_BYTES) as usize
}

/// Pieces of the log that are read with one request.
struct Near {
    start: LogUnit,
    end: LogUnit,
    /// Ascending by where they start.
    wanted: Vec<Wanted>,
}

impl Near {
    fn of(wanted: Wanted) -> Self {
        Self { start: wanted.start(), end: wanted.end(), wanted: vec![wanted] }
    }

    /// Whether `next` begins so near that reading the gap costs less than another request.
    fn is_near(&self, next: &Wanted) -> bool {
        next.start().saturating_since(self.end) * UNIT_BYTES <= READ_GAP_BYTES_MAX
    }

    fn has_room_for(&self, next: &Wanted) -> bool {
        next.end().saturating_since(self.start) * UNIT_BYTES <= LOG_READ_BYTES
    }
}

/// Near pieces in requests of about the same size, each beginning where the one before ends: to a disk they are one.
fn groups(wanted: Vec<Wanted>) -> Vec<Near> {
    let mut groups: Vec<Near> = Vec::new();
    for wanted in wanted {
        match groups.last_mut() {
            Some(last) if last.is_near(&wanted) && last.has_room_for(&wanted) => {
                // Several remaining pieces may belong to one entry, and with a damaged map one may
                // lie within another.
                last.end = last.end.max(wanted.end());
                last.wanted.push(wanted);
            }
            Some(last) if last.is_near(&wanted) => {
                let start = wanted.start().min(last.end);
                groups.push(Near { start, ..Near::of(wanted) });
            }
            _ => groups.push(Near::of(wanted)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Sector;
    use crate::options::DestageOrder;
    use crate::tests::Parts;

    #[test]
    fn what_is_not_as_it_was_written_is_lost_and_not_read() {
        let mut parts = Parts::new(|options| options.order = DestageOrder::Lba);
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let places = Arc::new(parts.assembly.places(&loader));
        let pieces = [1, 2].map(|byte| parts.append(&records, 8 * u64::from(byte), 4, byte));
        parts.device.corrupt(places.log.layout.offset_of(pieces[0].unit()), &[9; 512]);
        let reading = Arc::clone(&places);
        let images = parts.executor.block_on(async move { reading.read(&pieces).await });
        assert_eq!(images.get(pieces[0].unit(), 4 * 512), None);
        assert_eq!(images.get(pieces[1].unit(), 4 * 512), Some(&[2; 4 * 512][..]));
        let state = places.log.state();
        let lost: Vec<Sector> = state
            .contents
            .map
            .dirty_from(Sector::FIRST)
            .filter(|piece| piece.tag.is_lost())
            .map(|piece| piece.sector)
            .collect();
        assert_eq!(lost, [pieces[0].sector]);
    }
}
