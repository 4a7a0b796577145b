//! A scripted initiator, and the helpers of its scripts.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::Instant;
use base::serial::Serial32;
use scsi::Cdb;
use scsi::cdb::{Blocks, Transfer};

use super::super::*;
use crate::chap::Challenge;
use crate::framing::{DataSegment, Destination, Digests, FramingError, Progress, ReceivedPdu, Receiver, TransmitQueue};
use crate::limits::CHAP_CHALLENGE_BYTES;
use crate::limits::PACE_INTERVAL;
use crate::negotiation::Digest;
use crate::pdu::*;
use crate::text::Keys;

pub(super) const TARGET: &str = "iqn.2026-01.io.example:disk";
pub(super) const INITIATOR: &str = "iqn.2026-01.io.example:host";
pub(super) const CDB_READ: [u8; 16] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// A write of as many blocks, each of one byte.
pub(super) fn cdb_write(asked: u32) -> [u8; 16] {
    let write = Transfer { blocks: Blocks::sixteen(0, asked), is_dpo: false, is_fua: false };
    Cdb::Write(write).emit_padded()
}

/// The data-out that a CDB asks for, with blocks of one byte.
pub(super) fn asked_data_out(cdb: &Cdb) -> AskedDataOut {
    AskedDataOut { bytes: cdb.class().data_out.bytes(1), ..AskedDataOut::default() }
}

pub(super) fn description() -> TargetDescription {
    TargetDescription {
        name: TARGET.to_owned(),
        alias: Some("a disk".to_owned()),
        portals: ["127.0.0.1:3260", "[::1]:3260"]
            .map(|text| TargetPortal { address: text.parse().unwrap(), group: 1 })
            .to_vec(),
        portal_groups: None,
        access: AccessList::default(),
        own: None,
        data_out_of: Arc::new(|_, cdb| asked_data_out(cdb)),
    }
}

pub(super) fn parameters() -> TargetParameters {
    TargetParameters::new(vec![description()], BufferPool::new(64 << 20))
}

pub(super) fn itt(value: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(value).expect("not the reserved value")
}

/// The target's end: a connection that logs in, then a session with one connection.
pub(super) enum Target {
    Connection(Box<Connection>),
    Session(Box<Session>, LinkId),
    /// Between the two.
    None,
}

macro_rules! either {
    ($self:ident, $connection:ident => $on_connection:expr, $session:ident, $at:ident => $on_session:expr) => {
        match $self {
            Target::Connection($connection) => $on_connection,
            Target::Session($session, $at) => {
                let $at = *$at;
                $on_session
            }
            Target::None => panic!("the target is there"),
        }
    };
}

impl Target {
    pub(super) fn session(&mut self) -> &mut Session {
        match self {
            Target::Session(session, _) => session,
            _ => panic!("no session was begun"),
        }
    }
    pub(super) fn receive_space(&mut self) -> &mut [u8] {
        either!(self, it => it.receive_space(), it, at => it.receive_space(at))
    }
    pub(super) fn handle_received(&mut self, now: Instant, length: usize) {
        either!(self, it => it.handle_received(now, length), it, at => it.handle_received(now, at, length));
    }
    /// Handles the next portion of the received bytes, if there may be one.
    pub(super) fn go_on(&mut self, now: Instant) -> bool {
        let Target::Session(session, at) = self else { return false };
        let is_behind = session.is_behind(*at);
        if is_behind {
            session.go_on(now, *at);
        }
        is_behind
    }
    pub(super) fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        either!(self, it => it.io_slices(out), it, at => it.io_slices(at, usize::MAX, out))
    }
    pub(super) fn handle_transmitted(&mut self, now: Instant, length: usize) {
        either!(self, it => it.handle_transmitted(now, length), it, at => it.handle_transmitted(now, at, length));
    }
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Target::Connection(it) => it.poll_timeout(),
            Target::Session(it, _) => it.poll_timeout(),
            Target::None => None,
        }
    }
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Target::Connection(it) => it.handle_timeout(now),
            Target::Session(it, _) => it.handle_timeout(now),
            Target::None => {}
        }
    }
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Target::Connection(it) => it.is_closed(),
            Target::Session(it, _) => it.is_closed(),
            Target::None => true,
        }
    }
    pub(super) fn task_count(&self) -> usize {
        match self {
            Target::Session(it, _) => it.task_count(),
            _ => 0,
        }
    }
    pub(super) fn request_logout(&mut self, now: Instant, within_seconds: u16) {
        self.session().request_logout(now, within_seconds);
    }
    pub(super) fn handle_task_management(
        &mut self,
        now: Instant,
        id: TaskManagementId,
        outcome: TaskManagementOutcome,
    ) {
        self.session().handle_task_management(now, id, outcome);
    }
    pub(super) fn refuse_session(&mut self, now: Instant, status: LoginStatus, detail: &str) {
        match self {
            Target::Connection(it) => it.refuse_session(now, status, detail),
            _ => panic!("no login is under way"),
        }
    }
    /// Begins a session, as the driver does.
    pub(super) fn accept_session(&mut self, now: Instant, tsih: u16) {
        let Target::Connection(connection) = std::mem::replace(self, Target::None) else {
            panic!("no login is under way")
        };
        let (session, link) = Session::begin(now, *connection, tsih).expect("a decision is due");
        *self = Target::Session(Box::new(session), link);
    }
}

