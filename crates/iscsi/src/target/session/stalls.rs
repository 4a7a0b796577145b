//! Deadlines for peers that hold buffers and the command order: announced or requested data, and
//! commands with missing numbers, must come in time, or the connection that owes them ends.
//! | what does not come | deadline |
//! |---|---|
//! | any data on a connection that owes some | `DATA_OUT_TIMEOUT` |
//! | any data of one command that owes some | `TASK_DATA_TIMEOUT` |
//! | a command before those that came | `COMMAND_GAP_TIMEOUT` |
//!
//! Per PDU only the time of data is noted; overdue peers are looked for every
//! `STALL_CHECK_INTERVAL`, while there can be any.

use base::clock::Instant;

use super::super::event::{CloseReason, LinkId};
use super::super::link::live;
use super::super::nexus::Nexus;
use super::super::task::Task;
use super::super::task_set::TaskSet;
use crate::limits::{COMMAND_GAP_TIMEOUT, DATA_OUT_TIMEOUT, STALL_CHECK_INTERVAL, TASK_DATA_TIMEOUT};

const NO_DATA: CloseReason = CloseReason::Protocol("the data of a write does not come");
const NO_COMMAND: CloseReason = CloseReason::Protocol("a command before those that came does not come");

/// What an initiator owes, and since when.
#[derive(Default)]
pub(super) struct Stalls {
    /// When to look next for overdue data or commands; `None` while there can be none.
    check: Option<Instant>,
    /// Since when commands wait for a missing earlier one.
    gap_since: Option<Instant>,
}

impl Stalls {
    /// Starts to look, since data or a command is owed from now on.
    pub(super) fn watch(&mut self, now: Instant) {
        self.check.get_or_insert(now + STALL_CHECK_INTERVAL);
    }

    /// When to look next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.check
    }

    /// Whether commands wait for a missing earlier one.
    pub(super) fn has_gap(&self) -> bool {
        self.gap_since.is_some()
    }

    /// Notes whether commands were delivered, and whether others wait for an earlier one.
    pub(super) fn note_gap(&mut self, has_held: bool, has_delivered: bool, now: Instant) {
        if !has_held {
            self.gap_since = None;
        } else if has_delivered || self.gap_since.is_none() {
            self.gap_since = Some(now);
            self.watch(now);
        }
    }

    /// The connections that are overdue.
    pub(super) fn overdue(&mut self, set: &TaskSet, nexus: &mut Nexus) -> Vec<(LinkId, CloseReason)> {
        let now = nexus.now;
        if self.check.is_none_or(|check| now < check) {
            return Vec::new();
        }
        self.check = None;
        let mut overdue = Vec::new();
        if let Some(since) = self.gap_since {
            self.watch(now);
            if now >= since + COMMAND_GAP_TIMEOUT {
                overdue.extend(set.first_held_on().map(|at| (at, NO_COMMAND)));
            }
        }
        let owes = |task: &&Task| !task.is_started && !task.data_out.is_settled();
        for task in set.all().filter(owes) {
            let Some(link) = live(&mut nexus.links, task.link) else { continue };
            let link_moved = link.data_moved.0.max(task.data_moved);
            if now >= link_moved + DATA_OUT_TIMEOUT || now >= task.data_moved + TASK_DATA_TIMEOUT {
                overdue.push((task.link, NO_DATA));
            } else {
                self.watch(now);
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_lasts_from_the_last_command_that_was_delivered() {
        let (mut stalls, begin) = (Stalls::default(), Instant::START);
        stalls.note_gap(true, false, begin);
        assert_eq!((stalls.has_gap(), stalls.deadline()), (true, Some(begin + STALL_CHECK_INTERVAL)));
        let later = begin + STALL_CHECK_INTERVAL / 2;
        stalls.note_gap(true, false, later);
        assert_eq!(stalls.gap_since, Some(begin), "nothing was delivered");
        stalls.note_gap(true, true, later);
        assert_eq!(stalls.gap_since, Some(later));
        stalls.note_gap(false, false, later);
        assert!(!stalls.has_gap());
    }
}
