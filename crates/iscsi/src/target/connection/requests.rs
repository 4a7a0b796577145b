//! Everything of the full feature phase that is not a SCSI command or its data: pings, text, task management, logout.

use base::clock::Instant;

use super::super::discovery::send_targets;
use super::super::event::{CloseReason, Event, TaskId, TaskManagement, TaskManagementId};
use super::super::session::{Held, PendingManagement};
use super::{Connection, Phase, take_stat_sn};
use crate::framing::{DataSegment, ReceivedPdu};
use crate::limits::TEXT_REQUEST_BYTES_MAX;
use crate::negotiation::{SessionType, Stage};
use crate::pdu::{
    Bhs, InitiatorTaskTag, LogoutOutcome, LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut, RejectReason,
    TargetTransferTag, TaskManagementFunction, TaskManagementOutcome, TaskManagementRequest, TaskManagementResponse,
    TextRequest, TextResponse,
};
use crate::text::{Keys, TextAssembler};
use base::serial::Serial32;

/// A text exchange under way (RFC 7143 11.10): the request may come in pieces, and so may the response go.
pub(super) struct TextExchange {
    initiator_task_tag: InitiatorTaskTag,
    request: TextAssembler,
    /// What of the response was not sent yet, and what the next request must carry to get it.
    response: Vec<u8>,
    tag: TargetTransferTag,
}

impl Connection {
    pub(super) fn handle_full_feature_pdu(&mut self, pdu: ReceivedPdu) {
        let bhs = match pdu.header.bhs {
            Ok(bhs) => bhs,
            Err(error) => return self.reject(&pdu.header, error.reject_reason()),
        };
        let (cmd_sn, is_immediate) = match bhs {
            Bhs::ScsiCommand(command) => return self.handle_command(command, pdu),
            Bhs::DataOut(data) => return self.handle_data_out(data, pdu),
            // Error recovery level 0: nothing is kept that could be sent again.
            Bhs::SnackRequest(_) => return self.reject(&pdu.header, RejectReason::SnackReject),
            Bhs::NopOut(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TextRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::LogoutRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TaskManagementRequest(request) => (request.cmd_sn, request.is_immediate),
            // A Login Request after the login, or what only targets send.
            _ => return self.reject(&pdu.header, RejectReason::ProtocolError),
        };
        if pdu.data.is_corrupt {
            return self.reject(&pdu.header, RejectReason::DataDigestError);
        }
        if is_immediate {
            return self.handle_request(pdu);
        }
        let Phase::FullFeature(full) = &mut self.phase else { return };
        if full.session.window.admits(cmd_sn) {
            full.session.window.take(cmd_sn, Held::Request(Box::new(pdu)));
            self.deliver_in_order();
        }
    }

    /// A request whose turn it is.
    pub(super) fn handle_request(&mut self, pdu: ReceivedPdu) {
        let Phase::FullFeature(full) = &self.phase else { return };
        let is_discovery = full.negotiated.session_type == SessionType::Discovery;
        match pdu.header.bhs {
            Ok(Bhs::TextRequest(request)) => self.handle_text(&request, &pdu),
            Ok(Bhs::LogoutRequest(request)) => self.handle_logout(&request),
            // RFC 7143 4.3: nothing else in a discovery session.
            Ok(_) if is_discovery => self.reject(&pdu.header, RejectReason::ProtocolError),
            Ok(Bhs::NopOut(request)) => self.handle_nop_out(&request, pdu),
            Ok(Bhs::TaskManagementRequest(request)) => self.handle_task_management_request(&request, &pdu),
            Ok(_) | Err(_) => {}
        }
    }

    fn handle_nop_out(&mut self, request: &NopOut, pdu: ReceivedPdu) {
        if self.ping.is_some_and(|(tag, _)| request.target_transfer_tag == Some(tag)) {
            self.ping = None;
        }
        let Phase::FullFeature(full) = &self.phase else { return };
        let Some(initiator_task_tag) = request.initiator_task_tag else { return };
        let data_bytes_max = full.negotiated.initiator_max_recv_data_segment_length as usize;
        let (exp_cmd_sn, max_cmd_sn) = (full.session.window.exp_cmd_sn(), full.session.window.max_cmd_sn());
        let echo = NopIn {
            lun: 0,
            initiator_task_tag: Some(initiator_task_tag),
            target_transfer_tag: None,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn,
            max_cmd_sn,
        };
        let length = pdu.data.length.min(data_bytes_max);
        let data = if length == 0 { DataSegment::Empty } else { DataSegment::Buffer(pdu.data.buffer, 0..length) };
        self.push(&echo, data);
    }

    fn handle_text(&mut self, request: &TextRequest, pdu: &ReceivedPdu) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let exchange = match (request.target_transfer_tag, full.text.take()) {
            (None, _) => TextExchange {
                initiator_task_tag: request.initiator_task_tag,
                request: TextAssembler::new(TEXT_REQUEST_BYTES_MAX),
                response: Vec::new(),
                tag: self.target_transfer_tag,
            },
            (Some(tag), Some(exchange))
                if exchange.tag == tag && exchange.initiator_task_tag == request.initiator_task_tag =>
            {
                exchange
            }
            (Some(_), _) => return self.reject(&pdu.header, RejectReason::InvalidPduField),
        };
        self.continue_text(request, pdu, exchange);
    }

