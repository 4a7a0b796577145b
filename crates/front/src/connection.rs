//! One connection of the NBD server: it parses requests, submits them to the device, and sends the
//! answers.
//!
//! All of it is one future over one stream. At each wake-up it takes received bytes, starts the
//! requests that may start, collects finished ones, and sends all queued answers with one vectored
//! write. Answers that the device has at once never leave this loop.
//!
//! What it keeps true:
//! - At most [`REQUESTS_IN_FLIGHT_MAX`] requests and, but for one request, [`BYTES_IN_FLIGHT_MAX`]
//!   bytes are under way, including replies that the client has not taken; beyond that nothing is
//!   read from the stream and the client waits.
//! - Its buffers are within its share ([`Holdings`]), so that they delay no other connection.
//! - After a portion of requests all sockets are looked at before it goes on, however fast the
//!   device and the client are.
//! - After the shutdown signal it reads no more requests, finishes those under way, sends the
//!   answers, and closes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use base::buffer::{Acquire, Buffer};
use block::layer::submitter::SubmitterLayer;
use block::losses::LossReader;
use block::{Error, SharedDevice};
use nbd::Command;
use nbd::server::{Event, Reply, Server, Ticket, TlsPolicy};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::{ConnectionTurns, DeviceTurns, cost_of};
use crate::carry_out::{self, CommandContext, Finished, Job, Running, Started};
use crate::counters::RequestKind;
use crate::error_table::to_failure;
use crate::flushes::Flushes;
use crate::handshake_turn::HandshakeTurn;
use crate::handshakes::Handshake;
use crate::holdings::{AwaitedPlace, Holdings};
use crate::in_flight::InFlight;
use crate::limits::{
    BYTES_IN_FLIGHT_MAX, HANDSHAKE_TIME_MAX, REQUESTS_IN_FLIGHT_MAX, SHUTDOWN_TIME_MAX, SLICES_PER_WRITE_MAX,
    TURN_BYTES, TURN_BYTES_BESIDE_LIGHT, TURN_BYTES_HANDSHAKE, TURN_REFUSED_BYTES, TURN_REQUEST_BYTES,
};
use crate::long_requests::{WorkShare, is_long};
use crate::next_turn::NextTurn;
use crate::open_connection::OpenConnection;
use crate::shared::Shared;
use crate::tls::{Channel, Tls};

/// A future without a result that lives as long as its connection.
type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Connection<S> {
    stream: Channel<S>,
    /// Whether the stream holds back no written bytes.
    is_flushed: bool,
    /// Whether the client waits for the answer after which it begins with TLS.
    is_securing: bool,
    shared: Arc<Shared>,
    /// The device of the export, as this connection's own submitter.
    device: SharedDevice,
    /// Counts the connection, with the size reported to the client.
    open: OpenConnection,
    /// Whether a new size is reported to the client.
    follows_size: bool,
    server: Server,
    running: InFlight<Running>,
    /// `None` during the handshake: who has not finished it is no client yet, and asks for no report.
    flushes: Option<Flushes>,
    work_share: WorkShare,
    turns: ConnectionTurns,
    /// Bytes received and of requests begun in this turn, at least [`TURN_REQUEST_BYTES`] for each
    /// request; beside other connections also the bytes sent.
    turn_bytes: u64,
    /// Cost of the reads and writes that the device answered at once in this turn: they arrived at
    /// once, too.
    turn_cost: u64,
    next_turn: NextTurn,
    /// The buffer for which the next request waits.
    awaited: Option<Awaited>,
    holdings: Holdings,
    /// Bytes of buffers of requests in the device.
    bytes_running: u64,
    shutdown: Signal,
    /// The deadline of the handshake; `None` after it, or when it has no deadline.
    handshake_end: Option<Signal>,
    /// `None` once the handshake is over.
    handshake_turn: Option<HandshakeTurn>,
    /// Its place among the connections of the server, once the handshake is over.
    place: Option<OwnedSemaphorePermit>,
    is_closing: bool,
}

