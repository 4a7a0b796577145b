//! Sessions that wait for their turns: hosts take turns, within a host its initiator names, within a name those of its
//! sessions that have come and those that have more to do, and of these one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Initiator {
    /// The address that it logged in from, without a port.
    pub(crate) host: Arc<str>,
    pub(crate) name: Arc<str>,
}

/// Why a session waits. A light one of a name with many heavy ones waits for a portion of one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Something has come for it.
    Come,
    /// It has had a portion, and has more to do.
    More,
}

type Sessions = VecDeque<(u64, Waker)>;

/// Sessions of one initiator name.
type OfName = Round<Cause, Sessions>;

/// Sessions of one host, by initiator name.
type OfHost = Round<Arc<str>, OfName>;

/// The waiting sessions. A host with many sessions waits as long as one with a single session,
/// whatever their names.
#[derive(Default)]
pub(crate) struct Waiting(Round<Arc<str>, OfHost>);

impl Waiting {
    /// Adds session `number` of `initiator`.
    pub(crate) fn push(&mut self, initiator: &Initiator, cause: Cause, number: u64, waker: Waker) {
        self.0.line(&initiator.host).line(&initiator.name).line(&cause).push_back((number, waker));
    }

    /// The session whose turn is next.
    pub(crate) fn first(&self) -> Option<&(u64, Waker)> {
        self.0.first()?.first()?.first()?.front()
    }

    /// Removes the first one. The next session of its initiator gets its turn after all other names
    /// of the host, and the host's next session after all other hosts.
    fn pop_first(&mut self) {
        self.0.pop_first();
    }

    fn of(&self, initiator: &Initiator) -> Option<&OfName> {
        self.0.lines.get(&initiator.host)?.lines.get(&initiator.name)
    }

    /// Whether a session of `initiator` waits.
    pub(crate) fn has(&self, initiator: &Initiator) -> bool {
        self.of(initiator).is_some()
    }

    /// The first of those sessions of `initiator` for which something has come.
    pub(crate) fn first_come_of(&self, initiator: &Initiator) -> Option<&(u64, Waker)> {
        self.of(initiator)?.lines.get(&Cause::Come)?.front()
    }

    /// Removes session `number` of `initiator`, whose turn it is. Where it is the first one of all, others are next.
    pub(crate) fn take(&mut self, initiator: &Initiator, number: u64) {
        if self.first().is_some_and(|(first, _)| *first == number) {
            self.pop_first();
        } else {
            self.remove(initiator, number);
        }
    }

    /// The waker of session `number` of `initiator`.
    pub(crate) fn waker_mut(&mut self, initiator: &Initiator, number: u64) -> Option<&mut Waker> {
        let names = self.0.lines.get_mut(&initiator.host)?;
        let mut sessions = names.lines.get_mut(&initiator.name)?.lines.values_mut().flatten();
        sessions.find(|(other, _)| *other == number).map(|(_, waker)| waker)
    }

    /// Removes session `number` of `initiator`.
    pub(crate) fn remove(&mut self, initiator: &Initiator, number: u64) {
        self.change(initiator, |sessions| {
            for cause in [Cause::Come, Cause::More] {
                sessions.change(&cause, |sessions| sessions.retain(|(other, _)| *other != number));
            }
        });
    }

    fn change(&mut self, initiator: &Initiator, change: impl FnOnce(&mut OfName)) {
        self.0.change(&initiator.host, |names| names.change(&initiator.name, change));
    }
}

/// A line of waiting sessions.
trait Line: Default {
    fn pop_first(&mut self);
    fn is_empty(&self) -> bool;
}

