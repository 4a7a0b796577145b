//! SCSI commands: their data-out, and their delivery in order.

use base::serial::Serial32;
use scsi::Status;

use super::super::arrived_command::ArrivedCommand;
use super::super::event::{CloseReason, Command, Event, HeldData, LinkId, Outcome, TaskId};
use super::super::knowledge::NO_PLACE;
use super::super::link::live;
use super::super::nexus::Nexus;
use super::super::placing::{Admission, admit, lend};
use super::super::task::{DataFailure, DataFault, DataHold, DataOutCollection, DataOutHeld, OutstandingR2t, Task};
use super::super::task_set::{Held, TaskSet};
use super::stalls::Stalls;
use crate::framing::{DataSegment, ReceivedHeader, ReceivedPdu};
use crate::pdu::{Bhs, DataOut, InitiatorTaskTag, ReadyToTransfer, RejectReason, ScsiCommand, SnackRequest, SnackType};

/// The commands of a session, from their PDUs to their responses.
///
/// Functions return the reason for which the connection of a PDU must end.
pub(super) struct Commands {
    pub(super) set: TaskSet,
    /// What the initiator owes.
    pub(super) stalls: Stalls,
}

/// What has its turn in the command order.
pub(super) enum Turn {
    /// A command, which was advanced, or was aborted before it came.
    Command,
    /// Any other request, of a connection.
    Request(LinkId, Box<ReceivedPdu>),
}

impl Commands {
    pub(super) fn new(set: TaskSet) -> Self {
        Self { set, stalls: Stalls::default() }
    }

    /// ExpCmdSN and MaxCmdSN, as every response carries them.
    pub(super) fn numbers(&self) -> (Serial32, Serial32) {
        self.set.command_numbers()
    }

