//! What a cache says about itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

use serde::Serialize;
use store::LogUsage;

use crate::admission::Tuning;
use crate::clean::CleanProgress;
use crate::core::Core;
use crate::crash_mode::CrashMode;
use crate::limits::SECTOR_BYTES;
use crate::load::LoadTotals;
use crate::memory::Need;
use crate::options::{DirtyLimits, Mode};
use crate::pace::CleaningRate;
use crate::replace::CopyProgress;
use crate::replacement::Replacement;
use crate::stranded::Stranded;

/// Kinds of request that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    /// A read that nobody has asked for yet.
    Ahead,
}

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Hit,
    PartialHit,
    Miss,
}

/// Counts of one kind of request.
#[derive(Default)]
pub(crate) struct RequestCounters {
    hits: AtomicU64,
    partial_hits: AtomicU64,
    misses: AtomicU64,
    tag_hits: AtomicU64,
    tag_misses: AtomicU64,
    /// Reads of the origin on behalf of such requests, before they were answered.
    pub(crate) origin_reads: AtomicU64,
}

impl RequestCounters {
    pub(crate) fn served(&self, serving: Serving) {
        let counter = match serving {
            Serving::Hit => &self.hits,
            Serving::PartialHit => &self.partial_hits,
            Serving::Miss => &self.misses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn tags(&self, hit_count: u64, miss_count: u64) {
        self.tag_hits.fetch_add(hit_count, Ordering::Relaxed);
        self.tag_misses.fetch_add(miss_count, Ordering::Relaxed);
    }

    fn status(&self) -> RequestStatus {
        RequestStatus {
            hits: get(&self.hits),
            partial_hits: get(&self.partial_hits),
            misses: get(&self.misses),
            tag_hits: get(&self.tag_hits),
            tag_misses: get(&self.tag_misses),
        }
    }
}

/// Counts since the cache was opened.
#[derive(Default)]
pub(crate) struct Counters {
    reads: RequestCounters,
    writes: RequestCounters,
    aheads: RequestCounters,
    pub(crate) evictions: AtomicU64,
    pub(crate) insertions_dropped: AtomicU64,
    pub(crate) cleaned_lines: AtomicU64,
    pub(crate) writes_delayed: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) table_pages_written: AtomicU64,
    pub(crate) log_full: AtomicU64,
    pub(crate) cache_read_errors: AtomicU64,
    pub(crate) cache_write_errors: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    /// Response times, as a sample says.
    pub(crate) served_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn of(&self, kind: RequestKind) -> &RequestCounters {
        match kind {
            RequestKind::Read => &self.reads,
            RequestKind::Write => &self.writes,
            RequestKind::Ahead => &self.aheads,
        }
    }

    /// Reads and writes.
    pub(crate) fn served(&self) -> (RequestStatus, RequestStatus) {
        (self.reads.status(), self.writes.status())
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// How requests of one kind were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStatus {
    /// Requests served by the cache device alone.
    pub hits: u64,
    /// Reads served by both.
    pub partial_hits: u64,
    /// Requests for which the cache had nothing.
    pub misses: u64,
    /// Lines touched whose tag was resident, whatever of it was valid.
    pub tag_hits: u64,
    /// Lines touched whose tag was not resident.
    pub tag_misses: u64,
}

/// What was found when the cache was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// Whether it had been closed; otherwise its program had stopped in the middle.
    pub was_closed: bool,
    /// Log records replayed.
    pub log_records: u64,
    /// Bytes of these.
    pub log_bytes: u64,
    /// Entries in these.
    pub log_entries: u64,
    /// Writes whose data was compared with its checksum.
    pub writes_verified: u64,
    /// Of these, writes that had not landed, and therefore had not been acknowledged.
    pub writes_taken_back: u64,
    /// Lines dirty after recovery.
    pub dirty_lines: u64,
    /// Of these, lines that the cache device cannot return.
    pub lost_lines: u64,
    /// Clean lines that a crash has cost, or a table that is an older one, or of which others changed something meanwhile.
    pub clean_lines_dropped: u64,
    /// Whether the table of the closed cache is not the one that it was closed with: the newest slot of a page is gone. Nothing was dirty.
    pub is_table_older: bool,
}

/// What a cache says about itself.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// When writes are acknowledged.
    pub mode: Mode,
    /// What a crash leaves.
    pub crash_mode: CrashMode,
    /// Of the origin's content, as somebody said; `None` when nobody did.
    pub generation: Option<u64>,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// What is worth a frame.
    #[serde(flatten)]
    pub tuning: Tuning,
    /// The error that ended caching of anything new, if there was one.
    pub failure: Option<String>,
    /// Why cleaning in the background did not succeed, when it was tried last; it is tried again.
    pub cleaning_failure: Option<String>,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Frames.
    pub lines: u64,
    /// Most frames that somebody wanted; `None` for as many as fit.
    pub lines_max: Option<u64>,
    /// Frames of a set.
    pub ways: u64,
    /// Bytes of memory that these take, up to some percent.
    pub memory_bytes: u64,
    /// First byte of the origin at which a line begins.
    pub alignment_bytes: u64,
    /// Lines that hold a block.
    pub resident_lines: u64,
    /// Bytes that the cache can return.
    pub valid_bytes: u64,
    /// Lines with something the origin does not have.
    pub dirty_lines: u64,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// What of that lies beyond the end of an origin that became smaller, and cannot be cleaned.
    #[serde(flatten)]
    pub stranded: Stranded,
    /// When nothing was dirty last, in seconds since 1970: all that is has been written since. `None` when that is not known.
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
    /// Clean lines that had to leave for others.
    pub evictions: u64,
    /// Lines cleaned.
    pub cleaned_lines: u64,
    /// How far the cleaning is that somebody asked for, while it goes on.
    pub cleaning: Option<CleanProgress>,
    /// How far the copying to another cache is that is to take the place of this one.
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
    /// What it has done since then, for the load between two moments.
    pub load: LoadTotals,
    /// What was found when the cache was opened.
    pub recovery: RecoveryReport,
}

