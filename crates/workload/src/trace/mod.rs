//! Recorded requests, read as a stream in bounded memory.
//!
//! | format | from | lines |
//! |---|---|---|
//! | [`Format::CloudPhysics`] | libCacheSim's cloudPhysics CSV | `version,time,op,size,lbn` |
//! | [`Format::Blkparse`] | `blkparse` with its default output format | `8,0 3 1 0.000000000 697 Q W 8 + 8 [name]` |
//! | [`Format::IoLog`] | fio's `write_iolog`, versions 2 and 3 | `/dev/sdb write 4096 8192` |
//! | [`Format::Msr`] | Microsoft Research Cambridge | `128166372003061629,hm,1,Read,383496192,32768,413` |
//! | [`Format::Spc`] | Storage Performance Council | `0,20941264,8192,W,0.551706` |
//! | [`Format::Arc`] | the paper of ARC | `1 8 0 0` |
//! | [`Format::MqSim`] | MQSim, SSDsim | `1000000 0 2056 8 1` |
//! | [`Format::Vscsi`] | VMware's `vscsiStats`, CloudPhysics | none: binary records of 32 or 40 bytes |
//!
//! Whatever the format, a [`Record`] has a time since the first record, a kind and a range of bytes. A line or record
//! that cannot be understood is an error with its number, never a guess. Of SCSI commands those are passed over, and
//! counted, that neither read, write nor flush.

mod arc;
mod blkparse;
mod cloud_physics;
mod error;
pub mod input;
mod iolog;
pub mod kinds;
mod line;
mod mqsim;
mod msr;
mod record;
mod source;
mod spc;
pub mod survey;
pub mod synthetic;
mod vscsi;

use std::fmt;
use std::io::{BufRead, Cursor, Read};
use std::str::FromStr;
use std::time::Duration;

use crate::limits::TRACE_LINE_BYTES_MAX;

pub use blkparse::BlkparseAction;
pub use cloud_physics::write_cloud_physics;
pub use error::{TraceError, TraceErrorKind, TraceUnit};
use line::{Line, shortened};
pub use record::Record;
use source::Source;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// libCacheSim's cloudPhysics CSV: time in seconds, SCSI operation code in hexadecimal, bytes, LBA of 512-byte
    /// blocks.
    CloudPhysics,
    /// Text output of `blkparse`.
    Blkparse,
    /// fio's I/O log.
    IoLog,
    /// CSV of Microsoft Research Cambridge.
    Msr,
    /// The Storage Performance Council's format.
    Spc,
    /// The format of ARC's paper.
    Arc,
    /// The format of the simulators MQSim and SSDsim, times in nanoseconds.
    MqSim,
    /// Binary records of VMware's `vscsiStats`, of both layouts.
    Vscsi,
}

/// Options of reading a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The format; `None` to detect it from the first line or records.
    pub format: Option<Format>,
    /// The action of a blkparse trace that counts as the request.
    pub action: BlkparseAction,
    /// The device or file to take from a trace with several, as the trace names it (`8,0`,
    /// `/dev/sdb`). With `None` a second one is an error.
    pub source: Option<String>,
}

/// The records of a trace, in its order.
pub struct TraceReader<R> {
    /// The bytes that were read to detect the format, followed by the rest.
    head: Option<Cursor<Vec<u8>>>,
    input: R,
    /// Number of the line or record read last.
    number: u64,
    /// SCSI commands passed over.
    other_commands: u64,
    options: Options,
    /// Layout of binary records, if the trace has these.
    layout: Option<vscsi::Layout>,
    /// Parser of lines, once one was read.
    parser: Option<Parser>,
    /// Time of the first record.
    began: Option<Duration>,
    is_over: bool,
}

enum Parser {
    CloudPhysics(cloud_physics::Parser),
    Blkparse(blkparse::Parser),
    IoLog(iolog::Parser),
    Msr(msr::Parser),
    Spc(spc::Parser),
    Arc,
    MqSim(mqsim::Parser),
}

/// The formats with their names in options.
pub const FORMATS: [(Format, &str); 8] = [
    (Format::CloudPhysics, "cloudphysics"),
    (Format::Blkparse, "blkparse"),
    (Format::IoLog, "iolog"),
    (Format::Msr, "msr"),
    (Format::Spc, "spc"),
    (Format::Arc, "arc"),
    (Format::MqSim, "mqsim"),
    (Format::Vscsi, "vscsi"),
];

impl<R: BufRead> TraceReader<R> {
    /// A reader of `input`.
    pub fn new(input: R, options: Options) -> Self {
        let (layout, parser, began) = (None, None, None);
        Self { head: None, input, number: 0, other_commands: 0, options, layout, parser, began, is_over: false }
    }

    /// SCSI commands so far that neither read, write nor flush, and were passed over. Those behind the last record
    /// count when the end was read.
    pub fn other_commands(&self) -> u64 {
        self.other_commands
    }

