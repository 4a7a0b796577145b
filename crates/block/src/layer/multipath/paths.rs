//! The states of all paths, from their events, and the choice of the path for the next request.
//!
//! | event of a path | event of the device |
//! |---|---|
//! | offline | offline, when no path is left |
//! | back | back, when there was none |
//! | identity changed | the path gets no more requests; the same event, when no path is left |
//! | resized | resized, when the size is new |
//! | writes lost, missed | the same; the next flush goes there, or is told of a loss if it cannot |
//! | invalidated | the same |

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use base::range::ByteRange;

use super::path::{Access, Path, Policy};
use crate::device::SharedDevice;
use crate::event::{Event, EventHub, EventReceiver};
use crate::geometry::Geometry;
use crate::identity::Identity;

pub(super) struct Paths {
    devices: Vec<SharedDevice>,
    policy: Policy,
    hub: EventHub,
    /// Short sections; calls to paths inside only read their state.
    state: Mutex<State>,
}

struct State {
    receivers: Vec<EventReceiver>,
    states: Vec<PathState>,
    /// The path after the last one chosen, for round robin.
    turn: usize,
    geometry: Geometry,
}

#[derive(Default)]
struct PathState {
    is_offline: bool,
    /// How often it went offline.
    loss_count: u64,
    is_another_unit: bool,
    access: Access,
    request_count: u64,
    /// It lost acknowledged writes, or may have, and no flush was told of it.
    has_lost: bool,
    /// Ranges of changes that may still land through it.
    doubts: Vec<ByteRange>,
}

impl PathState {
    fn is_online(&self) -> bool {
        !self.is_offline && !self.is_another_unit
    }
}

/// The path that was chosen for a request.
pub(super) struct Chosen<'a> {
    pub(super) path: usize,
    pub(super) device: &'a SharedDevice,
    /// Whether it was offline then.
    is_offline: bool,
    /// How often it had gone offline until then.
    loss_count: u64,
}

