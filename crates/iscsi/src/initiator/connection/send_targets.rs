//! The list of targets: the one text exchange after the login.

use super::super::discovery::{DiscoveredTarget, targets};
use super::super::outgoing::Outgoing;
use super::super::session::Session;
use super::error::ConnectionError;
use crate::limits::{SEND_TARGETS_BYTES_MAX, TEXT_RESPONSES_MAX};
use crate::pdu::{InitiatorTaskTag, TargetTransferTag, TextRequest, TextResponse};
use crate::text::{Keys, TextAssembler, TextError};

/// The SendTargets of a connection, if one is under way.
#[derive(Default)]
pub(super) struct SendTargets {
    exchange: Option<TextExchange>,
}

/// A SendTargets under way.
struct TextExchange {
    tag: InitiatorTaskTag,
    received: TextAssembler,
    text: Vec<u8>,
    response_count: usize,
}

impl SendTargets {
    /// Asks for all targets.
    pub(super) fn begin(&mut self, session: &mut Session, out: &mut Outgoing) {
        let tag = out.next_control_tag();
        let received = TextAssembler::new(SEND_TARGETS_BYTES_MAX);
        self.exchange = Some(TextExchange { tag, received, text: Vec::new(), response_count: 0 });
        let keys: Keys = [("SendTargets", "All")].into_iter().collect();
        send_text(session, tag, None, 0, keys.emit(), out);
    }

    /// Handles a part of the answer. Returns the targets when it is the last one.
    ///
    /// # Errors
    /// When nobody asked for it, or it is malformed or too long.
    pub(super) fn handle_response(
        &mut self,
        session: &mut Session,
        response: &TextResponse,
        data: &[u8],
        out: &mut Outgoing,
    ) -> Result<Option<Vec<DiscoveredTarget>>, ConnectionError> {
        let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.tag == response.initiator_task_tag)
        else {
            return Err(ConnectionError::Protocol("a text response that nobody asked for"));
        };
        exchange.response_count += 1;
        if exchange.response_count > TEXT_RESPONSES_MAX {
            return Err(ConnectionError::Protocol("a list of targets that does not end"));
        }
        if let Some(text) = exchange.received.handle_segment(data, response.is_continued)? {
            if exchange.text.len() + text.len() > SEND_TARGETS_BYTES_MAX {
                return Err(TextError::TooLong { bytes_max: SEND_TARGETS_BYTES_MAX }.into());
            }
            exchange.text.extend_from_slice(&text);
        }
        let tag = exchange.tag;
        let Some(target_transfer_tag) = response.target_transfer_tag else {
            let keys = Keys::parse_send_targets(&exchange.text)?;
            let targets = targets(&keys).ok_or(ConnectionError::Protocol("a list of more targets than we look at"))?;
            self.exchange = None;
            return Ok(Some(targets));
        };
        send_text(session, tag, Some(target_transfer_tag), response.lun, Vec::new(), out);
        Ok(None)
    }
}

fn send_text(
    session: &mut Session,
    tag: InitiatorTaskTag,
    target_transfer_tag: Option<TargetTransferTag>,
    lun: u64,
    text: Vec<u8>,
    out: &mut Outgoing,
) {
    let request = TextRequest {
        is_immediate: false,
        is_final: true,
        is_continued: false,
        lun,
        initiator_task_tag: tag,
        target_transfer_tag,
        cmd_sn: session.take_cmd_sn(),
        exp_stat_sn: out.exp_stat_sn,
    };
    out.push(&request, text.into());
}
