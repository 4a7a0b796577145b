//! The client's replies: simple ones, and chunks of structured ones in any order.

use zerocopy::byteorder::big_endian::U32;

use super::{Client, Completed, Event, Intake, Slot, Step};
use crate::error::{ErrorCode, Failure, ProtocolError};
use crate::limits::{STATUS_EXTENTS_MAX, STRING_BYTES_MAX};
use crate::wire::transmission::{
    CHUNK_FLAG_DONE, ChunkRaw, DataChunkRaw, DescriptorRaw, ErrorChunk, HOLE_BYTES, HoleChunkRaw, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReplyRaw, StatusChunkRaw, StatusExtent, chunk, command,
};

/// Longest payload of an error chunk: the numbers, the message and an offset.
const ERROR_PAYLOAD_BYTES_MAX: u32 = 6 + STRING_BYTES_MAX as u32 + 8;

impl<T> Client<T> {
    pub(super) fn step_reply(&mut self) -> Result<Step<T>, ProtocolError> {
        match self.inbox.peek::<U32>().map(U32::get) {
            None => Ok(Step::Starved),
            Some(SIMPLE_REPLY_MAGIC) => self.step_simple(),
            Some(STRUCTURED_REPLY_MAGIC) if self.info.is_structured => self.step_chunk(),
            Some(found) => Err(ProtocolError::Magic { place: "a reply", found: found.into() }),
        }
    }

    fn step_simple(&mut self) -> Result<Step<T>, ProtocolError> {
        let Some(reply) = self.inbox.take::<SimpleReplyRaw>() else { return Ok(Step::Starved) };
        let is_structured = self.info.is_structured;
        let (index, slot) = self.slot(reply.cookie.get())?;
        let is_read = slot.command == command::READ;
        if is_structured && is_read {
            return Err(ProtocolError::Malformed("a simple reply where a structured one was agreed on"));
        }
        slot.failure = ErrorCode::from_wire(reply.error.get()).map(Failure::from);
        if slot.failure.is_none() && is_read && !slot.buffer.is_empty() {
            let end = slot.buffer.len();
            let is_first = slot.coverage.add(0, end as u64);
            assert!(is_first, "a simple reply is the only one of its request");
            self.intake = Intake::Data { slot: index, at: 0, end, is_last: true };
            return Ok(Step::Again);
        }
        self.finish(index)
    }

    fn step_chunk(&mut self) -> Result<Step<T>, ProtocolError> {
        let Some(header) = self.inbox.peek::<ChunkRaw>() else { return Ok(Step::Starved) };
        let (kind, length) = (header.kind.get(), header.length.get());
        let is_last = header.flags.get() & CHUNK_FLAG_DONE != 0;
        let (index, slot) = self.slot(header.cookie.get())?;
        let command = slot.command;
        match kind {
            chunk::NONE if length == 0 && is_last => {
                self.inbox.skip(size_of::<ChunkRaw>() as u64);
                self.finish(index)
            }
            chunk::OFFSET_DATA if command == command::READ && length > 8 => self.begin_data(index, length - 8, is_last),
            chunk::OFFSET_HOLE if command == command::READ && length == HOLE_BYTES => self.take_hole(index, is_last),
            chunk::BLOCK_STATUS if command == command::BLOCK_STATUS && length >= 12 && length % 8 == 4 => {
                self.begin_descriptors(index, length - 4, is_last)
            }
            kind if kind & chunk::ERROR_BIT != 0 && length <= ERROR_PAYLOAD_BYTES_MAX => {
                self.take_error(index, kind, length as usize, is_last)
            }
            _ => Err(ProtocolError::Malformed("a chunk whose type or length does not fit its request")),
        }
    }

    fn begin_data(&mut self, index: u32, count: u32, is_last: bool) -> Result<Step<T>, ProtocolError> {
        let Some(chunk) = self.inbox.take::<DataChunkRaw>() else { return Ok(Step::Starved) };
        let at = self.cover(index, chunk.offset.get(), count)?;
        self.intake = Intake::Data { slot: index, at, end: at + count as usize, is_last };
        Ok(Step::Again)
    }

    fn take_hole(&mut self, index: u32, is_last: bool) -> Result<Step<T>, ProtocolError> {
        let Some(chunk) = self.inbox.take::<HoleChunkRaw>() else { return Ok(Step::Starved) };
        let count = chunk.length.get();
        let at = self.cover(index, chunk.offset.get(), count)?;
        self.data_space(index, at, at + count as usize).fill(0);
        self.finish_chunk(index, is_last)
    }

