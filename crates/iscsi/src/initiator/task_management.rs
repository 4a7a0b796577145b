//! Escalation for a command that does not end in time.
//!
//! ```text
//! deadline of a command ──► ABORT TASK ──complete──► the command is Aborted
//!                               │ refused, or no answer in time
//!                               ▼
//!                        LOGICAL UNIT RESET ──complete──► every earlier command of the unit is Aborted
//!                               │ refused, or no answer in time
//!                               ▼
//!                        ConnectionError::Unresponsive: the driver drops the connection
//! ```
//!
//! Requests are immediate: a closed window does not delay them (RFC 7143 11.5). A command that ends
//! on its own while its abort is under way ends normally.
//!
//! A reset covers commands with a lower CmdSN than its own (RFC 7143 11.5.1). Those of its unit that would have a
//! higher one wait in the session until it is answered: they would outlive it, whatever the target has said of those
//! before. An immediate command passes; it has the number of the reset, and is ended by an abort of its own if need be.

use std::time::Duration;

use base::clock::Instant;
use base::serial::Serial32;

use super::command::Outcome;
use super::connection::ConnectionError;
use super::outgoing::Outgoing;
use super::pending_function::{PendingFunction, Purpose};
use super::session::{Session, TaskData};
use crate::framing::DataSegment;
use crate::limits::IMMEDIATE_REQUESTS_MAX;
use crate::pdu::{
    InitiatorTaskTag, TaskManagementFunction, TaskManagementOutcome, TaskManagementRequest, TaskManagementResponse,
};

/// The task management requests of a connection that wait for their answers.
pub(super) struct TaskManagement {
    /// For an answer.
    timeout: Duration,
    functions: Vec<PendingFunction>,
}

