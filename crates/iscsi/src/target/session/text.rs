//! Texts of the full feature phase: SendTargets, and the one key that may change then.
//!
//! What is under way belongs to its connection ([`TextExchange`]).

use base::serial::Serial32;

use super::super::discovery::send_targets;
use super::super::event::{CloseReason, LinkId};
use super::super::link::live;
use super::super::nexus::Nexus;
use super::super::text_exchange::TextExchange;
use crate::framing::{DataSegment, ReceivedPdu};
use crate::limits::{TEXT_REQUEST_BYTES_MAX, TEXT_REQUEST_KEYS_MAX};
use crate::negotiation::{SessionType, Stage};
use crate::pdu::{RejectReason, TextRequest, TextResponse};
use crate::text::{Keys, TextAssembler};

/// Takes a text, or asks for the rest of one, and answers it.
///
/// # Errors
/// When the connection must end.
pub(super) fn handle_text(
    at: LinkId,
    request: &TextRequest,
    pdu: &ReceivedPdu,
    numbers: (Serial32, Serial32),
    nexus: &mut Nexus,
) -> Result<(), CloseReason> {
    let tag = nexus.target_transfer_tag;
    let Some(link) = live(&mut nexus.links, at) else { return Ok(()) };
    let mut exchange = match (request.target_transfer_tag, link.text.take()) {
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
        (Some(_), _) => return nexus.reject(at, &pdu.header, RejectReason::InvalidPduField, numbers),
    };
    if exchange.response.is_empty() {
        let Ok(text) = exchange.request.handle_segment(pdu.data.bytes(), request.is_continued) else {
            return nexus.reject(at, &pdu.header, RejectReason::LongOperationReject, numbers);
        };
        if let Some(text) = text {
            let Some(answer) = answer_text(at, &text, nexus) else {
                return nexus.reject(at, &pdu.header, RejectReason::ProtocolError, numbers);
            };
            exchange.response = answer.emit();
        }
    }
    send_text(at, request, exchange, numbers, nexus);
    Ok(())
}

/// The answer to a complete text, or `None` for one that violates the rules.
fn answer_text(at: LinkId, text: &[u8], nexus: &mut Nexus) -> Option<Keys> {
    let keys = Keys::parse_few(text, TEXT_REQUEST_KEYS_MAX).ok()?;
    let link = live(&mut nexus.links, at)?;
    if let Some(value) = keys.get("SendTargets") {
        // It comes alone (RFC 7143 appendix C).
        let is_alone = keys.len() == 1;
        return send_targets(&nexus.parameters, &nexus.full.request, link.local_address, value).filter(|_| is_alone);
    }
    if nexus.full.negotiated.session_type == SessionType::Discovery && !keys.is_empty() {
        return None;
    }
    link.negotiator.restart();
    let answers = link.negotiator.handle(Stage::FullFeature, &keys).ok()?;
    // Only MaxRecvDataSegmentLength can change here, from the next PDU on.
    link.segment_bytes_max = link.negotiator.negotiated().initiator_max_recv_data_segment_length as usize;
    Some(answers)
}

/// Sends as much of the response as one PDU takes.
fn send_text(
    at: LinkId,
    request: &TextRequest,
    mut exchange: TextExchange,
    (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    nexus: &mut Nexus,
) {
    let tag = nexus.next_tag();
    let Some(link) = live(&mut nexus.links, at) else { return };
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
