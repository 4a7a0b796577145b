//! The status of a running cache.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::admission::Tuning;
use crate::cleaner::CleanProgress;
use crate::core::Core;
use crate::counters::{RequestKind, RequestStatus, get};
use crate::crash_mode::CrashMode;
use crate::limits::SECTOR_BYTES;
use crate::load::LoadTotals;
use crate::memory::Need;
use crate::mode::Mode;
use crate::options::DirtyLimits;
use crate::pace::CleaningRate;
use crate::recovery_report::RecoveryReport;
use crate::replacement::Replacement;
use crate::stranded::Stranded;
use crate::succession::CopyProgress;

/// The status of a running cache.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// When writes are acknowledged.
    pub mode: Mode,
    /// The crash mode.
    pub crash_mode: CrashMode,
    /// Generation of the origin's content, as the user gave it; `None` when none was given.
    pub generation: Option<u64>,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// What is worth a frame.
    #[serde(flatten)]
    pub tuning: Tuning,
    /// The error since which nothing new is cached, if there was one.
    pub failure: Option<String>,
    /// The error of the last attempt to clean, if it failed; in the background it is tried again.
    pub cleaning_failure: Option<String>,
    /// The error of the last read that the cache device failed since the cache was opened. What was
    /// clean came from the origin.
    pub failed_read: Option<String>,
    /// The error of the last write that the cache device refused since the cache was opened. Its
    /// data went to the origin, or stayed uncached.
    pub refused_write: Option<String>,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Frames.
    pub lines: u64,
    /// Most frames, as the user limited them; `None` for as many as fit.
    pub lines_max: Option<u64>,
    /// Frames of a set.
    pub ways: u64,
    /// Bytes of memory that the frames take, up to some percent.
    pub memory_bytes: u64,
    /// First byte of the origin at which a line begins.
    pub alignment_bytes: u64,
    /// Lines that hold a block.
    pub resident_lines: u64,
    /// Bytes that the cache can return.
    pub valid_bytes: u64,
    /// Lines with data that the origin does not have.
    pub dirty_lines: u64,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// The part of that beyond the end of an origin that became smaller: it cannot be cleaned.
    #[serde(flatten)]
    pub stranded: Stranded,
    /// When nothing was dirty last, in seconds since 1970: all dirty data has been written since.
    /// `None` when not known.
    pub clean_at: Option<u64>,
    /// Reads.
    pub reads: RequestStatus,
    /// Writes. A write counts as a hit when its lines were resident.
    pub writes: RequestStatus,
    /// Reads ahead of what was asked for.
    pub aheads: RequestStatus,
    /// Reads of the origin on behalf of reads.
    pub origin_reads: u64,
    /// Reads of the origin that a write had to wait for. Stays 0.
    pub origin_reads_before_write_ack: u64,
    /// Insertions left out because the cache device could not keep up.
    pub insertions_dropped: u64,
    /// Clean lines that were evicted.
    pub evictions: u64,
    /// Lines cleaned.
    pub cleaned_lines: u64,
    /// Progress of the cleaning that a caller asked for, while it runs.
    pub cleaning: Option<CleanProgress>,
    /// Progress of the copying to a successor.
    pub copying: Option<CopyProgress>,
    /// How much may be dirty.
    #[serde(flatten)]
    pub dirty_limits: DirtyLimits,
    /// How fast lines are cleaned.
    #[serde(flatten)]
    pub cleaning_rate: CleaningRate,
    /// Lines that the next round of cleaning sends.
    pub clean_round_lines: u64,
    /// Rounds of cleaning after which less was sent, because requests took longer.
    pub clean_rounds_throttled: u64,
    /// Times that a write had to wait for a frame or for less dirty data.
    pub writes_delayed: u64,
    /// Writes whose data went into the log, to be placed later.
    pub writes_deferred: u64,
    /// Bytes of memory of deferred data.
    pub deferred_bytes: u64,
    /// Bytes of the largest write that is deferred; 0 for none.
    pub deferred_max: u64,
    /// Checkpoints of the table.
    pub checkpoints: u64,
    /// Table pages these wrote.
    pub table_pages_written: u64,
    /// Times that a write found the log full.
    pub log_full: u64,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Reads that the cache device failed.
    pub cache_read_errors: u64,
    /// Writes that the cache device failed.
    pub cache_write_errors: u64,
    /// Whether whole lines have checksums.
    pub has_checksums: bool,
    /// Lines whose data did not match its checksum.
    pub checksum_errors: u64,
    /// Totals since the cache was opened, for the load between two moments.
    pub load: LoadTotals,
    /// What the recovery of this open found.
    pub recovery: RecoveryReport,
}

