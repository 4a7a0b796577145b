//! Tasks under way in the order in which they came.
//!
//! Each keeps a place of its own until it leaves: it is added, found and taken out in a time that does not depend on
//! the count of the others, and without an allocation where as many were there before.

use std::task::Waker;

use crate::nexus::NexusId;

/// A task, with what it waits for.
pub(crate) struct Task {
    pub(crate) number: u64,
    pub(crate) nexus: NexusId,
    pub(crate) tag: u64,
    pub(crate) order: Order,
    pub(crate) abort: Option<Abort>,
    /// Whether its turn has come: it stays so, whatever comes later.
    pub(crate) has_turn: bool,
    /// Of the future that awaits its turn or its abort.
    pub(crate) waker: Option<Waker>,
}

/// The attributes, reduced to how they order tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Simple,
    Ordered,
    Head,
}

/// The nexus that aborted a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Its own nexus: the task ends without a response.
    ByItself,
    /// Another nexus: it ends with TASK ABORTED (TAS is set).
    ByAnother,
}

/// The place of a task, used again when it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// The place of no task.
const NOWHERE: Place = Place(u32::MAX);

/// The tasks of one logical unit.
pub(crate) struct TaskList {
    slots: Vec<Slot>,
    free: Vec<Place>,
    oldest: Place,
    youngest: Place,
}

struct Slot {
    task: Option<Task>,
    older: Place,
    younger: Place,
}

impl Default for TaskList {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), oldest: NOWHERE, youngest: NOWHERE }
    }
}

impl TaskList {
    /// Adds the youngest task.
    pub(crate) fn push(&mut self, task: Task) -> Place {
        let older = self.youngest;
        let slot = Slot { task: Some(task), older, younger: NOWHERE };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place.0 as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                Place(self.slots.len() as u32 - 1)
            }
        };
        match self.slots.get_mut(older.0 as usize) {
            Some(older) => older.younger = place,
            None => self.oldest = place,
        }
        self.youngest = place;
        place
    }

    /// Takes a task out; `None` where it has left.
    pub(crate) fn remove(&mut self, place: Place) -> Option<Task> {
        let Slot { task, older, younger } = self.slots.get_mut(place.0 as usize)?;
        let task = task.take()?;
        let (older, younger) = (*older, *younger);
        match self.slots.get_mut(older.0 as usize) {
            Some(older) => older.younger = younger,
            None => self.oldest = younger,
        }
        match self.slots.get_mut(younger.0 as usize) {
            Some(younger) => younger.older = older,
            None => self.youngest = older,
        }
        self.free.push(place);
        Some(task)
    }

    /// The task in a place.
    pub(crate) fn get(&self, place: Place) -> Option<&Task> {
        self.slots.get(place.0 as usize)?.task.as_ref()
    }

    /// The task in a place.
    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Task> {
        self.slots.get_mut(place.0 as usize)?.task.as_mut()
    }

    /// The number of the task that came first.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.get(self.oldest).map(|task| task.number)
    }

    /// All tasks with their places, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Task)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, slot)| slot.task.as_mut().map(|task| (Place(index as u32), task)))
    }

    /// Count of tasks.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::random::Random;

    fn task(number: u64) -> Task {
        let nexus = NexusId::new("nexus");
        Task { number, nexus, tag: number, order: Order::Simple, abort: None, has_turn: false, waker: None }
    }

    #[test]
    fn a_list_is_a_plain_vector_whatever_leaves_first() {
        let mut random = Random::new(7);
        let (mut list, mut plain) = (TaskList::default(), Vec::new());
        for number in 0..2000 {
            if random.below(9) < 5 || plain.is_empty() {
                plain.push((list.push(task(number)), number));
            } else {
                let (place, number) = plain.remove(random.below(plain.len() as u64) as usize);
                assert_eq!(list.remove(place).map(|task| task.number), Some(number));
            }
            assert_eq!(list.oldest(), plain.first().map(|(_, number)| *number));
            assert_eq!(list.count(), plain.len());
            assert!(plain.iter().all(|(place, number)| list.get(*place).is_some_and(|task| task.number == *number)));
        }
        let mut all: Vec<u64> = list.iter_mut().map(|(_, task)| task.number).collect();
        all.sort_unstable();
        assert_eq!(all, plain.iter().map(|(_, number)| *number).collect::<Vec<_>>());
        plain.drain(..).for_each(|(place, _)| drop(list.remove(place)));
        assert_eq!((list.count(), list.oldest(), list.youngest), (0, None, NOWHERE));
    }
}
