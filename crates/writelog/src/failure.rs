//! Whether the log device failed, and what a later start finds of that.

use block::Error;

/// What a later start finds of the log device's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureNote {
    /// Nobody has tried to note it.
    Untried,
    /// A checkpoint of what the log has and the origin lacks, made after the failure: the next start goes on from it.
    /// What goes past the log to the origin is left out of another one before it is acknowledged.
    Kept,
    /// Likewise, and that checkpoint holds nothing: whatever goes past the log needs no other.
    Empty,
    /// The log says, or the note beside it, that it must be discarded.
    Discard,
    /// Nowhere: nothing may go past the log.
    Nowhere,
}

/// The first error of the log device. Once it has come it stays.
pub(crate) struct Failure {
    error: Option<Error>,
    /// How it was noted durably.
    pub(crate) note: FailureNote,
}

impl Failure {
    pub(crate) fn none() -> Self {
        Self { error: None, note: FailureNote::Untried }
    }

    pub(crate) fn has_come(&self) -> bool {
        self.error.is_some()
    }

    /// What the device said when it came.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// It has come. Whether it is the first: another one is none.
    pub(crate) fn comes(&mut self, error: &Error) -> bool {
        let is_first = self.error.is_none();
        self.error.get_or_insert_with(|| error.clone());
        is_first
    }

    /// Whether it has come, and nobody has tried to note it.
    pub(crate) fn is_unnoted(&self) -> bool {
        self.has_come() && self.note == FailureNote::Untried
    }
}
