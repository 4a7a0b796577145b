//! Failed flushes of an origin, kept until they are returned to a client.
//!
//! An origin may report only once that it lost acknowledged data: to the next flush. The cache also
//! flushes for its own purposes. So when such a flush fails while acknowledged client data is
//! unflushed, the error is kept until a client's flush returns it. All client flushes that wait at
//! that moment return it: each covers what its client had acknowledged before. If no client flushes
//! any more, closing the cache returns it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::Error;

/// Failed flushes in which an origin may have lost data.
#[derive(Default)]
pub(crate) struct FlushFailures {
    /// How many there were. Changes only under `telling`; writes to the origin read it without the
    /// lock.
    count: AtomicU64,
    telling: Mutex<Telling>,
}

#[derive(Default)]
struct Telling {
    /// The last failure.
    last: Option<Error>,
    /// Whether client data was at stake in a failure that no client's flush has returned yet.
    is_unreported: bool,
    /// Whether it was returned to who closed the cache, in order but for that.
    is_left_to_closer: bool,
}

impl FlushFailures {
    fn telling(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts a failure. `has_stake`: whether the origin has acknowledged client data that it has
    /// not flushed. It is called after the failure is counted: a change acknowledged meanwhile
    /// either is seen by it, or sees the failure. Sequentially consistent with the count of changes
    /// for that.
    pub(crate) fn note(&self, error: &Error, has_stake: impl FnOnce() -> bool) {
        let mut telling = self.telling();
        self.count.fetch_add(1, Ordering::SeqCst);
        telling.last = Some(error.clone());
        telling.is_unreported |= has_stake();
    }

    /// Fails with the last failure, if no client's flush has returned it yet.
    pub(crate) fn check_reported(&self) -> Result<(), Error> {
        let telling = self.telling();
        match &telling.last {
            Some(error) if telling.is_unreported => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// As [`Self::check_reported`], for who has closed the cache in order.
    pub(crate) fn tell_closer(&self) -> Result<(), Error> {
        let reported = self.check_reported();
        self.telling().is_left_to_closer = reported.is_err();
        reported
    }

    /// What [`Self::tell_closer`] returned.
    pub(crate) fn left_to_closer(&self) -> Option<Error> {
        let telling = self.telling();
        telling.last.clone().filter(|_| telling.is_left_to_closer)
    }

    /// State that a client's flush takes at its start: how many failures were returned to clients
    /// so far, and whether the last one was not.
    pub(crate) fn begin(&self) -> (u64, bool) {
        let telling = self.telling();
        (self.count() - u64::from(telling.is_unreported), telling.is_unreported)
    }

    /// Notes an acknowledged client change that was sent when there had been `failures_before`: a
    /// flush that failed since may have dropped it.
    pub(crate) fn note_stake(&self, failures_before: u64) {
        if self.count() != failures_before {
            self.telling().is_unreported = true;
        }
    }

    /// The last failure, if it concerns a client's flush that began after `reported_before`
    /// failures were returned to clients. It then counts as returned.
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

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    /// Two threads flush; each covers what its client had acknowledged before.
    #[test]
    fn a_failure_is_told_to_all_who_began_before_it_was_told() {
        let failures = FlushFailures::default();
        failures.note(&Error::new(ErrorKind::Media, "it was dropped"), || true);
        let [(first, _), (second, _)] = [failures.begin(), failures.begin()];
        assert!(failures.tell(first).is_err() && failures.tell(second).is_err());
        let (later, is_unreported) = failures.begin();
        assert!(!is_unreported && failures.tell(later).is_ok(), "they have all heard of it");
    }
}
