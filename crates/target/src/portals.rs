//! The portals: addresses that a server listens on.
//!
//! They may change while it runs. A portal that stays goes on listening on the same socket, so that nobody who connects
//! meanwhile is turned away; new ones are bound before anything changes, so that a change that cannot be made leaves
//! all as it was.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use iscsi::target::TargetPortal;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::limits::LISTEN_BACKLOG;

/// Portal group of what does not say another one.
pub const PORTAL_GROUP_DEFAULT: u16 = 1;

/// The portals of a server.
pub(crate) struct Portals {
    /// What is told of while nothing is open: those of a server whose connections come in some other way.
    planned: Vec<TargetPortal>,
    open: watch::Sender<Vec<Portal>>,
}

/// A portal that listens. Clones listen on the same socket.
#[derive(Clone)]
pub(crate) struct Portal {
    /// As it was asked for: port 0 is any.
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

    /// Its socket, once more.
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

/// Portals that listen, for a server that may take them as its own. Dropped, those that are new close.
pub struct BoundPortals(Vec<Portal>);

impl BoundPortals {
    /// Sockets that somebody else bound.
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

    /// What listens, now and whenever that changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<Portal>> {
        self.open.subscribe()
    }

    /// As they are.
    pub(crate) fn bound(&self) -> Vec<TargetPortal> {
        let open = self.open.borrow();
        if open.is_empty() { self.planned.clone() } else { open.iter().map(|portal| portal.bound).collect() }
    }

    /// As they were asked for.
    pub(crate) fn asked(&self) -> Vec<TargetPortal> {
        let asked = |portal: &Portal| TargetPortal { address: portal.asked, ..portal.bound };
        self.open.borrow().iter().map(asked).collect()
    }

    /// The portals wanted: those that are open already, maybe in another group, and the others bound.
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

    /// Takes them; what is not among them closes. Gives how many are new, and how many are gone.
    pub(crate) fn set(&self, BoundPortals(wanted): BoundPortals) -> (usize, usize) {
        let open = self.open.borrow().clone();
        let is_among =
            |portals: &[Portal], one: &Portal| portals.iter().any(|other| Arc::ptr_eq(&other.listener, &one.listener));
        let new = wanted.iter().filter(|portal| !is_among(&open, portal)).count();
        let gone = open.iter().filter(|portal| !is_among(&wanted, portal)).count();
        self.open.send_replace(wanted);
        (new, gone)
    }

    /// Listens no more.
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
