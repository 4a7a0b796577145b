//! The outstanding requests of a connection.

use base::buffer::Buffer;

use super::coverage::Coverage;
use crate::command::WireRequest;
use crate::error::{Failure, ProtocolError};
use crate::wire::transmission::{StatusExtent, command};

/// A request that was answered, and its answer.
#[derive(Debug)]
pub struct Completed<T> {
    /// The owner's token.
    pub token: T,
    /// The server's error, if it sent one.
    pub result: Result<(), Failure>,
    /// The buffer of a read, filled if that succeeded; empty otherwise.
    pub buffer: Buffer,
    /// The answer to a block status request: adjacent extents from its offset, perhaps covering less.
    pub extents: Vec<StatusExtent>,
}

/// A request that was outstanding when the connection was given up.
#[derive(Debug)]
pub struct Abandoned<T> {
    /// The owner's token.
    pub token: T,
    /// The buffer of a read.
    pub buffer: Buffer,
    /// Whether any byte of it was sent: if not, it was certainly not carried out.
    pub was_sent: bool,
}

/// The outstanding requests of one connection, by the lower half of their cookie.
pub(super) struct Requests<T> {
    slots: Vec<Option<Request<T>>>,
    free: Vec<u32>,
    /// The upper half of the next cookie: a reply to an earlier use of a slot is recognised.
    generation: u32,
}

/// An outstanding request.
pub(super) struct Request<T> {
    token: T,
    cookie: u64,
    pub(super) command: u16,
    offset: u64,
    /// The buffer of a read; empty otherwise.
    pub(super) buffer: Buffer,
    pub(super) coverage: Coverage,
    pub(super) failure: Option<Failure>,
    pub(super) extents: Vec<StatusExtent>,
    /// Position of the request in the stream of sent bytes.
    stream_position: u64,
}

impl<T> Request<T> {
    /// Marks `count` bytes of a read as answered; where they begin in its buffer.
    ///
    /// # Errors
    /// When they are not of the read, or were answered before.
    pub(super) fn cover(&mut self, offset: u64, count: u32) -> Result<usize, ProtocolError> {
        let start = offset.checked_sub(self.offset).filter(|&start| self.coverage.add(start, count.into()));
        let start =
            start.ok_or(ProtocolError::Malformed("a content chunk that is empty, overlaps or is not of its read"))?;
        Ok(usize::try_from(start).expect("it lies inside a buffer"))
    }
}

impl<T> Requests<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), generation: 0 }
    }

    /// Adds a request that will stand at `stream_position` of the sent bytes; its cookie.
    pub(super) fn add(&mut self, wire: &WireRequest, buffer: Buffer, token: T, stream_position: u64) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let cookie = u64::from(self.generation) << 32 | u64::from(index);
        self.slots[index as usize] = Some(Request {
            token,
            cookie,
            command: wire.command,
            offset: wire.offset,
            buffer,
            coverage: Coverage::new(wire.length),
            failure: None,
            extents: Vec::new(),
            stream_position,
        });
        cookie
    }

    /// Count of them.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The outstanding request with this cookie, and its index.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn find(&mut self, cookie: u64) -> Result<(u32, &mut Request<T>), ProtocolError> {
        let index = cookie as u32;
        let request = self.slots.get_mut(index as usize).and_then(Option::as_mut);
        let request = request.filter(|request| request.cookie == cookie);
        request.map(|request| (index, request)).ok_or(ProtocolError::UnknownCookie(cookie))
    }

    /// The request at `index`, which [`find`](Self::find) told.
    ///
    /// # Panics
    /// When it is finished.
    pub(super) fn at(&mut self, index: u32) -> &mut Request<T> {
        self.slots.get_mut(index as usize).and_then(Option::as_mut).expect("a request stays until it is finished")
    }

    /// Completes the request at `index`.
    ///
    /// # Errors
    /// When it has succeeded without an answer.
    pub(super) fn finish(&mut self, index: u32) -> Result<Completed<T>, ProtocolError> {
        let request = self.at(index);
        let is_answered = match request.command {
            command::READ => request.coverage.is_complete(),
            command::BLOCK_STATUS => !request.extents.is_empty(),
            _ => true,
        };
        if request.failure.is_none() && !is_answered {
            return Err(ProtocolError::Malformed("success for a request it did not answer"));
        }
        let request = self.slots[index as usize].take().expect("it was there a moment ago");
        self.free.push(index);
        Ok(Completed {
            token: request.token,
            result: request.failure.map_or(Ok(()), Err),
            buffer: request.buffer,
            extents: request.extents,
        })
    }

    /// Takes all requests, in no particular order, from a connection that has sent `sent_bytes`.
    pub(super) fn abandon(&mut self, sent_bytes: u64) -> Vec<Abandoned<T>> {
        self.free.clear();
        let requests = std::mem::take(&mut self.slots).into_iter().flatten();
        requests
            .map(|request| Abandoned {
                token: request.token,
                buffer: request.buffer,
                was_sent: request.stream_position < sent_bytes,
            })
            .collect()
    }
}
