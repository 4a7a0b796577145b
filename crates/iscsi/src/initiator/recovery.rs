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
use super::connection::{Connection, ConnectionError};
use super::pending_function::Purpose;
use super::removed::Removed;
use super::session::{Session, TaskData};
use crate::framing::DataSegment;
use crate::limits::IMMEDIATE_REQUESTS_MAX;
use crate::pdu::{
    AdditionalHeaders, Bhs, InitiatorTaskTag, LogoutReason, LogoutRequest, LogoutResponse, TaskManagementOutcome,
};

/// The level at which tasks move to another connection.
const REASSIGNMENT_LEVEL: u8 = 2;

impl Connection {
    /// Requests the removal of the lost connection `cid`. [`Connection::poll_removed`] has the
    /// answer.
    pub fn remove(&mut self, session: &Session, cid: u16) {
        let reason = if session.negotiated().error_recovery_level >= REASSIGNMENT_LEVEL {
            LogoutReason::RemoveForRecovery
        } else {
            LogoutReason::CloseConnection
        };
        let tag = self.next_control_tag();
        let request = LogoutRequest {
            is_immediate: true,
            reason,
            initiator_task_tag: tag,
            cid,
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
        };
        self.transmit.push(&request, &AdditionalHeaders::default(), DataSegment::Empty);
        self.removing.push((tag, cid));
    }

    /// An answer about a lost connection.
    pub fn poll_removed(&mut self) -> Option<Removed> {
        self.removed.pop()
    }

    /// Handles an answer about a lost connection. Returns whether it was one.
    pub(super) fn handle_removed(&mut self, response: &LogoutResponse) -> bool {
        let Some(index) = self.removing.iter().position(|(tag, _)| *tag == response.initiator_task_tag) else {
            return false;
        };
        let (_, cid) = self.removing.swap_remove(index);
        let LogoutResponse { outcome, exp_cmd_sn, wait_seconds, .. } = *response;
        self.removed.push(Removed { cid, outcome, exp_cmd_sn, wait_seconds });
        true
    }

    /// Ends a lost connection: the buffer into which it was reading goes back to its task.
    pub fn abandon(mut self, session: &mut Session) {
        if let Some((header, buffer)) = self.receiver.take_destination()
            && let Ok(Bhs::DataIn(data_in)) = header.bhs
            && let Some(task) = session.task_on(self.cid(), data_in.initiator_task_tag)
            && let TaskData::Read(place, ..) = &mut task.data
        {
            *place = Some(buffer);
        }
        // Its queue shares the buffers that were being written.
        drop(self);
        session.complete_lingering();
    }

    /// Whether another task could be taken over now.
    pub fn can_take_over(&self) -> bool {
        self.is_established() && self.functions.len() < IMMEDIATE_REQUESTS_MAX
    }

    /// Takes over a task of a removed connection; `exp_cmd_sn` is the target's value from then.
    pub fn take_over(&mut self, now: Instant, session: &mut Session, tag: InitiatorTaskTag, exp_cmd_sn: Serial32) {
        let level = session.negotiated().error_recovery_level;
        let Some(task) = session.task(tag) else { return };
        if task.is_immediate {
            // Its CmdSN does not show whether it arrived, and another task may have the same.
            session.complete(tag, Outcome::Failed("its connection was lost".to_owned()));
        } else if !task.cmd_sn.is_before(exp_cmd_sn) {
            // An earlier sending, if there was one, had no effect.
            session.move_task(tag, self.cid());
            self.send_command(session, tag);
        } else if level < REASSIGNMENT_LEVEL {
            session.complete(tag, Outcome::Failed("its connection was lost".to_owned()));
        } else {
            let (lun, cmd_sn, exp_data_sn) = (task.lun, task.cmd_sn, Serial32(task.data_in_count));
            // Its answers may follow directly after this request's answer.
            session.move_task(tag, self.cid());
            self.send_function(now, session, lun, Purpose::Reassign(tag, cmd_sn, exp_data_sn));
        }
    }

    /// Handles a refused reassignment. The task may be submitted again on this session only if it
    /// has certainly ended.
    pub(super) fn handle_refused_reassignment(
        session: &mut Session,
        tag: InitiatorTaskTag,
        outcome: TaskManagementOutcome,
    ) -> Result<(), ConnectionError> {
        let Some(task) = session.task(tag) else { return Ok(()) };
        let is_harmless =
            !matches!(task.data, TaskData::Write(..)) && outcome == TaskManagementOutcome::FunctionRejected;
        if outcome != TaskManagementOutcome::TaskDoesNotExist && !is_harmless {
            return Err(ConnectionError::Protocol("the target does not let a task go on that it agreed to keep"));
        }
        session.complete(tag, Outcome::Failed(format!("its connection was lost: {outcome}")));
        Ok(())
    }
}

impl Session {
    /// Forgets a lost connection without tasks.
    pub fn forget_connection(&mut self, cid: u16) {
        self.loads.retain(|(other, load)| *other != cid || load.commands > 0);
    }

    /// The tasks of a connection, in the order of their commands.
    pub fn tasks_of(&self, cid: u16) -> Vec<InitiatorTaskTag> {
        let mut tags: Vec<_> = self.tags().filter(|(_, task)| task.cid == cid && task.outcome.is_none()).collect();
        tags.sort_by_key(|(_, task)| task.order);
        tags.into_iter().map(|(tag, _)| tag).collect()
    }
}
