//! What a write log says about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::core::Core;
use crate::limits::{SIZE_CLASSES, UNIT_BYTES};
use crate::options::{DestageOrder, Durability, Level2};
use crate::reads::{ReadCounters, ReadStatus};
use crate::segments::SegmentState;

/// Counts of requests by size: up to 512 bytes, 1 KiB, ... 1 MiB, and more.
#[derive(Default)]
struct SizeHistogram([AtomicU64; SIZE_CLASSES]);

impl SizeHistogram {
    fn add(&self, bytes: u64) {
        let class = bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two().trailing_zeros() as usize;
        self.0[class.min(SIZE_CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Vec<u64> {
        self.0.iter().map(get).collect()
    }
}

/// Counts since the log was opened.
#[derive(Default)]
pub(crate) struct Counters {
    written_sizes: SizeHistogram,
    destaged_sizes: SizeHistogram,
    written_bytes: AtomicU64,
    absorbed_sectors: AtomicU64,
    superseded_sectors: AtomicU64,
    records: AtomicU64,
    record_bytes: AtomicU64,
    appended_bytes: AtomicU64,
    destaged_bytes: AtomicU64,
    destage_writes: AtomicU64,
    destage_pieces: AtomicU64,
    pub(crate) reads: ReadCounters,
    pub(crate) cleaned_bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) writes_slowed: AtomicU64,
    pub(crate) log_read_errors: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn written(&self, bytes: u64) {
        self.written_sizes.add(bytes);
        add(&self.written_bytes, bytes);
    }

    pub(crate) fn absorbed(&self, sectors: u64) {
        add(&self.absorbed_sectors, sectors);
    }

    pub(crate) fn superseded(&self, sectors: u64) {
        add(&self.superseded_sectors, sectors);
    }

    pub(crate) fn record(&self, bytes: u64, data_bytes: u64) {
        add(&self.records, 1);
        add(&self.record_bytes, bytes);
        add(&self.appended_bytes, data_bytes);
    }

    pub(crate) fn destaged(&self, bytes: u64, pieces: usize) {
        self.destaged_sizes.add(bytes);
        add(&self.destaged_bytes, bytes);
        add(&self.destage_writes, 1);
        add(&self.destage_pieces, pieces as u64);
    }
}

/// What was found when the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// Whether it had been closed; otherwise its program had stopped in the middle.
    pub was_closed: bool,
    /// Extents in the checkpoint.
    pub checkpoint_extents: u64,
    /// Records replayed.
    pub records: u64,
    /// Bytes of these.
    pub record_bytes: u64,
    /// Bytes found in NVRAM slots.
    pub nvram_bytes: u64,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// How long it took, in nanoseconds.
    pub time_ns: u64,
}

/// Segments by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SegmentStatus {
    /// Bytes of one.
    pub bytes: u64,
    /// All.
    pub count: u32,
    /// Holding nothing.
    pub free: u32,
    /// Open or used, and holding what the origin lacks, or waiting for a checkpoint.
    pub dirty: u32,
    /// Holding only what the origin has, too: they serve reads until they are used again.
    pub valid: u32,
}

/// When data leaves for the origin, and how fast.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DestageStatus {
    /// Percentage of the log in use from which it leaves under load.
    pub start_percent: u64,
    /// Percentage of the log in use from which it leaves at full speed.
    pub full_speed_percent: u64,
    /// Nanoseconds without a request that count as idle.
    pub idle_ns: u64,
    /// Nanoseconds that data does not exceed in the log; `None` without a bound.
    pub age_max_ns: Option<u64>,
    /// Bytes of log that a batch takes from at most.
    pub batch_bytes: u64,
    /// Writes in flight at full speed.
    pub writes: usize,
}

impl From<Level2> for DestageStatus {
    fn from(level2: Level2) -> Self {
        let percent = |share: f64| (share * 100.0).round() as u64;
        Self {
            start_percent: percent(level2.share_start),
            full_speed_percent: percent(level2.share_slow),
            idle_ns: u64::try_from(level2.idle.as_nanos()).unwrap_or(u64::MAX),
            age_max_ns: u64::try_from(level2.age_max.as_nanos()).ok(),
            batch_bytes: level2.batch_bytes,
            writes: level2.writes_in_flight,
        }
    }
}

