//! The submitter of a request, by which a layer with too little for all gives each a fair share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A submitter: one connection, or all those of one name. All requests with the default count as those
/// of one submitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Submitter(u64);

impl Submitter {
    /// A submitter that differs from all others in this process.
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The submitter of that name: always the same, and no other one, but for names whose hashes of 63
    /// bits are equal.
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish() | 1 << 63)
    }
}
