//! Errors of a file system: a small kind that callers match, a context for people, and the device's error below it.
//!
//! An operation that ended in an error changed nothing, whatever the kind.

use std::error::Error as StdError;
use std::fmt;

/// The kind of an error, as far as callers act on it. A mount maps it to an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such name, or no such inode.
    NotFound,
    /// The name exists already.
    Exists,
    /// It is not a directory.
    NotDirectory,
    /// It is a directory.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The name has more than 255 bytes.
    NameTooLong,
    /// No block or inode is left, or no room for an attribute.
    NoSpace,
    /// The inode has as many links as the format can count.
    TooManyLinks,
    /// The file would be larger than the format allows.
    TooLarge,
    /// The request is invalid: an empty name, a directory moved below itself.
    Invalid,
    /// The file system was opened for reading only.
    ReadOnly,
    /// The file system has, or the request needs, an unsupported feature.
    Unsupported,
    /// The stored bytes violate the format.
    Corrupt,
    /// It was not unmounted cleanly, or has errors: `e2fsck` must run before it is changed.
    NotClean,
    /// The inode has no such attribute.
    NoAttribute,
    /// Another host removed it, and this host had it open.
    Stale,
    /// It conflicts with an operation of another host; repeated, it may succeed.
    Conflict,
    /// More would be kept in memory than the caller may keep.
    NoMemory,
    /// The device failed.
    Device(block::ErrorKind),
}

impl ErrorKind {
    /// The kind in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Exists => "exists",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::NameTooLong => "name too long",
            Self::NoSpace => "no space left",
            Self::TooManyLinks => "too many links",
            Self::TooLarge => "file too large",
            Self::Invalid => "invalid argument",
            Self::ReadOnly => "read-only file system",
            Self::Unsupported => "not supported",
            Self::Corrupt => "file system damaged",
            Self::NotClean => "file system not clean",
            Self::NoAttribute => "no such attribute",
            Self::Stale => "removed by another host",
            Self::Conflict => "conflict",
            Self::NoMemory => "no memory left",
            Self::Device(kind) => kind.as_str(),
        }
    }
}

/// An error of a file system.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    context: Option<String>,
    source: Option<block::Error>,
}

impl Error {
    /// An error with a context: which action failed, on what, and what to do about it.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: Some(context.into()), source: None }
    }

    /// An error for stored bytes that violate the format.
    pub(crate) fn corrupt(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, context)
    }

    /// The kind, which callers match.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, context: None, source: None }
    }
}

impl From<block::Error> for Error {
    fn from(source: block::Error) -> Self {
        Self { kind: ErrorKind::Device(source.kind()), context: None, source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.context, &self.source) {
            (Some(context), _) => f.write_str(context),
            (None, Some(source)) => write!(f, "{source}"),
            (None, None) => f.write_str(self.kind.as_str()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.source.as_ref()?;
        Some(source)
    }
}