    fn continue_text(&mut self, request: &TextRequest, pdu: &ReceivedPdu, mut exchange: TextExchange) {
        if exchange.response.is_empty() {
            let text = match exchange.request.handle_segment(pdu.data.bytes(), request.is_continued) {
                Ok(text) => text,
                Err(_) => return self.reject(&pdu.header, RejectReason::LongOperationReject),
            };
            if let Some(text) = text {
                match self.answer_text(&text) {
                    Some(answer) => exchange.response = answer.emit(),
                    None => return self.reject(&pdu.header, RejectReason::ProtocolError),
                }
            }
        }
        self.send_text(request, exchange);
    }

    /// The answer to a whole text, or `None` for one that breaks the rules.
    fn answer_text(&mut self, text: &[u8]) -> Option<Keys> {
        let keys = Keys::parse(text).ok()?;
        let Phase::FullFeature(full) = &mut self.phase else { return None };
        if let Some(value) = keys.get("SendTargets") {
            // It comes alone (RFC 7143 appendix C).
            let is_alone = keys.len() == 1;
            return send_targets(&self.parameters, &full.session.request, self.local_address, value)
                .filter(|_| is_alone);
        }
        if full.negotiated.session_type == SessionType::Discovery && !keys.is_empty() {
            return None;
        }
        full.negotiator.restart();
        let answers = full.negotiator.handle(Stage::FullFeature, &keys).ok()?;
        // Only MaxRecvDataSegmentLength can change here, from the next PDU on.
        full.negotiated.initiator_max_recv_data_segment_length =
            full.negotiator.negotiated().initiator_max_recv_data_segment_length;
        Some(answers)
    }

    /// Sends as much of the response as one PDU takes.
    fn send_text(&mut self, request: &TextRequest, mut exchange: TextExchange) {
        let tag = self.next_tag();
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let segment_max = full.negotiated.initiator_max_recv_data_segment_length as usize;
        let rest = exchange.response.split_off(exchange.response.len().min(segment_max));
        let segment = std::mem::replace(&mut exchange.response, rest);
        let has_more = !exchange.response.is_empty();
        // An initiator that is not done is not answered with the end (RFC 7143 11.11.1).
        let is_end = !has_more && request.is_final;
        let response = TextResponse {
            is_continued: has_more,
            target_transfer_tag: (!is_end).then_some(tag),
            lun: 0,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn: full.session.window.exp_cmd_sn(),
            max_cmd_sn: full.session.window.max_cmd_sn(),
        };
        if !is_end {
            full.text = Some(TextExchange { tag, ..exchange });
        }
        self.push(&response, DataSegment::from(segment));
    }

    fn handle_logout(&mut self, request: &LogoutRequest) {
        let Phase::FullFeature(full) = &self.phase else { return };
        let is_this_one = request.cid == full.session.request.cid;
        let outcome = match request.reason {
            LogoutReason::CloseSession => LogoutOutcome::Closed,
            LogoutReason::CloseConnection if is_this_one => LogoutOutcome::Closed,
            LogoutReason::CloseConnection => LogoutOutcome::CidNotFound,
            LogoutReason::RemoveForRecovery => LogoutOutcome::RecoveryNotSupported,
        };
        let (exp_cmd_sn, max_cmd_sn) = (full.session.window.exp_cmd_sn(), full.session.window.max_cmd_sn());
        let response = LogoutResponse {
            outcome,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn,
            max_cmd_sn,
            wait_seconds: full.negotiated.default_time2wait,
            retain_seconds: 0,
        };
        self.push(&response, DataSegment::Empty);
        if outcome == LogoutOutcome::Closed {
            self.events.push_back(Event::Logout);
            self.close(CloseReason::Logout);
        }
    }

    fn handle_task_management_request(&mut self, request: &TaskManagementRequest, pdu: &ReceivedPdu) {
        use TaskManagementFunction as Function;
        use TaskManagementOutcome as Answer;
        let Phase::FullFeature(full) = &self.phase else { return };
        if !full.session.has_room_for_management() {
            return self.reject(&pdu.header, RejectReason::TooManyImmediateCommands);
        }
        let tag = request.initiator_task_tag;
        match request.function {
            Ok(Function::AbortTask) => self.abort_task(request),
            Ok(function @ (Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset)) => {
                let lun = request.lun;
                self.abort_tasks(tag, function, lun, |task_lun| task_lun == lun);
            }
            Ok(function @ (Function::TargetWarmReset | Function::TargetColdReset)) => {
                self.abort_tasks(tag, function, 0, |_| true);
            }
            Ok(Function::QueryTask) => {
                let exists = request.referenced_task_tag.is_some_and(|tag| full.session.tasks.contains_key(&tag));
                self.send_task_management_response(tag, succeeded_if(exists));
            }
            Ok(Function::QueryTaskSet) => {
                let exists = full.session.tasks.values().any(|task| task.header.lun == request.lun);
                self.send_task_management_response(tag, succeeded_if(exists));
            }
            Ok(Function::TaskReassign) => self.send_task_management_response(tag, Answer::ReassignmentNotSupported),
            Ok(Function::ClearAca | Function::NexusReset | Function::QueryAsynchronousEvent) | Err(_) => {
                self.send_task_management_response(tag, Answer::FunctionNotSupported);
            }
        }
    }

