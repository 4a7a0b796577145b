//! The server: targets, portals, shards, and the way to stop them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use base::buffer::BufferPool;
use base::clock::Clock;
use base::refusals::Refusals;
use clock::TokioClock;
use futures_util::future::{Either, select};
use iscsi::limits::REQUEST_DATA_POOL_BYTES;
use iscsi::target::{Authentication, CloseReason, TargetPortal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::addresses::Addresses;
use crate::control::Directive;
use crate::counters::Counters;
use crate::data_in::DataIn;
use crate::limits::{ACCEPT_INTERVAL, ACCEPT_RETRY_INTERVAL, RATE_INTERVAL, REPORT_TIMEOUT};
use crate::login::drive;
use crate::portals::{BoundPortals, PORTAL_GROUP_DEFAULT, Portal, Portals};
use crate::quota::Quota;
use crate::sessions::Sessions;
use crate::shared::{Shared, TargetServerOptions};
use crate::status::Status;
use crate::target::Target;
use crate::transport::{Other, Transport};
use crate::turns::Turns;

/// An iSCSI target server. Clones are the same server.
#[derive(Clone)]
pub struct TargetServer {
    shared: Arc<Shared>,
}

impl TargetServer {
    /// A server of `targets` on tokio's clock. Nothing is bound yet.
    pub fn new(targets: Vec<Target>, options: TargetServerOptions) -> Self {
        Self::with_clock(targets, options, Arc::new(TokioClock::new()))
    }

    /// A server on another clock, for modelled links.
    pub fn with_clock(targets: Vec<Target>, options: TargetServerOptions, clock: Arc<dyn Clock>) -> Self {
        let pool = BufferPool::new(options.quota.data_out_bytes);
        let shared = Arc::new(Shared {
            clock,
            quota: RwLock::new(options.quota.bounded()),
            data_in: DataIn::new(&options.quota),
            refusals: Refusals::default(),
            failures: Refusals::default(),
            digests: Refusals::default(),
            sessions: Sessions::default(),
            counters: Counters::default(),
            parameters: RwLock::default(),
            discovery_authentication: RwLock::new(options.discovery_authentication.clone()),
            turns: Arc::default(),
            pool,
            request_data: BufferPool::new(REQUEST_DATA_POOL_BYTES),
            retained: Arc::default(),
            busy_poll: if options.shards <= processors() { options.busy_poll } else { Duration::ZERO },
            targets: RwLock::new(targets),
            portals: Portals::new(&options.portals),
            connections: Arc::default(),
            runtimes: OnceLock::new(),
            options,
        });
        shared.rebuild();
        Self { shared }
    }

    /// Replaces the served targets. Sessions go on and see their new LUNs; those of removed
    /// targets, and of initiators without access, are asked to log out, and dropped if they do not.
    /// Returns the count of these.
    pub fn set_targets(&self, targets: Vec<Target>) -> usize {
        *self.shared.targets.write().unwrap_or_else(PoisonError::into_inner) = targets;
        self.shared.rebuild();
        self.shared.sessions.review(|name| self.shared.target(name))
    }

    /// Sets which initiators may run discovery sessions.
    pub fn set_discovery_authentication(&self, authentication: Authentication) {
        let mut current = self.shared.discovery_authentication.write().unwrap_or_else(PoisonError::into_inner);
        *current = authentication;
        drop(current);
        self.shared.rebuild();
    }

    /// Sets the limits for peers. Existing sessions and connections stay, however many; their
    /// negotiated values and command windows do not change. All other limits apply to them, too.
    pub fn set_quota(&self, quota: Quota) {
        let quota = quota.bounded();
        *self.shared.quota.write().unwrap_or_else(PoisonError::into_inner) = quota;
        self.shared.data_in.set(&quota);
        self.shared.pool.set_bytes_max(quota.data_out_bytes);
        self.shared.rebuild();
    }

    /// The present targets.
    pub fn targets(&self) -> Vec<Target> {
        self.shared.targets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves one connection over any stream until its end. `local` should be an IP address and port where there is
    /// one, so that discovery can name it.
    pub async fn serve_connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        addresses: Addresses,
    ) -> CloseReason {
        let turns = Arc::clone(&self.shared.turns);
        self.serve(Box::new(Other(stream)), addresses, PORTAL_GROUP_DEFAULT, turns).await
    }

    async fn serve(
        &self,
        stream: Box<dyn Transport>,
        addresses: Addresses,
        portal_group_tag: u16,
        turns: Arc<Turns>,
    ) -> CloseReason {
        let Shared { connections, counters, clock, .. } = &*self.shared;
        counters.connections_accepted.fetch_add(1, Ordering::Relaxed);
        let (entered, control) =
            match connections.enter(&addresses, portal_group_tag, clock.now(), &self.shared.quota()) {
                Ok(entered) => entered,
                Err(why) => {
                    counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                    if let Some(others) = self.shared.refusals.note(clock.now()) {
                        tracing::warn!(connection = %addresses.peer, why, others, "connection closed at once");
                    }
                    return CloseReason::Local;
                }
            };
        if entered.takes_place {
            counters.connections_refused.fetch_add(1, Ordering::Relaxed);
            if let Some(others) = self.shared.refusals.note(clock.now()) {
                let why = "too many connections of this address have not logged in";
                tracing::warn!(connection = %addresses.peer, why, others, "the oldest of them is closed");
            }
        }
        drive(Arc::clone(&self.shared), stream, (addresses, portal_group_tag), (control, entered), turns).await
    }

    /// Binds the portals. Initiators can connect from now on; they are served when the result runs.
    ///
    /// # Errors
    /// An address that cannot be bound, named in the error.
    pub fn bind(&self) -> io::Result<BoundServer> {
        self.set_portals(self.bind_portals(&self.shared.options.portals)?);
        Ok(BoundServer { server: self.clone(), addresses: self.addresses() })
    }

    /// Serves on sockets that the caller bound, in place of the portals, all in the default portal
    /// group.
    ///
    /// # Errors
    /// A socket without a readable address.
    pub fn adopt(&self, listeners: Vec<std::net::TcpListener>) -> io::Result<BoundServer> {
        self.set_portals(BoundPortals::adopt(listeners)?);
        Ok(BoundServer { server: self.clone(), addresses: self.addresses() })
    }

    /// Binds the new ones of `portals`, without any other change yet.
    ///
    /// # Errors
    /// An address that cannot be bound, named in the error.
    pub fn bind_portals(&self, portals: &[TargetPortal]) -> io::Result<BoundPortals> {
        self.shared.portals.bind(portals)
    }

    /// Replaces the portals. Connections on a removed portal stay; it accepts no others. Returns
    /// how many portals are new, and how many are gone.
    pub fn set_portals(&self, portals: BoundPortals) -> (usize, usize) {
        let changes = self.shared.portals.set(portals);
        self.shared.rebuild();
        changes
    }

    /// The portals with their configured ports.
    pub fn portals(&self) -> Vec<TargetPortal> {
        self.shared.portals.asked()
    }

    /// The addresses where it listens, in the order of the portals.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.portals.bound().iter().map(|portal| portal.address).collect()
    }

    /// Asks every initiator to log out, and ends connections that have not after a while. Accepts
    /// no new ones. Completes when all have ended.
    pub async fn drain(&self) {
        let handles = self.shared.connections.drain();
        handles.iter().for_each(|handle| handle.ask(Directive::Drain));
        for handle in &handles {
            handle.ended().await;
        }
    }

    /// The counters and the list of sessions, without the sessions' own reports: for callers that
    /// cannot wait.
    pub fn counted(&self) -> Status {
        let Shared { counters, sessions, connections, clock, .. } = &*self.shared;
        let now = clock.now();
        let connections = connections.statuses(now).into_values().collect();
        Status { sessions: sessions.statuses(), connections, ..counters.status(now) }
    }

    /// The full status, with the reports of those sessions that answer within half a second.
    pub async fn status(&self) -> Status {
        let now = self.shared.clock.now();
        let asked = self.shared.sessions.inquire();
        let mut status = self.shared.counters.status(now);
        let mut connections = self.shared.connections.statuses(now);
        let mut deadline = Some(self.shared.clock.sleep_until(now + REPORT_TIMEOUT));
        for (mut session, mut answer) in asked {
            let report = match deadline.take() {
                Some(waiting) => match select(&mut answer, waiting).await {
                    Either::Left((report, waiting)) => {
                        deadline = Some(waiting);
                        report.ok()
                    }
                    Either::Right(_) => None,
                },
                None => answer.try_recv().ok(),
            };
            if let Some(report) = report {
                for (number, known) in &report.connections {
                    if let Some(connection) = connections.get_mut(number) {
                        connection.learn(session.tsih, known, &session.negotiated.0);
                    }
                }
                session.activity = Some(report.activity);
            }
            status.sessions.push(session);
        }
        let runtimes = self.shared.runtimes.get().into_iter().flatten();
        status.tasks = runtimes.map(|runtime| runtime.metrics().num_alive_tasks()).sum();
        status.connections = connections.into_values().collect();
        status
    }

    /// Samples the counters of logical units, for ever, for their rates.
    async fn sample(&self) {
        loop {
            self.shared.counters.sample(self.shared.clock.now());
            self.shared.clock.sleep(RATE_INTERVAL).await;
        }
    }
}