impl Paths {
    pub(super) fn new(devices: Vec<SharedDevice>, policy: Policy) -> Self {
        let receivers = devices.iter().map(|device| device.subscribe()).collect();
        let states = devices.iter().map(|_| PathState::default()).collect();
        let geometry = devices.first().map_or(Geometry::plain(0), |device| device.geometry());
        let state = Mutex::new(State { receivers, states, turn: 0, geometry });
        Self { devices, policy, hub: EventHub::new(), state }
    }

    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    pub(super) fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.lock().geometry
    }

    /// Whether every write is sent with FUA: there are several paths to a unit with a volatile cache.
    pub(super) fn must_be_durable(&self) -> bool {
        self.devices.len() > 1 && self.devices.iter().any(|device| device.geometry().is_write_cache_volatile)
    }

    pub(super) fn identity(&self) -> Identity {
        let identities = self.devices.iter().map(|device| device.identity());
        identities.min_by(|one, other| one.target.cmp(&other.target)).unwrap_or_default()
    }

    pub(super) fn describe(&self) -> Vec<Path> {
        let describe = |state: &PathState| Path {
            is_online: state.is_online(),
            access: state.access,
            request_count: state.request_count,
            doubt_count: state.doubts.len(),
        };
        self.lock().states.iter().map(describe).collect()
    }

    pub(super) fn set_access(&self, path: usize, access: Access) {
        if let Some(state) = self.lock().states.get_mut(path) {
            state.access = access;
        }
    }

    /// Notes that `path` refused a request for its access state.
    pub(super) fn note_refusal(&self, path: usize) {
        self.set_access(path, Access::None);
    }

    /// The path for the next request, none of `tried`; with none online, one that may be back soon, if it `may_wait`
    /// for that. A flush goes to a path that has a loss to tell, if there is one online.
    pub(super) fn choose(&self, tried: &[usize], may_wait: bool, is_flush: bool) -> Option<Chosen<'_>> {
        self.drain();
        let mut state = self.lock();
        let count = state.states.len();
        let start = match self.policy {
            Policy::Failover => 0,
            Policy::RoundRobin => state.turn,
        };
        let in_turn = (0..count).map(|index| (start + index) % count).filter(|path| !tried.contains(path));
        let usable = in_turn.filter(|&path| may_wait || state.states[path].is_online());
        let path = usable.min_by_key(|&path| {
            let path = &state.states[path];
            (path.is_another_unit, path.is_offline, is_flush && !path.has_lost, path.access)
        })?;
        state.turn = (path + 1) % count;
        let device = &self.devices[path];
        let chosen = &mut state.states[path];
        chosen.request_count += 1;
        Some(Chosen { path, device, is_offline: chosen.is_offline, loss_count: chosen.loss_count })
    }

    /// Whether a path that leads to the unit was without its session at any time since it was chosen.
    pub(super) fn was_away(&self, chosen: &Chosen<'_>) -> bool {
        self.drain();
        let state = self.lock();
        let now = state.states.get(chosen.path).filter(|now| !now.is_another_unit);
        now.is_some_and(|now| chosen.is_offline || now.is_offline || now.loss_count != chosen.loss_count)
    }

    /// Whether `path` lost acknowledged writes of which no flush was told, as far as its events were handled.
    pub(super) fn has_lost(&self, path: usize) -> bool {
        self.lock().states.get(path).is_some_and(|state| state.has_lost)
    }

    /// Notes that a flush was told of everything that `path` has lost by now.
    pub(super) fn note_told(&self, path: usize) {
        self.drain();
        if let Some(state) = self.lock().states.get_mut(path) {
            state.has_lost = false;
        }
    }

    /// Whether any path lost acknowledged writes of which no flush was told. It counts as told from now on.
    pub(super) fn take_losses(&self) -> bool {
        let mut state = self.lock();
        let mut has_lost = false;
        for path in &mut state.states {
            has_lost |= std::mem::take(&mut path.has_lost);
        }
        has_lost
    }

    /// Notes a change of `range` with unknown outcome on `path`. If the path is online its session
    /// has ended the change already.
    pub(super) fn doubt(&self, path: usize, range: ByteRange) {
        self.drain();
        let mut state = self.lock();
        if let Some(state) = state.states.get_mut(path).filter(|state| state.is_offline) {
            state.doubts.push(range);
        }
    }

    /// The path through which a change that touches `range` may still land.
    pub(super) fn doubtful(&self, range: ByteRange) -> Option<usize> {
        self.drain();
        let touches = |state: &PathState| state.doubts.iter().any(|doubt| doubt.overlaps(&range));
        self.lock().states.iter().position(touches)
    }

    /// Handles the events of all paths; the context is woken by more.
    pub(super) fn poll_events(&self, context: &mut Context<'_>) {
        self.take_events(|receiver| match receiver.poll_receive(context) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        });
    }

    /// Handles the events received so far, so that decisions use the latest states.
    fn drain(&self) {
        self.take_events(EventReceiver::try_receive);
    }

    fn take_events(&self, mut take: impl FnMut(&EventReceiver) -> Option<Event>) {
        let mut news = Vec::new();
        {
            let mut state = self.lock();
            for path in 0..self.devices.len() {
                while let Some(event) = take(&state.receivers[path]) {
                    news.extend(self.handle_event(&mut state, path, event));
                }
            }
        }
        news.iter().for_each(|event| self.hub.publish(event));
    }

    /// Handles an event of a path. Returns the event of the device that follows.
    fn handle_event(&self, state: &mut State, path: usize, event: Event) -> Option<Event> {
        let was_online = state.states.iter().any(PathState::is_online);
        match event {
            Event::Offline => {
                state.states[path].is_offline = true;
                state.states[path].loss_count += 1;
            }
            Event::Back => {
                state.states[path].is_offline = false;
                state.states[path].doubts.clear();
            }
            Event::IdentityChanged => {
                state.states[path].is_another_unit = true;
                state.states[path].doubts.clear();
            }
            Event::Resized(geometry) => {
                let before = std::mem::replace(&mut state.geometry, geometry);
                return (before != geometry).then_some(event);
            }
            Event::WritesLost => {
                state.states[path].has_lost = true;
                return Some(event);
            }
            Event::Invalidated(_) => return Some(event),
            Event::Missed => {
                state.states[path].has_lost = true;
                state.geometry = self.devices[path].geometry();
                return Some(event);
            }
        }
        let is_online = state.states.iter().any(PathState::is_online);
        (was_online != is_online).then_some(event)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
