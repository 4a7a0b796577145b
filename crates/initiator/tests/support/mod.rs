//! A client-to-disk stack in virtual time: our initiator, our target, and a link between them that can be cut.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod load;
pub(crate) mod peer;
pub(crate) mod scripted;
pub(crate) mod sharing;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::executor::Executor;
use block::completion::Workers;
use block::{Identity, SharedDevice};
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions, RemoteLun};
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Addresses, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

pub(crate) const IQN: &str = "iqn.2026-01.io.forebay:test";

/// Everything, on one clock.
pub(crate) struct World {
    pub(crate) executor: Executor,
    pub(crate) clock: VirtualClock,
    pub(crate) workers: Workers,
    pub(crate) network: Network,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut executor = Executor::new(seed);
        let clock = executor.clock();
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let network = Network { shared: Arc::default(), workers: workers.clone() };
        Self { executor, clock, workers, network }
    }

    /// A target with `device` as LUN 0, reachable from now on.
    pub(crate) fn serve(&mut self, device: SharedDevice) -> TargetServer {
        let server = self.server(device, TargetServerOptions::default());
        self.network.set_server(Some(server.clone()));
        server
    }

    pub(crate) fn server(&mut self, device: SharedDevice, options: TargetServerOptions) -> TargetServer {
        let unit = LogicalUnit::new(device, LogicalUnitOptions::default());
        self.workers.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        TargetServer::with_clock(vec![Target::new(IQN, luns)], options, Arc::new(self.clock.clone()))
    }

    pub(crate) fn options(&self) -> InitiatorOptions {
        let portal = Portal { host: "10.0.0.1".to_owned(), port: 3260 };
        InitiatorOptions {
            isid: Some(Isid::random_format(1, 1)),
            initiator_name: "iqn.2026-01.io.forebay:initiator".to_owned(),
            clock: Arc::new(self.clock.clone()),
            reconnect_wait_min: Duration::from_millis(10),
            ..InitiatorOptions::new(portal, IQN, 0)
        }
    }

    pub(crate) fn connect(&mut self, options: InitiatorOptions) -> Result<Arc<RemoteLun>, block::Error> {
        let connector: Arc<dyn Connector> = Arc::new(self.network.clone());
        let (lun, driver) = self.executor.block_on(initiator::connect(options, connector))?;
        self.executor.spawn(driver);
        Ok(lun)
    }

    pub(crate) fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        self.executor.block_on(future)
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        let clock = self.clock.clone();
        self.executor.block_on(async move { clock.sleep(duration).await });
    }
}

pub(crate) fn identity(serial: &str) -> Identity {
    Identity { target: "memory".to_owned(), unit: "unit".to_owned(), serial: serial.to_owned() }
}

/// Links to the server that is set at the time.
#[derive(Clone)]
pub(crate) struct Network {
    shared: Arc<Mutex<NetworkState>>,
    workers: Workers,
}

#[derive(Default)]
struct NetworkState {
    server: Option<TargetServer>,
    /// Accepts and never answers.
    is_mute: bool,
    links: Vec<Arc<Mutex<LinkState>>>,
    /// Bytes after which the next links are cut, one entry per link.
    budgets: VecDeque<u64>,
    connect_count: u64,
    mute_ends: Vec<DuplexStream>,
    /// How long bytes take one way, on links made from now on.
    delay: Option<(VirtualClock, Duration)>,
}

/// One link. It is cut when its budget of bytes is used up, or by the test.
#[derive(Default)]
struct LinkState {
    budget: Option<u64>,
    is_cut: bool,
    is_frozen: bool,
    wakers: Vec<Waker>,
    traffic: (u64, u64),
}

impl LinkState {
    fn take_wakers_and_cut(&mut self) -> Vec<Waker> {
        self.is_cut = true;
        std::mem::take(&mut self.wakers)
    }
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the server for new links; existing links go on.
    pub(crate) fn set_server(&self, server: Option<TargetServer>) {
        self.lock().server = server;
    }

    /// How long bytes take one way, on links made from now on.
    pub(crate) fn set_delay(&self, delay: Option<(VirtualClock, Duration)>) {
        self.lock().delay = delay;
    }

