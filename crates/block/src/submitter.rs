//! Who submits a request, so that a layer with too little for all can give each a fair share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Who submits: one connection, for one. The default is nobody in particular, and all such requests count as one
/// submitter's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Submitter(u64);

impl Submitter {
    /// One that is no other in this process.
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
