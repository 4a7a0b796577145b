//! SCSI commands: their data-out, their delivery in order, their responses and data-in.

use std::sync::Arc;

use base::buffer::{Buffer, BufferPool};
use base::clock::Instant;

use super::super::event::{Cdb, Command, Event, Outcome, TaskId};
use super::super::session::Held;
use super::super::task::{DataFailure, DataFault, DataOutCollection, Task};
use super::{CloseReason, Connection, FullFeature, Phase, take_stat_sn};
use crate::framing::{DataSegment, Destination, ReceivedHeader, ReceivedPdu};
use crate::limits::DATA_OUT_BYTES_MAX;
use crate::negotiation::SessionType;
use crate::pdu::{
    AdditionalHeaders, DataIn, DataInStatus, DataOut, ReadyToTransfer, RejectReason, Residual, ScsiCommand,
    ScsiResponse, ServiceResponse,
};
use base::serial::Serial32;

const STATUS_GOOD: u8 = 0x00;
const STATUS_CHECK_CONDITION: u8 = 0x02;

/// Whether a command PDU becomes a task.
enum Admission {
    Take,
    /// Outside the window or a duplicate: silently ignored (RFC 7143 4.2.2.1).
    Ignore,
    Reject(RejectReason),
}

fn admit(full: &FullFeature, command: &ScsiCommand) -> Admission {
    if full.negotiated.session_type == SessionType::Discovery {
        return Admission::Reject(RejectReason::ProtocolError);
    }
    if !command.is_immediate && !full.session.window.admits(command.cmd_sn) {
        return Admission::Ignore;
    }
    if full.session.tasks.contains_key(&command.initiator_task_tag) {
        return Admission::Reject(RejectReason::TaskInProgress);
    }
    if full.is_draining {
        return Admission::Reject(RejectReason::WaitingForLogout);
    }
    if command.is_immediate && !full.session.has_room_for_immediate() {
        return Admission::Reject(RejectReason::TooManyImmediateCommands);
    }
    Admission::Take
}

/// WRITE SAME(10), COMPARE AND WRITE, WRITE SAME(16): their device server refuses more data-out than the CDB asks for, so it is given
/// all that the initiator announced.
const JUDGE_DATA_OUT_LENGTH: [u8; 3] = [0x41, 0x89, 0x93];

/// How the data-out of a command will be collected.
struct DataOutPlan {
    /// Bytes to collect in all.
    wanted: u32,
    /// Whether the immediate data that came may come.
    takes_immediate: bool,
    /// Unsolicited Data-Out PDUs follow, up to this byte.
    unsolicited_limit: Option<u32>,
}

impl DataOutPlan {
    fn new(full: &FullFeature, command: &ScsiCommand, cdb: &[u8], immediate_bytes: usize) -> Self {
        let expected = if command.writes { command.expected_data_transfer_length } else { 0 };
        let asked =
            full.data_out_bytes.as_ref().map_or(0, |asked| if expected == 0 { 0 } else { asked(command.lun, cdb) });
        let judges_length = cdb.first().is_some_and(|code| JUDGE_DATA_OUT_LENGTH.contains(code));
        let asked = if judges_length { u64::MAX } else { asked };
        let wanted = u32::try_from(asked).unwrap_or(u32::MAX).min(expected).min(DATA_OUT_BYTES_MAX);
        let first_burst = full.negotiated.first_burst_length.min(expected);
        let immediate = u32::try_from(immediate_bytes).unwrap_or(u32::MAX);
        let takes_immediate = immediate == 0 || (full.negotiated.immediate_data && immediate <= first_burst);
        let has_unsolicited = !command.is_final && !full.negotiated.initial_r2t && immediate < first_burst;
        Self { wanted, takes_immediate, unsolicited_limit: has_unsolicited.then_some(first_burst) }
    }

    /// Bytes that may come unasked and must have a place in any case.
    fn unasked(&self, immediate_bytes: usize) -> usize {
        self.unsolicited_limit.map_or(immediate_bytes, |limit| limit as usize)
    }

