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

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use super::command::Outcome;
use super::discovery::DiscoveredTarget;
use super::login::{LoggedIn, Login, LoginConfig, LoginStep};
use super::pending_function::PendingFunction;
use super::removed::{CONNECTION_RECOVERY_LEVEL_MIN, Removed};
use super::session::{Session, TaskData};
use crate::framing::{
    DataSegment, Destination, Digests, PduSizes, Progress, ReceivedHeader, ReceivedPdu, Receiver, TransmitQueue,
};
use crate::limits::{
    DROPPED_CONNECTIONS_MAX, EVENT_BYTES_MAX, EVENTS_WAITING_MAX, REPLIES_WAITING_MAX, TRANSMIT_BYTES_HIGH,
};
use crate::negotiation::{Digest, Negotiated, SessionType};
use crate::pdu::{
    AdditionalHeaders, AsyncEvent, AsyncMessage, Bhs, DataIn, DataOut, InitiatorTaskTag, LogoutOutcome, LogoutReason,
    LogoutRequest, RawBhs, ReadyToTransfer, Reject, ScsiCommand, ScsiResponse, ServiceResponse, SnackRequest,
    SnackType, TargetTransferTag,
};
use crate::text::TextAssembler;

pub use self::error::ConnectionError;

/// MaxRecvDataSegmentLength in force during login (RFC 7143 6.3).
const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// Tags with this half are not tasks: no task's generation is FFFFh.
const CONTROL_TAG: u32 = 0xffff_0000;

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the first login request to the full feature phase.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged. Zero never pings.
    pub keepalive_interval: Duration,
    /// Silence after a ping that means the target is gone.
    pub keepalive_timeout: Duration,
    /// For a task management function.
    pub task_management_timeout: Duration,
}

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
        /// Sense data, at most [`EVENT_BYTES_MAX`] bytes of it.
        sense: Vec<u8>,
    },
    /// A vendor's event.
    VendorEvent {
        /// The message.
        message: AsyncMessage,
        /// Its data segment, at most [`EVENT_BYTES_MAX`] bytes of it.
        data: Vec<u8>,
    },
    /// A logical unit was reset because a command did not end; all its commands ended as Aborted.
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

/// A ping under way.
struct Ping {
    tag: InitiatorTaskTag,
    deadline: Instant,
}

/// A SendTargets under way.
struct TextExchange {
    tag: InitiatorTaskTag,
    received: TextAssembler,
    text: Vec<u8>,
    response_count: usize,
}

/// One connection.
pub struct Connection {
    pub(super) receiver: Receiver,
    pub(super) transmit: TransmitQueue,
    pub(super) exp_stat_sn: Serial32,
    pub(super) timing: Timing,
    pub(super) functions: Vec<PendingFunction>,
    pub(super) events: VecDeque<Event>,
    phase: Phase,
    cid: u16,
    /// Our offered segment limit, which is in force once the login is done.
    offered_segment_bytes: u32,
    /// Bytes of one data segment the target receives here.
    segment_bytes: usize,
    /// Receives on a pair's request half, where only what was under way when the pair was made may
    /// come.
    request_half: Option<Box<Receiver>>,
    login_deadline: Instant,
    last_received: Instant,
    ping: Option<Ping>,
    exchange: Option<TextExchange>,
    /// Replies that are not fully written, oldest first: the count of PDUs queued before each.
    replies: VecDeque<u64>,
    control_tag: u16,
    received_pdu_count: u64,
    /// Unanswered logouts of lost connections, with their CIDs.
    pub(super) removing: Vec<(InitiatorTaskTag, u16)>,
    pub(super) removed: Vec<Removed>,
    /// CIDs of other connections that the target says it has dropped.
    dropped: Vec<u16>,
}

