//! An NBD export as a block device.
//!
//! A driver future owns the stream; the device queues requests for it and wakes it. Many requests
//! are under way at once, on one connection. When that is lost, every outstanding request ends at
//! once: with *gone* if the server cannot have seen it or it changes nothing, with *outcome
//! unknown* otherwise. There is no reconnection: only the caller knows which requests are safe to
//! repeat.
//! requests safely knows more than this does.
//!
//! | the server lacks | this device |
//! |---|---|
//! | flush | reports no volatile cache, and flushes are no-ops |
//! | FUA | flushes after the write |
//! | trim | does not discard |
//! | write zeroes | fails them with *unsupported* |
//! | `base:allocation` | reports everything as allocated |
//! | whole 512-byte blocks | hides the bytes of the last, partial one |

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::buffer::Buffer;
use base::range::ByteRange;
use block::completion::SlotSender;
use block::{
    Completion, Device, Error, ErrorKind, Event, EventHub, EventReceiver, Extent, ExtentKind, Geometry, Hints,
    Identity, Operation, Request, Response,
};
use nbd::Command;
use nbd::client::{Client, ClientOptions, Completed, Event as ClientEvent, ExportInfo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::address::ListenAddress;
use crate::error_table::to_error;
use crate::limits::{CLIENT_PIECE_BYTES, SLICES_PER_WRITE_MAX};

/// A block device over an NBD connection. Dropping it disconnects in order once all requests are
/// answered.
pub struct NbdClient {
    shared: Arc<Shared>,
    info: ExportInfo,
    geometry: Geometry,
    identity: Identity,
}

/// The driver of a client's connection. Ready when the connection has ended; dropping it ends every
/// outstanding request.
pub type ClientDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    state: Mutex<State>,
    events: EventHub,
}

/// Guarded by `Shared::state`; sections are short and never await. Completions are sent after it is released.
struct State {
    client: Client<Token>,
    driver: Option<Waker>,
    /// The reason why the connection has ended.
    loss: Option<String>,
    is_leaving: bool,
}

/// The data for completing a request.
struct Token {
    target: Target,
    kind: Kind,
    offset: u64,
    /// Bytes requested.
    length: u64,
    /// Whether to flush before completing: FUA for a server without it.
    needs_flush: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Mutation,
    Flush,
    Extents,
}

enum Target {
    Whole(SlotSender),
    /// One of several commands of one request.
    Piece(Arc<Mutex<Pieces>>),
}

/// A request that took several commands.
struct Pieces {
    remaining: usize,
    error: Option<Error>,
    sender: Option<SlotSender>,
}

impl NbdClient {
    /// Connects to a server's default export. The second value is the driver: it must be polled
    /// while the device is used.
    ///
    /// # Errors
    /// `Gone` when no server answers or the connection is lost, `Unsupported` when the server
    /// refuses or does not speak NBD.
    pub async fn connect(address: &ListenAddress) -> Result<(Arc<Self>, ClientDriver), Error> {
        Self::connect_to(address, "").await
    }

