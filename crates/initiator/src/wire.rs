//! One connection of a session with its stream, or a pair with its two streams
//! (`docs/protocol/split-connections.md`).

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::Instant;
use iscsi::initiator::{Connection, Session};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::connector::BoxedStream;
use crate::error::LinkError;
use crate::limits::{SILENCE_IN_DOUBT, WRITE_SLICES_MAX};

/// Bytes and PDUs of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// PDUs of connections that are gone.
    pub(crate) gone_pdus: (u64, u64),
}

/// The role of a connection in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It logs in to an existing session, as the response half of the connection with this CID if
    /// that is given.
    Joining { answers_for: Option<u16> },
    /// It carries commands.
    Serving,
    /// It takes no new commands, and logs out when nothing is under way any more.
    Leaving,
}

/// One connection of a session with its stream, or with the two of a pair.
pub(crate) struct Wire {
    pub(crate) connection: Connection,
    pub(crate) role: Role,
    /// The stream of requests, and of responses unless there is a response half.
    stream: BoxedStream,
    response_half: Option<BoxedStream>,
    needs_flush: bool,
    /// When the first of the commands under way was given to it.
    busy_since: Instant,
}

impl Wire {
    pub(crate) fn new(stream: BoxedStream, connection: Connection, role: Role) -> Self {
        Self { connection, role, stream, response_half: None, needs_flush: false, busy_since: Instant::START }
    }

    /// Gives it the next command of the session.
    pub(crate) fn send_next(&mut self, now: Instant, session: &mut Session) {
        if session.load(self.connection.cid()).commands == 0 {
            self.busy_since = now;
        }
        self.connection.send_next(session);
    }

    /// How long nothing has come though commands are under way there; zero for a moment.
    pub(crate) fn silence(&self, now: Instant, session: &Session) -> Duration {
        let silence = now.since(self.connection.last_received().max(self.busy_since));
        let is_long = session.load(self.connection.cid()).commands > 0 && silence >= SILENCE_IN_DOUBT;
        if is_long { silence } else { Duration::ZERO }
    }

    /// Makes a pair with a connection that has logged in as its response half.
    pub(crate) fn take_response_half(&mut self, half: Self) {
        self.connection.take_response_half(half.connection);
        self.response_half = Some(half.stream);
    }

    /// Count of TCP connections: two of a pair.
    pub(crate) fn stream_count(&self) -> usize {
        1 + usize::from(self.response_half.is_some())
    }

    /// Writes what is queued, until the stream takes no more.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        session: &mut Session,
        counters: &mut Counters,
    ) -> Result<bool, LinkError> {
        let mut has_progressed = false;
        while !self.connection.is_transmit_empty() {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let count = self.connection.io_slices(&mut slices);
            let written = match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => return Ok(has_progressed),
                Poll::Ready(Ok(0)) => return Err(LinkError::Closed),
                Poll::Ready(written) => written.map_err(LinkError::Io)?,
            };
            self.connection.handle_transmitted(session, written);
            counters.bytes_sent += written as u64;
            self.needs_flush = true;
            has_progressed = true;
        }
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context)
        {
            flushed.map_err(LinkError::Io)?;
            self.needs_flush = false;
        }
        Ok(has_progressed)
    }

    /// Whether its streams can be polled without the runtime.
    pub(crate) fn can_receive_now(&self) -> bool {
        self.response_half.as_ref().unwrap_or(&self.stream).can_receive_now()
    }

    /// Reads once; what that completes is handed up before the next read. With `is_looking` it
    /// bypasses the runtime.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
        session: &mut Session,
        counters: &mut Counters,
        is_looking: bool,
    ) -> Result<bool, LinkError> {
        let mut has_progressed = false;
        let stream = match &mut self.response_half {
            None => &mut self.stream,
            Some(half) => {
                let space = self.connection.request_half_space();
                if let Some(length) = poll_read_into(&mut self.stream, context, space, is_looking)? {
                    counters.bytes_received += length as u64;
                    self.connection.handle_request_half(session, length)?;
                    has_progressed = true;
                }
                half
            }
        };
        if let Some(length) = poll_read_into(stream, context, self.connection.receive_space(), is_looking)? {
            counters.bytes_received += length as u64;
            self.connection.handle_received(now, session, length)?;
            has_progressed = true;
        }
        Ok(has_progressed)
    }
}

/// Bytes read; `None` when there are none now.
fn poll_read_into(
    stream: &mut BoxedStream,
    context: &mut Context<'_>,
    space: &mut [u8],
    is_looking: bool,
) -> Result<Option<usize>, LinkError> {
    let mut buffer = ReadBuf::new(space);
    let read = match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
        Poll::Ready(read) => read.map(|()| buffer.filled().len()),
        Poll::Pending if is_looking => stream.receive_now(space),
        Poll::Pending => return Ok(None),
    };
    match read {
        Ok(0) => Err(LinkError::Closed),
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(LinkError::Io(error)),
    }
}
