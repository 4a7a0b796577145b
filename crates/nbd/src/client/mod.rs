//! The client's end of one connection.
//!
//! ```text
//! Greeting ─▶ [STRUCTURED_REPLY ─▶ SET_META_CONTEXT ─▶] GO ─▶ Transmission ─▶ Closed
//! ```
//!
//! Invariants:
//! - Every accepted request completes once: by [`Event::Completed`], or, when the connection is lost, by
//!   [`Client::abandon`].
//! - The data of a read is received into the request's own buffer; only the part that arrived along
//!   with its header is copied. A read succeeds only when every byte was covered exactly once.
//! - A server that contradicts itself ends the connection with [`Event::Failed`]; no message of it
//!   makes the client panic.
//!
//! A token chosen by the owner travels with each request, so that the owner needs no table of its
//! own.

mod coverage;
mod handshake;
mod reply;

use base::buffer::Buffer;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::error::{Failure, ProtocolError};
use crate::inbox::Inbox;
use crate::limits::CLIENT_REQUESTS_MAX;
use crate::transmit::TransmitQueue;
use crate::wire::handshake::BlockSize;
use crate::wire::transmission::{Abilities, REQUEST_MAGIC, RequestRaw, StatusExtent, command, command_flag};
use coverage::Coverage;

/// How to negotiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The export, or empty for the server's default. At most [`STRING_BYTES_MAX`](crate::limits::STRING_BYTES_MAX).
    pub export_name: String,
    /// Whether to ask for structured replies and, with them, `base:allocation`.
    pub wants_structured: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { export_name: String::new(), wants_structured: true }
    }
}

/// The result of negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Bytes.
    pub size_bytes: u64,
    /// The abilities of the export.
    pub abilities: Abilities,
    /// Size constraints; the document's defaults where the server announced none.
    pub block_size: BlockSize,
    /// The export's own name, where the server sent it.
    pub name: String,
    /// A description for people, where the server sent it.
    pub description: String,
    /// Whether structured replies are used.
    pub is_structured: bool,
    /// Whether block status requests are allowed.
    pub has_block_status: bool,
}

/// Reports of the client to its owner.
#[derive(Debug)]
pub enum Event<T> {
    /// Requests may be submitted.
    Connected(ExportInfo),
    /// A request was answered.
    Completed(Completed<T>),
    /// The server broke the protocol or refused the connection: close, then call [`Client::abandon`]. No other event
    /// comes.
    Failed(ProtocolError),
}

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

/// The state machine of one connection.
pub struct Client<T> {
    options: ClientOptions,
    phase: Phase,
    intake: Intake,
    inbox: Inbox,
    transmit: TransmitQueue,
    info: ExportInfo,
    has_export_info: bool,
    allocation_context: Option<u32>,
    /// Outstanding requests by the lower half of their cookie.
    slots: Vec<Option<Slot<T>>>,
    free: Vec<u32>,
    /// The upper half of the next cookie: a reply to an earlier use of a slot is recognised.
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    StructuredReply,
    MetaContext,
    Go,
    Transmission,
    Closed,
}

/// The meaning of the next received bytes.
#[derive(Clone, Copy, Debug)]
enum Intake {
    Messages,
    /// `at..end` of the buffer of the read in `slot`; then the chunk, and with `is_last` the request, is over.
    Data {
        slot: u32,
        at: usize,
        end: usize,
        is_last: bool,
    },
    /// Descriptors of the block status request in `slot`.
    Descriptors {
        slot: u32,
        remaining: u32,
        is_last: bool,
    },
}

struct Slot<T> {
    token: T,
    cookie: u64,
    command: u16,
    offset: u64,
    buffer: Buffer,
    coverage: Coverage,
    failure: Option<Failure>,
    extents: Vec<StatusExtent>,
    /// Position of the request in the stream of sent bytes.
    stream_position: u64,
}

/// The result of one step over the received bytes.
enum Step<T> {
    Again,
    Starved,
    Event(Event<T>),
}

impl<T> Client<T> {
    /// A connection that just opened.
    pub fn new(options: ClientOptions) -> Self {
        let info = ExportInfo {
            size_bytes: 0,
            abilities: Abilities::default(),
            block_size: BlockSize::DEFAULT,
            name: String::new(),
            description: String::new(),
            is_structured: false,
            has_block_status: false,
        };
        Self {
            options,
            phase: Phase::Greeting,
            intake: Intake::Messages,
            inbox: Inbox::new(),
            transmit: TransmitQueue::default(),
            info,
            has_export_info: false,
            allocation_context: None,
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
        }
    }

