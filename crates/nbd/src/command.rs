//! A command, and the fixed part of its request on the wire.

use base::buffer::Buffer;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::wire::transmission::command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::wire::transmission::command_flag::{FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
use crate::wire::transmission::{REQUEST_MAGIC, RequestRaw};

/// A command of a client for the owner of the export. A server gives out only those inside the export, of at least one
/// byte.
#[derive(Debug)]
pub enum Command {
    /// Reads; answered with the data.
    Read {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Stores the buffer.
    Write {
        /// First byte.
        offset: u64,
        /// The payload.
        buffer: Buffer,
        /// Answered when durable.
        fua: bool,
    },
    /// Answered when all writes answered before are durable.
    Flush,
    /// Discards.
    Trim {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answered when durable.
        fua: bool,
    },
    /// Reads ahead.
    Cache {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Writes zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answered when durable.
        fua: bool,
        /// Whether the space may be given back (`NBD_CMD_FLAG_NO_HOLE` is clear).
        may_discard: bool,
        /// Fails with [`ErrorCode::NotSupported`](crate::ErrorCode::NotSupported) unless it is faster than writing.
        only_if_fast: bool,
    },
    /// Asks which ranges are allocated; answered with extents.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Whether only the first extent is sent.
        only_first: bool,
    },
}

/// The fixed part of a request, but for its cookie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WireRequest {
    /// One of [`command`](crate::wire::transmission::command).
    pub(crate) command: u16,
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl WireRequest {
    /// What ends the connection.
    pub(crate) const DISCONNECT: Self = Self { command: DISC, flags: 0, offset: 0, length: 0 };

    /// The request of a command.
    pub(crate) fn of(command: &Command) -> Self {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let (command, flags, offset, length) = match command {
            Command::Read { offset, length } => (READ, 0, *offset, *length),
            Command::Write { offset, buffer, fua } => (WRITE, flag(*fua, FUA), *offset, payload_length(buffer)),
            Command::Flush => (FLUSH, 0, 0, 0),
            Command::Trim { offset, length, fua } => (TRIM, flag(*fua, FUA), *offset, *length),
            Command::Cache { offset, length } => (CACHE, 0, *offset, *length),
            Command::WriteZeroes { offset, length, fua, may_discard, only_if_fast } => {
                let flags = flag(*fua, FUA) | flag(!may_discard, NO_HOLE) | flag(*only_if_fast, FAST_ZERO);
                (WRITE_ZEROES, flags, *offset, *length)
            }
            Command::BlockStatus { offset, length, only_first } => {
                (BLOCK_STATUS, flag(*only_first, REQ_ONE), *offset, *length)
            }
        };
        Self { command, flags, offset, length }
    }

    /// Its command, with the payload of a write.
    ///
    /// # Panics
    /// When it has none: such a request was refused before.
    pub(crate) fn to_command(self, payload: Buffer) -> Command {
        let Self { command, offset, length, .. } = self;
        let has = |flag| self.flags & flag != 0;
        match command {
            READ => Command::Read { offset, length },
            WRITE => Command::Write { offset, buffer: payload, fua: has(FUA) },
            FLUSH => Command::Flush,
            TRIM => Command::Trim { offset, length, fua: has(FUA) },
            CACHE => Command::Cache { offset, length },
            WRITE_ZEROES => Command::WriteZeroes {
                offset,
                length,
                fua: has(FUA),
                may_discard: !has(NO_HOLE),
                only_if_fast: has(FAST_ZERO),
            },
            BLOCK_STATUS => Command::BlockStatus { offset, length, only_first: has(REQ_ONE) },
            other => unreachable!("command {other} has no rule and was refused"),
        }
    }

    /// What a received header says.
    pub(crate) fn of_raw(raw: &RequestRaw) -> Self {
        Self { command: raw.command.get(), flags: raw.flags.get(), offset: raw.offset.get(), length: raw.length.get() }
    }

    /// Its header, with the cookie that its reply will have.
    pub(crate) fn to_raw(self, cookie: u64) -> RequestRaw {
        RequestRaw {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(self.flags),
            command: U16::new(self.command),
            cookie: U64::new(cookie),
            offset: U64::new(self.offset),
            length: U32::new(self.length),
        }
    }
}

fn payload_length(buffer: &Buffer) -> u32 {
    u32::try_from(buffer.len()).expect("BUFFER_BYTES_MAX is far below 4 GiB")
}
