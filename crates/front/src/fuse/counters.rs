//! Counters of the requests to a FUSE file.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::kind_counters::{KindCounters, RequestCounters};

#[derive(Default)]
pub(super) struct Counters {
    pub(super) reads: KindCounters,
    pub(super) writes: KindCounters,
    pub(super) flushes: KindCounters,
    pub(super) zeroes: KindCounters,
    pub(super) seeks: KindCounters,
    open: AtomicU64,
}

impl Counters {
    pub(super) fn note_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> FuseCounters {
        FuseCounters {
            open: self.open.load(Ordering::Relaxed),
            read: self.reads.snapshot(),
            write: self.writes.snapshot(),
            flush: self.flushes.snapshot(),
            write_zeroes: self.zeroes.snapshot(),
            seek: self.seeks.snapshot(),
        }
    }
}

/// The counter of one kind of request.
pub(super) type Kind = fn(&Counters) -> &KindCounters;

/// Counters of the requests to a FUSE file since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FuseCounters {
    /// How many times it is open now; a loop device counts once.
    pub open: u64,
    /// Reads.
    pub read: RequestCounters,
    /// Writes.
    pub write: RequestCounters,
    /// Flushes (fsync).
    pub flush: RequestCounters,
    /// Holes and zeroes (fallocate).
    pub write_zeroes: RequestCounters,
    /// Questions for the next data or hole (lseek).
    pub seek: RequestCounters,
}

impl AddAssign for FuseCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { open, read, write, flush, write_zeroes, seek } = other;
        self.open += open;
        self.read += read;
        self.write += write;
        self.flush += flush;
        self.write_zeroes += write_zeroes;
        self.seek += seek;
    }
}
