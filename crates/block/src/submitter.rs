//! The submitter of a request, by which a layer with too little for all gives each a fair share.

use std::sync::atomic::{AtomicU64, Ordering};

/// A submitter, for example one connection. All requests with the default count as those of one
/// submitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Submitter(u64);

impl Submitter {
    /// A submitter that differs from all others in this process.
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
