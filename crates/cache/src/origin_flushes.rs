//! The state of flushes of one origin that its caches share: a cache, and its successor.
//!
//! Both write to the origin and flush it while one replaces the other. A flush by one of them
//! covers what the origin acknowledged to the other; one that fails may have dropped that. So they
//! share one count of unflushed writes, one turn to flush, and one list of failures for clients; a
//! loss is noted in each of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use store::OriginLosses;

use crate::flush_failures::FlushFailures;

/// Counts of acknowledged and flushed writes of one origin, the turn to flush it, and its failed
/// flushes.
pub(crate) struct OriginFlushes {
    /// Held during a flush of the origin.
    pub(crate) turn: futures_util::lock::Mutex<()>,
    pub(crate) failures: FlushFailures,
    /// Count of changes that the origin acknowledged without force unit access; one more for all that were before the
    /// first open.
    writes: AtomicU64,
    /// Of these, how many a flush has made durable.
    writes_flushed: AtomicU64,
    /// Short sections, never across an await or together with another lock.
    losses: Mutex<Vec<Weak<OriginLosses>>>,
}

impl OriginFlushes {
    /// For an origin without a cache. What it had acknowledged before is not known, so it counts as
    /// having something to flush.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            turn: futures_util::lock::Mutex::default(),
            failures: FlushFailures::default(),
            writes: AtomicU64::new(1),
            writes_flushed: AtomicU64::new(0),
            losses: Mutex::default(),
        })
    }

    /// Registers a cache that uses the origin from now on, by its `losses`.
    pub(crate) fn join(&self, losses: &Arc<OriginLosses>) {
        let mut all = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|losses| losses.strong_count() > 0);
        all.push(Arc::downgrade(losses));
    }

    /// Notes in every cache that the origin lost what it had not flushed, or may have.
    pub(crate) fn note_losses(&self) {
        let all = self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).for_each(|losses| losses.note());
    }

    /// Count of changes that the origin has acknowledged.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Whether a flush has failed that may have dropped something: data that the origin shows since
    /// then may be gone later.
    pub(crate) fn has_lost(&self) -> bool {
        self.failures.count() > 0
    }

    /// Whether the origin could still lose something that it acknowledged.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.writes() != self.writes_flushed.load(Ordering::Acquire)
    }

    /// Notes that the first `written` changes are durable.
    pub(crate) fn note_flushed(&self, written: u64) {
        self.writes_flushed.fetch_max(written, Ordering::AcqRel);
    }

    /// Counts a change that the origin has and may lose.
    pub(crate) fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::SeqCst);
    }
}
