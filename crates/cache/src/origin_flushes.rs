//! What the caches of one origin know together about flushes of it: a cache, and the successor that is to take its
//! place.
//!
//! Both write to the origin and flush it while one replaces the other. A flush by one of them covers what the origin
//! acknowledged to the other; one that fails may have dropped that. So they have one count of what is not flushed, one
//! flush at a time, and one list of failures that clients are to be told of; and a loss is noted in each of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use store::Losses;

use crate::flush_failures::FlushFailures;

/// What is not flushed of one origin, who flushes it, and which flushes failed. See the top of this file.
pub(crate) struct OriginFlushes {
    /// Held by who flushes the origin.
    pub(crate) turn: futures_util::lock::Mutex<()>,
    pub(crate) failures: FlushFailures,
    /// Count of changes that the origin acknowledged without force unit access; one more for all that were before the
    /// first open.
    writes: AtomicU64,
    /// Of these, how many a flush has made durable.
    writes_flushed: AtomicU64,
    /// Short sections, never across an await or together with another lock.
    losses: Mutex<Vec<Weak<Losses>>>,
}

impl OriginFlushes {
    /// Of an origin that nobody uses yet. Nobody knows what it had acknowledged before, so it has something to flush.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            turn: futures_util::lock::Mutex::default(),
            failures: FlushFailures::default(),
            writes: AtomicU64::new(1),
            writes_flushed: AtomicU64::new(0),
            losses: Mutex::default(),
        })
    }

    /// A cache with these `losses` uses the origin from now on.
    pub(crate) fn join(&self, losses: &Arc<Losses>) {
        let mut all = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|losses| losses.strong_count() > 0);
        all.push(Arc::downgrade(losses));
    }

    /// The origin lost what it had not flushed, or may have, whichever cache had sent it.
    pub(crate) fn note_losses(&self) {
        let all = self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).for_each(|losses| losses.note());
    }

    /// Changes that the origin has acknowledged until now.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Whether a flush has failed that may have dropped something: what the origin shows since then it may not have.
    pub(crate) fn has_lost(&self) -> bool {
        self.failures.count() > 0
    }

    /// Whether the origin could still lose something that it acknowledged.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.writes() != self.writes_flushed.load(Ordering::Acquire)
    }

    /// The first `written` changes are durable.
    pub(crate) fn note_flushed(&self, written: u64) {
        self.writes_flushed.fetch_max(written, Ordering::AcqRel);
    }

    /// One more change that the origin has acknowledged.
    pub(crate) fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::SeqCst);
    }
}
