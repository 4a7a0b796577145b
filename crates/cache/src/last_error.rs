//! The last error of a kind, for the status.

use std::sync::{Mutex, PoisonError};

use block::Error;

/// Keeps the last error since the cache was opened.
#[derive(Default)]
pub(crate) struct LastError {
    /// A short section, never across an await or together with another lock.
    words: Mutex<Option<String>>,
}

impl LastError {
    /// This is the last one from now on.
    pub(crate) fn keep(&self, error: &Error) {
        *self.words.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// Its words; `None` when there was none.
    pub(crate) fn words(&self) -> Option<String> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
