//! Writes that the cache device refused. A full or broken device refuses every write, so only some
//! are logged; the status shows the last.

use std::sync::{Mutex, PoisonError};

use base::clock::Instant;
use base::refusals::Refusals;
use block::Error;

/// Limits the log messages about refused writes, and keeps the last error.
#[derive(Default)]
pub(crate) struct RefusedWrites {
    log: Refusals,
    /// A short section, never across an await or together with another lock.
    last: Mutex<Option<String>>,
}

impl RefusedWrites {
    /// Notes a refused write; `instead` says what became of its data.
    pub(crate) fn note(&self, error: &Error, instead: &str, now: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        if let Some(others) = self.log.note(now) {
            tracing::warn!(%error, others, "the cache device did not take a write; {instead}");
        }
    }

    /// The error of the last one since the cache was opened.
    pub(crate) fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
