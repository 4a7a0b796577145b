//! The server's end of one connection.
//!
//! ```text
//! ClientFlags ── flags ──▶ Options ── GO, EXPORT_NAME ──▶ Transmission ── DISC ──▶ Closed
//!                          │  ▲ └────────── ABORT, breach ───────┴─── breach ──────────┘
//!                 STARTTLS ▼  │ secured
//!                          Securing
//! ```
//!
//! Invariants:
//! - Every request is answered exactly once: by the server itself when it breaks a rule of the
//!   export (range, flags, read-only), otherwise by the owner of its [`Ticket`].
//! - Commands that reach the owner are inside the export. They may be less than whole blocks, from
//!   clients that do not know the smallest block size ("Size constraints" lets a server refuse
//!   them; this one does not).
//! - Messages are taken one at a time, by `poll_event`. An owner that has enough requests in flight
//!   stops polling, and the client waits.
//! - The payload of a write is received into a buffer that the owner provides; only the part that
//!   arrived along with its header is copied.
//! - Nothing negotiated before TLS counts after it, and no byte received in the clear is taken for
//!   one received under TLS.
//! - Data of a read that is all zeroes is sent as a hole where the client understands holes.

mod handshake;
mod request;

use std::sync::Arc;

use base::buffer::Buffer;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::error::{ErrorCode, Failure, ProtocolError};
use crate::inbox::Inbox;
use crate::limits::STATUS_EXTENTS_MAX;
use crate::transmit::TransmitQueue;
use crate::wire::handshake::{self as hello, BlockSize, GreetingRaw};
use crate::wire::transmission::{
    Abilities, CHUNK_FLAG_DONE, ChunkRaw, DataChunkRaw, ErrorChunk, HOLE_BYTES, HoleChunkRaw, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReplyRaw, StatusChunkRaw, StatusExtent, chunk, command_flag,
};

/// The export that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; clients that give none get it too. At most [`STRING_BYTES_MAX`](crate::limits::STRING_BYTES_MAX).
    pub name: String,
    /// A description for people, perhaps empty.
    pub description: String,
    /// Bytes, a multiple of `block_size.min`.
    pub size_bytes: u64,
    /// Size constraints.
    pub block_size: BlockSize,
    /// The abilities of the export. `can_dont_fragment` is set by the server itself.
    pub abilities: Abilities,
}

/// The policy on TLS (`SELECTIVETLS`, `FORCEDTLS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS is refused.
    #[default]
    Off,
    /// A client may ask for TLS.
    Allowed,
    /// A client without TLS cannot reach the export.
    Required,
}

/// Reports of the server to its owner.
#[derive(Debug)]
pub enum Event {
    /// The client may begin with TLS: send what is to be sent, secure the stream, then call [`Server::secured`]. Until
    /// then no other event comes.
    TlsBegins,
    /// Option haggling is over; requests follow.
    Negotiated {
        /// Whether the client takes structured replies.
        is_structured: bool,
    },
    /// A write arrives: call [`Server::provide_buffer`] with a buffer of this length. Until then no other event comes.
    BufferNeeded {
        /// Bytes of the payload.
        length: usize,
    },
    /// A request to carry out and to answer.
    Request(Ticket, Command),
    /// The server itself answered an option, or refused a request. The owner has nothing to do, but
    /// may count it as work.
    Answered,
    /// The client disconnects: answer the outstanding requests, send the answers, close. No other
    /// event comes.
    Disconnected,
    /// The client broke the protocol: close. No other event comes.
    Failed(ProtocolError),
}

