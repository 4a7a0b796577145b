//! Task management (RFC 7143 4.2.3, 11.5; RFC 7144 4).
//!
//! ```text
//! request ─► tasks covered are silenced ─► commands before it and data under way have come ─► the driver carries it out
//!         ─► tasks with the driver have ended ─► other connections have acknowledged what they were sent ─► response
//! ```
//!
//! The wait for commands and data has an end (`ABORT_DATA_TIMEOUT`): common initiators stop sending
//! them.

use base::clock::Instant;

use super::super::event::{Event, LinkId, TaskId, TaskManagement, TaskManagementId};
use super::super::link::live;
use super::super::task_set::{Held, PendingManagement};
use super::Session;
use crate::framing::{DataSegment, ReceivedPdu};
use crate::limits::ABORT_DATA_TIMEOUT;
use crate::pdu::{
    InitiatorTaskTag, RejectReason, TaskManagementFunction, TaskManagementOutcome, TaskManagementRequest,
    TaskManagementResponse,
};

/// iSCSIProtocolLevel from which on the functions of RFC 7144 are allowed (RFC 7144 7.1.1).
const PROTOCOL_LEVEL_RFC7144: u8 = 2;

/// The scope of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    LogicalUnit,
    Target,
}

/// The scope of functions that abort several tasks.
fn scope(function: TaskManagementFunction) -> Option<Scope> {
    use TaskManagementFunction as Function;
    match function {
        Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => Some(Scope::LogicalUnit),
        Function::TargetWarmReset | Function::TargetColdReset | Function::NexusReset => Some(Scope::Target),
        Function::AbortTask
        | Function::ClearAca
        | Function::TaskReassign
        | Function::QueryTask
        | Function::QueryTaskSet
        | Function::QueryAsynchronousEvent => None,
    }
}

impl Session {
    pub(super) fn handle_task_management_request(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        pdu: &ReceivedPdu,
    ) {
        use TaskManagementFunction as Function;
        use TaskManagementOutcome as Answer;
        if !self.set.has_room_for_management() {
            return self.reject(at, &pdu.header, RejectReason::TooManyImmediateCommands);
        }
        let tag = request.initiator_task_tag;
        let Ok(function) = request.function else {
            return self.send_management_response(at, tag, Answer::FunctionNotSupported);
        };
        let is_new = function.code() >= Function::QueryTask.code();
        if is_new && self.full.negotiated.protocol_level < PROTOCOL_LEVEL_RFC7144 {
            return self.send_management_response(at, tag, Answer::FunctionNotSupported);
        }
        match function {
            Function::AbortTask => self.abort_task(at, request),
            Function::AbortTaskSet
            | Function::ClearTaskSet
            | Function::LogicalUnitReset
            | Function::TargetWarmReset
            | Function::TargetColdReset
            | Function::NexusReset => self.abort_tasks(at, request, function),
            Function::QueryTask => {
                let task = request.referenced_task_tag.and_then(|tag| self.set.tasks.get(&tag));
                let exists = task.is_some_and(|task| !task.is_aborted);
                self.send_management_response(at, tag, succeeded_if(exists));
            }
            Function::QueryTaskSet => {
                let is_there = |task: &super::super::task::Task| task.header.lun == request.lun && !task.is_aborted;
                let exists = self.set.tasks.values().any(is_there);
                self.send_management_response(at, tag, succeeded_if(exists));
            }
            Function::TaskReassign => self.reassign(at, request),
            // The driver knows the unit attentions.
            Function::QueryAsynchronousEvent => {
                self.await_management(at, request, function, Vec::new(), Vec::new(), None);
            }
            // No logical unit here has ACA conditions (NormACA is zero).
            Function::ClearAca => self.send_management_response(at, tag, Answer::FunctionNotSupported),
        }
    }

