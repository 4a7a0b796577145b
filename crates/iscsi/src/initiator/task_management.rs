//! Escalation for a command that does not end in time.
//!
//! ```text
//! deadline of a command ──► ABORT TASK ──complete──► the command is Aborted
//!                               │ refused, or no answer in time
//!                               ▼
//!                        LOGICAL UNIT RESET ──complete──► every command of the unit is Aborted
//!                               │ refused, or no answer in time
//!                               ▼
//!                        ConnectionError::Unresponsive: the driver drops the connection
//! ```
//!
//! Requests are immediate: a closed window does not delay them (RFC 7143 11.5). A command that ends
//! on its own while its abort is under way ends normally.

use base::clock::Instant;
use base::serial::Serial32;

use super::command::Outcome;
use super::connection::{Connection, ConnectionError, Event};
use super::pending_function::{PendingFunction, Purpose};
use super::session::Session;
use crate::framing::DataSegment;
use crate::limits::IMMEDIATE_REQUESTS_MAX;
use crate::pdu::{
    AdditionalHeaders, InitiatorTaskTag, TaskManagementFunction, TaskManagementOutcome, TaskManagementRequest,
    TaskManagementResponse,
};

impl Connection {
    /// Aborts the tasks whose time is up, and takes the next step where an answer is overdue.
    pub(super) fn escalate(&mut self, now: Instant, session: &mut Session) -> Result<(), ConnectionError> {
        for tag in session.expire(now, self.cid()) {
            let Some(task) = session.task(tag) else { continue };
            task.is_aborting = true;
            let (lun, cmd_sn) = (task.lun, task.cmd_sn);
            if self.is_resetting(lun) {
                continue;
            }
            if self.functions.len() < IMMEDIATE_REQUESTS_MAX {
                self.send_function(now, session, lun, Purpose::Abort(tag, cmd_sn));
            } else {
                self.reset_logical_unit(now, session, lun);
            }
        }
        while let Some(index) = self.functions.iter().position(|function| function.deadline <= now) {
            let function = self.functions.swap_remove(index);
            self.step_up(now, session, function)?;
        }
        Ok(())
    }

    /// The first deadline of an answer.
    pub(super) fn function_deadline(&self) -> Option<Instant> {
        self.functions.iter().map(|function| function.deadline).min()
    }

    /// Resets the logical unit of `lun`, unless a reset is under way.
    pub fn reset_logical_unit(&mut self, now: Instant, session: &Session, lun: u64) {
        if !self.is_resetting(lun) {
            self.send_function(now, session, lun, Purpose::Reset);
        }
    }

    pub(super) fn handle_function_response(
        &mut self,
        now: Instant,
        session: &mut Session,
        response: &TaskManagementResponse,
    ) -> Result<(), ConnectionError> {
        let tag = response.initiator_task_tag;
        let Some(index) = self.functions.iter().position(|function| function.tag == tag) else { return Ok(()) };
        let function = self.functions.swap_remove(index);
        match (response.outcome, function.purpose) {
            // A task that does not exist has either ended, and its response was sent before this one, or never arrived.
            (
                TaskManagementOutcome::FunctionComplete | TaskManagementOutcome::TaskDoesNotExist,
                Purpose::Abort(task, _),
            ) => {
                session.complete(task, Outcome::Aborted);
                Ok(())
            }
            (TaskManagementOutcome::FunctionComplete, Purpose::Reset) => {
                self.finish_reset(session, function.lun);
                Ok(())
            }
            (TaskManagementOutcome::FunctionComplete, Purpose::Reassign(..)) => Ok(()),
            (outcome, Purpose::Reassign(task, ..)) => Self::handle_refused_reassignment(session, task, outcome),
            _ => self.step_up(now, session, function),
        }
    }

    /// RFC 7143 11.5.1: a reset ends every task of the logical unit without a response.
    fn finish_reset(&mut self, session: &mut Session, lun: u64) {
        let tags: Vec<InitiatorTaskTag> =
            session.tags().filter(|(_, task)| task.lun == lun && task.outcome.is_none()).map(|(tag, _)| tag).collect();
        for tag in tags {
            session.complete(tag, Outcome::Aborted);
        }
        self.functions.retain(|function| function.lun != lun);
        self.events.push_back(Event::LogicalUnitReset { lun });
    }

    /// Takes the next step after `function` failed.
    fn step_up(
        &mut self,
        now: Instant,
        session: &mut Session,
        function: PendingFunction,
    ) -> Result<(), ConnectionError> {
        match function.purpose {
            // The command ended on its own meanwhile.
            Purpose::Abort(task, _) | Purpose::Reassign(task, ..) if session.task(task).is_none() => Ok(()),
            Purpose::Abort(..) => {
                self.reset_logical_unit(now, session, function.lun);
                Ok(())
            }
            Purpose::Reassign(..) | Purpose::Reset => Err(ConnectionError::Unresponsive),
        }
    }

    fn is_resetting(&self, lun: u64) -> bool {
        self.functions.iter().any(|function| function.purpose == Purpose::Reset && function.lun == lun)
    }

    pub(super) fn send_function(&mut self, now: Instant, session: &Session, lun: u64, purpose: Purpose) {
        let tag = self.next_control_tag();
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
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn,
        };
        self.transmit.push(&request, &AdditionalHeaders::default(), DataSegment::Empty);
        let deadline = now + self.timing.task_management_timeout;
        self.functions.push(PendingFunction { tag, lun, purpose, deadline });
    }
}