    /// Like [`NbdClient::connect`], to the export of that name.
    ///
    /// # Errors
    /// As [`NbdClient::connect`].
    pub async fn connect_to(address: &ListenAddress, export_name: &str) -> Result<(Arc<Self>, ClientDriver), Error> {
        let options = ClientOptions { export_name: export_name.to_owned(), ..ClientOptions::default() };
        let gone = |error| Error::with_source(ErrorKind::Gone, format!("cannot connect to {address}"), error);
        let name = address.to_string();
        match address {
            ListenAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(gone)?;
                let (device, driver) = Self::over(stream, options, &name).await?;
                Ok((device, Box::pin(driver)))
            }
            ListenAddress::Tcp(tcp) => {
                let stream = TcpStream::connect(tcp).await.map_err(gone)?;
                stream.set_nodelay(true).map_err(gone)?;
                let (device, driver) = Self::over(stream, options, &name).await?;
                Ok((device, Box::pin(driver)))
            }
        }
    }

    /// Negotiates over any stream; `name` describes its destination in messages and in the
    /// identity.
    ///
    /// # Errors
    /// As [`NbdClient::connect`].
    pub async fn over<S>(
        stream: S,
        options: ClientOptions,
        name: &str,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + use<S>), Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let state = State { client: Client::new(options), driver: None, loss: None, is_leaving: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), events: EventHub::new() });
        let mut driver = Driver { stream, shared: Arc::clone(&shared) };
        let info = driver.negotiate().await.map_err(|error| {
            let kind =
                if error.kind() == io::ErrorKind::InvalidData { ErrorKind::Unsupported } else { ErrorKind::Gone };
            Error::with_source(kind, format!("no NBD connection to {name}: {error}"), error)
        })?;
        let geometry = to_geometry(&info);
        let identity = Identity { target: format!("nbd:{name}"), unit: info.name.clone(), serial: String::new() };
        Ok((Arc::new(Self { shared, info, geometry, identity }), driver.run()))
    }

    /// The negotiated properties of the export.
    pub fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// The commands of a request within the export, and the buffer that it reads into; or its response where no command
    /// is needed.
    fn commands(&self, request: Request, range: ByteRange) -> Result<(Vec<Command>, Buffer), Response> {
        let abilities = &self.info.abilities;
        let offset = range.offset;
        let commands = match request.operation {
            _ if range.is_empty() && !matches!(request.operation, Operation::Flush) => {
                return Err(done_without_asking(request.operation));
            }
            Operation::Flush if !abilities.can_flush => return Err(Response::done(Buffer::empty())),
            Operation::WriteZeroes { .. } if !abilities.can_write_zeroes => {
                let error = Error::new(ErrorKind::Unsupported, "the NBD server cannot write zeroes without a payload");
                return Err(Response::failed(error, Buffer::empty()));
            }
            Operation::Extents { .. } if !self.info.has_block_status => {
                let extents = vec![Extent { range, kind: ExtentKind::Data }];
                return Err(Response { extents, ..Response::done(Buffer::empty()) });
            }
            Operation::Flush => vec![Command::Flush],
            Operation::Read { buffer } => {
                return Ok((vec![Command::Read { offset, length: range.length as u32 }], buffer));
            }
            Operation::Write { buffer, fua } => {
                vec![Command::Write { offset, buffer, fua: fua && abilities.can_fua }]
            }
            Operation::Extents { length } => {
                let length = length.min(CLIENT_PIECE_BYTES) as u32;
                vec![Command::BlockStatus { offset, length, only_first: false }]
            }
            Operation::Discard { .. } => {
                let trim = |(offset, length)| Command::Trim { offset, length, fua: false };
                pieces(range).map(trim).collect()
            }
            Operation::WriteZeroes { fua, may_discard, .. } => {
                let fua = fua && abilities.can_fua;
                let zero =
                    |(offset, length)| Command::WriteZeroes { offset, length, fua, may_discard, only_if_fast: false };
                pieces(range).map(zero).collect()
            }
        };
        Ok((commands, Buffer::empty()))
    }
}

/// The response to an operation on no bytes, which NBD does not allow.
fn done_without_asking(operation: Operation) -> Response {
    match operation {
        Operation::Read { buffer } | Operation::Write { buffer, .. } => Response::done(buffer),
        _ => Response::done(Buffer::empty()),
    }
}

/// Cuts a range into pieces that fit a command.
fn pieces(range: ByteRange) -> impl Iterator<Item = (u64, u32)> {
    let starts = (range.offset..range.end()).step_by(CLIENT_PIECE_BYTES as usize);
    starts.map(move |start| (start, (range.end() - start).min(CLIENT_PIECE_BYTES) as u32))
}

fn to_geometry(info: &ExportInfo) -> Geometry {
    let logical_block_bytes = info.block_size.min.max(512);
    let transfer_bytes_max = info.block_size.payload_max.min(nbd::limits::PAYLOAD_BYTES_MAX);
    Geometry {
        size_bytes: info.size_bytes - info.size_bytes % u64::from(logical_block_bytes),
        logical_block_bytes,
        physical_block_bytes: info.block_size.preferred.max(logical_block_bytes),
        is_write_cache_volatile: info.abilities.can_flush,
        is_read_only: info.abilities.is_read_only,
        discard_granularity_bytes: info.abilities.can_trim.then_some(info.block_size.preferred),
        discard_reads_zeroes: false,
        transfer_bytes_max: transfer_bytes_max - transfer_bytes_max % logical_block_bytes,
        hints: Hints::default(),
    }
}

