//! Task management (RFC 7143 4.2.3, 11.5; RFC 7144 4).
//!
//! ```text
//! request ─► tasks covered are suspended ─► commands before it and data under way have come ─► the driver is told
//!         ─► it carries it out: tasks covered are silenced ─► those with the driver have ended
//!         │      ─► other connections have acknowledged what they were sent ─► response
//!         └► it refuses: tasks covered go on ─► response
//! ```
//!
//! Nothing of a suspended task begins. One that the driver has may end, and is answered: before the response to the
//! function the initiator takes the answer as usual (RFC 7143 4.2.3.3 b), and where the function is refused it waits
//! for it.
//!
//! A function covers tasks with a lower CmdSN than its own (RFC 7143 11.5.1). Those behind it, which for an immediate
//! function begin with the same CmdSN, wait until it is carried out or refused ([`Barrier`]), and are answered.
//!
//! The wait for commands and data has an end (`ABORT_DATA_TIMEOUT`): common initiators stop sending
//! them. What is covered and comes later is not carried out, and has no answer. So has the wait for acknowledgements
//! (`FENCE_TIMEOUT`): the connections that owe them end.
//!
//! Where ResponseFence was agreed on and there are several connections, what the driver answers for these units while
//! acknowledgements are waited for, and until that of the function's own response, is held back
//! ([`Fences`](super::super::fences::Fences)).

use base::clock::Instant;

