//! One connection of the target's side: from bytes to events and back.
//!
//! The driver's loop:
//!
//! ```text
//! read into receive_space() ─► handle_received()            ─┐
//! a command or a task management function ended ─► handle_…  ├─► poll_event() until None
//! poll_timeout() is due ─► handle_timeout()                 ─┘   write io_slices(), handle_transmitted()
//! ```
//!
//! This file has the transport's side, the login phase and the timers; `commands.rs` has SCSI commands and their data,
//! `requests.rs` everything else of the full feature phase.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use super::event::{CloseReason, Event, SessionRequest};
use super::login::{Login, LoginAnswer, Refusal};
use super::parameters::{DataOutBytes, TargetParameters};
use super::session::Session;
use crate::chap::Challenge;
use crate::framing::{
    DataSegment, Destination, Digests, Progress, ReceivedHeader, ReceivedPdu, Receiver, TransmitQueue,
};
use crate::limits::{BUFFER_RETRY_INTERVAL, LOGOUT_REQUEST_SECONDS};
use crate::negotiation::{Digest, Negotiated, Negotiator};
use crate::pdu::{
    AdditionalHeaders, AsyncEvent, AsyncMessage, Bhs, Header, LoginRequest, LoginResponse, LoginStage, LoginStatus,
    NopIn, RejectReason, TargetTransferTag,
};

mod commands;
mod requests;

use requests::TextExchange;

/// MaxRecvDataSegmentLength during login (RFC 7143 6.3).
const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// A connection. See the module.
pub struct Connection {
    parameters: Arc<TargetParameters>,
    local_address: Option<SocketAddr>,
    receiver: Receiver,
    transmit: TransmitQueue,
    phase: Phase,
    stat_sn: Serial32,
    events: VecDeque<Event>,
    target_transfer_tag: TargetTransferTag,
    login_deadline: Instant,
    last_moved: Instant,
    /// A ping that was not answered, and until when it must be.
    ping: Option<(TargetTransferTag, Instant)>,
    now: Instant,
    received_pdus: u64,
}

/// Where the connection is in its life.
#[allow(clippy::large_enum_variant)] // One per connection.
enum Phase {
    Login(Box<Login>),
    /// The final Login Response waits for the driver's decision.
    Deciding(Box<Decision>),
    FullFeature(Box<FullFeature>),
    /// Nothing more is received.
    Closed,
}

struct Decision {
    login: Box<Login>,
    request: LoginRequest,
    answer: LoginAnswer,
    session: SessionRequest,
}

/// What the full feature phase of this connection needs.
struct FullFeature {
    session: Session,
    negotiator: Negotiator,
    negotiated: Negotiated,
    data_out_bytes: Option<DataOutBytes>,
    text: Option<TextExchange>,
    /// The initiator was asked to log out; new commands are rejected (RFC 7143 11.9.1).
    is_draining: bool,
}

impl Connection {
    /// A connection that was just accepted. `challenge` is fresh randomness for this connection only; `local_address` is
    /// where the initiator reached us, as far as that is an IP address.
    pub fn new(
        parameters: Arc<TargetParameters>,
        challenge: Challenge,
        local_address: Option<SocketAddr>,
        now: Instant,
    ) -> Self {
        Self {
            local_address,
            receiver: Receiver::new(LOGIN_SEGMENT_BYTES),
            transmit: TransmitQueue::new(Digests::default()),
            phase: Phase::Login(Box::new(Login::new(Arc::clone(&parameters), challenge))),
            stat_sn: Serial32(0),
            events: VecDeque::new(),
            target_transfer_tag: TargetTransferTag::new(0).expect("zero is not reserved"),
            login_deadline: now + parameters.login_timeout,
            last_moved: now,
            ping: None,
            now,
            received_pdus: 0,
            parameters,
        }
    }

    /// Where the next bytes go. Empty when nothing can be taken now.
    pub fn receive_space(&mut self) -> &mut [u8] {
        match self.phase {
            Phase::Deciding(_) | Phase::Closed => &mut [],
            Phase::Login(_) | Phase::FullFeature(_) => self.receiver.receive_space(),
        }
    }

    /// `length` bytes were read into the space last given.
    pub fn handle_received(&mut self, now: Instant, length: usize) {
        self.now = now;
        self.last_moved = now;
        self.receiver.handle_received(length);
        self.drain_receiver();
    }

