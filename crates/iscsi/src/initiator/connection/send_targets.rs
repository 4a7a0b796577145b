//! The list of targets: the one text exchange after the login.

use super::super::discovery::targets;
use super::super::session::Session;
use super::{Connection, ConnectionError, Event, TextExchange};
use crate::limits::{SEND_TARGETS_BYTES_MAX, TEXT_RESPONSES_MAX};
use crate::pdu::{AdditionalHeaders, InitiatorTaskTag, TargetTransferTag, TextRequest, TextResponse};
use crate::text::{Keys, TextAssembler, TextError};

impl Connection {
    /// Asks for all targets. [`Event::Targets`] follows.
    pub fn send_targets(&mut self, session: &mut Session) {
        let tag = self.next_control_tag();
        let received = TextAssembler::new(SEND_TARGETS_BYTES_MAX);
        self.exchange = Some(TextExchange { tag, received, text: Vec::new(), response_count: 0 });
        let keys: Keys = [("SendTargets", "All")].into_iter().collect();
        self.send_text(session, tag, None, 0, keys.emit());
    }

    pub(super) fn handle_text(
        &mut self,
        session: &mut Session,
        response: &TextResponse,
        data: &[u8],
    ) -> Result<(), ConnectionError> {
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
        match response.target_transfer_tag {
            Some(target_transfer_tag) => {
                self.send_text(session, tag, Some(target_transfer_tag), response.lun, Vec::new());
            }
            None => {
                let keys = Keys::parse_send_targets(&exchange.text)?;
                let targets =
                    targets(&keys).ok_or(ConnectionError::Protocol("a list of more targets than we look at"))?;
                self.exchange = None;
                self.events.push_back(Event::Targets(targets));
            }
        }
        Ok(())
    }

    fn send_text(
        &mut self,
        session: &mut Session,
        tag: InitiatorTaskTag,
        target_transfer_tag: Option<TargetTransferTag>,
        lun: u64,
        text: Vec<u8>,
    ) {
        let request = TextRequest {
            is_immediate: false,
            is_final: true,
            is_continued: false,
            lun,
            initiator_task_tag: tag,
            target_transfer_tag,
            cmd_sn: session.take_cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
        };
        self.transmit.push(&request, &AdditionalHeaders::default(), text.into());
    }
}