use super::super::answer::Answer;
use super::super::barrier::Barrier;
use super::super::event::{CloseReason, Event, LinkId, TaskId, TaskManagement, TaskManagementId};
use super::super::link::{Link, live};
use super::super::nexus::Nexus;
use super::super::pending_management::PendingManagement;
use super::super::task::Task;
use super::super::task_set::{Held, TaskSet};
use super::lost::LostConnections;
use crate::framing::ReceivedHeader;
use crate::limits::{ABORT_DATA_TIMEOUT, FENCE_TIMEOUT, TASK_MANAGEMENT_MAX};
use crate::negotiation::TaskReporting;
use crate::pdu::{
    InitiatorTaskTag, RejectReason, TaskManagementFunction, TaskManagementOutcome, TaskManagementRequest,
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

/// What a request leads to besides, in the parts above.
pub(super) enum Then {
    Nothing,
    /// The turn of commands may have come.
    Deliver,
    /// The task of this tag continues on the connection of the request.
    Resume(InitiatorTaskTag),
}

/// The task management requests under way.
pub(super) struct Managements {
    pending: Vec<PendingManagement>,
}

impl Managements {
    pub(super) fn new() -> Self {
        Self { pending: Vec::new() }
    }

    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether a response will be sent on this connection.
    pub(super) fn are_of(&self, at: LinkId) -> bool {
        self.pending.iter().any(|pending| pending.link == at && !pending.is_answered)
    }

    /// Whether a tag belongs to a request that waits.
    fn has(&self, tag: InitiatorTaskTag) -> bool {
        self.pending.iter().any(|pending| pending.initiator_task_tag == tag && !pending.is_answered)
    }

    /// Forgets all: the session has ended.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Takes a request. Returns what is to be done besides.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn handle_request(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        header: &ReceivedHeader,
        (set, lost): (&mut TaskSet, &LostConnections),
        nexus: &mut Nexus,
    ) -> Result<Then, CloseReason> {
        use TaskManagementFunction as Function;
        use TaskManagementOutcome as Answer;
        if self.pending.len() >= TASK_MANAGEMENT_MAX {
            let reason = RejectReason::TooManyImmediateCommands;
            return nexus.reject(at, header, reason, set.command_numbers()).map(|()| Then::Nothing);
        }
        let is_new = |function: Function| function.code() >= Function::QueryTask.code();
        let is_known = |function| !is_new(function) || nexus.full.negotiated.protocol_level >= PROTOCOL_LEVEL_RFC7144;
        let answer = match request.function {
            Ok(function) if is_known(function) => match function {
                Function::AbortTask => return Ok(self.abort_task(at, request, set, nexus)),
                Function::AbortTaskSet
                | Function::ClearTaskSet
                | Function::LogicalUnitReset
                | Function::TargetWarmReset
                | Function::TargetColdReset
                | Function::NexusReset => return Ok(self.abort_tasks(at, request, function, set, nexus)),
                Function::QueryTask => {
                    let task = request.referenced_task_tag.and_then(|tag| set.tasks.get(&tag));
                    succeeded_if(task.is_some_and(|task| !task.is_aborted))
                }
                Function::QueryTaskSet => {
                    let is_there = |task: &Task| scsi::lun::is_same(task.header.lun, request.lun) && !task.is_aborted;
                    succeeded_if(set.all().any(is_there))
                }
                Function::TaskReassign => {
                    let outcome = self.may_reassign(request, set, lost, nexus);
                    self.respond(at, request, outcome, set, nexus);
                    return Ok(match (outcome, request.referenced_task_tag) {
                        (Answer::FunctionComplete, Some(referenced)) => Then::Resume(referenced),
                        _ => Then::Nothing,
                    });
                }
                // The driver knows the unit attentions.
                Function::QueryAsynchronousEvent => {
                    self.wait(at, request, (function, None), set, nexus);
                    return Ok(Then::Nothing);
                }
                // No logical unit here has ACA conditions (NormACA is zero).
                Function::ClearAca => Answer::FunctionNotSupported,
            },
            Ok(_) | Err(_) => Answer::FunctionNotSupported,
        };
        self.respond(at, request, answer, set, nexus);
        Ok(Then::Nothing)
    }

    fn respond(
        &self,
        at: LinkId,
        request: &TaskManagementRequest,
        outcome: TaskManagementOutcome,
        set: &TaskSet,
        nexus: &mut Nexus,
    ) {
        nexus.send_management_response(at, request.initiator_task_tag, outcome, set.command_numbers());
    }

    /// TASK REASSIGN (RFC 7143 7.2.2, 11.5.1): whether a task whose connection was logged out may continue elsewhere.
    fn may_reassign(
        &self,
        request: &TaskManagementRequest,
        set: &TaskSet,
        lost: &LostConnections,
        nexus: &Nexus,
    ) -> TaskManagementOutcome {
        use TaskManagementOutcome as Answer;
        if nexus.full.negotiated.error_recovery_level < 2 {
            return Answer::ReassignmentNotSupported;
        }
        // Only SCSI tasks can be reassigned, and only by immediate requests.
        let is_allowed = |tag: &InitiatorTaskTag| request.is_immediate && !self.has(*tag);
        let Some(referenced) = request.referenced_task_tag.filter(is_allowed) else { return Answer::FunctionRejected };
        let task = set.tasks.get(&referenced).filter(|task| !task.is_aborted).map(|task| task.link);
        let answer = set.answers.get(referenced);
        match task.or_else(|| answer.map(|answer| answer.link)) {
            None => Answer::TaskDoesNotExist,
            Some(link) if !lost.is_logged_out(link) => Answer::TaskStillAllegiant,
            Some(_) if !answer.is_none_or(|answer| answer.has_data()) => Answer::FunctionRejected,
            Some(_) => Answer::FunctionComplete,
        }
    }

    fn abort_task(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        set: &mut TaskSet,
        nexus: &mut Nexus,
    ) -> Then {
        use TaskManagementOutcome as Answer;
        // Task management is not aborted (RFC 7143 11.5.1).
        let referenced = request.referenced_task_tag.filter(|tag| !self.has(*tag));
        let Some(referenced) = referenced else {
            self.respond(at, request, Answer::FunctionRejected, set, nexus);
            return Then::Nothing;
        };
        let Some(task) = set.tasks.get(&referenced) else {
            // Its response is on the way, or it never came: then its number is used up and it never will
            // be executed (RFC 7143 11.6.1).
            let is_to_come = set.window.admits(request.ref_cmd_sn) && request.ref_cmd_sn.is_before(request.cmd_sn);
            if is_to_come {
                set.window.take(request.ref_cmd_sn, Held::Plugged);
                self.respond(at, request, Answer::FunctionComplete, set, nexus);
                return Then::Deliver;
            }
            self.respond(at, request, Answer::TaskDoesNotExist, set, nexus);
            return Then::Nothing;
        };
        let (id, link, is_started) = (task.id, task.link, task.is_started);
        if link != at && nexus.is_live(link) {
            // It must come on the task's own connection while that lives (RFC 7143 11.5.1).
            self.respond(at, request, Answer::FunctionRejected, set, nexus);
            return Then::Nothing;
        }
        if is_started {
            // The driver has it: its completion must be awaited.
            self.wait(at, request, (TaskManagementFunction::AbortTask, Some(id)), set, nexus);
        } else {
            // Data that still comes for it is dropped.
            set.drop_task(id);
            self.respond(at, request, Answer::FunctionComplete, set, nexus);
        }
        Then::Nothing
    }

    fn abort_tasks(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        function: TaskManagementFunction,
        set: &mut TaskSet,
        nexus: &mut Nexus,
    ) -> Then {
        if scope(function) == Some(Scope::Target) {
            // Commands that have not come never will: their numbers are used up (RFC 7143 4.2.3.3
            // b).
            let mut missing = set.window.exp_cmd_sn();
            while missing.is_before(request.cmd_sn) && !missing.is_after(set.window.max_cmd_sn()) {
                if set.window.admits(missing) {
                    set.window.take(missing, Held::Plugged);
                }
                missing = missing.next();
            }
        }
        self.wait(at, request, (function, None), set, nexus);
        Then::Deliver
    }

    /// Lets a request wait for the tasks that it covers: `task` is the one of ABORT TASK.
    fn wait(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        (function, task): (TaskManagementFunction, Option<TaskId>),
        set: &mut TaskSet,
        nexus: &mut Nexus,
    ) {
        let id = TaskManagementId(set.next_generation());
        let lun = match (task, scope(function)) {
            (Some(task), _) => set.task(task).map_or(request.lun, |task| task.header.lun),
            (None, Some(Scope::Target)) => 0,
            (None, _) => request.lun,
        };
        let mut pending = PendingManagement {
            id,
            link: at,
            initiator_task_tag: request.initiator_task_tag,
            function,
            lun,
            task,
            cmd_sn: request.cmd_sn,
            covered: Vec::new(),
            awaits_data: Vec::new(),
            deadline: nexus.now + ABORT_DATA_TIMEOUT,
            is_begun: false,
            waits_for: Vec::new(),
            carried_out: None,
            outcome: None,
            fences: None,
            is_answered: false,
        };
        if let Some(barrier) = barrier(&pending) {
            set.add_barrier(barrier);
        }
        suspend(&mut pending, set);
        pending.awaits_data = pending.covered.iter().copied().filter(|id| awaits_data(*id, set, nexus)).collect();
        self.pending.push(pending);
    }

    /// Notes that the driver carries a function out: from now on the tasks that it covers are not answered any more.
    /// Returns those that go on, because they were behind it.
    #[must_use]
    pub(super) fn carry_out(&mut self, id: TaskManagementId, set: &mut TaskSet) -> Vec<TaskId> {
        let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) else { return Vec::new() };
        if pending.carried_out.is_none() {
            // What came after the driver was told is covered, too, and so is what is still to come.
            suspend(pending, set);
            if let Some(barrier) = barrier(pending).filter(|barrier| barrier.lun.is_some()) {
                set.note_ended(barrier);
            }
            let has_ended = pending.task.is_some_and(|task| !set.has(task));
            pending.carried_out = Some(match has_ended {
                true => TaskManagementOutcome::TaskDoesNotExist,
                false => TaskManagementOutcome::FunctionComplete,
            });
        }
        for id in std::mem::take(&mut pending.covered) {
            if set.task(id).is_some_and(|task| task.is_started) {
                pending.waits_for.push(id);
            }
            set.drop_task(id);
        }
        set.lift_barrier(id)
    }

    /// Notes the outcome of a function from the driver. The response is sent once the tasks that it covered have ended.
    /// Returns those that go on, because it was refused or they were behind it.
    #[must_use]
    pub(super) fn note_outcome(
        &mut self,
        id: TaskManagementId,
        outcome: TaskManagementOutcome,
        set: &mut TaskSet,
    ) -> Vec<TaskId> {
        let behind = match outcome {
            TaskManagementOutcome::FunctionComplete => self.carry_out(id, set),
            _ => set.lift_barrier(id),
        };
        let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) else { return behind };
        pending.outcome = Some(outcome);
        if pending.carried_out.is_none() {
            suspend(pending, set);
        }
        let mut freed = std::mem::take(&mut pending.covered);
        freed.retain(|id| self.pending.iter().all(|other| !other.covered.contains(id)));
        for id in &freed {
            if let Some(task) = set.task(*id) {
                task.is_suspended = false;
            }
        }
        freed.extend(behind);
        freed
    }

    /// The deadline of [`advance`](Self::advance) for data and commands, and of [`overdue`](Self::overdue).
    pub(super) fn deadline(&self) -> Option<Instant> {
        let has_deadline = |pending: &&PendingManagement| !pending.is_begun || pending.fences.is_some();
        self.pending.iter().filter(has_deadline).map(|pending| pending.deadline).min()
    }

    /// The connections whose acknowledgements do not come.
    pub(super) fn overdue(&self, now: Instant) -> Vec<LinkId> {
        let late = self.pending.iter().filter(|pending| now >= pending.deadline);
        late.flat_map(|pending| pending.fences.iter().flatten()).map(|(link, _)| *link).collect()
    }

    /// Advances every request as far as possible, or until a fence is cleared: then it returns the tasks whose answers
    /// waited for that, which are to be answered before the next request.
    pub(super) fn advance(&mut self, set: &mut TaskSet, nexus: &mut Nexus) -> Option<Vec<TaskId>> {
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            pending.waits_for.retain(|&id| set.has(id));
            pending.awaits_data.retain(|&id| awaits_data(id, set, nexus));
            if !pending.is_begun {
                begin(pending, set, nexus);
            }
            fence(pending, set, nexus);
            let is_acknowledged = pending.fences.as_ref().is_some_and(Vec::is_empty);
            match (is_acknowledged, pending.is_answered) {
                (false, _) => index += 1,
                (true, false) => {
                    answer(pending, set, nexus);
                    if !set.fences.has(pending.id) {
                        self.pending.remove(index);
                    }
                }
                (true, true) => {
                    let id = self.pending.remove(index).id;
                    return Some(set.clear_fence(id));
                }
            }
        }
        None
    }
}

