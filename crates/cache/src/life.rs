//! The life of a cache, as far as everything in it has to know: open, stopped, ended.
//!
//! | | from when | means |
//! |---|---|---|
//! | open | it is opened, until it closes | requests are taken |
//! | stopped | all has been cleaned that is to be cleaned | background work ends, and nothing is cleaned any more |
//! | ended | all that was here is stored, or somebody else's | nothing is done with the devices any more |
//!
//! All of it is sequentially consistent: who changes something looks then who is still at work, and who begins looks behind saying so. One of the two
//! sees the other.

use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, ErrorKind};

/// See the top of this file.
pub(crate) struct Life {
    is_open: AtomicBool,
    is_stopped: AtomicBool,
    /// Changed by who excludes requests.
    has_ended: AtomicBool,
}

impl Life {
    /// Open.
    pub(crate) fn new() -> Self {
        Self { is_open: AtomicBool::new(true), is_stopped: AtomicBool::new(false), has_ended: AtomicBool::new(false) }
    }

    /// Whether requests are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Says whether requests are taken; whether they were.
    pub(crate) fn set_open(&self, is_open: bool) -> bool {
        self.is_open.swap(is_open, Ordering::SeqCst)
    }

    /// Whether background work is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Background work is to end. The caller wakes it.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Whether nothing is done with the devices any more: whoever gets its turn from now on leaves.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Nothing is done with the devices any more. The caller keeps requests out.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

/// What is said to whoever comes too late.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Gone, "the cache is closed")
}