impl Device for NbdClient {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = match self.geometry.check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        let (kind, wants_fua) = match &request.operation {
            Operation::Read { .. } => (Kind::Read, false),
            Operation::Write { fua, .. } | Operation::WriteZeroes { fua, .. } => (Kind::Mutation, *fua),
            Operation::Discard { .. } => (Kind::Mutation, false),
            Operation::Flush => (Kind::Flush, false),
            Operation::Extents { .. } => (Kind::Extents, false),
        };
        let (commands, mut room) = match self.commands(request, range) {
            Ok(commands) => commands,
            Err(response) => return Completion::ready(response),
        };
        let needs_flush = wants_fua && !self.info.abilities.can_fua && self.info.abilities.can_flush;
        let (completion, sender) = Completion::slot();
        let mut targets = to_targets(sender, commands.len());
        let mut refused = Vec::new();
        let driver = {
            let mut state = self.shared.lock();
            for command in commands {
                let Some(target) = targets.next() else { break };
                let token = Token { target, kind, offset: range.offset, length: range.length, needs_flush };
                refused.extend(state.client.submit(command, std::mem::take(&mut room), token).err());
            }
            if refused.is_empty() { state.driver.take() } else { None }
        };
        for (command, room, token) in refused {
            let buffer = if let Command::Write { buffer, .. } = command { buffer } else { room };
            token.complete(Response::failed(self.shared.refusal(), buffer));
        }
        driver.into_iter().for_each(Waker::wake);
        completion
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.events.subscribe()
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        let driver = {
            let mut state = self.shared.lock();
            state.is_leaving = true;
            state.driver.take()
        };
        driver.into_iter().for_each(Waker::wake);
    }
}

/// The target of each of the `count` commands of a request: all of it, or a piece.
fn to_targets(sender: SlotSender, count: usize) -> impl Iterator<Item = Target> {
    let (whole, pieces) = if count == 1 {
        (Some(Target::Whole(sender)), None)
    } else {
        let pieces = Pieces { remaining: count, error: None, sender: Some(sender) };
        (None, Some(Arc::new(Mutex::new(pieces))))
    };
    let pieces = pieces.map(move |pieces| std::iter::repeat_n(pieces, count).map(Target::Piece));
    whole.into_iter().chain(pieces.into_iter().flatten())
}

impl Token {
    fn complete(self, response: Response) {
        match self.target {
            Target::Whole(sender) => sender.complete(response),
            Target::Piece(pieces) => {
                let mut pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
                pieces.remaining -= 1;
                if let Err(error) = response.result {
                    pieces.error.get_or_insert(error);
                }
                if pieces.remaining == 0
                    && let Some(sender) = pieces.sender.take()
                {
                    let error = pieces.error.take();
                    drop(pieces);
                    let result = error.map_or(Ok(()), Err);
                    sender.complete(Response { result, ..Response::done(Buffer::empty()) });
                }
            }
        }
    }

    /// The response to a request whose answer will not come.
    fn lost(&self, was_sent: bool, reason: &str, buffer: Buffer) -> Response {
        let is_unknown = was_sent && matches!(self.kind, Kind::Mutation | Kind::Flush);
        let kind = if is_unknown { ErrorKind::OutcomeUnknown } else { ErrorKind::Gone };
        Response::failed(Error::new(kind, format!("the NBD connection was lost: {reason}")), buffer)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a refused request.
    fn refusal(&self) -> Error {
        match &self.lock().loss {
            Some(reason) => Error::new(ErrorKind::Gone, format!("the NBD connection was lost: {reason}")),
            None => Error::new(ErrorKind::Busy, "too many requests are outstanding on the NBD connection"),
        }
    }

    /// Ends every outstanding request.
    fn lose(&self, reason: &str) {
        let abandoned = {
            let mut state = self.lock();
            if state.loss.is_some() {
                return;
            }
            state.loss = Some(reason.to_owned());
            state.client.abandon()
        };
        for lost in abandoned {
            let response = lost.token.lost(lost.was_sent, reason, lost.buffer);
            lost.token.complete(response);
        }
        self.events.publish(&Event::Offline);
    }
}

/// The owner of the stream. Dropping it ends all waiting requests.
struct Driver<S> {
    stream: S,
    shared: Arc<Shared>,
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.shared.lose("it was closed");
    }
}

