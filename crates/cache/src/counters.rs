//! Counters of a running cache. They are relaxed: for statistics only, in no order with each other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Kinds of request that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    /// A read ahead, which no client has asked for yet.
    Ahead,
}

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Hit,
    PartialHit,
    Miss,
}

/// How requests of one kind were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

    pub(crate) fn status(&self) -> RequestStatus {
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
    pub(crate) writes_deferred: AtomicU64,
    pub(crate) cache_read_errors: AtomicU64,
    pub(crate) cache_write_errors: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    /// Approximate count of submitted requests; relaxed, for statistics only.
    requests: AtomicU32,
    /// Nanoseconds of all response times together, estimated from a sample of the requests.
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

    /// The number of one more request.
    pub(crate) fn next_request(&self) -> u32 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }
}

/// The value of a counter now.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