/// A command inside the export, of at least one byte.
#[derive(Debug)]
pub enum Command {
    /// Answer with [`Reply::Data`].
    Read {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Answer with [`Reply::Done`].
    Write {
        /// First byte.
        offset: u64,
        /// The payload, in the buffer that was provided.
        buffer: Buffer,
        /// Answer when durable.
        fua: bool,
    },
    /// Answer with [`Reply::Done`] when all writes answered before are durable.
    Flush,
    /// Answer with [`Reply::Done`].
    Trim {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answer when durable.
        fua: bool,
    },
    /// Answer with [`Reply::Done`].
    Cache {
        /// First byte.
        offset: u64,
        /// Count of bytes, at most [`PAYLOAD_BYTES_MAX`](crate::limits::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// Answer with [`Reply::Done`].
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Answer when durable.
        fua: bool,
        /// Whether the space may be given back (`NBD_CMD_FLAG_NO_HOLE` is clear).
        may_discard: bool,
        /// Fail with [`ErrorCode::NotSupported`] unless it is faster than writing.
        only_if_fast: bool,
    },
    /// Answer with [`Reply::Status`].
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Count of bytes.
        length: u32,
        /// Whether only the first extent will be sent.
        only_first: bool,
    },
}

/// The right and the duty to answer one request.
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped is never answered"]
pub struct Ticket {
    cookie: u64,
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
}

/// The answer to a request.
#[derive(Debug)]
pub enum Reply {
    /// Carried out.
    Done,
    /// Read: exactly the bytes asked for.
    Data(Buffer),
    /// Block status: adjacent extents from the request's offset. The server cuts what reaches past
    /// the request; an empty list means that the state is not known.
    Status(Vec<StatusExtent>),
    /// Failed.
    Failed(Failure),
}

/// The state machine of one connection.
pub struct Server {
    export: Arc<Export>,
    phase: Phase,
    intake: Intake,
    inbox: Inbox,
    transmit: TransmitQueue,
    negotiated: Negotiated,
    tls: TlsPolicy,
    /// Whether the stream is secured by TLS.
    is_secured: bool,
    is_shutting_down: bool,
    outstanding: usize,
    /// Whether an answer of the server itself has not been reported by [`Event::Answered`] yet.
    has_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
    Securing,
    Transmission,
    Closed,
}

/// The meaning of the next received bytes.
enum Intake {
    /// Messages.
    Messages,
    /// Data to be discarded, after which `then` is sent.
    Skip { remaining: u64, then: AfterSkip },
    /// The payload of a write that has no buffer yet.
    Unbuffered { ticket: Ticket },
    /// The payload of a write, of which `filled` bytes are there.
    Payload { ticket: Ticket, buffer: Buffer, filled: usize },
}

enum AfterSkip {
    RefuseOption { option: u32, reply: u32 },
    FailRequest { ticket: Ticket, code: ErrorCode },
}

/// The result of negotiation.
#[derive(Clone, Copy, Debug, Default)]
struct Negotiated {
    is_fixed_newstyle: bool,
    is_without_zeroes: bool,
    is_structured: bool,
    has_block_status: bool,
}

/// The result of one step over the received bytes.
enum Step {
    Again,
    Starved,
    Event(Event),
}

/// The context id of `base:allocation` on this server's connections.
const ALLOCATION_CONTEXT: u32 = 1;

impl Server {
    /// A connection that just opened; the greeting waits to be sent.
    pub fn new(export: Arc<Export>) -> Self {
        let mut transmit = TransmitQueue::default();
        let greeting = GreetingRaw {
            magic: U64::new(hello::GREETING_MAGIC),
            option_magic: U64::new(hello::OPTION_MAGIC),
            flags: U16::new(hello::FLAG_FIXED_NEWSTYLE | hello::FLAG_NO_ZEROES),
        };
        transmit.push(greeting.as_bytes());
        Self {
            export,
            phase: Phase::ClientFlags,
            intake: Intake::Messages,
            inbox: Inbox::new(),
            transmit,
            negotiated: Negotiated::default(),
            tls: TlsPolicy::Off,
            is_secured: false,
            is_shutting_down: false,
            outstanding: 0,
            has_answered: false,
        }
    }

    /// A connection whose client knows the export by other means, and sends requests at once: the
    /// kernel's client.
    pub fn transmitting(export: Arc<Export>) -> Self {
        Self { phase: Phase::Transmission, transmit: TransmitQueue::default(), ..Self::new(export) }
    }

    /// Sets the size of the export. The client learns of it by other means.
    pub fn resize(&mut self, size_bytes: u64) {
        Arc::make_mut(&mut self.export).size_bytes = size_bytes;
    }

    /// This connection, with `policy` for TLS.
    pub fn with_tls(self, policy: TlsPolicy) -> Self {
        Self { tls: policy, ..self }
    }

