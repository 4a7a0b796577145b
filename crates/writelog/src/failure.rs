//! Whether the log device failed, and how that is noted for a later start.

use block::Error;

/// How the failure of the log device is noted for a later start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureNote {
    /// Not tried yet.
    Untried,
    /// By a checkpoint of what the log has and the origin lacks, made after the failure: the next
    /// start goes on from it. When a write goes past the log to the origin, a new checkpoint
    /// without that range is made before it is acknowledged.
    Kept,
    /// Likewise, and that checkpoint is empty: later writes past the log need no other.
    Empty,
    /// On the device, or in the user's note beside it: the log must be discarded.
    Discard,
    /// Nowhere: no write may go past the log.
    Nowhere,
}

/// The first error of the log device; it stays.
pub(crate) struct Failure {
    error: Option<Error>,
    /// How it is noted durably.
    pub(crate) note: FailureNote,
}

impl Failure {
    pub(crate) fn none() -> Self {
        Self { error: None, note: FailureNote::Untried }
    }

    pub(crate) fn has_come(&self) -> bool {
        self.error.is_some()
    }

    /// The device's error.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Notes an error of the device. Returns whether it is the first; a later one changes nothing.
    pub(crate) fn comes(&mut self, error: &Error) -> bool {
        let is_first = self.error.is_none();
        self.error.get_or_insert_with(|| error.clone());
        is_first
    }

    /// Whether the device failed and noting it was not tried yet.
    pub(crate) fn is_unnoted(&self) -> bool {
        self.has_come() && self.note == FailureNote::Untried
    }
}