/// A server whose portals are bound.
pub struct BoundServer {
    server: TargetServer,
    addresses: Vec<SocketAddr>,
}

impl BoundServer {
    /// The addresses bound at first, in the order of the portals.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `shutdown` completes, then drains. Accepts on the runtime this runs on; connections live on threads
    /// of their own.
    ///
    /// # Errors
    /// When threads or listeners cannot be set up. Failing connections are logged, not returned.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let Self { server, .. } = self;
        let shards = Arc::new(Shards::start(server.shared.options.shards)?);
        server.shared.runtimes.get_or_init(|| shards.shards.iter().map(|shard| shard.handle.clone()).collect());
        tokio::pin!(shutdown);
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => Ok(()),
            accepted = accept_all(&server, &shards) => accepted,
            () = server.sample() => Ok(()),
        };
        server.shared.portals.close();
        server.drain().await;
        accepted
    }
}

/// Accepts connections at all portals, which may change, for ever.
async fn accept_all(server: &TargetServer, shards: &Arc<Shards>) -> io::Result<()> {
    let mut portals = server.shared.portals.subscribe();
    loop {
        let open = portals.borrow_and_update().clone();
        let accepting = futures_util::future::try_join_all(open.iter().map(|portal| accept(server, portal, shards)));
        tokio::select! {
            accepted = accepting, if !open.is_empty() => return accepted.map(drop),
            // The sender lives in the state that `server` shares.
            _ = portals.changed() => {}
        }
    }
}

