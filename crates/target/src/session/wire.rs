//! One connection of a session and its stream.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::clock::Instant;
use iscsi::target as protocol;
use iscsi::target::{CloseReason, LinkId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::addresses::Addresses;
use crate::connections::Entered;
use crate::control::Control;
use crate::limits::{LIGHT_BYTES, UNREAD_PROGRESS_BYTES, WRITE_SLICES_MAX};
use crate::shared::Shared;
use crate::transport::Transport;

/// One connection.
pub(super) struct Wire {
    pub(super) link: LinkId,
    pub(super) stream: Box<dyn Transport>,
    pub(super) addresses: Addresses,
    /// The control of a connection that joined.
    pub(super) control: Option<Control>,
    pub(super) entered: Entered,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    /// While the peer takes nothing of the queued data: when it last did, and `bytes_sent` then.
    pub(super) unread: Option<(Instant, u64)>,
    pub(super) ended: Option<oneshot::Sender<CloseReason>>,
    /// Set when nothing more is received: the reason, and the deadline for the peer to take queued
    /// data.
    pub(super) closed: Option<(CloseReason, Instant)>,
}

/// The parameters of reading and writing a connection's socket.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    pub(super) may_read: bool,
    pub(super) is_looking: bool,
    /// Most bytes to write and read, besides [`LIGHT_BYTES`].
    pub(super) bytes_max: usize,
    /// When no further write begins. Bytes do not tell what they cost: in segments of 512 bytes a write takes a
    /// fifteenth of those in segments of 8 KiB, and as long.
    pub(super) until: Instant,
}

impl Wire {
    pub(super) fn new(link: LinkId, stream: Box<dyn Transport>, addresses: Addresses, entered: Entered) -> Self {
        let (bytes_received, bytes_sent) = (0, 0);
        Self {
            link,
            stream,
            addresses,
            control: None,
            entered,
            bytes_received,
            bytes_sent,
            unread: None,
            ended: None,
            closed: None,
        }
    }

    /// Notes that the peer takes no more for now.
    fn note_unread(&mut self, now: impl FnOnce() -> Instant) {
        let has_taken = |(_, sent): (Instant, u64)| self.bytes_sent - sent >= UNREAD_PROGRESS_BYTES;
        if self.unread.is_none_or(has_taken) {
            self.unread = Some((now(), self.bytes_sent));
        }
    }

    /// Writes and reads as much as is possible.
    pub(super) fn exchange(
        &mut self,
        protocol: &mut protocol::Session,
        server: &Shared,
        Exchange { may_read, is_looking, bytes_max, until }: Exchange,
        context: &mut Context<'_>,
    ) -> std::io::Result<bool> {
        let mut has_moved = false;
        let mut written = 0;
        while written < bytes_max && protocol.transmit_bytes(self.link) > 0 {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let count = protocol.io_slices(self.link, bytes_max, &mut slices);
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => {
                    self.note_unread(|| server.clock.now());
                    break;
                }
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => {
                    written += length;
                    self.bytes_sent += length as u64;
                    has_moved = true;
                    let now = server.clock.now();
                    protocol.handle_transmitted(now, self.link, length);
                    if now >= until {
                        break;
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if has_moved {
            if protocol.transmit_bytes(self.link) == 0 {
                self.unread = None;
            }
            // A buffering stream must not hold it back; for TCP this does nothing.
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
        }
        if !may_read || self.closed.is_some() {
            return Ok(has_moved);
        }
        if protocol.is_behind(self.link) {
            protocol.go_on(server.clock.now(), self.link);
            return Ok(true);
        }
        let space = protocol.receive_space(self.link);
        if space.is_empty() {
            return Ok(has_moved);
        }
        // Sent and received bytes together are one portion; a few commands are read in any case.
        let length_max = space.len().min(bytes_max.saturating_sub(written).max(LIGHT_BYTES as usize));
        let space = &mut space[..length_max];
        let mut buffer = ReadBuf::new(space);
        let length = match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Ready(result) => result.map(|()| buffer.filled().len()),
            Poll::Pending if is_looking => self.stream.receive_now(space),
            Poll::Pending => return Ok(has_moved),
        };
        match length {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.bytes_received += length as u64;
                protocol.handle_received(server.clock.now(), self.link, length);
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(has_moved),
            Err(error) => Err(error),
        }
    }
}

/// Writes the refusal of a connection, as far as its socket takes it at once: it is a hundred bytes
/// into an empty buffer. The stream is still registered with the runtime that read from it, and
/// known to be writable there.
pub(super) fn send_last_words(mut stream: Box<dyn Transport>, protocol: &protocol::Connection) {
    let mut slices = [IoSlice::new(&[]); 4];
    let count = protocol.io_slices(&mut slices);
    let mut context = Context::from_waker(std::task::Waker::noop());
    let _ = Pin::new(&mut stream).poll_write_vectored(&mut context, &slices[..count]);
    let _ = Pin::new(&mut stream).poll_flush(&mut context);
}
