//! The power of one or more media: it is on, or lost for good.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{Event, EventHub};

/// A power supply. Clones are the same supply. Once lost it never comes back: the next start has a new one.
#[derive(Clone, Default)]
pub struct Power {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    writes_seen: u64,
    fails_at: Option<u64>,
    is_lost: bool,
    hubs: Vec<EventHub>,
}

impl Power {
    /// A power that is on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails at mutating request `nth`, counted from 0 over all media on this power.
    pub fn fail_write(&self, nth: u64) {
        self.lock().fails_at = Some(nth);
    }

    /// Fails now. Each medium's seed decides about its writes that are not durable.
    pub fn lose(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_lost, true) {
            let hubs = state.hubs.clone();
            drop(state);
            hubs.iter().for_each(|hub| hub.publish(&Event::Offline));
        }
    }

    /// Whether it has failed.
    pub fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Mutating requests counted so far, over all media on this power.
    pub fn writes_seen(&self) -> u64 {
        self.lock().writes_seen
    }

    /// Registers a medium, whose subscribers get an event when the power fails.
    pub(super) fn attach(&self, hub: EventHub) {
        self.lock().hubs.push(hub);
    }

    /// Counts a mutating request. Returns whether the power is lost, or fails at it. Media call
    /// this themselves; other things on a power, such as persistent memory, count their own.
    pub fn see_write(&self) -> bool {
        let mut state = self.lock();
        if state.is_lost {
            return true;
        }
        let ordinal = state.writes_seen;
        state.writes_seen += 1;
        if state.fails_at != Some(ordinal) {
            return false;
        }
        drop(state);
        self.lose();
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
