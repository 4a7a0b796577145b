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

use base::serial::Serial32;

use super::super::event::{CloseReason, Event, LinkId, TaskId};
use super::super::granted_logout::GrantedLogout;
use super::super::link::live;
use super::Session;
use crate::framing::DataSegment;
use crate::limits::LOGOUT_TIMEOUT;
use crate::pdu::{InitiatorTaskTag, LogoutOutcome, LogoutReason, LogoutRequest, LogoutResponse};

impl Session {
    /// A connection can be logged out from itself or from another one; a lost one only from another.
    pub(super) fn handle_logout(&mut self, at: LinkId, request: &LogoutRequest) {
        let Some(own) = live(&mut self.links, at).map(|link| link.cid) else { return };
        let is_session = request.reason == LogoutReason::CloseSession;
        let alive = self.live().filter(|link| is_session || link.cid == request.cid).map(|link| link.id);
        let lost = self.lost.iter().filter(|lost| is_session || lost.cid == request.cid).map(|lost| lost.link);
        let covered: Vec<LinkId> = alive.chain(lost).collect();
        let outcome = match request.reason {
            LogoutReason::CloseSession => LogoutOutcome::Closed,
            _ if covered.is_empty() => LogoutOutcome::CidNotFound,
            LogoutReason::CloseConnection => LogoutOutcome::Closed,
            LogoutReason::RemoveForRecovery if self.is_recoverable() => LogoutOutcome::Closed,
            LogoutReason::RemoveForRecovery => LogoutOutcome::RecoveryNotSupported,
        };
        if outcome != LogoutOutcome::Closed {
            return self.send_logout_response(at, request.initiator_task_tag, outcome);
        }
        let is_for_recovery = request.reason == LogoutReason::RemoveForRecovery;
        let is_covered = |link: LinkId| covered.contains(&link);
        let has_others =
            self.live().any(|link| !is_covered(link.id)) || self.lost.iter().any(|lost| !is_covered(lost.link));
        let is_last = own == request.cid && !is_for_recovery && !has_others;
        let mut logout = GrantedLogout {
            at,
            initiator_task_tag: request.initiator_task_tag,
            covered,
            ends_session: is_session || is_last,
            is_for_recovery,
            waits_for: Vec::new(),
            deadline: self.now + LOGOUT_TIMEOUT,
        };
        if !is_for_recovery {
            logout.waits_for = self.silence_for_logout(&logout);
        }
        self.logouts.push(logout);
        self.advance_logouts();
    }

    /// Ends the tasks of a logout without responses. Returns those that the driver has.
    fn silence_for_logout(&mut self, logout: &GrantedLogout) -> Vec<TaskId> {
        if logout.ends_session {
            let all: Vec<TaskId> = self.set.tasks.values().map(|task| task.id).collect();
            all.into_iter().for_each(|id| self.drop_task(id));
            self.events.push_back(Event::Logout);
        } else {
            logout.covered.iter().for_each(|&link| self.give_up_undelivered(link));
            self.drop_tasks(|task| logout.covered.contains(&task.link));
        }
        let is_covered = |link: LinkId| logout.ends_session || logout.covered.contains(&link);
        self.set.tasks.values().filter(|task| is_covered(task.link)).map(|task| task.id).collect()
    }

    /// Whether no more PDUs of a connection are handled, because it is being logged out.
    pub(super) fn is_leaving(&self, at: LinkId) -> bool {
        self.logouts.iter().any(|logout| logout.ends_session || logout.covered.contains(&at))
    }

    /// Whether the initiator is ending the whole session, and waits for the response.
    pub(super) fn is_logging_out(&self) -> bool {
        self.logouts.iter().any(|logout| logout.ends_session)
    }

    /// Notes the end of a task for which a logout may wait.
    pub(super) fn note_end_for_logouts(&mut self, id: TaskId) {
        if self.logouts.is_empty() {
            return;
        }
        self.logouts.iter_mut().for_each(|logout| logout.waits_for.retain(|&other| other != id));
        self.advance_logouts();
    }

    /// Completes logouts that wait for no more tasks, or have waited for too long.
    pub(super) fn advance_logouts(&mut self) {
        let now = self.now;
        let is_due = |logout: &GrantedLogout| logout.waits_for.is_empty() || now >= logout.deadline;
        while let Some(index) = self.logouts.iter().position(is_due) {
            let logout = self.logouts.remove(index);
            self.finish_logout(&logout);
        }
    }

    fn finish_logout(&mut self, logout: &GrantedLogout) {
        for &link in logout.covered.iter().filter(|&&link| link != logout.at) {
            self.log_link_out(link, logout.is_for_recovery, CloseReason::LoggedOut);
            self.log_lost_out(link, logout.is_for_recovery);
        }
        let is_clean = logout.waits_for.is_empty();
        let outcome = if is_clean { LogoutOutcome::Closed } else { LogoutOutcome::CleanupFailed };
        self.send_logout_response(logout.at, logout.initiator_task_tag, outcome);
        if logout.ends_session {
            return self.end(CloseReason::Logout);
        }
        if logout.covered.contains(&logout.at) {
            self.log_link_out(logout.at, logout.is_for_recovery, CloseReason::Logout);
            self.log_lost_out(logout.at, logout.is_for_recovery);
        }
        self.end_if_unconnected(CloseReason::Logout);
    }

    /// Logs out a connection that was lost before: its tasks may be reassigned from now on, or end.
    fn log_lost_out(&mut self, link: LinkId, is_for_recovery: bool) {
        let Some(index) = self.lost.iter().position(|lost| lost.link == link) else { return };
        if is_for_recovery {
            self.lost[index].is_logged_out = true;
        } else {
            self.lost.remove(index);
            self.end_tasks_of(link);
        }
    }

    fn send_logout_response(&mut self, at: LinkId, initiator_task_tag: InitiatorTaskTag, outcome: LogoutOutcome) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let (wait_seconds, retain_seconds): (u16, u16) = self.times();
        let Some(link) = live(&mut self.links, at) else { return };
        let stat_sn: Serial32 = link.take_stat_sn();
        let response = LogoutResponse {
            outcome,
            initiator_task_tag,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            wait_seconds,
            retain_seconds,
        };
        link.push_response(stat_sn, &response, DataSegment::Empty);
    }
}
