//! Logout: a connection or the session ends, and then the initiator gets the response (RFC 7143
//! 11.14, 11.15).
//!
//! ```text
//! request ─► tasks it covers are silenced, nothing more is taken ─► those with the driver have ended ─► response ─► the end
//! ```
//!
//! After the response the initiator may pass on what it wrote, through another session: no write of
//! this one may land then (4.6.3.3). The wait has an end (`LOGOUT_TIMEOUT`), and then the response
//! reports that the clean-up failed. A connection that is removed for recovery keeps its tasks, so
//! there is nothing to wait for.

use base::clock::Instant;

use super::super::event::{Event, LinkId, TaskId};
use super::super::granted_logout::GrantedLogout;
use super::super::link::live;
use super::super::nexus::Nexus;
use super::super::task_set::TaskSet;
use super::commands::Commands;
use super::lost::LostConnections;
use crate::limits::LOGOUT_TIMEOUT;
use crate::pdu::{LogoutOutcome, LogoutReason, LogoutRequest};

/// Logouts that wait for tasks; at most as many as connections, each of which sends no further
/// request then.
#[derive(Default)]
pub(super) struct Logouts {
    granted: Vec<GrantedLogout>,
}

impl Logouts {
    /// Takes a request: a connection can be logged out from itself or from another one; a lost one only from another.
    pub(super) fn handle_request(
        &mut self,
        at: LinkId,
        request: &LogoutRequest,
        (commands, lost): (&mut Commands, &LostConnections),
        nexus: &mut Nexus,
    ) {
        let Some(own) = live(&mut nexus.links, at).map(|link| link.cid) else { return };
        let is_session = request.reason == LogoutReason::CloseSession;
        let alive = nexus.live().filter(|link| is_session || link.cid == request.cid).map(|link| link.id);
        let gone = lost.iter().filter(|(_, cid)| is_session || *cid == request.cid).map(|(link, _)| link);
        let covered: Vec<LinkId> = alive.chain(gone).collect();
        let outcome = match request.reason {
            LogoutReason::CloseSession => LogoutOutcome::Closed,
            _ if covered.is_empty() => LogoutOutcome::CidNotFound,
            LogoutReason::CloseConnection => LogoutOutcome::Closed,
            LogoutReason::RemoveForRecovery if nexus.is_recoverable() => LogoutOutcome::Closed,
            LogoutReason::RemoveForRecovery => LogoutOutcome::RecoveryNotSupported,
        };
        if outcome != LogoutOutcome::Closed {
            return nexus.send_logout_response(at, request.initiator_task_tag, outcome, commands.numbers());
        }
        let is_for_recovery = request.reason == LogoutReason::RemoveForRecovery;
        let is_covered = |link: LinkId| covered.contains(&link);
        let has_others =
            nexus.live().any(|link| !is_covered(link.id)) || lost.iter().any(|(link, _)| !is_covered(link));
        let is_last = own == request.cid && !is_for_recovery && !has_others;
        let mut logout = GrantedLogout {
            at,
            initiator_task_tag: request.initiator_task_tag,
            covered,
            ends_session: is_session || is_last,
            is_for_recovery,
            waits_for: Vec::new(),
            deadline: nexus.now + LOGOUT_TIMEOUT,
        };
        if !is_for_recovery {
            logout.waits_for = silence(&logout, commands, nexus);
        }
        self.granted.push(logout);
    }

    /// Whether no more PDUs of a connection are handled, because it is being logged out.
    pub(super) fn covers(&self, at: LinkId) -> bool {
        self.granted.iter().any(|logout| logout.ends_session || logout.covered.contains(&at))
    }

    /// Whether the initiator is ending the whole session, and waits for the response.
    pub(super) fn ends_session(&self) -> bool {
        self.granted.iter().any(|logout| logout.ends_session)
    }

    /// When the first of them has waited for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.granted.iter().map(|logout| logout.deadline).min()
    }

    /// Takes a logout that waits for no more tasks, or has waited for too long.
    pub(super) fn next_due(&mut self, now: Instant, set: &TaskSet) -> Option<GrantedLogout> {
        self.granted.iter_mut().for_each(|logout| logout.waits_for.retain(|&id| set.has(id)));
        let is_due = |logout: &GrantedLogout| logout.waits_for.is_empty() || now >= logout.deadline;
        let index = self.granted.iter().position(is_due)?;
        Some(self.granted.remove(index))
    }

    /// Forgets all: the session has ended.
    pub(super) fn clear(&mut self) {
        self.granted.clear();
    }
}

/// Ends the tasks of a logout without responses. Returns those that the driver has.
fn silence(logout: &GrantedLogout, commands: &mut Commands, nexus: &mut Nexus) -> Vec<TaskId> {
    if logout.ends_session {
        let all: Vec<TaskId> = commands.set.all().map(|task| task.id).collect();
        all.into_iter().for_each(|id| commands.set.drop_task(id));
        nexus.events.push_back(Event::Logout);
    } else {
        logout.covered.iter().for_each(|&link| commands.set.give_up_undelivered(link));
        commands.drop_tasks(|task| logout.covered.contains(&task.link), nexus);
    }
    let is_covered = |link: LinkId| logout.ends_session || logout.covered.contains(&link);
    commands.set.all().filter(|task| is_covered(task.link)).map(|task| task.id).collect()
}
