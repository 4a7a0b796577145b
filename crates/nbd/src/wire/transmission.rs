//! Messages of the transmission phase ("Request message", "Simple reply message", "Structured reply chunk message").

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Cursor, bounded};
use crate::error::{ErrorCode, Failure};

/// `NBD_REQUEST_MAGIC`.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// `NBD_SIMPLE_REPLY_MAGIC`.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_STRUCTURED_REPLY_MAGIC`.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// A request; the payload of a write follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct RequestRaw {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`command_flag`]s.
    pub flags: U16,
    /// One of [`command`].
    pub command: U16,
    /// Chosen by the client, returned in every reply.
    pub cookie: U64,
    /// First byte.
    pub offset: U64,
    /// Count of bytes.
    pub length: U32,
}
const _: () = assert!(size_of::<RequestRaw>() == 28);

/// A simple reply; the payload of a successful read follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct SimpleReplyRaw {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// Zero or an [`ErrorCode`].
    pub error: U32,
    /// The request's.
    pub cookie: U64,
}
const _: () = assert!(size_of::<SimpleReplyRaw>() == 16);

/// A chunk of a structured reply; its payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ChunkRaw {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`CHUNK_FLAG_DONE`] or nothing.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's.
    pub cookie: U64,
    /// Bytes of payload.
    pub length: U32,
}
const _: () = assert!(size_of::<ChunkRaw>() == 20);

/// `NBD_REPLY_FLAG_DONE`: the last chunk of its reply.
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;

/// A chunk of type [`chunk::OFFSET_DATA`]; the data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct DataChunkRaw {
    /// Its length counts the offset and the data.
    pub header: ChunkRaw,
    /// First byte, from the start of the export.
    pub offset: U64,
}
const _: () = assert!(size_of::<DataChunkRaw>() == 28);

/// A chunk of type [`chunk::OFFSET_HOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct HoleChunkRaw {
    /// Its length is [`HOLE_BYTES`].
    pub header: ChunkRaw,
    /// First byte, from the start of the export.
    pub offset: U64,
    /// Count of zeroes.
    pub length: U32,
}
const _: () = assert!(size_of::<HoleChunkRaw>() == 32);

/// Payload of a [`HoleChunkRaw`].
pub const HOLE_BYTES: u32 = 12;

/// A chunk of type [`chunk::BLOCK_STATUS`]; descriptors follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct StatusChunkRaw {
    /// Its length counts the context and the descriptors.
    pub header: ChunkRaw,
    /// The id of the context.
    pub context: U32,
}
const _: () = assert!(size_of::<StatusChunkRaw>() == 24);

/// One descriptor of [`chunk::BLOCK_STATUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct DescriptorRaw {
    /// Count of bytes.
    pub length: U32,
    /// [`state`] flags.
    pub flags: U32,
}
const _: () = assert!(size_of::<DescriptorRaw>() == 8);

/// Request types ("Request types").
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; a payload follows.
    pub const WRITE: u16 = 1;
    /// Disconnect; has no reply.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Read ahead into a cache.
    pub const CACHE: u16 = 5;
    /// Write zeroes without a payload.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags ("Command flags").