    fn abort_task(&mut self, request: &TaskManagementRequest) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let tag = request.initiator_task_tag;
        let referenced = request.referenced_task_tag;
        let Some(task) = referenced.and_then(|tag| full.session.tasks.get(&tag)) else {
            // Its response is on the way, or it never came: then its number is used up and it never will
            // be executed (RFC 7143 11.6.1).
            let is_to_come =
                full.session.window.admits(request.ref_cmd_sn) && request.ref_cmd_sn.is_before(request.cmd_sn);
            if is_to_come {
                full.session.window.take(request.ref_cmd_sn, Held::Plugged);
                self.send_task_management_response(tag, TaskManagementOutcome::FunctionComplete);
                return self.deliver_in_order();
            }
            return self.send_task_management_response(tag, TaskManagementOutcome::TaskDoesNotExist);
        };
        let (id, lun) = (task.id, task.header.lun);
        if self.abort(id) {
            self.await_task_management(tag, TaskManagementFunction::AbortTask, lun, vec![id], Some(id));
        } else {
            self.send_task_management_response(tag, TaskManagementOutcome::FunctionComplete);
        }
    }

    fn abort_tasks(
        &mut self,
        tag: InitiatorTaskTag,
        function: TaskManagementFunction,
        lun: u64,
        is_covered: impl Fn(u64) -> bool,
    ) {
        let Phase::FullFeature(full) = &self.phase else { return };
        let covered: Vec<TaskId> =
            full.session.tasks.values().filter(|task| is_covered(task.header.lun)).map(|task| task.id).collect();
        let waits_for = covered.into_iter().filter(|&id| self.abort(id)).collect();
        self.await_task_management(tag, function, lun, waits_for, None);
    }

    /// Ends a task without a response. True when the driver has it, so that its completion must be awaited. Data that still
    /// comes for it is dropped.
    fn abort(&mut self, id: TaskId) -> bool {
        let Phase::FullFeature(full) = &mut self.phase else { return false };
        let Some(task) = full.session.task(id) else { return false };
        task.is_aborted = true;
        if task.is_started {
            return true;
        }
        // A command that waits for its turn keeps its number: the window finds no task when the turn comes.
        full.session.remove_task(id);
        false
    }

    fn await_task_management(
        &mut self,
        initiator_task_tag: InitiatorTaskTag,
        function: TaskManagementFunction,
        lun: u64,
        waits_for: Vec<TaskId>,
        task: Option<TaskId>,
    ) {
        let Phase::FullFeature(full) = &mut self.phase else { return };
        let id = TaskManagementId(full.session.next_generation());
        full.session.managements.push(PendingManagement { id, initiator_task_tag, waits_for, outcome: None });
        self.events.push_back(Event::TaskManagement(TaskManagement { id, function, lun, task }));
    }

    /// The driver has carried out a task management function. The response goes out once the tasks it covered have ended.
    pub fn handle_task_management(&mut self, now: Instant, id: TaskManagementId, outcome: TaskManagementOutcome) {
        self.now = now;
        let Phase::FullFeature(full) = &mut self.phase else { return };
        if let Some(pending) = full.session.managements.iter_mut().find(|pending| pending.id == id) {
            pending.outcome = Some(outcome);
        }
        self.finish_task_management();
    }

    pub(super) fn finish_task_management(&mut self) {
        while let Phase::FullFeature(full) = &mut self.phase {
            let Some((tag, outcome)) = full.session.take_finished_management() else { return };
            self.send_task_management_response(tag, outcome);
        }
    }

    fn send_task_management_response(&mut self, initiator_task_tag: InitiatorTaskTag, outcome: TaskManagementOutcome) {
        let Some((exp_cmd_sn, max_cmd_sn)): Option<(Serial32, Serial32)> = self.command_numbers() else { return };
        let stat_sn = take_stat_sn(&mut self.stat_sn);
        let response = TaskManagementResponse { outcome, initiator_task_tag, stat_sn, exp_cmd_sn, max_cmd_sn };
        self.push(&response, DataSegment::Empty);
    }
}

fn succeeded_if(exists: bool) -> TaskManagementOutcome {
    if exists { TaskManagementOutcome::FunctionSucceeded } else { TaskManagementOutcome::FunctionComplete }
}