    /// The space for the next received bytes. Empty when `poll_event` must be called or the
    /// connection closed first.
    pub fn receive_space(&mut self) -> &mut [u8] {
        match self.intake {
            _ if self.phase == Phase::Closed => &mut [],
            Intake::Data { slot, at, end, .. } if at < end => self.data_space(slot, at, end),
            _ => self.inbox.space(),
        }
    }

    fn data_space(&mut self, slot: u32, at: usize, end: usize) -> &mut [u8] {
        let slot = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        &mut slot.expect("a request stays while its data arrives").buffer[at..end]
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub fn handle_received(&mut self, count: usize) {
        match &mut self.intake {
            Intake::Data { at, end, .. } if *at < *end => {
                assert!(count <= *end - *at, "more bytes were received than there was space for");
                *at += count;
            }
            _ => self.inbox.received(count),
        }
    }

    /// The next event, or `None` until more is received.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        loop {
            let step = match (self.intake, self.phase) {
                (_, Phase::Closed) => return None,
                (Intake::Data { .. }, _) => self.step_data(),
                (Intake::Descriptors { .. }, _) => self.step_descriptors(),
                (Intake::Messages, Phase::Greeting) => self.step_greeting(),
                (Intake::Messages, Phase::Transmission) => self.step_reply(),
                (Intake::Messages, _) => self.step_option_reply(),
            };
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Starved) => return None,
                Ok(Step::Event(event)) => return Some(event),
                Err(error) => {
                    self.phase = Phase::Closed;
                    return Some(Event::Failed(error));
                }
            }
        }
    }

    /// Queues a request; its [`Event::Completed`] carries `token`.
    ///
    /// # Errors
    /// The command and token, when there is no connection to send it on or [`CLIENT_REQUESTS_MAX`] are outstanding.
    pub fn submit(&mut self, command: Command, token: T) -> Result<(), (Command, T)> {
        if self.phase != Phase::Transmission || self.outstanding() >= CLIENT_REQUESTS_MAX {
            return Err((command, token));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let cookie = u64::from(self.generation) << 32 | u64::from(index);
        let stream_position = self.transmit.queued_bytes();
        let wire = WireRequest::of(&command);
        self.transmit.push(wire.to_raw(cookie).as_bytes());
        let mut slot = Slot {
            token,
            cookie,
            command: wire.command,
            offset: wire.offset,
            buffer: Buffer::empty(),
            coverage: Coverage::new(wire.length),
            failure: None,
            extents: Vec::new(),
            stream_position,
        };
        match command {
            Command::Read { buffer, .. } => slot.buffer = buffer,
            Command::Write { buffer, .. } => self.transmit.push_payload(buffer),
            _ => {}
        }
        self.slots[index as usize] = Some(slot);
        Ok(())
    }

    /// Queues `NBD_CMD_DISC`. The owner sends the queue, then closes; the server answers the
    /// outstanding requests first.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Transmission {
            let goodbye = WireRequest { command: command::DISC, flags: 0, offset: 0, length: 0 };
            self.transmit.push(goodbye.to_raw(0).as_bytes());
        }
    }

    /// Gives up the connection. Returns every outstanding request, in no particular order.
    pub fn abandon(&mut self) -> Vec<Abandoned<T>> {
        self.phase = Phase::Closed;
        self.intake = Intake::Messages;
        self.free.clear();
        let sent_bytes = self.transmit.sent_bytes();
        let slots = std::mem::take(&mut self.slots).into_iter().flatten();
        slots
            .map(|slot| Abandoned {
                token: slot.token,
                buffer: slot.buffer,
                was_sent: slot.stream_position < sent_bytes,
            })
            .collect()
    }

    /// The queue of bytes to be sent.
    pub fn transmit(&mut self) -> &mut TransmitQueue {
        &mut self.transmit
    }

    /// Requests submitted and not yet over.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// The fixed part of a request.
struct WireRequest {
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
}

impl WireRequest {
    fn of(request: &Command) -> Self {
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

    fn to_raw(&self, cookie: u64) -> RequestRaw {
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

#[cfg(test)]
mod tests;