pub mod command_flag {
    /// Reply when durable.
    pub const FUA: u16 = 1 << 0;
    /// Keep the space of what is zeroed.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero fast or not at all.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunk types ("Structured reply types").
pub mod chunk {
    /// No payload: the reply is over.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Descriptors of one context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
}

/// Flags of `base:allocation`.
pub mod state {
    /// No space is allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// The abilities of an export, from its transmission flags ("Transmission flags").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Writes are refused.
    pub is_read_only: bool,
    /// Flush is understood.
    pub can_flush: bool,
    /// Force unit access is understood.
    pub can_fua: bool,
    /// The medium turns: seeks cost.
    pub is_rotational: bool,
    /// Discard is understood.
    pub can_trim: bool,
    /// Write zeroes is understood.
    pub can_write_zeroes: bool,
    /// The "don't fragment" flag is understood; only where structured replies were negotiated.
    pub can_dont_fragment: bool,
    /// A flush on one connection covers the writes completed on all.
    pub can_multi_conn: bool,
    /// Cache is understood.
    pub can_cache: bool,
    /// Fast-or-not-at-all zeroing is understood.
    pub can_fast_zero: bool,
}

/// `NBD_FLAG_HAS_FLAGS`, always set.
const HAS_FLAGS: u16 = 1 << 0;

impl Abilities {
    /// The transmission flags.
    pub fn to_flags(self) -> u16 {
        let bit = |is_set: bool, bit: u16| u16::from(is_set) << bit;
        HAS_FLAGS
            | bit(self.is_read_only, 1)
            | bit(self.can_flush, 2)
            | bit(self.can_fua, 3)
            | bit(self.is_rotational, 4)
            | bit(self.can_trim, 5)
            | bit(self.can_write_zeroes, 6)
            | bit(self.can_dont_fragment, 7)
            | bit(self.can_multi_conn, 8)
            | bit(self.can_cache, 10)
            | bit(self.can_fast_zero, 11)
    }

    /// The abilities in transmission flags; none where `NBD_FLAG_HAS_FLAGS` is clear.
    pub fn from_flags(flags: u16) -> Self {
        let has = |bit: u16| flags & HAS_FLAGS != 0 && flags & (1 << bit) != 0;
        Self {
            is_read_only: has(1),
            can_flush: has(2),
            can_fua: has(3),
            is_rotational: has(4),
            can_trim: has(5),
            can_write_zeroes: has(6),
            can_dont_fragment: has(7),
            can_multi_conn: has(8),
            can_cache: has(10),
            can_fast_zero: has(11),
        }
    }
}

/// A run of bytes of one state, in a reply to a block status request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Count of bytes, never zero.
    pub length_bytes: u32,
    /// No space is allocated.
    pub is_hole: bool,
    /// Reads as zeroes.
    pub is_zero: bool,
}

impl StatusExtent {
    /// The descriptor on the wire.
    pub fn to_raw(self) -> DescriptorRaw {
        let flags = (state::HOLE * u32::from(self.is_hole)) | (state::ZERO * u32::from(self.is_zero));
        DescriptorRaw { length: U32::new(self.length_bytes), flags: U32::new(flags) }
    }

    /// The extent of a descriptor, or `None` when it is empty. Unknown flags are ignored, as the
    /// document asks.
    pub fn from_raw(raw: &DescriptorRaw) -> Option<Self> {
        let flags = raw.flags.get();
        let length_bytes = raw.length.get();
        let extent = Self { length_bytes, is_hole: flags & state::HOLE != 0, is_zero: flags & state::ZERO != 0 };
        (length_bytes > 0).then_some(extent)
    }
}

/// Payload of an error chunk: the failure, and where it was for [`chunk::ERROR_OFFSET`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorChunk {
    /// The error.
    pub failure: Failure,
    /// First byte that failed, from the start of the export.
    pub offset: Option<u64>,
}

impl ErrorChunk {
    /// Parses a chunk of type `kind`, or `None` when lengths and payload disagree or the error is
    /// zero. Of an unknown type only the common beginning is read.
    pub fn parse(kind: u16, payload: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(payload);
        let code = ErrorCode::from_wire(cursor.u32()?)?;
        let length = usize::from(cursor.u16()?);
        let message = String::from_utf8_lossy(cursor.bytes(length)?).into_owned();
        let offset = if kind == chunk::ERROR_OFFSET { Some(cursor.u64()?) } else { None };
        Some(Self { failure: Failure { code, message }, offset })
    }