impl Core {
    pub(crate) fn status(&self) -> Status {
        let (cleaning_rate, clean_round_lines, clean_rounds_throttled) = {
            let pace = self.cleaner.pace();
            (pace.rate, pace.quota(), pace.throttled_count)
        };
        let (cleaning, cleaning_failure) = (self.cleaner.progress(), self.cleaner.failure());
        let (copying, journal, counters) = (self.succession.progress(), self.journal.status(), &self.counters);
        let state = &mut *self.lines.state();
        state.note_clean();
        let (counts, replacement) = (state.frames.counts(), state.frames.replacement());
        let has_checksums = state.frames.has_checksums();
        Status {
            mode: state.mode,
            crash_mode: self.crash_mode,
            generation: Some(self.generation).filter(|&generation| generation != 0),
            replacement,
            tuning: state.admissions.tuning(),
            failure: state.failure.as_ref().map(ToString::to_string),
            cleaning_failure,
            failed_read: self.failed_reads.last(),
            refused_write: self.refused_writes.last(),
            line_bytes: self.line_size().bytes(),
            lines: u64::from(self.layout.frame_count()),
            lines_max: self.layout.frames_max,
            ways: u64::from(self.layout.ways),
            memory_bytes: Need::of(&self.layout, replacement, has_checksums).bytes(),
            alignment_bytes: (self.line_size().bytes() - self.origin.padding) % self.line_size().bytes(),
            resident_lines: counts.resident_lines,
            valid_bytes: counts.valid_sectors * SECTOR_BYTES,
            dirty_lines: counts.dirty_lines,
            dirty_bytes: counts.dirty_sectors * SECTOR_BYTES,
            stranded: self.stranded(state),
            clean_at: Some(state.clean_at).filter(|&seconds| seconds != 0),
            reads: counters.of(RequestKind::Read).status(),
            writes: counters.of(RequestKind::Write).status(),
            aheads: counters.of(RequestKind::Ahead).status(),
            origin_reads: get(&counters.of(RequestKind::Read).origin_reads),
            origin_reads_before_write_ack: get(&counters.of(RequestKind::Write).origin_reads),
            insertions_dropped: get(&counters.insertions_dropped),
            evictions: get(&counters.evictions),
            cleaned_lines: get(&counters.cleaned_lines),
            cleaning,
            copying,
            dirty_limits: state.dirty,
            cleaning_rate,
            clean_round_lines,
            clean_rounds_throttled,
            writes_delayed: get(&counters.writes_delayed),
            writes_deferred: get(&counters.writes_deferred),
            deferred_bytes: state.deferred.held_bytes() as u64,
            deferred_max: state.deferred.write_bytes_max(),
            checkpoints: journal.checkpoints,
            table_pages_written: journal.table_pages_written,
            log_full: journal.log_full,
            log_used_bytes: journal.log.used_bytes,
            log_bytes: journal.log.region_bytes,
            cache_read_errors: get(&counters.cache_read_errors),
            cache_write_errors: get(&counters.cache_write_errors),
            has_checksums,
            checksum_errors: get(&counters.checksum_errors),
            load: self.load(),
            recovery: self.recovery,
        }
    }

    fn load(&self) -> LoadTotals {
        let (reads, writes) =
            (self.counters.of(RequestKind::Read).status(), self.counters.of(RequestKind::Write).status());
        let open = self.clock.now() - self.opened_at;
        LoadTotals {
            open_ns: u64::try_from(open.as_nanos()).unwrap_or(u64::MAX),
            reads: reads.hits + reads.partial_hits + reads.misses,
            read_hits: reads.hits,
            writes: writes.hits + writes.partial_hits + writes.misses,
            served_ns: self.counters.served_ns.load(Ordering::Relaxed),
        }
    }
}
