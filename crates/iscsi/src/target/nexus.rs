//! What all parts of a session stand on: its connections, what was agreed on, the time, and the events for the driver.
//!
//! It sends every PDU that is no part of a task: pings, rejects, asynchronous messages and the responses to logout and
//! task management. It knows no tasks: whoever sends gives it ExpCmdSN and MaxCmdSN.

use std::collections::VecDeque;
use std::sync::Arc;

use base::clock::Instant;
use base::serial::Serial32;

use super::event::{CloseReason, Event, LinkId};
use super::full_feature::FullFeature;
use super::link::{Link, live};
use super::parameters::TargetParameters;
use crate::framing::{DataSegment, ReceivedHeader, ReceivedPdu};
use crate::limits::PACE_DATA_BYTES;
use crate::pdu::{
    AsyncEvent, AsyncMessage, InitiatorTaskTag, LogoutOutcome, LogoutResponse, NopIn, NopOut, Reject, RejectReason,
    TargetTransferTag, TaskManagementOutcome, TaskManagementResponse,
};

/// A session as the relation of two ports (I_T nexus).
pub(super) struct Nexus {
    pub(super) parameters: Arc<TargetParameters>,
    pub(super) full: FullFeature,
    /// A handful: searching them costs less than a map.
    pub(super) links: Vec<Link>,
    pub(super) events: VecDeque<Event>,
    pub(super) now: Instant,
    pub(super) target_transfer_tag: TargetTransferTag,
    /// PDUs of ended connections, received and sent.
    gone_pdus: (u64, u64),
    /// Digest errors of all connections, ended ones included.
    pub(super) digest_errors: u64,
}

impl Nexus {
    /// A session with its first connection.
    pub(super) fn new(now: Instant, parameters: Arc<TargetParameters>, full: FullFeature, link: Link) -> Self {
        Self {
            parameters,
            full,
            links: vec![link],
            events: VecDeque::new(),
            now,
            target_transfer_tag: TargetTransferTag::new(0).expect("zero is not reserved"),
            gone_pdus: (0, 0),
            digest_errors: 0,
        }
    }

