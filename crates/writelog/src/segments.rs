//! The segments of the log: which are free, which hold what the origin lacks, and which may be used again.
//!
//! ```text
//!            taken as the next one      opened             full
//!   free ───────────────► next ────────────► open ────────────► used
//!    ▲                                                           │ nothing dirty in it, and a durable
//!    └────────── taken again (its clean extents are stale) ◄── valid   checkpoint that no longer names it
//! ```
//! Free and valid segments are taken first come, first served, so the log is used circularly as
//! long as they come free in order. A *valid* segment holds clean data and serves reads until then.
//! A pinned segment, from which a read or a batch reads, is passed over.

use std::collections::{BTreeMap, VecDeque};
use store::Sequence;

use crate::numbers::SegmentNumber;
use crate::tag::Tag;

use base::clock::Instant;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    Free,
    Next,
    Open,
    Used,
    Valid,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Grows when it is taken.
    pub(crate) generation: u32,
    /// Sequence of its first record; [`Sequence::NONE`] before the first.
    pub(crate) first_sequence: Sequence,
    pub(crate) last_sequence: Sequence,
    pub(crate) dirty_sectors: u32,
    pub(crate) pins: u32,
    /// No data that comes into it, or into a segment opened later, was written before this time.
    pub(crate) oldest_at: Instant,
    /// Whether a checkpoint named it when the log was opened, and its records were not compared
    /// with their checksums since.
    pub(crate) is_unchecked: bool,
}

impl Segment {
    /// Makes it the next segment. Clean extents in it are stale from now on, so no new read uses
    /// it.
    fn become_next(&mut self) {
        self.state = SegmentState::Next;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// All segments of a log.
pub(crate) struct Segments {
    table: Vec<Segment>,
    /// Free and valid ones, in the order in which they are taken.
    reusable: VecDeque<SegmentNumber>,
    /// Open and used ones that have records, by their first sequence.
    by_age: BTreeMap<Sequence, SegmentNumber>,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        let free = Segment {
            state: SegmentState::Free,
            generation: 0,
            first_sequence: Sequence::NONE,
            last_sequence: Sequence::NONE,
            dirty_sectors: 0,
            pins: 0,
            oldest_at: Instant::START,
            is_unchecked: false,
        };
        Self {
            table: vec![free; count as usize],
            reusable: (0..count).map(SegmentNumber).collect(),
            by_age: BTreeMap::new(),
        }
    }

    pub(crate) fn get(&self, segment: SegmentNumber) -> &Segment {
        &self.table[segment.index()]
    }

    /// The tag of data that goes to a segment now.
    pub(crate) fn tag(&self, segment: SegmentNumber) -> Tag {
        Tag::dirty(self.get(segment).generation)
    }

    fn get_mut(&mut self, segment: SegmentNumber) -> &mut Segment {
        &mut self.table[segment.index()]
    }

    pub(crate) fn count(&self) -> u32 {
        self.table.len() as u32
    }

    /// Count of segments that can be taken, pinned ones included.
    pub(crate) fn reusable_count(&self) -> u32 {
        self.reusable.len() as u32
    }

    /// Count of segments in a state.
    pub(crate) fn count_of(&self, state: SegmentState) -> u32 {
        self.table.iter().filter(|segment| segment.state == state).count() as u32
    }

    /// Takes a segment to be the next one.
    pub(crate) fn take_next(&mut self) -> Option<SegmentNumber> {
        let index = self.reusable.iter().position(|&segment| self.get(segment).pins == 0)?;
        let segment = self.reusable.remove(index)?;
        self.get_mut(segment).become_next();
        Some(segment)
    }

    /// Takes this segment to be the next one: a record on the device names it. Returns whether it
    /// was reusable.
    pub(crate) fn take_named(&mut self, segment: SegmentNumber) -> bool {
        let Some(index) = self.reusable.iter().position(|&other| other == segment) else { return false };
        self.reusable.remove(index);
        self.get_mut(segment).become_next();
        true
    }

    /// Opens the next segment, for data written at `oldest_at` or later.
    pub(crate) fn open(&mut self, segment: SegmentNumber, oldest_at: Instant) {
        let entry = self.get_mut(segment);
        assert_eq!(entry.state, SegmentState::Next, "only the next segment is opened");
        assert_eq!((entry.dirty_sectors, entry.pins), (0, 0), "a segment in use is never opened again");
        *entry = Segment {
            state: SegmentState::Open,
            generation: entry.generation,
            first_sequence: Sequence::NONE,
            last_sequence: Sequence::NONE,
            dirty_sectors: 0,
            pins: 0,
            oldest_at,
            is_unchecked: false,
        };
    }

    /// Notes that a record is on its way into the segment.
    pub(crate) fn add_record(&mut self, segment: SegmentNumber, sequence: Sequence) {
        let entry = self.get_mut(segment);
        if entry.first_sequence == Sequence::NONE {
            entry.first_sequence = sequence;
            self.by_age.insert(sequence, segment);
        }
        self.get_mut(segment).last_sequence = sequence;
    }

    /// Closes the open segment: no more records go into it.
    pub(crate) fn close(&mut self, segment: SegmentNumber) {
        self.get_mut(segment).state = SegmentState::Used;
    }

    /// Restores a segment as a checkpoint names it.
    pub(crate) fn restore(
        &mut self,
        segment: SegmentNumber,
        first_sequence: Sequence,
        last_sequence: Sequence,
        now: Instant,
    ) -> bool {
        if !self.take_named(segment) {
            return false;
        }
        self.open(segment, now);
        self.add_record(segment, first_sequence);
        self.add_record(segment, last_sequence);
        self.close(segment);
        self.get_mut(segment).is_unchecked = true;
        true
    }

    /// Notes that the records of a segment were checked.
    pub(crate) fn note_checked(&mut self, segment: SegmentNumber) {
        self.get_mut(segment).is_unchecked = false;
    }

    pub(crate) fn add_dirty(&mut self, segment: SegmentNumber, sectors: u64) {
        self.get_mut(segment).dirty_sectors += sectors as u32;
    }

    pub(crate) fn remove_dirty(&mut self, segment: SegmentNumber, sectors: u64) {
        let entry = self.get_mut(segment);
        entry.dirty_sectors = entry
            .dirty_sectors
            .checked_sub(sectors as u32)
            .expect("a sector becomes clean once for each time it was dirty");
    }

    pub(crate) fn pin(&mut self, segment: SegmentNumber) {
        self.get_mut(segment).pins += 1;
    }

    pub(crate) fn unpin(&mut self, segment: SegmentNumber) {
        self.get_mut(segment).pins -= 1;
    }

    /// Open and used segments with records, oldest first.
    pub(crate) fn by_age(&self) -> impl DoubleEndedIterator<Item = SegmentNumber> + '_ {
        self.by_age.values().copied()
    }

