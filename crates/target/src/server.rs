//! The server: targets, portals, shards, and the way to stop them.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use base::buffer::BufferPool;
use base::clock::Clock;
use clock::TokioClock;
use iscsi::chap::Challenge;
use iscsi::limits::CHAP_CHALLENGE_BYTES;
use iscsi::target::{Authentication, CloseReason, TargetParameters, TargetPortal};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::control::{Control, Handle, Wish};
use crate::limits::{ACCEPT_RETRY_INTERVAL, CONNECTIONS_MAX, DATA_OUT_POOL_BYTES, LISTEN_BACKLOG};
use crate::login::drive;
use crate::session::Addresses;
use crate::sessions::Sessions;
use crate::status::{ConnectionStatus, Counters, Status};
use crate::target::Target;
use crate::transport::{Other, Transport};

/// Portal group of what does not say another one.
pub const PORTAL_GROUP_DEFAULT: u16 = 1;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct TargetServerOptions {
    /// Addresses to listen on; port 0 takes a free one.
    pub portals: Vec<TargetPortal>,
    /// Threads that serve connections; zero for one per processor.
    pub shards: usize,
    /// Who may run discovery sessions.
    pub discovery_authentication: Authentication,
    /// What this end wishes in negotiation; `None` for the standard wishes.
    pub offer: Option<iscsi::negotiation::Offer>,
    /// Bytes of data-out buffers of all connections together.
    pub data_out_pool_bytes: usize,
    /// Connections at once.
    pub connections_max: usize,
}

impl Default for TargetServerOptions {
    fn default() -> Self {
        Self {
            portals: Vec::new(),
            shards: 0,
            discovery_authentication: Authentication::default(),
            offer: None,
            data_out_pool_bytes: DATA_OUT_POOL_BYTES,
            connections_max: CONNECTIONS_MAX,
        }
    }
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) options: TargetServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Sessions,
    pub(crate) counters: Counters,
    /// Whether sessions may spin before they sleep: not when shards would take processors from each other.
    pub(crate) may_spin: bool,
    pool: BufferPool,
    targets: RwLock<Vec<Target>>,
    /// By portal group tag; rebuilt when targets, accounts or portals change.
    parameters: RwLock<BTreeMap<u16, Arc<TargetParameters>>>,
    portals: RwLock<Vec<TargetPortal>>,
    discovery_authentication: RwLock<Authentication>,
    connections: Mutex<Connections>,
}

/// Guarded by `Shared::connections`.
#[derive(Default)]
struct Connections {
    next: u64,
    entries: Vec<(u64, Addresses, Handle)>,
    is_draining: bool,
}

impl Shared {
    pub(crate) fn parameters(&self, portal_group_tag: u16) -> Arc<TargetParameters> {
        let parameters = self.parameters.read().unwrap_or_else(PoisonError::into_inner);
        let of_none = || Arc::new(TargetParameters::new(Vec::new(), self.pool.clone()));
        parameters.get(&portal_group_tag).map_or_else(of_none, Arc::clone)
    }

    pub(crate) fn target(&self, name: &str) -> Option<Target> {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        targets.iter().find(|target| target.name.eq_ignore_ascii_case(name)).cloned()
    }

    /// Fresh randomness for one connection.
    pub(crate) fn challenge(&self) -> Challenge {
        let mut bytes = [0; CHAP_CHALLENGE_BYTES + 1];
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        let (identifier, challenge) = bytes.split_first().expect("the array is not empty");
        Challenge { identifier: *identifier, bytes: challenge.try_into().expect("the array is one longer") }
    }