impl TaskManagement {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, functions: Vec::new() }
    }

    /// Whether the target takes another request now.
    pub(super) fn has_room(&self) -> bool {
        self.functions.len() < IMMEDIATE_REQUESTS_MAX
    }

    /// Aborts the tasks of the connection `cid` whose time is up, and takes the next step where an answer is overdue.
    ///
    /// # Errors
    /// [`ConnectionError::Unresponsive`].
    pub(super) fn escalate(
        &mut self,
        now: Instant,
        session: &mut Session,
        cid: u16,
        out: &mut Outgoing,
    ) -> Result<(), ConnectionError> {
        for tag in session.expire(now, cid) {
            let Some(task) = session.task(tag) else { continue };
            task.is_aborting = true;
            let (lun, own_cmd_sn, is_immediate) = (task.lun, task.cmd_sn, task.is_immediate);
            // RFC 7143 11.5.5: an immediate command used no number up, and that of its abort stands for it.
            let cmd_sn = if is_immediate { session.next_cmd_sn() } else { own_cmd_sn };
            if self.is_resetting(lun) {
                continue;
            }
            if self.has_room() {
                self.send(now, session, lun, Purpose::Abort(tag, cmd_sn), out);
            } else {
                self.reset_logical_unit(now, session, cid, lun, out);
            }
        }
        while let Some(index) = self.functions.iter().position(|function| function.deadline <= now) {
            let function = self.functions.swap_remove(index);
            self.step_up(now, session, cid, function, out)?;
        }
        Ok(())
    }

    /// The first deadline of an answer.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.functions.iter().map(|function| function.deadline).min()
    }

    /// Resets the logical unit of `lun`, unless a reset is under way.
    pub(super) fn reset_logical_unit(
        &mut self,
        now: Instant,
        session: &mut Session,
        cid: u16,
        lun: u64,
        out: &mut Outgoing,
    ) {
        if !self.is_resetting(lun) {
            session.begin_reset(cid, lun);
            self.send(now, session, lun, Purpose::Reset, out);
        }
    }

    /// Requests that a task goes on here which was sent on another connection.
    pub(super) fn reassign(&mut self, now: Instant, session: &mut Session, task: InitiatorTaskTag, out: &mut Outgoing) {
        let Some(moved) = session.task(task) else { return };
        let (lun, cmd_sn, exp_data_sn) = (moved.lun, moved.cmd_sn, Serial32(moved.data_in_count));
        self.send(now, session, lun, Purpose::Reassign(task, cmd_sn, exp_data_sn), out);
    }

    /// Handles an answer. Returns the LUN of the logical unit if that was reset.
    ///
    /// # Errors
    /// When it leaves nothing that could be tried.
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        session: &mut Session,
        cid: u16,
        response: &TaskManagementResponse,
        out: &mut Outgoing,
    ) -> Result<Option<u64>, ConnectionError> {
        let tag = response.initiator_task_tag;
        let Some(index) = self.functions.iter().position(|function| function.tag == tag) else { return Ok(None) };
        let function = self.functions.swap_remove(index);
        match (response.outcome, function.purpose) {
            // A task that does not exist has either ended, and its response was sent before this one, or never arrived.
            (
                TaskManagementOutcome::FunctionComplete | TaskManagementOutcome::TaskDoesNotExist,
                Purpose::Abort(task, _),
            ) => session.complete(task, Outcome::Aborted),
            (TaskManagementOutcome::FunctionComplete, Purpose::Reset) => {
                self.finish_reset(session, cid, &function);
                return Ok(Some(function.lun));
            }
            (TaskManagementOutcome::FunctionComplete, Purpose::Reassign(..)) => {}
            (outcome, Purpose::Reassign(task, ..)) => handle_refused_reassignment(session, task, outcome)?,
            _ => self.step_up(now, session, cid, function, out)?,
        }
        Ok(None)
    }

    /// RFC 7143 11.5.1: a reset ends every task of the logical unit with a lower CmdSN, without a response.
    fn finish_reset(&mut self, session: &mut Session, cid: u16, reset: &PendingFunction) {
        let of_unit = session.tags().filter(|(_, task)| task.lun == reset.lun && task.outcome.is_none());
        let (covered, left): (Vec<_>, Vec<_>) = of_unit
            .map(|(tag, task)| (tag, task.cmd_sn.is_before(reset.cmd_sn), task.cid))
            .partition(|(_, is_covered, _)| *is_covered);
        for (tag, ..) in covered {
            session.complete(tag, Outcome::Aborted);
        }
        let is_left = |tag| left.iter().any(|(other, ..)| *other == tag);
        self.functions.retain(|function| function.lun != reset.lun || function.task().is_some_and(is_left));
        // One that became overdue meanwhile was left to the reset.
        let has_function = |tag| self.functions.iter().any(|function| function.task() == Some(tag));
        for (tag, ..) in left.iter().filter(|(tag, _, of)| *of == cid && !has_function(*tag)) {
            session.await_again(*tag);
        }
        session.end_reset(cid, reset.lun);
    }

    /// Takes the next step after `function` failed.
    fn step_up(
        &mut self,
        now: Instant,
        session: &mut Session,
        cid: u16,
        function: PendingFunction,
        out: &mut Outgoing,
    ) -> Result<(), ConnectionError> {
        match function.purpose {
            // The command ended on its own meanwhile.
            Purpose::Abort(task, _) | Purpose::Reassign(task, ..) if session.task(task).is_none() => Ok(()),
            Purpose::Abort(..) => {
                self.reset_logical_unit(now, session, cid, function.lun, out);
                Ok(())
            }
            Purpose::Reassign(..) | Purpose::Reset => Err(ConnectionError::Unresponsive),
        }
    }

    fn is_resetting(&self, lun: u64) -> bool {
        self.functions.iter().any(|function| function.purpose == Purpose::Reset && function.lun == lun)
    }

    fn send(&mut self, now: Instant, session: &Session, lun: u64, purpose: Purpose, out: &mut Outgoing) {
        let (tag, cmd_sn) = (out.next_control_tag(), session.next_cmd_sn());
        let (function, task, ref_cmd_sn, exp_data_sn) = match purpose {
            Purpose::Abort(task, cmd_sn) => (TaskManagementFunction::AbortTask, Some(task), cmd_sn, Serial32(0)),
            Purpose::Reassign(task, cmd_sn, exp_data_sn) => {
                (TaskManagementFunction::TaskReassign, Some(task), cmd_sn, exp_data_sn)
            }
            Purpose::Reset => (TaskManagementFunction::LogicalUnitReset, None, Serial32(0), Serial32(0)),
        };
        let request = TaskManagementRequest {
            is_immediate: true,
            function: Ok(function),
            lun,
            initiator_task_tag: tag,
            referenced_task_tag: task,
            cmd_sn,
            exp_stat_sn: out.exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn,
        };
        out.push(&request, DataSegment::Empty);
        let deadline = now + self.timeout;
        self.functions.push(PendingFunction { tag, lun, cmd_sn, purpose, deadline });
    }
}

/// Handles a refused reassignment. The task may be submitted again on this session only if it
/// has certainly ended.
fn handle_refused_reassignment(
    session: &mut Session,
    tag: InitiatorTaskTag,
    outcome: TaskManagementOutcome,
) -> Result<(), ConnectionError> {
    let Some(task) = session.task(tag) else { return Ok(()) };
    let is_harmless = !matches!(task.data, TaskData::Write(..)) && outcome == TaskManagementOutcome::FunctionRejected;
    if outcome != TaskManagementOutcome::TaskDoesNotExist && !is_harmless {
        return Err(ConnectionError::Protocol("the target does not let a task go on that it agreed to keep"));
    }
    session.complete(tag, Outcome::Failed(format!("its connection was lost: {outcome}")));
    Ok(())
}
