//! The nexuses to which a loss of writes has still to be reported.
//!
//! A device that could not make writes durable forgets them. Its one failed answer reaches one
//! initiator, while the lost data may be another's. So one flush of each I_T nexus that was ever
//! present fails, unless its own flush has reported the loss. A unit attention reports it, too; but
//! many initiators ignore it, and deferred errors as well, and their next flush would succeed
//! without their earlier writes.
//!
//! The report is still due to a nexus that comes back: a reinstated session does not write lost
//! data again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::WRITERS_REMEMBERED_MAX;
use crate::nexus::NexusId;

/// The reports that are due at one logical unit.
#[derive(Default)]
pub(crate) struct LostWrites {
    /// Whether any report is due: a flush costs one load.
    is_any_owed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nexuses that were ever present, the latest last.
    known: VecDeque<NexusId>,
    owed: BTreeSet<NexusId>,
}

impl LostWrites {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a nexus, or moves it to the end.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        let mut state = self.lock();
        state.known.retain(|known| known != nexus);
        if state.known.len() == WRITERS_REMEMBERED_MAX {
            state.known.pop_front();
        }
        state.known.push_back(nexus.clone());
    }

    /// Makes a report due to every known nexus: the device lost what it had not made durable.
    pub(crate) fn note_loss(&self) {
        let mut state = self.lock();
        let State { known, owed } = &mut *state;
        owed.extend(known.iter().cloned());
        self.is_any_owed.store(!owed.is_empty(), Ordering::Release);
    }

    /// Whether the loss is to be reported to this nexus now; true once.
    pub(crate) fn tell(&self, nexus: &NexusId) -> bool {
        if !self.is_any_owed.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.lock();
        let was_owed = state.owed.remove(nexus);
        self.is_any_owed.store(!state.owed.is_empty(), Ordering::Release);
        was_owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_initiator_that_was_here_is_told_once_of_each_loss() {
        let lost = LostWrites::default();
        let [first, second, third] = ["first", "second", "third"].map(NexusId::new);
        lost.add_nexus(&first);
        lost.add_nexus(&second);
        assert!(!lost.tell(&first));
        lost.note_loss();
        // One nexus comes back, and another comes for the first time.
        lost.add_nexus(&second);
        lost.add_nexus(&third);
        assert!(lost.tell(&first) && !lost.tell(&first));
        assert!(lost.tell(&second) && !lost.tell(&second));
        assert!(!lost.tell(&third), "it had written nothing");
        assert!(!lost.is_any_owed.load(Ordering::Relaxed));
        lost.note_loss();
        assert!(lost.tell(&third) && lost.tell(&first));
    }

    #[test]
    fn those_remembered_are_bounded() {
        let lost = LostWrites::default();
        for number in 0..=WRITERS_REMEMBERED_MAX {
            lost.add_nexus(&NexusId::new(&number.to_string()));
        }
        assert_eq!(lost.lock().known.len(), WRITERS_REMEMBERED_MAX);
    }
}