    /// Takes a command; `arrived` is what was made of it when its header came, if it has a data segment. Returns
    /// whether its turn in the command order may have come.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn handle_command(
        &mut self,
        at: LinkId,
        command: ScsiCommand,
        arrived: Option<ArrivedCommand>,
        pdu: ReceivedPdu,
        nexus: &mut Nexus,
    ) -> Result<bool, CloseReason> {
        let reject = |reason, set: &TaskSet, nexus: &mut Nexus| {
            nexus.reject(at, &pdu.header, reason, set.command_numbers()).map(|()| false)
        };
        match admit(&nexus.full, &self.set, &command) {
            Admission::Take => {}
            Admission::Ignore => {
                nexus.note_ignored(at, pdu.header.data_segment_bytes);
                return Ok(false);
            }
            Admission::Reject(reason) => return reject(reason, &self.set, nexus),
        }
        if self.set.is_over(&command) {
            nexus.note_ignored(at, pdu.header.data_segment_bytes);
            if !command.is_immediate {
                self.set.window.take(command.cmd_sn, Held::Plugged);
            }
            return Ok(!command.is_immediate);
        }
        if pdu.data.is_corrupt {
            // The command is dropped; the initiator may send it again (RFC 7143 11.17.1, note 1).
            return reject(RejectReason::DataDigestError, &self.set, nexus);
        }
        let immediate_bytes = pdu.header.data_segment_bytes;
        let ArrivedCommand { cdb, plan } =
            arrived.unwrap_or_else(|| ArrivedCommand::new(&nexus.full, &command, immediate_bytes));
        let mut collection = DataOutCollection::new(
            plan.wanted,
            if plan.takes_immediate { immediate_bytes as u32 } else { 0 },
            plan.unsolicited_limit,
        );
        let mut failure = (!plan.takes_immediate).then_some(DataFailure::UnexpectedUnsolicitedData);
        collection.buffer = if pdu.data.length > 0 {
            Some(pdu.data.buffer)
        } else if immediate_bytes > 0 {
            failure.get_or_insert(DataFailure::NoBuffer);
            None
        } else {
            plan.buffer(&nexus.parameters, self.set.data_out(), 0)
        };
        let data_out_held = collection.buffer.as_ref().map(DataOutHeld::of).unwrap_or_default();
        if plan.unsolicited_limit.is_some() {
            self.stalls.watch(nexus.now);
        }
        let generation = self.set.next_generation();
        let id = TaskId { initiator_task_tag: command.initiator_task_tag, generation };
        self.set.add_task(Box::new(Task {
            id,
            link: at,
            header: command,
            cdb,
            bidirectional_read_bytes: pdu.header.ahs.bidirectional_read_bytes,
            asked_bytes: plan.asked_bytes,
            is_delivered: command.is_immediate,
            is_started: false,
            answer: None,
            is_aborted: false,
            is_suspended: false,
            outlives_function: false,
            failure,
            data_out: collection,
            data_out_held,
            data_moved: nexus.now,
            place: NO_PLACE,
            hold: cdb.ok().filter(|_| plan.is_held).map_or(DataHold::Free, DataHold::Due),
        }));
        if command.is_immediate {
            self.advance_task(id, nexus);
        }
        Ok(!command.is_immediate)
    }

    /// Delivers the next command or request whose turn in the command order has come, of any connection.
    pub(super) fn next_turn(&mut self, nexus: &mut Nexus) -> Option<Turn> {
        let held = self.set.window.next_in_order()?;
        self.set.forget_ended();
        Some(match held {
            Held::Task(id) => {
                self.set.deliver_task(id);
                self.advance_task(id, nexus);
                Turn::Command
            }
            Held::Request(at, pdu) => {
                self.set.open_window();
                Turn::Request(at, pdu)
            }
            Held::Plugged => {
                self.set.open_window();
                Turn::Command
            }
        })
    }

    /// Notes whether commands were delivered; those that are still held wait for an earlier one.
    pub(super) fn note_gap(&mut self, has_delivered: bool, nexus: &Nexus) {
        let has_held = self.set.window.held().next().is_some();
        self.stalls.note_gap(has_held, has_delivered, nexus.now);
    }

    /// Takes data of a task.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn handle_data_out(
        &mut self,
        at: LinkId,
        data: DataOut,
        pdu: ReceivedPdu,
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let numbers = self.set.command_numbers();
        let level = nexus.full.negotiated.error_recovery_level;
        // Late data of a task that was aborted or has failed is dropped.
        let Some(task) = self.set.tasks.get_mut(&data.initiator_task_tag) else {
            nexus.note_ignored(at, pdu.header.data_segment_bytes);
            return Ok(());
        };
        if task.link != at {
            // Data belongs on the connection of its command (RFC 7143 4.2.5.1).
            return nexus.reject(at, &pdu.header, RejectReason::ProtocolError, numbers);
        }
        let id = task.id;
        let length = pdu.header.data_segment_bytes;
        let is_placed = pdu.data.length > 0;
        if let Err(fault) = task.data_out.check(&data, length) {
            return self.handle_data_fault(at, fault, &data, &pdu.header, nexus);
        }
        if length > 0 {
            task.data_moved = nexus.now;
        }
        if is_placed {
            task.data_out.buffer = Some(pdu.data.buffer);
        } else if length > 0 {
            // Its bytes had no buffer: for whatever reason, they must not count as received.
            task.failure.get_or_insert(DataFailure::IncorrectAmountOfData);
        }
        let is_lost = pdu.data.is_corrupt || !task.data_out.is_next(&data);
        if level > 0 && is_lost && task.failure.is_none() {
            // Within-command recovery: the rest of the sequence is dropped and requested again (RFC
            // 7143 7.1.4.1, 7.8, 7.9).
            task.data_out.lose(&data);
        } else {
            if let Err(failure) = task.data_out.advance(&data, length) {
                task.failure.get_or_insert(failure);
            }
            if pdu.data.is_corrupt {
                task.failure.get_or_insert(DataFailure::ProtocolServiceCrcError);
            }
        }
        if length == 0 {
            nexus.note_ignored(at, 0);
        } else if let Some(link) = live(&mut nexus.links, at) {
            link.note_data_out(nexus.now, length);
        }
        if pdu.data.is_corrupt {
            nexus.reject(at, &pdu.header, RejectReason::DataDigestError, numbers)?;
        }
        self.advance_task(id, nexus);
        Ok(())
    }

    /// Handles a Data-Out that does not fit its task now.
    fn handle_data_fault(
        &mut self,
        at: LinkId,
        fault: DataFault,
        data: &DataOut,
        header: &ReceivedHeader,
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let numbers = self.set.command_numbers();
        let level = nexus.full.negotiated.error_recovery_level;
        let Some(task) = self.set.tasks.get_mut(&data.initiator_task_tag) else { return Ok(()) };
        let id = task.id;
        match fault {
            DataFault::Unexpected => {
                task.failure.get_or_insert(DataFailure::UnexpectedUnsolicitedData);
                nexus.note_ignored(at, header.data_segment_bytes);
                self.advance_task(id, nexus);
                Ok(())
            }
            DataFault::Repeated | DataFault::Stale if level > 0 => {
                nexus.note_ignored(at, header.data_segment_bytes);
                Ok(())
            }
            DataFault::Recovering => {
                task.data_out.skip(data);
                nexus.note_ignored(at, header.data_segment_bytes);
                self.advance_task(id, nexus);
                Ok(())
            }
            DataFault::Protocol(_) if level > 0 => {
                // Within a sequence this means that an earlier PDU was lost: the data is requested
                // again.
                task.data_out.lose(data);
                nexus.reject(at, header, RejectReason::ProtocolError, numbers)?;
                self.advance_task(id, nexus);
                Ok(())
            }
            DataFault::Repeated => {
                nexus.reject(at, header, RejectReason::ProtocolError, numbers)?;
                Err(CloseReason::Protocol("Data-Out with a wrong buffer offset"))
            }
            DataFault::Stale => {
                nexus.reject(at, header, RejectReason::ProtocolError, numbers)?;
                Err(CloseReason::Protocol("Data-Out for an R2T that is not there"))
            }
            DataFault::Protocol(what) => {
                nexus.reject(at, header, RejectReason::ProtocolError, numbers)?;
                Err(CloseReason::Protocol(what))
            }
        }
    }

    /// Takes the next step of a task: requests more data, starts, or fails.
    pub(super) fn advance_task(&mut self, id: TaskId, nexus: &mut Nexus) {
        if self.set.is_held_back(id) {
            return;
        }
        let Some(task) = self.set.task(id) else { return };
        let at = task.link;
        if !task.is_delivered || task.is_started || task.is_suspended || task.answer.is_some() {
            return;
        }
        let is_failed = task.failure.is_some();
        if task.data_out.is_complete(is_failed) {
            return if is_failed { self.fail_task(id, nexus) } else { self.start_task(id, nexus) };
        }
        if is_failed || !task.data_out.needs_r2t() {
            return;
        }
        match task.hold {
            DataHold::Free => {}
            DataHold::Told => return,
            DataHold::Due(cdb) => {
                task.hold = DataHold::Told;
                let held = HeldData { task: id, lun: task.header.lun, cdb };
                return nexus.events.push_back(Event::DataHeld(held));
            }
        }
        let has_place =
            task.data_out.buffer.as_ref().is_some_and(|buffer| buffer.room() >= task.data_out.wanted as usize);
        if has_place {
            self.send_r2ts(at, id, nexus);
        } else if !self.set.starved.contains(&id) {
            self.set.starved.push_back(id);
            self.feed_starved(nexus);
        }
    }

    /// Requests the data of a held command. Commands that have ended are ignored.
    pub(super) fn ask_for_data(&mut self, id: TaskId, nexus: &mut Nexus) {
        if let Some(task) = self.set.task(id) {
            task.hold = DataHold::Free;
            self.advance_task(id, nexus);
        }
    }

    fn send_r2ts(&mut self, at: LinkId, id: TaskId, nexus: &mut Nexus) {
        let (burst_bytes_max, outstanding_max) =
            (nexus.full.negotiated.max_burst_length, nexus.full.negotiated.max_outstanding_r2t);
        let numbers = self.set.command_numbers();
        let Some(link) = live(&mut nexus.links, at) else { return };
        let Some(task) = self.set.task(id) else { return };
        let tags = &mut nexus.target_transfer_tag;
        task.data_moved = nexus.now;
        self.stalls.watch(nexus.now);
        while let Some(r2t) = task.data_out.next_r2t(
            || {
                *tags = tags.next();
                *tags
            },
            burst_bytes_max,
            outstanding_max,
        ) {
            let header = r2t_header(&r2t, (id.initiator_task_tag, task.header.lun), link.stat_sn, numbers);
            link.push(&header, DataSegment::Empty);
        }
    }

    fn start_task(&mut self, id: TaskId, nexus: &mut Nexus) {
        let Some(task) = self.set.task(id) else { return };
        task.is_started = true;
        let mut data_out = task.data_out.buffer.take().unwrap_or_default();
        let wanted = task.data_out.wanted as usize;
        if data_out.len() > wanted {
            data_out.set_length(wanted);
        }
        let command = Command {
            task: id,
            lun: task.header.lun,
            cdb: task.cdb,
            attribute: task.header.attribute,
            data_out,
            data_in_bytes_max: task.data_in_bytes_max(),
        };
        nexus.events.push_back(Event::Command(command));
    }

    /// Takes a command back that the driver has not begun. It begins again where its task is not suspended any more.
    pub(super) fn take_back(&mut self, command: Command) {
        if let Some(task) = self.set.task(command.task) {
            task.is_started = false;
            task.data_out.buffer = Some(command.data_out);
        }
    }

    fn fail_task(&mut self, id: TaskId, nexus: &mut Nexus) {
        let failure = self.set.task(id).and_then(|task| task.failure);
        let (status, sense) = failure.map(|failure| (failure.status(), failure.sense())).unwrap_or_default();
        self.complete(id, Outcome { status, sense, ..Outcome::default() }, nexus);
        self.feed_starved(nexus);
    }

    fn respond(&mut self, task: &Task, outcome: Outcome, nexus: &mut Nexus) {
        let numbers = self.set.command_numbers();
        self.set.answers.respond(task, outcome, numbers, nexus);
    }

    /// Gives buffers to tasks that wait for one, oldest first, while the pool has any.
    pub(super) fn feed_starved(&mut self, nexus: &mut Nexus) {
        while let Some(&id) = self.set.starved.front() {
            let mut own = self.set.data_out();
            if let Some(task) = self.set.task(id) {
                // A large write may have more than the share, if it is the only one.
                own.remove(task.data_out_held);
                let wanted = task.data_out.wanted as usize;
                let Some(mut buffer) = lend(&nexus.parameters, own, wanted, true) else { return };
                // Unsolicited data is in the small buffer.
                if let Some(small) = &task.data_out.buffer {
                    let kept = small.len().min(wanted);
                    buffer.extend_to(kept);
                    buffer[..kept].copy_from_slice(&small[..kept]);
                }
                let held = DataOutHeld::of(&buffer);
                task.data_out.buffer = Some(buffer);
                self.set.hold(id, held);
            }
            self.set.starved.pop_front();
            self.advance_task(id, nexus);
        }
    }

    /// Ends a task with its outcome from the driver, at once or when no fence holds its answer back. Those of tasks
    /// that have ended are ignored. Returns whether it was one that had not.
    pub(super) fn complete(&mut self, id: TaskId, outcome: Outcome, nexus: &mut Nexus) -> bool {
        let Some(task) = self.set.task(id).filter(|task| task.answer.is_none()) else { return false };
        let outcome = match outcome.is_silent {
            true if task.outlives_function => Outcome { status: Status::TaskAborted.code(), ..Outcome::default() },
            _ => outcome,
        };
        if task.is_aborted || outcome.is_silent {
            self.set.remove_task(id);
        } else if let Some(outcome) = self.set.hold_answer(id, outcome) {
            self.answer(id, outcome, nexus);
        }
        true
    }

    /// Ends a task whose answer was held back, if nothing holds it back any more.
    pub(super) fn answer_held(&mut self, id: TaskId, nexus: &mut Nexus) {
        let answer = self.set.task(id).and_then(|task| task.answer.take());
        if let Some(outcome) = answer.and_then(|(_, answer)| self.set.hold_answer(id, answer)) {
            self.answer(id, outcome, nexus);
        }
    }

    fn answer(&mut self, id: TaskId, outcome: Outcome, nexus: &mut Nexus) {
        if let Some(task) = self.set.remove_task(id) {
            self.note_news(&task, &outcome.news, nexus);
            self.respond(&task, outcome, nexus);
        }
    }

    /// Notes the news of a response that is about to be sent; without its connection it brings none.
    fn note_news(&mut self, task: &Task, news: &[u64], nexus: &mut Nexus) {
        for &news in news {
            if let Some(link) = live(&mut nexus.links, task.link) {
                self.set.knowledge.report(task.link, link.stat_sn, news);
            }
        }
    }

    /// Frees the data buffers of a lost connection's waiting tasks: after a reassignment the data
    /// is sent again.
    pub(super) fn free_buffers_of(&mut self, at: LinkId, nexus: &mut Nexus) {
        let is_waiting = |task: &&mut Box<Task>| task.link == at && !task.is_started && task.answer.is_none();
        let waiting = self.set.tasks.values_mut().filter(is_waiting).map(|task| {
            task.data_out.forget();
            task.id
        });
        let waiting: Vec<TaskId> = waiting.collect();
        waiting.into_iter().for_each(|id| self.set.hold(id, DataOutHeld::default()));
        self.feed_starved(nexus);
    }

    /// Ends the tasks of a lost connection without responses.
    pub(super) fn end_tasks_of(&mut self, at: LinkId, nexus: &mut Nexus) {
        self.drop_tasks(|task| task.link == at, nexus);
        self.set.forget_answers(|answer| answer.link == at);
        self.feed_starved(nexus);
    }

    /// Ends tasks of which the initiator learns only by a unit attention.
    pub(super) fn drop_tasks(&mut self, is_ended: impl Fn(&Task) -> bool, nexus: &mut Nexus) {
        let luns = self.set.drop_tasks(is_ended);
        if !luns.is_empty() {
            nexus.events.push_back(Event::CommandsCleared(luns));
        }
    }

    /// Notes the responses that a request acknowledges.
    ///
    /// # Errors
    /// When the connection must end, because too many are not.
    pub(super) fn note_acknowledgement(&mut self, at: LinkId, bhs: &Bhs, nexus: &mut Nexus) -> Result<(), CloseReason> {
        let Some(exp_stat_sn) = exp_stat_sn(bhs) else { return Ok(()) };
        if self.set.knowledge.is_expecting()
            && let Some(cmd_sn) = cmd_sn(bhs)
        {
            self.set.hear(at, exp_stat_sn, cmd_sn);
        }
        let Some(link) = live(&mut nexus.links, at) else { return Ok(()) };
        for (tag, stat_sn) in link.acknowledge(exp_stat_sn) {
            self.set.acknowledge_answer(tag, stat_sn);
        }
        link.check_kept()?;
        self.set.answers.check_kept()
    }

    /// Sends again what the initiator asks for (RFC 7143 11.16).
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn handle_snack(
        &mut self,
        at: LinkId,
        request: &SnackRequest,
        header: &ReceivedHeader,
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let numbers = self.set.command_numbers();
        if nexus.full.negotiated.error_recovery_level == 0 {
            // Nothing was kept that could be sent again.
            return nexus.reject(at, header, RejectReason::SnackReject, numbers);
        }
        let answers = &mut self.set.answers;
        match request.kind {
            SnackType::DataOrR2t { initiator_task_tag: tag, begin, run_length } => {
                if self.set.tasks.contains_key(&tag) {
                    self.send_r2ts_again(at, tag, (begin, run_length), header, nexus)
                } else {
                    answers.send_data_again(at, tag, (begin, run_length), header, numbers, nexus)
                }
            }
            SnackType::Status { begin, run_length } => {
                answers.send_status_again(at, (begin, run_length), header, numbers, nexus)
            }
            SnackType::DataAck { target_transfer_tag, begin } => {
                if answers.acknowledge_data(at, target_transfer_tag, request.lun, begin) {
                    return Ok(());
                }
                nexus.reject(at, header, RejectReason::InvalidDataAck, numbers)
            }
            SnackType::ResegmentedData { initiator_task_tag, snack_tag } => {
                answers.resegment(at, (initiator_task_tag, snack_tag), header, numbers, nexus)
            }
        }
    }

    /// Sends R2Ts again whose data has not come, unchanged except for the current numbers.
    fn send_r2ts_again(
        &mut self,
        at: LinkId,
        tag: InitiatorTaskTag,
        (begin, run_length): (Serial32, u32),
        header: &ReceivedHeader,
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let numbers = self.set.command_numbers();
        let Some(task) = self.set.tasks.get(&tag) else { return Ok(()) };
        let next = task.data_out.next_r2t_sn();
        let end = if run_length == 0 { next } else { begin.plus(run_length) };
        let is_asked = |sn: Serial32| !sn.is_before(begin) && sn.is_before(end);
        let asked: Vec<_> = task.data_out.outstanding().filter(|r2t| is_asked(r2t.r2t_sn)).copied().collect();
        let are_all_there = run_length == 0 || asked.len() == run_length as usize;
        let Some(link) = live(&mut nexus.links, at) else { return Ok(()) };
        if asked.is_empty() || !are_all_there || task.link != at {
            return nexus.reject_data(at, header, RejectReason::ProtocolError, next, numbers);
        }
        for r2t in asked {
            let again = r2t_header(&r2t, (tag, task.header.lun), link.stat_sn, numbers);
            link.push(&again, DataSegment::Empty);
        }
        Ok(())
    }

    /// Goes on with a task on another connection than its own, which was lost; data that comes in from DataSN
    /// `exp_data_sn` on.
    pub(super) fn resume(&mut self, at: LinkId, tag: InitiatorTaskTag, exp_data_sn: Serial32, nexus: &mut Nexus) {
        let Some(task) = self.set.tasks.get_mut(&tag) else {
            let numbers = self.set.command_numbers();
            return self.set.answers.resume(at, tag, exp_data_sn, numbers, nexus);
        };
        task.link = at;
        // Data under way on the old connection is requested again here.
        task.data_out.ask_again();
        let id = task.id;
        self.advance_task(id, nexus);
    }
}

