//! Why a trace cannot be read on.

use std::io;

use crate::limits::TRACE_LINE_BYTES_MAX;

/// Why a trace could not be read on.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the trace: {kind}")]
pub struct TraceError {
    /// From 1.
    pub line: u64,
    /// What is wrong there.
    pub kind: TraceErrorKind,
}

/// What is wrong about a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// None of the formats.
    #[error("\"{0}\" begins none of the formats known (cloudphysics, blkparse, iolog, msr, spc, arc, mqsim)")]
    UnknownFormat(String),
    /// A line above [`TRACE_LINE_BYTES_MAX`].
    #[error("is longer than {TRACE_LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A field is missing.
    #[error("has no {0}")]
    Missing(&'static str),
    /// A field is not what it should be.
    #[error("\"{text}\" is not a {field}")]
    Malformed {
        /// Its name.
        field: &'static str,
        /// What is there.
        text: String,
    },
    /// A range nobody could have accessed.
    #[error("a request of {length} bytes at byte {offset} is not possible")]
    Range {
        /// First byte.
        offset: u128,
        /// Count of bytes.
        length: u128,
    },
    /// More than one device or file.
    #[error("\"{second}\" is a second device or file beside \"{first}\": say which one to take")]
    SecondSource {
        /// The one seen first.
        first: String,
        /// The other.
        second: String,
    },
}
