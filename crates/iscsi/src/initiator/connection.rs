//! One connection of a session: framing, login, StatSN, keepalive, logout.
//!
//! ```text
//!  new ──► LoggingIn ──► FullFeature ──► LoggingOut ──► Closed
//! ```
//!
//! Data-In goes straight into the buffer of its task; the data of a write goes out from there:
//! immediate data, unsolicited Data-Out and the answers to R2Ts, cut to the negotiated sizes (RFC
//! 7143 11.7 and 11.8). All PDUs of the target are checked against the task that they name: an R2T
//! or Data-In outside of it ends the connection, one for a task that has ended is ignored. What a
//! target can make this end hold is limited: a target that exceeds a limit loses its connection.

mod error;
mod keepalive;
mod send_targets;
mod timing;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use self::keepalive::{Keepalive, answer_ping};
use self::send_targets::SendTargets;
use super::command::Outcome;
use super::discovery::DiscoveredTarget;
use super::login::{LoggedIn, Login, LoginConfig, LoginStep};
use super::outgoing::Outgoing;
use super::recovery::{Removals, take_over};
use super::removed::{CONNECTION_RECOVERY_LEVEL_MIN, Removed};
use super::session::{Session, TaskData};
use super::task_management::TaskManagement;
use crate::framing::{
    DataSegment, Destination, Digests, PduSizes, Progress, ReceivedHeader, ReceivedPdu, Receiver, TransmitQueue,
};
use crate::limits::{
    DROPPED_CONNECTIONS_MAX, EVENT_BYTES_MAX, EVENTS_WAITING_MAX, SENSE_BYTES_MAX, TRANSMIT_BYTES_HIGH,
};
use crate::negotiation::{Digest, Negotiated, SessionType};
use crate::pdu::{
    AsyncEvent, AsyncMessage, Bhs, DataIn, InitiatorTaskTag, LogoutOutcome, LogoutReason, LogoutRequest,
    LogoutResponse, RawBhs, Reject, ScsiResponse, ServiceResponse, SnackRequest, SnackType,
};

pub use self::error::ConnectionError;
pub use self::timing::Timing;

/// MaxRecvDataSegmentLength in force during login (RFC 7143 6.3).
const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// An event for the driver.
#[derive(Debug)]
pub enum Event {
    /// The full feature phase has begun.
    LoggedIn(Box<LoggedIn>),
    /// The answer to [`Connection::send_targets`].
    Targets(Vec<DiscoveredTarget>),
    /// The target wants us to log out within this time (RFC 7143 11.9.1).
    LogoutRequested {
        /// Seconds.
        within_seconds: u16,
    },
    /// Sense data about a logical unit that no command asked for.
    ScsiEvent {
        /// LUN field.
        lun: u64,
        /// Sense data, at most [`SENSE_BYTES_MAX`] bytes of it.
        sense: Vec<u8>,
    },
    /// A vendor's event.
    VendorEvent {
        /// The message.
        message: AsyncMessage,
        /// Its data segment, at most [`EVENT_BYTES_MAX`] bytes of it.
        data: Vec<u8>,
    },
    /// A logical unit was reset because a command did not end; all its commands that were sent before the reset ended
    /// as Aborted.
    LogicalUnitReset {
        /// LUN field.
        lun: u64,
    },
    /// The logout was answered; the connection can be closed.
    LoggedOut(LogoutOutcome),
}

enum Phase {
    LoggingIn(Box<Login>),
    FullFeature,
    LoggingOut(InitiatorTaskTag),
    Closed,
}

/// One connection.
pub struct Connection {
    receiver: Receiver,
    outgoing: Outgoing,
    keepalive: Keepalive,
    send_targets: SendTargets,
    task_management: TaskManagement,
    removals: Removals,
    events: VecDeque<Event>,
    phase: Phase,
    cid: u16,
    /// Our offered segment limit, which is in force once the login is done.
    offered_segment_bytes: u32,
    /// Receives on a pair's request half, where only what was under way when the pair was made may
    /// come.
    request_half: Option<Box<Receiver>>,
    login_deadline: Instant,
    received_pdu_count: u64,
    /// CIDs of other connections that the target says it has dropped.
    dropped: Vec<u16>,
}