/// Sends the response of a function. Where its fence is up, it waits for the acknowledgement of it.
fn answer(pending: &mut PendingManagement, set: &mut TaskSet, nexus: &mut Nexus) {
    pending.is_answered = true;
    let Some(mut outcome) = pending.outcome else { return };
    if outcome == TaskManagementOutcome::FunctionComplete {
        forget_unclaimed(pending.function, pending.lun, set, nexus);
        outcome = pending.carried_out.unwrap_or(outcome);
    }
    let numbers = set.command_numbers();
    nexus.send_management_response(pending.link, pending.initiator_task_tag, outcome, numbers);
    if set.fences.has(pending.id) {
        let own = nexus.live().find(|link| link.id == pending.link).map(|link| (link.id, link.stat_sn));
        nexus.ping(pending.link, numbers);
        pending.fences = Some(own.into_iter().collect());
        pending.deadline = nexus.now + FENCE_TIMEOUT;
    }
}

/// What a function for several tasks covers, and holds back.
fn barrier(pending: &PendingManagement) -> Option<Barrier> {
    let lun = match scope(pending.function)? {
        Scope::Target => None,
        Scope::LogicalUnit => Some(pending.lun),
    };
    Some(Barrier { id: pending.id, lun, cmd_sn: pending.cmd_sn, is_begun: pending.is_begun })
}

