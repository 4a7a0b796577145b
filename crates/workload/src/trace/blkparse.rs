//! Text output of `blkparse` in its default format.
//!
//! ```text
//!   8,0    3       11     0.009507758   697  Q   W 223490 + 56 [kjournald]
//!   device cpu sequence    seconds       pid  action RWBS sector + count [process]
//! ```
//! Of the many events of one request exactly one is taken: where it was queued (Q, the default),
//! issued to the driver (D) or completed (C). RWBS gives its kind: a D is a discard, R a read, W a
//! write (with or without S, A, M: sync, ahead, metadata), and F without R or W is a flush; an F
//! before a W is a flush request of its own. The summary at the end of the output is not read.

use std::time::Duration;

use base::range::ByteRange;

use super::error::TraceErrorKind;
use super::line::{Line, number, range, record, shortened};
use super::source::Source;
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

/// The event that counts as the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlkparseAction {
    /// Q: as the application or file system asked.
    #[default]
    Queued,
    /// D: as sent to the driver, after merging.
    Issued,
    /// C: as completed.
    Completed,
}

impl BlkparseAction {
    /// Its letter in blkparse.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Q",
            Self::Issued => "D",
            Self::Completed => "C",
        }
    }
}

impl std::str::FromStr for BlkparseAction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Queued, Self::Issued, Self::Completed].into_iter().find(|action| action.as_str() == text);
        found.ok_or_else(|| format!("\"{text}\" is not an action of a request: write Q, D or C"))
    }
}

/// Words with which a line of the summary begins; the first one ends the events.
const SUMMARY_WORDS: [&str; 4] = ["CPU", "Total", "Throughput", "Events"];

/// Whether `line` is the beginning of such a trace.
pub(super) fn begins(line: &str) -> bool {
    Event::parse(line).is_ok()
}

pub(super) struct Parser {
    action: &'static str,
    source: Source,
}

/// The fields that every event has, and the rest.
struct Event<'a> {
    device: &'a str,
    at: Duration,
    action: &'a str,
    flags: &'a str,
    rest: std::str::SplitWhitespace<'a>,
}

impl Parser {
    pub(super) fn new(action: BlkparseAction, source: Source) -> Self {
        Self { action: action.as_str(), source }
    }

    pub(super) fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        if SUMMARY_WORDS.iter().any(|word| line.starts_with(word)) {
            return Ok(Line::End);
        }
        let mut event = Event::parse(line)?;
        if event.action != self.action || !self.source.admits(event.device)? {
            return Ok(Line::Skipped);
        }
        let Some(kind) = kind(event.flags) else { return Ok(Line::Skipped) };
        if kind == AccessKind::Flush {
            return Ok(record(event.at, kind, ByteRange::default()));
        }
        let range = event.range()?;
        // A write of no sectors carries only its flush.
        Ok(match (range.is_empty(), event.flags.starts_with('F')) {
            (false, _) => record(event.at, kind, range),
            (true, true) => record(event.at, AccessKind::Flush, ByteRange::default()),
            (true, false) => Line::Skipped,
        })
    }
}

impl<'a> Event<'a> {
    fn parse(line: &'a str) -> Result<Self, TraceErrorKind> {
        let mut fields = line.split_whitespace();
        let mut field = |name| fields.next().ok_or(TraceErrorKind::Missing(name));
        let device = field("device")?;
        let is_device = device.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor));
        if !is_device {
            return Err(TraceErrorKind::Malformed { field: "device (major,minor)", text: shortened(device) });
        }
        number::<u32>(field("cpu")?, "cpu")?;
        number::<u64>(field("sequence number")?, "sequence number")?;
        let at = seconds(field("time")?)?;
        number::<i64>(field("process")?, "process")?;
        let action = field("action")?;
        // Messages and timers have texts in place of flags.
        let flags = fields.next().unwrap_or("");
        Ok(Self { device, at, action, flags, rest: fields })
    }

    /// `sector + count`; a request without data has neither.
    fn range(&mut self) -> Result<ByteRange, TraceErrorKind> {
        let Some(sector) = self.rest.next().filter(|text| !text.starts_with('[')) else {
            return Ok(ByteRange::default());
        };
        let sector = number::<u64>(sector, "sector")?;
        match self.rest.next() {
            Some("+") => {}
            // A request of no sectors is printed without a count.
            Some(text) if text.starts_with('[') => return Ok(ByteRange::default()),
            Some(text) => return Err(TraceErrorKind::Malformed { field: "\"+\"", text: shortened(text) }),
            None => return Err(TraceErrorKind::Missing("count of sectors")),
        }
        let count =
            number::<u64>(self.rest.next().ok_or(TraceErrorKind::Missing("count of sectors"))?, "count of sectors")?;
        range(u128::from(sector) * UNIT_BYTES as u128, u128::from(count) * UNIT_BYTES as u128)
    }
}

