//! Sessions that wait for their turns: hosts take turns, within a host its initiator names, and
//! within a name its sessions.

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

/// Sessions of one initiator name.
type Sessions = VecDeque<(u64, Waker)>;

/// The waiting sessions. A host with many sessions waits as long as one with a single session,
/// whatever their names.
#[derive(Default)]
pub(crate) struct Waiting(Round<Round<Sessions>>);

impl Waiting {
    /// Adds session `number` of `initiator`.
    pub(crate) fn push(&mut self, initiator: &Initiator, number: u64, waker: Waker) {
        self.0.line(&initiator.host).line(&initiator.name).push_back((number, waker));
    }

    /// The session whose turn is next.
    pub(crate) fn first(&self) -> Option<&(u64, Waker)> {
        self.0.first()?.first()?.front()
    }

    /// Removes the first one. The next session of its initiator gets its turn after all other names
    /// of the host, and the host's next session after all other hosts.
    fn pop_first(&mut self) {
        self.0.pop_first();
    }

    /// The first session of `initiator`, if one waits.
    pub(crate) fn first_of(&self, initiator: &Initiator) -> Option<&(u64, Waker)> {
        self.0.lines.get(&initiator.host)?.lines.get(&initiator.name)?.front()
    }

    /// Removes session `number` of `initiator`, whose turn it is. Where it is the first one, its next is after others.
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
        let mut sessions = names.lines.get_mut(&initiator.name)?.iter_mut();
        sessions.find(|(other, _)| *other == number).map(|(_, waker)| waker)
    }

    /// Removes session `number` of `initiator`, which has ended.
    pub(crate) fn remove(&mut self, initiator: &Initiator, number: u64) {
        self.0.change(&initiator.host, |names| {
            names.change(&initiator.name, |sessions| sessions.retain(|(other, _)| *other != number));
        });
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
struct Round<L> {
    /// Their names, each once, in the order of their turns.
    names: VecDeque<Arc<str>>,
    lines: BTreeMap<Arc<str>, L>,
}

impl<L> Default for Round<L> {
    fn default() -> Self {
        Self { names: VecDeque::new(), lines: BTreeMap::new() }
    }
}

impl<L: Line> Round<L> {
    /// The line of that name; a new one gets its turn after all others. The caller adds a session
    /// to it.
    fn line(&mut self, name: &Arc<str>) -> &mut L {
        if !self.lines.contains_key(name) {
            self.names.push_back(Arc::clone(name));
        }
        self.lines.entry(Arc::clone(name)).or_default()
    }

    fn first(&self) -> Option<&L> {
        self.lines.get(self.names.front()?)
    }

    /// Changes the line of that name, and removes it if it is empty then.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut L)) {
        let Some(line) = self.lines.get_mut(name) else { return };
        change(line);
        if line.is_empty() {
            self.lines.remove(name);
            self.names.retain(|other| **other != *name);
        }
    }
}

impl<L: Line> Line for Round<L> {
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
            waiting.push(&initiator(host, name), number, Waker::noop().clone());
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
