//! The answer to a request, and its bytes.

use base::buffer::Buffer;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::terms::{ALLOCATION_CONTEXT, Terms};
use super::ticket::Ticket;
use crate::error::Failure;
use crate::limits::STATUS_EXTENTS_MAX;
use crate::transmit::TransmitQueue;
use crate::wire::transmission::command::{BLOCK_STATUS, READ};
use crate::wire::transmission::{
    CHUNK_FLAG_DONE, ChunkRaw, DataChunkRaw, ErrorChunk, HOLE_BYTES, HoleChunkRaw, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReplyRaw, StatusChunkRaw, StatusExtent, chunk, command_flag,
};

/// The answer to a request.
#[derive(Debug)]
pub enum Reply {
    /// Carried out: answers all commands but the two below.
    Done,
    /// Read: exactly the bytes asked for.
    Data(Buffer),
    /// Block status: adjacent extents from the request's offset. The server cuts what reaches past
    /// the request; an empty list means that the state is not known.
    Status(Vec<StatusExtent>),
    /// Failed.
    Failed(Failure),
}

impl Reply {
    /// Queues the answer to the request of `ticket`.
    ///
    /// # Panics
    /// When the reply is of another kind than the request's command says, or data has another length.
    pub(super) fn emit(self, ticket: &Ticket, terms: &Terms, out: &mut TransmitQueue) {
        match self {
            Self::Failed(failure) => emit_failure(failure, ticket, terms, out),
            Self::Data(buffer) => {
                assert_eq!(ticket.wire.command, READ, "data answers a read");
                assert_eq!(buffer.len(), ticket.wire.length as usize, "a read is answered whole");
                emit_data(buffer, ticket, terms, out);
            }
            Self::Status(extents) => {
                assert_eq!(ticket.wire.command, BLOCK_STATUS, "extents answer a block status request");
                emit_status(&extents, ticket, out);
            }
            Self::Done => {
                assert!(
                    ticket.wire.command != READ && ticket.wire.command != BLOCK_STATUS,
                    "this request has an answer"
                );
                emit_simple(0, ticket, out);
            }
        }
    }
}

fn emit_failure(failure: Failure, ticket: &Ticket, terms: &Terms, out: &mut TransmitQueue) {
    if !terms.is_structured {
        return emit_simple(failure.code.to_wire(), ticket, out);
    }
    let error = ErrorChunk { failure, offset: None };
    let mut payload = Vec::new();
    error.emit(&mut payload);
    out.push(only_chunk(ticket, error.kind(), payload.len() as u32).as_bytes());
    out.push(&payload);
}

fn emit_data(buffer: Buffer, ticket: &Ticket, terms: &Terms, out: &mut TransmitQueue) {
    if !terms.is_structured {
        emit_simple(0, ticket, out);
        out.push_payload(buffer);
    } else if is_zero(&buffer) {
        let header = only_chunk(ticket, chunk::OFFSET_HOLE, HOLE_BYTES);
        let (offset, length) = (U64::new(ticket.wire.offset), U32::new(ticket.wire.length));
        out.push(HoleChunkRaw { header, offset, length }.as_bytes());
    } else {
        let header = only_chunk(ticket, chunk::OFFSET_DATA, ticket.wire.length + 8);
        out.push(DataChunkRaw { header, offset: U64::new(ticket.wire.offset) }.as_bytes());
        out.push_payload(buffer);
    }
}

/// Block status ("`NBD_REPLY_TYPE_BLOCK_STATUS`"): one extent if only one was asked for, none past the request.
fn emit_status(extents: &[StatusExtent], ticket: &Ticket, out: &mut TransmitQueue) {
    let unknown = [StatusExtent { length_bytes: ticket.wire.length, is_hole: false, is_zero: false }];
    let extents = if extents.is_empty() { &unknown[..] } else { extents };
    let only_first = ticket.wire.flags & command_flag::REQ_ONE != 0;
    let count_max = if only_first { 1 } else { STATUS_EXTENTS_MAX };
    let mut descriptors = Vec::with_capacity(extents.len().min(count_max));
    let mut left = ticket.wire.length;
    for extent in extents.iter().take(count_max) {
        let length_bytes = extent.length_bytes.min(left);
        if length_bytes == 0 {
            break;
        }
        left -= length_bytes;
        descriptors.push(StatusExtent { length_bytes, ..*extent }.to_raw());
    }
    assert!(!descriptors.is_empty(), "extents and requests are never empty");
    let header = only_chunk(ticket, chunk::BLOCK_STATUS, 4 + size_of_val(&descriptors[..]) as u32);
    out.push(StatusChunkRaw { header, context: U32::new(ALLOCATION_CONTEXT) }.as_bytes());
    out.push(descriptors.as_bytes());
}

fn emit_simple(error: u32, ticket: &Ticket, out: &mut TransmitQueue) {
    let reply =
        SimpleReplyRaw { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(error), cookie: U64::new(ticket.cookie) };
    out.push(reply.as_bytes());
}

/// The header of the only chunk of a reply; `length` bytes of payload follow.
fn only_chunk(ticket: &Ticket, kind: u16, length: u32) -> ChunkRaw {
    ChunkRaw {
        magic: U32::new(STRUCTURED_REPLY_MAGIC),
        flags: U16::new(CHUNK_FLAG_DONE),
        kind: U16::new(kind),
        cookie: U64::new(ticket.cookie),
        length: U32::new(length),
    }
}

/// Whether every byte is zero. In other data a byte that is not zero usually comes early, so the
/// scan is short.
fn is_zero(bytes: &[u8]) -> bool {
    let mut pieces = bytes.chunks_exact(64);
    pieces.all(|piece| piece.iter().fold(0, |sum, byte| sum | byte) == 0)
        && pieces.remainder().iter().all(|&byte| byte == 0)
}
