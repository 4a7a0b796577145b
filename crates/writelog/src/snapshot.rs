//! What a checkpoint stores, collected while requests go on.
//!
//! Extents change while they are collected, which does no harm. What a later record brings is left
//! out, since replay reads that record. What it supersedes may be in the checkpoint or not, since
//! replay puts the record over it. And what is clean by then is on the origin, flushed. In order
//! `log` the number of the last record that is on the origin is read last: what became clean
//! meanwhile is in records up to it.

use std::collections::HashSet;
use std::sync::Arc;

use store::{Life, LogPosition, Sequence};
use zerocopy::little_endian::U32;

use crate::checkpoint_bytes::CheckpointBytes;
use crate::format::{ExtentRaw, SegmentRaw};
use crate::layout::LogPlace;
use crate::limits::{EXTENTS_AT_ONCE, UNIT_BYTES};
use crate::log_state::{LogState, State};
use crate::lost::LostData;
use crate::map::Piece;
use crate::numbers::{Sector, SegmentNumber};
use crate::place::PlaceView;

/// What one checkpoint stores.
pub(crate) struct Snapshot {
    pub(crate) bytes: CheckpointBytes,
    pub(crate) segment_count: u32,
    pub(crate) extent_count: u32,
    /// Extents before this sector were collected.
    sector: Sector,
    /// Place behind the last record that it covers.
    applied: LogPlace,
    /// Place where replay begins.
    pub(crate) place: LogPlace,
    pub(crate) destaged_sequence: Sequence,
    pub(crate) dirty_bytes: u64,
    pub(crate) tail_bytes: u64,
    pub(crate) released: Vec<SegmentNumber>,
    pub(crate) has_failed: bool,
    /// Whether it names data that cannot be read back.
    pub(crate) has_lost: bool,
    pub(crate) has_nvram: bool,
}

impl Snapshot {
    fn add(&mut self, piece: &Piece) {
        self.bytes.push(&ExtentRaw {
            sector: piece.sector.into(),
            sectors: (piece.sectors as u32).into(),
            place: piece.place.encode().into(),
        });
        self.extent_count += 1;
    }
}

/// Takes snapshots of the log for checkpoints.
pub(crate) struct Snapshots {
    pub(crate) log: Arc<LogState>,
    pub(crate) lost: Arc<LostData>,
    pub(crate) life: Arc<Life>,
    pub(crate) keeps_order: bool,
    /// Whether slots are in persistent memory.
    pub(crate) has_nvram: bool,
}

impl Snapshots {
    /// Collects all that a checkpoint stores.
    pub(crate) fn take(&self) -> Snapshot {
        let mut snapshot = self.collect_all();
        snapshot.destaged_sequence = self.log.state().destaged.sequence();
        // After the number: data of these records is marked lost before the number passes it.
        snapshot.has_lost = self.lost.has_any();
        snapshot
    }

    pub(crate) fn collect_all(&self) -> Snapshot {
        let mut snapshot = self.without_extents(&self.log.state());
        while !self.collect(&mut snapshot, EXTENTS_AT_ONCE) {
            if snapshot.bytes.length() as u64 > self.log.layout.checkpoint_bytes {
                // Collected while others write, the extents may be more than at any one moment; of
                // one moment they fit.
                let state = self.log.state();
                snapshot = self.without_extents(&state);
                state.contents.owed_from(Sector::FIRST).for_each(|piece| snapshot.add(&piece));
                return snapshot;
            }
        }
        snapshot
    }