    /// Marks `count` bytes of a read as answered; where they begin in its buffer.
    fn cover(&mut self, index: u32, offset: u64, count: u32) -> Result<usize, ProtocolError> {
        let slot = self.live_slot(index);
        let start = offset.checked_sub(slot.offset).filter(|&start| slot.coverage.add(start, count.into()));
        let start =
            start.ok_or(ProtocolError::Malformed("a content chunk that is empty, overlaps or is not of its read"))?;
        Ok(usize::try_from(start).expect("it lies inside a buffer"))
    }

    pub(super) fn step_data(&mut self) -> Result<Step<T>, ProtocolError> {
        let Intake::Data { slot, at, end, is_last } = self.intake else { return Ok(Step::Again) };
        let target = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let target = &mut target.expect("a request stays while its data arrives").buffer[at..end];
        let at = at + self.inbox.copy_to(target);
        if at < end {
            self.intake = Intake::Data { slot, at, end, is_last };
            return Ok(Step::Starved);
        }
        self.intake = Intake::Messages;
        self.inbox.payload_ended(end);
        self.finish_chunk(slot, is_last)
    }

    fn begin_descriptors(&mut self, index: u32, count: u32, is_last: bool) -> Result<Step<T>, ProtocolError> {
        let Some(chunk) = self.inbox.take::<StatusChunkRaw>() else { return Ok(Step::Starved) };
        if Some(chunk.context.get()) != self.allocation_context || !self.live_slot(index).extents.is_empty() {
            return Err(ProtocolError::Malformed("block status of a context that was not chosen, or twice"));
        }
        self.intake = Intake::Descriptors { slot: index, remaining: count, is_last };
        Ok(Step::Again)
    }

    pub(super) fn step_descriptors(&mut self) -> Result<Step<T>, ProtocolError> {
        let Intake::Descriptors { slot, mut remaining, is_last } = self.intake else { return Ok(Step::Again) };
        while remaining > 0 {
            let Some(raw) = self.inbox.take::<DescriptorRaw>() else {
                self.intake = Intake::Descriptors { slot, remaining, is_last };
                return Ok(Step::Starved);
            };
            let extent = StatusExtent::from_raw(&raw).ok_or(ProtocolError::Malformed("an empty extent"))?;
            let extents = &mut self.live_slot(slot).extents;
            if extents.len() < STATUS_EXTENTS_MAX {
                extents.push(extent);
            }
            remaining -= size_of::<DescriptorRaw>() as u32;
        }
        self.intake = Intake::Messages;
        self.finish_chunk(slot, is_last)
    }

    fn take_error(&mut self, index: u32, kind: u16, length: usize, is_last: bool) -> Result<Step<T>, ProtocolError> {
        let whole = size_of::<ChunkRaw>() + length;
        let Some(message) = self.inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
        let error = ErrorChunk::parse(kind, &message[size_of::<ChunkRaw>()..]);
        let error = error.ok_or(ProtocolError::Malformed("an error chunk whose lengths disagree"))?;
        self.inbox.skip(whole as u64);
        // The first of several errors is the one to report.
        self.live_slot(index).failure.get_or_insert(error.failure);
        self.finish_chunk(index, is_last)
    }

    fn finish_chunk(&mut self, index: u32, is_last: bool) -> Result<Step<T>, ProtocolError> {
        if is_last { self.finish(index) } else { Ok(Step::Again) }
    }

    /// Completes the request in slot `index`.
    fn finish(&mut self, index: u32) -> Result<Step<T>, ProtocolError> {
        let slot = self.live_slot(index);
        let is_answered = match slot.command {
            command::READ => slot.coverage.is_complete(),
            command::BLOCK_STATUS => !slot.extents.is_empty(),
            _ => true,
        };
        if slot.failure.is_none() && !is_answered {
            return Err(ProtocolError::Malformed("success for a request it did not answer"));
        }
        let slot = self.slots[index as usize].take().expect("it was there a moment ago");
        self.free.push(index);
        Ok(Step::Event(Event::Completed(Completed {
            token: slot.token,
            result: slot.failure.map_or(Ok(()), Err),
            buffer: slot.buffer,
            extents: slot.extents,
        })))
    }

    /// The outstanding request with this cookie, and its index.
    fn slot(&mut self, cookie: u64) -> Result<(u32, &mut Slot<T>), ProtocolError> {
        let index = cookie as u32;
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_mut).filter(|slot| slot.cookie == cookie);
        slot.map(|slot| (index, slot)).ok_or(ProtocolError::UnknownCookie(cookie))
    }

    /// The request at `index`, which a cookie or the intake named.
    fn live_slot(&mut self, index: u32) -> &mut Slot<T> {
        self.slots.get_mut(index as usize).and_then(Option::as_mut).expect("a request stays until it is finished")
    }
}
