//! The client's replies: simple ones, and chunks of structured ones in any order.
//!
//! The data of a read is received into the request's own buffer; only the part that arrived along with its header is
//! copied.

use zerocopy::byteorder::big_endian::U32;

use super::requests::{Completed, Requests};
use crate::error::{ErrorCode, Failure, ProtocolError};
use crate::inbox::Inbox;
use crate::limits::{STATUS_EXTENTS_MAX, STRING_BYTES_MAX};
use crate::wire::transmission::{
    CHUNK_FLAG_DONE, ChunkRaw, DataChunkRaw, DescriptorRaw, ErrorChunk, HOLE_BYTES, HoleChunkRaw, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReplyRaw, StatusChunkRaw, StatusExtent, chunk, command,
};

/// Longest payload of an error chunk: the numbers, the message and an offset.
const ERROR_PAYLOAD_BYTES_MAX: u32 = 6 + STRING_BYTES_MAX as u32 + 8;

/// The replies of one connection, under what was negotiated.
pub(super) struct Replies {
    is_structured: bool,
    /// The id of `base:allocation`, where the server has it.
    allocation_context: Option<u32>,
    next: Next,
}

/// The meaning of the next received bytes.
#[derive(Clone, Copy)]
enum Next {
    Messages,
    /// `at..end` of the buffer of a read.
    Data {
        part: Part,
        at: usize,
        end: usize,
    },
    /// Descriptors of a block status request.
    Descriptors {
        part: Part,
        remaining: u32,
    },
}

/// A part of the reply to the request at `index`, perhaps the last one.
#[derive(Clone, Copy)]
struct Part {
    index: u32,
    is_last: bool,
}

/// The result of one step over the received bytes.
pub(super) enum Step<T> {
    Again,
    Starved,
    Completed(Completed<T>),
}

impl Replies {
    pub(super) fn new(is_structured: bool, allocation_context: Option<u32>) -> Self {
        Self { is_structured, allocation_context, next: Next::Messages }
    }

