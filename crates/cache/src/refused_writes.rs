//! Writes that the cache device refused. A full or broken device refuses every write, so only some
//! are logged; the status shows the last.

use base::clock::Instant;
use base::refusals::Refusals;
use block::Error;

use crate::last_error::LastError;

/// Limits the log messages about refused writes, and keeps the last error.
#[derive(Default)]
pub(crate) struct RefusedWrites {
    log: Refusals,
    last: LastError,
}

impl RefusedWrites {
    /// Notes a refused write; `instead` says what became of its data.
    pub(crate) fn note(&self, error: &Error, instead: &str, now: Instant) {
        self.last.keep(error);
        if let Some(others) = self.log.note(now) {
            tracing::warn!(%error, others, "the cache device did not take a write; {instead}");
        }
    }

    /// The error of the last one since the cache was opened.
    pub(crate) fn last(&self) -> Option<String> {
        self.last.words()
    }
}
