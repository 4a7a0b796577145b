//! Who is still to be told that what it wrote may be lost.
//!
//! A device that could not make writes durable forgets them, and one answer tells one initiator, while what is lost may
//! be another's. So each I_T nexus that ever was here is owed one failed flush, unless its own flush has told it. A
//! unit attention tells it, too; but many initiators take no notice of one, nor of a deferred error, and their next
//! flush would succeed without what they wrote before.
//!
//! One that comes back is still owed what it was: a session that is reinstated takes no writes back.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::WRITERS_REMEMBERED_MAX;
use crate::nexus::NexusId;

/// What one logical unit owes.
#[derive(Default)]
pub(crate) struct LostWrites {
    /// Whether `owed` has any: a flush costs one load.
    is_any_owed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those who were here, the latest last.
    known: VecDeque<NexusId>,
    owed: BTreeSet<NexusId>,
}

impl LostWrites {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A nexus is here, perhaps again.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        let mut state = self.lock();
        state.known.retain(|known| known != nexus);
        if state.known.len() == WRITERS_REMEMBERED_MAX {
            state.known.pop_front();
        }
        state.known.push_back(nexus.clone());
    }

    /// The device lost what it had not made durable.
    pub(crate) fn note_loss(&self) {
        let mut state = self.lock();
        let State { known, owed } = &mut *state;
        owed.extend(known.iter().cloned());
        self.is_any_owed.store(!owed.is_empty(), Ordering::Release);
    }

    /// Whether this nexus is to be told now; it is told once.
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
        // It comes back, and another one for the first time.
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
