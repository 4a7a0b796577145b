//! Keeps what is dirty above a LUN from being written over changes by others.
//!
//! A new session hears of what others changed while there was none. Its user decides then, before
//! any request of the session, whether this host may still change the LUN. If not, its changes are
//! refused from then on: those that wait, those that would be written again, and all later ones.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use block::{ByteRange, Error};

/// Refuses changes where others made some.
type Check = Box<dyn Fn(&[ByteRange]) -> Result<(), Error> + Send + Sync>;

/// Decides about the changes by others of which one path to a LUN hears.
pub struct ChangeGuard {
    /// The error of all changes by this host from now on; that of all paths and LUNs of one device.
    refusal: Arc<OnceLock<Error>>,
    check: Check,
    /// What the last new session heard.
    heard: Mutex<Vec<ByteRange>>,
}

impl ChangeGuard {
    /// A guard for one path. `check` gets the ranges that others changed while there was no
    /// session, and fails if this host must not change the LUN any more: `refusal` is its error
    /// then. It must not block.
    pub fn new(
        refusal: Arc<OnceLock<Error>>,
        check: impl Fn(&[ByteRange]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        Self { refusal, check: Box::new(check), heard: Mutex::default() }
    }

    /// A new session has heard that others changed these ranges.
    pub(crate) fn hear(&self, changed: &[ByteRange]) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = changed.to_vec();
        if !changed.is_empty()
            && let Err(error) = (self.check)(changed)
            && self.refusal.set(error.clone()).is_ok()
        {
            tracing::error!("{error}");
        }
    }

    /// What the last new session heard that others had changed.
    pub(crate) fn heard(&self) -> Vec<ByteRange> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The error of changes by this host, if they are refused.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }
}