    /// What is to be written next: fills `out` and returns how many slices that took.
    pub fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.transmit.io_slices(out)
    }

    /// `length` bytes were written. A peer that takes what we send is alive, however long it takes to answer a ping that
    /// waits behind it.
    pub fn handle_transmitted(&mut self, now: Instant, length: usize) {
        self.now = now;
        self.last_moved = now;
        if let Some((_, until)) = &mut self.ping {
            *until = now + self.parameters.ping_timeout;
        }
        self.transmit.handle_transmitted(length);
    }

    /// Bytes that wait to be written.
    pub fn transmit_bytes(&self) -> usize {
        self.transmit.bytes()
    }

    /// What happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Login(_) | Phase::Deciding(_) => Some(self.login_deadline),
            Phase::Closed => None,
            Phase::FullFeature(full) => {
                let ping = self.ping.map_or(self.last_moved + self.parameters.ping_interval, |(_, until)| until);
                let has_starved = !full.session.starved.is_empty();
                Some(if has_starved { ping.min(self.now + BUFFER_RETRY_INTERVAL) } else { ping })
            }
        }
    }

    /// The time may have come for something.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        match &self.phase {
            Phase::Login(_) | Phase::Deciding(_) if now >= self.login_deadline => {
                self.close(CloseReason::LoginTimeout);
            }
            Phase::FullFeature(_) => {
                self.feed_starved();
                self.check_ping();
            }
            Phase::Login(_) | Phase::Deciding(_) | Phase::Closed => {}
        }
    }

    /// The login becomes session `tsih` (not zero).
    pub fn accept_session(&mut self, now: Instant, tsih: u16) {
        self.now = now;
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        let Phase::Deciding(decision) = phase else {
            self.phase = phase;
            return;
        };
        let Decision { login, request, answer, mut session } = *decision;
        session.tsih = tsih;
        let negotiated = session.negotiated;
        let session = Session::new(session, request.cmd_sn, self.parameters.command_window);
        self.push_login_response(&request, &answer, tsih, LoginStatus::SUCCESS);
        let digests = Digests {
            header: negotiated.header_digest == Digest::Crc32c,
            data: negotiated.data_digest == Digest::Crc32c,
        };
        self.transmit.set_digests(digests);
        self.receiver.set_parameters(digests, negotiated.target_max_recv_data_segment_length);
        self.phase = Phase::FullFeature(Box::new(FullFeature {
            session,
            data_out_bytes: login.target().map(|target| Arc::clone(&target.data_out_bytes)),
            negotiator: login.into_negotiator(),
            negotiated,
            text: None,
            is_draining: false,
        }));
        // The initiator may have sent commands behind its last Login Request.
        self.drain_receiver();
    }

    /// The login ends here.
    pub fn refuse_session(&mut self, now: Instant, status: LoginStatus, detail: &str) {
        self.now = now;
        if let Phase::Deciding(decision) = std::mem::replace(&mut self.phase, Phase::Closed) {
            self.refuse(&decision.request, Refusal::new(status, detail));
        }
    }

    /// Asks the initiator to log out, and takes no new commands from now on. The driver closes when
    /// [`Event::Closed`] comes or its patience ends.
    pub fn request_logout(&mut self, now: Instant) {
        self.now = now;
        let Phase::FullFeature(full) = &mut self.phase else {
            self.close(CloseReason::Local);
            return;
        };
        if std::mem::replace(&mut full.is_draining, true) {
            return;
        }
        let message = AsyncMessage {
            event: AsyncEvent::LogoutRequest { logout_within_seconds: LOGOUT_REQUEST_SECONDS },
            lun: 0,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn: full.session.window.exp_cmd_sn(),
            max_cmd_sn: full.session.window.max_cmd_sn(),
        };
        self.transmit.push(&message, &AdditionalHeaders::default(), DataSegment::Empty);
    }

    /// Ends the connection from this side.
    pub fn close(&mut self, reason: CloseReason) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Closed;
            self.events.push_back(Event::Closed(reason));
        }
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// The session of the full feature phase, with its TSIH.
    pub fn session(&self) -> Option<&SessionRequest> {
        match &self.phase {
            Phase::FullFeature(full) => Some(&full.session.request),
            _ => None,
        }
    }

    /// Tasks that have not ended, with their data still to come, with the driver, or held.
    pub fn task_count(&self) -> usize {
        match &self.phase {
            Phase::FullFeature(full) => full.session.tasks.len(),
            _ => 0,
        }
    }

    /// PDUs received and queued so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        (self.received_pdus, self.transmit.pdu_count())
    }

    fn drain_receiver(&mut self) {
        while matches!(self.phase, Phase::Login(_) | Phase::FullFeature(_)) {
            match self.receiver.poll() {
                Ok(Progress::NeedBytes) => break,
                Ok(Progress::NeedPlace) => self.place_data(),
                Ok(Progress::Pdu(pdu)) => {
                    self.received_pdus += 1;
                    self.handle_pdu(pdu);
                }
                Err(error) => self.close(error.into()),
            }
        }
    }

    fn place_data(&mut self) {
        let Some(header) = self.receiver.pending_header() else { return };
        let destination = match (&mut self.phase, &header.bhs) {
            (Phase::FullFeature(full), Ok(Bhs::ScsiCommand(command))) => {
                commands::place_immediate_data(full, &self.parameters.pool, command, header)
            }
            (Phase::FullFeature(full), Ok(Bhs::DataOut(data))) => {
                commands::place_data_out(full, data, header.data_segment_bytes)
            }
            _ => Destination::Buffer { buffer: Buffer::zeroed(header.data_segment_bytes), offset: 0 },
        };
        self.receiver.place(destination);
    }

    fn handle_pdu(&mut self, pdu: ReceivedPdu) {
        match &self.phase {
            Phase::Login(_) => self.handle_login_pdu(&pdu),
            Phase::FullFeature(_) => self.handle_full_feature_pdu(pdu),
            Phase::Deciding(_) | Phase::Closed => {}
        }
    }

    fn handle_login_pdu(&mut self, pdu: &ReceivedPdu) {
        let request = match pdu.header.bhs {
            Ok(Bhs::LoginRequest(request)) => request,
            Ok(_) => {
                self.close(CloseReason::Protocol("something else than a Login Request during login"));
                return;
            }
            Err(_) => {
                self.close(CloseReason::Protocol("a malformed header during login"));
                return;
            }
        };
        let Phase::Login(login) = &mut self.phase else { return };
        match login.handle(&request, pdu.data.bytes()) {
            Err(refusal) => self.refuse(&request, refusal),
            Ok(mut answer) => match answer.session.take() {
                None => self.push_login_response(&request, &answer, request.tsih, LoginStatus::SUCCESS),
                Some(session) => self.decide(request, answer, *session),
            },
        }
    }

    fn decide(&mut self, request: LoginRequest, answer: LoginAnswer, session: SessionRequest) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        if let Phase::Login(login) = phase {
            self.events.push_back(Event::SessionRequested(session.clone()));
            self.phase = Phase::Deciding(Box::new(Decision { login, request, answer, session }));
        }
    }

    fn refuse(&mut self, request: &LoginRequest, refusal: Refusal) {
        self.push_login_response(request, &LoginAnswer::default(), request.tsih, refusal.status);
        self.phase = Phase::Closed;
        let Refusal { status, detail } = refusal;
        self.events.push_back(Event::Closed(CloseReason::LoginRefused { status, detail }));
    }

    fn push_login_response(&mut self, request: &LoginRequest, answer: &LoginAnswer, tsih: u16, status: LoginStatus) {
        let is_success = status.is_success();
        let window = self.parameters.command_window.max(1);
        let response = LoginResponse {
            is_continued: false,
            current_stage: if is_success { request.current_stage } else { LoginStage::SecurityNegotiation },
            transit_to: answer.transit_to.filter(|_| is_success),
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: take_stat_sn(&mut self.stat_sn),
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn.plus(window - 1),
            status,
        };
        self.push(&response, DataSegment::from(answer.text.clone()));
    }

    fn check_ping(&mut self) {
        match self.ping {
            Some((_, until)) if self.now >= until => self.close(CloseReason::PingTimeout),
            None if self.now >= self.last_moved + self.parameters.ping_interval => {
                let tag = self.next_tag();
                self.ping = Some((tag, self.now + self.parameters.ping_timeout));
                let Some((exp_cmd_sn, max_cmd_sn)) = self.command_numbers() else { return };
                let stat_sn = self.stat_sn;
                let ping = NopIn {
                    lun: 0,
                    initiator_task_tag: None,
                    target_transfer_tag: Some(tag),
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                };
                self.push(&ping, DataSegment::Empty);
            }
            Some(_) | None => {}
        }
    }

    fn next_tag(&mut self) -> TargetTransferTag {
        self.target_transfer_tag = self.target_transfer_tag.next();
        self.target_transfer_tag
    }

    /// ExpCmdSN and MaxCmdSN, in the full feature phase.
    fn command_numbers(&self) -> Option<(Serial32, Serial32)> {
        match &self.phase {
            Phase::FullFeature(full) => Some((full.session.window.exp_cmd_sn(), full.session.window.max_cmd_sn())),
            _ => None,
        }
    }

    fn push<H: Header>(&mut self, header: &H, data: DataSegment) {
        self.transmit.push(header, &AdditionalHeaders::default(), data);
    }

    fn reject(&mut self, header: &ReceivedHeader, reason: RejectReason) {
        let Some((exp_cmd_sn, max_cmd_sn)) = self.command_numbers() else { return };
        let stat_sn = take_stat_sn(&mut self.stat_sn);
        let reject = crate::pdu::Reject { reason, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn: Serial32(0) };
        self.push(&reject, DataSegment::from(header.raw.to_vec()));
    }
}

/// The number of the next response; the following one gets the next.
fn take_stat_sn(stat_sn: &mut Serial32) -> Serial32 {
    let taken = *stat_sn;
    *stat_sn = taken.next();
    taken
}