/// A scripted initiator at one end and the target at the other.
pub(super) struct Peer {
    pub(super) login_events: Vec<LoginEvent>,
    pub(super) target: Target,
    pub(super) now: Instant,
    pub(super) transmit: TransmitQueue,
    pub(super) receiver: Receiver,
    pub(super) cmd_sn: Serial32,
    pub(super) events: Vec<Event>,
}

impl Peer {
    pub(super) fn new(parameters: TargetParameters) -> Self {
        let challenge = Challenge { identifier: 7, bytes: [7; CHAP_CHALLENGE_BYTES] };
        let now = Instant::START;
        let local = Some("127.0.0.1:3260".parse().unwrap());
        Self {
            login_events: Vec::new(),
            target: Target::Connection(Box::new(Connection::new(Arc::new(parameters), challenge, local, now))),
            now,
            transmit: TransmitQueue::new(Digests::default()),
            receiver: Receiver::new(1 << 20),
            cmd_sn: Serial32(100),
            events: Vec::new(),
        }
    }

    /// A peer whose normal session is established with these keys.
    pub(super) fn logged_in(parameters: TargetParameters, keys: &[(&str, &str)]) -> Self {
        let mut peer = Self::new(parameters);
        let mut all = vec![("InitiatorName", INITIATOR), ("TargetName", TARGET)];
        all.extend_from_slice(keys);
        peer.log_in(&all);
        peer
    }

