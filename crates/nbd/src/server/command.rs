//! A command for the owner of the export.

use base::buffer::Buffer;

use super::ticket::Ticket;
use crate::wire::transmission::command::{BLOCK_STATUS, CACHE, FLUSH, READ, TRIM, WRITE_ZEROES};
use crate::wire::transmission::command_flag::{FAST_ZERO, FUA, NO_HOLE, REQ_ONE};

/// A command inside the export, of at least one byte.
#[derive(Debug)]
pub enum Command {
    /// Answer with [`Reply::Data`](super::Reply::Data).
    Read {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Answer with [`Reply::Done`](super::Reply::Done).
    Write {
        /// First byte.
        offset: u64,
        /// The payload, in the buffer that was provided.
        buffer: Buffer,
        /// Answer when durable.
        fua: bool,
    },
    /// Answer with [`Reply::Done`](super::Reply::Done) when all writes answered before are durable.
    Flush,
    /// Answer with [`Reply::Done`](super::Reply::Done).
    Trim {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answer when durable.
        fua: bool,
    },
    /// Answer with [`Reply::Done`](super::Reply::Done).
    Cache {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Answer with [`Reply::Done`](super::Reply::Done).
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answer when durable.
        fua: bool,
        /// Whether the space may be given back (`NBD_CMD_FLAG_NO_HOLE` is clear).
        may_discard: bool,
        /// Fail with [`ErrorCode::NotSupported`](crate::ErrorCode::NotSupported) unless it is faster than writing.
        only_if_fast: bool,
    },
    /// Answer with [`Reply::Status`](super::Reply::Status).
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Whether only the first extent will be sent.
        only_first: bool,
    },
}

impl Command {
    /// The command of a ticket that passed the checks and has no payload.
    pub(super) fn of(ticket: &Ticket) -> Self {
        let (offset, length) = (ticket.offset, ticket.length);
        let has = |flag| ticket.flags & flag != 0;
        match ticket.command {
            READ => Self::Read { offset, length },
            FLUSH => Self::Flush,
            TRIM => Self::Trim { offset, length, fua: has(FUA) },
            CACHE => Self::Cache { offset, length },
            WRITE_ZEROES => Self::WriteZeroes {
                offset,
                length,
                fua: has(FUA),
                may_discard: !has(NO_HOLE),
                only_if_fast: has(FAST_ZERO),
            },
            BLOCK_STATUS => Self::BlockStatus { offset, length, only_first: has(REQ_ONE) },
            other => unreachable!("command {other} has no rule and was refused"),
        }
    }

    /// The write of a ticket that passed the checks, with its payload.
    pub(super) fn write(ticket: &Ticket, buffer: Buffer) -> Self {
        Self::Write { offset: ticket.offset, buffer, fua: ticket.flags & FUA != 0 }
    }
}
