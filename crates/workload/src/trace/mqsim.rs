//! The traces of the SSD simulators MQSim and SSDsim (README of CMU-SAFARI/MQSim, "Defining a Trace-based Workload").
//!
//! `time device sector count type`, separated by spaces: sectors of 512 bytes, 0 for a write and 1
//! for a read. The time is in nanoseconds, the default of both simulators; the file itself does not
//! give the unit.

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
    at: Duration,
    device: &'a str,
    sector: u64,
    sector_count: u64,
    kind: AccessKind,
}

impl<'a> Fields<'a> {
    fn parse(line: &'a str) -> Result<Self, TraceErrorKind> {
        let mut fields = line.split_whitespace();
        let mut field = |name| fields.next().ok_or(TraceErrorKind::Missing(name));
        let at = Duration::from_nanos(number(field("arrival time")?, "arrival time")?);
        let device = field("device number")?;
        number::<u32>(device, "device number")?;
        let sector = number(field("first sector")?, "first sector")?;
        let sector_count = number(field("count of sectors")?, "count of sectors")?;
        let kind = match field("type")? {
            "0" => AccessKind::Write,
            "1" => AccessKind::Read,
            other => {
                return Err(TraceErrorKind::Malformed {
                    field: "type (0 to write, 1 to read)",
                    text: shortened(other),
                });
            }
        };
        match fields.next() {
            Some(extra) => Err(TraceErrorKind::Malformed { field: "line of five numbers", text: shortened(extra) }),
            None => Ok(Self { at, device, sector, sector_count, kind }),
        }
    }
}

impl Parser {
    pub(super) fn new(source: Source) -> Self {
        Self { source }
    }

    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        let Fields { at, device, sector, sector_count, kind } = Fields::parse(line)?;
        if !self.source.admits(device)? {
            return Ok(Line::Skipped);
        }
        let unit = UNIT_BYTES as u128;
        Ok(record(at, kind, range(u128::from(sector) * unit, u128::from(sector_count) * unit)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{check_first_of_two, read, request};
    use super::*;

    #[test]
    fn a_small_trace_of_one_of_two_devices() {
        let text = "1000000 0 2056 8 0\n1500000 1 7 1 1\n1750000 0 16 24 1\n";
        let expected =
            [request(0, AccessKind::Write, 2056 * 512, 4096), request(750, AccessKind::Read, 16 * 512, 24 * 512)];
        check_first_of_two(text, &expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("1 0 7 1 2", "\"2\" is not a type (0 to write, 1 to read)"),
            ("1 0 7 1", "has no type"),
            ("1 0 7 1 1 9", "\"9\" is not a line of five numbers"),
            ("-1 0 7 1 1", "\"-1\" is not a arrival time"),
        ] {
            let text = format!("0 0 0 1 1\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
