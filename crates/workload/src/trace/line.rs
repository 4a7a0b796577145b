//! A parsed line of any format, and its fields.

use std::str::FromStr;
use std::time::Duration;

use base::range::ByteRange;

use super::error::TraceErrorKind;
use super::record::Record;
use crate::access::{Access, AccessKind};
use crate::limits::TRACE_REQUEST_BYTES_MAX;

/// A parsed line of any format.
pub(super) enum Line {
    /// A request; its time is the trace's own.
    Record(Record),
    /// Not a request: a header, another action, a comment.
    Skipped,
    /// A SCSI command that neither reads, writes nor flushes: UNMAP, whose blocks no trace names, or a question.
    OtherCommand,
    /// Nothing after this line is a request.
    End,
}

/// Operation codes (SBC-4 table 22) of transfers.
const OPERATION_CODES: [(u8, AccessKind); 8] = [
    (0x08, AccessKind::Read),  // READ (6)
    (0x0a, AccessKind::Write), // WRITE (6)
    (0x28, AccessKind::Read),  // READ (10)
    (0x2a, AccessKind::Write), // WRITE (10)
    (0x88, AccessKind::Read),  // READ (16)
    (0x8a, AccessKind::Write), // WRITE (16)
    (0xa8, AccessKind::Read),  // READ (12)
    (0xaa, AccessKind::Write), // WRITE (12)
];

/// SYNCHRONIZE CACHE (10) and (16).
pub(super) const FLUSHES: [u8; 2] = [0x35, 0x91];

/// What a SCSI command does that transfers blocks.
pub(super) fn of_operation_code(code: u8) -> Option<AccessKind> {
    OPERATION_CODES.iter().find(|row| row.0 == code).map(|row| row.1)
}

/// A number field.
pub(super) fn number<T: FromStr>(text: &str, field: &'static str) -> Result<T, TraceErrorKind> {
    text.parse().map_err(|_| TraceErrorKind::Malformed { field, text: shortened(text) })
}

/// A range, if it is possible.
pub(super) fn range(offset: u128, length: u128) -> Result<ByteRange, TraceErrorKind> {
    let impossible = || TraceErrorKind::Range { offset, length };
    let narrow = |value: u128| u64::try_from(value).map_err(|_| impossible());
    let range = ByteRange::new(narrow(offset)?, narrow(length)?).ok_or_else(impossible)?;
    if range.length > TRACE_REQUEST_BYTES_MAX { Err(impossible()) } else { Ok(range) }
}

pub(super) fn record(at: Duration, kind: AccessKind, range: ByteRange) -> Line {
    Line::Record(Record { at, access: Access { kind, range } })
}

/// A text short enough for an error message, without characters that a terminal would interpret or
/// hide: a trace may come from an attacker.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}
