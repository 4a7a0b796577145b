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

mod export;
mod handshake;
mod intake;
mod reply;
mod request;
mod served;
mod terms;
mod ticket;

use std::sync::Arc;

use base::buffer::Buffer;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U64};

use self::handshake::{Handshake, reply_option};
use self::intake::{AfterSkip, Arrived, Intake};
use self::request::Request;
use self::served::Served;
use crate::command::Command;
use crate::error::{ErrorCode, ProtocolError};
use crate::transmit::TransmitQueue;
use crate::wire::handshake::{self as hello, GreetingRaw};

pub use self::export::Export;
pub use self::handshake::TlsPolicy;
pub use self::reply::Reply;
pub use self::ticket::Ticket;

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

/// The state machine of one connection.
pub struct Server {
    served: Served,
    phase: Phase,
    intake: Intake,
    handshake: Handshake,
    transmit: TransmitQueue,
    outstanding: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    Securing,
    Transmission,
    Closed,
}

/// The result of one step over the received bytes.
enum Step {
    Again,
    Starved,
    Event(Event),
}

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
            served: Served { export, is_shutting_down: false },
            phase: Phase::Handshake,
            intake: Intake::new(),
            handshake: Handshake::default(),
            transmit,
            outstanding: 0,
        }
    }

    /// A connection whose client knows the export by other means, and sends requests at once: the
    /// kernel's client.
    pub fn transmitting(export: Arc<Export>) -> Self {
        Self { phase: Phase::Transmission, transmit: TransmitQueue::default(), ..Self::new(export) }
    }

    /// Sets the size of the export. The client learns of it by other means.
    pub fn resize(&mut self, size_bytes: u64) {
        Arc::make_mut(&mut self.served.export).size_bytes = size_bytes;
    }

    /// This connection, with `policy` for TLS.
    pub fn with_tls(mut self, policy: TlsPolicy) -> Self {
        self.handshake.tls = policy;
        self
    }

    /// The stream is secured, as [`Event::TlsBegins`] asked.
    ///
    /// # Panics
    /// When it did not ask.
    pub fn secured(&mut self) {
        assert_eq!(self.phase, Phase::Securing, "a stream is secured when the client asks for it");
        self.handshake.is_secured = true;
        self.phase = Phase::Handshake;
    }

    /// The space for the next received bytes. Empty when `poll_event` must be called, a buffer
    /// provided, or the connection closed first.
    pub fn receive_space(&mut self) -> &mut [u8] {
        if matches!(self.phase, Phase::Closed | Phase::Securing) { &mut [] } else { self.intake.space() }
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub fn handle_received(&mut self, count: usize) {
        self.intake.handle_received(count);
    }

    /// The next event, or `None` until more is received.
    pub fn poll_event(&mut self) -> Option<Event> {
        while !matches!(self.phase, Phase::Closed | Phase::Securing) {
            let step = match self.intake.poll() {
                Arrived::Starved => return None,
                Arrived::Skipped(then) => return Some(self.refuse_skipped(then)),
                Arrived::Payload(ticket, buffer) => {
                    let command = ticket.wire.to_command(buffer);
                    return Some(self.give_out(ticket, command));
                }
                Arrived::Messages if self.phase == Phase::Transmission => self.step_request(),
                Arrived::Messages => self.step_handshake(),
            };
            match step {
                Step::Again => {}
                Step::Starved => return None,
                Step::Event(event) => return Some(event),
            }
        }
        None
    }

    /// Provides the buffer that [`Event::BufferNeeded`] asked for.
    ///
    /// # Panics
    /// When no write waits, or when the buffer has another length.
    pub fn provide_buffer(&mut self, buffer: Buffer) {
        self.intake.provide_buffer(buffer);
    }

    /// Answers a request.
    ///
    /// # Panics
    /// When the reply is of another kind than the request's [`Command`] says, or data has another length.
    pub fn complete(&mut self, ticket: Ticket, reply: Reply) {
        self.outstanding = self.outstanding.checked_sub(1).expect("every ticket was given out once");
        reply.emit(&ticket, self.handshake.terms(), &mut self.transmit);
    }

    /// From now on options and requests are refused, because the server is going away.
    pub fn begin_shutdown(&mut self) {
        self.served.is_shutting_down = true;
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

    /// Whether nothing has come of a request that has not been given out.
    pub fn is_between_requests(&self) -> bool {
        self.is_negotiated() && self.intake.is_empty()
    }

    fn step_request(&mut self) -> Step {
        Step::Event(match Request::take(self.intake.messages(), &self.served, self.handshake.terms()) {
            Ok(None) => return Step::Starved,
            Ok(Some(Request::Command(ticket, command))) => self.give_out(ticket, command),
            Ok(Some(Request::Refused(ticket, code))) => self.refuse(&ticket, code),
            // The payload of a write follows whether the write is allowed or not.
            Ok(Some(Request::Write(ticket))) => {
                let length = ticket.wire.length as usize;
                self.intake.expect_payload(ticket);
                Event::BufferNeeded { length }
            }
            Ok(Some(Request::RefusedWrite(ticket, code))) => {
                self.intake.skip(u64::from(ticket.wire.length), AfterSkip::FailRequest { ticket, code });
                return Step::Again;
            }
            Ok(Some(Request::Disconnect)) => self.end(Event::Disconnected),
            Err(error) => self.end(Event::Failed(error)),
        })
    }

    fn step_handshake(&mut self) -> Step {
        Step::Event(match self.handshake.step(self.intake.messages(), &self.served, &mut self.transmit) {
            Ok(handshake::Step::Next) => return Step::Again,
            Ok(handshake::Step::Starved) => return Step::Starved,
            Ok(handshake::Step::Answered) => Event::Answered,
            Ok(handshake::Step::Skip { option, reply, length }) => {
                self.intake.skip(length, AfterSkip::RefuseOption { option, reply });
                return Step::Again;
            }
            Ok(handshake::Step::TlsBegins) => {
                self.phase = Phase::Securing;
                Event::TlsBegins
            }
            Ok(handshake::Step::Done) => {
                self.phase = Phase::Transmission;
                Event::Negotiated { is_structured: self.handshake.terms().is_structured }
            }
            Ok(handshake::Step::Disconnected) => self.end(Event::Disconnected),
            Err(error) => self.end(Event::Failed(error)),
        })
    }

    /// No other event comes after `event`.
    fn end(&mut self, event: Event) -> Event {
        self.phase = Phase::Closed;
        event
    }

    /// Refuses what was skipped.
    fn refuse_skipped(&mut self, then: AfterSkip) -> Event {
        match then {
            AfterSkip::FailRequest { ticket, code } => self.refuse(&ticket, code),
            AfterSkip::RefuseOption { option, reply } => {
                reply_option(option, reply, &mut self.transmit);
                Event::Answered
            }
        }
    }

    /// Refuses a request without handing it to the owner.
    fn refuse(&mut self, ticket: &Ticket, code: ErrorCode) -> Event {
        Reply::Failed(code.into()).emit(ticket, self.handshake.terms(), &mut self.transmit);
        Event::Answered
    }

    fn give_out(&mut self, ticket: Ticket, command: Command) -> Event {
        self.outstanding += 1;
        Event::Request(ticket, command)
    }
}

#[cfg(test)]
mod tests;
