//! The error that ends the reading of a trace.

use std::fmt;
use std::io;

use crate::limits::TRACE_LINE_BYTES_MAX;

/// The error that ends the reading of a trace.
#[derive(Debug, thiserror::Error)]
#[error("{unit} {number} of the trace: {kind}")]
pub struct TraceError {
    /// The unit of the trace.
    pub unit: TraceUnit,
    /// Number of the unit that cannot be read, from 1.
    pub number: u64,
    /// The fault.
    pub kind: TraceErrorKind,
}

/// The unit of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceUnit {
    /// Lines of text.
    Line,
    /// Binary records.
    Record,
}

impl fmt::Display for TraceUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Line => "line",
            Self::Record => "record",
        })
    }
}

/// The fault of a line or record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// None of the formats.
    #[error("\"{0}\" begins none of the formats known (cloudphysics, blkparse, iolog, msr, spc, arc, mqsim, vscsi)")]
    UnknownFormat(String),
    /// The binary format that was asked for does not fit.
    #[error("is no vscsi record of version 1 or 2")]
    NoVscsi,
    /// A line above [`TRACE_LINE_BYTES_MAX`].
    #[error("is longer than {TRACE_LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The last binary record is not whole.
    #[error("ends in the middle of a record")]
    Cut,
    /// A field is missing.
    #[error("has no {0}")]
    Missing(&'static str),
    /// A field is malformed.
    #[error("\"{text}\" is not a {field}")]
    Malformed {
        /// Its name.
        field: &'static str,
        /// Its text.
        text: String,
    },
    /// An impossible range.
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
