//! Connections that have not finished the handshake.
//!
//! Only a connection that has finished the handshake gets a place of the server: clients that
//! connect and send nothing must not exclude others. Until then it has one of many other places.
//! When all of these are taken, one is closed: the oldest of the peer that has most of them. A peer
//! is a user on a socket file, an address otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The peer of a connection, as far as the socket shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A process of a user, by its number.
    User(u32),
    Address(IpAddr),
    Unknown,
}

/// The connections of one server in their handshakes.
#[derive(Default)]
pub(crate) struct Handshakes {
    state: Mutex<State>,
}

/// Sections are short.
#[derive(Default)]
struct State {
    last: u64,
    /// Oldest first.
    entries: VecDeque<Entry>,
}

struct Entry {
    number: u64,
    peer: Peer,
    /// Dropped to close it.
    _keep: oneshot::Sender<()>,
}

impl State {
    /// Closes the oldest of the peer that has most.
    fn give_way(&mut self) {
        let mut counts = BTreeMap::<Peer, usize>::new();
        for entry in &self.entries {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let Some((&most, _)) = counts.iter().max_by_key(|(_, count)| **count) else { return };
        if let Some(oldest) = self.entries.iter().position(|entry| entry.peer == most) {
            self.entries.remove(oldest);
        }
    }
}

impl Handshakes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a handshake, of which at most `most` may exist.
    pub(crate) fn begin(self: &Arc<Self>, peer: Peer, most: usize) -> Handshake {
        let (keep, ended) = oneshot::channel();
        let mut state = self.lock();
        if state.entries.len() >= most {
            state.give_way();
        }
        state.last += 1;
        let number = state.last;
        state.entries.push_back(Entry { number, peer, _keep: keep });
        drop(state);
        Handshake { handshakes: Arc::clone(self), number, ended }
    }
}

/// The place of a handshake, freed when this is dropped.
pub(crate) struct Handshake {
    handshakes: Arc<Handshakes>,
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Handshake {
    /// Ready when it must be closed.
    pub(crate) async fn has_to_give_way(&mut self) {
        // No value is ever sent: the sender is dropped.
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut state = self.handshakes.lock();
        state.entries.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gives_way(handshake: &mut Handshake) -> bool {
        handshake.has_to_give_way().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_of_who_has_most_gives_way() {
        let handshakes = Arc::<Handshakes>::default();
        let mut good = handshakes.begin(Peer::User(1), 4);
        let mut flood: Vec<Handshake> = (0..10).map(|_| handshakes.begin(Peer::User(2), 4)).collect();
        assert!(!gives_way(&mut good));
        let over: Vec<bool> = flood.iter_mut().map(gives_way).collect();
        assert_eq!(over, [true, true, true, true, true, true, true, false, false, false]);
        let mut other = handshakes.begin(Peer::Address(IpAddr::from([127, 0, 0, 1])), 4);
        assert!(!gives_way(&mut good) && !gives_way(&mut other) && gives_way(&mut flood[7]));
    }

    #[test]
    fn who_has_finished_has_left() {
        let handshakes = Arc::<Handshakes>::default();
        let mut first = handshakes.begin(Peer::Unknown, 2);
        drop(handshakes.begin(Peer::Unknown, 2));
        let _second = handshakes.begin(Peer::Unknown, 2);
        assert!(!gives_way(&mut first));
        let _third = handshakes.begin(Peer::Unknown, 2);
        assert!(gives_way(&mut first));
    }
}
