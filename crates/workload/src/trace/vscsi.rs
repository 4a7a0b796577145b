//! Binary traces of VMware's `vscsiStats`, as CloudPhysics kept them: records of one of two layouts, little-endian.
//!
//! ```text
//! version 1:  0 serial u32   4 bytes u32    8 segments u32  12 command u16  14 version u16  16 block u64  24 time u64
//! version 2:  0 command u16  2 version u16  4 serial u32     8 bytes u32    12 segments u32
//!            16 block u64   24 time u64    32 response time u64
//! ```
//! The version is in the high byte of its field, the command is the SCSI operation code, blocks have 512 bytes, and
//! times are microseconds. Commands that neither read, write nor flush are passed over and counted. The layouts are as
//! libCacheSim reads them (`traceReader/customizedReader/vscsi.h`).

use std::io::{self, Read};
use std::time::Duration;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::error::TraceErrorKind;
use super::line::{FLUSHES, Line, of_operation_code, range, record};
use crate::access::AccessKind;
use crate::limits::UNIT_BYTES;

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FirstRaw {
    _serial: U32,
    bytes: U32,
    _segments: U32,
    command: U16,
    version: U16,
    block: U64,
    at_us: U64,
}
const _: () = assert!(size_of::<FirstRaw>() == 32);

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SecondRaw {
    command: U16,
    version: U16,
    _serial: U32,
    bytes: U32,
    _segments: U32,
    block: U64,
    at_us: U64,
    _response_us: U64,
}
const _: () = assert!(size_of::<SecondRaw>() == 40);

/// Bytes from which a trace's layout can be told.
pub(super) const HEAD_BYTES: usize = 2 * size_of::<SecondRaw>();

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    First,
    Second,
}

/// The fields of both.
struct Fields {
    command: u16,
    version: u8,
    bytes: u32,
    block: u64,
    at_us: u64,
}

impl Layout {
    /// The layout of a trace that begins with `head`, its first [`HEAD_BYTES`] or all of it; `None`
    /// when it has neither.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        let is_of = |layout: &Self| {
            let mut records = head.chunks_exact(layout.record_bytes()).take(2).peekable();
            records.peek().is_some() && records.all(|bytes| layout.fields(bytes).version == layout.version())
        };
        // No text has a byte of this value.
        [Self::Second, Self::First].into_iter().find(is_of)
    }

    fn version(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
        }
    }

    fn record_bytes(self) -> usize {
        match self {
            Self::First => size_of::<FirstRaw>(),
            Self::Second => size_of::<SecondRaw>(),
        }
    }

    fn fields(self, bytes: &[u8]) -> Fields {
        let version = |field: U16| (field.get() >> 8) as u8;
        match self {
            Self::First => {
                let raw = FirstRaw::read_from_bytes(bytes).expect("it is of that size");
                let FirstRaw { command, version: of, bytes, block, at_us, .. } = raw;
                let (command, version) = (command.get(), version(of));
                Fields { command, version, bytes: bytes.get(), block: block.get(), at_us: at_us.get() }
            }
            Self::Second => {
                let raw = SecondRaw::read_from_bytes(bytes).expect("it is of that size");
                let SecondRaw { command, version: of, bytes, block, at_us, .. } = raw;
                let (command, version) = (command.get(), version(of));
                Fields { command, version, bytes: bytes.get(), block: block.get(), at_us: at_us.get() }
            }
        }
    }

    /// The next record of `input`.
    pub(super) fn read(self, mut input: impl Read) -> Result<Line, TraceErrorKind> {
        let mut bytes = [0; size_of::<SecondRaw>()];
        let bytes = &mut bytes[..self.record_bytes()];
        match read_whole(&mut input, bytes)? {
            0 => Ok(Line::End),
            length if length < bytes.len() => Err(TraceErrorKind::Cut),
            _ => self.parse(bytes),
        }
    }

    fn parse(self, bytes: &[u8]) -> Result<Line, TraceErrorKind> {
        let Fields { command, version, bytes, block, at_us } = self.fields(bytes);
        let malformed = |field, text: String| TraceErrorKind::Malformed { field, text };
        if version != self.version() {
            return Err(malformed("version of the first records", version.to_string()));
        }
        let at = Duration::from_micros(at_us);
        let code = u8::try_from(command).map_err(|_| malformed("SCSI operation code", format!("{command:x}")))?;
        if FLUSHES.contains(&code) {
            return Ok(record(at, AccessKind::Flush, range(0, 0)?));
        }
        let Some(kind) = of_operation_code(code) else { return Ok(Line::OtherCommand) };
        if !bytes.is_multiple_of(UNIT_BYTES as u32) {
            return Err(malformed("multiple of 512 bytes", bytes.to_string()));
        }
        Ok(record(at, kind, range(u128::from(block) * UNIT_BYTES as u128, u128::from(bytes))?))
    }
}

