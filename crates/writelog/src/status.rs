//! The status of a write log.

use serde::Serialize;

use crate::options::{DestageOrder, Durability, Level2};
use crate::reads::ReadStatus;

/// What the recovery of an open found.
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
    /// Bytes of a segment.
    pub bytes: u64,
    /// Count of all segments.
    pub count: u32,
    /// Segments that hold nothing.
    pub free: u32,
    /// Open or used segments that hold what the origin lacks, or wait for a checkpoint.
    pub dirty: u32,
    /// Segments that hold only what the origin has, too: they serve reads until they are used
    /// again.
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
    /// Largest age of data that is not on the origin, in nanoseconds; `None` without a bound.
    pub age_max_ns: Option<u64>,
    /// Most bytes of log that a batch takes from.
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

/// The status of a write log.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// When writes count as acknowledged.
    pub durability: Durability,
    /// The order of level 2.
    pub order: DestageOrder,
    /// The other options of level 2.
    pub destage: DestageStatus,
    /// Bytes that the origin lacks, in slots and in the log.
    pub dirty_bytes: u64,
    /// Of these, bytes whose only copy cannot be read.
    pub lost_bytes: u64,
    /// Age of the oldest such bytes, in nanoseconds: of their slot, or of the segment they are in.
    pub dirty_age_ns: u64,
    /// Share of the log (its segments, or its checkpoint's extents) that takes new records only
    /// when the origin has the present content.
    pub share_used: f64,
    /// Segments.
    pub segments: SegmentStatus,
    /// Slots of RAM or NVRAM.
    pub slots: u64,
    /// Slots of these in use.
    pub slots_used: u64,
    /// Bytes of RAM for the newest records.
    pub record_cache_bytes: u64,
    /// Extents of the map: 21 to 81 bytes of RAM each.
    pub extents: u64,
    /// Most extents of the map, by the size of the log and its slots.
    pub extents_max: u64,
    /// Bytes of records since the last checkpoint: what a recovery reads now, besides the checkpoint.
    pub tail_bytes: u64,
    /// How long a recovery would take now, in nanoseconds, from how long the last one took or at 500 MB/s.
    pub recovery_estimate_ns: u64,
    /// Bytes written by applications.
    pub written_bytes: u64,
    /// Bytes written again in RAM before they were in the log.
    pub absorbed_bytes: u64,
    /// Bytes in the log that are never sent, because they were written again before; in order `log`
    /// only within one epoch.
    pub superseded_bytes: u64,
    /// Records.
    pub records: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Bytes of data in records.
    pub appended_bytes: u64,
    /// Bytes sent to the origin.
    pub destaged_bytes: u64,
    /// Writes to the origin for these.
    pub destage_writes: u64,
    /// Pieces that were joined into these.
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
    /// The error since which the log takes no records, if it failed.
    pub failure: Option<String>,
    /// Whether writes fail since then, and do not go to the origin: the failure could be noted nowhere.
    pub refuses_writes: bool,
    /// The error of the last batch, if it failed; in the background it is tried again.
    pub destage_failure: Option<String>,
}
