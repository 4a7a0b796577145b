//! fio's I/O log, versions 2 and 3.
//!
//! | version | header | lines |
//! |---|---|---|
//! | 2 | `fio version 2 iolog` | `file action [offset length]`; `file wait microseconds` |
//! | 3 | `fio version 3 iolog` | `microseconds file action [offset length]`, no waits |
//!
//! Actions on files (`add`, `open`, `close`) are passed over; `sync` and `datasync` are flushes, `trim` is a discard.
//! In version 2 the time of a record is the sum of the waits before it.

use std::time::Duration;

use base::range::ByteRange;

use super::error::TraceErrorKind;
use super::line::{Line, number, range, record, shortened};
use super::source::Source;
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

const HEADERS: [(&str, Version); 2] = [("fio version 2 iolog", Version::Two), ("fio version 3 iolog", Version::Three)];

#[derive(Clone, Copy)]
enum Version {
    Two,
    Three,
}

/// The meaning of an action.
#[derive(Clone, Copy)]
enum Action {
    File,
    Wait,
    Io(AccessKind),
}

const ACTIONS: [(&str, Action); 9] = [
    ("add", Action::File),
    ("open", Action::File),
    ("close", Action::File),
    ("wait", Action::Wait),
    ("read", Action::Io(AccessKind::Read)),
    ("write", Action::Io(AccessKind::Write)),
    ("sync", Action::Io(AccessKind::Flush)),
    ("datasync", Action::Io(AccessKind::Flush)),
    ("trim", Action::Io(AccessKind::Discard)),
];

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    HEADERS.iter().any(|(header, _)| *header == line)
}

pub(super) struct Parser {
    source: Source,
    version: Option<Version>,
    waited: Duration,
}

impl Parser {
    pub(super) fn new(source: Source) -> Self {
        Self { source, version: None, waited: Duration::ZERO }
    }

    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        let Some(version) = self.version else {
            let header = HEADERS.iter().find(|(header, _)| *header == line);
            let malformed = || TraceErrorKind::Malformed { field: "header of a fio iolog", text: shortened(line) };
            self.version = Some(header.ok_or_else(malformed)?.1);
            return Ok(Line::Skipped);
        };
        let mut fields = line.split_whitespace();
        let mut field = |name| fields.next().ok_or(TraceErrorKind::Missing(name));
        let at = match version {
            Version::Two => None,
            Version::Three => Some(Duration::from_micros(number(field("time")?, "time")?)),
        };
        let file = field("file")?;
        let action = action(field("action")?)?;
        let kind = match action {
            Action::File => return Ok(Line::Skipped),
            Action::Wait => {
                let wait = Duration::from_micros(number(field("time to wait")?, "time to wait")?);
                self.waited = self.waited.saturating_add(wait);
                return Ok(Line::Skipped);
            }
            Action::Io(kind) => kind,
        };
        if !self.source.admits(file)? {
            return Ok(Line::Skipped);
        }
        let at = at.unwrap_or(self.waited);
        if kind == AccessKind::Flush {
            return Ok(record(at, kind, ByteRange::default()));
        }
        let (offset, length) = (number::<u64>(field("offset")?, "offset")?, number::<u64>(field("length")?, "length")?);
        for value in [offset, length] {
            if !value.is_multiple_of(UNIT_BYTES as u64) {
                return Err(TraceErrorKind::Malformed { field: "multiple of 512 bytes", text: value.to_string() });
            }
        }
        Ok(record(at, kind, range(u128::from(offset), u128::from(length))?))
    }
}

fn action(text: &str) -> Result<Action, TraceErrorKind> {
    let found = ACTIONS.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, action)| *action)
        .ok_or_else(|| TraceErrorKind::Malformed { field: "fio action", text: shortened(text) })
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{read, request};
    use super::*;

    #[test]
    fn version_2_with_waits() {
        let text = "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb write 4096 8192\n/dev/sdb wait 150\n\
                    /dev/sdb read 4096 512\n/dev/sdb sync\n/dev/sdb trim 0 4096\n\
                    /dev/sdb datasync 0 0\n/dev/sdb close\n";
        let expected = [
            request(0, AccessKind::Write, 4096, 8192),
            request(150, AccessKind::Read, 4096, 512),
            request(150, AccessKind::Flush, 0, 0),
            request(150, AccessKind::Discard, 0, 4096),
            request(150, AccessKind::Flush, 0, 0),
        ];
        assert_eq!(read(text, Options::default()).unwrap(), expected);
    }

    #[test]
    fn version_3_with_times() {
        let text = "fio version 3 iolog\n10 d add\n20 d open\n120 d write 0 4096\n370 d read 512 512\n9 d close\n";
        let expected = [request(0, AccessKind::Write, 0, 4096), request(250, AccessKind::Read, 512, 512)];
        assert_eq!(read(text, Options::default()).unwrap(), expected);
        let error = read("fio version 3 iolog\nd read 0 512\n", Options::default()).unwrap_err();
        assert_eq!(error, "line 2 of the trace: \"d\" is not a time");
    }

    #[test]
    fn a_second_file_must_be_chosen_or_left() {
        let text = "fio version 2 iolog\na add\nb add\na read 0 512\nb read 512 512\n";
        let error = read(text, Options::default()).unwrap_err();
        assert_eq!(error, "line 5 of the trace: \"b\" is a second device or file beside \"a\": say which one to take");
        let options = Options { source: Some("b".to_owned()), ..Options::default() };
        assert_eq!(read(text, options).unwrap(), [request(0, AccessKind::Read, 512, 512)]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("f frobnicate 0 512", "\"frobnicate\" is not a fio action"),
            ("f read 0", "has no length"),
            ("f read 1 512", "\"1\" is not a multiple of 512 bytes"),
            ("f", "has no action"),
            ("f wait", "has no time to wait"),
        ] {
            let text = format!("fio version 2 iolog\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
