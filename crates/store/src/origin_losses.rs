//! How often an origin lost what it had not flushed, and what a loss means for copies of that.
//!
//! A loss is counted first, then the copies are given up. So a reader or writer that took the count
//! before its request, and finds the same count when it notes a copy, has data that was not lost; a
//! later loss finds that copy and gives it up.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count of losses of one origin, and what is done with copies at each.
pub struct OriginLosses {
    count: AtomicU64,
    forget: Box<dyn Fn() + Send + Sync>,
}

impl OriginLosses {
    /// No loss yet. `forget` gives up copies of what the origin has not flushed.
    pub fn new(forget: impl Fn() + Send + Sync + 'static) -> Self {
        Self { count: AtomicU64::new(0), forget: Box::new(forget) }
    }

    /// How many losses there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The origin lost what it had not flushed, or may have: copies of that must not outlive a crash as if it had it.
    pub fn note(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        (self.forget)();
    }
}
