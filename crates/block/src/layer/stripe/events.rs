//! Events of the members, as events of the stripe.
//!
//! | event of a member | event of the stripe |
//! |---|---|
//! | resized | resized, when its own geometry changes by it |
//! | offline | offline, when it is the first of them |
//! | back | back, when it is the last of them |
//! | identity changed, writes lost, missed | the same |
//! | invalidated | invalidated, of each unit; missed, when those are more than a subscriber takes |

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::SharedDevice;
use crate::event::{EventHub, EventReceiver};
use crate::geometry::Geometry;

/// The members' states, and the subscribers.
pub(super) struct Events {
    pub(super) hub: EventHub,
    /// Short sections, never across a call to a member.
    state: Mutex<State>,
}

struct State {
    geometry: Geometry,
    is_offline: Vec<bool>,
}

impl Events {
    pub(super) fn new(members: &[SharedDevice]) -> Self {
        let state = State { geometry: Geometry::plain(0), is_offline: vec![false; members.len()] };
        Self { hub: EventHub::new(), state: Mutex::new(state) }
    }

    pub(super) fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.lock().geometry
    }

    /// Sets the geometry. Returns whether it has changed.
    pub(super) fn set_geometry(&self, geometry: Geometry) -> bool {
        std::mem::replace(&mut self.lock().geometry, geometry) != geometry
    }

    pub(super) fn is_online(&self, member: usize) -> bool {
        self.lock().is_offline.get(member) == Some(&false)
    }

    /// Sets the state of a member. Returns whether this changes the state of the stripe.
    pub(super) fn set_offline(&self, member: usize, is_offline: bool) -> bool {
        let mut state = self.lock();
        let before = state.is_offline.contains(&true);
        if let Some(flag) = state.is_offline.get_mut(member) {
            *flag = is_offline;
        }
        before != state.is_offline.contains(&true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