/// The header of an R2T for the task with this tag, on the logical unit of `lun`.
fn r2t_header(
    r2t: &OutstandingR2t,
    (initiator_task_tag, lun): (InitiatorTaskTag, u64),
    stat_sn: Serial32,
    (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
) -> ReadyToTransfer {
    ReadyToTransfer {
        lun,
        initiator_task_tag,
        target_transfer_tag: r2t.tag,
        stat_sn,
        exp_cmd_sn,
        max_cmd_sn,
        r2t_sn: r2t.r2t_sn,
        buffer_offset: r2t.offset,
        desired_data_transfer_length: r2t.length,
    }
}

/// ExpStatSN of an initiator's PDU.
fn exp_stat_sn(bhs: &Bhs) -> Option<Serial32> {
    match bhs {
        Bhs::NopOut(request) => Some(request.exp_stat_sn),
        Bhs::ScsiCommand(request) => Some(request.exp_stat_sn),
        Bhs::TaskManagementRequest(request) => Some(request.exp_stat_sn),
        Bhs::TextRequest(request) => Some(request.exp_stat_sn),
        Bhs::DataOut(request) => Some(request.exp_stat_sn),
        Bhs::LogoutRequest(request) => Some(request.exp_stat_sn),
        Bhs::SnackRequest(request) => Some(request.exp_stat_sn),
        _ => None,
    }
}

/// The number of a request, or of the next command if it takes none: the initiator gives it at the time of ExpStatSN.
fn cmd_sn(bhs: &Bhs) -> Option<Serial32> {
    match bhs {
        Bhs::NopOut(request) => Some(request.cmd_sn),
        Bhs::ScsiCommand(request) => Some(request.cmd_sn),
        Bhs::TaskManagementRequest(request) => Some(request.cmd_sn),
        Bhs::TextRequest(request) => Some(request.cmd_sn),
        Bhs::LogoutRequest(request) => Some(request.cmd_sn),
        _ => None,
    }
}
