//! Everything of the full feature phase that is not a SCSI command, task management or logout: pings, text.

use super::super::discovery::send_targets;
use super::super::event::{CloseReason, LinkId};
use super::super::link::live;
use super::super::task_set::Held;
use super::super::text_exchange::TextExchange;
use super::Session;
use crate::framing::{DataSegment, ReceivedPdu};
use crate::limits::{HELD_REQUEST_BYTES_MAX, TEXT_REQUEST_BYTES_MAX, TEXT_REQUEST_KEYS_MAX};
use crate::negotiation::{SessionType, Stage};
use crate::pdu::{Bhs, NopIn, NopOut, RejectReason, TextRequest, TextResponse};
use crate::text::{Keys, TextAssembler};

impl Session {
    pub(super) fn handle_full_feature_pdu(&mut self, at: LinkId, pdu: ReceivedPdu) {
        let bhs = match pdu.header.bhs {
            Ok(bhs) => bhs,
            Err(error) => return self.reject(at, &pdu.header, error.reject_reason()),
        };
        self.note_acknowledgement(at, &bhs);
        if self.is_leaving(at) {
            return;
        }
        let (cmd_sn, is_immediate) = match bhs {
            Bhs::ScsiCommand(command) => return self.handle_command(at, command, pdu),
            Bhs::DataOut(data) => return self.handle_data_out(at, data, pdu),
            Bhs::SnackRequest(request) => return self.handle_snack(at, &request, &pdu.header),
            Bhs::NopOut(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TextRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::LogoutRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TaskManagementRequest(request) => (request.cmd_sn, request.is_immediate),
            // A Login Request after the login, or a PDU that only targets send.
            _ => return self.reject(at, &pdu.header, RejectReason::ProtocolError),
        };
        if pdu.data.is_corrupt {
            return self.reject(at, &pdu.header, RejectReason::DataDigestError);
        }
        if is_immediate {
            return self.handle_request(at, pdu);
        }
        if self.set.window.admits(cmd_sn) {
            self.set.window.take(cmd_sn, Held::Request(at, Box::new(pdu)));
            self.deliver_in_order();
            if self.gap_since.is_some() && self.set.held_request_bytes() > HELD_REQUEST_BYTES_MAX {
                self.fail_link(at, CloseReason::Protocol("too much data ahead of a command that does not come"));
            }
        }
    }

    /// A request whose turn it is.
    pub(super) fn handle_request(&mut self, at: LinkId, pdu: ReceivedPdu) {
        if self.is_leaving(at) {
            return;
        }
        let is_discovery = self.full.negotiated.session_type == SessionType::Discovery;
        match pdu.header.bhs {
            Ok(Bhs::TextRequest(request)) => self.handle_text(at, &request, &pdu),
            Ok(Bhs::LogoutRequest(request)) => self.handle_logout(at, &request),
            // RFC 7143 4.3: nothing else in a discovery session.
            Ok(_) if is_discovery => self.reject(at, &pdu.header, RejectReason::ProtocolError),
            Ok(Bhs::NopOut(request)) => self.handle_nop_out(at, &request, pdu),
            Ok(Bhs::TaskManagementRequest(request)) => self.handle_task_management_request(at, &request, &pdu),
            Ok(_) | Err(_) => {}
        }
    }

    fn handle_nop_out(&mut self, at: LinkId, request: &NopOut, pdu: ReceivedPdu) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        if link.ping.is_some_and(|(tag, _)| request.target_transfer_tag == Some(tag)) {
            link.ping = None;
        }
        let Some(initiator_task_tag) = request.initiator_task_tag else { return };
        let stat_sn = link.take_stat_sn();
        let echo = NopIn {
            lun: 0,
            initiator_task_tag: Some(initiator_task_tag),
            target_transfer_tag: None,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
        };
        let length = pdu.data.length.min(link.segment_bytes_max);
        // A truncated echo keeps only the bytes that it sends.
        let data = match length {
            0 => DataSegment::Empty,
            _ if pdu.data.buffer.capacity() > 2 * length => DataSegment::from(pdu.data.bytes()[..length].to_vec()),
            _ => DataSegment::Buffer(pdu.data.buffer, 0..length),
        };
        link.push_response(stat_sn, &echo, data);
    }

    fn handle_text(&mut self, at: LinkId, request: &TextRequest, pdu: &ReceivedPdu) {
        let tag = self.target_transfer_tag;
        let Some(link) = live(&mut self.links, at) else { return };
        let exchange = match (request.target_transfer_tag, link.text.take()) {
            (None, _) => TextExchange {
                initiator_task_tag: request.initiator_task_tag,
                request: TextAssembler::new(TEXT_REQUEST_BYTES_MAX),
                response: Vec::new(),
                tag,
            },
            (Some(tag), Some(exchange))
                if exchange.tag == tag && exchange.initiator_task_tag == request.initiator_task_tag =>
            {
                exchange
            }
            (Some(_), _) => return self.reject(at, &pdu.header, RejectReason::InvalidPduField),
        };
        self.continue_text(at, request, pdu, exchange);
    }

    fn continue_text(&mut self, at: LinkId, request: &TextRequest, pdu: &ReceivedPdu, mut exchange: TextExchange) {
        if exchange.response.is_empty() {
            let text = match exchange.request.handle_segment(pdu.data.bytes(), request.is_continued) {
                Ok(text) => text,
                Err(_) => return self.reject(at, &pdu.header, RejectReason::LongOperationReject),
            };
            if let Some(text) = text {
                match self.answer_text(at, &text) {
                    Some(answer) => exchange.response = answer.emit(),
                    None => return self.reject(at, &pdu.header, RejectReason::ProtocolError),
                }
            }
        }
        self.send_text(at, request, exchange);
    }

    /// The answer to a complete text, or `None` for one that violates the rules.
    fn answer_text(&mut self, at: LinkId, text: &[u8]) -> Option<Keys> {
        let keys = Keys::parse_few(text, TEXT_REQUEST_KEYS_MAX).ok()?;
        let link = live(&mut self.links, at)?;
        if let Some(value) = keys.get("SendTargets") {
            // It comes alone (RFC 7143 appendix C).
            let is_alone = keys.len() == 1;
            return send_targets(&self.parameters, &self.full.request, link.local_address, value).filter(|_| is_alone);
        }
        if self.full.negotiated.session_type == SessionType::Discovery && !keys.is_empty() {
            return None;
        }
        link.negotiator.restart();
        let answers = link.negotiator.handle(Stage::FullFeature, &keys).ok()?;
        // Only MaxRecvDataSegmentLength can change here, from the next PDU on.
        link.segment_bytes_max = link.negotiator.negotiated().initiator_max_recv_data_segment_length as usize;
        Some(answers)
    }

    /// Sends as much of the response as one PDU takes.
    fn send_text(&mut self, at: LinkId, request: &TextRequest, mut exchange: TextExchange) {
        let tag = self.next_tag();
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        let rest = exchange.response.split_off(exchange.response.len().min(link.segment_bytes_max));
        let segment = std::mem::replace(&mut exchange.response, rest);
        let has_more = !exchange.response.is_empty();
        // An initiator that has more to send is not answered with the end (RFC 7143 11.11.1).
        let is_end = !has_more && request.is_final;
        let stat_sn = link.take_stat_sn();
        let response = TextResponse {
            is_continued: has_more,
            target_transfer_tag: (!is_end).then_some(tag),
            lun: 0,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
        };
        if !is_end {
            link.text = Some(TextExchange { tag, ..exchange });
        }
        link.push_response(stat_sn, &response, DataSegment::from(segment));
    }
}