    pub(super) fn log_in(&mut self, keys: &[(&str, &str)]) {
        let answers = self.login_step(LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase), keys);
        assert!(answers.is_empty(), "nothing is answered before the driver decides");
        assert!(matches!(self.login_events.pop(), Some(LoginEvent::SessionRequested(_))), "the driver is asked");
        self.target.accept_session(self.now, 9);
        let (response, _) = self.login_response();
        assert_eq!((response.status, response.tsih), (LoginStatus::SUCCESS, 9));
        assert_eq!(response.transit_to, Some(LoginStage::FullFeaturePhase));
        let negotiated = self.target.session().request().negotiated;
        let digests = Digests {
            header: negotiated.header_digest == Digest::Crc32c,
            data: negotiated.data_digest == Digest::Crc32c,
        };
        self.transmit.set_digests(digests);
        self.receiver.set_parameters(digests, 1 << 20);
    }

    /// Sends a login request. Returns the response.
    pub(super) fn login_step(
        &mut self,
        stage: LoginStage,
        next: Option<LoginStage>,
        keys: &[(&str, &str)],
    ) -> Vec<ReceivedPdu> {
        let text: Keys = keys.iter().copied().collect();
        self.login_text(stage, next, false, text.emit())
    }

    /// Sends a login request with any bytes, which may be part of a text. Returns the response.
    pub(super) fn login_text(
        &mut self,
        stage: LoginStage,
        next: Option<LoginStage>,
        is_continued: bool,
        text: Vec<u8>,
    ) -> Vec<ReceivedPdu> {
        let request = LoginRequest {
            is_continued,
            current_stage: stage,
            transit_to: next,
            version_max: 0,
            version_min: 0,
            isid: Isid::random_format(1, 1),
            tsih: 0,
            initiator_task_tag: itt(1),
            cid: 3,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&request, text);
        self.receive()
    }

    pub(super) fn login_response(&mut self) -> (LoginResponse, Keys) {
        let pdu = self.receive_one();
        let Ok(Bhs::LoginResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        (response, Keys::parse(pdu.data.bytes()).expect("it is text"))
    }

    pub(super) fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) {
        self.transmit.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let bytes = drain(&mut self.transmit);
        self.send_bytes(&bytes);
    }

    /// Feeds bytes as the driver would, and collects events.
    pub(super) fn send_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.target.receive_space();
            if space.is_empty() {
                break;
            }
            let length = space.len().min(bytes.len());
            space[..length].copy_from_slice(&bytes[..length]);
            self.target.handle_received(self.now, length);
            bytes = &bytes[length..];
            self.collect_events();
            while self.go_on() {
                self.collect_events();
            }
        }
    }

    /// Lets the target handle the next portion of the received bytes, at its pace.
    pub(super) fn go_on(&mut self) -> bool {
        if self.target.go_on(self.now) {
            return true;
        }
        let soon = self.now + PACE_INTERVAL;
        let Some(until) = self.target.poll_timeout().filter(|until| *until > self.now && *until <= soon) else {
            return false;
        };
        if !self.target.receive_space().is_empty() {
            return false;
        }
        self.now = until;
        self.target.handle_timeout(until);
        true
    }

    pub(super) fn collect_events(&mut self) {
        match &mut self.target {
            Target::Connection(it) => self.login_events.extend(std::iter::from_fn(|| it.poll_event())),
            Target::Session(it, _) => self.events.extend(std::iter::from_fn(|| it.poll_event())),
            Target::None => {}
        }
    }

    /// All PDUs that the target sends.
    pub(super) fn receive(&mut self) -> Vec<ReceivedPdu> {
        self.collect_events();
        let mut bytes = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = self.target.io_slices(&mut slices);
            if count == 0 {
                break;
            }
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            let length = slices[..count].iter().map(|slice| slice.len()).sum();
            self.target.handle_transmitted(self.now, length);
            while self.go_on() {
                self.collect_events();
            }
        }
        self.parse(&bytes).expect("the target sends whole PDUs")
    }

    pub(super) fn parse(&mut self, mut bytes: &[u8]) -> Result<Vec<ReceivedPdu>, FramingError> {
        let mut pdus = Vec::new();
        loop {
            match self.receiver.poll()? {
                Progress::Pdu(pdu) => pdus.push(pdu),
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().expect("it waits").data_segment_bytes;
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes if bytes.is_empty() => return Ok(pdus),
                Progress::NeedBytes => {
                    let space = self.receiver.receive_space();
                    let length = space.len().min(bytes.len());
                    space[..length].copy_from_slice(&bytes[..length]);
                    self.receiver.handle_received(length);
                    bytes = &bytes[length..];
                }
            }
        }
    }

    pub(super) fn receive_one(&mut self) -> ReceivedPdu {
        let mut pdus = self.receive();
        assert_eq!(pdus.len(), 1, "one PDU was expected");
        pdus.remove(0)
    }

    pub(super) fn receive_bhs(&mut self) -> Vec<Bhs> {
        self.receive().into_iter().map(|pdu| pdu.header.bhs.expect("the target sends valid headers")).collect()
    }

    /// A command with the next CmdSN.
    pub(super) fn command(&mut self, tag: u32, cdb: [u8; 16], direction: Direction, expected: u32) -> ScsiCommand {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.next();
        ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: direction == Direction::Read,
            writes: direction == Direction::Write,
            attribute: TaskAttribute::Simple,
            lun: 0,
            initiator_task_tag: itt(tag),
            expected_data_transfer_length: expected,
            cmd_sn,
            exp_stat_sn: Serial32(0),
            cdb,
        }
    }

    pub(super) fn read(&mut self, tag: u32, expected: u32) {
        let command = self.command(tag, CDB_READ, Direction::Read, expected);
        self.send(&command, Vec::new());
    }

    /// Sends one answer to an R2T.
    pub(super) fn data_out(
        &mut self,
        tag: u32,
        transfer: Option<u32>,
        offset: u32,
        data_sn: u32,
        is_final: bool,
        data: &[u8],
    ) {
        let header = DataOut {
            is_final,
            lun: 0,
            initiator_task_tag: itt(tag),
            target_transfer_tag: transfer.and_then(TargetTransferTag::new),
            exp_stat_sn: Serial32(0),
            data_sn: Serial32(data_sn),
            buffer_offset: offset,
        };
        self.send(&header, data.to_vec());
    }

    pub(super) fn task_management(
        &mut self,
        tag: u32,
        function: TaskManagementFunction,
        referenced: Option<(u32, Serial32)>,
    ) {
        let request = TaskManagementRequest {
            is_immediate: true,
            function: Ok(function),
            lun: 0,
            initiator_task_tag: itt(tag),
            referenced_task_tag: referenced.map(|(tag, _)| itt(tag)),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
            ref_cmd_sn: referenced.map_or(Serial32(0), |(_, cmd_sn)| cmd_sn),
            exp_data_sn: Serial32(0),
        };
        self.send(&request, Vec::new());
    }

    /// The command that the driver got last.
    pub(super) fn started(&mut self) -> Command {
        match self.events.pop() {
            Some(Event::Command(command)) => command,
            other => panic!("{other:?} is not a command"),
        }
    }

    pub(super) fn complete(&mut self, task: TaskId, outcome: Outcome) {
        self.target.session().handle_completion(self.now, task, outcome);
    }

    pub(super) fn sleep(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.target.handle_timeout(self.now);
        self.collect_events();
    }

    pub(super) fn close_reason(&mut self) -> CloseReason {
        self.collect_events();
        if let Some(LoginEvent::Closed(reason)) = self.login_events.pop() {
            return reason;
        }
        match self.events.pop() {
            Some(Event::Closed(reason)) => reason,
            other => panic!("{other:?} is not the end"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    None,
    Read,
    Write,
}

pub(super) fn drain(queue: &mut TransmitQueue) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !queue.is_empty() {
        let mut slices = [IoSlice::new(&[]); 4];
        let count = queue.io_slices(&mut slices);
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
        let length = slices[..count].iter().map(|slice| slice.len()).sum();
        queue.handle_transmitted(length);
    }
    bytes
}

pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 13 + index / 509) as u8).collect()
}

