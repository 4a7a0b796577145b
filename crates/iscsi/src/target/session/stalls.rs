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
use super::super::task::Task;
use super::Session;
use crate::limits::{COMMAND_GAP_TIMEOUT, DATA_OUT_TIMEOUT, STALL_CHECK_INTERVAL, TASK_DATA_TIMEOUT};

const NO_DATA: CloseReason = CloseReason::Protocol("the data of a write does not come");
const NO_COMMAND: CloseReason = CloseReason::Protocol("a command before those that came does not come");

impl Session {
    /// Starts to look, since data or a command is owed from now on.
    pub(super) fn watch_for_stalls(&mut self) {
        self.stall_check.get_or_insert(self.now + STALL_CHECK_INTERVAL);
    }

    /// Notes whether commands were delivered; those that are still held wait for an earlier one.
    pub(super) fn note_gap(&mut self, has_delivered: bool) {
        if self.set.window.held().next().is_none() {
            self.gap_since = None;
        } else if has_delivered || self.gap_since.is_none() {
            self.gap_since = Some(self.now);
            self.watch_for_stalls();
        }
    }

    /// Ends the connections that are overdue.
    pub(super) fn check_stalls(&mut self) {
        let now = self.now;
        if self.stall_check.is_none_or(|check| now < check) {
            return;
        }
        self.stall_check = None;
        if let Some(since) = self.gap_since {
            self.watch_for_stalls();
            if now >= since + COMMAND_GAP_TIMEOUT
                && let Some(at) = self.set.first_held_on()
            {
                self.fail_link(at, NO_COMMAND);
            }
        }
        let owes = |task: &&Task| !task.is_started && !task.data_out.is_settled();
        let owing: Vec<(LinkId, Instant)> =
            self.set.tasks.values().filter(owes).map(|task| (task.link, task.data_moved)).collect();
        for (at, task_moved) in owing {
            let Some(link) = live(&mut self.links, at) else { continue };
            let link_moved = link.data_moved.0.max(task_moved);
            if now >= link_moved + DATA_OUT_TIMEOUT || now >= task_moved + TASK_DATA_TIMEOUT {
                self.fail_link(at, NO_DATA);
            } else {
                self.watch_for_stalls();
            }
        }
    }
}
