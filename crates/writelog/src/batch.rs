//! What one batch of level 2 takes from the log, by the chosen order.
//!
//! | order | a batch is |
//! |---|---|
//! | `log` | an *epoch*: the next segments in the order they were written, up to a record after which nothing acknowledged before is missing; of
//!   each sector what is newest inside the epoch, even when the log has newer |
//! | `lba` | the next dirty extents in ascending order, around and around |
//! | `last-write-first` | what is dirty in the newest segments |
//! | when space is low (but for `lba` over a disk), and to clean everything | what is dirty in the oldest segments |
//!
//! A segment whose records are all in RAM still is taken from there. Others are read whole, since that is one request, and their records checked. Extents in order of LBA lie all over the log: they are read by
//! their places ([`crate::places`]), and only they stay in RAM.

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind};
use futures_util::stream::{self, Stream, StreamExt};

use crate::core::{Core, Pins, State};
use crate::format::FLAG_EPOCH_END;
use crate::found::{Found, record_at, records_in};
use crate::images::Images;
use crate::limits::{BATCH_BYTES_WHEN_FULL, BATCHES_A_LOG, PIECES_AT_ONCE, SEGMENT_READ_BYTES_MAX, UNIT_BYTES};
use crate::map::{ExtentMap, Piece};
use crate::options::DestageOrder;
use crate::salvage::segment_image;
use crate::segments::SegmentState;

/// How segments are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Epoch,
    Lba,
    Newest,
    Oldest,
}

/// What is sent to the origin with one flush.
pub(crate) struct Batch {
    /// Disjoint, ascending.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of the log that are in RAM for it.
    pub(crate) images: Images,
    /// With [`Choice::Epoch`]: all up to this record is on the origin afterwards.
    pub(crate) epoch_end: Option<u64>,
    _pins: Pins,
}

impl Batch {
    fn new(pins: Pins) -> Self {
        Self { pieces: Vec::new(), images: Images::default(), epoch_end: None, _pins: pins }
    }
}

/// A segment as it was read, or as its records are in RAM.
pub(crate) struct Loaded {
    pub(crate) images: Images,
    /// Those that are whole, in the order in which they stand.
    pub(crate) records: Vec<Found>,
    /// Whether no record will follow those that were looked for.
    pub(crate) is_all: bool,
    /// Whether none is missing.
    is_whole: bool,
    /// Place behind the last record that was applied when it was read: what comes there later was not looked for.
    end: u64,
}

impl Core {
    /// The order that counts now.
    pub(crate) fn choice(&self, state: &State) -> Choice {
        // Halfway between where writes slow down and where they stop.
        let is_low =
            state.wants_room || state.share_used(&self.layout) > f64::midpoint(self.options.level2.share_slow, 1.0);
        match self.options.order {
            // What is only in the log goes first, while it can be read; of slots, too.
            _ if state.failure.is_some() => Choice::Lba,
            DestageOrder::Log => Choice::Epoch,
            // On a disk a sweep that takes its neighbours along makes more room than the oldest segments would.
            DestageOrder::Lba if !is_low || self.options.level2.seek_bytes > 0 => Choice::Lba,
            DestageOrder::LastWriteFirst if !is_low => Choice::Newest,
            _ => Choice::Oldest,
        }
    }

    /// The next batch, or one without pieces when there is nothing to send.
    pub(crate) async fn select(self: &Arc<Self>, choice: Choice) -> Result<Batch, Error> {
        let batch = match choice {
            Choice::Epoch => return self.select_epoch().await,
            Choice::Lba => return Ok(self.select_by_lba().await),
            Choice::Newest | Choice::Oldest => self.select_segments(choice).await?,
        };
        // Zeroes are not in any segment; once no segment is dirty, they are what is left.
        if batch.pieces.is_empty() { Ok(self.select_by_lba().await) } else { Ok(batch) }
    }

    /// What a batch takes, in bytes of log. The more, the less of it is sent, since more is superseded in it and more pieces are adjacent. But its room
    /// comes back all at once, and who waits for room waits for the whole batch.
    fn batch_bytes(&self, state: &State) -> u64 {
        let most = self.options.level2.batch_bytes;
        let log_bytes = u64::from(self.layout.segment_count) * self.layout.segment_bytes;
        let wanted = if state.wants_room { BATCH_BYTES_WHEN_FULL } else { log_bytes / BATCHES_A_LOG };
        wanted.max(BATCH_BYTES_WHEN_FULL).min(most)
    }

    async fn select_by_lba(self: &Arc<Self>) -> Batch {
        let (mut pieces, pins) = self.next_by_lba();
        let images = self.read_places(&pieces).await;
        self.keep_owed(&mut pieces);
        Batch { pieces, images, epoch_end: None, _pins: pins }
    }

