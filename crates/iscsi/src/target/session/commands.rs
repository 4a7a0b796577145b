//! SCSI commands: their data-out, their delivery in order, their responses and data-in.

use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;
use base::limits::BUFFER_ALIGNMENT;
use base::serial::Serial32;

use super::super::answer::{Answer, Forgotten, Piece};
use super::super::data_in::{Cut, DataInBuffer, DataInHeaders};
use super::super::event::{Cdb, CloseReason, Command, Event, HeldData, LinkId, Outcome, TaskId};
use super::super::full_feature::FullFeature;
use super::super::link::Link;
use super::super::link::live;
use super::super::placing::{Admission, DataOutPlan, admit, lend};
use super::super::task::{DataFailure, DataFault, DataHold, DataOutCollection, DataOutHeld, Task};
use super::super::task_set::Held;
use super::Session;
use crate::framing::{Bound, DataSegment, ReceivedPdu};
use crate::limits::{PACE_DATA_BYTES, STALL_CHECK_INTERVAL};
use crate::pdu::{
    DataInStatus, DataOut, ReadyToTransfer, RejectReason, Residual, ScsiCommand, ScsiResponse, ServiceResponse,
};

const STATUS_GOOD: u8 = 0x00;

impl Session {
    pub(super) fn handle_command(&mut self, at: LinkId, command: ScsiCommand, pdu: ReceivedPdu) {
        let full = &self.full;
        match admit(full, &self.set, &command) {
            Admission::Take => {}
            Admission::Ignore => return self.note_ignored(at, pdu.header.data_segment_bytes),
            Admission::Reject(reason) => return self.reject(at, &pdu.header, reason),
        }
        if pdu.data.is_corrupt {
            // The command is dropped; the initiator may send it again (RFC 7143 11.17.1, note 1).
            return self.reject(at, &pdu.header, RejectReason::DataDigestError);
        }
        let immediate_bytes = pdu.header.data_segment_bytes;
        let plan = DataOutPlan::new(full, &command, immediate_bytes);
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
            plan.buffer(&self.parameters, self.set.data_out(), 0)
        };
        let data_out_held = collection.buffer.as_ref().map(DataOutHeld::of).unwrap_or_default();
        if plan.unsolicited_limit.is_some() {
            self.watch_for_stalls();
        }
        let generation = self.set.next_generation();
        let id = TaskId { initiator_task_tag: command.initiator_task_tag, generation };
        self.set.add_task(Task {
            id,
            link: at,
            header: command,
            extended_cdb: pdu.header.ahs.extended_cdb,
            bidirectional_read_bytes: pdu.header.ahs.bidirectional_read_bytes,
            asked_bytes: plan.asked_bytes,
            is_delivered: command.is_immediate,
            is_started: false,
            is_aborted: false,
            failure,
            data_out: collection,
            data_out_held,
            data_moved: self.now,
            hold: if plan.is_held { DataHold::Due } else { DataHold::Free },
        });
        if command.is_immediate {
            self.advance_task(id);
        } else {
            self.deliver_in_order();
        }
    }

    /// Delivers every command whose turn in the command order has come, of any connection.
    pub(super) fn deliver_in_order(&mut self) {
        let mut has_delivered = false;
        while !self.is_ended {
            match self.set.window.next_in_order() {
                None => break,
                Some(Held::Task(id)) => {
                    self.set.deliver_task(id);
                    self.advance_task(id);
                }
                Some(Held::Request(at, pdu)) => {
                    self.set.open_window();
                    self.handle_request(at, *pdu);
                }
                Some(Held::Plugged) => self.set.open_window(),
            }
            has_delivered = true;
        }
        self.note_gap(has_delivered);
        if has_delivered && !self.set.managements.is_empty() {
            self.advance_managements();
        }
    }

    /// Ignored PDUs count as work, and have no answer.
    fn note_ignored(&mut self, at: LinkId, bytes: usize) {
        let now = self.now;
        if let Some(link) = live(&mut self.links, at) {
            link.pace.note(now, 1 + bytes / PACE_DATA_BYTES);
        }
    }

    pub(super) fn handle_data_out(&mut self, at: LinkId, data: DataOut, pdu: ReceivedPdu) {
        let level = self.full.negotiated.error_recovery_level;
        // Late data of a task that was aborted or has failed is dropped.
        let Some(task) = self.set.tasks.get_mut(&data.initiator_task_tag) else {
            return self.note_ignored(at, pdu.header.data_segment_bytes);
        };
        if task.link != at {
            // Data belongs on the connection of its command (RFC 7143 4.2.5.1).
            return self.reject(at, &pdu.header, RejectReason::ProtocolError);
        }
        let id = task.id;
        let length = pdu.header.data_segment_bytes;
        let is_placed = pdu.data.length > 0;
        match task.data_out.check(&data, length) {
            Ok(()) => {}
            Err(DataFault::Unexpected) => {
                task.failure.get_or_insert(DataFailure::UnexpectedUnsolicitedData);
                self.note_ignored(at, pdu.header.data_segment_bytes);
                return self.advance_task(id);
            }
            Err(DataFault::Repeated | DataFault::Stale) if level > 0 => {
                return self.note_ignored(at, pdu.header.data_segment_bytes);
            }
            Err(DataFault::Recovering) => {
                task.data_out.skip(&data);
                self.note_ignored(at, pdu.header.data_segment_bytes);
                return self.advance_task(id);
            }
            Err(DataFault::Protocol(_)) if level > 0 => {
                // Within a sequence this means that an earlier PDU was lost: the data is requested
                // again.
                task.data_out.lose(&data);
                self.reject(at, &pdu.header, RejectReason::ProtocolError);
                return self.advance_task(id);
            }
            Err(DataFault::Repeated) => {
                self.reject(at, &pdu.header, RejectReason::ProtocolError);
                return self.fail_link(at, CloseReason::Protocol("Data-Out with a wrong buffer offset"));
            }
            Err(DataFault::Stale) => {
                self.reject(at, &pdu.header, RejectReason::ProtocolError);
                return self.fail_link(at, CloseReason::Protocol("Data-Out for an R2T that is not there"));
            }
            Err(DataFault::Protocol(what)) => {
                self.reject(at, &pdu.header, RejectReason::ProtocolError);
                return self.fail_link(at, CloseReason::Protocol(what));
            }
        }
        if length > 0 {
            task.data_moved = self.now;
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
            self.note_ignored(at, 0);
        } else if let Some(link) = live(&mut self.links, at) {
            link.note_data_out(self.now, length);
        }
        if pdu.data.is_corrupt {
            self.reject(at, &pdu.header, RejectReason::DataDigestError);
        }
        self.advance_task(id);
    }

    /// Takes the next step of a task: requests more data, starts, or fails.
    pub(super) fn advance_task(&mut self, id: TaskId) {
        let Some(task) = self.set.task(id) else { return };
        if task.is_aborted && !task.is_started {
            if task.data_out.is_settled() {
                self.set.remove_task(id);
                self.set.note_end(id);
                self.advance_managements();
            }
            return;
        }
        let at = task.link;
        if !task.is_delivered || task.is_started {
            return;
        }
        let is_failed = task.failure.is_some();
        if task.data_out.is_complete(is_failed) {
            return if is_failed { self.fail_task(id) } else { self.start_task(id) };
        }
        if is_failed || !task.data_out.needs_r2t() {
            return;
        }
        match task.hold {
            DataHold::Free => {}
            DataHold::Told => return,
            DataHold::Due => {
                task.hold = DataHold::Told;
                let cdb = Cdb { head: task.header.cdb, extension: task.extended_cdb.clone() };
                let held = HeldData { task: id, lun: task.header.lun, cdb };
                return self.events.push_back(Event::DataHeld(held));
            }
        }
        let has_place =
            task.data_out.buffer.as_ref().is_some_and(|buffer| buffer.room() >= task.data_out.wanted as usize);
        if has_place {
            self.send_r2ts(at, id);
        } else if !self.set.starved.contains(&id) {
            self.set.starved.push_back(id);
            self.feed_starved();
        }
    }

    /// Requests the data of a held command. Commands that have ended are ignored.
    pub fn ask_for_data(&mut self, now: Instant, id: TaskId) {
        self.now = now;
        if let Some(task) = self.set.task(id) {
            task.hold = DataHold::Free;
            self.advance_task(id);
        }
    }

    fn send_r2ts(&mut self, at: LinkId, id: TaskId) {
        let (burst_bytes_max, outstanding_max) =
            (self.full.negotiated.max_burst_length, self.full.negotiated.max_outstanding_r2t);
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        let Some(task) = self.set.task(id) else { return };
        let tags = &mut self.target_transfer_tag;
        task.data_moved = self.now;
        self.stall_check.get_or_insert(self.now + STALL_CHECK_INTERVAL);
        while let Some(r2t) = task.data_out.next_r2t(
            || {
                *tags = tags.next();
                *tags
            },
            burst_bytes_max,
            outstanding_max,
        ) {
            let header = ReadyToTransfer {
                lun: task.header.lun,
                initiator_task_tag: id.initiator_task_tag,
                target_transfer_tag: r2t.tag,
                stat_sn: link.stat_sn,
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: r2t.r2t_sn,
                buffer_offset: r2t.offset,
                desired_data_transfer_length: r2t.length,
            };
            link.push(&header, DataSegment::Empty);
        }
    }

    fn start_task(&mut self, id: TaskId) {
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
            cdb: Cdb { head: task.header.cdb, extension: task.extended_cdb.clone() },
            attribute: task.header.attribute,
            data_out,
            data_in_bytes_max: data_in_bytes_max(task),
        };
        self.events.push_back(Event::Command(command));
    }

    fn fail_task(&mut self, id: TaskId) {
        let Some(task) = self.set.remove_task(id) else { return };
        let (status, sense) = task.failure.map(|failure| (failure.status(), failure.sense())).unwrap_or_default();
        self.respond(&task, Outcome { status, sense, ..Outcome::default() });
        self.set.note_end(id);
        self.feed_starved();
    }

    /// Gives buffers to tasks that wait for one, oldest first, while the pool has any.
    pub(super) fn feed_starved(&mut self) {
        while let Some(&id) = self.set.starved.front() {
            let mut own = self.set.data_out();
            if let Some(task) = self.set.task(id) {
                // A large write may have more than the share, if it is the only one.
                own.remove(task.data_out_held);
                let wanted = task.data_out.wanted as usize;
                let Some(mut buffer) = lend(&self.parameters, own, wanted, true) else { return };
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
            self.advance_task(id);
        }
    }

    /// Handles the outcome of a command from the driver. Those of tasks that have ended are
    /// ignored.
    pub fn handle_completion(&mut self, now: Instant, id: TaskId, outcome: Outcome) {
        self.now = now;
        if self.is_ended {
            return;
        }
        let Some(task) = self.set.remove_task(id) else { return };
        self.set.note_end(id);
        if !task.is_aborted && !outcome.is_silent {
            self.respond(&task, outcome);
        }
        if !self.set.managements.is_empty() {
            self.advance_managements();
        }
        self.note_end_for_logouts(id);
        self.feed_starved();
    }

    /// Answers a task: at once and finally at error recovery level 0, else so that it can be
    /// answered again.
    fn respond(&mut self, task: &Task, mut outcome: Outcome) {
        let data_in = std::mem::take(&mut outcome.data_in);
        let presented = data_in.len() as u64 + outcome.data_in_bytes_cut;
        let (residual, bidirectional_read_residual) = residuals(&self.full, task, presented);
        let sent = data_in.len().min(data_in_bytes_max(task) as usize);
        let data_in = fitting(data_in, sent);
        if self.full.negotiated.error_recovery_level > 0 {
            let answer = Answer {
                id: task.id,
                link: task.link,
                lun: task.header.lun,
                status: outcome.status,
                sense: outcome.sense,
                residual,
                bidirectional_read_residual,
                data: (sent > 0).then(|| Arc::new(data_in)),
                sent,
                pieces: Vec::new(),
                forgotten: Forgotten::default(),
                first_data_sn: 0,
                first_offset: 0,
                snack_tag: 0,
                stat_sn: None,
            };
            let answer = self.send_answer(answer, Bound::Commands);
            return self.set.keep_answer(answer);
        }
        let numbers = self.set.command_numbers();
        let Some(link) = live(&mut self.links, task.link) else { return };
        let is_bidirectional = task.header.reads && task.header.writes;
        let can_collapse = sent > 0 && outcome.status == STATUS_GOOD && outcome.sense.is_empty() && !is_bidirectional;
        let status = outcome.status;
        let status = can_collapse.then(|| DataInStatus { status, stat_sn: link.take_stat_sn(), residual });
        let burst_max = self.full.negotiated.max_burst_length as usize;
        let cut = Cut { segment_max: link.segment_bytes_max, burst_max, offset: 0, end: sent };
        let headers = DataInHeaders {
            cut: cut.clone(),
            initiator_task_tag: task.id.initiator_task_tag,
            numbers,
            data_sn: Serial32(0),
            status,
            acknowledged_as: None,
        };
        link.push_data_in(headers, DataInBuffer::Own(data_in), Bound::Commands);
        if can_collapse {
            return;
        }
        let stat_sn = link.take_stat_sn();
        let response = ScsiResponse {
            response: ServiceResponse::CommandCompleted { status: outcome.status },
            initiator_task_tag: task.id.initiator_task_tag,
            snack_tag: 0,
            stat_sn,
            exp_cmd_sn: numbers.0,
            max_cmd_sn: numbers.1,
            exp_data_sn: Serial32(cut.count() as u32),
            bidirectional_read_residual,
            residual,
        };
        link.push(&response, sense_segment(&outcome.sense));
    }

    /// Sends what of an answer's data is not acknowledged, and its response. Without its connection it waits.
    pub(super) fn send_answer(&mut self, mut answer: Answer, bound: Bound) -> Answer {
        let burst_max = self.full.negotiated.max_burst_length as usize;
        let numbers = self.set.command_numbers();
        let Some(link) = live(&mut self.links, answer.link) else { return answer };
        answer.pieces.clear();
        let segment_max = link.segment_bytes_max;
        let cut = Cut { segment_max, burst_max, offset: answer.first_offset, end: answer.sent };
        if let Some(data) = &answer.data {
            let headers = DataInHeaders {
                cut: cut.clone(),
                initiator_task_tag: answer.id.initiator_task_tag,
                numbers,
                data_sn: Serial32(answer.next_data_sn()),
                status: None,
                acknowledged_as: Some((answer.lun, self.target_transfer_tag)),
            };
            link.push_data_in(headers, DataInBuffer::Kept(Arc::clone(data)), bound);
        }
        for range in cut.clone() {
            let acknowledgement = cut.ends_burst(range.end).then(|| {
                self.target_transfer_tag = self.target_transfer_tag.next();
                self.target_transfer_tag
            });
            let ends_sequence = cut.ends_sequence(range.end);
            answer.pieces.push(Piece { range, ends_sequence, acknowledgement });
        }
        send_response(link, &mut answer, numbers);
        answer
    }
}