/// Suspends the tasks that a function covers.
fn suspend(pending: &mut PendingManagement, set: &mut TaskSet) {
    let (barrier, aborted) = (barrier(pending), pending.task);
    let is_covered = |task: &Task| match &barrier {
        Some(barrier) => barrier.covers(&task.header),
        None => Some(task.id) == aborted,
    };
    pending.covered.clear();
    for task in set.tasks.values_mut().filter(|task| is_covered(task)) {
        task.is_suspended = true;
        pending.covered.push(task.id);
    }
}

/// Whether data of a suspended task is under way.
fn awaits_data(id: TaskId, set: &TaskSet, nexus: &Nexus) -> bool {
    let task = set.tasks.get(&id.initiator_task_tag).filter(|task| task.id == id);
    task.is_some_and(|task| !task.is_started && !task.data_out.is_settled() && nexus.is_live(task.link))
}

/// Passes a function to the driver, once all commands before the request and the data of the
/// covered tasks have come.
fn begin(pending: &mut PendingManagement, set: &mut TaskSet, nexus: &mut Nexus) {
    let PendingManagement { id, function, lun, task, cmd_sn, deadline, .. } = *pending;
    let is_late = nexus.now >= deadline;
    let has_all_commands = scope(function).is_none() || set.window.has_delivered_up_to(cmd_sn);
    let may_begin = is_late || (has_all_commands && pending.awaits_data.is_empty());
    if !may_begin {
        return;
    }
    // Tasks with a lower number that came during this wait are covered, too.
    suspend(pending, set);
    set.begin_barrier(id);
    pending.is_begun = true;
    nexus.events.push_back(Event::TaskManagement(TaskManagement { id, function, lun, task }));
}

