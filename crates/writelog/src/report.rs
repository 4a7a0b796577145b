//! The status of a log, taken at one moment.

use std::sync::atomic::AtomicU64;

use crate::core::Core;
use crate::counters::get;
use crate::failure::FailureNote;
use crate::limits::UNIT_BYTES;
use crate::segments::SegmentState;
use crate::status::{SegmentStatus, Status};

/// Assumed speed of recovery where none was measured, in bytes per second.
const RECOVERY_BYTES_PER_SECOND: u64 = 500_000_000;

impl Core {
    pub(crate) fn status(&self) -> Status {
        let state = self.log.state();
        let counters = &self.counters;
        let age = state.contents.oldest_dirty_at().map(|at| self.clock.now().since(at)).unwrap_or_default();
        let count_of = |wanted| state.contents.segments.count_of(wanted);
        let (free, valid) = (count_of(SegmentState::Free), count_of(SegmentState::Valid));
        let recovery_bytes = state.checkpointed.tail_bytes() + state.contents.map.dirty_extents() as u64 * 16;
        let stage = state.contents.stage.as_ref();
        let sectors = |counter: &AtomicU64| get(counter) * UNIT_BYTES;
        Status {
            durability: self.settings.durability,
            order: self.settings.order,
            destage: self.settings.level2().into(),
            dirty_bytes: state.contents.map.dirty_sectors() * UNIT_BYTES,
            lost_bytes: get(&counters.lost_bytes),
            dirty_age_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
            share_used: state.share_used(),
            segments: SegmentStatus {
                bytes: self.log.layout.segment_bytes,
                count: state.contents.segments.count(),
                free,
                valid,
                dirty: count_of(SegmentState::Open) + count_of(SegmentState::Used),
            },
            slots: stage.map_or(0, |stage| stage.slot_count() as u64),
            slots_used: stage.map_or(0, |stage| stage.used_count() as u64),
            record_cache_bytes: state.contents.records.bytes() as u64,
            extents: state.contents.map.len() as u64,
            extents_max: state.contents.map_extents_max() as u64,
            tail_bytes: state.checkpointed.tail_bytes(),
            recovery_estimate_ns: recovery_bytes * 1_000_000_000 / self.recovery_bytes_per_second(),
            written_bytes: get(&counters.written_bytes),
            absorbed_bytes: sectors(&counters.absorbed_sectors),
            superseded_bytes: sectors(&counters.superseded_sectors),
            records: get(&counters.records),
            record_bytes: get(&counters.record_bytes),
            appended_bytes: get(&counters.appended_bytes),
            destaged_bytes: get(&counters.destaged_bytes),
            destage_writes: get(&counters.destage_writes),
            merged_pieces: get(&counters.destage_pieces).saturating_sub(get(&counters.destage_writes)),
            cleaned_bytes: get(&counters.cleaned_bytes),
            batches: get(&counters.batches),
            rounds: get(&counters.rounds),
            checkpoints: get(&counters.checkpoints),
            writes_slowed: get(&counters.writes_slowed),
            log_read_errors: get(&counters.log_read_errors),
            reads: counters.reads.status(),
            written_sizes: counters.written_sizes.read(),
            destaged_sizes: counters.destaged_sizes.read(),
            recovery: self.recovery,
            failure: state.failure.error().map(ToString::to_string),
            refuses_writes: state.failure.note == FailureNote::Nowhere,
            destage_failure: state.destage_failure.clone(),
        }
    }

    fn recovery_bytes_per_second(&self) -> u64 {
        let report = &self.recovery;
        let bytes = report.record_bytes + report.checkpoint_extents * 16;
        if bytes < 1 << 20 || report.time_ns == 0 {
            return RECOVERY_BYTES_PER_SECOND;
        }
        (u128::from(bytes) * 1_000_000_000 / u128::from(report.time_ns)).clamp(1 << 20, 1 << 40) as u64
    }
}