impl Connection {
    /// A connection that is open and logs in: its first request waits to be written.
    pub fn new(now: Instant, session: &Session, config: LoginConfig, timing: Timing) -> Self {
        let (cid, offered_segment_bytes) = (config.cid, config.offer.max_recv_data_segment_length);
        let mut login = Box::new(Login::new(config, session.next_cmd_sn()));
        let (request, text) = login.start();
        let mut outgoing = Outgoing::new(TransmitQueue::new(Digests::default()), LOGIN_SEGMENT_BYTES as usize);
        outgoing.push(&request, text.into());
        Self {
            receiver: Receiver::new(LOGIN_SEGMENT_BYTES),
            outgoing,
            keepalive: Keepalive::new(now, &timing),
            send_targets: SendTargets::default(),
            task_management: TaskManagement::new(timing.task_management_timeout),
            removals: Removals::default(),
            events: VecDeque::new(),
            phase: Phase::LoggingIn(login),
            cid,
            offered_segment_bytes,
            request_half: None,
            login_deadline: now + timing.login_timeout,
            received_pdu_count: 0,
            dropped: Vec::new(),
        }
    }

    /// The space for the next bytes from the target.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.receiver.receive_space()
    }

    /// `length` bytes were read into the space last given.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be closed.
    pub fn handle_received(
        &mut self,
        now: Instant,
        session: &mut Session,
        length: usize,
    ) -> Result<(), ConnectionError> {
        self.keepalive.note_received(now);
        self.receiver.handle_received(length);
        loop {
            match self.receiver.poll()? {
                Progress::NeedBytes => return Ok(()),
                Progress::NeedPlace => {
                    let header = self.receiver.pending_header().expect("a header waits");
                    let destination = place(header, session, self.cid)?;
                    self.receiver.place(destination);
                }
                Progress::Pdu(pdu) => self.handle_pdu(now, session, pdu)?,
            }
        }
    }

    /// Its CID.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Whether the login is done and no logout was asked for.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// Whether the target has agreed to close it.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Whether a command could be sent here now.
    pub fn takes_commands(&self, session: &Session) -> bool {
        self.is_established()
            && session.negotiated().session_type == SessionType::Normal
            && self.outgoing.queue.bytes() < TRANSMIT_BYTES_HIGH
    }

    /// Moves the next command that may be sent into the transmit queue. Returns whether there was
    /// one.
    pub fn send_next(&mut self, session: &mut Session) -> bool {
        let Some(tag) = session.next_to_send(self.cid) else { return false };
        self.outgoing.send_command(session, tag);
        true
    }

    /// When anything was received last, or the connection began.
    pub fn last_received(&self) -> Instant {
        self.keepalive.last_received()
    }

    /// Makes a pair: `half`, which has just logged in for it, receives from now on.
    pub fn take_response_half(&mut self, half: Self) {
        let own = std::mem::replace(&mut self.receiver, half.receiver);
        self.request_half = Some(Box::new(own));
        self.outgoing.exp_stat_sn = half.outgoing.exp_stat_sn;
        self.keepalive.join(&half.keepalive);
        self.received_pdu_count += half.received_pdu_count;
    }

    /// Whether it is a pair.
    pub fn is_split(&self) -> bool {
        self.request_half.is_some()
    }

    /// The space for bytes on a pair's request half; empty for any other connection.
    pub fn request_half_space(&mut self) -> &mut [u8] {
        self.request_half.as_mut().map_or(&mut [], |receiver| receiver.receive_space())
    }

    /// `length` bytes were read into [`Connection::request_half_space`].
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be closed.
    pub fn handle_request_half(&mut self, session: &Session, length: usize) -> Result<(), ConnectionError> {
        let Some(mut receiver) = self.request_half.take() else { return Ok(()) };
        receiver.handle_received(length);
        loop {
            match receiver.poll()? {
                Progress::NeedBytes => break,
                Progress::NeedPlace => {
                    let bytes = receiver.pending_header().map_or(0, |header| header.data_segment_bytes);
                    receiver.place(Destination::Buffer { buffer: Buffer::zeroed(bytes), offset: 0 });
                }
                Progress::Pdu(pdu) => match pdu.header.bhs? {
                    Bhs::NopIn(nop) if nop.initiator_task_tag.is_none() => {
                        answer_ping(&nop, session.next_cmd_sn(), &mut self.outgoing)?;
                    }
                    Bhs::AsyncMessage(message) => self.handle_async(message, pdu.data.bytes())?,
                    _ => return Err(ConnectionError::Protocol("a response on a connection that carries requests")),
                },
            }
        }
        self.request_half = Some(receiver);
        Ok(())
    }

    /// Fills `out` with what is to be written, and returns how many slices that took.
    pub fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.outgoing.queue.io_slices(out)
    }

    /// Whether nothing is to be written.
    pub fn is_transmit_empty(&self) -> bool {
        self.outgoing.queue.is_empty()
    }

    /// `length` bytes were written.
    pub fn handle_transmitted(&mut self, session: &mut Session, length: usize) {
        self.outgoing.queue.handle_transmitted(length);
        session.complete_lingering();
    }

    /// Takes the CID of another connection of the session that the target says it has dropped.
    pub fn poll_dropped(&mut self) -> Option<u16> {
        self.dropped.pop()
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_timeout`] must be called.
    pub fn poll_timeout(&self, session: &Session) -> Option<Instant> {
        match self.phase {
            Phase::LoggingIn(_) => Some(self.login_deadline),
            Phase::Closed => None,
            Phase::FullFeature | Phase::LoggingOut(_) => {
                let keepalive = self.keepalive.deadline();
                [keepalive, self.task_management.deadline(), session.earliest_deadline()].into_iter().flatten().min()
            }
        }
    }

    /// Handles due timeouts.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be closed.
    pub fn handle_timeout(&mut self, now: Instant, session: &mut Session) -> Result<(), ConnectionError> {
        match self.phase {
            Phase::LoggingIn(_) if now >= self.login_deadline => Err(ConnectionError::LoginTimedOut),
            Phase::LoggingIn(_) | Phase::Closed => Ok(()),
            Phase::FullFeature | Phase::LoggingOut(_) => {
                self.keepalive.handle_timeout(now, session.next_cmd_sn(), &mut self.outgoing)?;
                self.task_management.escalate(now, session, self.cid, &mut self.outgoing)
            }
        }
    }

    /// Asks to close the session. [`Event::LoggedOut`] follows.
    pub fn logout(&mut self, session: &Session) {
        self.send_logout(session, LogoutReason::CloseSession);
    }

    /// Asks to close this connection alone, when nothing is under way on it. [`Event::LoggedOut`] follows.
    pub fn leave(&mut self, session: &Session) {
        self.send_logout(session, LogoutReason::CloseConnection);
    }

    fn send_logout(&mut self, session: &Session, reason: LogoutReason) {
        if !matches!(self.phase, Phase::FullFeature) {
            return;
        }
        let tag = self.outgoing.next_control_tag();
        let request = LogoutRequest {
            is_immediate: true,
            reason,
            initiator_task_tag: tag,
            cid: self.cid,
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: self.outgoing.exp_stat_sn,
        };
        self.outgoing.push(&request, DataSegment::Empty);
        self.phase = Phase::LoggingOut(tag);
    }

    /// Asks for all targets. [`Event::Targets`] follows.
    pub fn send_targets(&mut self, session: &mut Session) {
        self.send_targets.begin(session, &mut self.outgoing);
    }

    /// Resets the logical unit of `lun`, unless a reset is under way.
    pub fn reset_logical_unit(&mut self, now: Instant, session: &mut Session, lun: u64) {
        self.task_management.reset_logical_unit(now, session, self.cid, lun, &mut self.outgoing);
    }

    /// Requests the removal of the lost connection `cid`. [`Connection::poll_removed`] has the
    /// answer.
    pub fn remove(&mut self, session: &Session, cid: u16) {
        self.removals.request(session, cid, &mut self.outgoing);
    }

    /// An answer about a lost connection.
    pub fn poll_removed(&mut self) -> Option<Removed> {
        self.removals.poll()
    }

    /// Whether another task could be taken over now.
    pub fn can_take_over(&self) -> bool {
        self.is_established() && self.task_management.has_room()
    }

    /// Takes over a task of a removed connection; `exp_cmd_sn` is the target's value from then.
    pub fn take_over(&mut self, now: Instant, session: &mut Session, tag: InitiatorTaskTag, exp_cmd_sn: Serial32) {
        take_over(now, session, (tag, exp_cmd_sn), self.cid, &mut self.task_management, &mut self.outgoing);
    }

    /// Ends a lost connection: the buffer into which it was reading goes back to its task.
    pub fn abandon(mut self, session: &mut Session) {
        if let Some((header, buffer)) = self.receiver.take_destination()
            && let Ok(Bhs::DataIn(data_in)) = header.bhs
            && let Some(task) = session.task_on(self.cid, data_in.initiator_task_tag)
            && let TaskData::Read(place, ..) = &mut task.data
        {
            *place = Some(buffer);
        }
        // Its queue shares the buffers that were being written.
        session.end_resets_of(self.cid);
        drop(self);
        session.complete_lingering();
    }

    /// Counts the sizes of PDUs in `sizes`.
    pub fn count_sizes(&mut self, sizes: &Arc<PduSizes>) {
        self.outgoing.queue.count_sizes(Arc::clone(sizes));
        self.receiver.count_sizes(Arc::clone(sizes));
    }

    /// PDUs sent and received so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        (self.outgoing.queue.pdu_count(), self.received_pdu_count)
    }

    fn handle_pdu(&mut self, now: Instant, session: &mut Session, pdu: ReceivedPdu) -> Result<(), ConnectionError> {
        self.received_pdu_count += 1;
        let bhs = pdu.header.bhs?;
        if let Bhs::DataIn(data_in) = bhs {
            return self.handle_data_in(session, &data_in, pdu);
        }
        if pdu.data.is_corrupt {
            return Err(ConnectionError::DataDigest);
        }
        let data = pdu.data.bytes();
        if let Phase::LoggingIn(login) = &mut self.phase {
            let Bhs::LoginResponse(response) = bhs else {
                return Err(ConnectionError::Protocol("something other than a login response during login"));
            };
            let step = login.handle_response(&response, data)?;
            self.handle_login_step(session, step);
            return Ok(());
        }
        match bhs {
            Bhs::ScsiResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                if session.task_on(self.cid, response.initiator_task_tag).is_some() {
                    handle_response(session, &response, data);
                }
                Ok(())
            }
            Bhs::ReadyToTransfer(r2t) => {
                self.handle_numbers(session, None, r2t.exp_cmd_sn, r2t.max_cmd_sn);
                self.outgoing.answer_r2t(session, self.cid, &r2t)
            }
            Bhs::NopIn(nop) => {
                let stat_sn = nop.initiator_task_tag.map(|_| nop.stat_sn);
                self.handle_numbers(session, stat_sn, nop.exp_cmd_sn, nop.max_cmd_sn);
                self.keepalive.note_answer(&nop);
                answer_ping(&nop, session.next_cmd_sn(), &mut self.outgoing)
            }
            Bhs::TaskManagementResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                let reset =
                    self.task_management.handle_response(now, session, self.cid, &response, &mut self.outgoing)?;
                self.events.extend(reset.map(|lun| Event::LogicalUnitReset { lun }));
                Ok(())
            }
            Bhs::TextResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                let targets = self.send_targets.handle_response(session, &response, data, &mut self.outgoing)?;
                self.events.extend(targets.map(Event::Targets));
                Ok(())
            }
            Bhs::LogoutResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                self.handle_logout(&response);
                Ok(())
            }
            Bhs::AsyncMessage(message) => {
                self.handle_numbers(session, Some(message.stat_sn), message.exp_cmd_sn, message.max_cmd_sn);
                self.handle_async(message, data)
            }
            Bhs::Reject(reject) => {
                self.handle_numbers(session, Some(reject.stat_sn), reject.exp_cmd_sn, reject.max_cmd_sn);
                self.handle_reject(session, &reject, data)
            }
            _ => Err(ConnectionError::Protocol("a PDU that no target sends")),
        }
    }

    /// The answer to the removal of a lost connection, or to the logout of this one.
    fn handle_logout(&mut self, response: &LogoutResponse) {
        if self.removals.handle_response(response) {
            return;
        }
        if matches!(self.phase, Phase::LoggingOut(tag) if tag == response.initiator_task_tag) {
            self.phase = Phase::Closed;
            self.events.push_back(Event::LoggedOut(response.outcome));
        }
    }

    fn handle_login_step(&mut self, session: &mut Session, step: LoginStep) {
        match step {
            LoginStep::Send(request, text) => self.outgoing.push(&request, text.into()),
            LoginStep::Done(logged_in) => {
                session.establish(&logged_in);
                self.outgoing.exp_stat_sn = logged_in.exp_stat_sn;
                self.outgoing.segment_bytes = logged_in.negotiated.target_max_recv_data_segment_length as usize;
                let is_crc = |digest: Digest| digest == Digest::Crc32c;
                let negotiated: &Negotiated = &logged_in.negotiated;
                let digests =
                    Digests { header: is_crc(negotiated.header_digest), data: is_crc(negotiated.data_digest) };
                self.receiver.set_parameters(digests, self.offered_segment_bytes);
                self.outgoing.queue.set_digests(digests);
                self.phase = Phase::FullFeature;
                self.events.push_back(Event::LoggedIn(logged_in));
            }
        }
    }

    /// ExpCmdSN and MaxCmdSN go with every PDU, StatSN with those that have a status (RFC 7143 4.2.2.2).
    fn handle_numbers(&mut self, session: &mut Session, stat_sn: Option<Serial32>, exp: Serial32, max: Serial32) {
        session.update_window(exp, max);
        if let Some(stat_sn) = stat_sn {
            self.outgoing.note_stat_sn(stat_sn);
        }
    }

    /// Notes that Data-In is in its place: gives the buffer back to its task, which may end with
    /// it.
    fn handle_data_in(
        &mut self,
        session: &mut Session,
        header: &DataIn,
        pdu: ReceivedPdu,
    ) -> Result<(), ConnectionError> {
        let stat_sn = header.status.map(|status| status.stat_sn);
        self.handle_numbers(session, stat_sn, header.exp_cmd_sn, header.max_cmd_sn);
        if pdu.data.is_corrupt {
            return Err(ConnectionError::DataDigest);
        }
        let tag = header.initiator_task_tag;
        if let Some(task) = session.task_on(self.cid, tag)
            && pdu.data.length > 0
            && let TaskData::Read(buffer, ..) = &mut task.data
        {
            *buffer = Some(pdu.data.buffer);
            task.data_in_count += 1;
            // `place` found it inside of what was asked for.
            let start = header.buffer_offset as usize;
            if !task.received.add(start..start + pdu.data.length) {
                return Err(ConnectionError::Protocol("Data-In that came before"));
            }
        }
        self.acknowledge_data(session, header)?;
        if let Some(status) = header.status
            && session.task_on(self.cid, tag).is_some()
        {
            session.complete_with_status(tag, status.status, Vec::new(), status.residual);
        }
        Ok(())
    }

    /// The target asks for an acknowledgement, after which it drops the data (RFC 7143 11.7.2,
    /// 11.16).
    fn acknowledge_data(&mut self, session: &Session, header: &DataIn) -> Result<(), ConnectionError> {
        let Some(target_transfer_tag) = header.target_transfer_tag.filter(|_| header.wants_acknowledgement) else {
            return Ok(());
        };
        if session.negotiated().error_recovery_level >= CONNECTION_RECOVERY_LEVEL_MIN {
            let kind = SnackType::DataAck { target_transfer_tag, begin: header.data_sn.next() };
            let request = SnackRequest { kind, lun: header.lun, exp_stat_sn: self.outgoing.exp_stat_sn };
            self.outgoing.note_reply()?;
            self.outgoing.push(&request, DataSegment::Empty);
        }
        Ok(())
    }

    /// Adds an event for the driver about an unsolicited PDU.
    fn push_event(&mut self, event: Event) -> Result<(), ConnectionError> {
        if self.events.len() >= EVENTS_WAITING_MAX {
            return Err(ConnectionError::Protocol("more asynchronous messages than anybody can take"));
        }
        self.events.push_back(event);
        Ok(())
    }

    fn handle_async(&mut self, message: AsyncMessage, data: &[u8]) -> Result<(), ConnectionError> {
        match message.event {
            AsyncEvent::ScsiAsyncEvent => {
                self.push_event(Event::ScsiEvent { lun: message.lun, sense: sense_data(data) })?;
            }
            AsyncEvent::LogoutRequest { logout_within_seconds } => {
                self.push_event(Event::LogoutRequested { within_seconds: logout_within_seconds })?;
            }
            AsyncEvent::ConnectionDrop { cid, wait_seconds, .. } if cid == self.cid => {
                return Err(ConnectionError::Dropped { wait_seconds });
            }
            AsyncEvent::SessionDrop { wait_seconds, .. } => return Err(ConnectionError::Dropped { wait_seconds }),
            AsyncEvent::Vendor { .. } => {
                let data = data[..data.len().min(EVENT_BYTES_MAX)].to_vec();
                self.push_event(Event::VendorEvent { message, data })?;
            }
            AsyncEvent::ConnectionDrop { cid, .. } if self.dropped.contains(&cid) => {}
            AsyncEvent::ConnectionDrop { .. } if self.dropped.len() >= DROPPED_CONNECTIONS_MAX => {
                return Err(ConnectionError::Protocol("more connections are dropped than a session has"));
            }
            AsyncEvent::ConnectionDrop { cid, .. } => self.dropped.push(cid),
            // An offer to renegotiate, and FastAbort, which this end never negotiates.
            AsyncEvent::NegotiationRequest { .. } | AsyncEvent::TaskTermination => {}
        }
        Ok(())
    }

    /// The data segment holds the header that was refused (RFC 7143 11.17).
    fn handle_reject(&mut self, session: &mut Session, reject: &Reject, data: &[u8]) -> Result<(), ConnectionError> {
        let refused = data.first_chunk().and_then(|raw: &RawBhs| Bhs::parse(raw).ok());
        match refused {
            Some(Bhs::ScsiCommand(command)) => {
                let outcome = Outcome::Failed(format!("the target rejected the command: {}", reject.reason));
                session.complete(command.initiator_task_tag, outcome);
                Ok(())
            }
            // An answer to a NOP-In that came too late, or one ping too many: the silence itself is
            // monitored.
            Some(Bhs::NopOut(_)) => Ok(()),
            // The answer becomes overdue, and the next step is taken.
            Some(Bhs::TaskManagementRequest(_)) => Ok(()),
            _ => Err(ConnectionError::Rejected(reject.reason)),
        }
    }
}

/// The destination of a data segment: the task's buffer for Data-In, a new one for all others.
fn place(header: &ReceivedHeader, session: &mut Session, cid: u16) -> Result<Destination, ConnectionError> {
    let Ok(Bhs::DataIn(data_in)) = &header.bhs else {
        return Ok(Destination::Buffer { buffer: Buffer::zeroed(header.data_segment_bytes), offset: 0 });
    };
    let Some(task) = session.task_on(cid, data_in.initiator_task_tag) else { return Ok(Destination::Discard) };
    let TaskData::Read(buffer, range, _) = &mut task.data else {
        return Err(ConnectionError::Protocol("Data-In for a command that reads nothing"));
    };
    let offset = data_in.buffer_offset as usize;
    if offset.checked_add(header.data_segment_bytes).is_none_or(|end| end > range.len()) {
        return Err(ConnectionError::Protocol("Data-In past the end of what was asked for"));
    }
    let buffer = buffer.take().ok_or(ConnectionError::Protocol("two Data-In PDUs of one task at once"))?;
    Ok(Destination::Buffer { buffer, offset: range.start + offset })
}

fn handle_response(session: &mut Session, response: &ScsiResponse, data: &[u8]) {
    let tag = response.initiator_task_tag;
    match response.response {
        ServiceResponse::CommandCompleted { status } => {
            session.complete_with_status(tag, status, sense_data(data), response.residual);
        }
        ServiceResponse::TargetFailure => session.complete(tag, Outcome::Failed("the target failed".to_owned())),
        ServiceResponse::Vendor(code) => {
            session.complete(tag, Outcome::Failed(format!("the target failed with the vendor's response {code:02x}h")));
        }
    }
}

/// The sense data of a data segment that begins with its length (RFC 7143 11.4.7.1), as far as it is kept.
fn sense_data(data: &[u8]) -> Vec<u8> {
    let Some((length, rest)) = data.split_first_chunk() else { return Vec::new() };
    let length = usize::from(u16::from_be_bytes(*length)).min(SENSE_BYTES_MAX);
    rest.get(..length).unwrap_or(rest).to_vec()
}
