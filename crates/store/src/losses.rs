//! How often an origin lost what it had not flushed, and what a loss means for copies of that.
//!
//! A loss is counted first, and then copies are looked at. So who took the count, read or wrote something, and finds
//! the same count where copies are kept, has something that was not lost; and a loss that comes behind that finds the
//! copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the top of this file.
pub struct Losses {
    count: AtomicU64,
    forget: Box<dyn Fn() + Send + Sync>,
}

impl Losses {
    /// None yet. `forget` gives up copies of what the origin has not flushed.
    pub fn new(forget: impl Fn() + Send + Sync + 'static) -> Self {
        Self { count: AtomicU64::new(0), forget: Box::new(forget) }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The origin lost what it had not flushed, or may have: copies of that must not outlive a crash as if it had it.
    pub fn note(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        (self.forget)();
    }
}
