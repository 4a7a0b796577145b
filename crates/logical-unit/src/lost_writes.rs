//! The nexuses to which a loss of writes has still to be reported.
//!
//! A device that could not make writes durable forgets them. Its one failed answer reaches one
//! initiator, while the lost data may be another's. So one flush of each I_T nexus that is present, or
//! was, fails, unless its own flush has reported the loss. A unit attention reports it, too; but
//! many initiators ignore it, and deferred errors as well, and their next flush would succeed
//! without their earlier writes.
//!
//! The report is still due to a nexus that comes back: a reinstated session does not write lost
//! data again. An initiator may come back with another ISID, or by another portal, which makes it another nexus: so one
//! that is new is told for one that left under its name and was not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    present: BTreeSet<NexusId>,
    /// Those that were present and are not, who left last at the end.
    left: VecDeque<NexusId>,
    /// Some of these two, and whether a nexus that came since is told for it, too.
    owed: BTreeMap<NexusId, bool>,
}

impl State {
    /// Makes a report due to a nexus that was not here before, where one is due to another one of its name that left.
    fn inherit(&mut self, nexus: &NexusId) {
        let Self { present, left, owed } = self;
        if present.contains(nexus) || left.contains(nexus) {
            return;
        }
        let name = nexus.initiator_name();
        let mut of_name = owed.iter_mut().filter(|(gone, _)| gone.initiator_name() == name);
        let Some((_, has_heir)) = of_name.find(|(gone, has_heir)| !**has_heir && !present.contains(*gone)) else {
            return;
        };
        *has_heir = true;
        owed.insert(nexus.clone(), false);
    }
}

impl LostWrites {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A nexus is present.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        let mut state = self.lock();
        state.inherit(nexus);
        state.left.retain(|left| left != nexus);
        state.present.insert(nexus.clone());
    }

    /// A nexus leaves. It may come back; of those that left, the one that left first is forgotten when
    /// there are too many.
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        let mut state = self.lock();
        let Some(nexus) = state.present.take(nexus) else { return };
        if state.left.len() == WRITERS_REMEMBERED_MAX
            && let Some(forgotten) = state.left.pop_front()
        {
            state.owed.remove(&forgotten);
            self.is_any_owed.store(!state.owed.is_empty(), Ordering::Release);
        }
        state.left.push_back(nexus);
    }

    /// Makes a report due to every nexus, also to those that left: the device lost what it had not made
    /// durable.
    pub(crate) fn note_loss(&self) {
        let mut state = self.lock();
        let State { present, left, owed } = &mut *state;
        owed.extend(present.iter().chain(&*left).map(|nexus| (nexus.clone(), false)));
        self.is_any_owed.store(!owed.is_empty(), Ordering::Release);
    }

    /// Whether the loss is to be reported to this nexus now; true once.
    pub(crate) fn tell(&self, nexus: &NexusId) -> bool {
        if !self.is_any_owed.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.lock();
        let was_owed = state.owed.remove(nexus).is_some();
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
        lost.remove_nexus(&second);
        lost.add_nexus(&second);
        lost.add_nexus(&third);
        assert!(lost.tell(&first) && !lost.tell(&first));
        assert!(lost.tell(&second) && !lost.tell(&second));
        assert!(!lost.tell(&third), "it had written nothing");
        assert!(!lost.is_any_owed.load(Ordering::Relaxed));
        lost.note_loss();
        assert!(lost.tell(&third) && lost.tell(&first));
    }

    /// With another ISID, or by another portal. Who was told does not bring its report back.
    #[test]
    fn an_initiator_that_comes_back_as_another_nexus_is_told_once_of_what_it_was_not() {
        let lost = LostWrites::default();
        let nexus = |name: &str, isid: u32| NexusId::new(&format!("iqn.{name},i,0x{isid:012x},iqn.t,t,0x0001"));
        let (first, stays) = (nexus("host", 1), nexus("host", 2));
        lost.add_nexus(&first);
        lost.add_nexus(&stays);
        lost.remove_nexus(&first);
        lost.note_loss();
        let (second, third, other) = (nexus("host", 3), nexus("host", 4), nexus("other", 3));
        for one in [&second, &third, &other] {
            lost.add_nexus(one);
        }
        assert!(lost.tell(&second) && !lost.tell(&second));
        assert!(!lost.tell(&third), "one left, and one came for it: a host that starts often is not told each time");
        assert!(!lost.tell(&other), "of another name");
        assert!(lost.tell(&stays));
        lost.add_nexus(&first);
        assert!(lost.tell(&first), "itself in any case");
        lost.remove_nexus(&first);
        lost.add_nexus(&nexus("host", 5));
        assert!(!lost.tell(&nexus("host", 5)), "what left was told");
        lost.note_loss();
        lost.remove_nexus(&second);
        let [heir, next] = [6, 7].map(|isid| nexus("host", isid));
        lost.add_nexus(&heir);
        lost.remove_nexus(&heir);
        lost.add_nexus(&next);
        assert!(lost.tell(&next), "the one before it left without hearing of it");
    }

    fn nexus(number: usize) -> NexusId {
        NexusId::new(&number.to_string())
    }

    #[test]
    fn who_is_present_is_not_forgotten_whoever_comes_and_goes() {
        let lost = LostWrites::default();
        let here = NexusId::new("here");
        lost.add_nexus(&here);
        (0..WRITERS_REMEMBERED_MAX + 10).for_each(|number| lost.add_nexus(&nexus(number)));
        (0..WRITERS_REMEMBERED_MAX + 10).for_each(|number| lost.remove_nexus(&nexus(number)));
        lost.note_loss();
        assert!(lost.tell(&here));
        assert!(!lost.tell(&nexus(9)) && lost.tell(&nexus(10)), "who left first is forgotten");
    }

    #[test]
    fn who_came_back_is_not_forgotten_with_those_that_left() {
        let lost = LostWrites::default();
        let here = NexusId::new("here");
        lost.add_nexus(&here);
        lost.remove_nexus(&here);
        lost.add_nexus(&here);
        lost.note_loss();
        for number in 0..WRITERS_REMEMBERED_MAX {
            lost.add_nexus(&nexus(number));
            lost.remove_nexus(&nexus(number));
        }
        assert!(lost.tell(&here));
    }

    #[test]
    fn those_remembered_are_bounded() {
        let lost = LostWrites::default();
        for round in 0..3 {
            for number in 0..WRITERS_REMEMBERED_MAX {
                let nexus = nexus(round * WRITERS_REMEMBERED_MAX + number);
                lost.add_nexus(&nexus);
                lost.remove_nexus(&nexus);
            }
            lost.note_loss();
            let state = lost.lock();
            assert_eq!([state.present.len(), state.left.len()], [0, WRITERS_REMEMBERED_MAX]);
            assert_eq!(state.owed.len(), WRITERS_REMEMBERED_MAX, "nothing is owed to who is forgotten");
        }
        for number in 0..WRITERS_REMEMBERED_MAX {
            lost.tell(&nexus(2 * WRITERS_REMEMBERED_MAX + number));
        }
        assert!(lost.lock().owed.is_empty() && !lost.is_any_owed.load(Ordering::Relaxed));
    }
}
