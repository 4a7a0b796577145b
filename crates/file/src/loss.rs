//! The loss of what an open file held, in errors.

use std::error::Error as StdError;
use std::fmt;

use block::Error;

/// What was done to a file while it was open: the source of the errors that this causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLoss {
    /// It was cut, or holes were made in it: what was there is lost.
    Cut,
    /// No name leads to it any more: all of it is lost when it is closed.
    Removed,
}

impl FileLoss {
    /// The loss that caused `error`, if one did.
    pub fn of(error: &Error) -> Option<Self> {
        error.source()?.downcast_ref().copied()
    }
}

impl fmt::Display for FileLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "the file was cut, or holes made in it",
            Self::Removed => "the file was removed",
        })
    }
}

impl StdError for FileLoss {}