    /// Appends the payload.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let message = bounded(&self.failure.message);
        out.extend_from_slice(&self.failure.code.to_wire().to_be_bytes());
        out.extend_from_slice(&(message.len() as u16).to_be_bytes());
        out.extend_from_slice(message.as_bytes());
        if let Some(offset) = self.offset {
            out.extend_from_slice(&offset.to_be_bytes());
        }
    }

    /// The chunk type that carries this.
    pub fn kind(&self) -> u16 {
        if self.offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_request() {
        let request = RequestRaw {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(command_flag::FUA),
            command: U16::new(command::WRITE),
            cookie: U64::new(0x0102_0304_0506_0708),
            offset: U64::new(0x1000),
            length: U32::new(0x200),
        };
        #[rustfmt::skip]
        let golden = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0,
        ];
        assert_eq!(request.as_bytes(), golden);
        assert_eq!(RequestRaw::read_from_bytes(&golden), Ok(request));
    }

    #[test]
    fn golden_replies() {
        let simple = SimpleReplyRaw { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(5), cookie: U64::new(9) };
        assert_eq!(simple.as_bytes(), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9]);
        let chunk = ChunkRaw {
            magic: U32::new(STRUCTURED_REPLY_MAGIC),
            flags: U16::new(CHUNK_FLAG_DONE),
            kind: U16::new(chunk::OFFSET_HOLE),
            cookie: U64::new(9),
            length: U32::new(12),
        };
        let golden = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 12];
        assert_eq!(chunk.as_bytes(), golden);
        let hole = HoleChunkRaw { header: chunk, offset: U64::new(0x1000), length: U32::new(0x200) };
        assert_eq!(hole.as_bytes()[20..], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0]);
        let data = DataChunkRaw { header: chunk, offset: U64::new(0x1000) };
        assert_eq!(data.as_bytes()[20..], [0, 0, 0, 0, 0, 0, 0x10, 0]);
        let status = StatusChunkRaw { header: chunk, context: U32::new(7) };
        assert_eq!(status.as_bytes()[20..], [0, 0, 0, 7]);
        let extent = StatusExtent { length_bytes: 0x1000, is_hole: true, is_zero: true };
        assert_eq!(extent.to_raw().as_bytes(), [0, 0, 0x10, 0, 0, 0, 0, 3]);
        let mut error = Vec::new();
        let failure = Failure { code: ErrorCode::NoSpace, message: "full".into() };
        ErrorChunk { failure, offset: None }.emit(&mut error);
        assert_eq!(error, *b"\0\0\0\x1c\0\x04full");
    }

    #[test]
    fn golden_transmission_flags() {
        let all = Abilities {
            is_read_only: true,
            can_flush: true,
            can_fua: true,
            is_rotational: true,
            can_trim: true,
            can_write_zeroes: true,
            can_dont_fragment: true,
            can_multi_conn: true,
            can_cache: true,
            can_fast_zero: true,
        };
        assert_eq!(all.to_flags(), 0b1101_1111_1111);
        assert_eq!(Abilities::default().to_flags(), 1);
        assert_eq!(Abilities::from_flags(0b1101_1111_1110), Abilities::default(), "no HAS_FLAGS, no flags");
    }

    #[test]
    fn unknown_errors_count_as_invalid() {
        assert_eq!(ErrorCode::from_wire(0), None);
        assert_eq!(ErrorCode::from_wire(9999), Some(ErrorCode::Invalid));
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_wire(code.to_wire()), Some(code));
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            flags in any::<u16>(),
            length_bytes in 1u32..,
            (is_hole, is_zero) in any::<(bool, bool)>(),
            index in 0..ErrorCode::ALL.len(),
            message in ".{0,40}",
            offset in any::<Option<u64>>(),
        ) {
            let abilities = Abilities::from_flags(flags | 1);
            prop_assert_eq!(Abilities::from_flags(abilities.to_flags()), abilities);
            let extent = StatusExtent { length_bytes, is_hole, is_zero };
            prop_assert_eq!(StatusExtent::from_raw(&extent.to_raw()), Some(extent));
            let error = ErrorChunk { failure: Failure { code: ErrorCode::ALL[index], message }, offset };
            let mut out = vec![0xa5; 5];
            error.emit(&mut out);
            prop_assert_eq!(ErrorChunk::parse(error.kind(), &out[5..]), Some(error));
        }

        #[test]
        fn any_error_chunk_parses_or_does_not(
            kind in any::<u16>(),
            payload in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = ErrorChunk::parse(kind, &payload);
        }
    }
}
