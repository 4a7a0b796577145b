//! Writes that the cache device refuses: a full or broken one does so with each, so the log tells of some, and the
//! status of the last.

use std::sync::{Mutex, PoisonError};

use base::clock::Instant;
use base::refusals::Refusals;
use block::Error;

/// How often refused writes are logged, and the last of them.
#[derive(Default)]
pub(crate) struct RefusedWrites {
    log: Refusals,
    /// A short section, never across an await or together with another lock.
    last: Mutex<Option<String>>,
}

impl RefusedWrites {
    /// Notes one, and what becomes of its data.
    pub(crate) fn note(&self, error: &Error, instead: &str, now: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        if let Some(others) = self.log.note(now) {
            tracing::warn!(%error, others, "the cache device did not take a write; {instead}");
        }
    }

    /// Why the last one was refused since the cache was opened.
    pub(crate) fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