/// What a log says about itself.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// When writes count as acknowledged.
    pub durability: Durability,
    /// The order of level 2.
    pub order: DestageOrder,
    /// What else level 2 goes by.
    pub destage: DestageStatus,
    /// Bytes that the origin lacks, in slots and in the log.
    pub dirty_bytes: u64,
    /// Of these, bytes whose only copy cannot be read.
    pub lost_bytes: u64,
    /// Age of the oldest such bytes, in nanoseconds: of their slot, or of the segment they are in.
    pub dirty_age_ns: u64,
    /// Share of the log, of its segments or of its checkpoint's extents, that takes new records only when the origin has what is there.
    pub share_used: f64,
    /// Segments.
    pub segments: SegmentStatus,
    /// Slots of RAM or NVRAM.
    pub slots: u64,
    /// Of these in use.
    pub slots_used: u64,
    /// Bytes of RAM of the newest records.
    pub record_cache_bytes: u64,
    /// Extents of the map: 21 to 81 bytes of RAM each.
    pub extents: u64,
    /// Most extents that it has, by the size of the log and its slots.
    pub extents_max: u64,
    /// Bytes of records since the last checkpoint: what a recovery reads now, besides the checkpoint.
    pub tail_bytes: u64,
    /// How long a recovery would take now, in nanoseconds, from how long the last one took or at 500 MB/s.
    pub recovery_estimate_ns: u64,
    /// Bytes written by applications.
    pub written_bytes: u64,
    /// Bytes written again in RAM before they were in the log.
    pub absorbed_bytes: u64,
    /// Bytes in the log that are never sent, since they were written again before: in order `log` within one epoch.
    pub superseded_bytes: u64,
    /// Records.
    pub records: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Bytes of data in records.
    pub appended_bytes: u64,
    /// Bytes sent to the origin.
    pub destaged_bytes: u64,
    /// Writes in which they were sent.
    pub destage_writes: u64,
    /// Pieces that were joined in these.
    pub merged_pieces: u64,
    /// Bytes that became clean.
    pub cleaned_bytes: u64,
    /// Batches of level 2.
    pub batches: u64,
    /// Rounds of level 1.
    pub rounds: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Writes that paused because the log was nearly full.
    pub writes_slowed: u64,
    /// Reads of the log device that failed.
    pub log_read_errors: u64,
    /// Where reads were answered from.
    pub reads: ReadStatus,
    /// Writes of applications by size: up to 512 bytes, 1 KiB, ... 1 MiB, more.
    pub written_sizes: Vec<u64>,
    /// Writes to the origin by size.
    pub destaged_sizes: Vec<u64>,
    /// What the open found.
    pub recovery: RecoveryReport,
    /// Why the log takes nothing any more, if it does not.
    pub failure: Option<String>,
    /// Why the last batch could not be brought down, if it could not; it is tried again.
    pub destage_failure: Option<String>,
}

/// Assumed speed of recovery where none was measured, in bytes per second.
const RECOVERY_BYTES_PER_SECOND: u64 = 500_000_000;

impl Core {
    pub(crate) fn status(&self) -> Status {
        let state = self.state();
        let counters = &self.counters;
        let age = state.oldest_dirty_at().map(|at| self.clock.now().since(at)).unwrap_or_default();
        let count_of = |wanted| state.segments.count_of(wanted);
        let (free, valid) = (count_of(SegmentState::Free), count_of(SegmentState::Valid));
        let recovery_bytes = state.tail_bytes + state.map.dirty_extents() as u64 * 16;
        let stage = state.stage.as_ref();
        let sectors = |counter: &AtomicU64| get(counter) * UNIT_BYTES;
        Status {
            durability: self.options.durability,
            order: self.options.order,
            destage: self.level2().into(),
            dirty_bytes: state.map.dirty_sectors() * UNIT_BYTES,
            lost_bytes: get(&counters.lost_bytes),
            dirty_age_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
            share_used: state.share_used(&self.layout),
            segments: SegmentStatus {
                bytes: self.layout.segment_bytes,
                count: state.segments.count(),
                free,
                valid,
                dirty: count_of(SegmentState::Open) + count_of(SegmentState::Used),
            },
            slots: stage.map_or(0, |stage| stage.slot_count() as u64),
            slots_used: stage.map_or(0, |stage| stage.used_count() as u64),
            record_cache_bytes: state.records.bytes() as u64,
            extents: state.map.len() as u64,
            extents_max: state.map_extents_max(&self.layout) as u64,
            tail_bytes: state.tail_bytes,
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
            failure: state.failure.as_ref().map(ToString::to_string),
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