    /// The connections that are not closed.
    pub(super) fn live(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| !link.is_closed)
    }

    pub(super) fn is_live(&self, at: LinkId) -> bool {
        self.live().any(|link| link.id == at)
    }

    /// The connection that a transport belongs to.
    pub(super) fn any(&self, at: LinkId) -> Option<&Link> {
        self.links.iter().find(|link| link.has_transport(at))
    }

    /// The connection that a transport belongs to.
    pub(super) fn with_transport(&mut self, at: LinkId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.has_transport(at))
    }

    /// Whether tasks outlive their connection.
    pub(super) fn is_recoverable(&self) -> bool {
        self.full.negotiated.error_recovery_level >= 2 && self.full.negotiated.default_time2retain > 0
    }

    /// Time2Wait and Time2Retain as messages have them.
    pub(super) fn times(&self) -> (u16, u16) {
        let retain = if self.is_recoverable() { self.full.negotiated.default_time2retain } else { 0 };
        (self.full.negotiated.default_time2wait, retain)
    }

    pub(super) fn next_tag(&mut self) -> TargetTransferTag {
        self.target_transfer_tag = self.target_transfer_tag.next();
        self.target_transfer_tag
    }

    /// Ignored PDUs count as work, and have no answer.
    pub(super) fn note_ignored(&mut self, at: LinkId, bytes: usize) {
        let now = self.now;
        if let Some(link) = live(&mut self.links, at) {
            link.pace.note(now, 1 + bytes / PACE_DATA_BYTES);
        }
    }

    /// Closes a connection for receiving. Returns whether it was open.
    pub(super) fn close(&mut self, at: LinkId, reason: CloseReason) -> bool {
        let Some(link) = live(&mut self.links, at) else { return false };
        link.is_closed = true;
        link.sent.clear();
        if let Some(half) = &link.response_half {
            self.events.push_back(Event::LinkClosed(half.id, reason.clone()));
        }
        self.events.push_back(Event::LinkClosed(at, reason));
        true
    }

    /// Removes a closed connection, whose last bytes are sent or given up.
    pub(super) fn release(&mut self, at: LinkId) {
        let index = self.links.iter().position(|link| link.has_transport(at) && link.is_closed);
        let Some(index) = index else { return };
        let half = self.links.get_mut(index).and_then(|link| link.response_half.as_deref_mut());
        let is_last = half.is_none_or(|half| half.released.replace(at).is_some_and(|other| other != at));
        if is_last {
            let link = self.links.remove(index);
            self.gone_pdus.0 += link.received_pdus;
            self.gone_pdus.1 += link.sent_pdus();
        }
    }

    /// PDUs received and queued so far.
    pub(super) fn pdu_counts(&self) -> (u64, u64) {
        self.links
            .iter()
            .fold(self.gone_pdus, |(received, sent), link| (received + link.received_pdus, sent + link.sent_pdus()))
    }

    /// Refuses a PDU.
    ///
    /// # Errors
    /// When the connection must end, because the initiator acknowledges nothing.
    pub(super) fn reject(
        &mut self,
        at: LinkId,
        header: &ReceivedHeader,
        reason: RejectReason,
        numbers: (Serial32, Serial32),
    ) -> Result<(), CloseReason> {
        self.reject_data(at, header, reason, Serial32(0), numbers)
    }

    /// A Reject with the next DataSN or R2TSN, as for an invalid data SNACK (RFC 7143 11.17.2).
    ///
    /// # Errors
    /// As those of [`reject`](Self::reject).
    pub(super) fn reject_data(
        &mut self,
        at: LinkId,
        header: &ReceivedHeader,
        reason: RejectReason,
        data_sn: Serial32,
        (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    ) -> Result<(), CloseReason> {
        let now = self.now;
        let Some(link) = live(&mut self.links, at) else { return Ok(()) };
        // The rejected PDU had no effect.
        link.pace.note(now, 1);
        let stat_sn = link.take_stat_sn();
        let reject = Reject { reason, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn };
        link.push_response(stat_sn, &reject, DataSegment::from(header.raw.to_vec()));
        link.check_kept()
    }

    /// Sends an asynchronous message on every connection but one.
    pub(super) fn tell(&mut self, event: AsyncEvent, except: Option<LinkId>, numbers: (Serial32, Serial32)) {
        let (exp_cmd_sn, max_cmd_sn) = numbers;
        for link in self.links.iter_mut().filter(|link| !link.is_closed && Some(link.id) != except) {
            let stat_sn = link.take_stat_sn();
            let message = AsyncMessage { event, lun: 0, stat_sn, exp_cmd_sn, max_cmd_sn };
            link.push_response(stat_sn, &message, DataSegment::Empty);
        }
    }

    /// Sends a ping, whose answer also brings the ExpStatSN.
    pub(super) fn ping(&mut self, at: LinkId, (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32)) {
        let tag = self.next_tag();
        let until = self.now + self.parameters.ping_timeout;
        let Some(link) = live(&mut self.links, at) else { return };
        link.ping = Some((tag, until));
        let stat_sn = link.stat_sn;
        let ping =
            NopIn { lun: 0, initiator_task_tag: None, target_transfer_tag: Some(tag), stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push(&ping, DataSegment::Empty);
    }

    /// Handles the initiator's answer to a ping, or its own ping.
    pub(super) fn handle_nop_out(
        &mut self,
        at: LinkId,
        request: &NopOut,
        pdu: ReceivedPdu,
        (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    ) {
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

    pub(super) fn send_management_response(
        &mut self,
        at: LinkId,
        initiator_task_tag: InitiatorTaskTag,
        outcome: TaskManagementOutcome,
        (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    ) {
        let Some(link) = live(&mut self.links, at) else { return };
        let stat_sn = link.take_stat_sn();
        let response = TaskManagementResponse { outcome, initiator_task_tag, stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push_response(stat_sn, &response, DataSegment::Empty);
    }

    pub(super) fn send_logout_response(
        &mut self,
        at: LinkId,
        initiator_task_tag: InitiatorTaskTag,
        outcome: LogoutOutcome,
        (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    ) {
        let (wait_seconds, retain_seconds) = self.times();
        let Some(link) = live(&mut self.links, at) else { return };
        let stat_sn = link.take_stat_sn();
        let response = LogoutResponse {
            outcome,
            initiator_task_tag,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            wait_seconds,
            retain_seconds,
        };
        link.push_response(stat_sn, &response, DataSegment::Empty);
    }
}
