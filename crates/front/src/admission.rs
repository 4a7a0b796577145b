//! Admission of reads and writes to the device, when several connections have requests: those of the NBD
//! server, and the initiators of a gateway ([`crate::turns_layer`]), in one line.
//!
//! A connection is *light* while it has little under way, at most [`LIGHT_COST`], and *heavy*
//! otherwise.
//!
//! A device orders requests itself, mostly by arrival: a request for one block waits for all others
//! in the device. So how much heavy connections may have there together depends on the active
//! connections.
//!
//! | active connections | in the device, of all heavy ones together |
//! |---|---|
//! | one | what a connection may have under way |
//! | several | as much as one may have under way ([`SHARED_COST`]) |
//! | several, one of them light | as much as hardly delays a light request ([`Room`]) |
//!
//! Heavy connections take turns, by bytes ([`block::fair_queue`]), each with a piece of a request.
//! Light ones never wait here. A place in the device is freed when the device has answered, so no
//! client can hold one. If the device answers at once, the thread is the shared resource, and the
//! place is freed after the runtime has looked at the sockets of others.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{FairQueue, Submitter};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::limits::{
    BESIDE_TIME, LIGHT_COST, PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES_IN_ROOM, REQUEST_COST, SHARED_COST,
};
use crate::room::Room;

/// The cost of a request of this many bytes to a device: a small one has a cost, too.
pub(crate) fn cost_of(bytes: u64) -> u64 {
    REQUEST_COST.saturating_add(bytes)
}

/// The connections with requests in the device, and those that wait. One for all fronts of a device.
#[derive(Default)]
pub struct Admission(Mutex<State>);

/// Short sections, never across an await.
#[derive(Default)]
struct State {
    waiting: FairQueue<Waiting>,
    /// Cost of the pieces in the device that were admitted by turn.
    running: u64,
    /// The cost allowed in the device beside a light connection.
    beside_light: Room,
    /// Connections that have sent requests, while they live.
    seen: BTreeMap<Submitter, Seen>,
}

/// The other active connections.
enum Neighbours {
    None,
    Heavy,
    /// At least one of them is light.
    Light,
}

struct Seen {
    /// Until when it counts as active; `None` while it has requests under way.
    until: Option<Instant>,
    /// Whether it is light.
    is_light: bool,
}

struct Waiting {
    bytes: u64,
    turn: oneshot::Sender<Place>,
}

impl State {
    /// The cost that heavy connections may have in the device.
    fn room(&self, now: Instant) -> u64 {
        match self.neighbours(now) {
            Neighbours::None => u64::MAX,
            Neighbours::Heavy => SHARED_COST,
            Neighbours::Light => self.beside_light.cost(),
        }
    }

    /// The other connections that are active.
    fn neighbours(&self, now: Instant) -> Neighbours {
        let there = || self.seen.values().filter(|seen| seen.until.is_none_or(|until| now < until));
        match (there().nth(1).is_some(), there().any(|seen| seen.is_light)) {
            (false, _) => Neighbours::None,
            (true, false) => Neighbours::Heavy,
            (true, true) => Neighbours::Light,
        }
    }

    /// Bytes of the piece that may start now, if `left` are left; `None` where there is no room for
    /// it. A piece that would be alone may always start.
    fn piece(&self, left: u64, now: Instant) -> Option<u64> {
        let room = self.room(now);
        let bytes = left.min((room / PIECES_IN_ROOM).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX));
        (self.running == 0 || self.running.saturating_add(cost_of(bytes)) <= room).then_some(bytes)
    }

    /// Takes those that may start from the queue, with the bytes that each may have.
    fn admit(&mut self, now: Instant) -> Vec<Waiting> {
        let mut admitted = Vec::new();
        while let Some(next) = self.waiting.peek() {
            let is_gone = next.turn.is_closed();
            let Some(bytes) = self.piece(next.bytes, now).or(is_gone.then_some(0)) else { break };
            let Some(next) = self.waiting.pop() else { break };
            if !is_gone {
                self.running += cost_of(bytes);
                admitted.push(Waiting { bytes, ..next });
            }
        }
        admitted
    }
}

impl Admission {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the device for a piece of the `left` bytes of a request; or the turn for one.
    fn enter(self: &Arc<Self>, submitter: Submitter, left: u64) -> Result<Place, oneshot::Receiver<Place>> {
        let mut state = self.lock();
        if state.waiting.is_empty()
            && let Some(bytes) = state.piece(left, Instant::now())
        {
            state.running += cost_of(bytes);
            return Ok(self.place(bytes));
        }
        let (turn, receiver) = oneshot::channel();
        let bytes = left.min(PIECE_BYTES_MAX);
        state.waiting.push(submitter, cost_of(bytes), Waiting { bytes, turn });
        Err(receiver)
    }

