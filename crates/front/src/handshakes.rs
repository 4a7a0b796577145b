//! Connections that have not finished the handshake.
//!
//! A place among the connections of a server is for who has finished it: whoever connects and says nothing must not
//! keep others out. Until then it has one of other places, of which there are many. When all are taken, the oldest
//! gives way of those who have most of them: processes of one user on a socket file, connections from one address else.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Who connects, as far as a socket tells.
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
    /// Dropped when it gives way.
    _keep: oneshot::Sender<()>,
}

impl State {
    /// The oldest of who has most.
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

    /// A connection begins its handshake, as one of at most `most`.
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

/// A handshake, while it lives.
pub(crate) struct Handshake {
    handshakes: Arc<Handshakes>,
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Handshake {
    /// Ready when it has to give way.
    pub(crate) async fn has_to_give_way(&mut self) {
        // Nobody sends anything: the sender is dropped.
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
