//! The answers of a session's tasks: their data and responses. Above error recovery level 0 they are kept, and sent
//! again, until the initiator has acknowledged them (RFC 7143 11.16).
//!
//! | SNACK | answered with |
//! |---|---|
//! | Data | the Data-In PDUs again |
//! | status | the responses again, from what each connection keeps |
//! | DataACK | no answer: the pieces are dropped |
//! | R-Data | all unacknowledged data with another segmentation, and the response again with the SNACK tag |

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;
use base::limits::BUFFER_ALIGNMENT;
use base::serial::Serial32;

use super::answer::{Answer, Forgotten, Piece};
use super::data_in::{Cut, DataInBuffer, DataInHeaders};
use super::event::{CloseReason, LinkId, Outcome};
use super::full_feature::FullFeature;
use super::kept_responses::Sent;
use super::link::{Link, live};
use super::nexus::Nexus;
use super::retained_share::RetainedShare;
use super::task::Task;
use crate::framing::{Bound, DataSegment, ReceivedHeader};
use crate::limits::RETAINED_ANSWERS_MAX;
use crate::pdu::{
    DataInStatus, InitiatorTaskTag, RejectReason, Residual, ScsiResponse, ServiceResponse, TargetTransferTag,
};

const STATUS_GOOD: u8 = 0x00;

/// The answers that may be requested again; none at error recovery level 0.
pub(super) struct Answers {
    /// In a map without randomness, so that runs repeat.
    kept: BTreeMap<InitiatorTaskTag, Answer>,
    /// What the session keeps for recovery.
    retained: Arc<RetainedShare>,
    /// Bytes of it that the answers here keep.
    kept_bytes: usize,
}

impl Answers {
    pub(super) fn new(retained: Arc<RetainedShare>) -> Self {
        Self { kept: BTreeMap::new(), retained, kept_bytes: 0 }
    }

    /// What the session keeps for recovery.
    pub(super) fn retained(&self) -> Arc<RetainedShare> {
        Arc::clone(&self.retained)
    }

    /// The answer under this tag, if it may be requested again.
    pub(super) fn get(&self, tag: InitiatorTaskTag) -> Option<&Answer> {
        self.kept.get(&tag)
    }

    /// Count of those that may be requested again.
    pub(super) fn count(&self) -> usize {
        self.kept.len()
    }

