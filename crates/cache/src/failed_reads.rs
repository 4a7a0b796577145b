//! Data that the cache device did not return as it was written. A device that is broken, or was cut, fails the read of
//! whatever it holds, so only some are logged; the status shows the last.

use base::clock::Instant;
use base::range::ByteRange;
use base::refusals::Refusals;
use block::Error;

use crate::last_error::LastError;

/// Limits the log messages about failed reads, and keeps the last error.
#[derive(Default)]
pub(crate) struct FailedReads {
    clean: Refusals,
    dirty: Refusals,
    damaged: Refusals,
    last: LastError,
}

impl FailedReads {
    /// Notes clean data that could not be read.
    pub(crate) fn note_clean(&self, error: &Error, range: ByteRange, now: Instant) {
        self.last.keep(error);
        if let Some(others) = self.clean.note(now) {
            tracing::warn!(%error, %range, others, "the cache device cannot return clean data; the origin serves it");
        }
    }

    /// Notes data that could not be read and that the origin does not have.
    pub(crate) fn note_dirty(&self, error: &Error, range: ByteRange, now: Instant) {
        self.last.keep(error);
        if let Some(others) = self.dirty.note(now) {
            let words = "the cache device cannot return data that the origin does not have";
            tracing::error!(%error, %range, others, "{words}");
        }
    }

    /// Notes data that was read and is not what was written.
    pub(crate) fn note_damaged(&self, range: ByteRange, now: Instant) {
        if let Some(others) = self.damaged.note(now) {
            tracing::error!(%range, others, "the cache device returned data that does not match its checksum");
        }
    }

    /// The error of the last one since the cache was opened.
    pub(crate) fn last(&self) -> Option<String> {
        self.last.words()
    }
}