    /// The space for the next received bytes: in the buffer of a read whose data arrives, else in `inbox`.
    pub(super) fn space<'a, T>(&self, inbox: &'a mut Inbox, requests: &'a mut Requests<T>) -> &'a mut [u8] {
        match self.next {
            Next::Data { part, at, end } if at < end => &mut requests.at(part.index).buffer[at..end],
            _ => inbox.space(),
        }
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub(super) fn handle_received(&mut self, count: usize, inbox: &mut Inbox) {
        match &mut self.next {
            Next::Data { at, end, .. } if *at < *end => {
                assert!(count <= *end - *at, "more bytes were received than there was space for");
                *at += count;
            }
            _ => inbox.received(count),
        }
    }

    /// Takes the next message, or what has come of a payload.
    ///
    /// # Errors
    /// When the server contradicts itself.
    pub(super) fn step<T>(&mut self, inbox: &mut Inbox, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
        match self.next {
            Next::Messages => self.step_reply(inbox, requests),
            Next::Data { part, at, end } => self.step_data(part, at, end, inbox, requests),
            Next::Descriptors { part, remaining } => self.step_descriptors(part, remaining, inbox, requests),
        }
    }

    fn step_reply<T>(&mut self, inbox: &mut Inbox, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
        match inbox.peek::<U32>().map(U32::get) {
            None => Ok(Step::Starved),
            Some(SIMPLE_REPLY_MAGIC) => self.step_simple(inbox, requests),
            Some(STRUCTURED_REPLY_MAGIC) if self.is_structured => self.step_chunk(inbox, requests),
            Some(found) => Err(ProtocolError::Magic { place: "a reply", found: found.into() }),
        }
    }

    fn step_simple<T>(&mut self, inbox: &mut Inbox, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
        let Some(reply) = inbox.take::<SimpleReplyRaw>() else { return Ok(Step::Starved) };
        let (index, request) = requests.find(reply.cookie.get())?;
        let part = Part { index, is_last: true };
        let is_read = request.command == command::READ;
        if self.is_structured && is_read {
            return Err(ProtocolError::Malformed("a simple reply where a structured one was agreed on"));
        }
        request.failure = ErrorCode::from_wire(reply.error.get()).map(Failure::from);
        if request.failure.is_none() && is_read && !request.buffer.is_empty() {
            let end = request.buffer.len();
            let is_first = request.coverage.add(0, end as u64);
            assert!(is_first, "a simple reply is the only one of its request");
            self.next = Next::Data { part, at: 0, end };
            return Ok(Step::Again);
        }
        part.finish(requests)
    }

    fn step_chunk<T>(&mut self, inbox: &mut Inbox, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
        let Some(header) = inbox.peek::<ChunkRaw>() else { return Ok(Step::Starved) };
        let (kind, length) = (header.kind.get(), header.length.get());
        let is_last = header.flags.get() & CHUNK_FLAG_DONE != 0;
        let (index, request) = requests.find(header.cookie.get())?;
        let part = Part { index, is_last };
        match (kind, request.command) {
            (chunk::NONE, _) if length == 0 && is_last => {
                inbox.skip(size_of::<ChunkRaw>() as u64);
                part.finish(requests)
            }
            (chunk::OFFSET_DATA, command::READ) if length > 8 => self.begin_data(part, length - 8, inbox, requests),
            (chunk::OFFSET_HOLE, command::READ) if length == HOLE_BYTES => take_hole(part, inbox, requests),
            (chunk::BLOCK_STATUS, command::BLOCK_STATUS) if length >= 12 && length % 8 == 4 => {
                self.begin_descriptors(part, length - 4, inbox, requests)
            }
            (kind, _) if kind & chunk::ERROR_BIT != 0 && length <= ERROR_PAYLOAD_BYTES_MAX => {
                take_error(part, kind, length as usize, inbox, requests)
            }
            _ => Err(ProtocolError::Malformed("a chunk whose type or length does not fit its request")),
        }
    }

    fn begin_data<T>(
        &mut self,
        part: Part,
        count: u32,
        inbox: &mut Inbox,
        requests: &mut Requests<T>,
    ) -> Result<Step<T>, ProtocolError> {
        let Some(chunk) = inbox.take::<DataChunkRaw>() else { return Ok(Step::Starved) };
        let at = requests.at(part.index).cover(chunk.offset.get(), count)?;
        self.next = Next::Data { part, at, end: at + count as usize };
        Ok(Step::Again)
    }

    fn step_data<T>(
        &mut self,
        part: Part,
        at: usize,
        end: usize,
        inbox: &mut Inbox,
        requests: &mut Requests<T>,
    ) -> Result<Step<T>, ProtocolError> {
        let at = at + inbox.copy_to(&mut requests.at(part.index).buffer[at..end]);
        if at < end {
            self.next = Next::Data { part, at, end };
            return Ok(Step::Starved);
        }
        self.next = Next::Messages;
        inbox.payload_ended(end);
        part.finish(requests)
    }

    fn begin_descriptors<T>(
        &mut self,
        part: Part,
        count: u32,
        inbox: &mut Inbox,
        requests: &mut Requests<T>,
    ) -> Result<Step<T>, ProtocolError> {
        let Some(chunk) = inbox.take::<StatusChunkRaw>() else { return Ok(Step::Starved) };
        if Some(chunk.context.get()) != self.allocation_context || !requests.at(part.index).extents.is_empty() {
            return Err(ProtocolError::Malformed("block status of a context that was not chosen, or twice"));
        }
        self.next = Next::Descriptors { part, remaining: count };
        Ok(Step::Again)
    }

    fn step_descriptors<T>(
        &mut self,
        part: Part,
        mut remaining: u32,
        inbox: &mut Inbox,
        requests: &mut Requests<T>,
    ) -> Result<Step<T>, ProtocolError> {
        while remaining > 0 {
            let Some(raw) = inbox.take::<DescriptorRaw>() else {
                self.next = Next::Descriptors { part, remaining };
                return Ok(Step::Starved);
            };
            let extent = StatusExtent::from_raw(&raw).ok_or(ProtocolError::Malformed("an empty extent"))?;
            let extents = &mut requests.at(part.index).extents;
            if extents.len() < STATUS_EXTENTS_MAX {
                extents.push(extent);
            }
            remaining -= size_of::<DescriptorRaw>() as u32;
        }
        self.next = Next::Messages;
        part.finish(requests)
    }
}

impl Part {
    /// Completes the request if this was the last part of its reply.
    fn finish<T>(self, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
        if self.is_last { requests.finish(self.index).map(Step::Completed) } else { Ok(Step::Again) }
    }
}

fn take_hole<T>(part: Part, inbox: &mut Inbox, requests: &mut Requests<T>) -> Result<Step<T>, ProtocolError> {
    let Some(chunk) = inbox.take::<HoleChunkRaw>() else { return Ok(Step::Starved) };
    let count = chunk.length.get();
    let request = requests.at(part.index);
    let at = request.cover(chunk.offset.get(), count)?;
    request.buffer[at..at + count as usize].fill(0);
    part.finish(requests)
}

fn take_error<T>(
    part: Part,
    kind: u16,
    length: usize,
    inbox: &mut Inbox,
    requests: &mut Requests<T>,
) -> Result<Step<T>, ProtocolError> {
    let whole = size_of::<ChunkRaw>() + length;
    let Some(message) = inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
    let error = ErrorChunk::parse(kind, &message[size_of::<ChunkRaw>()..]);
    let error = error.ok_or(ProtocolError::Malformed("an error chunk whose lengths disagree"))?;
    inbox.skip(whole as u64);
    // The first of several errors is the one to report.
    requests.at(part.index).failure.get_or_insert(error.failure);
    part.finish(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, WireRequest};
    use base::buffer::Buffer;
    use zerocopy::IntoBytes;
    use zerocopy::byteorder::big_endian::U64;

    /// Replies, and the cookie of a read of four bytes that waits for one.
    fn reading(requests: &mut Requests<&'static str>) -> u64 {
        let wire = WireRequest::of(&Command::Read { offset: 0, length: 4 });
        requests.add(&wire, Buffer::zeroed(4), "read", 0)
    }

    fn receive(replies: &mut Replies, bytes: &[u8], inbox: &mut Inbox, requests: &mut Requests<&'static str>) {
        replies.space(inbox, requests)[..bytes.len()].copy_from_slice(bytes);
        replies.handle_received(bytes.len(), inbox);
    }

    #[test]
    fn the_data_of_a_read_ends_in_its_own_buffer() {
        let (mut replies, mut inbox, mut requests) = (Replies::new(false, None), Inbox::new(), Requests::new());
        let cookie = reading(&mut requests);
        let header =
            SimpleReplyRaw { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(0), cookie: U64::new(cookie) };
        receive(&mut replies, &[header.as_bytes(), b"ab"].concat(), &mut inbox, &mut requests);
        assert!(matches!(replies.step(&mut inbox, &mut requests), Ok(Step::Again)));
        assert!(matches!(replies.step(&mut inbox, &mut requests), Ok(Step::Starved)));
        assert_eq!(replies.space(&mut inbox, &mut requests).len(), 2, "nothing else is received there");
        receive(&mut replies, b"cd", &mut inbox, &mut requests);
        let Ok(Step::Completed(completed)) = replies.step(&mut inbox, &mut requests) else { panic!("it is whole") };
        assert_eq!((completed.token, &completed.buffer[..]), ("read", &b"abcd"[..]));
        assert_eq!(requests.count(), 0);
    }
}
