//! A command for the server, and its bytes.

use base::buffer::Buffer;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::wire::transmission::{REQUEST_MAGIC, RequestRaw, command, command_flag};

/// A request to the server. Ranges are bytes.
#[derive(Debug)]
pub enum Command {
    /// Fills the buffer.
    Read {
        /// First byte.
        offset: u64,
        /// As long as what is to be read.
        buffer: Buffer,
    },
    /// Stores the buffer.
    Write {
        /// First byte.
        offset: u64,
        /// The data to write.
        buffer: Buffer,
        /// Complete when durable.
        fua: bool,
    },
    /// Makes completed writes durable.
    Flush,
    /// Discards.
    Trim {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Complete when durable.
        fua: bool,
    },
    /// Reads ahead.
    Cache {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
    },
    /// Writes zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Complete when durable.
        fua: bool,
        /// Whether the server may give the space back.
        may_discard: bool,
        /// Fail unless it is faster than writing.
        only_if_fast: bool,
    },
    /// Asks which ranges are allocated.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Only the first extent.
        only_first: bool,
    },
}

/// The fixed part of a request.
pub(super) struct WireRequest {
    pub(super) command: u16,
    flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl WireRequest {
    /// What ends the connection.
    pub(super) const DISCONNECT: Self = Self { command: command::DISC, flags: 0, offset: 0, length: 0 };

    pub(super) fn of(request: &Command) -> Self {
        use command_flag::{FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let (command, flags, offset, length) = match request {
            Command::Read { offset, buffer } => (command::READ, 0, *offset, payload_length(buffer)),
            Command::Write { offset, buffer, fua } => {
                (command::WRITE, flag(*fua, FUA), *offset, payload_length(buffer))
            }
            Command::Flush => (command::FLUSH, 0, 0, 0),
            Command::Trim { offset, length, fua } => (command::TRIM, flag(*fua, FUA), *offset, *length),
            Command::Cache { offset, length } => (command::CACHE, 0, *offset, *length),
            Command::WriteZeroes { offset, length, fua, may_discard, only_if_fast } => {
                let flags = flag(*fua, FUA) | flag(!may_discard, NO_HOLE) | flag(*only_if_fast, FAST_ZERO);
                (command::WRITE_ZEROES, flags, *offset, *length)
            }
            Command::BlockStatus { offset, length, only_first } => {
                (command::BLOCK_STATUS, flag(*only_first, REQ_ONE), *offset, *length)
            }
        };
        Self { command, flags, offset, length }
    }

    pub(super) fn to_raw(&self, cookie: u64) -> RequestRaw {
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