    fn next_by_lba(self: &Arc<Self>) -> (Vec<Piece>, Pins) {
        let mut pins = Pins::none(self);
        let state = &mut *self.state();
        let bytes_max = self.batch_bytes(state);
        let (mut pieces, mut bytes): (Vec<Piece>, u64) = (Vec::new(), 0);
        let cursor = state.lba_cursor;
        // What is in slots goes straight to the origin when the log has failed.
        let dirty_from = |sector| -> Box<dyn Iterator<Item = Piece> + '_> {
            match state.failure {
                Some(_) => Box::new(state.map.dirty_from(sector)),
                None => Box::new(state.owed_from(sector)),
            }
        };
        let before_cursor = dirty_from(0).take_while(|piece| piece.sector < cursor);
        for piece in dirty_from(cursor).chain(before_cursor).filter(|piece| !piece.tag.is_lost()) {
            if bytes >= bytes_max {
                break;
            }
            bytes += if piece.is_zero() { UNIT_BYTES } else { piece.sectors * UNIT_BYTES };
            pieces.push(piece);
        }
        state.lba_cursor = pieces.last().map_or(0, Piece::end);
        for piece in pieces.iter().filter(|piece| piece.is_in_segment()) {
            pins.add(&mut state.segments, self.layout.segment_of(piece.place));
        }
        pieces.sort_unstable_by_key(|piece| piece.sector);
        (pieces, pins)
    }

    /// Reads of the log device at once: fewer the more slots are in use, since level 1 goes first on that device, unless it waits for room.
    pub(crate) fn log_reads_in_flight(&self) -> usize {
        let state = self.state();
        let free = state.stage.as_ref().filter(|_| !state.wants_room).map_or(1.0, |stage| 1.0 - stage.share_used());
        ((self.options.level2.writes_in_flight as f64 * free).round() as usize).max(1)
    }

    async fn select_segments(self: &Arc<Self>, choice: Choice) -> Result<Batch, Error> {
        let mut pins = Pins::none(self);
        let chosen: Vec<u32> = {
            let state = &mut *self.state();
            let is_dirty = |segment: &u32| state.segments.get(*segment).dirty_sectors > 0;
            let count = (self.batch_bytes(state) / self.layout.segment_bytes).max(1) as usize;
            let chosen: Vec<u32> = match choice {
                Choice::Newest => state.segments.by_age().rev().filter(is_dirty).take(count).collect(),
                _ => state.segments.by_age().filter(is_dirty).take(count).collect(),
            };
            chosen.iter().for_each(|&segment| pins.add(&mut state.segments, segment));
            chosen
        };
        let mut batch = Batch::new(pins);
        let mut loading = self.load_in_order(chosen);
        while let Some((segment, loaded)) = loading.next().await {
            self.lose_damaged(segment, &loaded);
            batch.pieces.extend(loaded.records.into_iter().flat_map(|record| record.pieces));
            batch.images.extend(loaded.images);
        }
        self.keep_owed(&mut batch.pieces);
        Ok(batch)
    }

    /// Leaves out what was written again or lost while it was read. At one moment, so that no sector is among them twice: requests go on.
    fn keep_owed(&self, pieces: &mut Vec<Piece>) {
        {
            let state = self.state();
            let owed = pieces.iter().flat_map(|piece| state.owed_at(piece));
            *pieces = owed.filter(|piece| !piece.tag.is_lost()).collect();
        }
        pieces.sort_unstable_by_key(|piece| piece.sector);
        pieces.dedup();
    }

    /// The newest of each sector in the records behind the last epoch.
    async fn select_epoch(self: &Arc<Self>) -> Result<Batch, Error> {
        let mut pins = Pins::none(self);
        let (mut segments, destaged, applied, found, count) = {
            let state = &mut *self.state();
            let (destaged, applied) = (state.destaged_sequence, state.applied.position.sequence - 1);
            let is_behind = |segment: &u32| state.segments.get(*segment).last_sequence.min(applied) > destaged;
            let segments: Vec<u32> = state.segments.by_age().filter(is_behind).collect();
            segments.iter().for_each(|&segment| pins.add(&mut state.segments, segment));
            let count = (self.batch_bytes(state) / self.layout.segment_bytes).max(1) as usize;
            (segments, destaged, applied, state.found_sequence, count)
        };
        let mut batch = Batch::new(pins);
        // Oldest first; what waits is behind the last end of an epoch.
        let (mut epoch, mut waiting) = (Vec::new(), Vec::new());
        // No more than is wanted is read ahead, but where an epoch is longer.
        let rest = segments.split_off(count.min(segments.len()));
        let (mut loading, mut index) = (self.load_in_order(segments).chain(self.load_in_order(rest)), 0);
        while index < count || batch.epoch_end.is_none() {
            let Some((segment, loaded)) = loading.next().await else { break };
            index += 1;
            self.lose_damaged(segment, &loaded);
            batch.images.extend(loaded.images);
            let is_new = |record: &Found| (destaged + 1..=applied).contains(&record.sequence);
            for record in loaded.records.into_iter().filter(is_new) {
                waiting.extend(record.pieces);
                if record.flags & FLAG_EPOCH_END != 0 || record.sequence == found {
                    batch.epoch_end = Some(record.sequence);
                    epoch.append(&mut waiting);
                }
            }
            if !loaded.is_whole {
                // The order ends here: what can still be read of it is sent with this batch.
                batch.epoch_end = Some(self.state().segments.get(segment).last_sequence.min(applied));
                epoch.append(&mut waiting);
            }
        }
        batch.pieces = newest(epoch);
        if self.state().is_epoch_begun {
            self.remove_clean(&mut batch.pieces);
        }
        Ok(batch)
    }

    /// Takes out what an interrupted batch brought to the origin already.
    fn remove_clean(&self, pieces: &mut Vec<Piece>) {
        let mut left = ExtentMap::default();
        pieces.iter().for_each(|&piece| left.insert(piece, |_| {}));
        for pieces in pieces.chunks(PIECES_AT_ONCE) {
            let state = self.state();
            let known = pieces.iter().flat_map(|piece| state.map.pieces_at(piece));
            let clean = known.filter(|piece| !piece.tag.is_dirty());
            clean.for_each(|piece| left.remove(piece.sector, piece.sectors, |_| {}));
        }
        *pieces = left.dirty_from(0).collect();
    }

    /// Segments one after the other, the next ones being read already.
    pub(crate) fn load_in_order(&self, segments: Vec<u32>) -> impl Stream<Item = (u32, Loaded)> + Unpin + '_ {
        let loading = stream::iter(segments).map(async move |segment| (segment, self.load_segment(segment).await));
        let at_once = (SEGMENT_READ_BYTES_MAX / self.layout.segment_bytes).max(1) as usize;
        Box::pin(loading.buffered(self.log_reads_in_flight().min(at_once)))
    }

    /// A segment's image and the records in it that were applied.
    async fn load_segment(&self, segment: u32) -> Loaded {
        let range = self.layout.segment(segment);
        let (first, last, end, is_all) = {
            let state = self.state();
            let entry = state.segments.get(segment);
            let applied = &state.applied;
            let end = if applied.segment == segment { applied.position.offset } else { range.length };
            let is_all = entry.state == SegmentState::Used && entry.last_sequence < applied.position.sequence;
            (entry.first_sequence, entry.last_sequence.min(applied.position.sequence - 1), end, is_all)
        };
        let place = self.layout.place(segment, 0);
        let end = u64::from(place) + end / UNIT_BYTES;
        if let Some((images, records)) = self.records_in_ram(segment, first..=last) {
            return Loaded { images, records, is_all, is_whole: true, end };
        }
        let image = match self.log_device.read(range.offset, self.used_buffer(range.length as usize)).await {
            Ok(image) => image,
            Err(error) => {
                tracing::error!(%error, segment, "a segment of the log cannot be read as a whole");
                let mut image = segment_image(&self.log_device, &self.layout, segment).await;
                self.copy_records_in_ram(place, &mut image);
                image
            }
        };
        let records = records_in(&image, first..=last, segment, self.uuid, place);
        let is_whole = records.iter().map(|record| record.sequence).eq(first..=last);
        Loaded { images: Images::of(place, image), records, is_all, is_whole, end }
    }

    /// Puts what is in RAM of a segment that begins at `first` into its image.
    fn copy_records_in_ram(&self, first: u32, image: &mut [u8]) {
        let state = self.state();
        for (place, bytes) in state.records.records_in(first, image.len() as u64 / UNIT_BYTES) {
            let at = (u64::from(place - first) * UNIT_BYTES) as usize;
            image[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The records of a segment, if all of these are in RAM still: neither read nor checked.
    fn records_in_ram(&self, segment: u32, sequences: RangeInclusive<u64>) -> Option<(Images, Vec<Found>)> {
        let first = self.layout.place(segment, 0);
        let kept: Vec<(u32, Arc<Buffer>)> = {
            let state = self.state();
            let records = state.records.records_in(first, self.layout.segment_bytes / UNIT_BYTES);
            records.map(|(place, bytes)| (place, Arc::clone(bytes))).collect()
        };
        let found = kept
            .iter()
            .map(|(place, bytes)| record_at(bytes, u64::from(place - first) * UNIT_BYTES, segment, self.uuid, first));
        let found = found.collect::<Option<Vec<Found>>>()?;
        let found: Vec<Found> = found.into_iter().filter(|record| sequences.contains(&record.sequence)).collect();
        let is_whole = found.iter().map(|record| record.sequence).eq(sequences);
        is_whole.then(|| (kept.into_iter().collect(), found))
    }

    /// What the log has in damaged records of a segment is lost, by name.
    fn lose_damaged(&self, segment: u32, loaded: &Loaded) {
        if loaded.is_whole {
            return;
        }
        let lost: Vec<Piece> = {
            let state = self.state();
            let owed = state.owed_from(0).filter(|piece| self.is_in(segment, piece) && !piece.tag.is_lost());
            owed.flat_map(|piece| loaded.missing_of(&piece)).collect()
        };
        lost.iter().for_each(|piece| self.lose(piece, &damaged_records(segment)));
    }

    fn is_in(&self, segment: u32, piece: &Piece) -> bool {
        piece.is_in_segment() && self.layout.segment_of(piece.place) == segment
    }
}

/// Of each sector the newest of these pieces, which are in the order in which they were written; ascending. That some are written again as they
/// were is usual, and takes a sort; that they overlap otherwise takes a map.
fn newest(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut sorted = pieces.clone();
    sorted.sort_by_key(|piece| piece.sector);
    // Of those in the same place the last stays.
    sorted.dedup_by(|next, kept| {
        let is_same = (next.sector, next.sectors) == (kept.sector, kept.sectors);
        if is_same {
            *kept = *next;
        }
        is_same
    });
    if sorted.windows(2).all(|pair| pair[0].end() <= pair[1].sector) {
        return sorted;
    }
    let mut map = ExtentMap::default();
    pieces.into_iter().for_each(|piece| map.insert(piece, |_| {}));
    map.dirty_from(0).collect()
}

impl Loaded {
    /// The parts of a piece in it that no whole record has, of those that were looked for.
    pub(crate) fn missing_of(&self, piece: &Piece) -> Vec<Piece> {
        without(piece, self.end, u64::MAX).iter().flat_map(|part| outside(part, &self.records)).collect()
    }
}

/// Why they are lost.
pub(crate) fn damaged_records(segment: u32) -> Error {
    Error::new(ErrorKind::Corrupt, format!("records in segment {segment} of the log are damaged"))
}

/// The parts of a piece of the log that lie in none of these records as the sectors that they say they are.
fn outside(piece: &Piece, records: &[Found]) -> Vec<Piece> {
    let mut parts = vec![*piece];
    let is_of = |held: &&Piece| {
        held.is_in_segment()
            && held.sector.wrapping_sub(held.place.into()) == piece.sector.wrapping_sub(piece.place.into())
    };
    for held in records.iter().flat_map(|record| &record.pieces).filter(is_of) {
        let (start, end) = (u64::from(held.place), u64::from(held.place) + held.sectors);
        parts = parts.iter().flat_map(|part| without(part, start, end)).collect();
    }
    parts
}

/// What is left of a piece without what lies at the places `start..end`.
fn without(piece: &Piece, start: u64, end: u64) -> Vec<Piece> {
    let (from, to) = (u64::from(piece.place), u64::from(piece.place) + piece.sectors);
    let sector_of = |place: u64| piece.sector + (place - from);
    let (start, end) = (start.clamp(from, to), end.clamp(from, to));
    let left = (from < start).then(|| piece.clip(piece.sector, sector_of(start)));
    let right = (end < to).then(|| piece.clip(sector_of(end), piece.end()));
    if start == end { vec![*piece] } else { left.into_iter().chain(right).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Tag;
    use proptest::prelude::*;

    const SECTORS: u64 = 64;

    proptest! {
        /// Beside a table of sectors.
        #[test]
        fn the_newest_piece_of_each_sector_is_left(writes in proptest::collection::vec((0..SECTORS / 4, 1..3u64), 0..40)) {
            let pieces: Vec<Piece> = (0u32..).zip(writes).map(|(index, (at, count))| {
                Piece { sector: at * 4, sectors: count * 4, place: index * 100, tag: Tag::dirty(0) }
            }).collect();
            let mut twin = vec![None; SECTORS as usize + 8];
            for piece in &pieces {
                (piece.sector..piece.end()).for_each(|sector| twin[sector as usize] = Some(piece.clip(sector, sector + 1).place));
            }
            let mut found = vec![None; twin.len()];
            let mut last = 0;
            for piece in newest(pieces) {
                prop_assert!(piece.sector >= last);
                last = piece.end();
                (piece.sector..last).for_each(|sector| found[sector as usize] = Some(piece.clip(sector, sector + 1).place));
            }
            prop_assert_eq!(found, twin);
        }
    }
}
