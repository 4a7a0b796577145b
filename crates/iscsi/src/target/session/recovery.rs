//! The additions of error recovery levels 1 and 2: acknowledgements, SNACK, reassignment (RFC 7143
//! 7, 11.16).
//!
//! | SNACK | answered with |
//! |---|---|
//! | Data/R2T | the Data-In PDUs again, or the R2Ts whose data has not come |
//! | status | the responses again, from what each connection keeps |
//! | DataACK | no answer: the pieces are dropped |
//! | R-Data | all unacknowledged data with another segmentation, and the response again with the SNACK tag |

use base::serial::Serial32;

use super::super::event::{CloseReason, LinkId, TaskId};
use super::super::kept_responses::Sent;
use super::super::link::live;
use super::Session;
use super::commands::send_response;
use crate::framing::{Bound, DataSegment, ReceivedHeader};
use crate::pdu::{
    Bhs, InitiatorTaskTag, ReadyToTransfer, RejectReason, SnackRequest, SnackType, TargetTransferTag,
    TaskManagementOutcome, TaskManagementRequest,
};

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

impl Session {
    /// Notes the responses that a request acknowledges, and ends the connection when too many are not.
    pub(super) fn note_acknowledgement(&mut self, at: LinkId, bhs: &Bhs) {
        let Some(exp_stat_sn) = exp_stat_sn(bhs) else { return };
        let Some(link) = live(&mut self.links, at) else { return };
        for (tag, stat_sn) in link.acknowledge(exp_stat_sn) {
            self.set.acknowledge_answer(tag, stat_sn);
        }
        let Some(link) = live(&mut self.links, at) else { return };
        if link.sent.are_too_many() || self.set.keeps_too_many_answers() {
            return self.fail_link(at, CloseReason::Unacknowledged);
        }
        if !self.set.managements.is_empty() {
            self.advance_managements();
        }
    }

    pub(super) fn handle_snack(&mut self, at: LinkId, request: &SnackRequest, header: &ReceivedHeader) {
        if self.full.negotiated.error_recovery_level == 0 {
            // Nothing was kept that could be sent again.
            return self.reject(at, header, RejectReason::SnackReject);
        }
        match request.kind {
            SnackType::DataOrR2t { initiator_task_tag, begin, run_length } => {
                if self.set.tasks.contains_key(&initiator_task_tag) {
                    self.send_r2ts_again(at, initiator_task_tag, begin, run_length, header);
                } else {
                    self.send_data_again(at, initiator_task_tag, begin, run_length, header);
                }
            }
            SnackType::Status { begin, run_length } => self.send_status_again(at, begin, run_length, header),
            SnackType::DataAck { target_transfer_tag, begin } => {
                self.acknowledge_data(at, target_transfer_tag, request.lun, begin, header);
            }
            SnackType::ResegmentedData { initiator_task_tag, snack_tag } => {
                self.resegment(at, initiator_task_tag, snack_tag, header);
            }
        }
    }

