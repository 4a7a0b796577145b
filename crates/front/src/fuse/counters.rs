//! What was asked of a FUSE file.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::counters::RequestCounters;

/// What the requests of a file are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    WriteZeroes,
}

#[derive(Default)]
struct KindCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

#[derive(Default)]
pub(super) struct Counters {
    kinds: [KindCounters; 4],
    open: AtomicU64,
}

impl Counters {
    pub(super) fn note_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_request(&self, kind: Kind, bytes: u64) {
        let counters = &self.kinds[kind as usize];
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_error(&self, kind: Kind) {
        self.kinds[kind as usize].errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> FuseCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kind = |kind: Kind| {
            let counters = &self.kinds[kind as usize];
            RequestCounters {
                requests: load(&counters.requests),
                bytes: load(&counters.bytes),
                errors: load(&counters.errors),
            }
        };
        FuseCounters {
            open: load(&self.open),
            read: kind(Kind::Read),
            write: kind(Kind::Write),
            flush: kind(Kind::Flush),
            write_zeroes: kind(Kind::WriteZeroes),
        }
    }
}

/// What was asked of a file so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FuseCounters {
    /// How many times it is open now. A loop device is one.
    pub open: u64,
    /// Reads.
    pub read: RequestCounters,
    /// Writes.
    pub write: RequestCounters,
    /// Flushes (fsync).
    pub flush: RequestCounters,
    /// Holes and zeroes (fallocate).
    pub write_zeroes: RequestCounters,
}