/// What the received bytes have produced: the export's size and flags, and completed commands.
#[derive(Default)]
struct Received {
    info: Option<ExportInfo>,
    completed: Vec<Completed<Token>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    async fn negotiate(&mut self) -> io::Result<ExportInfo> {
        let mut received = Received::default();
        poll_fn(|context| {
            let ended = self.poll(context, &mut received);
            match (received.info.take(), ended) {
                (Some(info), _) => Poll::Ready(Ok(info)),
                (None, Poll::Ready(Ok(()))) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                (None, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (None, Poll::Pending) => Poll::Pending,
            }
        })
        .await
    }

    async fn run(mut self) {
        let mut received = Received::default();
        let ended = poll_fn(|context| {
            let ended = self.poll(context, &mut received);
            received.completed.drain(..).for_each(tell);
            ended
        })
        .await;
        match ended {
            Ok(()) => self.shared.lose("it was closed"),
            Err(error) => self.shared.lose(&error.to_string()),
        }
        // The peer may be gone already; no caller waits for this.
        let _ = poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await;
    }

    /// Moves bytes in both directions until there is no progress. Ready when the connection has
    /// ended, in order or not.
    fn poll(&mut self, context: &mut Context<'_>, received: &mut Received) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        match &mut state.driver {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        loop {
            collect(&mut state, received)?;
            if state.is_leaving && state.client.outstanding() == 0 {
                state.client.disconnect();
                state.is_leaving = false;
                state.loss = Some("the device was dropped".to_owned());
            }
            let mut has_progressed = send(&mut self.stream, &mut state, context)?;
            if state.loss.is_some() && state.client.transmit().is_empty() {
                return Poll::Ready(Ok(()));
            }
            has_progressed |= receive(&mut self.stream, &mut state, context)?;
            if !has_progressed {
                return Poll::Pending;
            }
        }
    }
}

/// Handles the events of the bytes received so far.
fn collect(state: &mut State, received: &mut Received) -> io::Result<()> {
    while let Some(event) = state.client.poll_event() {
        match event {
            ClientEvent::Connected(info) => received.info = Some(info),
            ClientEvent::Failed(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            ClientEvent::Completed(completed) if completed.token.needs_flush && completed.result.is_ok() => {
                let token = Token { needs_flush: false, ..completed.token };
                if let Err((_, _, token)) = state.client.submit(Command::Flush, Buffer::empty(), token) {
                    // A slot has just been freed, so the connection is ending: the write is not
                    // known to be durable.
                    let failure = nbd::Failure::from(nbd::ErrorCode::InputOutput);
                    let (buffer, extents) = (Buffer::empty(), Vec::new());
                    received.completed.push(Completed { token, result: Err(failure), buffer, extents });
                }
            }
            ClientEvent::Completed(completed) => received.completed.push(completed),
        }
    }
    Ok(())
}

fn send<S: AsyncWrite + Unpin>(stream: &mut S, state: &mut State, context: &mut Context<'_>) -> io::Result<bool> {
    let transmit = state.client.transmit();
    if transmit.is_empty() {
        return Ok(false);
    }
    let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
    let used = transmit.io_slices(&mut slices);
    match Pin::new(stream).poll_write_vectored(context, &slices[..used]) {
        Poll::Pending => Ok(false),
        Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(count) => {
            transmit.handle_transmitted(count?);
            Ok(true)
        }
    }
}

fn receive<S: AsyncRead + Unpin>(stream: &mut S, state: &mut State, context: &mut Context<'_>) -> io::Result<bool> {
    let mut space = ReadBuf::new(state.client.receive_space());
    if space.capacity() == 0 {
        return Ok(false);
    }
    match Pin::new(stream).poll_read(context, &mut space) {
        Poll::Pending => return Ok(false),
        Poll::Ready(result) => result?,
    }
    match space.filled().len() {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it")),
        count => {
            state.client.handle_received(count);
            Ok(true)
        }
    }
}

/// Completes a request for its caller.
fn tell(completed: Completed<Token>) {
    let Completed { token, result, buffer, extents } = completed;
    let extents = if token.kind == Kind::Extents { to_extents(&token, &extents) } else { Vec::new() };
    let result = result.map_err(|failure| to_error(&failure));
    token.complete(Response { result, buffer, extents });
}

fn to_extents(token: &Token, status: &[nbd::StatusExtent]) -> Vec<Extent> {
    let end = token.offset + token.length;
    let mut offset = token.offset;
    let mut extents = Vec::with_capacity(status.len());
    for extent in status {
        let length = u64::from(extent.length_bytes).min(end - offset);
        if length == 0 {
            break;
        }
        // A hole that may not read as zeroes does not count as a hole.
        let kind = if extent.is_hole && extent.is_zero { ExtentKind::Hole } else { ExtentKind::Data };
        extents.push(Extent { range: ByteRange { offset, length }, kind });
        offset += length;
    }
    extents
}