    fn abort_task(&mut self, at: LinkId, request: &TaskManagementRequest) {
        let tag = request.initiator_task_tag;
        let Some(referenced) = request.referenced_task_tag else {
            return self.send_management_response(at, tag, TaskManagementOutcome::FunctionRejected);
        };
        if self.set.is_management(referenced) {
            // Task management is not aborted (RFC 7143 11.5.1).
            return self.send_management_response(at, tag, TaskManagementOutcome::FunctionRejected);
        }
        let Some(task) = self.set.tasks.get(&referenced) else {
            // Its response is on the way, or it never came: then its number is used up and it never will
            // be executed (RFC 7143 11.6.1).
            let is_to_come = self.set.window.admits(request.ref_cmd_sn) && request.ref_cmd_sn.is_before(request.cmd_sn);
            if is_to_come {
                self.set.window.take(request.ref_cmd_sn, Held::Plugged);
                self.send_management_response(at, tag, TaskManagementOutcome::FunctionComplete);
                return self.deliver_in_order();
            }
            return self.send_management_response(at, tag, TaskManagementOutcome::TaskDoesNotExist);
        };
        let (id, link) = (task.id, task.link);
        if link != at && self.is_live(link) {
            // It must come on the task's own connection while that lives (RFC 7143 11.5.1).
            return self.send_management_response(at, tag, TaskManagementOutcome::FunctionRejected);
        }
        if self.abort(id) {
            let function = TaskManagementFunction::AbortTask;
            self.await_management(at, request, function, Vec::new(), vec![id], Some(id));
        } else {
            self.send_management_response(at, tag, TaskManagementOutcome::FunctionComplete);
        }
    }

    fn abort_tasks(&mut self, at: LinkId, request: &TaskManagementRequest, function: TaskManagementFunction) {
        if scope(function) == Some(Scope::Target) {
            // Commands that have not come never will: their numbers are used up (RFC 7143 4.2.3.3
            // b).
            let mut missing = self.set.window.exp_cmd_sn();
            while missing.is_before(request.cmd_sn) && !missing.is_after(self.set.window.max_cmd_sn()) {
                if self.set.window.admits(missing) {
                    self.set.window.take(missing, Held::Plugged);
                }
                missing = missing.next();
            }
        }
        let awaits_data = self.silence(function, request.lun);
        self.await_management(at, request, function, awaits_data, Vec::new(), None);
        self.deliver_in_order();
    }

    /// Ends the tasks that a function covers without responses. Returns those whose data is still
    /// to come.
    fn silence(&mut self, function: TaskManagementFunction, lun: u64) -> Vec<TaskId> {
        let Some(scope) = scope(function) else { return Vec::new() };
        let is_covered = |task: &&super::super::task::Task| scope == Scope::Target || task.header.lun == lun;
        let covered: Vec<TaskId> = self.set.tasks.values().filter(is_covered).map(|task| task.id).collect();
        let mut awaits_data = Vec::new();
        for id in covered {
            let Some(task) = self.set.task(id) else { continue };
            task.is_aborted = true;
            let (is_started, is_settled, link) = (task.is_started, task.data_out.is_settled(), task.link);
            if !is_started && !is_settled && self.is_live(link) {
                awaits_data.push(id);
            } else if !is_started {
                self.set.remove_task(id);
                self.set.note_end(id);
            }
        }
        awaits_data
    }

    /// Ends a task without a response. Returns `true` when the driver has it, so that its
    /// completion must be awaited. Data that still comes for it is dropped.
    fn abort(&mut self, id: TaskId) -> bool {
        let Some(task) = self.set.task(id) else { return false };
        task.is_aborted = true;
        if task.is_started {
            return true;
        }
        // A command that waits for its turn keeps its number: the window finds no task when the turn comes.
        self.set.remove_task(id);
        self.set.note_end(id);
        false
    }

    fn await_management(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        function: TaskManagementFunction,
        awaits_data: Vec<TaskId>,
        waits_for: Vec<TaskId>,
        task: Option<TaskId>,
    ) {
        let id = TaskManagementId(self.set.next_generation());
        let lun = match (task, scope(function)) {
            (Some(task), _) => self.set.task(task).map_or(request.lun, |task| task.header.lun),
            (None, Some(Scope::Target)) => 0,
            (None, _) => request.lun,
        };
        self.set.managements.push(PendingManagement {
            id,
            link: at,
            initiator_task_tag: request.initiator_task_tag,
            function,
            lun,
            task,
            cmd_sn: request.cmd_sn,
            awaits_data,
            deadline: self.now + ABORT_DATA_TIMEOUT,
            is_begun: false,
            waits_for,
            outcome: None,
            fences: None,
        });
        self.advance_managements();
    }

    /// Handles the outcome of a task management function from the driver. The response is sent once
    /// the tasks that it covered have ended.
    pub fn handle_task_management(&mut self, now: Instant, id: TaskManagementId, outcome: TaskManagementOutcome) {
        self.now = now;
        if let Some(pending) = self.set.managements.iter_mut().find(|pending| pending.id == id) {
            pending.outcome = Some(outcome);
        }
        self.advance_managements();
    }

    /// The deadline of [`Session::advance_managements`] for data and commands.
    pub(super) fn management_deadline(&self) -> Option<Instant> {
        self.set.managements.iter().filter(|pending| !pending.is_begun).map(|pending| pending.deadline).min()
    }

