//! The error for changes by other hosts to bytes of an origin that a store has dirty: one of the
//! two versions has to be given up.

use std::fmt;

use block::{Error, ErrorKind};

/// Source of the error of an open that finds such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConflictingChanges {
    /// Count of bytes that both changed.
    pub bytes: u64,
}

impl ConflictingChanges {
    /// The conflict that an open failed with, if it was one.
    pub fn of(error: &Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

impl fmt::Display for ConflictingChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes were changed both here and by others", self.bytes)
    }
}

impl std::error::Error for ConflictingChanges {}

impl From<ConflictingChanges> for Error {
    fn from(conflict: ConflictingChanges) -> Self {
        let context = format!(
            "{} bytes that are dirty here were changed on the disk by others since: discard what is dirty, or let it \
             overwrite their changes",
            conflict.bytes
        );
        Self::with_source(ErrorKind::Unsupported, context, conflict)
    }
}
