//! What MODE SELECT has changed.

use std::sync::atomic::{AtomicBool, Ordering};

/// What was changed.
#[derive(Default)]
pub(crate) struct ModeState {
    pub(crate) is_write_protected: AtomicBool,
    pub(crate) has_descriptor_sense: AtomicBool,
    pub(crate) is_write_through: AtomicBool,
    /// The same for commands that come. When the cache is switched on it changes only after all others were told: who
    /// was not told of a cache writes through.
    writes_through: AtomicBool,
}

impl ModeState {
    /// SWP.
    pub(crate) fn is_write_protected(&self) -> bool {
        self.is_write_protected.load(Ordering::Acquire)
    }

    /// D_SENSE.
    pub(crate) fn has_descriptor_sense(&self) -> bool {
        self.has_descriptor_sense.load(Ordering::Acquire)
    }

    /// WCE was cleared: every write is to be durable.
    pub(crate) fn is_write_through(&self) -> bool {
        self.is_write_through.load(Ordering::Acquire)
    }

    /// Whether a command that comes now, and is not told of a change, has to make durable what it writes.
    pub(crate) fn writes_through(&self) -> bool {
        self.writes_through.load(Ordering::Acquire)
    }

    /// All others were told of a change.
    pub(crate) fn settle(&self) {
        self.writes_through.store(self.is_write_through(), Ordering::Release);
    }

    /// The defaults again. [`ModeState::settle`] follows when that is told.
    pub(crate) fn reset(&self) {
        for flag in [&self.is_write_protected, &self.has_descriptor_sense, &self.is_write_through] {
            flag.store(false, Ordering::Release);
        }
    }
}
