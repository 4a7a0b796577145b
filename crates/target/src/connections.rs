//! The table of connections, with their age and initiator.
//!
//! Clients that connect and do not log in must not exclude others at their address: where there are
//! too many of them, the oldest is closed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::clock::Instant;

use crate::addresses::Addresses;
use crate::control::{Control, Directive, Handle};
use crate::quota::Quota;
use crate::status::ConnectionStatus;

/// The connections of a server, from accept to end.
#[derive(Default)]
pub(crate) struct Connections {
    state: Mutex<State>,
}

/// Guarded by `Connections::state`; sections are short.
#[derive(Default)]
struct State {
    last: u64,
    entries: BTreeMap<u64, Entry>,
    is_draining: bool,
}

struct Entry {
    addresses: Addresses,
    portal_group_tag: u16,
    handle: Handle,
    since: Instant,
    /// The initiator name, once it has logged in.
    initiator_name: Option<String>,
    /// Whether it was asked to end, to leave room for a newer one.
    gives_way: bool,
}

impl Entry {
    /// Whether it counts as a connection of this host that has not logged in.
    fn is_stranger_of(&self, host_of_peer: &str) -> bool {
        self.initiator_name.is_none() && !self.gives_way && host(&self.addresses.peer) == host_of_peer
    }
}

/// A connection in the table, which is removed when this is dropped.
pub(crate) struct Entered {
    connections: Arc<Connections>,
    pub(crate) number: u64,
    /// Whether another connection of its address was closed for it.
    pub(crate) takes_place: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.number);
    }
}

impl Connections {
    /// Enters a connection; refused when there are too many, or the server stops.
    pub(crate) fn enter(
        self: &Arc<Self>,
        addresses: &Addresses,
        portal_group_tag: u16,
        now: Instant,
        quota: &Quota,
    ) -> Result<(Entered, Control), &'static str> {
        let mut state = self.lock();
        if state.is_draining {
            return Err("the server stops");
        }
        if state.entries.len() >= quota.connections {
            return Err("the server has as many connections as it takes");
        }
        let peer = host(&addresses.peer);
        let mut strangers = state.entries.values_mut().filter(|entry| entry.is_stranger_of(&peer));
        let oldest = strangers.next();
        let oldest = oldest.filter(|_| strangers.count() + 1 >= quota.unauthenticated_per_address);
        let takes_place = oldest.is_some();
        if let Some(oldest) = oldest {
            oldest.gives_way = true;
            oldest.handle.ask(Directive::Stop);
        }
        let control = Control::new();
        state.last += 1;
        let number = state.last;
        let (addresses, handle) = (addresses.clone(), control.handle());
        let (initiator_name, gives_way) = (None, false);
        let entry = Entry { addresses, portal_group_tag, handle, since: now, initiator_name, gives_way };
        state.entries.insert(number, entry);
        Ok((Entered { connections: Arc::clone(self), number, takes_place }, control))
    }

    /// Notes the initiator that logged in on a connection. Returns `false` when it already has as
    /// many connections as it may.
    pub(crate) fn log_in(&self, number: u64, initiator_name: &str, quota: &Quota) -> bool {
        let mut state = self.lock();
        let is_own = |entry: &&Entry| {
            entry.initiator_name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(initiator_name))
        };
        if state.entries.values().filter(is_own).count() >= quota.connections_per_initiator {
            return false;
        }
        if let Some(entry) = state.entries.get_mut(&number) {
            entry.initiator_name = Some(initiator_name.to_owned());
        }
        true
    }

    /// Accepts no new connections from now on. Returns those in the table.
    pub(crate) fn drain(&self) -> Vec<Handle> {
        let mut state = self.lock();
        state.is_draining = true;
        state.entries.values().map(|entry| entry.handle.clone()).collect()
    }

    /// All connections by their number, oldest first, with what this table knows of them.
    pub(crate) fn statuses(&self, now: Instant) -> BTreeMap<u64, ConnectionStatus> {
        let of = |(&number, entry): (&u64, &Entry)| {
            let status = ConnectionStatus {
                peer: entry.addresses.peer.clone(),
                local: entry.addresses.local.clone(),
                portal_group_tag: entry.portal_group_tag,
                age_ms: u64::try_from(now.since(entry.since).as_millis()).unwrap_or(u64::MAX),
                ..ConnectionStatus::default()
            };
            (number, status)
        };
        self.lock().entries.iter().map(of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address without its port, so that all connections of one host count together.
pub(crate) fn host(peer: &str) -> String {
    peer.parse::<SocketAddr>().map_or_else(|_| peer.to_owned(), |address| address.ip().to_string())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn addresses(peer: &str) -> Addresses {
        Addresses { local: "127.0.0.1:3260".to_owned(), peer: peer.to_owned() }
    }

    #[test]
    fn an_address_has_a_bound_until_it_has_logged_in() {
        let connections = Arc::new(Connections::default());
        let quota = Quota { unauthenticated_per_address: 2, connections_per_initiator: 2, ..Quota::default() };
        let now = Instant::from_nanoseconds(0);
        let enter = |peer: &str| connections.enter(&addresses(peer), 1, now, &quota).expect("there is room");
        let directive = |control: &Control| control.poll_directive(&Context::from_waker(Waker::noop()));
        let (first, second) = (enter("10.0.0.1:1"), enter("10.0.0.1:2"));
        let other = enter("10.0.0.2:3");
        assert_eq!(
            [directive(&first.1), directive(&second.1)],
            [Directive::Run; 2],
            "another address is another matter"
        );
        let third = enter("10.0.0.1:3");
        let wishes = [&first.1, &second.1, &third.1, &other.1].map(directive);
        assert_eq!(wishes, [Directive::Stop, Directive::Run, Directive::Run, Directive::Run], "the oldest gives way");
        let (first, third) = (second.0, third.0);
        assert!(connections.log_in(first.number, "iqn.a", &quota));
        assert!(connections.log_in(third.number, "IQN.A", &quota));
        let (fourth, fourth_control) = enter("10.0.0.1:4");
        let _fifth = enter("10.0.0.1:5");
        assert_eq!(directive(&fourth_control), Directive::Run, "two have logged in");
        assert!(!connections.log_in(fourth.number, "iqn.a", &quota), "the initiator has two");
        drop(first);
        assert!(connections.log_in(fourth.number, "iqn.a", &quota), "one is gone");
    }
}
