//! One connection from its first byte to the end of its login; [`Session`](super::Session) goes on with it.
//!
//! The driver's loop:
//!
//! ```text
//! read into receive_space() ─► handle_received()  ─┐
//!                                                  ├─► poll_event() until None
//! poll_timeout() is due ─► handle_timeout()       ─┘   write io_slices(), handle_transmitted()
//! ```
//!
//! [`LoginEvent::SessionRequested`] is the end of a successful login: the driver decides whether it
//! becomes a new session, joins one, or is refused. Until then nothing more is read.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use super::event::{CloseReason, LinkId, LoginEvent, SessionRequest};
use super::kept_responses::KeptResponses;
use super::link::Link;
use super::login::{Login, LoginAnswer, Refusal};
use super::pace::Pace;
use super::parameters::{DataOutOf, TargetParameters};
use crate::chap::Challenge;
use crate::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use crate::negotiation::Digest;
use crate::pdu::{AdditionalHeaders, Bhs, LoginRequest, LoginResponse, LoginStage, LoginStatus};

/// MaxRecvDataSegmentLength during login (RFC 7143 6.3).
const LOGIN_SEGMENT_BYTES: u32 = 8192;

/// A connection from its first byte to the end of its login.
pub struct Connection {
    parameters: Arc<TargetParameters>,
    local_address: Option<SocketAddr>,
    receiver: Receiver,
    transmit: TransmitQueue,
    phase: Phase,
    stat_sn: Serial32,
    events: VecDeque<LoginEvent>,
    login_deadline: Instant,
    /// The deadline of the next complete Login Request.
    idle_deadline: Instant,
    now: Instant,
    received_pdus: u64,
    /// The data-out lengths of the session, where the driver has better ones than the target's
    /// description.
    data_out_of: Option<DataOutOf>,
}

/// The phase of the login.
enum Phase {
    Login(Box<Login>),
    /// The final Login Response waits for the driver's decision.
    Deciding(Box<Decision>),
    /// Nothing more is received.
    Closed,
}

struct Decision {
    login: Box<Login>,
    request: LoginRequest,
    answer: LoginAnswer,
    session: SessionRequest,
}

/// The parts of a login that succeeded.
pub(super) struct LoggedIn {
    pub(super) parameters: Arc<TargetParameters>,
    pub(super) session: SessionRequest,
    pub(super) first_cmd_sn: Serial32,
    pub(super) data_out_of: Option<DataOutOf>,
    pub(super) link: Link,
}