/// Ready when a handshake must end: at its deadline, or to make room.
fn end_of(mut handshake: Handshake) -> Signal {
    Box::pin(async move {
        // Either ends the connection.
        let _ = tokio::time::timeout(HANDSHAKE_TIME_MAX, handshake.has_to_give_way()).await;
    })
}

/// A buffer that is not available at once.
struct Awaited {
    length: usize,
    purpose: Purpose,
    step: AwaitedStep,
}

/// The step of waiting for a buffer.
enum AwaitedStep {
    /// Waits until less of the connection's own is under way.
    Room,
    /// Waits for a place among the large requests of all connections.
    Place(AwaitedPlace),
    /// Waits for a buffer of the pool, which has enough for all shares; ending connections may hold
    /// some for a moment.
    Pool(Acquire),
}

/// The use of a buffer.
enum Purpose {
    /// The payload of an arriving write.
    Payload,
    /// The data of a read.
    Read(Ticket, Command),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S, open: OpenConnection, shutdown: Signal, handshake: Option<Handshake>) -> Self {
        let shared = &open.shared;
        let tls = shared.options.tls.as_ref().map_or(TlsPolicy::Off, Tls::policy);
        let server = Server::new(Arc::new(shared.export(&open.geometry))).with_tls(tls);
        let handshake_turn = Some(HandshakeTurn::new(shared.handshake_line.clone()));
        Self { handshake_end: handshake.map(end_of), handshake_turn, ..Self::with(server, stream, open, shutdown) }
    }

    /// A connection whose client needs no handshake: it knows the export, and gets its size in
    /// another way.
    pub(crate) fn negotiated(stream: S, open: OpenConnection, shutdown: Signal) -> Self {
        let server = Server::transmitting(Arc::new(open.shared.export(&open.geometry)));
        let flushes = Some(open.shared.flushes());
        Self { follows_size: true, flushes, ..Self::with(server, stream, open, shutdown) }
    }

    fn with(server: Server, stream: S, open: OpenConnection, shutdown: Signal) -> Self {
        let shared = Arc::clone(&open.shared);
        let holdings = shared.holdings();
        let device = Arc::new(SubmitterLayer::new(Arc::clone(&shared.exported.device)));
        let turns = ConnectionTurns::new(Arc::clone(&shared.exported.admission), device.submitter());
        let next_turn = NextTurn::new(Arc::clone(&shared.turn_line));
        Self {
            flushes: None,
            stream: Channel::Clear(stream),
            is_flushed: true,
            is_securing: false,
            shared,
            device,
            open,
            follows_size: false,
            server,
            running: InFlight::default(),
            work_share: WorkShare::default(),
            turns,
            turn_bytes: 0,
            turn_cost: 0,
            next_turn,
            awaited: None,
            holdings,
            bytes_running: 0,
            shutdown,
            handshake_end: None,
            handshake_turn: None,
            place: None,
            is_closing: false,
        }
    }

    /// Serves until the client or the shutdown signal ends it.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll(context)).await?;
        let shutdown = std::future::poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context));
        // TLS has closing messages, which a client need not take.
        tokio::time::timeout(SHUTDOWN_TIME_MAX, shutdown).await.unwrap_or(Ok(()))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.handshake_turn.is_none() {
            return self.poll_turn(context);
        }
        let begun = Instant::now();
        let polled = self.poll_turn(context);
        if let Some(turn) = &self.handshake_turn {
            turn.note_work(begun.elapsed());
        }
        polled
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.next_turn.poll(context).is_pending() {
            return Poll::Pending;
        }
        if !self.may_begin(context) {
            self.check_deadlines(context)?;
            return Poll::Pending;
        }
        if !self.is_closing && self.shutdown.as_mut().poll(context).is_ready() {
            self.server.begin_shutdown();
            self.is_closing = true;
        }
        (self.turn_bytes, self.turn_cost) = (0, 0);
        if self.follows_size && self.open.follow() {
            self.server.resize(self.open.geometry.size_bytes);
        }
        loop {
            let mut has_progressed = self.collect_finished(context);
            has_progressed |= self.collect_buffer(context);
            has_progressed |= self.take_requests()?;
            has_progressed |= self.send(context)?;
            has_progressed |= self.receive(context)?;
            if self.is_closing && self.server.outstanding() == 0 && self.server.transmit().is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !has_progressed {
                self.end_handshake_turn(context);
                // Last, so that a deadline set in this call wakes the task.
                self.check_deadlines(context)?;
                return Poll::Pending;
            }
            if self.is_turn_over() {
                self.next_turn.wait(context);
                self.check_deadlines(context)?;
                return Poll::Pending;
            }
        }
    }

    /// Most bytes of a turn.
    fn turn_bytes_max(&self) -> u64 {
        match (&self.handshake_turn, self.turns.is_beside_light()) {
            (Some(_), _) => TURN_BYTES_HANDSHAKE,
            (None, true) => TURN_BYTES_BESIDE_LIGHT,
            (None, false) => TURN_BYTES,
        }
    }

    fn is_turn_over(&self) -> bool {
        self.turn_bytes >= self.turn_bytes_max()
    }

    /// Whether it may have a turn; during its handshake only when its turn among all handshakes has
    /// come.
    fn may_begin(&mut self, context: &mut Context<'_>) -> bool {
        self.handshake_turn.as_mut().is_none_or(|turn| turn.begin(context))
    }

    /// Lets other handshakes go on, after a look at the sockets if this one did some work.
    fn end_handshake_turn(&mut self, context: &Context<'_>) {
        let Some(turn) = &mut self.handshake_turn else { return };
        if self.turn_bytes > 0 { self.next_turn.wait(context) } else { turn.rest() }
    }

    fn check_deadlines(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.holdings.is_overdue(context) {
            self.shared.counters.protocol_errors.fetch_add(1, Ordering::Relaxed);
            let words = "the client keeps a large request that others wait for";
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        let Some(end) = &mut self.handshake_end else { return Ok(()) };
        if end.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        self.shared.counters.protocol_errors.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not finish the handshake in time"))
    }

    /// Answers the requests that the device has finished.
    fn collect_finished(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_progressed = false;
        while let Poll::Ready(Some(finished)) = self.running.poll_ended(context) {
            self.finish(finished);
            has_progressed = true;
        }
        while let Some(flushes) = &mut self.flushes
            && let Some((tickets, result)) = flushes.poll(&self.device, context)
        {
            for ticket in tickets {
                self.answer_flush(ticket, &result);
            }
            has_progressed = true;
        }
        has_progressed
    }

    fn answer_flush(&mut self, ticket: Ticket, result: &Result<(), Error>) {
        let reply = match result {
            Ok(()) => Reply::Done,
            Err(error) => {
                self.shared.counters.of(RequestKind::Flush).count_error();
                Reply::Failed(to_failure(error))
            }
        };
        self.server.complete(ticket, reply);
    }

    /// Continues the request that waited for a buffer.
    fn collect_buffer(&mut self, context: &mut Context<'_>) -> bool {
        let Some(awaited) = &mut self.awaited else { return false };
        if matches!(awaited.step, AwaitedStep::Room) {
            self.holdings.choose_share();
        }
        loop {
            match &mut awaited.step {
                AwaitedStep::Room if !self.holdings.has_room(awaited.length) => return false,
                AwaitedStep::Room if self.holdings.is_large(awaited.length) => {
                    awaited.step = AwaitedStep::Place(self.shared.large_place());
                }
                AwaitedStep::Room => {
                    self.holdings.take(awaited.length);
                    awaited.step = AwaitedStep::Pool(self.shared.pool.acquire(awaited.length));
                }
                AwaitedStep::Place(place) => {
                    let Poll::Ready(place) = place.as_mut().poll(context) else { return false };
                    self.holdings.take_large(place, matches!(awaited.purpose, Purpose::Payload));
                    awaited.step = AwaitedStep::Pool(self.shared.pool.acquire(awaited.length));
                }
                AwaitedStep::Pool(acquire) => {
                    let Poll::Ready(buffer) = Pin::new(acquire).poll(context) else { return false };
                    if let Some(awaited) = self.awaited.take() {
                        self.use_buffer(buffer, awaited.purpose);
                    }
                    return true;
                }
            }
        }
    }

    /// Parses received requests, as many as may be under way.
    fn take_requests(&mut self) -> io::Result<bool> {
        let mut has_progressed = false;
        while self.awaited.is_none() && self.has_room() && !self.is_turn_over() {
            let Some(event) = self.server.poll_event() else { break };
            has_progressed = true;
            match event {
                Event::TlsBegins => {
                    self.is_securing = true;
                    // A TLS handshake is long work.
                    self.turn_bytes += TURN_BYTES;
                }
                Event::Negotiated { .. } => self.finish_handshake()?,
                Event::BufferNeeded { length } => self.with_buffer(length, Purpose::Payload),
                Event::Request(ticket, command @ Command::Read { length, .. }) => {
                    self.with_buffer(length as usize, Purpose::Read(ticket, command));
                }
                Event::Request(ticket, command) => self.start(ticket, command, Buffer::empty()),
                Event::Answered => self.turn_bytes += TURN_REFUSED_BYTES,
                Event::Disconnected => {
                    self.is_closing = true;
                    self.on_losses(LossReader::note_leaving);
                }
                Event::Failed(error) => {
                    self.shared.counters.protocol_errors.fetch_add(1, Ordering::Relaxed);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        Ok(has_progressed)
    }

    /// Notes something about what the client has been told of losses, if it is one already.
    fn on_losses(&mut self, note: impl FnOnce(&mut LossReader)) {
        if let Some(flushes) = &mut self.flushes {
            note(flushes.losses());
        }
    }

    /// Takes the place of a connection that has finished the handshake, if one is free.
    fn finish_handshake(&mut self) -> io::Result<()> {
        self.handshake_turn = None;
        if self.handshake_end.take().is_some() {
            self.place = Arc::clone(&self.shared.places).try_acquire_owned().ok();
            if self.place.is_none() {
                self.shared.refuse();
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "all places were taken meanwhile"));
            }
        }
        self.flushes = Some(self.shared.flushes());
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        let bytes = self.bytes_running + self.server.transmit().waiting_bytes();
        self.server.outstanding() < REQUESTS_IN_FLIGHT_MAX && bytes < BYTES_IN_FLIGHT_MAX
    }

    /// Gets a buffer, at once or later.
    fn with_buffer(&mut self, length: usize, purpose: Purpose) {
        self.holdings.choose_share();
        if !self.holdings.is_large(length)
            && self.holdings.has_room(length)
            && let Some(buffer) = self.shared.pool.try_acquire(length)
        {
            self.holdings.take(length);
            self.use_buffer(buffer, purpose);
        } else {
            self.awaited = Some(Awaited { length, purpose, step: AwaitedStep::Room });
        }
    }

    fn use_buffer(&mut self, buffer: Buffer, purpose: Purpose) {
        match purpose {
            Purpose::Payload => self.server.provide_buffer(buffer),
            Purpose::Read(ticket, command) => self.start(ticket, command, buffer),
        }
    }

    fn start(&mut self, ticket: Ticket, command: Command, buffer: Buffer) {
        let (kind, bytes) = carry_out::describe(&command);
        self.shared.counters.of(kind).count_request(bytes);
        if matches!(command, Command::Flush) {
            self.turn_bytes += TURN_REQUEST_BYTES;
            self.shared.long_requests.note_other();
            if let Some(flushes) = &mut self.flushes {
                flushes.join(ticket);
            }
            return;
        }
        if let Command::Write { buffer, .. } = &command {
            self.holdings.note_received(buffer.len());
        }
        self.turn_bytes += match kind {
            // Its bytes were counted when they arrived.
            RequestKind::Write => TURN_REQUEST_BYTES.saturating_sub(bytes),
            // Pieces of long requests have turns of their own.
            _ if is_long(&command) => TURN_REQUEST_BYTES,
            _ => bytes.max(TURN_REQUEST_BYTES),
        };
        let bytes = carry_out::held_bytes(&self.open.geometry, &command);
        self.bytes_running += bytes;
        let device_turns = kind.moves_data().then(|| self.take_device_turns()).flatten();
        let job = Job { ticket, kind, bytes, buffer_bytes: carry_out::buffer_bytes(&command), turn: None, part: None };
        let commands = CommandContext {
            device: &self.device,
            geometry: &self.open.geometry,
            turns: &self.shared.exported.turns,
            work_share: &self.work_share,
            long_requests: &self.shared.long_requests,
            device_turns,
        };
        match carry_out::start(&commands, job, command, buffer) {
            Started::Finished(finished) => {
                self.turn_cost += cost_of(finished.job.bytes);
                self.finish(finished);
            }
            Started::Running(running) => self.running.push(running),
        }
    }

    /// The turns for a read or write, given all that is under way; `None` if it needs none.
    fn take_device_turns(&mut self) -> Option<DeviceTurns> {
        let requests = self.server.outstanding() as u64;
        self.turns.enter(requests * cost_of(0) + self.bytes_running + self.turn_cost)
    }

    fn finish(&mut self, finished: Finished) {
        let Finished { job, reply } = finished;
        self.bytes_running -= job.bytes;
        if job.kind.moves_data() {
            self.turns.leave();
        }
        if matches!(reply, Reply::Failed(_)) {
            self.shared.counters.of(job.kind).count_error();
        }
        let is_read = matches!(reply, Reply::Data(_));
        self.server.complete(job.ticket, reply);
        match job.buffer_bytes {
            Some(length) if is_read => self.holdings.note_reply(length, self.server.transmit().waiting_bytes()),
            Some(length) => self.holdings.release(length),
            None => {}
        }
    }

    fn send(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let bytes_max = self.turns.is_beside_light().then_some(TURN_BYTES_BESIDE_LIGHT as usize);
        let transmit = self.server.transmit();
        if transmit.is_empty() {
            return self.flush(context);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
        let used = transmit.io_slices_of(bytes_max.unwrap_or(usize::MAX), &mut slices);
        match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..used]) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(count) => {
                let count = count?;
                transmit.handle_transmitted(count);
                self.is_flushed = false;
                self.holdings.note_sent(count);
                if self.turns.takes_turns() {
                    self.turn_bytes += count as u64;
                }
                Ok(true)
            }
        }
    }

    /// After all is written: flushes the stream, and starts TLS where the client waits for that.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        if !self.is_flushed {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Pending => return Ok(false),
                Poll::Ready(flushed) => flushed?,
            }
            self.is_flushed = true;
        }
        self.on_losses(LossReader::note_written);
        if !std::mem::take(&mut self.is_securing) {
            return Ok(false);
        }
        let Some(tls) = &self.shared.options.tls else { return Ok(false) };
        self.stream.secure(tls);
        self.server.secured();
        Ok(true)
    }

    fn receive(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let is_beside_light = self.turns.is_beside_light();
        let space = if self.is_closing { &mut [] } else { self.server.receive_space() };
        if space.is_empty() {
            return Ok(false);
        }
        let bytes_max = if is_beside_light { TURN_BYTES_BESIDE_LIGHT as usize } else { usize::MAX };
        let length = space.len().min(bytes_max);
        let mut space = ReadBuf::new(&mut space[..length]);
        // Before it is received: what comes after this has been sent after it.
        let is_due = self.flushes.as_mut().is_some_and(|flushes| flushes.losses().poll_due(context));
        let received = Pin::new(&mut self.stream).poll_read(context, &mut space);
        let count = space.filled().len();
        if received?.is_pending() {
            if is_due && self.server.is_between_requests() {
                self.on_losses(LossReader::note_all_received);
            }
            return Ok(false);
        }
        if count == 0 {
            self.is_closing = true;
            return Ok(true);
        }
        self.turn_bytes += count as u64;
        self.server.handle_received(count);
        self.on_losses(LossReader::note_received);
        Ok(true)
    }
}