/// The kind in the RWBS field, or `None` for what is no request to a block device (N).
fn kind(flags: &str) -> Option<AccessKind> {
    let without_preflush = flags.strip_prefix('F').unwrap_or(flags);
    match without_preflush.chars().next() {
        Some('D') => Some(AccessKind::Discard),
        Some('W') => Some(AccessKind::Write),
        Some('R') => Some(AccessKind::Read),
        _ if flags.starts_with('F') => Some(AccessKind::Flush),
        _ => None,
    }
}

/// `12.000345678` exactly.
fn seconds(text: &str) -> Result<Duration, TraceErrorKind> {
    let malformed = || TraceErrorKind::Malformed { field: "time in seconds", text: shortened(text) };
    let (whole, fraction) = text.split_once('.').ok_or_else(malformed)?;
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return Err(malformed());
    }
    let nanoseconds: u32 = format!("{fraction:0<9}").parse().map_err(|_| malformed())?;
    Ok(Duration::new(whole.parse().map_err(|_| malformed())?, nanoseconds))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::tests::{read, request};
    use super::*;

    const TRACE: &str = "\
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002197   697  P   N [kjournald]
  8,0    3        0     0.000002300     0  m   N cfq697 insert_request
  8,0    3        8     0.000010588   697  D   W 223490 + 8 [kjournald]
  8,0    3        9     0.000020000   700  Q  RM 8 + 16 [a b]
  8,0    1       10     0.000030000   700  Q FWS [jbd2/sda1-8]
  8,0    1       11     0.000040000   700  Q FWFSM 16 + 8 [jbd2/sda1-8]
  8,0    1       12     0.000050000   701  Q  DS 2048 + 4096 [fstrim]
  8,0    1       13     1.500000000     0  C   W 223490 + 8 [0]
  8,0    1       14     1.500000001     0  U   N [kworker] 1
CPU0 (sda):
 Reads Queued:           1,        8KiB\t Writes Queued:           3,       12KiB
";

    fn with(action: BlkparseAction) -> Options {
        Options { action, ..Options::default() }
    }

    #[test]
    fn queued_requests_are_taken_by_default() {
        let expected = [
            request(0, AccessKind::Write, 223_490 * 512, 4096),
            request(20, AccessKind::Read, 4096, 8192),
            request(30, AccessKind::Flush, 0, 0),
            request(40, AccessKind::Write, 8192, 4096),
            request(50, AccessKind::Discard, 1 << 20, 2 << 20),
        ];
        assert_eq!(read(TRACE, Options::default()).unwrap(), expected);
    }

    #[test]
    fn other_actions_can_be_chosen() {
        assert_eq!("D".parse(), Ok(BlkparseAction::Issued));
        assert!("X".parse::<BlkparseAction>().is_err());
        let one = [request(0, AccessKind::Write, 223_490 * 512, 4096)];
        assert_eq!(read(TRACE, with(BlkparseAction::Issued)).unwrap(), one);
        assert_eq!(read(TRACE, with(BlkparseAction::Completed)).unwrap(), one);
    }

    #[test]
    fn a_second_device_must_be_chosen_or_left() {
        let text = "8,0 0 1 0.0 1 Q R 0 + 8 [a]\n8,16 0 2 0.1 1 Q R 8 + 8 [a]\n";
        let error = read(text, Options::default()).unwrap_err();
        assert_eq!(
            error,
            "line 2 of the trace: \"8,16\" is a second device or file beside \"8,0\": say which one to take"
        );
        let options = Options { source: Some("8,16".to_owned()), ..Options::default() };
        assert_eq!(read(text, options).unwrap(), [request(0, AccessKind::Read, 4096, 4096)]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, error) in [
            ("8,0 0 2 0.1 1 Q R x + 8 [a]", "\"x\" is not a sector"),
            ("8,0 0 2 0.1 1 Q R 8 - 8 [a]", "\"-\" is not a \"+\""),
            ("8,0 0 2 0.1 1 Q R 8 +", "has no count of sectors"),
            ("8,0 0 2 yesterday 1 Q R 8 + 8 [a]", "\"yesterday\" is not a time in seconds"),
            ("sda 0 2 0.1 1 Q R 8 + 8 [a]", "\"sda\" is not a device (major,minor)"),
            ("8,0 0", "has no sequence number"),
        ] {
            let text = format!("8,0 0 1 0.0 1 Q R 0 + 8 [a]\n{line}\n");
            assert_eq!(read(&text, Options::default()).unwrap_err(), format!("line 2 of the trace: {error}"));
        }
    }
}
