//! Reads and writes on their way to the device, where several connections have some.
//!
//! A device carries requests out in an order of its own, mostly the one in which they came: who comes with one block
//! waits for all that others have in it. So what they may have in it together depends on who is there.
//!
//! | connections that have asked for something lately | in the device, of all that ask for much |
//! |---|---|
//! | one | what a connection may have under way |
//! | several | the same together ([`SHARED_COST`]) |
//! | several, one of them for little at a time | what a request for little hardly waits for ([`Room`]) |
//!
//! Those who ask for much take turns, by bytes ([`block::fair_queue`]), each with a piece of a request. Who asks for
//! little waits for nobody here. A place in the device is left when the device has answered, so that no client can hold
//! one; where it answers on the spot it is the thread that is shared, and the place is left after the runtime has
//! looked at the sockets of others.

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

/// What a request of so many bytes costs a device: a small one is not for nothing.
pub(crate) fn cost_of(bytes: u64) -> u64 {
    REQUEST_COST.saturating_add(bytes)
}

/// Which connections have something in the device, and which wait. One for each server.
#[derive(Default)]
pub(crate) struct Admission(Mutex<State>);

/// Short sections, never across an await.
#[derive(Default)]
struct State {
    waiting: FairQueue<Waiting>,
    /// Cost of the pieces that are in the device by their turn.
    running: u64,
    /// What may be in the device beside a connection that asks for little.
    beside_light: Room,
    /// Connections that have asked for something.
    seen: BTreeMap<Submitter, Seen>,
}

/// The other connections that have asked for something lately.
enum Neighbours {
    None,
    Heavy,
    /// At least one of them asks for little.
    Light,
}

struct Seen {
    /// Until when it counts as being there; `None` while it has something under way.
    until: Option<Instant>,
    /// It asks for little at a time.
    is_light: bool,
}

struct Waiting {
    bytes: u64,
    turn: oneshot::Sender<Place>,
}

impl State {
    /// What those who ask for much may have in the device.
    fn room(&self, now: Instant) -> u64 {
        match self.neighbours(now) {
            Neighbours::None => u64::MAX,
            Neighbours::Heavy => SHARED_COST,
            Neighbours::Light => self.beside_light.cost(),
        }
    }

    /// Who is there.
    fn neighbours(&self, now: Instant) -> Neighbours {
        let there = || self.seen.values().filter(|seen| seen.until.is_none_or(|until| now < until));
        match (there().nth(1).is_some(), there().any(|seen| seen.is_light)) {
            (false, _) => Neighbours::None,
            (true, false) => Neighbours::Heavy,
            (true, true) => Neighbours::Light,
        }
    }

    /// Bytes of a piece that has its turn now, where so many are left; `None` where there is no room for it. Whoever
    /// would be alone has his turn.
    fn piece(&self, left: u64, now: Instant) -> Option<u64> {
        let room = self.room(now);
        let bytes = left.min((room / PIECES_IN_ROOM).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX));
        (self.running == 0 || self.running.saturating_add(cost_of(bytes)) <= room).then_some(bytes)
    }

    /// Those whose turn it is, with the bytes that each may have.
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

    /// A place in the device for a piece of what is left of a request, or the turn for one.
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
                // What comes next finds another device.
                Neighbours::None | Neighbours::Heavy => state.beside_light = Room::default(),
            }
            state.admit(now)
        };
        for Waiting { bytes, turn } in admitted {
            // A place that nobody takes any more is left at once.
            drop(turn.send(self.place(bytes)));
        }
    }
}

/// A place in the device, while it lives.
pub(crate) struct Place {
    admission: Arc<Admission>,
    /// Bytes for which it is, at most.
    pub(crate) bytes: u64,
    begun: Instant,
    was_immediate: bool,
}

impl Place {
    /// Carries out `work`, which the place is for.
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

/// One connection on its way to the device.
pub(crate) struct ConnectionTurns {
    turns: DeviceTurns,
    /// Until when it counts as one that asks for much.
    heavy_until: Option<Instant>,
    /// Whether its last request was one that takes turns.
    takes_turns: bool,
    /// Whether one that asks for little was there then.
    is_beside_light: bool,
    /// Requests under way.
    count: u64,
}

impl ConnectionTurns {
    pub(crate) fn new(admission: Arc<Admission>, submitter: Submitter) -> Self {
        let turns = DeviceTurns { admission, submitter };
        Self { turns, heavy_until: None, takes_turns: false, is_beside_light: false, count: 0 }
    }

    /// A request comes, with which all that the connection has under way costs so much. `None` where it goes at once,
    /// as a whole.
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

    /// Whether there are others with whom it takes turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// Whether it takes turns beside one who asks for little.
    pub(crate) fn is_beside_light(&self) -> bool {
        self.is_beside_light
    }

    /// A request that came this way is over.
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

/// The turns of one connection among those who ask for much.
#[derive(Clone)]
pub(crate) struct DeviceTurns {
    admission: Arc<Admission>,
    submitter: Submitter,
}

impl DeviceTurns {
    /// A place for a piece of so many bytes at most, when its turn comes.
    pub(crate) async fn enter(&self, bytes: u64) -> Place {
        match self.admission.enter(self.submitter, bytes) {
            Ok(place) => place,
            Err(turn) => turn.await.expect("only who waits no more is forgotten"),
        }
    }
}
