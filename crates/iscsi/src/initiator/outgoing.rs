//! What a connection sends: its queue, and the numbers that its requests carry.
//!
//! The data of a write goes out from the buffer of its task: immediate data, unsolicited Data-Out and the answers to
//! R2Ts, cut to the negotiated sizes (RFC 7143 11.7 and 11.8).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::serial::Serial32;

use super::connection::ConnectionError;
use super::session::{Session, TaskData};
use crate::framing::{DataSegment, TransmitQueue};
use crate::limits::{REPLIES_WAITING_MAX, TRANSMIT_BYTES_HIGH};
use crate::pdu::{
    AdditionalHeaders, DataOut, Header, InitiatorTaskTag, ReadyToTransfer, ScsiCommand, TargetTransferTag,
};

/// Tags with this half are not tasks: no task's generation is FFFFh.
const CONTROL_TAG: u32 = 0xffff_0000;

/// The sending side of a connection.
pub(super) struct Outgoing {
    pub(super) queue: TransmitQueue,
    /// The first StatSN that was not seen yet.
    pub(super) exp_stat_sn: Serial32,
    /// Bytes of one data segment the target receives here.
    pub(super) segment_bytes: usize,
    control_tag: u16,
    /// Replies that are not fully written, oldest first: the count of PDUs queued before each.
    replies: VecDeque<u64>,
}

impl Outgoing {
    pub(super) fn new(queue: TransmitQueue, segment_bytes: usize) -> Self {
        Self { queue, exp_stat_sn: Serial32(0), segment_bytes, control_tag: 0, replies: VecDeque::new() }
    }

    /// A tag for a request that is no task.
    pub(super) fn next_control_tag(&mut self) -> InitiatorTaskTag {
        self.control_tag = if self.control_tag >= u16::MAX - 1 { 0 } else { self.control_tag + 1 };
        InitiatorTaskTag::new(CONTROL_TAG | u32::from(self.control_tag)).expect("FFFFh is left out")
    }

    /// Queues a PDU.
    pub(super) fn push<H: Header>(&mut self, header: &H, data: DataSegment) {
        self.queue.push(header, &AdditionalHeaders::default(), data);
    }

    /// Notes the number of a response that has come (RFC 7143 4.2.2.2).
    pub(super) fn note_stat_sn(&mut self, stat_sn: Serial32) {
        if !stat_sn.is_before(self.exp_stat_sn) {
            self.exp_stat_sn = stat_sn.next();
        }
    }

