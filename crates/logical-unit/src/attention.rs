//! Unit attentions: conditions reported to an I_T nexus before its next command is carried out
//! (SAM-5 5.14).
//!
//! One queue per nexus, each condition in it at most once. While no condition is pending, a command
//! costs one relaxed load.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use scsi::Sense;

use crate::limits::UNIT_ATTENTIONS_MAX;
use crate::nexus::NexusId;

/// The unit attentions of one logical unit.
#[derive(Default)]
pub(crate) struct UnitAttentions {
    /// Count of pending conditions of all nexuses; changes only under `queues`.
    waiting: AtomicUsize,
    queues: Mutex<BTreeMap<NexusId, VecDeque<Sense>>>,
}

impl UnitAttentions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NexusId, VecDeque<Sense>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a nexus, with the power-on condition pending.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        self.lock().entry(nexus.clone()).or_default();
        self.establish_for(nexus, Sense::POWER_ON_OR_RESET);
    }

    /// Removes a nexus with its pending conditions.
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        let mut queues = self.lock();
        if let Some(queue) = queues.remove(nexus) {
            self.waiting.fetch_sub(queue.len(), Ordering::Release);
        }
    }

    /// Establishes a condition for one nexus, if it exists.
    pub(crate) fn establish_for(&self, nexus: &NexusId, sense: Sense) {
        if let Some(queue) = self.lock().get_mut(nexus) {
            self.push(queue, sense);
        }
    }

    /// Establishes a condition for every nexus but `except`.
    pub(crate) fn establish(&self, sense: Sense, except: Option<&NexusId>) {
        for (nexus, queue) in self.lock().iter_mut() {
            if except != Some(nexus) {
                self.push(queue, sense);
            }
        }
    }

    fn push(&self, queue: &mut VecDeque<Sense>, sense: Sense) {
        if queue.iter().any(|waiting| waiting.is_same_condition(&sense)) {
            return;
        }
        if queue.len() == UNIT_ATTENTIONS_MAX {
            queue.pop_front();
        } else {
            self.waiting.fetch_add(1, Ordering::Release);
        }
        queue.push_back(sense);
    }

    /// Whether a condition is pending for a nexus.
    pub(crate) fn is_waiting_for(&self, nexus: &NexusId) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.lock().get(nexus).is_some_and(|queue| !queue.is_empty())
    }

    /// Takes the next condition of a nexus, which is thereby reported.
    pub(crate) fn take(&self, nexus: &NexusId) -> Option<Sense> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let sense = self.lock().get_mut(nexus)?.pop_front()?;
        self.waiting.fetch_sub(1, Ordering::Release);
        Some(sense)
    }

    /// Removes one condition of a nexus, which has just been reported in another way.
    pub(crate) fn forget(&self, nexus: &NexusId, sense: &Sense) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(queue) = self.lock().get_mut(nexus) {
            let before = queue.len();
            queue.retain(|waiting| !waiting.is_same_condition(sense));
            self.waiting.fetch_sub(before - queue.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_is_told_once_to_each_nexus() {
        let attentions = UnitAttentions::default();
        let (first, second) = (NexusId::new("first"), NexusId::new("second"));
        attentions.add_nexus(&first);
        attentions.add_nexus(&second);
        attentions.establish(Sense::CAPACITY_CHANGED, Some(&second));
        attentions.establish(Sense::CAPACITY_CHANGED, None);
        assert_eq!(attentions.take(&first), Some(Sense::POWER_ON_OR_RESET));
        assert_eq!(attentions.take(&first), Some(Sense::CAPACITY_CHANGED));
        assert_eq!(attentions.take(&first), None);
        attentions.forget(&second, &Sense::POWER_ON_OR_RESET);
        assert_eq!(attentions.take(&second), Some(Sense::CAPACITY_CHANGED));
        assert_eq!(attentions.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_nexus_takes_its_conditions_with_it() {
        let attentions = UnitAttentions::default();
        let nexus = NexusId::new("nexus");
        attentions.add_nexus(&nexus);
        attentions.remove_nexus(&nexus);
        attentions.establish(Sense::CAPACITY_CHANGED, None);
        assert_eq!(attentions.take(&nexus), None);
        assert_eq!(attentions.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_queue_forgets_its_oldest() {
        let attentions = UnitAttentions::default();
        let nexus = NexusId::new("nexus");
        attentions.add_nexus(&nexus);
        for ascq in 0..UNIT_ATTENTIONS_MAX as u8 {
            attentions.establish_for(&nexus, Sense::new(scsi::SenseKey::UnitAttention, 0x80, ascq));
        }
        assert_eq!(attentions.waiting.load(Ordering::Relaxed), UNIT_ATTENTIONS_MAX);
        assert_eq!(attentions.take(&nexus).map(|sense| (sense.asc, sense.ascq)), Some((0x80, 0)));
    }
}