    pub(crate) fn set_mute(&self, is_mute: bool) {
        self.lock().is_mute = is_mute;
    }

    /// Cuts all links.
    pub(crate) fn cut(&self) {
        for link in self.lock().links.drain(..) {
            let wakers = lock(&link).take_wakers_and_cut();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Cuts one link, in the order in which they were made.
    pub(crate) fn cut_one(&self, index: usize) {
        let wakers = lock(&self.lock().links[index]).take_wakers_and_cut();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Bytes that each link has carried to the target and back.
    pub(crate) fn traffic(&self) -> Vec<(u64, u64)> {
        self.lock().links.iter().map(|link| lock(link).traffic).collect()
    }

    /// Freezes all links: they carry nothing any more, and report no error.
    pub(crate) fn freeze(&self) {
        for link in &self.lock().links {
            lock(link).is_frozen = true;
        }
    }

    /// Freezes one link, in the order in which they were made.
    pub(crate) fn freeze_one(&self, index: usize) {
        lock(&self.lock().links[index]).is_frozen = true;
    }

    /// The next link is cut after so many bytes.
    pub(crate) fn cut_next_after(&self, bytes: u64) {
        self.lock().budgets.push_back(bytes);
    }

    pub(crate) fn connect_count(&self) -> u64 {
        self.lock().connect_count
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    /// The other end of a link over which bytes take that long one way.
    fn far_away(&self, end: DuplexStream, clock: &VirtualClock, delay: Duration) -> DuplexStream {
        let (here, there) = tokio::io::duplex(256 << 10);
        let ((from_near, to_near), (from_far, to_far)) = (tokio::io::split(end), tokio::io::split(here));
        for (mut from, mut to) in [(from_near, to_far), (from_far, to_near)] {
            let (sender, mut under_way) = tokio::sync::mpsc::unbounded_channel();
            let (sending, arriving) = (clock.clone(), clock.clone());
            self.workers.spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut bytes).await {
                    let _ = sender.send((sending.now() + delay, bytes[..count].to_vec()));
                }
            });
            self.workers.spawn(async move {
                while let Some((at, bytes)) = under_way.recv().await {
                    arriving.sleep_until(at).await;
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                let _ = to.shutdown().await;
            });
        }
        there
    }
}

impl Connector for Network {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let mut state = self.lock();
        state.connect_count += 1;
        let (near, far) = tokio::io::duplex(256 << 10);
        if state.is_mute {
            state.mute_ends.push(far);
        } else {
            let Some(server) = state.server.clone() else {
                return Box::pin(async { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) });
            };
            let addresses = Addresses { local: "10.0.0.1:3260".to_owned(), peer: "10.0.0.2:1000".to_owned() };
            let far = match state.delay.clone() {
                Some((clock, delay)) => self.far_away(far, &clock, delay),
                None => far,
            };
            self.workers.spawn(async move {
                server.serve_connection(far, addresses).await;
            });
        }
        let link = LinkState { budget: state.budgets.pop_front(), ..LinkState::default() };
        let link = Arc::new(Mutex::new(link));
        state.links.push(Arc::clone(&link));
        let stream = CutStream { stream: Some(near), link };
        Box::pin(async move { Ok(Box::new(stream) as BoxedStream) })
    }
}

/// The near end of a link.
struct CutStream {
    stream: Option<DuplexStream>,
    link: Arc<Mutex<LinkState>>,
}