/// Waits until other connections have acknowledged their responses (RFC 7143 4.2.2.3.2,
/// 11.6.1); on the response's own connection the order of the stream is enough.
fn fence(pending: &mut PendingManagement, set: &mut TaskSet, nexus: &mut Nexus) {
    if !pending.waits_for.is_empty() || pending.outcome.is_none() {
        return;
    }
    if pending.fences.is_none() {
        let lun = (scope(pending.function) != Some(Scope::Target)).then_some(pending.lun);
        if set.fences.hold_back(lun) {
            return;
        }
        let at = pending.link;
        let is_open = |link: &&Link| link.id != at && link.exp_stat_sn != link.stat_sn;
        let is_fenced = scope(pending.function).is_some();
        let is_agreed = nexus.full.negotiated.task_reporting == TaskReporting::ResponseFence;
        if is_fenced && is_agreed && nexus.live().nth(1).is_some() {
            set.fences.raise(pending.id, lun);
        }
        let fences: Vec<_> =
            nexus.live().filter(|_| is_fenced).filter(is_open).map(|link| (link.id, link.stat_sn)).collect();
        fences.iter().for_each(|(link, _)| nexus.ping(*link, set.command_numbers()));
        pending.fences = Some(fences);
        pending.deadline = nexus.now + FENCE_TIMEOUT;
    }
    if let Some(fences) = &mut pending.fences {
        let links = &mut nexus.links;
        fences.retain(|(id, stat_sn)| live(links, *id).is_some_and(|link| link.exp_stat_sn.is_before(*stat_sn)));
    }
}

/// Drops the answers that a function covers when it is answered: those of lost connections
/// cannot be claimed by a reassignment any more.
fn forget_unclaimed(function: TaskManagementFunction, lun: u64, set: &mut TaskSet, nexus: &Nexus) {
    let Some(scope) = scope(function) else { return };
    let is_covered = |answer: &Answer| scope == Scope::Target || scsi::lun::is_same(answer.lun, lun);
    set.forget_answers(|answer| !nexus.is_live(answer.link) && is_covered(answer));
}

fn succeeded_if(exists: bool) -> TaskManagementOutcome {
    if exists { TaskManagementOutcome::FunctionSucceeded } else { TaskManagementOutcome::FunctionComplete }
}
