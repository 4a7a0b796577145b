//! Whether anything was at stake in a flush that failed.
//!
//! A device whose flushes fail again and again has nothing more to lose while nothing is written. So
//! a failure is a further loss only if a change was acknowledged since the last one was counted. A
//! change that has force unit access is durable with its answer, and counts for nothing.
//!
//! A flush may also drop a change that is answered only after the failure was counted. Whoever was
//! told in between knows nothing of that change, so such a change makes a further report due.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The count of changes before any loss. The first failure counts whatever it is: somebody may have
/// written before there was this record.
const NEVER: u64 = u64::MAX;

/// Changes and failures of one device. Sequentially consistent: a change and a failure that meet
/// cannot both miss the other.
pub(super) struct Stake {
    /// Changes that were acknowledged before they were durable.
    changes: AtomicU64,
    /// Flushes that failed and may have dropped data.
    failures: AtomicU64,
    /// Whether a flush failed under a change that was acknowledged after that.
    is_due: AtomicBool,
    /// The count of changes when the last loss was counted. Changes under the lock of the losses.
    counted: AtomicU64,
}

impl Default for Stake {
    fn default() -> Self {
        Self {
            changes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_due: AtomicBool::new(false),
            counted: AtomicU64::new(NEVER),
        }
    }
}

impl Stake {
    /// Failures so far, for a change that is about to begin.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// A change is acknowledged that began after so many failures.
    pub(super) fn note_change(&self, failures_before: u64) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.failures() != failures_before {
            self.is_due.store(true, Ordering::SeqCst);
        }
    }

    /// A flush has failed.
    pub(super) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a change may have been dropped by an earlier failure of which it is not known.
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::SeqCst)
    }

    /// Whether what was acknowledged by now makes a loss; that is the last one counted from now on.
    pub(super) fn count(&self) -> bool {
        let is_due = self.is_due.swap(false, Ordering::SeqCst);
        let changes = self.changes.load(Ordering::SeqCst);
        is_due | (self.counted.swap(changes, Ordering::SeqCst) != changes)
    }
}