    /// Makes room for a reply: written ones are removed.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn note_reply(&mut self) -> Result<(), ConnectionError> {
        let queued = self.queue.pdu_count();
        let written = queued - self.queue.pdus_waiting() as u64;
        while self.replies.front().is_some_and(|&before| before < written) {
            self.replies.pop_front();
        }
        if self.replies.len() >= REPLIES_WAITING_MAX {
            return Err(ConnectionError::Protocol("the target asks for more answers than it reads"));
        }
        self.replies.push_back(queued);
        Ok(())
    }

    /// Sends a command with the unsolicited data that is allowed (RFC 7143 13.10, 13.11, 13.14).
    pub(super) fn send_command(&mut self, session: &mut Session, tag: InitiatorTaskTag) {
        let negotiated = *session.negotiated();
        let task = session.task(tag).expect("the task is there: it was made just now, or is to be sent again");
        let (reads, writes) = match &task.data {
            TaskData::None => (false, false),
            TaskData::Read(..) => (true, false),
            TaskData::Write(..) => (false, true),
        };
        let length = task.data.length();
        let first_burst = if writes { length.min(negotiated.first_burst_length as usize) } else { 0 };
        let segment_bytes = self.segment_bytes;
        let immediate = if negotiated.immediate_data { first_burst.min(segment_bytes) } else { 0 };
        let unsolicited = if negotiated.initial_r2t { 0 } else { first_burst - immediate };
        let header = ScsiCommand {
            is_immediate: task.is_immediate,
            is_final: unsolicited == 0,
            reads,
            writes,
            attribute: task.attribute,
            lun: task.lun,
            initiator_task_tag: tag,
            expected_data_transfer_length: u32::try_from(length).expect("a buffer is below 4 GiB"),
            cmd_sn: task.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: task.cdb,
        };
        let TaskData::Write(buffer, range) = &task.data else {
            self.push(&header, DataSegment::Empty);
            return;
        };
        let data = match immediate {
            0 => DataSegment::Empty,
            immediate => DataSegment::Shared(Arc::clone(buffer), range.start..range.start + immediate),
        };
        self.push(&header, data);
        if unsolicited > 0 {
            let burst = Burst {
                lun: task.lun,
                tag,
                target_transfer_tag: None,
                buffer: Arc::clone(buffer),
                base: range.start,
                range: immediate..immediate + unsolicited,
            };
            self.send_burst(&burst);
        }
    }

    /// Sends the data that an R2T asks for, of a command of the connection `cid`.
    ///
    /// # Errors
    /// When it asks for more than the command writes or what was asked for before.
    pub(super) fn answer_r2t(
        &mut self,
        session: &mut Session,
        cid: u16,
        r2t: &ReadyToTransfer,
    ) -> Result<(), ConnectionError> {
        let burst_bytes_max = session.negotiated().max_burst_length;
        // All data of all commands here may wait at once, each with its headers, and no more: a
        // byte beyond that was requested twice, and sent before.
        let waiting_bytes_max = TRANSMIT_BYTES_HIGH + 2 * session.load(cid).bytes;
        let Some(task) = session.task_on(cid, r2t.initiator_task_tag) else { return Ok(()) };
        if task.outcome.is_some() {
            return Ok(());
        }
        let TaskData::Write(buffer, range) = &task.data else {
            return Err(ConnectionError::Protocol("an R2T for a command that writes nothing"));
        };
        let (offset, length) = (r2t.buffer_offset as usize, r2t.desired_data_transfer_length as usize);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.len());
        if !is_inside || r2t.desired_data_transfer_length > burst_bytes_max {
            return Err(ConnectionError::Protocol("an R2T for more than there is"));
        }
        if self.queue.bytes() + length > waiting_bytes_max {
            return Err(ConnectionError::Protocol("an R2T for what waits to be sent already"));
        }
        let burst = Burst {
            lun: task.lun,
            tag: r2t.initiator_task_tag,
            target_transfer_tag: Some(r2t.target_transfer_tag),
            buffer: Arc::clone(buffer),
            base: range.start,
            range: offset..offset + length,
        };
        self.send_burst(&burst);
        Ok(())
    }

    /// Cuts a burst into Data-Out PDUs.
    fn send_burst(&mut self, burst: &Burst) {
        let segment_bytes = self.segment_bytes;
        let starts = burst.range.clone().step_by(segment_bytes);
        for (start, data_sn) in starts.zip(0..) {
            let end = burst.range.end.min(start + segment_bytes);
            let header = DataOut {
                is_final: end == burst.range.end,
                lun: burst.lun,
                initiator_task_tag: burst.tag,
                target_transfer_tag: burst.target_transfer_tag,
                exp_stat_sn: self.exp_stat_sn,
                data_sn: Serial32(data_sn),
                buffer_offset: u32::try_from(start).expect("a buffer is below 4 GiB"),
            };
            let data = DataSegment::Shared(Arc::clone(&burst.buffer), burst.base + start..burst.base + end);
            self.push(&header, data);
        }
    }
}

/// A run of data to be sent.
struct Burst {
    lun: u64,
    tag: InitiatorTaskTag,
    target_transfer_tag: Option<TargetTransferTag>,
    buffer: Arc<Buffer>,
    /// Offset of the command's data in the buffer.
    base: usize,
    /// The range within the command's data.
    range: Range<usize>,
}
