//! Block errors: a small kind that callers match, a context for people, and the source.
//!
//! The kind decides what goes on the wire: `logical-unit` maps it to sense data, `front` to NBD errors and errno.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The kind of an error, as far as callers act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The medium failed to store or return these bytes.
    Media,
    /// No room is left to store what was written.
    NoSpace,
    /// A reservation of another initiator forbids it.
    ReservationConflict,
    /// The device is not there (any more), or is no longer the same one.
    Gone,
    /// The unit cannot be reached this way now, and another way may be open; nothing was changed by this request.
    NoAccess,
    /// No answer came within the time allowed; nothing was changed by this request.
    TimedOut,
    /// The request may or may not have been carried out, and must not be repeated blindly.
    OutcomeUnknown,
    /// The range is outside the device or not aligned to its logical blocks.
    InvalidRange,
    /// The device does not do this.
    Unsupported,
    /// The device is read-only.
    ReadOnly,
    /// Credentials were refused or access is not allowed.
    AccessDenied,
    /// Another program or host uses it.
    Busy,
    /// What is stored is not what should be there: wrong identity, version or checksum.
    Corrupt,
    /// There is no such target, logical unit or file.
    NotFound,
}

impl ErrorKind {
    /// Whether a request that ends with it was certainly not carried out: it may be given to another path.
    pub const fn was_not_done(self) -> bool {
        matches!(self, Self::Gone | Self::NoAccess | Self::TimedOut)
    }

    /// Whether a flush that ends with it may have dropped data that was acknowledged. One that did not reach the device
    /// has not; of a device that is gone nobody knows what it still has.
    pub const fn may_have_lost(self) -> bool {
        !self.was_not_done() || matches!(self, Self::Gone)
    }

    /// The kind in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Media => "medium error",
            Self::NoSpace => "no space left",
            Self::ReservationConflict => "reservation conflict",
            Self::Gone => "device gone",
            Self::NoAccess => "not accessible this way",
            Self::TimedOut => "timed out",
            Self::OutcomeUnknown => "outcome unknown",
            Self::InvalidRange => "invalid range",
            Self::Unsupported => "not supported",
            Self::ReadOnly => "read-only",
            Self::AccessDenied => "access denied",
            Self::Busy => "in use",
            Self::Corrupt => "not valid",
            Self::NotFound => "not found",
        }
    }
}

/// An error of a block device. Cheap to clone: one failure may answer many requests.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    detail: Option<Arc<Detail>>,
}

struct Detail {
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a context: which action failed, on what, and what to do about it.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, detail: Some(Arc::new(Detail { context: context.into(), source: None })) }
    }

    /// An error with a context and the error below it.
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, detail: Some(Arc::new(Detail { context: context.into(), source: Some(source.into()) })) }
    }

    /// The kind, which callers match.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, detail: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => f.write_str(&detail.context),
            None => f.write_str(self.kind.as_str()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)?;
        match self.source() {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.detail.as_ref()?.source.as_ref()?;
        Some(source.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_reach_the_device_lost_nothing_and_may_go_another_way() {
        for (kind, was_not_done, may_have_lost) in [
            (ErrorKind::NoAccess, true, false),
            (ErrorKind::TimedOut, true, false),
            (ErrorKind::Gone, true, true),
            (ErrorKind::Busy, false, true),
            (ErrorKind::OutcomeUnknown, false, true),
            (ErrorKind::Media, false, true),
        ] {
            assert_eq!((kind.was_not_done(), kind.may_have_lost()), (was_not_done, may_have_lost), "{kind:?}");
        }
    }
}