impl Connection {
    /// A connection that is open and logs in: its first request waits to be written.
    pub fn new(now: Instant, session: &Session, config: LoginConfig, timing: Timing) -> Self {
        let mut transmit = TransmitQueue::new(Digests::default());
        let (cid, offered_segment_bytes) = (config.cid, config.offer.max_recv_data_segment_length);
        let mut login = Box::new(Login::new(config, session.next_cmd_sn()));
        let (request, text) = login.start();
        transmit.push(&request, &AdditionalHeaders::default(), text.into());
        Self {
            receiver: Receiver::new(LOGIN_SEGMENT_BYTES),
            transmit,
            exp_stat_sn: Serial32(0),
            timing,
            functions: Vec::new(),
            events: VecDeque::new(),
            phase: Phase::LoggingIn(login),
            cid,
            offered_segment_bytes,
            segment_bytes: LOGIN_SEGMENT_BYTES as usize,
            request_half: None,
            login_deadline: now + timing.login_timeout,
            last_received: now,
            ping: None,
            exchange: None,
            replies: VecDeque::new(),
            control_tag: 0,
            received_pdu_count: 0,
            removing: Vec::new(),
            removed: Vec::new(),
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
        self.last_received = now;
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
            && self.transmit.bytes() < TRANSMIT_BYTES_HIGH
    }

    /// Moves the next command that may be sent into the transmit queue. Returns whether there was
    /// one.
    pub fn send_next(&mut self, session: &mut Session) -> bool {
        let Some(tag) = session.next_to_send(self.cid) else { return false };
        self.send_command(session, tag);
        true
    }

    /// Makes a pair: `half`, which has just logged in for it, receives from now on.
    pub fn take_response_half(&mut self, half: Self) {
        let own = std::mem::replace(&mut self.receiver, half.receiver);
        self.request_half = Some(Box::new(own));
        self.exp_stat_sn = half.exp_stat_sn;
        self.last_received = self.last_received.max(half.last_received);
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
                        self.answer_ping(session, &nop)?;
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
        self.transmit.io_slices(out)
    }

    /// Whether nothing is to be written.
    pub fn is_transmit_empty(&self) -> bool {
        self.transmit.is_empty()
    }

    /// `length` bytes were written.
    pub fn handle_transmitted(&mut self, session: &mut Session, length: usize) {
        self.transmit.handle_transmitted(length);
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
                let keepalive = self.keepalive_deadline();
                [keepalive, self.function_deadline(), session.earliest_deadline()].into_iter().flatten().min()
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
                self.keep_alive(now, session)?;
                self.escalate(now, session)
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
        let tag = self.next_control_tag();
        let request = LogoutRequest {
            is_immediate: true,
            reason,
            initiator_task_tag: tag,
            cid: self.cid,
            cmd_sn: session.next_cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
        };
        self.transmit.push(&request, &AdditionalHeaders::default(), DataSegment::Empty);
        self.phase = Phase::LoggingOut(tag);
    }

    /// Counts the sizes of PDUs in `sizes`.
    pub fn count_sizes(&mut self, sizes: &Arc<PduSizes>) {
        self.transmit.count_sizes(Arc::clone(sizes));
        self.receiver.count_sizes(Arc::clone(sizes));
    }

    /// PDUs sent and received so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        (self.transmit.pdu_count(), self.received_pdu_count)
    }