    /// A buffer for all of it, or when the pool is empty, one outside the pool for what comes unasked: at most
    /// FirstBurstLength, so that the window bounds it. More is then not solicited until the pool has a buffer.
    fn buffer(&self, pool: &BufferPool, immediate_bytes: usize) -> Buffer {
        let unasked = self.unasked(immediate_bytes);
        let all = unasked.max(self.wanted as usize);
        if all == 0 {
            return Buffer::empty();
        }
        pool.try_acquire(all).unwrap_or_else(|| Buffer::zeroed(unasked))
    }
}

/// Where the data segment of a command PDU goes.
pub(super) fn place_immediate_data(
    full: &mut FullFeature,
    pool: &BufferPool,
    command: &ScsiCommand,
    header: &ReceivedHeader,
) -> Destination {
    if !matches!(admit(full, command), Admission::Take) {
        return Destination::Discard;
    }
    let bytes = header.data_segment_bytes;
    let plan = DataOutPlan::new(full, command, &command.cdb, bytes);
    if !plan.takes_immediate {
        return Destination::Discard;
    }
    Destination::Buffer { buffer: plan.buffer(pool, bytes), offset: 0 }
}

/// Where the data segment of a Data-Out PDU goes: into its task's buffer, which the receiver has until the PDU is whole.
pub(super) fn place_data_out(full: &mut FullFeature, data: &DataOut, bytes: usize) -> Destination {
    let Some(task) = full.session.tasks.get_mut(&data.initiator_task_tag) else { return Destination::Discard };
    if task.data_out.check(data, bytes).is_err() {
        return Destination::Discard;
    }
    let offset = data.buffer_offset as usize;
    match task.data_out.buffer.take() {
        Some(buffer) if buffer.len() >= offset + bytes => Destination::Buffer { buffer, offset },
        other => {
            task.data_out.buffer = other;
            Destination::Discard
        }
    }
}

