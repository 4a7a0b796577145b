//! The traces of Microsoft Research Cambridge, as SNIA has them.
//!
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: times in tenths of a microsecond since 1601, offset
//! and size in bytes.

use std::time::Duration;

use super::error::TraceErrorKind;
use super::line::{Line, number, range, record, shortened};
use super::source::Source;
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    let fields: Vec<&str> = line.split(',').collect();
    fields.len() == 7 && fields[0].trim().parse::<u64>().is_ok() && kind(fields[3].trim()).is_ok()
}

pub(super) struct Parser {
    source: Source,
}

impl Parser {
    pub(super) fn new(source: Source) -> Self {
        Self { source }
    }

    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        let mut fields = line.split(',').map(str::trim);
        let mut field = |name| fields.next().filter(|text| !text.is_empty()).ok_or(TraceErrorKind::Missing(name));
        let tenths: u64 = number(field("timestamp")?, "timestamp")?;
        let disk = format!("{},{}", field("hostname")?, field("disk number")?);
        let kind = kind(field("type")?)?;
        let (offset, length): (u64, u64) = (number(field("offset")?, "offset")?, number(field("size")?, "size")?);
        if !self.source.admits(&disk)? {
            return Ok(Line::Skipped);
        }
        for value in [offset, length] {
            if !value.is_multiple_of(UNIT_BYTES as u64) {
                return Err(TraceErrorKind::Malformed { field: "multiple of 512 bytes", text: value.to_string() });
            }
        }
        let at = Duration::from_micros(tenths / 10) + Duration::from_nanos(tenths % 10 * 100);
        Ok(record(at, kind, range(u128::from(offset), u128::from(length))?))
    }
}

fn kind(text: &str) -> Result<AccessKind, TraceErrorKind> {
    if text.eq_ignore_ascii_case("read") {
        Ok(AccessKind::Read)
    } else if text.eq_ignore_ascii_case("write") {
        Ok(AccessKind::Write)
    } else {
        Err(TraceErrorKind::Malformed { field: "type (Read or Write)", text: shortened(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{read, request};
    use super::*;

    #[test]
    fn a_small_trace() {
        let text = "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,2822144,4096,1\n";
        let expected =
            [request(0, AccessKind::Read, 383_496_192, 32768), request(1_332_052, AccessKind::Write, 2_822_144, 4096)];
        let mut records = read(text, Options::default()).unwrap();
        records[1].at = Duration::from_micros(records[1].at.as_micros() as u64);
        assert_eq!(records, expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("2,hm,1,Trim,0,512,1", "\"Trim\" is not a type (Read or Write)"),
            ("2,hm,1,Read,0,100,1", "\"100\" is not a multiple of 512 bytes"),
            ("2,hm,1,Read,0", "has no size"),
            ("2,hm,2,Read,0,512,1", "\"hm,2\" is a second device or file beside \"hm,1\": say which one to take"),
        ] {
            let text = format!("1,hm,1,Read,0,512,9\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