    /// The stream is secured, as [`Event::TlsBegins`] asked.
    ///
    /// # Panics
    /// When it did not ask.
    pub fn secured(&mut self) {
        assert_eq!(self.phase, Phase::Securing, "a stream is secured when the client asks for it");
        self.is_secured = true;
        self.phase = Phase::Options;
    }

    /// The space for the next received bytes. Empty when `poll_event` must be called, a buffer
    /// provided, or the connection closed first.
    pub fn receive_space(&mut self) -> &mut [u8] {
        match &mut self.intake {
            _ if matches!(self.phase, Phase::Closed | Phase::Securing) => &mut [],
            Intake::Payload { buffer, filled, .. } if *filled < buffer.len() => &mut buffer[*filled..],
            _ => self.inbox.space(),
        }
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub fn handle_received(&mut self, count: usize) {
        match &mut self.intake {
            Intake::Payload { buffer, filled, .. } if *filled < buffer.len() => {
                assert!(count <= buffer.len() - *filled, "more bytes were received than there was space for");
                *filled += count;
            }
            _ => self.inbox.received(count),
        }
    }

    /// The next event, or `None` until more is received.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let step = match (&self.intake, self.phase) {
                (_, Phase::Closed | Phase::Securing) => return None,
                (Intake::Skip { .. }, _) => Ok(self.step_skip()),
                (Intake::Unbuffered { .. }, _) => return None,
                (Intake::Payload { .. }, _) => Ok(self.step_payload()),
                (Intake::Messages, Phase::ClientFlags) => self.step_client_flags(),
                (Intake::Messages, Phase::Options) => self.step_option(),
                (Intake::Messages, Phase::Transmission) => self.step_request(),
            };
            let has_answered = std::mem::take(&mut self.has_answered);
            match step {
                Ok(Step::Again) if has_answered => return Some(Event::Answered),
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

    /// Provides the buffer that [`Event::BufferNeeded`] asked for.
    ///
    /// # Panics
    /// When no write waits, or when the buffer has another length.
    pub fn provide_buffer(&mut self, mut buffer: Buffer) {
        let Intake::Unbuffered { ticket } = std::mem::replace(&mut self.intake, Intake::Messages) else {
            panic!("no write waits for a buffer")
        };
        assert_eq!(buffer.len(), ticket.length as usize, "the buffer holds exactly the payload");
        let filled = self.inbox.copy_to(&mut buffer);
        self.intake = Intake::Payload { ticket, buffer, filled };
    }

    /// Answers a request.
    ///
    /// # Panics
    /// When the reply is of another kind than the request's [`Command`] says, or data has another length.
    pub fn complete(&mut self, ticket: Ticket, reply: Reply) {
        self.outstanding = self.outstanding.checked_sub(1).expect("every ticket was given out once");
        self.answer(ticket, reply);
    }

    /// From now on options and requests are refused, because the server is going away.
    pub fn begin_shutdown(&mut self) {
        self.is_shutting_down = true;
    }

    /// The queue of bytes to be sent.
    pub fn transmit(&mut self) -> &mut TransmitQueue {
        &mut self.transmit
    }

    /// Requests given out and not yet completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether option haggling is over.
    pub fn is_negotiated(&self) -> bool {
        self.phase == Phase::Transmission
    }

    fn step_skip(&mut self) -> Step {
        let Intake::Skip { remaining, .. } = &mut self.intake else { return Step::Again };
        *remaining -= self.inbox.skip(*remaining) as u64;
        if *remaining > 0 {
            return Step::Starved;
        }
        if let Intake::Skip { then, .. } = std::mem::replace(&mut self.intake, Intake::Messages) {
            match then {
                AfterSkip::RefuseOption { option, reply } => self.reply_option(option, reply),
                AfterSkip::FailRequest { ticket, code } => self.refuse(ticket, code),
            }
        }
        Step::Again
    }

    fn step_payload(&mut self) -> Step {
        if matches!(&self.intake, Intake::Payload { buffer, filled, .. } if *filled < buffer.len()) {
            return Step::Starved;
        }
        match std::mem::replace(&mut self.intake, Intake::Messages) {
            Intake::Payload { ticket, buffer, .. } => {
                let fua = ticket.flags & command_flag::FUA != 0;
                let offset = ticket.offset;
                self.inbox.payload_ended(buffer.len());
                self.give_out(ticket, Command::Write { offset, buffer, fua })
            }
            other => {
                self.intake = other;
                Step::Again
            }
        }
    }

    /// Refuses a request without handing it to the owner.
    fn refuse(&mut self, ticket: Ticket, code: ErrorCode) {
        self.has_answered = true;
        self.answer(ticket, Reply::Failed(code.into()));
    }

    fn give_out(&mut self, ticket: Ticket, command: Command) -> Step {
        self.outstanding += 1;
        Step::Event(Event::Request(ticket, command))
    }

    fn answer(&mut self, ticket: Ticket, reply: Reply) {
        use crate::wire::transmission::command::{BLOCK_STATUS, READ};
        match reply {
            Reply::Failed(failure) => self.answer_failure(&ticket, failure),
            Reply::Data(buffer) => {
                assert_eq!(ticket.command, READ, "data answers a read");
                assert_eq!(buffer.len(), ticket.length as usize, "a read is answered whole");
                self.answer_data(&ticket, buffer);
            }
            Reply::Status(extents) => {
                assert_eq!(ticket.command, BLOCK_STATUS, "extents answer a block status request");
                self.answer_status(&ticket, &extents);
            }
            Reply::Done => {
                assert!(ticket.command != READ && ticket.command != BLOCK_STATUS, "this request has an answer");
                self.push_simple(&ticket, 0);
            }
        }
    }

    fn answer_failure(&mut self, ticket: &Ticket, failure: Failure) {
        if !self.negotiated.is_structured {
            return self.push_simple(ticket, failure.code.to_wire());
        }
        let error = ErrorChunk { failure, offset: None };
        let mut payload = Vec::new();
        error.emit(&mut payload);
        self.transmit.push(only_chunk(ticket, error.kind(), payload.len() as u32).as_bytes());
        self.transmit.push(&payload);
    }

    fn answer_data(&mut self, ticket: &Ticket, buffer: Buffer) {
        if !self.negotiated.is_structured {
            self.push_simple(ticket, 0);
            self.transmit.push_payload(buffer);
        } else if is_zero(&buffer) {
            let header = only_chunk(ticket, chunk::OFFSET_HOLE, HOLE_BYTES);
            let (offset, length) = (U64::new(ticket.offset), U32::new(ticket.length));
            self.transmit.push(HoleChunkRaw { header, offset, length }.as_bytes());
        } else {
            let header = only_chunk(ticket, chunk::OFFSET_DATA, ticket.length + 8);
            self.transmit.push(DataChunkRaw { header, offset: U64::new(ticket.offset) }.as_bytes());
            self.transmit.push_payload(buffer);
        }
    }

    /// Block status ("`NBD_REPLY_TYPE_BLOCK_STATUS`"): one extent if only one was asked for, none past the request.
    fn answer_status(&mut self, ticket: &Ticket, extents: &[StatusExtent]) {
        let unknown = [StatusExtent { length_bytes: ticket.length, is_hole: false, is_zero: false }];
        let extents = if extents.is_empty() { &unknown[..] } else { extents };
        let only_first = ticket.flags & command_flag::REQ_ONE != 0;
        let count_max = if only_first { 1 } else { STATUS_EXTENTS_MAX };
        let mut descriptors = Vec::with_capacity(extents.len().min(count_max));
        let mut left = ticket.length;
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
        self.transmit.push(StatusChunkRaw { header, context: U32::new(ALLOCATION_CONTEXT) }.as_bytes());
        self.transmit.push(descriptors.as_bytes());
    }

    fn push_simple(&mut self, ticket: &Ticket, error: u32) {
        let reply = SimpleReplyRaw {
            magic: U32::new(SIMPLE_REPLY_MAGIC),
            error: U32::new(error),
            cookie: U64::new(ticket.cookie),
        };
        self.transmit.push(reply.as_bytes());
    }
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

#[cfg(test)]
mod tests;
