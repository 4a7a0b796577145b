//! What one batch of level 2 takes from the log, by the chosen order.
//!
//! | order | a batch is |
//! |---|---|
//! | `log` | an *epoch*, or the next part of one ([`crate::epoch`]) |
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

use crate::core::{Core, FailureNote, Pins, State};
use crate::epoch::{Epoch, Part};
use crate::found::{Found, record_at, records_in};
use crate::images::Images;
use crate::limits::{BATCH_BYTES_WHEN_FULL, BATCH_TIME_WHEN_FULL, BATCHES_A_LOG, SEGMENT_READ_BYTES_MAX, UNIT_BYTES};
use crate::map::Piece;
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

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Room, age, or an idle moment.
    Background,
    /// All that the origin lacks now.
    Everything,
}

/// What is sent to the origin with one flush.
pub(crate) struct Batch {
    /// Disjoint, ascending.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of the log that are in RAM for it.
    pub(crate) images: Images,
    /// With [`Choice::Epoch`]: which part of the epoch it is.
    pub(crate) part: Option<Part>,
    pub(crate) _pins: Pins,
}

impl Batch {
    fn new(pins: Pins) -> Self {
        Self { pieces: Vec::new(), images: Images::default(), part: None, _pins: pins }
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
    pub(crate) is_whole: bool,
    /// Place behind the last record that was applied when it was read: what comes there later was not looked for.
    end: u64,
}

impl Core {
    /// What is sent next. Ask under the lock `destaging`: what is chosen before may be wrong by then.
    pub(crate) fn choice(&self, state: &State, goal: Goal) -> Choice {
        // Halfway between where writes slow down and where they stop.
        let is_low = state.wants_room || state.share_used(&self.layout) > f64::midpoint(self.level2().share_slow, 1.0);
        match self.options.order {
            // What is only in the log goes first, while it can be read; of slots, too.
            _ if state.failure.is_some() => Choice::Lba,
            DestageOrder::Log => Choice::Epoch,
            _ if goal == Goal::Everything => Choice::Oldest,
            // On a disk a sweep that takes its neighbours along makes more room than the oldest segments would.
            DestageOrder::Lba if !is_low || self.level2().seek_bytes > 0 => Choice::Lba,
            DestageOrder::LastWriteFirst if !is_low => Choice::Newest,
            _ => Choice::Oldest,
        }
    }

    /// The next batch, or one without pieces when there is nothing to send.
    pub(crate) async fn select(self: &Arc<Self>, choice: Choice, epoch: &mut Option<Epoch>) -> Result<Batch, Error> {
        if choice != Choice::Epoch {
            // The map says what is left of it.
            *epoch = None;
        }
        let batch = match choice {
            Choice::Epoch => return Ok(self.select_epoch(epoch).await),
            Choice::Lba => return Ok(self.select_by_lba().await),
            Choice::Newest | Choice::Oldest => self.select_segments(choice).await?,
        };
        // Zeroes are not in any segment; once no segment is dirty, they are what is left.
        if batch.pieces.is_empty() { Ok(self.select_by_lba().await) } else { Ok(batch) }
    }

    /// What a batch takes, in bytes of log. The more, the less of it is sent, since more is superseded in it and more pieces are adjacent. But its room
    /// comes back all at once, and who waits for room waits for the whole batch.
    pub(crate) fn batch_bytes(&self, state: &State) -> u64 {
        let most = self.level2().batch_bytes;
        let log_bytes = u64::from(self.layout.segment_count) * self.layout.segment_bytes;
        let usual = (log_bytes / BATCHES_A_LOG).max(BATCH_BYTES_WHEN_FULL);
        let freed_per_second = state.pace.freed_per_second().unwrap_or(0.0);
        let when_full = (freed_per_second * BATCH_TIME_WHEN_FULL.as_secs_f64()) as u64;
        let least = when_full.clamp(BATCH_BYTES_WHEN_FULL, usual);
        // No more than what is free lasts for, if as much comes as leaves. Slots last longer.
        let free_bytes = if self.is_staged() { usual } else { state.free_bytes(&self.layout) };
        let wanted = if state.wants_room { least } else { free_bytes.clamp(least, usual) };
        wanted.min(most)
    }

    async fn select_by_lba(self: &Arc<Self>) -> Batch {
        let (mut pieces, pins) = self.next_by_lba();
        let images = self.read_places(&pieces).await;
        self.keep_owed(&mut pieces);
        Batch { pieces, images, part: None, _pins: pins }
    }

    fn next_by_lba(self: &Arc<Self>) -> (Vec<Piece>, Pins) {
        let mut pins = Pins::none(self);
        let state = &mut *self.state();
        let bytes_max = self.batch_bytes(state);
        let (mut pieces, mut bytes): (Vec<Piece>, u64) = (Vec::new(), 0);
        let cursor = state.lba_cursor;
        // What is in slots goes straight to the origin when the log has failed, once a later start knows of it: it is newer than what the log has.
        let dirty_from = |sector| -> Box<dyn Iterator<Item = Piece> + '_> {
            match state.failure_note {
                FailureNote::Untried | FailureNote::Nowhere => Box::new(state.owed_from(sector)),
                _ => Box::new(state.map.dirty_from(sector)),
            }
        };
        let before_cursor = dirty_from(0).take_while(|piece| piece.sector < cursor);
        for piece in dirty_from(cursor).chain(before_cursor).filter(|piece| !piece.tag.is_lost()) {
            if bytes >= bytes_max {
                break;
            }
            let piece = piece.within(bytes_max - bytes);
            bytes += piece.destage_bytes();
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
        ((self.level2().writes_in_flight as f64 * free).round() as usize).max(1)
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

    /// Segments one after the other, the next ones being read already.
    pub(crate) fn load_in_order(&self, segments: Vec<u32>) -> impl Stream<Item = (u32, Loaded)> + Unpin + '_ {
        let loading = stream::iter(segments).map(async move |segment| (segment, self.load_segment(segment).await));
        let at_once = (SEGMENT_READ_BYTES_MAX / self.layout.segment_bytes).max(1) as usize;
        Box::pin(loading.buffered(self.log_reads_in_flight().min(at_once)))
    }

    /// A segment's image and the records in it that were applied.
    pub(crate) async fn load_segment(&self, segment: u32) -> Loaded {
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
    pub(crate) fn lose_damaged(&self, segment: u32, loaded: &Loaded) {
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
pub(crate) fn without(piece: &Piece, start: u64, end: u64) -> Vec<Piece> {
    let (from, to) = (u64::from(piece.place), u64::from(piece.place) + piece.sectors);
    let sector_of = |place: u64| piece.sector + (place - from);
    let (start, end) = (start.clamp(from, to), end.clamp(from, to));
    let left = (from < start).then(|| piece.clip(piece.sector, sector_of(start)));
    let right = (end < to).then(|| piece.clip(sector_of(end), piece.end()));
    if start == end { vec![*piece] } else { left.into_iter().chain(right).collect() }
}