impl CutStream {
    /// Bytes that may still pass, or the end of the link; `Pending` when it is frozen.
    fn check(&mut self, context: &Context<'_>) -> Poll<io::Result<u64>> {
        let mut link = lock(&self.link);
        link.wakers.push(context.waker().clone());
        if link.is_cut || link.budget == Some(0) {
            // The far end sees the end of the stream.
            self.stream = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if link.is_frozen { Poll::Pending } else { Poll::Ready(Ok(link.budget.unwrap_or(u64::MAX))) }
    }

    fn spend(&self, bytes: usize) {
        if let Some(budget) = &mut lock(&self.link).budget {
            *budget = budget.saturating_sub(bytes as u64);
        }
    }
}

impl initiator::Stream for CutStream {}

impl AsyncRead for CutStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let allowed = std::task::ready!(self.check(context))?;
        let limit = into.remaining().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let mut part = into.take(limit);
        let Some(stream) = &mut self.stream else { return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) };
        std::task::ready!(Pin::new(stream).poll_read(context, &mut part))?;
        let length = part.filled().len();
        // `part` wrote into the memory of `into`.
        let filled = part.filled().to_vec();
        into.put_slice(&filled);
        lock(&self.link).traffic.1 += length as u64;
        self.spend(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let allowed = std::task::ready!(self.check(context))?;
        let limit = bytes.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let Some(stream) = &mut self.stream else { return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())) };
        let written = std::task::ready!(Pin::new(stream).poll_write(context, &bytes[..limit]))?;
        lock(&self.link).traffic.0 += written as u64;
        self.spend(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.poll_write(context, &bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream = None;
        Poll::Ready(Ok(()))
    }
}

/// Lets all other tasks that are ready run.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A device of zeroes whose size changes.
pub(crate) struct Resizable {
    size_bytes: Mutex<u64>,
    events: block::EventHub,
}

impl Resizable {
    pub(crate) fn new(size_bytes: u64) -> Arc<Self> {
        Arc::new(Self { size_bytes: Mutex::new(size_bytes), events: block::EventHub::new() })
    }

    pub(crate) fn resize(&self, size_bytes: u64) {
        *lock(&self.size_bytes) = size_bytes;
        self.events.publish(&block::Event::Resized(block::Device::geometry(self)));
    }
}

impl block::Device for Resizable {
    fn geometry(&self) -> block::Geometry {
        block::Geometry::plain(*lock(&self.size_bytes))
    }

    fn identity(&self) -> Identity {
        identity("resizable")
    }

    fn submit(&self, request: block::Request) -> block::Completion {
        let response = match self.geometry().check(&request) {
            Err(error) => request.fail(error),
            Ok(_) => match request.operation {
                block::Operation::Read { mut buffer } => {
                    buffer.fill(0);
                    block::Response::done(buffer)
                }
                _ => block::Response::done(block::Buffer::empty()),
            },
        };
        block::Completion::ready(response)
    }

    fn subscribe(&self) -> block::EventReceiver {
        self.events.subscribe()
    }
}

/// Resets LUN 0, as another initiator with a command that does not end would.
pub(crate) fn reset_unit(world: &mut World, options: InitiatorOptions) {
    use base::serial::Serial32;
    use iscsi::initiator::{Connection, Event, LoginConfig, Session, Timing};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let connecting = {
        let network = world.network.clone();
        let portal = options.portal.clone();
        async move { network.connect(&portal).await.map_err(|error| error.kind()) }
    };
    let mut stream = world.run(connecting).unwrap();
    let clock = world.clock.clone();
    let timing = Timing {
        login_timeout: Duration::from_secs(5),
        keepalive_interval: Duration::ZERO,
        keepalive_timeout: Duration::ZERO,
        task_management_timeout: Duration::from_secs(5),
    };
    let config = LoginConfig {
        initiator_name: options.initiator_name.clone(),
        target_name: Some(options.target.clone()),
        isid: Isid::random_format(2, 2),
        tsih: 0,
        cid: 0,
        answers_for: None,
        offer: options.offer.clone(),
        chap: None,
    };
    world.run(async move {
        let mut session = Session::new(Serial32(1));
        let mut connection = Connection::new(clock.now(), &session, config, timing);
        loop {
            while let Some(event) = connection.poll_event() {
                match event {
                    Event::LoggedIn(_) => connection.reset_logical_unit(clock.now(), &mut session, 0),
                    Event::LogicalUnitReset { .. } => return,
                    _ => {}
                }
            }
            let mut slices = [IoSlice::new(&[]); 8];
            let count = connection.io_slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            stream.write_all(&bytes).await.unwrap();
            connection.handle_transmitted(&mut session, bytes.len());
            let length = stream.read(connection.receive_space()).await.unwrap();
            connection.handle_received(clock.now(), &mut session, length).unwrap();
        }
    });
}