    /// When the oldest dirty data was written, or earlier.
    pub(crate) fn oldest_dirty_at(&self) -> Option<Instant> {
        self.by_age()
            .map(|segment| self.get(segment))
            .find(|segment| segment.dirty_sectors > 0)
            .map(|segment| segment.oldest_at)
    }

    /// Used segments that a checkpoint made now would not need: nothing dirty, all records before
    /// `sequence`, and up to `destaged` where the order is kept.
    pub(crate) fn releasable(&self, sequence: Sequence, destaged: Option<Sequence>) -> Vec<SegmentNumber> {
        let is_releasable = |segment: &Segment| {
            segment.state == SegmentState::Used
                && segment.dirty_sectors == 0
                && segment.last_sequence < sequence
                && destaged.is_none_or(|destaged| segment.last_sequence <= destaged)
        };
        self.by_age().filter(|&segment| is_releasable(self.get(segment))).collect()
    }

    /// Lets segments be used again: a checkpoint without them is durable.
    pub(crate) fn release(&mut self, released: &[SegmentNumber]) {
        for &segment in released {
            let entry = self.get_mut(segment);
            assert_eq!((entry.state, entry.dirty_sectors), (SegmentState::Used, 0), "only a clean segment is released");
            entry.state = SegmentState::Valid;
            let first = entry.first_sequence;
            self.by_age.remove(&first);
            self.reusable.push_back(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(segments: &mut Segments, segment: SegmentNumber, sequence: Sequence) {
        segments.open(segment, Instant::START);
        segments.add_record(segment, sequence);
        segments.add_dirty(segment, 8);
        segments.close(segment);
    }

    #[test]
    fn a_segment_is_used_again_only_when_clean_and_checkpointed() {
        let mut segments = Segments::new(4);
        let first = segments.take_next().unwrap();
        fill(&mut segments, first, Sequence(1));
        let second = segments.take_next().unwrap();
        fill(&mut segments, second, Sequence(2));
        assert_eq!((first, second), (SegmentNumber(0), SegmentNumber(1)));
        assert!(segments.releasable(Sequence(10), None).is_empty(), "both are dirty");
        segments.remove_dirty(second, 8);
        assert_eq!(segments.releasable(Sequence(10), None), [second]);
        assert!(segments.releasable(Sequence(2), None).is_empty(), "its record is not in the checkpoint");
        assert!(segments.releasable(Sequence(10), Some(Sequence(1))).is_empty(), "its epoch is not on the origin");
        segments.release(&[second]);
        assert_eq!(segments.get(second).state, SegmentState::Valid);
        let circle = [SegmentNumber(2), SegmentNumber(3), second];
        assert_eq!(circle.map(|_| segments.take_next().unwrap()), circle, "in a circle");
        assert_eq!(segments.take_next(), None);
    }

    #[test]
    fn a_segment_somebody_reads_from_is_passed_over() {
        let mut segments = Segments::new(4);
        let [first, second] = [0, 1].map(SegmentNumber);
        segments.pin(first);
        assert_eq!(segments.take_next(), Some(second));
        segments.unpin(first);
        let generation = segments.get(first).generation;
        assert_eq!(segments.take_next(), Some(first));
        segments.open(first, Instant::START);
        assert_ne!(segments.get(first).generation, generation);
    }
}