/// Fills `bytes` as far as the input has any. Returns the count.
fn read_whole(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match input.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::request;
    use super::super::{Format, Options, Record, TraceReader};
    use super::*;

    /// A write of 4096 bytes at block 0x010203, at 1.5 s.
    const FIRST_GOLDEN: [u8; 32] = [
        0x07, 0, 0, 0, 0, 0x10, 0, 0, 0x01, 0, 0, 0, 0x2a, 0, 0x05, 0x01, 0x03, 0x02, 0x01, 0, 0, 0, 0, 0, 0x60, 0xe3,
        0x16, 0, 0, 0, 0, 0,
    ];
    const SECOND_GOLDEN: [u8; 40] = [
        0x2a, 0, 0x05, 0x02, 0x07, 0, 0, 0, 0, 0x10, 0, 0, 0x01, 0, 0, 0, 0x03, 0x02, 0x01, 0, 0, 0, 0, 0, 0x60, 0xe3,
        0x16, 0, 0, 0, 0, 0, 0x40, 0x01, 0, 0, 0, 0, 0, 0,
    ];

    /// The golden record, with other values.
    fn emit(layout: Layout, command: u16, bytes: u32, block: u64, at_us: u64) -> Vec<u8> {
        let (command, bytes, block, at) =
            (command.to_le_bytes(), bytes.to_le_bytes(), block.to_le_bytes(), at_us.to_le_bytes());
        match layout {
            Layout::First => [&[7, 0, 0, 0][..], &bytes, &[1, 0, 0, 0], &command, &[5, 1], &block, &at].concat(),
            Layout::Second => {
                let response = 0x140u64.to_le_bytes();
                [&command[..], &[5, 2], &[7, 0, 0, 0], &bytes, &[1, 0, 0, 0], &block, &at, &response].concat()
            }
        }
    }

    fn read(bytes: &[u8], format: Option<Format>) -> Result<Vec<Record>, String> {
        let reader = TraceReader::new(bytes, Options { format, ..Options::default() });
        reader.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    const LAYOUTS: [Layout; 2] = [Layout::First, Layout::Second];

    #[test]
    fn golden_bytes_of_both_layouts() {
        let expected = [request(0, AccessKind::Write, 0x01_0203 * 512, 4096)];
        for (layout, golden) in [(Layout::First, &FIRST_GOLDEN[..]), (Layout::Second, &SECOND_GOLDEN)] {
            assert_eq!(emit(layout, 0x2a, 4096, 0x01_0203, 1_500_000), golden, "{layout:?}");
            assert_eq!(Layout::of(golden), Some(layout));
            assert_eq!(read(golden, None).unwrap(), expected, "one record is enough");
        }
    }

    #[test]
    fn a_small_trace_of_either_layout_is_told_from_text() {
        for layout in LAYOUTS {
            let trace = [
                emit(layout, 0x12, 36, 0, 900),
                emit(layout, 0x2a, 512, 7, 1000),
                emit(layout, 0x28, 6656, 8, 1000),
                emit(layout, 0x35, 0, 0, 1500),
                emit(layout, 0x8a, 4096, 1 << 33, 3_001_000),
            ]
            .concat();
            let expected = [
                request(0, AccessKind::Write, 3584, 512),
                request(0, AccessKind::Read, 4096, 6656),
                request(500, AccessKind::Flush, 0, 0),
                request(3_000_000, AccessKind::Write, 1 << 42, 4096),
            ];
            for format in [None, Some(Format::Vscsi)] {
                let mut reader = TraceReader::new(&trace[..], Options { format, ..Options::default() });
                let found: Vec<Record> = reader.by_ref().map(|record| record.expect("it is whole")).collect();
                assert_eq!(found, expected, "{layout:?}");
                assert_eq!(reader.format(), Some(Format::Vscsi));
            }
        }
        assert!(Layout::of(b"version,time,op,size,lbn\n1,100,2a,512,7\n1,100,28,6656,8\n1,1,28,512,9\n1,1").is_none());
        assert!(Layout::of(b"").is_none());
        assert_eq!(read(b"", None), Ok(vec![]));
    }

    /// UNMAP has its blocks in its data, which no record has; WRITE SAME writes as much as its CDB says.
    #[test]
    fn commands_that_neither_read_write_nor_flush_are_passed_over_and_counted() {
        for layout in LAYOUTS {
            let trace = [
                emit(layout, 0x28, 512, 0, 1000),
                emit(layout, 0x42, 24, 0, 1000),
                emit(layout, 0x93, 100, 8, 1000),
                emit(layout, 0x12, 36, 0, 1000),
                emit(layout, 0x2a, 512, 1, 1001),
            ]
            .concat();
            let mut reader = TraceReader::new(&trace[..], Options::default());
            let found: Vec<Record> = reader.by_ref().map(|record| record.expect("it is no error")).collect();
            assert_eq!(found, [request(0, AccessKind::Read, 0, 512), request(1, AccessKind::Write, 512, 512)]);
            assert_eq!(reader.other_commands(), 3);
        }
    }

    #[test]
    fn a_bad_record_is_named() {
        for layout in LAYOUTS {
            let good = emit(layout, 0x28, 512, 0, 0);
            let other = emit(LAYOUTS[usize::from(layout == Layout::First)], 0x28, 512, 0, 0);
            for (bad, error) in [
                (emit(layout, 0x128, 512, 0, 0), "\"128\" is not a SCSI operation code"),
                (emit(layout, 0x28, 100, 0, 0), "\"100\" is not a multiple of 512 bytes"),
                (emit(layout, 0x28, 1 << 31, 0, 0), "a request of 2147483648 bytes at byte 0 is not possible"),
                (good[..20].to_vec(), "ends in the middle of a record"),
            ] {
                let trace = [&good[..], &good, &bad].concat();
                assert_eq!(read(&trace, None), Err(format!("record 3 of the trace: {error}")), "{layout:?}");
            }
            let trace = [&good[..], &good, &other, &other].concat();
            let error = read(&trace, None).unwrap_err();
            assert!(error.starts_with("record 3") && error.contains("version of the first records"), "{error}");
        }
        let error = read(b"1 8 0 0\n50 1 0 1\n", Some(Format::Vscsi)).unwrap_err();
        assert!(error.starts_with("record 1 of the trace"), "{error}");
    }

    proptest! {
        /// Any bytes behind two records that give the layout.
        #[test]
        fn any_bytes_are_read_without_a_panic(is_first: bool, rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let layout = if is_first { Layout::First } else { Layout::Second };
            let good = emit(layout, 0x28, 512, 0, 0);
            let trace = [&good[..], &good, &rest].concat();
            for format in [None, Some(Format::Vscsi)] {
                let reader = TraceReader::new(&trace[..], Options { format, ..Options::default() });
                prop_assert!((2..=10).contains(&reader.count()));
            }
            read(&rest, Some(Format::Vscsi)).ok();
        }
    }
}
