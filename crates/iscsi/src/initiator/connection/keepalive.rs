//! Pings in both directions: whether the other end still answers.

use base::clock::Instant;

use super::super::session::Session;
use super::{Connection, ConnectionError, Ping};
use crate::framing::DataSegment;
use crate::pdu::{AdditionalHeaders, InitiatorTaskTag, NopIn, NopOut, TargetTransferTag};

impl Connection {
    pub(super) fn handle_nop_in(&mut self, session: &mut Session, nop: &NopIn) -> Result<(), ConnectionError> {
        let stat_sn = nop.initiator_task_tag.map(|_| nop.stat_sn);
        self.handle_numbers(session, stat_sn, nop.exp_cmd_sn, nop.max_cmd_sn);
        if self.ping.as_ref().is_some_and(|ping| Some(ping.tag) == nop.initiator_task_tag) {
            self.ping = None;
        }
        self.answer_ping(session, nop)
    }

    /// A NOP-In with a target transfer tag asks for a NOP-Out.
    pub(super) fn answer_ping(&mut self, session: &Session, nop: &NopIn) -> Result<(), ConnectionError> {
        if let Some(target_transfer_tag) = nop.target_transfer_tag {
            self.note_reply()?;
            self.send_nop(session, None, Some(target_transfer_tag), nop.lun);
        }
        Ok(())
    }

    fn send_nop(
        &mut self,
        session: &Session,
        tag: Option<InitiatorTaskTag>,
        target_transfer_tag: Option<TargetTransferTag>,
        lun: u64,
    ) {
        let nop = NopOut {
            is_immediate: true,
            lun,
            initiator_task_tag: tag,
            target_transfer_tag,
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
        };
        self.transmit.push(&nop, &AdditionalHeaders::default(), DataSegment::Empty);
    }

    pub(super) fn keepalive_deadline(&self) -> Option<Instant> {
        match &self.ping {
            Some(ping) => Some(ping.deadline),
            None if self.timing.keepalive_interval.is_zero() => None,
            None => Some(self.last_received + self.timing.keepalive_interval),
        }
    }

    /// Silence is answered with a ping, and silence after that ends the connection. Anything received counts as a sign
    /// of life.
    pub(super) fn keep_alive(&mut self, now: Instant, session: &Session) -> Result<(), ConnectionError> {
        if self.keepalive_deadline().is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        match &mut self.ping {
            Some(ping) => {
                let silent_until = self.last_received + self.timing.keepalive_timeout;
                if silent_until <= now {
                    return Err(ConnectionError::Silent);
                }
                ping.deadline = silent_until;
            }
            None => {
                let tag = self.next_control_tag();
                self.send_nop(session, Some(tag), None, 0);
                self.ping = Some(Ping { tag, deadline: now + self.timing.keepalive_timeout });
            }
        }
        Ok(())
    }
}
