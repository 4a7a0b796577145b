//! The recovery of a connection that is lost while others of its session live (RFC 7143 7.2, 7.14,
//! 11.14).
//!
//! ```text
//! lost ──► Connection::remove on another connection ──Logout Response──► Removed
//!             │                                                           │ Time2Wait
//!             │ refused, or no answer: the session is lost                ▼
//!             ▼                                             each task of it, by CmdSN: Connection::take_over
//! ```
//!
//! | the command | level 1 | level 2 |
//! |---|---|---|
//! | never reached the target: its CmdSN is not before ExpCmdSN | sent again with the same CmdSN and tag, which fills the gap (7.2.1) | the same |
//! | reached it | ended; the caller may submit it again as a new command | TASK REASSIGN: continues where it was |
//!
//! With level 2 the connection is *removed for recovery*: its tasks wait for their new allegiance.
//! With level 1 it is *closed*, which ends them. At level 0 the only recovery is a new session. The
//! data of a read that arrived before the loss is kept, and ExpDataSN reports how much that is; the
//! data of a write is requested again by new R2Ts.

use base::clock::Instant;
use base::serial::Serial32;

use super::command::Outcome;
use super::outgoing::Outgoing;
use super::removed::Removed;
use super::session::Session;
use super::task_management::TaskManagement;
use crate::framing::DataSegment;
use crate::pdu::{InitiatorTaskTag, LogoutReason, LogoutRequest, LogoutResponse};

/// The level at which tasks move to another connection.
const REASSIGNMENT_LEVEL: u8 = 2;

/// The removals of lost connections that were requested on one that lives.
#[derive(Default)]
pub(super) struct Removals {
    /// Unanswered logouts, with the CIDs of the lost connections.
    requested: Vec<(InitiatorTaskTag, u16)>,
    answered: Vec<Removed>,
}

impl Removals {
    /// Requests the removal of the lost connection `cid`.
    pub(super) fn request(&mut self, session: &Session, cid: u16, out: &mut Outgoing) {
        let reason = if session.negotiated().error_recovery_level >= REASSIGNMENT_LEVEL {
            LogoutReason::RemoveForRecovery
        } else {
            LogoutReason::CloseConnection
        };
        let tag = out.next_control_tag();
        let request = LogoutRequest {
            is_immediate: true,
            reason,
            initiator_task_tag: tag,
            cid,
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: out.exp_stat_sn,
        };
        out.push(&request, DataSegment::Empty);
        self.requested.push((tag, cid));
    }

    /// An answer about a lost connection.
    pub(super) fn poll(&mut self) -> Option<Removed> {
        self.answered.pop()
    }

    /// Handles an answer about a lost connection. Returns whether it was one.
    pub(super) fn handle_response(&mut self, response: &LogoutResponse) -> bool {
        let Some(index) = self.requested.iter().position(|(tag, _)| *tag == response.initiator_task_tag) else {
            return false;
        };
        let (_, cid) = self.requested.swap_remove(index);
        let LogoutResponse { outcome, exp_cmd_sn, wait_seconds, .. } = *response;
        self.answered.push(Removed { cid, outcome, exp_cmd_sn, wait_seconds });
        true
    }
}

/// Takes a task of a removed connection over to the connection `cid`; `exp_cmd_sn` is the target's value from the
/// removal.
pub(super) fn take_over(
    now: Instant,
    session: &mut Session,
    (tag, exp_cmd_sn): (InitiatorTaskTag, Serial32),
    cid: u16,
    task_management: &mut TaskManagement,
    out: &mut Outgoing,
) {
    let level = session.negotiated().error_recovery_level;
    let Some(task) = session.task(tag) else { return };
    if task.is_immediate {
        // Its CmdSN does not show whether it arrived, and another task may have the same.
        session.complete(tag, Outcome::Failed("its connection was lost".to_owned()));
    } else if !task.cmd_sn.is_before(exp_cmd_sn) {
        // An earlier sending, if there was one, had no effect.
        session.move_task(tag, cid);
        out.send_command(session, tag);
    } else if level < REASSIGNMENT_LEVEL {
        session.complete(tag, Outcome::Failed("its connection was lost".to_owned()));
    } else {
        // Its answers may follow directly after this request's answer.
        session.move_task(tag, cid);
        task_management.reassign(now, session, tag, out);
    }
}
