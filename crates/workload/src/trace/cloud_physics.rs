//! libCacheSim's cloudPhysics CSV: `version,time,op,size,lbn`.
//!
//! Time in whole seconds, the SCSI operation code in hexadecimal, size in bytes, the LBA in 512-byte blocks. The header
//! line may be missing.

use std::io::{self, Write};
use std::time::Duration;

use super::error::TraceErrorKind;
use super::line::{FLUSHES, Line, number, of_operation_code, range, record, shortened};
use super::record::Record;
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

const HEADER: &str = "version,time,op,size,lbn";

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    line == HEADER || matches!(Parser { is_begun: true }.parse(line), Ok(Line::Record(_)))
}

#[derive(Default)]
pub(super) struct Parser {
    is_begun: bool,
}

impl Parser {
    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        if !std::mem::replace(&mut self.is_begun, true) && line == HEADER {
            return Ok(Line::Skipped);
        }
        let mut fields = line.split(',').map(str::trim);
        let mut field = |name| fields.next().ok_or(TraceErrorKind::Missing(name));
        number::<u32>(field("version")?, "version")?;
        let seconds = number::<u64>(field("time")?, "time in seconds")?;
        let code = operation_code(field("op")?)?;
        let length = number::<u64>(field("size")?, "size in bytes")?;
        let lba = number::<u64>(field("lbn")?, "block number")?;
        if let Some(extra) = fields.next() {
            return Err(TraceErrorKind::Malformed { field: "line of five fields", text: shortened(extra) });
        }
        if FLUSHES.contains(&code) {
            return Ok(record(Duration::from_secs(seconds), AccessKind::Flush, range(0, 0)?));
        }
        let Some(kind) = of_operation_code(code) else { return Ok(Line::OtherCommand) };
        if !length.is_multiple_of(UNIT_BYTES as u64) {
            return Err(TraceErrorKind::Malformed { field: "multiple of 512 bytes", text: length.to_string() });
        }
        let range = range(u128::from(lba) * UNIT_BYTES as u128, u128::from(length))?;
        Ok(record(Duration::from_secs(seconds), kind, range))
    }
}

fn operation_code(text: &str) -> Result<u8, TraceErrorKind> {
    let malformed = |_| TraceErrorKind::Malformed { field: "SCSI operation code", text: shortened(text) };
    u8::from_str_radix(text, 16).map_err(malformed)
}

/// Writes records as such a CSV. The format has codes only for reads and writes; flushes and
/// discards are left out. Times are cut to seconds.
///
/// # Errors
/// Those of `output`.
pub fn write_cloud_physics(records: impl IntoIterator<Item = Record>, mut output: impl Write) -> io::Result<()> {
    writeln!(output, "{HEADER}")?;
    for Record { at, access } in records {
        let code = match access.kind {
            AccessKind::Read => "28",
            AccessKind::Write => "2a",
            AccessKind::Flush | AccessKind::Discard => continue,
        };
        let lba = access.range.offset / UNIT_BYTES as u64;
        writeln!(output, "1,{},{code},{},{lba}", at.as_secs(), access.range.length)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{read, request};
    use super::*;

    #[test]
    fn a_small_trace() {
        let text = "version,time,op,size,lbn\n1,100,2a,512,7\n1,100,28,6656,8\r\n\n1,102,88,4096,1\n1,103,8a,512,2\n";
        let records = read(text, Options::default()).unwrap();
        let expected = [
            request(0, AccessKind::Write, 3584, 512),
            request(0, AccessKind::Read, 4096, 6656),
            request(2_000_000, AccessKind::Read, 512, 4096),
            request(3_000_000, AccessKind::Write, 1024, 512),
        ];
        assert_eq!(records, expected);
        let mut written = Vec::new();
        write_cloud_physics(records, &mut written).unwrap();
        assert_eq!(read(std::str::from_utf8(&written).unwrap(), Options::default()).unwrap(), expected);
    }

    #[test]
    fn commands_that_neither_read_write_nor_flush_are_passed_over_and_counted() {
        let text = "version,time,op,size,lbn\n1,1,28,512,7\n1,1,42,24,0\n1,1,93,100,8\n1,2,35,0,0\n";
        let mut reader = super::super::TraceReader::new(text.as_bytes(), Options::default());
        let found: Vec<Record> = reader.by_ref().map(|record| record.expect("it is no error")).collect();
        assert_eq!(found, [request(0, AccessKind::Read, 3584, 512), request(1_000_000, AccessKind::Flush, 0, 0)]);
        assert_eq!(reader.other_commands(), 2);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("1,1,135,512,0", "\"135\" is not a SCSI operation code"),
            ("1,1,28,100,0", "\"100\" is not a multiple of 512 bytes"),
            ("1,1,28,512", "has no lbn"),
            ("1,1,28,512,-1", "\"-1\" is not a block number"),
            ("1,1,28,512,0,9", "\"9\" is not a line of five fields"),
            (
                "1,1,28,512,18446744073709551615",
                "a request of 512 bytes at byte 9444732965739290426880 is not possible",
            ),
            ("1,1,28,1099511627776,0", "a request of 1099511627776 bytes at byte 0 is not possible"),
        ] {
            let text = format!("version,time,op,size,lbn\n1,0,28,512,0\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 3 of the trace: {error}"));
        }
    }
}