/// Sends the response of an answer, with the number it has or a new one.
pub(super) fn send_response(link: &mut Link, answer: &mut Answer, numbers: (Serial32, Serial32)) {
    let stat_sn = match answer.stat_sn {
        Some(stat_sn) => stat_sn,
        None => {
            let stat_sn = link.take_stat_sn();
            link.sent.push_task(link.last_moved, stat_sn, answer.id.initiator_task_tag);
            answer.stat_sn = Some(stat_sn);
            stat_sn
        }
    };
    let response = ScsiResponse {
        response: ServiceResponse::CommandCompleted { status: answer.status },
        initiator_task_tag: answer.id.initiator_task_tag,
        snack_tag: answer.snack_tag,
        stat_sn,
        exp_cmd_sn: numbers.0,
        max_cmd_sn: numbers.1,
        exp_data_sn: Serial32(answer.next_data_sn()),
        bidirectional_read_residual: answer.bidirectional_read_residual,
        residual: answer.residual,
    };
    link.push(&response, sense_segment(&answer.sense));
}

/// The residual, and the read residual of a bidirectional command (RFC 7143 11.4.5).
fn residuals(full: &FullFeature, task: &Task, presented: u64) -> (Residual, Residual) {
    let expected = task.header.expected_data_transfer_length;
    let asked = || task.asked_bytes.unwrap_or_else(|| full.asked_data_out(&task.header).bytes);
    match (task.header.reads, task.header.writes) {
        (true, false) => (Residual::of(expected, presented), Residual::None),
        (false, true) => (Residual::of(expected, asked()), Residual::None),
        (true, true) => {
            let read_expected = task.bidirectional_read_bytes.unwrap_or(0);
            (Residual::of(expected, asked()), Residual::of(read_expected, presented))
        }
        (false, false) => (Residual::of(0, presented.max(asked())), Residual::None),
    }
}

/// A buffer for the first `sent` bytes that is not much larger than they are: data that waits to be
/// sent must not keep more memory than that.
fn fitting(buffer: Buffer, sent: usize) -> Buffer {
    if buffer.capacity() <= (2 * sent).max(BUFFER_ALIGNMENT) {
        return buffer;
    }
    Buffer::copy_of(&buffer[..sent])
}

fn data_in_bytes_max(task: &Task) -> u32 {
    match (task.header.reads, task.header.writes) {
        (true, false) => task.header.expected_data_transfer_length,
        (true, true) => task.bidirectional_read_bytes.unwrap_or(0),
        (false, _) => 0,
    }
}

/// SenseLength and sense data (RFC 7143 11.4.7).
fn sense_segment(sense: &[u8]) -> DataSegment {
    let Ok(length @ 1..) = u16::try_from(sense.len()) else { return DataSegment::Empty };
    DataSegment::from([&length.to_be_bytes()[..], sense].concat())
}