/// Accepts connections for ever.
async fn accept(server: &TargetServer, portal: &Portal, shards: &Arc<Shards>) -> io::Result<()> {
    let listener = TcpListener::from_std(portal.listener()?)?;
    let mut work = shards.work();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                hand_over(server, stream, (peer, portal.group()), shards);
                if std::mem::replace(&mut work, shards.work()) != work {
                    tokio::time::sleep(ACCEPT_INTERVAL).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

fn hand_over(server: &TargetServer, stream: TcpStream, (peer, group): (SocketAddr, u16), shards: &Arc<Shards>) {
    let prepared = stream.set_nodelay(true).and_then(|()| Ok((stream.local_addr()?, stream.into_std()?)));
    let (local, stream) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return tracing::debug!(connection = %peer, %error, "a connection was lost while it was accepted"),
    };
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string();
    let addresses = Addresses { local: canonical(local), peer: canonical(peer) };
    let server = server.clone();
    let shard = shards.least_loaded();
    let (load, turns) = (Load::take(&shard.load), Arc::clone(&shard.turns));
    shard.handle.spawn(base::background::named("target-connection", async move {
        let _load = load;
        match TcpStream::from_std(stream) {
            Ok(stream) => drop(server.serve(Box::new(stream), addresses, group, turns).await),
            Err(error) => tracing::debug!(%error, "a connection was lost while it was handed over"),
        }
    }));
}

/// Processors this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that serve connections, each with a runtime of its own.
struct Shards {
    shards: Vec<Shard>,
}

struct Shard {
    handle: tokio::runtime::Handle,
    load: Arc<AtomicUsize>,
    turns: Arc<Turns>,
    /// Dropped to stop it.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// One connection's weight on its shard.
struct Load(Arc<AtomicUsize>);

impl Load {
    fn take(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shards {
    fn start(count: usize) -> io::Result<Self> {
        let count = if count == 0 { processors() } else { count };
        let shards = (0..count).map(Shard::start).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { shards })
    }

    /// A measure of the work that sessions have done so far.
    fn work(&self) -> u64 {
        self.shards.iter().map(|shard| shard.turns.work()).sum()
    }

    fn least_loaded(&self) -> &Shard {
        let load = |shard: &&Shard| shard.load.load(Ordering::Relaxed);
        self.shards.iter().min_by_key(load).expect("there is at least one shard")
    }
}

impl Shard {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(format!("target-{index}")).spawn(move || {
            // It ends when the sender is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, load: Arc::default(), turns: Arc::default(), stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