    fn place(self: &Arc<Self>, bytes: u64) -> Place {
        Place { admission: Arc::clone(self), bytes, begun: Instant::now(), was_immediate: false }
    }

    fn leave(self: &Arc<Self>, place: &Place) {
        let admitted = {
            let (mut state, now) = (self.lock(), Instant::now());
            state.running -= cost_of(place.bytes);
            match state.neighbours(now) {
                Neighbours::Light if place.was_immediate => state.beside_light.learn_immediate(),
                Neighbours::Light => state.beside_light.learn(place.begun, now),
                // The next requests find another mix of connections.
                Neighbours::None | Neighbours::Heavy => state.beside_light = Room::default(),
            }
            state.admit(now)
        };
        for Waiting { bytes, turn } in admitted {
            // The place of a request that was dropped is freed at once.
            drop(turn.send(self.place(bytes)));
        }
    }
}

/// A place in the device, freed when this is dropped.
pub(crate) struct Place {
    admission: Arc<Admission>,
    /// Most bytes for which it is.
    pub(crate) bytes: u64,
    begun: Instant,
    was_immediate: bool,
}

impl Place {
    /// Carries out `work` in this place.
    pub(crate) async fn carry_out<F: Future>(mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        if let Some(done) = work.as_mut().now_or_never() {
            self.was_immediate = true;
            tokio::task::yield_now().await;
            return done;
        }
        work.await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.leave(self);
    }
}

/// The admission of one connection's requests.
pub(crate) struct ConnectionTurns {
    turns: DeviceTurns,
    /// Until when it counts as heavy.
    heavy_until: Option<Instant>,
    /// Whether its last request was one that takes turns.
    takes_turns: bool,
    /// Whether a light connection was active then.
    is_beside_light: bool,
    /// Requests under way.
    count: u64,
}

impl ConnectionTurns {
    pub(crate) fn new(admission: Arc<Admission>, submitter: Submitter) -> Self {
        let turns = DeviceTurns { admission, submitter };
        Self { turns, heavy_until: None, takes_turns: false, is_beside_light: false, count: 0 }
    }

    /// Notes a new request; `cost` is that of all requests of the connection under way, this one
    /// included. Returns `None` where it may start at once, as a whole.
    pub(crate) fn enter(&mut self, cost: u64) -> Option<DeviceTurns> {
        let now = Instant::now();
        if cost > LIGHT_COST {
            self.heavy_until = Some(now + BESIDE_TIME);
        }
        self.count += 1;
        let is_light = self.heavy_until.is_none_or(|until| until <= now);
        let mut state = self.turns.admission.lock();
        state.seen.insert(self.turns.submitter, Seen { until: None, is_light });
        self.takes_turns = !is_light && state.room(now) < u64::MAX;
        self.is_beside_light = self.takes_turns && matches!(state.neighbours(now), Neighbours::Light);
        self.takes_turns.then(|| self.turns.clone())
    }

    /// Whether it takes turns with other heavy connections.
    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// Whether it takes turns while a light connection is active.
    pub(crate) fn is_beside_light(&self) -> bool {
        self.is_beside_light
    }

    /// Whether nothing tells it from a new one: its last request ended long ago.
    pub(crate) fn has_rested(&self, now: Instant) -> bool {
        let state = self.turns.admission.lock();
        let seen = state.seen.get(&self.turns.submitter);
        seen.is_none_or(|seen| seen.until.is_some_and(|until| until <= now))
    }

    /// Notes that such a request has ended.
    pub(crate) fn leave(&mut self) {
        self.count -= 1;
        if self.count > 0 {
            return;
        }
        if let Some(seen) = self.turns.admission.lock().seen.get_mut(&self.turns.submitter) {
            seen.until = Some(Instant::now() + BESIDE_TIME);
        }
    }
}

impl Drop for ConnectionTurns {
    fn drop(&mut self) {
        self.turns.admission.lock().seen.remove(&self.turns.submitter);
    }
}

/// The turns of one connection among the heavy ones.
#[derive(Clone)]
pub(crate) struct DeviceTurns {
    admission: Arc<Admission>,
    submitter: Submitter,
}

impl DeviceTurns {
    /// Waits for the turn of a piece of at most this many bytes.
    pub(crate) async fn enter(&self, bytes: u64) -> Place {
        match self.admission.enter(self.submitter, bytes) {
            Ok(place) => place,
            Err(turn) => turn.await.expect("only who waits no more is forgotten"),
        }
    }
}