    /// Advances every task management request as far as possible.
    pub(super) fn advance_managements(&mut self) {
        let mut index = 0;
        while let Some(pending) = self.set.managements.get(index) {
            let (id, at) = (pending.id, pending.link);
            if !pending.is_begun {
                self.begin_management(index);
            }
            self.fence_management(index);
            let pending = &self.set.managements[index];
            debug_assert_eq!(pending.id, id);
            let is_finished = pending.fences.as_ref().is_some_and(Vec::is_empty);
            if !is_finished {
                index += 1;
                continue;
            }
            let pending = self.set.managements.remove(index);
            if let Some(outcome) = pending.outcome {
                if outcome == TaskManagementOutcome::FunctionComplete {
                    self.forget_unclaimed(pending.function, pending.lun);
                }
                self.send_management_response(at, pending.initiator_task_tag, outcome);
            }
        }
    }

    /// Drops the answers that a function covers when it is answered: those of lost connections
    /// cannot be claimed by a reassignment any more.
    fn forget_unclaimed(&mut self, function: TaskManagementFunction, lun: u64) {
        let Some(scope) = scope(function) else { return };
        let live: Vec<LinkId> = self.live().map(|link| link.id).collect();
        let is_covered = |answer: &super::super::answer::Answer| scope == Scope::Target || answer.lun == lun;
        self.set.forget_answers(|answer| !live.contains(&answer.link) && is_covered(answer));
    }

    /// Passes a function to the driver, once all commands before the request and the data of the
    /// covered tasks have come.
    fn begin_management(&mut self, index: usize) {
        let pending = &self.set.managements[index];
        let (function, lun, is_late) = (pending.function, pending.lun, self.now >= pending.deadline);
        let is_covering = scope(function).is_some();
        let has_all_commands = !is_covering || self.set.window.has_delivered_up_to(pending.cmd_sn);
        let may_begin = is_late || (has_all_commands && pending.awaits_data.is_empty());
        if !may_begin {
            return;
        }
        // Tasks that came during this wait are covered, too.
        for id in self.silence(function, lun) {
            self.set.remove_task(id);
            self.set.note_end(id);
        }
        let is_covered = |task: &&super::super::task::Task| task.is_aborted && task.is_started;
        let of_scope = |task: &&super::super::task::Task| {
            scope(function).is_some_and(|scope| scope == Scope::Target || task.header.lun == lun)
        };
        let started = self.set.tasks.values().filter(is_covered).filter(of_scope).map(|task| task.id);
        let started: Vec<TaskId> = started.collect();
        let pending = &mut self.set.managements[index];
        pending.is_begun = true;
        pending.waits_for.extend(started);
        let (id, task) = (pending.id, pending.task);
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, lun, task }));
    }

    /// Waits until other connections have acknowledged their responses (RFC 7143 4.2.2.3.2,
    /// 11.6.1); on the response's own connection the order of the stream is enough.
    fn fence_management(&mut self, index: usize) {
        let pending = &self.set.managements[index];
        if !pending.waits_for.is_empty() || pending.outcome.is_none() {
            return;
        }
        if pending.fences.is_none() {
            let at = pending.link;
            let is_open = |link: &&super::super::link::Link| link.id != at && link.exp_stat_sn != link.stat_sn;
            let is_fenced = scope(pending.function).is_some();
            let fences: Vec<_> =
                self.live().filter(|_| is_fenced).filter(is_open).map(|link| (link.id, link.stat_sn)).collect();
            let silent: Vec<LinkId> = fences.iter().map(|(link, _)| *link).collect();
            self.set.managements[index].fences = Some(fences);
            silent.into_iter().for_each(|link| self.ping(link));
        }
        let links = &mut self.links;
        if let Some(fences) = &mut self.set.managements[index].fences {
            fences.retain(|(id, stat_sn)| live(links, *id).is_some_and(|link| link.exp_stat_sn.is_before(*stat_sn)));
        }
    }

    pub(super) fn send_management_response(
        &mut self,
        at: LinkId,
        initiator_task_tag: InitiatorTaskTag,
        outcome: TaskManagementOutcome,
    ) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        let stat_sn = link.take_stat_sn();
        let response = TaskManagementResponse { outcome, initiator_task_tag, stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push_response(stat_sn, &response, DataSegment::Empty);
    }
}

fn succeeded_if(exists: bool) -> TaskManagementOutcome {
    if exists { TaskManagementOutcome::FunctionSucceeded } else { TaskManagementOutcome::FunctionComplete }
}
