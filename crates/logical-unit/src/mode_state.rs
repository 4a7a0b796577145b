//! The mode parameters that MODE SELECT can change.

use std::sync::atomic::{AtomicBool, Ordering};

/// The mode parameters that MODE SELECT can change.
#[derive(Default)]
pub(crate) struct ModeState {
    pub(crate) is_write_protected: AtomicBool,
    pub(crate) has_descriptor_sense: AtomicBool,
    pub(crate) is_write_through: AtomicBool,
    /// `is_write_through` for newly arriving commands. When the cache is switched on, this changes
    /// only after the report to all other nexuses is pending: a command without that report writes
    /// through.
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

    /// WCE is cleared: every write is made durable.
    pub(crate) fn is_write_through(&self) -> bool {
        self.is_write_through.load(Ordering::Acquire)
    }

    /// Whether a command that arrives now, and reports no change, must make its data durable.
    pub(crate) fn writes_through(&self) -> bool {
        self.writes_through.load(Ordering::Acquire)
    }

    /// Notes that a change is pending as a unit attention for all others.
    pub(crate) fn settle(&self) {
        self.writes_through.store(self.is_write_through(), Ordering::Release);
    }

    /// Restores the defaults. [`ModeState::settle`] follows when the reset is reported.
    pub(crate) fn reset(&self) {
        for flag in [&self.is_write_protected, &self.has_descriptor_sense, &self.is_write_through] {
            flag.store(false, Ordering::Release);
        }
    }
}