    /// Sends R2Ts again whose data has not come, unchanged except for the current numbers.
    fn send_r2ts_again(
        &mut self,
        at: LinkId,
        tag: InitiatorTaskTag,
        begin: Serial32,
        run_length: u32,
        header: &ReceivedHeader,
    ) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(task) = self.set.tasks.get(&tag) else { return };
        let next = task.data_out.next_r2t_sn();
        let end = if run_length == 0 { next } else { begin.plus(run_length) };
        let is_asked = |sn: Serial32| !sn.is_before(begin) && sn.is_before(end);
        let asked: Vec<_> = task.data_out.outstanding().filter(|r2t| is_asked(r2t.r2t_sn)).copied().collect();
        let are_all_there = run_length == 0 || asked.len() == run_length as usize;
        let is_allegiant = task.link == at;
        let lun = task.header.lun;
        let Some(link) = live(&mut self.links, at) else { return };
        if asked.is_empty() || !are_all_there || !is_allegiant {
            return self.reject_data(at, header, RejectReason::ProtocolError, next);
        }
        for r2t in asked {
            let again = ReadyToTransfer {
                lun,
                initiator_task_tag: tag,
                target_transfer_tag: r2t.tag,
                stat_sn: link.stat_sn,
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: r2t.r2t_sn,
                buffer_offset: r2t.offset,
                desired_data_transfer_length: r2t.length,
            };
            link.push(&again, DataSegment::Empty);
        }
    }

    fn send_data_again(
        &mut self,
        at: LinkId,
        tag: InitiatorTaskTag,
        begin: Serial32,
        run_length: u32,
        header: &ReceivedHeader,
    ) {
        let numbers = self.set.command_numbers();
        let Some(answer) = self.set.answers.get(&tag).filter(|answer| answer.link == at) else {
            return self.reject(at, header, RejectReason::ProtocolError);
        };
        let next = answer.next_data_sn();
        // Zero and zero: all unacknowledged PDUs (RFC 7143 11.16.6).
        let first = if begin.0 == 0 && run_length == 0 { answer.first_data_sn } else { begin.0 };
        let count = if run_length == 0 { next.wrapping_sub(first) } else { run_length };
        if !answer.has_sent(first, count) {
            return self.reject_data(at, header, RejectReason::ProtocolError, Serial32(next));
        }
        if !answer.has_data() {
            return self.reject(at, header, RejectReason::SnackReject);
        }
        let Some(link) = live(&mut self.links, at) else { return };
        link.push_pieces_again(answer, (first, count), numbers);
    }

    fn send_status_again(&mut self, at: LinkId, begin: Serial32, run_length: u32, header: &ReceivedHeader) {
        let numbers = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        let first = if begin.0 == 0 && run_length == 0 { link.exp_stat_sn } else { begin };
        let end = if run_length == 0 { link.stat_sn } else { first.plus(run_length) };
        let is_known = !first.is_before(link.exp_stat_sn) && !end.is_after(link.stat_sn) && first.is_before(end);
        if !is_known {
            if begin.0 == 0 && run_length == 0 {
                // All unacknowledged PDUs were requested, and there are none.
                return;
            }
            return self.reject(at, header, RejectReason::ProtocolError);
        }
        let Some(asked) = link.sent.again(first, end) else {
            return self.reject(at, header, RejectReason::SnackReject);
        };
        for (stat_sn, sent) in asked {
            match sent {
                Sent::Pdu(raw, data) => link.push_again(&raw, data, numbers),
                Sent::Task(tag) => {
                    let answer = self.set.answers.get_mut(&tag).filter(|answer| answer.stat_sn == Some(stat_sn));
                    if let Some(answer) = answer {
                        send_response(link, answer, numbers);
                    }
                }
                Sent::Forgotten => {}
            }
        }
    }

    /// Forgets what an initiator that goes on has not acknowledged for long: it leaves room to others. What a lost
    /// connection has left has a time of its own.
    pub(super) fn forget_unacknowledged(&mut self) {
        let now = self.now;
        for link in &mut self.links {
            for (tag, stat_sn) in link.sent.forget_overdue(now) {
                self.set.forget_data_of(tag, stat_sn);
            }
        }
    }

    fn acknowledge_data(
        &mut self,
        at: LinkId,
        tag: TargetTransferTag,
        lun: u64,
        begin: Serial32,
        header: &ReceivedHeader,
    ) {
        let mut answers = self.set.answers.values_mut();
        let answer = answers.find(|answer| answer.link == at && answer.lun == lun && answer.asks_under(tag));
        if !answer.is_some_and(|answer| answer.acknowledge(begin.0)) {
            self.reject(at, header, RejectReason::InvalidDataAck);
        }
    }

    fn resegment(&mut self, at: LinkId, tag: InitiatorTaskTag, snack_tag: u32, header: &ReceivedHeader) {
        let Some(answer) = self.set.answers.get(&tag).filter(|answer| answer.link == at) else {
            return self.reject(at, header, RejectReason::ProtocolError);
        };
        if !answer.has_data() {
            return self.reject(at, header, RejectReason::SnackReject);
        }
        let Some(mut answer) = self.set.answers.remove(&tag) else { return };
        answer.snack_tag = snack_tag;
        let answer = self.send_answer(answer, Bound::Answers);
        self.set.keep_answer(answer);
    }

    /// TASK REASSIGN (RFC 7143 7.2.2, 11.5.1): a task whose connection was logged out continues
    /// here. The response is sent first.
    pub(super) fn reassign(&mut self, at: LinkId, request: &TaskManagementRequest) {
        use TaskManagementOutcome as Answer;
        let tag = request.initiator_task_tag;
        let outcome = match request.referenced_task_tag {
            _ if self.full.negotiated.error_recovery_level < 2 => Answer::ReassignmentNotSupported,
            None => Answer::FunctionRejected,
            // Only SCSI tasks can be reassigned, and only by immediate requests.
            Some(_) if !request.is_immediate => Answer::FunctionRejected,
            Some(referenced) if self.set.is_management(referenced) => Answer::FunctionRejected,
            Some(referenced) => {
                let task = self.set.tasks.get(&referenced).filter(|task| !task.is_aborted).map(|task| task.link);
                let link = task.or_else(|| self.set.answers.get(&referenced).map(|answer| answer.link));
                let is_logged_out = |link| self.lost.iter().any(|lost| lost.link == link && lost.is_logged_out);
                let has_data = self.set.answers.get(&referenced).is_none_or(|answer| answer.has_data());
                match link {
                    None => Answer::TaskDoesNotExist,
                    Some(link) if !is_logged_out(link) => Answer::TaskStillAllegiant,
                    Some(_) if !has_data => Answer::FunctionRejected,
                    Some(_) => Answer::FunctionComplete,
                }
            }
        };
        self.send_management_response(at, tag, outcome);
        if let (Answer::FunctionComplete, Some(referenced)) = (outcome, request.referenced_task_tag) {
            self.resume(at, referenced, request.exp_data_sn);
        }
    }

    fn resume(&mut self, at: LinkId, tag: InitiatorTaskTag, exp_data_sn: Serial32) {
        if let Some(task) = self.set.tasks.get_mut(&tag) {
            task.link = at;
            // Data under way on the old connection is requested again here.
            task.data_out.ask_again();
            let id: TaskId = task.id;
            return self.advance_task(id);
        }
        let Some(mut answer) = self.set.answers.remove(&tag) else { return };
        answer.link = at;
        answer.snack_tag = 0;
        answer.stat_sn = None;
        if exp_data_sn.0 != 0 {
            // An impossible number is ignored (RFC 7143 11.5.6).
            let _ = answer.acknowledge(exp_data_sn.0);
        }
        let answer = self.send_answer(answer, Bound::Answers);
        self.set.keep_answer(answer);
    }
}