impl Connection {
    pub(super) fn handle_command(&mut self, command: ScsiCommand, pdu: ReceivedPdu) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        match admit(full, &command) {
            Admission::Take => {}
            Admission::Ignore => return,
            Admission::Reject(reason) => return self.reject(&pdu.header, reason),
        }
        if pdu.data.is_corrupt {
            // Nothing of the command is kept; the initiator may send it again (RFC 7143 11.17.1, note 1).
            return self.reject(&pdu.header, RejectReason::DataDigestError);
        }
        let immediate_bytes = pdu.header.data_segment_bytes;
        let plan = DataOutPlan::new(full, &command, &command.cdb, immediate_bytes);
        let mut collection = DataOutCollection::new(
            plan.wanted,
            if plan.takes_immediate { immediate_bytes as u32 } else { 0 },
            plan.unsolicited_limit,
        );
        let is_placed = immediate_bytes > 0 && plan.takes_immediate;
        collection.buffer = Some(if is_placed { pdu.data.buffer } else { plan.buffer(&self.parameters.pool, 0) });
        let generation = full.session.next_generation();
        let id = TaskId { initiator_task_tag: command.initiator_task_tag, generation };
        full.session.add_task(Task {
            id,
            header: command,
            extended_cdb: pdu.header.ahs.extended_cdb,
            bidirectional_read_bytes: pdu.header.ahs.bidirectional_read_bytes,
            is_delivered: command.is_immediate,
            is_started: false,
            is_aborted: false,
            failure: (!plan.takes_immediate).then_some(DataFailure::UnexpectedUnsolicitedData),
            data_out: collection,
        });
        if command.is_immediate {
            self.advance_task(id);
        } else {
            self.deliver_in_order();
        }
    }

    /// Hands on everything whose turn in the command order has come.
    pub(super) fn deliver_in_order(&mut self) {
        while let Phase::FullFeature(full) = &mut self.phase {
            match full.session.window.next_in_order() {
                None => return,
                Some(Held::Task(id)) => {
                    full.session.deliver_task(id);
                    self.advance_task(id);
                }
                Some(Held::Request(pdu)) => {
                    full.session.open_window();
                    self.handle_request(*pdu);
                }
                Some(Held::Plugged) => full.session.open_window(),
            }
        }
    }

    pub(super) fn handle_data_out(&mut self, data: DataOut, pdu: ReceivedPdu) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        // Late data of a task that was aborted or failed: there is nobody to give it to.
        let Some(task) = full.session.tasks.get_mut(&data.initiator_task_tag) else { return };
        let length = pdu.header.data_segment_bytes;
        let is_placed = pdu.data.length > 0;
        match task.data_out.check(&data, length) {
            Ok(()) => {}
            Err(DataFault::Unexpected) => {
                task.failure.get_or_insert(DataFailure::UnexpectedUnsolicitedData);
                let id = task.id;
                return self.advance_task(id);
            }
            Err(DataFault::Protocol(what)) => {
                self.reject(&pdu.header, RejectReason::ProtocolError);
                return self.close(CloseReason::Protocol(what));
            }
        }
        let id = task.id;
        if is_placed {
            task.data_out.buffer = Some(pdu.data.buffer);
        } else if length > 0 {
            // Its bytes had no place: whatever the reason, they must not count as received.
            task.failure.get_or_insert(DataFailure::IncorrectAmountOfData);
        }
        if let Err(failure) = task.data_out.advance(&data, length) {
            task.failure.get_or_insert(failure);
        }
        if pdu.data.is_corrupt {
            task.failure.get_or_insert(DataFailure::ProtocolServiceCrcError);
            self.reject(&pdu.header, RejectReason::DataDigestError);
        }
        self.advance_task(id);
    }

    /// Does what a task is ready for: ask for more data, start, or fail.
    pub(super) fn advance_task(&mut self, id: TaskId) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let Some(task) = full.session.task(id) else { return };
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
        let has_place =
            task.data_out.buffer.as_ref().is_some_and(|buffer| buffer.len() >= task.data_out.wanted as usize);
        if has_place {
            self.send_r2ts(id);
        } else if !full.session.starved.contains(&id) {
            full.session.starved.push_back(id);
        }
    }

    fn send_r2ts(&mut self, id: TaskId) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let (burst_bytes_max, outstanding_max) =
            (full.negotiated.max_burst_length, full.negotiated.max_outstanding_r2t);
        let exp_cmd_sn = full.session.window.exp_cmd_sn();
        let max_cmd_sn = full.session.window.max_cmd_sn();
        let Some(task) = full.session.task(id) else { return };
        let tags = &mut self.target_transfer_tag;
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
                stat_sn: self.stat_sn,
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: r2t.r2t_sn,
                buffer_offset: r2t.offset,
                desired_data_transfer_length: r2t.length,
            };
            self.transmit.push(&header, &AdditionalHeaders::default(), DataSegment::Empty);
        }
    }

    fn start_task(&mut self, id: TaskId) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let Some(task) = full.session.task(id) else { return };
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
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let Some(task) = full.session.remove_task(id) else { return };
        let sense = task.failure.map(DataFailure::sense).unwrap_or_default();
        self.respond(&task, Outcome { status: STATUS_CHECK_CONDITION, sense, ..Outcome::default() });
        self.feed_starved();
    }

    /// Gives buffers to tasks that wait for one, oldest first, as far as the pool has them.
    pub(super) fn feed_starved(&mut self) {
        while let Phase::FullFeature(full) = &mut self.phase {
            let Some(&id) = full.session.starved.front() else { return };
            if let Some(task) = full.session.task(id) {
                let Some(mut buffer) = self.parameters.pool.try_acquire(task.data_out.wanted as usize) else { return };
                // What came unasked is in the small buffer.
                if let Some(small) = &task.data_out.buffer {
                    let kept = small.len().min(buffer.len());
                    buffer[..kept].copy_from_slice(&small[..kept]);
                }
                task.data_out.buffer = Some(buffer);
            }
            full.session.starved.pop_front();
            self.advance_task(id);
        }
    }

    /// The driver has executed a command. Outcomes of tasks that are over are ignored.
    pub fn handle_completion(&mut self, now: Instant, id: TaskId, outcome: Outcome) {
        self.now = now;
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let Some(task) = full.session.remove_task(id) else { return };
        full.session.note_end(id);
        if !task.is_aborted && !outcome.is_silent {
            self.respond(&task, outcome);
        }
        self.finish_task_management();
        self.feed_starved();
    }

    fn respond(&mut self, task: &Task, mut outcome: Outcome) {
        let data_in = std::mem::take(&mut outcome.data_in);
        let presented = data_in.len() as u64;
        let residuals = self.residuals(task, presented);
        let sent = presented.min(u64::from(data_in_bytes_max(task))) as usize;
        let is_bidirectional = task.header.reads && task.header.writes;
        let can_collapse = sent > 0 && outcome.status == STATUS_GOOD && outcome.sense.is_empty() && !is_bidirectional;
        let data_pdus = self.send_data_in(task, data_in, sent, can_collapse.then_some((outcome.status, residuals.0)));
        if can_collapse {
            return;
        }
        let Some((exp_cmd_sn, max_cmd_sn)) = self.command_numbers() else { return };
        let response = ScsiResponse {
            response: ServiceResponse::CommandCompleted { status: outcome.status },
            initiator_task_tag: task.id.initiator_task_tag,
            snack_tag: 0,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn: data_pdus,
            bidirectional_read_residual: residuals.1,
            residual: residuals.0,
        };
        self.push(&response, sense_segment(&outcome.sense));
    }

    /// The residual, and the read residual of a bidirectional command (RFC 7143 11.4.5).
    fn residuals(&self, task: &Task, presented: u64) -> (Residual, Residual) {
        let expected = task.header.expected_data_transfer_length;
        let Phase::FullFeature(full) = &self.phase else { return (Residual::None, Residual::None) };
        let asked = || full.data_out_bytes.as_ref().map_or(0, |asked| asked(task.header.lun, &task.header.cdb));
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

    /// Sends data as Data-In PDUs, with the status on the last one if it may ride there. Gives the count of PDUs.
    fn send_data_in(&mut self, task: &Task, data_in: Buffer, sent: usize, status: Option<(u8, Residual)>) -> Serial32 {
        let Phase::FullFeature(full) = &self.phase else { return Serial32(0) };
        let exp_cmd_sn = full.session.window.exp_cmd_sn();
        let max_cmd_sn = full.session.window.max_cmd_sn();
        let segment_max = full.negotiated.initiator_max_recv_data_segment_length as usize;
        let burst_max = full.negotiated.max_burst_length as usize;
        let mut data_sn = Serial32(0);
        let mut source = Source::new(data_in, sent > segment_max.min(burst_max));
        let mut offset = 0;
        while offset < sent {
            let burst_end = (offset / burst_max + 1) * burst_max;
            let end = (offset + segment_max).min(burst_end).min(sent);
            let is_last = end == sent;
            let header = DataIn {
                is_final: is_last || end == burst_end,
                wants_acknowledgement: false,
                status: status.filter(|_| is_last).map(|(status, residual)| DataInStatus {
                    status,
                    stat_sn: take_stat_sn(&mut self.stat_sn),
                    residual,
                }),
                lun: 0,
                initiator_task_tag: task.id.initiator_task_tag,
                target_transfer_tag: None,
                exp_cmd_sn,
                max_cmd_sn,
                data_sn,
                buffer_offset: offset as u32,
            };
            let segment = source.segment(offset..end);
            self.transmit.push(&header, &AdditionalHeaders::default(), segment);
            data_sn = data_sn.next();
            offset = end;
        }
        data_sn
    }
}

/// The bytes of a command's data-in: owned by its only PDU, or shared by several.
enum Source {
    Whole(Buffer),
    Shared(Arc<Buffer>),
}

impl Source {
    fn new(buffer: Buffer, is_split: bool) -> Self {
        if is_split { Self::Shared(Arc::new(buffer)) } else { Self::Whole(buffer) }
    }

    fn segment(&mut self, range: std::ops::Range<usize>) -> DataSegment {
        match self {
            Self::Whole(buffer) => DataSegment::Buffer(std::mem::take(buffer), range),
            Self::Shared(buffer) => DataSegment::Shared(Arc::clone(buffer), range),
        }
    }
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