    /// Answers a task: at once and finally at error recovery level 0, else so that it can be
    /// answered again.
    pub(super) fn respond(
        &mut self,
        task: &Task,
        mut outcome: Outcome,
        numbers: (Serial32, Serial32),
        nexus: &mut Nexus,
    ) {
        let data_in = std::mem::take(&mut outcome.data_in);
        let presented = data_in.len() as u64 + outcome.data_in_bytes_cut;
        let (residual, bidirectional_read_residual) = residuals(&nexus.full, task, presented);
        let sent = data_in.len().min(task.data_in_bytes_max() as usize);
        let data_in = fitting(data_in, sent);
        if nexus.full.negotiated.error_recovery_level > 0 {
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
            return self.send(answer, Bound::Commands, numbers, nexus);
        }
        let Some(link) = live(&mut nexus.links, task.link) else { return };
        let is_bidirectional = task.header.reads && task.header.writes;
        let can_collapse = sent > 0 && outcome.status == STATUS_GOOD && outcome.sense.is_empty() && !is_bidirectional;
        let status = outcome.status;
        let status = can_collapse.then(|| DataInStatus { status, stat_sn: link.take_stat_sn(), residual });
        let burst_max = nexus.full.negotiated.max_burst_length as usize;
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

    /// Sends what of an answer's data is not acknowledged, and its response, and keeps it. Without its connection it
    /// waits.
    fn send(&mut self, mut answer: Answer, bound: Bound, numbers: (Serial32, Serial32), nexus: &mut Nexus) {
        let burst_max = nexus.full.negotiated.max_burst_length as usize;
        let Some(link) = live(&mut nexus.links, answer.link) else { return self.keep(answer) };
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
                acknowledged_as: Some((answer.lun, nexus.target_transfer_tag)),
            };
            link.push_data_in(headers, DataInBuffer::Kept(Arc::clone(data)), bound);
        }
        let tag = &mut nexus.target_transfer_tag;
        for range in cut.clone() {
            let acknowledgement = cut.ends_burst(range.end).then(|| {
                *tag = tag.next();
                *tag
            });
            let ends_sequence = cut.ends_sequence(range.end);
            answer.pieces.push(Piece { range, ends_sequence, acknowledgement });
        }
        send_response(link, &mut answer, numbers);
        self.keep(answer);
    }

    /// Keeps an answer until it is acknowledged; the data kept in all is limited for this session
    /// and for all sessions.
    fn keep(&mut self, answer: Answer) {
        self.kept.insert(answer.id.initiator_task_tag, answer);
        let mut kept: usize = self.kept.values().map(Answer::kept_bytes).sum();
        while !self.retained.has_room_for(kept, self.kept_bytes) {
            let oldest = self.kept.values_mut().filter(|answer| answer.data.is_some());
            let Some(oldest) = oldest.min_by_key(|answer| answer.id.generation) else { break };
            kept -= oldest.forget_data();
        }
        self.tell_kept(kept);
    }

    /// Checks that the initiator acknowledges enough of them.
    ///
    /// # Errors
    /// When it must be cut off.
    pub(super) fn check_kept(&self) -> Result<(), CloseReason> {
        if self.kept.len() > RETAINED_ANSWERS_MAX { Err(CloseReason::Unacknowledged) } else { Ok(()) }
    }

    /// Forgets what an initiator that goes on has not acknowledged for long: it leaves room to others. What a lost
    /// connection has left has a time of its own.
    pub(super) fn forget_unacknowledged(&mut self, nexus: &mut Nexus) {
        for link in &mut nexus.links {
            for (tag, stat_sn) in link.sent.forget_overdue(nexus.now) {
                self.forget_data_of(tag, stat_sn);
            }
        }
    }

    /// Forgets the data of the answer whose response has this number.
    fn forget_data_of(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) {
        let answer = self.kept.get_mut(&tag).filter(|answer| answer.stat_sn == Some(stat_sn));
        let freed = answer.map_or(0, Answer::forget_data);
        self.tell_kept(self.kept_bytes.saturating_sub(freed));
    }

    /// Drops answers that cannot be requested any more.
    pub(super) fn forget(&mut self, is_over: impl Fn(&Answer) -> bool) {
        self.kept.retain(|_, answer| !is_over(answer));
        self.tell_kept(self.kept.values().map(Answer::kept_bytes).sum());
    }

    /// Drops the answer under this tag, if there is one.
    pub(super) fn forget_one(&mut self, tag: InitiatorTaskTag) {
        if let Some(answer) = self.kept.remove(&tag) {
            self.tell_kept(self.kept_bytes.saturating_sub(answer.kept_bytes()));
        }
    }

    fn tell_kept(&mut self, bytes: usize) {
        self.retained.tell(std::mem::replace(&mut self.kept_bytes, bytes), bytes);
    }

    /// Notes that the initiator has the response with this number. Returns whether an answer is over with it.
    pub(super) fn acknowledge_response(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) -> bool {
        let is_over = self.kept.get(&tag).is_some_and(|answer| answer.stat_sn == Some(stat_sn));
        if is_over {
            self.forget_one(tag);
        }
        is_over
    }

    /// Data SNACK: sends `run_length` Data-In PDUs again, from DataSN `begin` on.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn send_data_again(
        &self,
        at: LinkId,
        tag: InitiatorTaskTag,
        (begin, run_length): (Serial32, u32),
        header: &ReceivedHeader,
        numbers: (Serial32, Serial32),
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let Some(answer) = self.kept.get(&tag).filter(|answer| answer.link == at) else {
            return nexus.reject(at, header, RejectReason::ProtocolError, numbers);
        };
        let next = answer.next_data_sn();
        // Zero and zero: all unacknowledged PDUs (RFC 7143 11.16.6).
        let first = if begin.0 == 0 && run_length == 0 { answer.first_data_sn } else { begin.0 };
        let count = if run_length == 0 { next.wrapping_sub(first) } else { run_length };
        if !answer.has_sent(first, count) {
            return nexus.reject_data(at, header, RejectReason::ProtocolError, Serial32(next), numbers);
        }
        if !answer.has_data() {
            return nexus.reject(at, header, RejectReason::SnackReject, numbers);
        }
        if let Some(link) = live(&mut nexus.links, at) {
            link.push_pieces_again(answer, (first, count), numbers);
        }
        Ok(())
    }

    /// Status SNACK: sends `run_length` responses of a connection again, from StatSN `begin` on.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn send_status_again(
        &mut self,
        at: LinkId,
        (begin, run_length): (Serial32, u32),
        header: &ReceivedHeader,
        numbers: (Serial32, Serial32),
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let Some(link) = live(&mut nexus.links, at) else { return Ok(()) };
        let first = if begin.0 == 0 && run_length == 0 { link.exp_stat_sn } else { begin };
        let end = if run_length == 0 { link.stat_sn } else { first.plus(run_length) };
        let is_known = !first.is_before(link.exp_stat_sn) && !end.is_after(link.stat_sn) && first.is_before(end);
        if !is_known {
            if begin.0 == 0 && run_length == 0 {
                // All unacknowledged PDUs were requested, and there are none.
                return Ok(());
            }
            return nexus.reject(at, header, RejectReason::ProtocolError, numbers);
        }
        let Some(asked) = link.sent.again(first, end) else {
            return nexus.reject(at, header, RejectReason::SnackReject, numbers);
        };
        for (stat_sn, sent) in asked {
            match sent {
                Sent::Pdu(raw, data) => link.push_again(&raw, data, numbers),
                Sent::Task(tag) => {
                    let answer = self.kept.get_mut(&tag).filter(|answer| answer.stat_sn == Some(stat_sn));
                    if let Some(answer) = answer {
                        send_response(link, answer, numbers);
                    }
                }
                Sent::Forgotten => {}
            }
        }
        Ok(())
    }

    /// DataACK SNACK: drops what of an answer the initiator has. Returns `false` when it is of no answer, or
    /// impossible.
    pub(super) fn acknowledge_data(&mut self, at: LinkId, tag: TargetTransferTag, lun: u64, begin: Serial32) -> bool {
        let mut answers = self.kept.values_mut();
        let answer = answers.find(|answer| answer.link == at && answer.lun == lun && answer.asks_under(tag));
        answer.is_some_and(|answer| answer.acknowledge(begin.0))
    }

    /// R-Data SNACK: sends the rest of an answer with the segmentation of now.
    ///
    /// # Errors
    /// When the connection must end.
    pub(super) fn resegment(
        &mut self,
        at: LinkId,
        (tag, snack_tag): (InitiatorTaskTag, u32),
        header: &ReceivedHeader,
        numbers: (Serial32, Serial32),
        nexus: &mut Nexus,
    ) -> Result<(), CloseReason> {
        let Some(answer) = self.kept.get(&tag).filter(|answer| answer.link == at) else {
            return nexus.reject(at, header, RejectReason::ProtocolError, numbers);
        };
        if !answer.has_data() {
            return nexus.reject(at, header, RejectReason::SnackReject, numbers);
        }
        if let Some(mut answer) = self.kept.remove(&tag) {
            answer.snack_tag = snack_tag;
            self.send(answer, Bound::Answers, numbers, nexus);
        }
        Ok(())
    }

    /// Goes on with an answer on another connection, from DataSN `exp_data_sn` on.
    pub(super) fn resume(
        &mut self,
        at: LinkId,
        tag: InitiatorTaskTag,
        exp_data_sn: Serial32,
        numbers: (Serial32, Serial32),
        nexus: &mut Nexus,
    ) {
        let Some(mut answer) = self.kept.remove(&tag) else { return };
        answer.link = at;
        answer.snack_tag = 0;
        answer.stat_sn = None;
        if exp_data_sn.0 != 0 {
            // An impossible number is ignored (RFC 7143 11.5.6).
            let _ = answer.acknowledge(exp_data_sn.0);
        }
        self.send(answer, Bound::Answers, numbers, nexus);
    }
}

impl Drop for Answers {
    /// Frees all data kept for the session, however it ended.
    fn drop(&mut self) {
        self.tell_kept(0);
    }
}

/// Sends the response of an answer, with the number it has or a new one.
fn send_response(link: &mut Link, answer: &mut Answer, numbers: (Serial32, Serial32)) {
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
    let asked = || task.asked_bytes.unwrap_or_else(|| full.asked_data_out(task.header.lun, &task.cdb).bytes);
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

/// SenseLength and sense data (RFC 7143 11.4.7).
fn sense_segment(sense: &[u8]) -> DataSegment {
    let Ok(length @ 1..) = u16::try_from(sense.len()) else { return DataSegment::Empty };
    DataSegment::from([&length.to_be_bytes()[..], sense].concat())
}
