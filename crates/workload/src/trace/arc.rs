//! The traces published with the paper of ARC (Megiddo and Modha, FAST 2003).
//!
//! `start count ignored number`, separated by spaces: the first block and the count of blocks of
//! 512 bytes. They have neither times nor kinds: all are reads, at time zero.

use std::time::Duration;

use super::error::TraceErrorKind;
use super::line::{Line, number, range, record, shortened};
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    parse(line).is_ok()
}

pub(super) fn parse(line: &str) -> Result<Line, TraceErrorKind> {
    let mut fields = line.split_whitespace();
    let mut field = |name| number::<u64>(fields.next().ok_or(TraceErrorKind::Missing(name))?, name);
    let (start, count) = (field("first block")?, field("count of blocks")?);
    field("third number")?;
    field("request number")?;
    if let Some(extra) = fields.next() {
        return Err(TraceErrorKind::Malformed { field: "line of four numbers", text: shortened(extra) });
    }
    let unit = UNIT_BYTES as u128;
    Ok(record(Duration::ZERO, AccessKind::Read, range(u128::from(start) * unit, u128::from(count) * unit)?))
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{read, request};
    use super::*;

    #[test]
    fn a_small_trace() {
        let expected = [request(0, AccessKind::Read, 512, 4096), request(0, AccessKind::Read, 50 * 512, 512)];
        assert_eq!(read("1 8 0 0\n50 1 0 1\n", Options::default()).unwrap(), expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("1 8 0", "has no request number"),
            ("1 8 0 1 5", "\"5\" is not a line of four numbers"),
            ("x 8 0 1", "\"x\" is not a first block"),
        ] {
            let text = format!("1 8 0 0\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
