//! Sessions that wait for their turns: initiators one after the other, and the sessions of each in their order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// Who waits. A host with many sessions waits no less long than one with a single session.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Initiator names, each once, in the order of their turns.
    names: VecDeque<Arc<str>>,
    /// The sessions of each name that waits: never empty.
    sessions: BTreeMap<Arc<str>, VecDeque<(u64, Waker)>>,
}

impl Waiting {
    /// Session `number` of `name` waits from now on.
    pub(crate) fn push(&mut self, name: &Arc<str>, number: u64, waker: Waker) {
        if !self.sessions.contains_key(name) {
            self.names.push_back(Arc::clone(name));
        }
        self.sessions.entry(Arc::clone(name)).or_default().push_back((number, waker));
    }

    /// Whose turn it is.
    pub(crate) fn first(&self) -> Option<&(u64, Waker)> {
        self.sessions.get(self.names.front()?)?.front()
    }

    /// The first one waits no more. The next session of its initiator has its turn after all other initiators.
    pub(crate) fn pop_first(&mut self) {
        let Some(name) = self.names.pop_front() else { return };
        let Some(sessions) = self.sessions.get_mut(&name) else { return };
        sessions.pop_front();
        match sessions.is_empty() {
            true => drop(self.sessions.remove(&name)),
            false => self.names.push_back(name),
        }
    }

    /// How session `number` of `name` is woken.
    pub(crate) fn waker_mut(&mut self, name: &str, number: u64) -> Option<&mut Waker> {
        let mut sessions = self.sessions.get_mut(name)?.iter_mut();
        sessions.find(|(other, _)| *other == number).map(|(_, waker)| waker)
    }

    /// Session `number` of `name` is no more.
    pub(crate) fn remove(&mut self, name: &str, number: u64) {
        let Some(sessions) = self.sessions.get_mut(name) else { return };
        sessions.retain(|(other, _)| *other != number);
        if sessions.is_empty() {
            self.sessions.remove(name);
            self.names.retain(|other| **other != *name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(pairs: &[(&str, u64)]) -> Waiting {
        let mut waiting = Waiting::default();
        pairs.iter().for_each(|&(name, number)| waiting.push(&name.into(), number, Waker::noop().clone()));
        waiting
    }

    fn order(mut waiting: Waiting) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(&(number, _)) = waiting.first() {
            order.push(number);
            waiting.pop_first();
        }
        order
    }

    #[test]
    fn initiators_take_turns_whatever_the_count_of_their_sessions() {
        let pairs = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)];
        assert_eq!(order(waiting(&pairs)), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let mut left = waiting(&[("a", 1), ("a", 2), ("b", 3), ("c", 4)]);
        left.remove("a", 1);
        left.remove("b", 3);
        left.remove("d", 7);
        assert!(left.waker_mut("a", 1).is_none() && left.waker_mut("a", 2).is_some());
        assert_eq!(order(left), [2, 4]);
    }
}
