//! Flushes of an origin that failed, until a client has been told.
//!
//! An origin may report only once that it lost what it had acknowledged, to whichever flush comes next. The cache
//! flushes for its own purposes, too. So the failure of such a flush, with something of a client at stake, is kept
//! until a client's flush has told it. It is told to all flushes that wait at that moment: each of them stands for what
//! its client was told before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::Error;

/// Failures of flushes of an origin that may have lost something then.
#[derive(Default)]
pub(crate) struct FlushFailures {
    /// How many there were. Changes only under `telling`; who writes to the origin reads it without.
    count: AtomicU64,
    telling: Mutex<Telling>,
}

#[derive(Default)]
struct Telling {
    /// The last failure.
    last: Option<Error>,
    /// Whether something of a client was at stake, and no client's flush has told it yet.
    is_unreported: bool,
}

impl FlushFailures {
    fn telling(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One more. `has_stake`: whether the origin has acknowledged something of a client that it has not flushed. Asked
    /// when the failure counts: a change that is acknowledged meanwhile either is seen then, or sees the failure.
    /// Sequentially consistent with the count of changes for that.
    pub(crate) fn note(&self, error: &Error, has_stake: impl FnOnce() -> bool) {
        let mut telling = self.telling();
        self.count.fetch_add(1, Ordering::SeqCst);
        telling.last = Some(error.clone());
        telling.is_unreported |= has_stake();
    }

    /// What no client's flush has told yet.
    pub(crate) fn unreported(&self) -> Option<Error> {
        let telling = self.telling();
        telling.last.clone().filter(|_| telling.is_unreported)
    }

    /// What a flush that begins now has to know: how many failures clients were told of, and whether there is one that
    /// none was told of.
    pub(crate) fn begin(&self) -> (u64, bool) {
        let telling = self.telling();
        (self.count() - u64::from(telling.is_unreported), telling.is_unreported)
    }

    /// Something of a client is at stake that was sent when there had been `failures_before`: one that failed since may
    /// have dropped it.
    pub(crate) fn note_stake(&self, failures_before: u64) {
        if self.count() != failures_before {
            self.telling().is_unreported = true;
        }
    }

    /// Tells a flush of the failures that concern it: of those up to `reported_before` clients knew when it began.
    pub(crate) fn tell(&self, reported_before: u64) -> Result<(), Error> {
        let mut telling = self.telling();
        let concerns = telling.is_unreported || self.count() != reported_before;
        telling.is_unreported = false;
        match &telling.last {
            Some(error) if concerns => Err(error.clone()),
            _ => Ok(()),
        }
    }
}
