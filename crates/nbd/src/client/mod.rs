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
mod export_info;
mod handshake;
mod replies;
mod requests;

use base::buffer::Buffer;
use zerocopy::IntoBytes;

use self::handshake::Handshake;
use self::replies::Replies;
use self::requests::Requests;
use crate::command::{Command, WireRequest};
use crate::error::ProtocolError;
use crate::inbox::Inbox;
use crate::limits::CLIENT_REQUESTS_MAX;
use crate::transmit::TransmitQueue;

pub use self::export_info::ExportInfo;
pub use self::handshake::ClientOptions;
pub use self::requests::{Abandoned, Completed};

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

/// The state machine of one connection.
pub struct Client<T> {
    phase: Phase,
    handshake: Handshake,
    replies: Replies,
    inbox: Inbox,
    transmit: TransmitQueue,
    requests: Requests<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Handshake,
    Transmission,
    Closed,
}

impl<T> Client<T> {
    /// A connection that just opened.
    pub fn new(options: ClientOptions) -> Self {
        Self {
            phase: Phase::Handshake,
            handshake: Handshake::new(options),
            replies: Replies::new(false, None),
            inbox: Inbox::new(),
            transmit: TransmitQueue::default(),
            requests: Requests::new(),
        }
    }

    /// The space for the next received bytes. Empty when `poll_event` must be called or the
    /// connection closed first.
    pub fn receive_space(&mut self) -> &mut [u8] {
        match self.phase {
            Phase::Closed => &mut [],
            Phase::Handshake | Phase::Transmission => self.replies.space(&mut self.inbox, &mut self.requests),
        }
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub fn handle_received(&mut self, count: usize) {
        self.replies.handle_received(count, &mut self.inbox);
    }

    /// The next event, or `None` until more is received.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        loop {
            match self.phase {
                Phase::Closed => return None,
                Phase::Handshake => match self.handshake.step(&mut self.inbox, &mut self.transmit) {
                    Ok(handshake::Step::Next) => {}
                    Ok(handshake::Step::Starved) => return None,
                    Ok(handshake::Step::Done) => return Some(self.begin_transmission()),
                    Err(error) => return Some(self.fail(error)),
                },
                Phase::Transmission => match self.replies.step(&mut self.inbox, &mut self.requests) {
                    Ok(replies::Step::Again) => {}
                    Ok(replies::Step::Starved) => return None,
                    Ok(replies::Step::Completed(completed)) => return Some(Event::Completed(completed)),
                    Err(error) => return Some(self.fail(error)),
                },
            }
        }
    }

    fn begin_transmission(&mut self) -> Event<T> {
        let info = self.handshake.info();
        self.phase = Phase::Transmission;
        self.replies = Replies::new(info.is_structured, self.handshake.allocation_context());
        Event::Connected(info.clone())
    }

    fn fail(&mut self, error: ProtocolError) -> Event<T> {
        self.phase = Phase::Closed;
        Event::Failed(error)
    }

    /// Queues a request; its [`Event::Completed`] carries `token`. `room` is the buffer that a read fills, and empty
    /// for all other commands.
    ///
    /// # Errors
    /// All three, when there is no connection to send it on or [`CLIENT_REQUESTS_MAX`] are outstanding.
    ///
    /// # Panics
    /// When `room` is not as long as what is to be read.
    pub fn submit(&mut self, command: Command, room: Buffer, token: T) -> Result<(), (Command, Buffer, T)> {
        if self.phase != Phase::Transmission || self.outstanding() >= CLIENT_REQUESTS_MAX {
            return Err((command, room, token));
        }
        let wire = WireRequest::of(&command);
        let read_bytes = if let Command::Read { length, .. } = command { length as usize } else { 0 };
        assert_eq!(room.len(), read_bytes, "the buffer is as long as what is read");
        let stream_position = self.transmit.queued_bytes();
        let cookie = self.requests.add(&wire, room, token, stream_position);
        self.transmit.push(wire.to_raw(cookie).as_bytes());
        if let Command::Write { buffer, .. } = command {
            self.transmit.push_payload(buffer);
        }
        Ok(())
    }

    /// Queues `NBD_CMD_DISC`. The owner sends the queue, then closes; the server answers the
    /// outstanding requests first.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Transmission {
            self.transmit.push(WireRequest::DISCONNECT.to_raw(0).as_bytes());
        }
    }

    /// Gives up the connection. Returns every outstanding request, in no particular order.
    pub fn abandon(&mut self) -> Vec<Abandoned<T>> {
        self.phase = Phase::Closed;
        self.requests.abandon(self.transmit.sent_bytes())
    }

    /// The queue of bytes to be sent.
    pub fn transmit(&mut self) -> &mut TransmitQueue {
        &mut self.transmit
    }

    /// Requests submitted and not yet over.
    pub fn outstanding(&self) -> usize {
        self.requests.count()
    }
}

#[cfg(test)]
mod tests;