pub(super) fn good(data: &[u8]) -> Outcome {
    Outcome { data_in: Buffer::copy_of(data), ..Outcome::default() }
}

pub(super) fn outcome_of(bhs: &Bhs) -> TaskManagementOutcome {
    match bhs {
        Bhs::TaskManagementResponse(response) => response.outcome,
        other => panic!("{other:?} is not a task management response"),
    }
}

pub(super) fn reject_reason(bhs: &Bhs) -> RejectReason {
    match bhs {
        Bhs::Reject(reject) => reject.reason,
        other => panic!("{other:?} is not a reject"),
    }
}

/// Status and additional sense code of a SCSI Response PDU.
pub(super) fn failure_of(pdu: &ReceivedPdu) -> (u8, u8, u8) {
    let Ok(Bhs::ScsiResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
    let ServiceResponse::CommandCompleted { status } = response.response else { panic!("{response:?}") };
    let sense = &pdu.data.bytes()[2..];
    (status, sense[12], sense[13])
}

/// Tag, offset and length of R2Ts.
pub(super) fn r2ts(pdus: &[Bhs]) -> Vec<(u32, u32, u32)> {
    let of = |bhs: &Bhs| match bhs {
        Bhs::ReadyToTransfer(r2t) => {
            (r2t.target_transfer_tag.get(), r2t.buffer_offset, r2t.desired_data_transfer_length)
        }
        other => panic!("{other:?} is not an R2T"),
    };
    pdus.iter().map(of).collect()
}