    pub(crate) fn without_extents(&self, state: &State) -> Snapshot {
        let applied = state.contents.applied.position.sequence;
        let released = state.releasable(self.keeps_order);
        let mut bytes = CheckpointBytes::new();
        let mut segment_count = 0;
        let is_released: HashSet<SegmentNumber> = released.iter().copied().collect();
        for segment in state.contents.segments.by_age().filter(|segment| !is_released.contains(segment)) {
            let entry = state.contents.segments.get(segment);
            if entry.first_sequence >= applied {
                continue;
            }
            bytes.push(&SegmentRaw {
                segment: segment.into(),
                reserved: U32::ZERO,
                first_sequence: entry.first_sequence.into(),
                last_sequence: entry.last_sequence.min(applied.before()).into(),
            });
            segment_count += 1;
        }
        let mut place = state.contents.applied;
        if state.failure.has_come() {
            // Records of this epoch that were refused may have landed: none of them may ever count.
            place.position.epoch += 1;
        }
        if is_released.contains(&place.segment) {
            // No more records come into this segment, which may be used again: replay begins where
            // the next record goes.
            let position = LogPosition { offset: 0, ..place.position };
            place = LogPlace { segment: place.next_segment, position, ..place };
        }
        debug_assert!(!is_released.contains(&place.segment), "a segment that is used again is no place to begin");
        let is_stage_used = state.contents.stage.as_ref().is_some_and(|stage| !stage.is_empty());
        Snapshot {
            bytes,
            segment_count,
            extent_count: 0,
            sector: Sector::FIRST,
            applied: state.contents.applied,
            place,
            destaged_sequence: state.destaged.sequence(),
            dirty_bytes: state.contents.map.dirty_sectors() * UNIT_BYTES,
            tail_bytes: state.checkpointed.tail_bytes(),
            released,
            has_failed: state.failure.has_come(),
            has_lost: false,
            has_nvram: self.has_nvram && (is_stage_used || !self.life.is_stopped()),
        }
    }

    /// Adds the next `count` extents that the origin lacks, under one lock, except those of records
    /// behind the snapshot's place. Returns whether these were all.
    pub(crate) fn collect(&self, snapshot: &mut Snapshot, count: usize) -> bool {
        let mut found = Vec::with_capacity(count);
        {
            let (state, sector) = (self.log.state(), snapshot.sector);
            found.extend(state.contents.owed_across(sector).chain(state.contents.owed_from(sector)).take(count));
            let Some(last) = found.last() else { return true };
            snapshot.sector = last.end();
            found.retain(|piece| self.was_before(&state, &snapshot.applied, piece));
        }
        found.iter().for_each(|piece| snapshot.add(piece));
        false
    }

    /// Whether the record of a piece was applied before `place`. Zeroes, whose record is not known
    /// exactly, count as before: replay makes them once more.
    fn was_before(&self, state: &State, place: &LogPlace, piece: &Piece) -> bool {
        let PlaceView::Segment(unit) = piece.place.view() else { return true };
        let segment = self.log.layout.segment_of(unit);
        let is_behind = segment == place.segment && unit >= self.log.layout.unit(segment, place.position.offset);
        state.contents.segments.get(segment).first_sequence < place.position.sequence && !is_behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{DestageOrder, Durability};
    use crate::tests::Parts;

    #[test]
    fn a_snapshot_has_what_the_origin_lacks_of_the_log_and_nothing_of_slots() {
        let mut parts = Parts::new(|options| {
            options.order = DestageOrder::Lba;
            options.durability = Durability::UnsafeVolatile;
        });
        let (records, snapshots) = (Arc::new(parts.assembly.records()), parts.assembly.snapshots());
        let sent = parts.append(&records, 0, 8, 1);
        parts.append(&records, 16, 8, 2);
        parts.put_in_slot(32, 2, 3);
        // Below the slot the log has what counts after a crash.
        parts.put_in_slot(16, 2, 3);
        parts.assembly.log.state().contents.mark_clean(&sent);
        let snapshot = snapshots.take();
        assert_eq!((snapshot.segment_count, snapshot.extent_count), (1, 2));
        assert_eq!(snapshot.place.position.sequence, Sequence(3));
        assert!(snapshot.released.is_empty() && !snapshot.has_lost, "its segment is open");
    }
}