impl Connection {
    /// A connection that was just accepted. `challenge` is fresh randomness for this connection
    /// only; `local_address` is the address that the initiator reached, if it is an IP address.
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
            login_deadline: now + parameters.login_timeout,
            idle_deadline: now + parameters.login_idle_timeout,
            now,
            received_pdus: 0,
            data_out_of: None,
            parameters,
        }
    }

    /// The space for the next bytes. Empty when none can be taken now.
    pub fn receive_space(&mut self) -> &mut [u8] {
        match self.phase {
            Phase::Deciding(_) | Phase::Closed => &mut [],
            Phase::Login(_) => self.receiver.receive_space(),
        }
    }

    /// `length` bytes were read into the space last given.
    pub fn handle_received(&mut self, now: Instant, length: usize) {
        self.now = now;
        self.receiver.handle_received(length);
        while matches!(self.phase, Phase::Login(_)) {
            match self.receiver.poll() {
                Ok(Progress::NeedBytes) => break,
                Ok(Progress::NeedPlace) => {
                    let bytes = self.receiver.pending_header().map_or(0, |header| header.data_segment_bytes);
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(bytes), offset: 0 });
                }
                Ok(Progress::Pdu(pdu)) => {
                    self.received_pdus += 1;
                    self.idle_deadline = now + self.parameters.login_idle_timeout;
                    self.handle_login_pdu(&pdu);
                }
                Err(error) => self.close(error.into()),
            }
        }
    }

    /// The next bytes to write: fills `out` and returns how many slices that took.
    pub fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.transmit.io_slices(out)
    }

    /// `length` bytes were written.
    pub fn handle_transmitted(&mut self, now: Instant, length: usize) {
        self.now = now;
        self.transmit.handle_transmitted(length);
    }

    /// Bytes that wait to be written.
    pub fn transmit_bytes(&self) -> usize {
        self.transmit.bytes()
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<LoginEvent> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.is_closed()).then_some(self.deadline())
    }

    /// Handles due timeouts.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if !self.is_closed() && now >= self.deadline() {
            self.close(CloseReason::LoginTimeout);
        }
    }

    /// Sets the data-out lengths for the session that this login begins, where its LUNs are not
    /// those of the target's description.
    pub fn set_data_out_of(&mut self, data_out_of: DataOutOf) {
        self.data_out_of = Some(data_out_of);
    }

    /// The next deadline. The initiator's silence counts only while it is its turn.
    fn deadline(&self) -> Instant {
        match self.phase {
            Phase::Login(_) => self.login_deadline.min(self.idle_deadline),
            Phase::Deciding(_) | Phase::Closed => self.login_deadline,
        }
    }

    /// The request that waits for the driver's decision.
    pub fn request(&self) -> Option<&SessionRequest> {
        match &self.phase {
            Phase::Deciding(decision) => Some(&decision.session),
            Phase::Login(_) | Phase::Closed => None,
        }
    }

    /// Takes the connection apart for its session, with its final Login Response queued. `None`
    /// when no decision is due. `numbers` are the session's ExpCmdSN and MaxCmdSN, if it has any
    /// yet.
    pub(super) fn into_logged_in(
        mut self,
        id: LinkId,
        tsih: u16,
        numbers: Option<(Serial32, Serial32)>,
    ) -> Option<LoggedIn> {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        let Phase::Deciding(decision) = phase else { return None };
        let Decision { login, request, answer, mut session } = *decision;
        session.tsih = tsih;
        let negotiated = session.negotiated;
        self.push_login_response(&request, &answer, tsih, LoginStatus::SUCCESS, numbers);
        let digests = Digests {
            header: negotiated.header_digest == Digest::Crc32c,
            data: negotiated.data_digest == Digest::Crc32c,
        };
        self.transmit.set_digests(digests);
        self.receiver.set_parameters(digests, negotiated.target_max_recv_data_segment_length);
        Some(LoggedIn {
            data_out_of: self.data_out_of.or_else(|| login.target().map(|target| Arc::clone(&target.data_out_of))),
            link: Link {
                id,
                cid: session.cid,
                local_address: self.local_address,
                receiver: self.receiver,
                arrived: None,
                transmit: self.transmit,
                stat_sn: self.stat_sn,
                exp_stat_sn: self.stat_sn,
                sent: KeptResponses::default(),
                negotiator: login.into_negotiator(),
                segment_bytes_max: negotiated.initiator_max_recv_data_segment_length as usize,
                text: None,
                last_moved: self.now,
                data_moved: (self.now, 0),
                ping: None,
                is_closed: false,
                received_pdus: self.received_pdus,
                digest_errors: 0,
                is_behind: false,
                pace: Pace::default(),
                response_half: None,
            },
            parameters: self.parameters,
            first_cmd_sn: request.cmd_sn,
            session,
        })
    }

    /// Ends the login with this status.
    pub fn refuse_session(&mut self, now: Instant, status: LoginStatus, detail: &str) {
        self.now = now;
        if let Phase::Deciding(decision) = std::mem::replace(&mut self.phase, Phase::Closed) {
            self.refuse(&decision.request, Refusal::new(status, detail));
        }
    }

    /// Ends the connection from this side.
    pub fn close(&mut self, reason: CloseReason) {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            self.events.push_back(LoginEvent::Closed(reason));
        }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// PDUs received and queued so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        (self.received_pdus, self.transmit.pdu_count())
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
                None => self.push_login_response(&request, &answer, request.tsih, LoginStatus::SUCCESS, None),
                Some(session) => self.decide(request, answer, *session),
            },
        }
    }

    fn decide(&mut self, request: LoginRequest, answer: LoginAnswer, session: SessionRequest) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        if let Phase::Login(login) = phase {
            self.events.push_back(LoginEvent::SessionRequested(session.clone()));
            self.phase = Phase::Deciding(Box::new(Decision { login, request, answer, session }));
        }
    }

    fn refuse(&mut self, request: &LoginRequest, refusal: Refusal) {
        self.push_login_response(request, &LoginAnswer::default(), request.tsih, refusal.status, None);
        self.phase = Phase::Closed;
        let Refusal { status, detail } = refusal;
        self.events.push_back(LoginEvent::Closed(CloseReason::LoginRefused { status, detail }));
    }

    fn push_login_response(
        &mut self,
        request: &LoginRequest,
        answer: &LoginAnswer,
        tsih: u16,
        status: LoginStatus,
        numbers: Option<(Serial32, Serial32)>,
    ) {
        let is_success = status.is_success();
        let window = self.parameters.command_window.max(1);
        let (exp_cmd_sn, max_cmd_sn) = numbers.unwrap_or((request.cmd_sn, request.cmd_sn.plus(window - 1)));
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        let response = LoginResponse {
            is_continued: answer.is_continued,
            current_stage: if is_success { request.current_stage } else { LoginStage::SecurityNegotiation },
            transit_to: answer.transit_to.filter(|_| is_success),
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            status,
        };
        let data = DataSegment::from(answer.text.clone());
        self.transmit.push(&response, &AdditionalHeaders::default(), data);
    }
}
