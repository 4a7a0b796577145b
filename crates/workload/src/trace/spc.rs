//! The trace format of the Storage Performance Council (SPC trace file format specification, revision 1.0.1).
//!
//! `ASU,LBA,size,opcode,timestamp`: the application-specific unit, the address in blocks of 512 bytes, bytes, R or W,
//! seconds. Further fields are passed over.

use std::time::Duration;

use super::error::TraceErrorKind;
use super::line::{Line, number, range, record, shortened};
use super::source::Source;
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    Fields::parse(line).is_ok()
}

pub(super) struct Parser {
    source: Source,
}

struct Fields<'a> {
    unit: &'a str,
    lba: u64,
    bytes: u64,
    kind: AccessKind,
    at: Duration,
}

impl<'a> Fields<'a> {
    fn parse(line: &'a str) -> Result<Self, TraceErrorKind> {
        let mut fields = line.split(',').map(str::trim);
        let mut field = |name| fields.next().filter(|text| !text.is_empty()).ok_or(TraceErrorKind::Missing(name));
        let unit = field("application-specific unit")?;
        number::<u32>(unit, "application-specific unit")?;
        let (lba, bytes) = (number(field("address")?, "address")?, number(field("size")?, "size")?);
        let opcode = field("opcode")?;
        let kind = match opcode {
            "R" | "r" => AccessKind::Read,
            "W" | "w" => AccessKind::Write,
            _ => return Err(TraceErrorKind::Malformed { field: "opcode (R or W)", text: shortened(opcode) }),
        };
        let time = field("timestamp")?;
        let seconds = number::<f64>(time, "timestamp")?;
        let at = Duration::try_from_secs_f64(seconds)
            .map_err(|_| TraceErrorKind::Malformed { field: "timestamp", text: shortened(time) })?;
        Ok(Self { unit, lba, bytes, kind, at })
    }
}

impl Parser {
    pub(super) fn new(source: Source) -> Self {
        Self { source }
    }

    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        let Fields { unit, lba, bytes, kind, at } = Fields::parse(line)?;
        if !self.source.admits(unit)? {
            return Ok(Line::Skipped);
        }
        if !bytes.is_multiple_of(UNIT_BYTES as u64) {
            return Err(TraceErrorKind::Malformed { field: "multiple of 512 bytes", text: bytes.to_string() });
        }
        Ok(record(at, kind, range(u128::from(lba) * UNIT_BYTES as u128, u128::from(bytes))?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{check_first_of_two, read, request};
    use super::*;

    #[test]
    fn a_small_trace_of_one_of_two_units() {
        let text = "0,20941264,8192,W,0.5\n1,7,512,r,0.551706\n0,20939840,8192,R,0.75,more\n";
        let expected = [
            request(0, AccessKind::Write, 20_941_264 * 512, 8192),
            request(250_000, AccessKind::Read, 20_939_840 * 512, 8192),
        ];
        check_first_of_two(text, &expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("0,1,512,X,1", "\"X\" is not a opcode (R or W)"),
            ("0,1,100,R,1", "\"100\" is not a multiple of 512 bytes"),
            ("0,1,512,R,-1", "\"-1\" is not a timestamp"),
            ("0,1,512,R", "has no timestamp"),
        ] {
            let text = format!("0,0,512,R,0\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