    pub(super) fn next_control_tag(&mut self) -> InitiatorTaskTag {
        self.control_tag = if self.control_tag >= u16::MAX - 1 { 0 } else { self.control_tag + 1 };
        InitiatorTaskTag::new(CONTROL_TAG | u32::from(self.control_tag)).expect("FFFFh is left out")
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
                self.handle_r2t(session, &r2t)
            }
            Bhs::NopIn(nop) => self.handle_nop_in(session, &nop),
            Bhs::TaskManagementResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                self.handle_function_response(now, session, &response)
            }
            Bhs::TextResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                self.handle_text(session, &response, data)
            }
            Bhs::LogoutResponse(response) => {
                self.handle_numbers(session, Some(response.stat_sn), response.exp_cmd_sn, response.max_cmd_sn);
                if self.handle_removed(&response) {
                    return Ok(());
                }
                if matches!(self.phase, Phase::LoggingOut(tag) if tag == response.initiator_task_tag) {
                    self.phase = Phase::Closed;
                    self.events.push_back(Event::LoggedOut(response.outcome));
                }
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

    fn handle_login_step(&mut self, session: &mut Session, step: LoginStep) {
        match step {
            LoginStep::Send(request, text) => self.transmit.push(&request, &AdditionalHeaders::default(), text.into()),
            LoginStep::Done(logged_in) => {
                session.establish(&logged_in);
                self.exp_stat_sn = logged_in.exp_stat_sn;
                self.segment_bytes = logged_in.negotiated.target_max_recv_data_segment_length as usize;
                let is_crc = |digest: Digest| digest == Digest::Crc32c;
                let negotiated: &Negotiated = &logged_in.negotiated;
                let digests =
                    Digests { header: is_crc(negotiated.header_digest), data: is_crc(negotiated.data_digest) };
                self.receiver.set_parameters(digests, self.offered_segment_bytes);
                self.transmit.set_digests(digests);
                self.phase = Phase::FullFeature;
                self.events.push_back(Event::LoggedIn(logged_in));
            }
        }
    }

    /// ExpCmdSN and MaxCmdSN go with every PDU, StatSN with those that have a status (RFC 7143 4.2.2.2).
    fn handle_numbers(&mut self, session: &mut Session, stat_sn: Option<Serial32>, exp: Serial32, max: Serial32) {
        session.update_window(exp, max);
        if let Some(stat_sn) = stat_sn
            && !stat_sn.is_before(self.exp_stat_sn)
        {
            self.exp_stat_sn = stat_sn.next();
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
            let request = SnackRequest { kind, lun: header.lun, exp_stat_sn: self.exp_stat_sn };
            self.note_reply()?;
            self.transmit.push(&request, &AdditionalHeaders::default(), DataSegment::Empty);
        }
        Ok(())
    }

    /// Makes room for a reply: written ones are removed. An error when too many wait.
    fn note_reply(&mut self) -> Result<(), ConnectionError> {
        let queued = self.transmit.pdu_count();
        let written = queued - self.transmit.pdus_waiting() as u64;
        while self.replies.front().is_some_and(|&before| before < written) {
            self.replies.pop_front();
        }
        if self.replies.len() >= REPLIES_WAITING_MAX {
            return Err(ConnectionError::Protocol("the target asks for more answers than it reads"));
        }
        self.replies.push_back(queued);
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

    fn handle_r2t(&mut self, session: &mut Session, r2t: &ReadyToTransfer) -> Result<(), ConnectionError> {
        let burst_bytes_max = session.negotiated().max_burst_length;
        // All data of all commands here may wait at once, each with its headers, and no more: a
        // byte beyond that was requested twice, and sent before.
        let waiting_bytes_max = TRANSMIT_BYTES_HIGH + 2 * session.load(self.cid).bytes;
        let Some(task) = session.task_on(self.cid, r2t.initiator_task_tag) else { return Ok(()) };
        if task.outcome.is_some() {
            return Ok(());
        }
        let TaskData::Write(buffer, range) = &task.data else {
            return Err(ConnectionError::Protocol("an R2T for a command that writes nothing"));
        };
        let (offset, length) = (r2t.buffer_offset as usize, r2t.desired_data_transfer_length as usize);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.len());
        if !is_inside || r2t.desired_data_transfer_length > burst_bytes_max {
            return Err(ConnectionError::Protocol("an R2T for more than there is"));
        }
        if self.transmit.bytes() + length > waiting_bytes_max {
            return Err(ConnectionError::Protocol("an R2T for what waits to be sent already"));
        }
        let burst = Burst {
            lun: task.lun,
            tag: r2t.initiator_task_tag,
            target_transfer_tag: Some(r2t.target_transfer_tag),
            buffer: Arc::clone(buffer),
            base: range.start,
            range: offset..offset + length,
        };
        self.send_burst(&burst);
        Ok(())
    }

    fn handle_async(&mut self, message: AsyncMessage, data: &[u8]) -> Result<(), ConnectionError> {
        match message.event {
            AsyncEvent::ScsiAsyncEvent => {
                let sense = event_data(sense_data(data));
                self.push_event(Event::ScsiEvent { lun: message.lun, sense })?;
            }
            AsyncEvent::LogoutRequest { logout_within_seconds } => {
                self.push_event(Event::LogoutRequested { within_seconds: logout_within_seconds })?;
            }
            AsyncEvent::ConnectionDrop { cid, wait_seconds, .. } if cid == self.cid => {
                return Err(ConnectionError::Dropped { wait_seconds });
            }
            AsyncEvent::SessionDrop { wait_seconds, .. } => return Err(ConnectionError::Dropped { wait_seconds }),
            AsyncEvent::Vendor { .. } => {
                self.push_event(Event::VendorEvent { message, data: event_data(data) })?;
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

    /// Sends a command with the unsolicited data that is allowed (RFC 7143 13.10, 13.11, 13.14).
    pub(super) fn send_command(&mut self, session: &mut Session, tag: InitiatorTaskTag) {
        let negotiated = *session.negotiated();
        let task = session.task(tag).expect("the task is there: it was made just now, or is to be sent again");
        let (reads, writes) = match &task.data {
            TaskData::None => (false, false),
            TaskData::Read(..) => (true, false),
            TaskData::Write(..) => (false, true),
        };
        let length = task.data.length();
        let first_burst = if writes { length.min(negotiated.first_burst_length as usize) } else { 0 };
        let segment_bytes = self.segment_bytes;
        let immediate = if negotiated.immediate_data { first_burst.min(segment_bytes) } else { 0 };
        let unsolicited = if negotiated.initial_r2t { 0 } else { first_burst - immediate };
        let header = ScsiCommand {
            is_immediate: task.is_immediate,
            is_final: unsolicited == 0,
            reads,
            writes,
            attribute: task.attribute,
            lun: task.lun,
            initiator_task_tag: tag,
            expected_data_transfer_length: u32::try_from(length).expect("a buffer is below 4 GiB"),
            cmd_sn: task.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: task.cdb,
        };
        let TaskData::Write(buffer, range) = &task.data else {
            self.transmit.push(&header, &AdditionalHeaders::default(), DataSegment::Empty);
            return;
        };
        let data = match immediate {
            0 => DataSegment::Empty,
            immediate => DataSegment::Shared(Arc::clone(buffer), range.start..range.start + immediate),
        };
        self.transmit.push(&header, &AdditionalHeaders::default(), data);
        if unsolicited > 0 {
            let burst = Burst {
                lun: task.lun,
                tag,
                target_transfer_tag: None,
                buffer: Arc::clone(buffer),
                base: range.start,
                range: immediate..immediate + unsolicited,
            };
            self.send_burst(&burst);
        }
    }

    /// Cuts a burst into Data-Out PDUs.
    fn send_burst(&mut self, burst: &Burst) {
        let segment_bytes = self.segment_bytes;
        let starts = burst.range.clone().step_by(segment_bytes);
        for (start, data_sn) in starts.zip(0..) {
            let end = burst.range.end.min(start + segment_bytes);
            let header = DataOut {
                is_final: end == burst.range.end,
                lun: burst.lun,
                initiator_task_tag: burst.tag,
                target_transfer_tag: burst.target_transfer_tag,
                exp_stat_sn: self.exp_stat_sn,
                data_sn: Serial32(data_sn),
                buffer_offset: u32::try_from(start).expect("a buffer is below 4 GiB"),
            };
            let data = DataSegment::Shared(Arc::clone(&burst.buffer), burst.base + start..burst.base + end);
            self.transmit.push(&header, &AdditionalHeaders::default(), data);
        }
    }
}

/// A run of data to be sent.
struct Burst {
    lun: u64,
    tag: InitiatorTaskTag,
    target_transfer_tag: Option<TargetTransferTag>,
    buffer: Arc<Buffer>,
    /// Offset of the command's data in the buffer.
    base: usize,
    /// The range within the command's data.
    range: Range<usize>,
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
            session.complete_with_status(tag, status, sense_data(data).to_vec(), response.residual);
        }
        ServiceResponse::TargetFailure => session.complete(tag, Outcome::Failed("the target failed".to_owned())),
        ServiceResponse::Vendor(code) => {
            session.complete(tag, Outcome::Failed(format!("the target failed with the vendor's response {code:02x}h")));
        }
    }
}

/// The part of an event's data that is kept.
fn event_data(data: &[u8]) -> Vec<u8> {
    data[..data.len().min(EVENT_BYTES_MAX)].to_vec()
}

/// The sense data of a data segment that begins with its length (RFC 7143 11.4.7.1).
fn sense_data(data: &[u8]) -> &[u8] {
    let Some((length, rest)) = data.split_first_chunk() else { return &[] };
    let length = usize::from(u16::from_be_bytes(*length));
    rest.get(..length).unwrap_or(rest)
}