    /// The format, once the first line or record was read.
    pub fn format(&self) -> Option<Format> {
        let of_text = self.parser.as_ref().map(|parser| match parser {
            Parser::CloudPhysics(_) => Format::CloudPhysics,
            Parser::Blkparse(_) => Format::Blkparse,
            Parser::IoLog(_) => Format::IoLog,
            Parser::Msr(_) => Format::Msr,
            Parser::Spc(_) => Format::Spc,
            Parser::Arc => Format::Arc,
            Parser::MqSim(_) => Format::MqSim,
        });
        self.layout.map(|_| Format::Vscsi).or(of_text)
    }

    /// Detects a binary format.
    fn look(&mut self) -> Result<(), TraceErrorKind> {
        let mut head = Vec::new();
        self.input.by_ref().take(vscsi::HEAD_BYTES as u64).read_to_end(&mut head)?;
        self.layout = match self.options.format {
            None => vscsi::Layout::of(&head),
            Some(Format::Vscsi) => Some(vscsi::Layout::of(&head).ok_or(TraceErrorKind::NoVscsi)?),
            Some(_) => None,
        };
        self.head = Some(Cursor::new(head));
        Ok(())
    }

    fn unit(&self) -> TraceUnit {
        let is_binary = self.format().or(self.options.format) == Some(Format::Vscsi);
        if is_binary { TraceUnit::Record } else { TraceUnit::Line }
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceErrorKind> {
        loop {
            self.number += 1;
            if self.head.is_none() {
                self.look()?;
            }
            let line = match self.layout {
                Some(layout) => layout.read(self.rest())?,
                None => self.parse_line()?,
            };
            match line {
                Line::Record(record) => {
                    let began = *self.began.get_or_insert(record.at);
                    return Ok(Some(Record { at: record.at.saturating_sub(began), ..record }));
                }
                Line::Skipped => {}
                Line::OtherCommand => self.other_commands += 1,
                Line::End => return Ok(None),
            }
        }
    }

    /// The part that was not read yet.
    fn rest(&mut self) -> impl BufRead + '_ {
        self.head.get_or_insert_default().chain(&mut self.input)
    }

    fn parse_line(&mut self) -> Result<Line, TraceErrorKind> {
        let Some(text) = self.next_line()? else { return Ok(Line::End) };
        let text = text.trim();
        if text.is_empty() {
            return Ok(Line::Skipped);
        }
        let parser = match &mut self.parser {
            Some(parser) => parser,
            none => none.insert(Parser::new(text, &self.options)?),
        };
        parser.parse(text)
    }