impl Line for Sessions {
    fn pop_first(&mut self) {
        self.pop_front();
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Lines that take turns. None of them is empty.
struct Round<K, L> {
    /// Their names, each once, in the order of their turns.
    names: VecDeque<K>,
    lines: BTreeMap<K, L>,
}

impl<K, L> Default for Round<K, L> {
    fn default() -> Self {
        Self { names: VecDeque::new(), lines: BTreeMap::new() }
    }
}

impl<K: Clone + Ord, L: Line> Round<K, L> {
    /// The line of that name; a new one gets its turn after all others. The caller adds a session
    /// to it.
    fn line(&mut self, name: &K) -> &mut L {
        if !self.lines.contains_key(name) {
            self.names.push_back(name.clone());
        }
        self.lines.entry(name.clone()).or_default()
    }

    fn first(&self) -> Option<&L> {
        self.lines.get(self.names.front()?)
    }

    /// Changes the line of that name, and removes it if it is empty then.
    fn change(&mut self, name: &K, change: impl FnOnce(&mut L)) {
        let Some(line) = self.lines.get_mut(name) else { return };
        change(line);
        if line.is_empty() {
            self.lines.remove(name);
            self.names.retain(|other| other != name);
        }
    }
}

impl<K: Clone + Ord, L: Line> Line for Round<K, L> {
    /// Removes the first session of the line whose turn it is; that line goes to the end.
    fn pop_first(&mut self) {
        let Some(name) = self.names.front().cloned() else { return };
        self.change(&name, L::pop_first);
        if self.lines.contains_key(&name) {
            self.names.rotate_left(1);
        }
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initiator(host: &str, name: &str) -> Initiator {
        Initiator { host: host.into(), name: name.into() }
    }

    fn waiting(sessions: &[(&str, &str, u64)]) -> Waiting {
        let mut waiting = Waiting::default();
        for &(host, name, number) in sessions {
            waiting.push(&initiator(host, name), Cause::More, number, Waker::noop().clone());
        }
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
        let sessions = [("h", "a", 1), ("h", "a", 2), ("h", "a", 3), ("h", "b", 4), ("h", "c", 5), ("h", "b", 6)];
        assert_eq!(order(waiting(&sessions)), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn hosts_take_turns_whatever_the_count_of_their_names() {
        let sessions = [("h", "a", 1), ("h", "b", 2), ("h", "c", 3), ("h", "a", 4), ("i", "a", 5), ("i", "d", 6)];
        assert_eq!(order(waiting(&sessions)), [1, 5, 2, 6, 3, 4]);
    }

    #[test]
    fn of_a_name_those_who_have_come_and_those_who_have_more_to_do_take_turns() {
        let mut waiting = waiting(&[("h", "a", 1), ("h", "a", 2), ("h", "a", 3), ("h", "b", 4)]);
        for number in [5, 6] {
            waiting.push(&initiator("h", "a"), Cause::Come, number, Waker::noop().clone());
        }
        assert_eq!(order(waiting), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn the_next_one_of_a_name_goes_before_other_names_only_where_it_is_taken_itself() {
        let who = initiator("h", "a");
        let mut waiting = waiting(&[("h", "a", 1), ("h", "b", 2), ("h", "a", 3)]);
        waiting.push(&who, Cause::Come, 4, Waker::noop().clone());
        waiting.take(&who, 1);
        assert_eq!(waiting.first_come_of(&who).map(|(number, _)| *number), Some(4), "the third has more to do");
        waiting.take(&who, 4);
        assert!(waiting.first_come_of(&who).is_none() && waiting.has(&who));
        assert_eq!(order(waiting), [2, 3]);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let mut left = waiting(&[("h", "a", 1), ("h", "a", 2), ("h", "b", 3), ("i", "c", 4), ("j", "d", 5)]);
        left.remove(&initiator("h", "a"), 1);
        left.remove(&initiator("h", "b"), 3);
        left.remove(&initiator("i", "c"), 4);
        left.remove(&initiator("h", "d"), 7);
        let who = initiator("h", "a");
        assert!(left.waker_mut(&who, 1).is_none() && left.waker_mut(&who, 2).is_some());
        assert_eq!(order(left), [2, 5]);
    }
}
