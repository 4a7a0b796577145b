//! Connections that were lost, or logged out for recovery, while their tasks wait for a reassignment
//! (RFC 7143 7.14, 8.2).

use std::time::Duration;

use base::clock::Instant;

use super::super::event::{CloseReason, LinkId};
use super::super::nexus::Nexus;
use super::commands::Commands;
use crate::limits::{LOST_CONNECTIONS_MAX, RETENTION_MAX};

/// Lost connections whose tasks or CIDs still matter.
#[derive(Default)]
pub(super) struct LostConnections {
    lost: Vec<Lost>,
}

/// A connection waiting for its clean-up (RFC 7143 8.2, state CLEANUP_WAIT), or logged out for recovery.
#[derive(Clone, Copy, Debug)]
struct Lost {
    link: LinkId,
    cid: u16,
    /// Logged out, explicitly or by reinstatement: its tasks may be reassigned.
    is_logged_out: bool,
    /// When Time2Wait and Time2Retain are over.
    deadline: Instant,
}

impl LostConnections {
    pub(super) fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// Forgets all: the session has ended.
    pub(super) fn clear(&mut self) {
        self.lost.clear();
    }

    /// The lost connections, with their CIDs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, u16)> {
        self.lost.iter().map(|lost| (lost.link, lost.cid))
    }

    /// The first moment at which one is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lost.iter().map(|lost| lost.deadline).min()
    }

    /// Whether the tasks of a connection may be reassigned.
    pub(super) fn is_logged_out(&self, link: LinkId) -> bool {
        self.lost.iter().any(|lost| lost.link == link && lost.is_logged_out)
    }

    /// Logs out the lost connections with this CID, which another connection has now.
    pub(super) fn reinstate(&mut self, cid: u16) {
        self.lost.iter_mut().filter(|lost| lost.cid == cid).for_each(|lost| lost.is_logged_out = true);
    }

    /// Remembers a connection that is about to be closed.
    pub(super) fn remember(
        &mut self,
        link: LinkId,
        cid: u16,
        is_logged_out: bool,
        commands: &mut Commands,
        nexus: &mut Nexus,
    ) {
        if self.lost.len() >= LOST_CONNECTIONS_MAX {
            let oldest = self.lost.remove(0);
            commands.end_tasks_of(oldest.link, nexus);
        }
        let (wait, retain) = nexus.times();
        let kept = Duration::from_secs(u64::from(wait) + u64::from(retain)).min(RETENTION_MAX);
        self.lost.push(Lost { link, cid, is_logged_out, deadline: nexus.now + kept });
    }

    /// Closes a connection for receiving. Its tasks end, unless it is remembered and they may be
    /// reassigned; undelivered commands are dropped in any case.
    pub(super) fn close(&self, at: LinkId, reason: CloseReason, commands: &mut Commands, nexus: &mut Nexus) {
        if !nexus.close(at, reason) {
            return;
        }
        commands.set.give_up_undelivered(at);
        // Immediate commands do not outlive their connection (RFC 7143 7.14), nor do task management requests.
        commands.drop_tasks(|task| task.link == at && task.header.is_immediate, nexus);
        let is_remembered = nexus.is_recoverable() && self.lost.iter().any(|lost| lost.link == at);
        if is_remembered {
            commands.free_buffers_of(at, nexus);
        } else {
            commands.end_tasks_of(at, nexus);
        }
    }

    /// Logs out a connection that was lost before: its tasks may be reassigned from now on, or end.
    pub(super) fn log_out(&mut self, link: LinkId, is_for_recovery: bool, commands: &mut Commands, nexus: &mut Nexus) {
        let Some(index) = self.lost.iter().position(|lost| lost.link == link) else { return };
        if is_for_recovery {
            self.lost[index].is_logged_out = true;
        } else {
            self.lost.remove(index);
            commands.end_tasks_of(link, nexus);
        }
    }

    /// Forgets those whose time is over, with their tasks.
    pub(super) fn forget_overdue(&mut self, commands: &mut Commands, nexus: &mut Nexus) {
        while let Some(index) = self.lost.iter().position(|lost| nexus.now >= lost.deadline) {
            let lost = self.lost.remove(index);
            commands.end_tasks_of(lost.link, nexus);
        }
    }
}
