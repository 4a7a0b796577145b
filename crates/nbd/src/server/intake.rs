//! What a client sends, from bytes to messages and payloads.
//!
//! The payload of a write is received into its own buffer; only the part that arrived along with its header is copied.

use base::buffer::Buffer;

use super::ticket::Ticket;
use crate::error::ErrorCode;
use crate::inbox::Inbox;

/// The received bytes of a connection, and what the next of them are.
pub(super) struct Intake {
    inbox: Inbox,
    next: Next,
}

/// The meaning of the next received bytes.
enum Next {
    /// Messages.
    Messages,
    /// Data to be discarded, after which `then` is due.
    Skip { remaining: u64, then: AfterSkip },
    /// The payload of a write that has no buffer yet.
    Unbuffered { ticket: Ticket },
    /// The payload of a write, of which `filled` bytes are there.
    Payload { ticket: Ticket, buffer: Buffer, filled: usize },
}

/// The refusal that is due when the data of what is refused was skipped.
pub(super) enum AfterSkip {
    RefuseOption { option: u32, reply: u32 },
    FailRequest { ticket: Ticket, code: ErrorCode },
}

/// What has come.
pub(super) enum Arrived {
    /// Messages, perhaps: they are in [`Intake::messages`].
    Messages,
    /// Not enough: more must be received, or a buffer provided.
    Starved,
    /// All of the data to be discarded.
    Skipped(AfterSkip),
    /// A write with all of its payload.
    Payload(Ticket, Buffer),
}

impl Intake {
    pub(super) fn new() -> Self {
        Self { inbox: Inbox::new(), next: Next::Messages }
    }

    /// The space for the next received bytes; empty when there is none.
    pub(super) fn space(&mut self) -> &mut [u8] {
        match &mut self.next {
            Next::Payload { buffer, filled, .. } if *filled < buffer.len() => &mut buffer[*filled..],
            _ => self.inbox.space(),
        }
    }

    /// The first `count` bytes of the space were received.
    ///
    /// # Panics
    /// When that is more than the space.
    pub(super) fn handle_received(&mut self, count: usize) {
        match &mut self.next {
            Next::Payload { buffer, filled, .. } if *filled < buffer.len() => {
                assert!(count <= buffer.len() - *filled, "more bytes were received than there was space for");
                *filled += count;
            }
            _ => self.inbox.received(count),
        }
    }

    /// Whether nothing waits to be taken, and nothing has come of what is not whole.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self.next, Next::Messages) && self.inbox.waiting().is_empty()
    }

    /// Takes what has come.
    pub(super) fn poll(&mut self) -> Arrived {
        match &mut self.next {
            Next::Messages => return Arrived::Messages,
            Next::Unbuffered { .. } => return Arrived::Starved,
            Next::Payload { buffer, filled, .. } if *filled < buffer.len() => return Arrived::Starved,
            Next::Payload { .. } => {}
            Next::Skip { remaining, .. } => {
                *remaining -= self.inbox.skip(*remaining) as u64;
                if *remaining > 0 {
                    return Arrived::Starved;
                }
            }
        }
        match std::mem::replace(&mut self.next, Next::Messages) {
            Next::Messages | Next::Unbuffered { .. } => Arrived::Messages,
            Next::Skip { then, .. } => Arrived::Skipped(then),
            Next::Payload { ticket, buffer, .. } => {
                self.inbox.payload_ended(buffer.len());
                Arrived::Payload(ticket, buffer)
            }
        }
    }

    /// The messages that wait, of which the last may not be whole.
    pub(super) fn messages(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// The next `remaining` bytes are discarded, and then `then` is due.
    pub(super) fn skip(&mut self, remaining: u64, then: AfterSkip) {
        self.next = Next::Skip { remaining, then };
    }

    /// The payload of the write of `ticket` comes next, and needs a buffer.
    pub(super) fn expect_payload(&mut self, ticket: Ticket) {
        self.next = Next::Unbuffered { ticket };
    }

    /// Provides the buffer of the payload.
    ///
    /// # Panics
    /// When no write waits, or when the buffer has another length.
    pub(super) fn provide_buffer(&mut self, mut buffer: Buffer) {
        let Next::Unbuffered { ticket } = std::mem::replace(&mut self.next, Next::Messages) else {
            panic!("no write waits for a buffer")
        };
        assert_eq!(buffer.len(), ticket.wire.length as usize, "the buffer holds exactly the payload");
        let filled = self.inbox.copy_to(&mut buffer);
        self.next = Next::Payload { ticket, buffer, filled };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::WireRequest;
    use crate::wire::transmission::command;

    fn ticket(length: u32) -> Ticket {
        Ticket { cookie: 1, wire: WireRequest { command: command::WRITE, flags: 0, offset: 0, length } }
    }

    fn receive(intake: &mut Intake, bytes: &[u8]) {
        intake.space()[..bytes.len()].copy_from_slice(bytes);
        intake.handle_received(bytes.len());
    }

    #[test]
    fn a_payload_is_whole_before_the_next_message() {
        let mut intake = Intake::new();
        receive(&mut intake, b"ab");
        assert!(!intake.is_empty());
        intake.expect_payload(ticket(4));
        assert!(matches!(intake.poll(), Arrived::Starved), "it has no buffer");
        intake.provide_buffer(Buffer::zeroed(4));
        assert!(matches!(intake.poll(), Arrived::Starved) && !intake.is_empty(), "half of it is there");
        assert_eq!(intake.space().len(), 2, "nothing else is received into its buffer");
        receive(&mut intake, b"cd");
        let Arrived::Payload(_, buffer) = intake.poll() else { panic!("it is whole") };
        assert_eq!((&buffer[..], intake.is_empty()), (&b"abcd"[..], true));
        receive(&mut intake, b"next");
        assert!(matches!(intake.poll(), Arrived::Messages));
        assert_eq!(intake.messages().waiting(), b"next");
    }

    #[test]
    fn what_is_discarded_may_come_in_parts() {
        let mut intake = Intake::new();
        intake.skip(5, AfterSkip::RefuseOption { option: 1, reply: 2 });
        receive(&mut intake, b"abc");
        assert!(matches!(intake.poll(), Arrived::Starved));
        receive(&mut intake, b"denext");
        assert!(matches!(intake.poll(), Arrived::Skipped(AfterSkip::RefuseOption { option: 1, reply: 2 })));
        assert_eq!(intake.messages().waiting(), b"next");
    }
}