    fn next_line(&mut self) -> Result<Option<String>, TraceErrorKind> {
        let mut bytes = Vec::new();
        let limit = TRACE_LINE_BYTES_MAX as u64 + 1;
        self.rest().take(limit).read_until(b'\n', &mut bytes)?;
        if bytes.len() > TRACE_LINE_BYTES_MAX {
            return Err(TraceErrorKind::TooLong);
        }
        // Names of programs may be in any encoding; the parts of a line that are used are ASCII.
        Ok((!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Record, TraceError>;

    /// The next record. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let result = self.next_record();
        let result = result.map_err(|kind| TraceError { unit: self.unit(), number: self.number, kind });
        self.is_over = !matches!(result, Ok(Some(_)));
        result.transpose()
    }
}

impl Parser {
    fn new(first_line: &str, options: &Options) -> Result<Self, TraceErrorKind> {
        let format = match options.format {
            Some(format) => format,
            None => detect(first_line).ok_or_else(|| TraceErrorKind::UnknownFormat(shortened(first_line)))?,
        };
        let source = Source::new(options.source.clone());
        Ok(match format {
            Format::CloudPhysics => Self::CloudPhysics(cloud_physics::Parser::default()),
            Format::Blkparse => Self::Blkparse(blkparse::Parser::new(options.action, source)),
            Format::IoLog => Self::IoLog(iolog::Parser::new(source)),
            Format::Msr => Self::Msr(msr::Parser::new(source)),
            Format::Spc => Self::Spc(spc::Parser::new(source)),
            Format::Arc => Self::Arc,
            Format::MqSim => Self::MqSim(mqsim::Parser::new(source)),
            // The format has no lines.
            Format::Vscsi => return Err(TraceErrorKind::NoVscsi),
        })
    }

    fn parse(&mut self, line: &str) -> Result<Line, TraceErrorKind> {
        match self {
            Self::CloudPhysics(parser) => parser.parse(line),
            Self::Blkparse(parser) => parser.parse(line),
            Self::IoLog(parser) => parser.parse(line),
            Self::Msr(parser) => parser.parse(line),
            Self::Spc(parser) => parser.parse(line),
            Self::Arc => arc::parse(line),
            Self::MqSim(parser) => parser.parse(line),
        }
    }
}

fn detect(first_line: &str) -> Option<Format> {
    FORMATS.map(|(format, _)| format).into_iter().find(|format| match format {
        Format::CloudPhysics => cloud_physics::begins(first_line),
        Format::Blkparse => blkparse::begins(first_line),
        Format::IoLog => iolog::begins(first_line),
        Format::Msr => msr::begins(first_line),
        Format::Spc => spc::begins(first_line),
        Format::Arc => arc::begins(first_line),
        Format::MqSim => mqsim::begins(first_line),
        // The format has no lines.
        Format::Vscsi => false,
    })
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FORMATS.iter().find(|(_, name)| *name == text).map(|(format, _)| *format);
        found.ok_or_else(|| {
            format!(
                "\"{text}\" is not a trace format: write cloudphysics, blkparse, iolog, msr, spc, arc, mqsim or \
                     vscsi"
            )
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FORMATS.iter().find(|(format, _)| format == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

#[cfg(test)]
mod tests {
    use base::range::ByteRange;

    use super::*;
    use crate::access::{Access, AccessKind};
    use proptest::prelude::*;

    /// All records, or the error as text.
    pub(super) fn read(text: &str, options: Options) -> Result<Vec<Record>, String> {
        TraceReader::new(text.as_bytes(), options).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    pub(super) fn request(at_us: u64, kind: AccessKind, offset: u64, length: u64) -> Record {
        Record { at: Duration::from_micros(at_us), access: Access { kind, range: ByteRange { offset, length } } }
    }

    /// Checks the records of source "0", one of two, in `text`.
    pub(super) fn check_first_of_two(text: &str, expected: &[Record]) {
        let options = Options { source: Some("0".to_owned()), ..Options::default() };
        assert_eq!(read(text, options).unwrap(), expected);
        let error = read(text, Options::default()).unwrap_err();
        assert_eq!(error, "line 2 of the trace: \"1\" is a second device or file beside \"0\": say which one to take");
    }

    #[test]
    fn formats_are_told_apart_by_their_first_line() {
        for (line, format) in [
            ("version,time,op,size,lbn", Some(Format::CloudPhysics)),
            ("1,5633898,2a,512,42932745", Some(Format::CloudPhysics)),
            ("  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]", Some(Format::Blkparse)),
            ("fio version 2 iolog", Some(Format::IoLog)),
            ("fio version 3 iolog", Some(Format::IoLog)),
            ("128166372003061629,hm,1,Read,383496192,32768,413", Some(Format::Msr)),
            ("0,20941264,8192,W,0.551706", Some(Format::Spc)),
            ("1 8 0 0", Some(Format::Arc)),
            ("1000000 0 2056 8 1", Some(Format::MqSim)),
            ("<html>", None),
            ("1,2,3", None),
        ] {
            assert_eq!(detect(line.trim()), format, "{line}");
        }
        let error = read("<html>\n", Options::default()).unwrap_err();
        assert_eq!(
            error,
            "line 1 of the trace: \"<html>\" begins none of the formats known (cloudphysics, blkparse, iolog, msr, \
             spc, arc, mqsim, vscsi)"
        );
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let error = read("\u{1b}]0;owned\u{7}\u{202e}\n", Options::default()).unwrap_err();
        assert!(error.contains(r"\u{1b}]0;owned\u{7}\u{202e}"), "{error}");
        let error = read("1 8 0 0\n1 \u{1b}[31m 0 1\n", Options::default()).unwrap_err();
        assert!(error.contains(r"\u{1b}[31m") && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_file_without_line_ends_is_refused() {
        let error = read(&"x".repeat(1 << 20), Options::default()).unwrap_err();
        assert_eq!(error, "line 1 of the trace: is longer than 4096 bytes");
    }

    #[test]
    fn names_of_formats_are_read_as_they_are_printed() {
        for (format, _) in FORMATS {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("csv".parse::<Format>().is_err());
    }

    proptest! {
        /// Any content of a file ends in records or an error, never in a panic.
        #[test]
        fn any_bytes_are_read_without_a_panic(lines in proptest::collection::vec("[ -~]{0,60}", 0..20)) {
            let iologs = ["fio version 2 iolog", "fio version 3 iolog"];
            let others = ["1,hm,1,Read,0,512,9", "0,0,512,R,0", "1 8 0 0", "0 0 0 1 1"];
            let firsts = ["version,time,op,size,lbn", "8,0 3 1 0.5 697 Q W 8 + 8 [a]"].into_iter();
            for first in firsts.chain(iologs).chain(others) {
                let text = format!("{first}\n{}", lines.join("\n"));
                let mut reader = TraceReader::new(text.as_bytes(), Options::default());
                prop_assert!(reader.by_ref().count() <= lines.len() + 1);
            }
        }
    }
}