    fn rebuild(&self) {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let portals = self.portals.read().unwrap_or_else(PoisonError::into_inner);
        let described = targets.iter().map(|target| target.describe(&portals)).collect();
        let mut parameters = TargetParameters::new(described, self.pool.clone());
        parameters.discovery_authentication =
            self.discovery_authentication.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(offer) = &self.options.offer {
            parameters.offer = offer.clone();
        }
        let tags = portals.iter().map(|portal| portal.group).chain([PORTAL_GROUP_DEFAULT]);
        let of_group = |tag| (tag, Arc::new(TargetParameters { portal_group_tag: tag, ..parameters.clone() }));
        *self.parameters.write().unwrap_or_else(PoisonError::into_inner) = tags.map(of_group).collect();
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection, or says no when there are too many or the server stops.
    fn enter(&self, addresses: &Addresses) -> Option<(u64, Control)> {
        let mut connections = self.connections();
        if connections.is_draining || connections.entries.len() >= self.options.connections_max {
            return None;
        }
        let control = Control::new();
        connections.next += 1;
        let number = connections.next;
        connections.entries.push((number, addresses.clone(), control.handle()));
        Some((number, control))
    }

    fn leave(&self, number: u64) {
        self.connections().entries.retain(|(other, ..)| *other != number);
    }
}

/// Leaves the table of connections however the connection ends.
pub(crate) struct Entered {
    server: Arc<Shared>,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.server.leave(self.number);
    }
}

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
        let pool = BufferPool::new(options.data_out_pool_bytes);
        let shared = Arc::new(Shared {
            clock,
            sessions: Sessions::default(),
            counters: Counters::default(),
            parameters: RwLock::default(),
            discovery_authentication: RwLock::new(options.discovery_authentication.clone()),
            pool,
            may_spin: options.shards <= processors(),
            targets: RwLock::new(targets),
            portals: RwLock::new(options.portals.clone()),
            connections: Mutex::new(Connections::default()),
            options,
        });
        shared.rebuild();
        Self { shared }
    }

    /// The targets served from now on. Sessions go on and see their LUNs as they are now; those of targets that are gone, and of
    /// initiators no longer allowed, are asked to log out, and dropped if they do not. Gives how many those are.
    pub fn set_targets(&self, targets: Vec<Target>) -> usize {
        *self.shared.targets.write().unwrap_or_else(PoisonError::into_inner) = targets;
        self.shared.rebuild();
        self.shared.sessions.review(|name| self.shared.target(name))
    }

    /// Who may run discovery sessions from now on.
    pub fn set_discovery_authentication(&self, authentication: Authentication) {
        let mut current = self.shared.discovery_authentication.write().unwrap_or_else(PoisonError::into_inner);
        *current = authentication;
        drop(current);
        self.shared.rebuild();
    }

    /// The targets served now.
    pub fn targets(&self) -> Vec<Target> {
        self.shared.targets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves one connection over any stream until its end. `local` should be an IP address and port where there is one, so
    /// that discovery can name it.
    pub async fn serve_connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        addresses: Addresses,
    ) -> CloseReason {
        self.serve(Box::new(Other(stream)), addresses, PORTAL_GROUP_DEFAULT).await
    }

    async fn serve(&self, stream: Box<dyn Transport>, addresses: Addresses, portal_group_tag: u16) -> CloseReason {
        let Some((number, control)) = self.shared.enter(&addresses) else { return CloseReason::Local };
        let entered = Entered { server: Arc::clone(&self.shared), number };
        drive(Arc::clone(&self.shared), stream, (addresses, portal_group_tag), control, entered).await
    }

    /// Binds the portals. From here on initiators can connect; they are served when the result runs.
    ///
    /// # Errors
    /// An address that cannot be bound, named in the error.
    pub fn bind(&self) -> io::Result<BoundServer> {
        let listeners = self.shared.options.portals.iter().map(|portal| bind_portal(portal.address));
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let groups: Vec<u16> = self.shared.options.portals.iter().map(|portal| portal.group).collect();
        let bound = addresses.iter().zip(&groups).map(|(&address, &group)| TargetPortal { address, group });
        *self.shared.portals.write().unwrap_or_else(PoisonError::into_inner) = bound.collect();
        self.shared.rebuild();
        Ok(BoundServer { server: self.clone(), listeners, groups, addresses })
    }

    /// Asks every initiator to log out, and ends connections that have not after a while. Takes no new ones. Completes when
    /// all are gone.
    pub async fn drain(&self) {
        let handles: Vec<Handle> = {
            let mut connections = self.shared.connections();
            connections.is_draining = true;
            connections.entries.iter().map(|(_, _, handle)| handle.clone()).collect()
        };
        handles.iter().for_each(|handle| handle.ask(Wish::Drain));
        for handle in &handles {
            handle.ended().await;
        }
    }

    /// Everything at this moment.
    pub fn status(&self) -> Status {
        let counters = &self.shared.counters;
        let of = |(_, addresses, _): &(u64, Addresses, Handle)| ConnectionStatus {
            peer: addresses.peer.clone(),
            local: addresses.local.clone(),
        };
        Status {
            sessions: self.shared.sessions.statuses(),
            connections: self.shared.connections().entries.iter().map(of).collect(),
            luns: counters.lun_statuses(),
            pdus_received: counters.pdus_received.load(Ordering::Relaxed),
            pdus_sent: counters.pdus_sent.load(Ordering::Relaxed),
            logins_refused: counters.logins_refused.load(Ordering::Relaxed),
        }
    }
}

/// A server whose portals are bound.
pub struct BoundServer {
    server: TargetServer,
    listeners: Vec<std::net::TcpListener>,
    /// Of each listener.
    groups: Vec<u16>,
    addresses: Vec<SocketAddr>,
}

impl BoundServer {
    /// What was bound, in the order of the portals.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `shutdown` completes, then drains. Accepts on the runtime this runs on; connections live on threads of
    /// their own.
    ///
    /// # Errors
    /// When threads or listeners cannot be set up. Failing connections are logged, not returned.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let Self { server, listeners, groups, .. } = self;
        let shards = Arc::new(Shards::start(server.shared.options.shards)?);
        let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
        let accepting =
            listeners.into_iter().zip(groups).map(|listener| accept(server.clone(), listener, Arc::clone(&shards)));
        let accepting = futures_util::future::join_all(accepting);
        tokio::pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => {}
            _ = accepting => {}
        }
        server.drain().await;
        Ok(())
    }
}

/// Accepts connections for ever.
async fn accept(server: TargetServer, (listener, group): (TcpListener, u16), shards: Arc<Shards>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => hand_over(&server, stream, (peer, group), &shards),
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
        Err(error) => return tracing::debug!(%peer, %error, "a connection was lost while it was accepted"),
    };
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string();
    let addresses = Addresses { local: canonical(local), peer: canonical(peer) };
    let server = server.clone();
    let shard = shards.least_loaded();
    let load = Load::take(&shard.load);
    shard.handle.spawn(async move {
        let _load = load;
        match TcpStream::from_std(stream) {
            Ok(stream) => drop(server.serve(Box::new(stream), addresses, group).await),
            Err(error) => tracing::debug!(%error, "a connection was lost while it was handed over"),
        }
    });
}

/// A listening socket. IPv6 portals take IPv6 only, so that `0.0.0.0` and `[::]` can stand side by side.
fn bind_portal(portal: SocketAddr) -> io::Result<std::net::TcpListener> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(portal), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if portal.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&portal.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind().map_err(|error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {portal}: {error}")))
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
        Ok(Self { handle, load: Arc::default(), stop: Some(stop), thread: Some(thread) })
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