impl Core {
    pub(crate) fn cleaning_failure(&self) -> MutexGuard<'_, Option<String>> {
        self.cleaning_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        let (cleaning_rate, clean_round_lines, clean_rounds_throttled) = {
            let pace = self.pace();
            (pace.rate, pace.quota(), pace.throttled_count)
        };
        let has_checksums = self.state().frames.has_checksums();
        let (mode, dirty_limits, replacement, tuning, failure, counts, cleaning, copying, clean_at) = {
            let state = &mut *self.state();
            let failure = state.failure.as_ref().map(ToString::to_string);
            let (replacement, tuning) = (state.frames.replacement(), state.admissions.tuning());
            self.note_clean(state);
            let (counts, cleaning, copying) = (state.frames.counts(), state.clean_progress, state.copying);
            let clean_at = Some(state.clean_at).filter(|&seconds| seconds != 0);
            (state.mode, state.dirty, replacement, tuning, failure, counts, cleaning, copying, clean_at)
        };
        let LogUsage { used_bytes, region_bytes } = self.log.usage();
        let counters = &self.counters;
        Status {
            mode,
            crash_mode: self.crash_mode,
            generation: Some(self.generation).filter(|&generation| generation != 0),
            replacement,
            tuning,
            failure,
            cleaning_failure: self.cleaning_failure().clone(),
            line_bytes: self.line_size().bytes(),
            lines: u64::from(self.layout.frame_count()),
            lines_max: self.layout.frames_max,
            ways: u64::from(self.layout.ways),
            memory_bytes: Need::of(&self.layout, replacement, has_checksums).bytes(),
            alignment_bytes: (self.line_size().bytes() - self.padding) % self.line_size().bytes(),
            resident_lines: counts.resident_lines,
            valid_bytes: counts.valid_sectors * SECTOR_BYTES,
            dirty_lines: counts.dirty_lines,
            dirty_bytes: counts.dirty_sectors * SECTOR_BYTES,
            stranded: self.stranded(&self.state()),
            clean_at,
            reads: counters.reads.status(),
            writes: counters.writes.status(),
            aheads: counters.aheads.status(),
            origin_reads: get(&counters.reads.origin_reads),
            origin_reads_before_write_ack: get(&counters.writes.origin_reads),
            insertions_dropped: get(&counters.insertions_dropped),
            evictions: get(&counters.evictions),
            cleaned_lines: get(&counters.cleaned_lines),
            cleaning,
            copying,
            dirty_limits,
            cleaning_rate,
            clean_round_lines,
            clean_rounds_throttled,
            writes_delayed: get(&counters.writes_delayed),
            checkpoints: get(&counters.checkpoints),
            table_pages_written: get(&counters.table_pages_written),
            log_full: get(&counters.log_full),
            log_used_bytes: used_bytes,
            log_bytes: region_bytes,
            cache_read_errors: get(&counters.cache_read_errors),
            cache_write_errors: get(&counters.cache_write_errors),
            has_checksums,
            checksum_errors: get(&counters.checksum_errors),
            load: self.load(),
            recovery: self.recovery,
        }
    }
}
