//! The portals: addresses that a server listens on.
//!
//! They may change while it runs. A portal that stays keeps its listening socket, so that no
//! connection is refused meanwhile; new ones are bound before anything changes, so that a change
//! that fails leaves all as it was.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use iscsi::target::TargetPortal;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::limits::LISTEN_BACKLOG;

/// Portal group of portals without a configured one.
pub const PORTAL_GROUP_DEFAULT: u16 = 1;

/// The portals of a server.
pub(crate) struct Portals {
    /// Reported while no portal is open: for a server that gets its connections in another way.
    planned: Vec<TargetPortal>,
    open: watch::Sender<Vec<Portal>>,
}

/// A portal that listens. Clones listen on the same socket.
#[derive(Clone)]
pub(crate) struct Portal {
    /// The configured address; port 0 means any.
    asked: SocketAddr,
    bound: TargetPortal,
    listener: Arc<TcpListener>,
}

impl Portal {
    fn bind(portal: TargetPortal) -> io::Result<Self> {
        let listener = listen(portal.address)?;
        let bound = TargetPortal { address: listener.local_addr()?, ..portal };
        Ok(Self { asked: portal.address, bound, listener: Arc::new(listener) })
    }

    /// A duplicate of its socket.
    pub(crate) fn listener(&self) -> io::Result<TcpListener> {
        self.listener.try_clone()
    }

    /// The tag of its portal group.
    pub(crate) fn group(&self) -> u16 {
        self.bound.group
    }

    fn is_at(&self, address: SocketAddr) -> bool {
        self.asked == address || self.bound.address == address
    }
}

/// Portals that listen, and that the server may take over. If they are dropped, the new ones are
/// closed.
pub struct BoundPortals(Vec<Portal>);

impl BoundPortals {
    /// Takes over sockets that the caller bound.
    pub(crate) fn adopt(listeners: Vec<TcpListener>) -> io::Result<Self> {
        let adopt = |listener: TcpListener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let bound = TargetPortal { address, group: PORTAL_GROUP_DEFAULT };
            Ok(Portal { asked: address, bound, listener: Arc::new(listener) })
        };
        listeners.into_iter().map(adopt).collect::<io::Result<_>>().map(Self)
    }
}

impl Portals {
    pub(crate) fn new(planned: &[TargetPortal]) -> Self {
        Self { planned: planned.to_vec(), open: watch::Sender::new(Vec::new()) }
    }

    /// The open portals, now and after each change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<Portal>> {
        self.open.subscribe()
    }

    /// The open portals, with their actual ports.
    pub(crate) fn bound(&self) -> Vec<TargetPortal> {
        let open = self.open.borrow();
        if open.is_empty() { self.planned.clone() } else { open.iter().map(|portal| portal.bound).collect() }
    }

    /// The open portals, with their configured ports.
    pub(crate) fn asked(&self) -> Vec<TargetPortal> {
        let asked = |portal: &Portal| TargetPortal { address: portal.asked, ..portal.bound };
        self.open.borrow().iter().map(asked).collect()
    }

    /// Keeps open portals that are wanted, perhaps in another group, and binds the others.
    pub(crate) fn bind(&self, wanted: &[TargetPortal]) -> io::Result<BoundPortals> {
        let mut open = self.open.borrow().clone();
        let find_or_bind = |&portal: &TargetPortal| match open.iter().position(|open| open.is_at(portal.address)) {
            Some(index) => {
                let open = open.swap_remove(index);
                Ok(Portal { asked: portal.address, bound: TargetPortal { group: portal.group, ..open.bound }, ..open })
            }
            None => Portal::bind(portal),
        };
        wanted.iter().map(find_or_bind).collect::<io::Result<_>>().map(BoundPortals)
    }

    /// Replaces the open portals. Returns how many are new, and how many are closed.
    pub(crate) fn set(&self, BoundPortals(wanted): BoundPortals) -> (usize, usize) {
        let open = self.open.borrow().clone();
        let is_among =
            |portals: &[Portal], one: &Portal| portals.iter().any(|other| Arc::ptr_eq(&other.listener, &one.listener));
        let new = wanted.iter().filter(|portal| !is_among(&open, portal)).count();
        let gone = open.iter().filter(|portal| !is_among(&wanted, portal)).count();
        self.open.send_replace(wanted);
        (new, gone)
    }

    /// Closes all portals.
    pub(crate) fn close(&self) {
        self.open.send_replace(Vec::new());
    }
}

/// A listening socket. IPv6 portals take IPv6 only, so that `0.0.0.0` and `[::]` can stand side by side.
fn listen(portal: SocketAddr) -> io::Result<std::net::TcpListener> {
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
