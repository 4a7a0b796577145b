//! The initiator on the wire, with a hand-turned clock, against a target whose bytes the test
//! chooses.

use std::io::IoSlice;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Instant;
use base::random::Random;
use base::serial::Serial32;

use super::*;
use crate::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use crate::negotiation::{Negotiator, Offer};
use crate::pdu::*;
use crate::text::Keys;

mod bounds;
mod recovery;

const LUN: u64 = 0x0001_0000_0000_0000;

/// Our end and a scripted peer.
struct Pair {
    now: Instant,
    session: Session,
    connection: Connection,
    receiver: Receiver,
    transmit: TransmitQueue,
    stat_sn: Serial32,
    exp_cmd_sn: Serial32,
    max_cmd_sn: Serial32,
}

fn config() -> LoginConfig {
    LoginConfig {
        initiator_name: "iqn.2026-01.io.forebay:us".to_owned(),
        target_name: Some("iqn.2026-01.io.forebay:them".to_owned()),
        isid: Isid::random_format(7, 7),
        tsih: 0,
        cid: 3,
        answers_for: None,
        offer: Offer::initiator(),
        chap: None,
    }
}

const TIMING: Timing = Timing {
    login_timeout: Duration::from_secs(10),
    keepalive_interval: Duration::from_secs(60),
    keepalive_timeout: Duration::from_secs(5),
    task_management_timeout: Duration::from_secs(3),
};

impl Pair {
    fn new(config: LoginConfig) -> Self {
        let now = Instant::START + Duration::from_secs(100);
        let session = Session::new(Serial32(u32::MAX));
        Self {
            now,
            connection: Connection::new(now, &session, config, TIMING),
            session,
            receiver: Receiver::new(1 << 20),
            transmit: TransmitQueue::new(Digests::default()),
            stat_sn: Serial32(500),
            exp_cmd_sn: Serial32(u32::MAX),
            max_cmd_sn: Serial32(6),
        }
    }

    /// Logged in with the target's offer; the window is eight commands.
    fn logged_in(target: Offer) -> Self {
        Self::logged_in_as(config(), target)
    }

    fn logged_in_as(config: LoginConfig, target: Offer) -> Self {
        let mut pair = Self::new(config);
        let mut negotiator = Negotiator::target(target);
        for _ in 0..2 {
            let (request, data) = pair.login_request();
            let keys = Keys::parse(&data).unwrap();
            let mut answers = negotiator.handle(request.current_stage.into(), &keys).unwrap();
            if keys.get("AuthMethod").is_some() {
                answers.push("AuthMethod", "None");
                answers.push("TargetPortalGroupTag", "1");
            } else {
                answers.append(negotiator.propose());
            }
            let response = pair.login_response(&request, LoginStatus::SUCCESS);
            pair.send(&response, answers.emit()).unwrap();
        }
        let Some(Event::LoggedIn(logged_in)) = pair.connection.poll_event() else { panic!("the login is over") };
        assert_eq!(logged_in.negotiated, negotiator.negotiated());
        assert_eq!((logged_in.tsih, logged_in.portal_group_tag.as_deref()), (9, Some("1")));
        pair
    }

    fn login_request(&mut self) -> (LoginRequest, Vec<u8>) {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "one login request at a time");
        let pdu = sent.remove(0);
        let Ok(Bhs::LoginRequest(request)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        (request, pdu.data.bytes().to_vec())
    }

    fn login_response(&mut self, request: &LoginRequest, status: LoginStatus) -> LoginResponse {
        LoginResponse {
            is_continued: false,
            current_stage: request.current_stage,
            transit_to: request.transit_to,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih: if request.transit_to == Some(LoginStage::FullFeaturePhase) { 9 } else { 0 },
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            status,
        }
    }

    fn next_stat_sn(&mut self) -> Serial32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        stat_sn
    }

    /// All PDUs that our end sends.
    fn sent(&mut self) -> Vec<ReceivedPdu> {
        while self.connection.takes_commands(&self.session) && self.connection.send_next(&mut self.session) {}
        self.flush()
    }

    /// The PDUs that our end has queued already.
    fn flush(&mut self) -> Vec<ReceivedPdu> {
        let mut pdus = Vec::new();
        let mut slices = [IoSlice::new(&[]); 64];
        let count = self.connection.io_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        self.connection.handle_transmitted(&mut self.session, bytes.len());
        assert!(self.connection.is_transmit_empty(), "the tests send little");
        let mut bytes = bytes.as_slice();
        loop {
            match self.receiver.poll().unwrap() {
                Progress::Pdu(pdu) => pdus.push(pdu),
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().unwrap().data_segment_bytes;
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes if bytes.is_empty() => return pdus,
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

    /// Sends a PDU of the peer, which arrives in small pieces.
    fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) -> Result<(), ConnectionError> {
        self.transmit.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.transmit.io_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        self.transmit.handle_transmitted(bytes.len());
        self.receive(&bytes, 100)
    }

    fn receive(&mut self, mut bytes: &[u8], piece: usize) -> Result<(), ConnectionError> {
        while !bytes.is_empty() {
            let space = self.connection.receive_space();
            let length = space.len().min(bytes.len()).min(piece);
            space[..length].copy_from_slice(&bytes[..length]);
            self.connection.handle_received(self.now, &mut self.session, length)?;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    fn submit(&mut self, token: u64, data: Data) {
        let command = Command {
            token,
            lun: LUN,
            cdb: [token as u8; 16],
            attribute: TaskAttribute::Simple,
            data,
            timeout: Duration::from_secs(30),
        };
        self.session.submit(self.now, command);
    }

    /// Submits one command. Returns the PDUs that are sent for it.
    fn issue(&mut self, data: Data) -> (ScsiCommand, Vec<ReceivedPdu>) {
        self.submit(1, data);
        let mut sent = self.sent();
        let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
        sent.remove(0);
        (command, sent)
    }

    fn response(&mut self, tag: InitiatorTaskTag, status: u8) -> ScsiResponse {
        ScsiResponse {
            response: ServiceResponse::CommandCompleted { status },
            initiator_task_tag: tag,
            snack_tag: 0,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            exp_data_sn: Serial32(0),
            bidirectional_read_residual: Residual::None,
            residual: Residual::None,
        }
    }

    fn data_in(&self, tag: InitiatorTaskTag, offset: u32) -> DataIn {
        DataIn {
            is_final: true,
            wants_acknowledgement: false,
            status: None,
            lun: 0,
            initiator_task_tag: tag,
            target_transfer_tag: None,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            data_sn: Serial32(0),
            buffer_offset: offset,
        }
    }

    fn r2t(&self, tag: InitiatorTaskTag, offset: u32, length: u32) -> ReadyToTransfer {
        ReadyToTransfer {
            lun: LUN,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::new(77).unwrap(),
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            r2t_sn: Serial32(0),
            buffer_offset: offset,
            desired_data_transfer_length: length,
        }
    }

    fn pass(&mut self, duration: Duration) -> Result<(), ConnectionError> {
        self.now = self.now + duration;
        self.connection.handle_timeout(self.now, &mut self.session)
    }

    fn functions_sent(&mut self) -> Vec<TaskManagementRequest> {
        let sent = self.flush();
        sent.iter()
            .filter_map(|pdu| match pdu.header.bhs {
                Ok(Bhs::TaskManagementRequest(request)) => Some(request),
                _ => None,
            })
            .collect()
    }

    fn answer_function(
        &mut self,
        request: &TaskManagementRequest,
        outcome: TaskManagementOutcome,
    ) -> Result<(), ConnectionError> {
        let response = TaskManagementResponse {
            outcome,
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
        };
        self.send(&response, Vec::new())
    }

    fn completed(&mut self) -> Completed {
        self.session.poll_completed().expect("a command is over")
    }
}

fn ramp(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 3) as u8).collect()
}

fn write_of(length: usize) -> Data {
    Data::Write(Buffer::copy_of(&ramp(length)), 0..length)
}

fn read_of(length: usize) -> Data {
    Data::Read(Buffer::zeroed(length), 0..length)
}

fn modest() -> Offer {
    Offer { max_recv_data_segment_length: 1024, max_burst_length: 8192, first_burst_length: 4096, ..Offer::target() }
}

/// RFC 7143 13.21: SessionType is for leading logins; Linux's target ends one that joins a session
/// and sends it.
#[test]
fn a_login_that_joins_a_session_does_not_say_its_type() {
    for (tsih, session_type) in [(0, Some("Normal")), (9, None)] {
        let mut pair = Pair::new(LoginConfig { tsih, ..config() });
        let (request, data) = pair.login_request();
        assert_eq!(request.tsih, tsih);
        let keys = Keys::parse(&data).unwrap();
        assert_eq!(keys.get("SessionType"), session_type);
        assert_eq!(keys.get("InitiatorName"), Some("iqn.2026-01.io.forebay:us"));
        assert_eq!(keys.get("TargetName"), Some("iqn.2026-01.io.forebay:them"));
    }
}

/// RFC 7143 6.3: security first, then operational, each ended by both.
#[test]
fn a_login_without_credentials() {
    let mut pair = Pair::new(config());
    let (first, data) = pair.login_request();
    assert_eq!(first.current_stage, LoginStage::SecurityNegotiation);
    assert_eq!(first.transit_to, Some(LoginStage::OperationalNegotiation));
    assert_eq!((first.tsih, first.cid, first.cmd_sn), (0, 3, Serial32(u32::MAX)));
    let keys = Keys::parse(&data).unwrap();
    assert_eq!(keys.get("AuthMethod"), Some("None"));
    assert_eq!(keys.get("TargetName"), Some("iqn.2026-01.io.forebay:them"));
    // The target sends two pieces of text, and does not go on at once.
    let mut response = pair.login_response(&first, LoginStatus::SUCCESS);
    (response.is_continued, response.transit_to) = (true, None);
    pair.send(&response, b"TargetPortalGroupTag=1\0AuthMet".to_vec()).unwrap();
    let (empty, data) = pair.login_request();
    assert!(data.is_empty());
    assert_eq!(empty.exp_stat_sn, Serial32(501));
    let mut response = pair.login_response(&empty, LoginStatus::SUCCESS);
    response.transit_to = None;
    pair.send(&response, b"hod=None\0".to_vec()).unwrap();
    let (again, data) = pair.login_request();
    assert!(data.is_empty());
    assert_eq!(again.transit_to, Some(LoginStage::OperationalNegotiation), "it keeps asking to go on");
    let response = pair.login_response(&again, LoginStatus::SUCCESS);
    pair.send(&response, Vec::new()).unwrap();
    let (operational, data) = pair.login_request();
    assert_eq!(operational.current_stage, LoginStage::OperationalNegotiation);
    assert_eq!(Keys::parse(&data).unwrap().get("MaxBurstLength"), Some("1048576"));
}

#[test]
fn logins_that_come_to_nothing() {
    let answer = |status: LoginStatus, text: &[u8], change: fn(&mut LoginResponse)| {
        let mut pair = Pair::new(config());
        let (request, _) = pair.login_request();
        let mut response = pair.login_response(&request, status);
        change(&mut response);
        pair.send(&response, text.to_vec()).unwrap_err()
    };
    let plain = |_: &mut LoginResponse| {};
    assert_eq!(
        answer(LoginStatus::NOT_FOUND, b"", plain),
        ConnectionError::Login(LoginError::Refused(LoginStatus::NOT_FOUND))
    );
    assert_eq!(
        answer(LoginStatus::TARGET_MOVED_PERMANENTLY, b"TargetAddress=10.0.0.9:3261,1\0", plain),
        ConnectionError::Login(LoginError::Moved { is_permanent: true, addresses: vec!["10.0.0.9:3261".to_owned()] })
    );
    assert_eq!(
        answer(LoginStatus::SUCCESS, b"AuthMethod=KRB5\0", plain),
        ConnectionError::Login(LoginError::Method("KRB5".to_owned()))
    );
    let skip = |response: &mut LoginResponse| response.current_stage = LoginStage::OperationalNegotiation;
    assert!(matches!(answer(LoginStatus::SUCCESS, b"", skip), ConnectionError::Login(LoginError::Protocol(_))));
    let mut pair = Pair::new(config());
    pair.sent();
    assert_eq!(pair.connection.poll_timeout(&pair.session), Some(pair.now + Duration::from_secs(10)));
    assert_eq!(pair.pass(Duration::from_secs(10)), Err(ConnectionError::LoginTimedOut));
}

/// A text that goes on is asked for again and again; the login as a whole has its time besides.
#[test]
fn a_login_has_so_many_exchanges_and_no_more() {
    let mut pair = Pair::new(config());
    for exchange in 1.. {
        let (request, _) = pair.login_request();
        let mut response = pair.login_response(&request, LoginStatus::SUCCESS);
        (response.is_continued, response.transit_to) = (true, None);
        match pair.send(&response, Vec::new()) {
            Ok(()) => assert!(exchange <= 32, "exchange {exchange}"),
            Err(error) => {
                assert!(matches!(error, ConnectionError::Login(LoginError::Protocol(_))), "{error}");
                assert_eq!(exchange, 33);
                break;
            }
        }
    }
}

/// RFC 7143 4.2.2.1: commands wait for the window and are numbered as they leave, over the end of the numbers.
#[test]
fn commands_wait_for_the_window() {
    let mut pair = Pair::logged_in(Offer::target());
    assert_eq!(pair.session.window(), 8);
    (0..12).for_each(|token| pair.submit(token, Data::None));
    let sent = pair.sent();
    let numbers: Vec<u32> = sent
        .iter()
        .map(|pdu| match pdu.header.bhs {
            Ok(Bhs::ScsiCommand(command)) => command.cmd_sn.0,
            ref other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, [u32::MAX, 0, 1, 2, 3, 4, 5, 6]);
    let Ok(Bhs::ScsiCommand(first)) = sent[0].header.bhs else { unreachable!() };
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (Serial32(7), Serial32(8));
    let response = pair.response(first.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!(pair.completed().token, 0);
    assert_eq!(pair.sent().len(), 2);
    // A window that shrinks is ignored.
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (Serial32(3), Serial32(4));
    let Ok(Bhs::ScsiCommand(second)) = sent[1].header.bhs else { unreachable!() };
    let response = pair.response(second.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!((pair.session.window(), pair.sent().len()), (0, 0));
}

/// RFC 7143 4.2.2.1: it carries the CmdSN that the next command will have, and does not use it up.
#[test]
fn an_immediate_command_passes_a_closed_window_with_its_data() {
    let mut pair = Pair::logged_in(Offer::target());
    (0..9).for_each(|token| pair.submit(token, Data::None));
    assert_eq!(pair.sent().len(), 8);
    assert_eq!(pair.session.window(), 0);
    let (cdb, attribute, timeout) = ([0xc4; 16], TaskAttribute::Simple, Duration::from_secs(30));
    let command = Command { token: 77, lun: LUN, cdb, attribute, data: write_of(24), timeout };
    pair.session.submit_immediate(pair.now, command);
    let sent = pair.sent();
    assert_eq!((sent.len(), sent[0].data.bytes().len()), (1, 24));
    let Ok(Bhs::ScsiCommand(immediate)) = sent[0].header.bhs else { panic!("a command") };
    assert!(immediate.is_immediate && immediate.is_final);
    let response = pair.response(immediate.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!(pair.completed().token, 77);
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (pair.exp_cmd_sn.plus(8), pair.max_cmd_sn.plus(8));
    let (next, _) = {
        let response = pair.response(immediate.initiator_task_tag, 0);
        pair.send(&response, Vec::new()).unwrap();
        let mut sent = pair.sent();
        let Ok(Bhs::ScsiCommand(next)) = sent[0].header.bhs else { panic!("a command") };
        (next, sent.remove(0))
    };
    assert_eq!((next.cmd_sn, next.is_immediate), (immediate.cmd_sn, false));
}

/// RFC 7143 13.11, the table of unsolicited data.
#[test]
fn data_goes_unasked_as_far_as_was_negotiated() {
    for (initial_r2t, immediate_data, immediate, unsolicited) in [
        (false, false, 0, vec![1024; 4]),
        (false, true, 1024, vec![1024; 3]),
        (true, false, 0, vec![]),
        (true, true, 1024, vec![]),
    ] {
        let mut pair = Pair::logged_in(Offer { initial_r2t, immediate_data, ..modest() });
        pair.submit(1, write_of(5000));
        let sent = pair.sent();
        let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
        assert_eq!((command.writes, command.reads, command.expected_data_transfer_length), (true, false, 5000));
        assert_eq!(command.is_final, unsolicited.is_empty());
        assert_eq!(sent[0].data.bytes(), &ramp(5000)[..immediate]);
        assert_eq!(sent[1..].iter().map(|pdu| pdu.data.length).collect::<Vec<_>>(), unsolicited);
        let mut at = immediate;
        for (index, pdu) in sent[1..].iter().enumerate() {
            let Ok(Bhs::DataOut(data_out)) = pdu.header.bhs else { panic!("data follows") };
            assert_eq!((data_out.buffer_offset as usize, data_out.data_sn.0 as usize), (at, index));
            assert_eq!(data_out.is_final, index + 1 == unsolicited.len());
            assert_eq!(data_out.target_transfer_tag, None);
            assert_eq!(pdu.data.bytes(), &ramp(5000)[at..at + pdu.data.length]);
            at += pdu.data.length;
        }
    }
}

#[test]
fn an_r2t_is_answered_with_what_it_asks_for() {
    let mut pair = Pair::logged_in(Offer { initial_r2t: true, immediate_data: false, ..modest() });
    // The command's data is a part of its buffer.
    let (command, _) = pair.issue(Data::Write(Buffer::copy_of(&ramp(9000)), 1000..7000));
    for (offset, length) in [(2000, 2500), (0, 2000)] {
        let r2t = pair.r2t(command.initiator_task_tag, offset, length);
        pair.send(&r2t, Vec::new()).unwrap();
    }
    let sent = pair.sent();
    let lengths: Vec<usize> = sent.iter().map(|pdu| pdu.data.length).collect();
    assert_eq!(lengths, [1024, 1024, 452, 1024, 976]);
    let Ok(Bhs::DataOut(last)) = sent[2].header.bhs else { panic!("data") };
    assert_eq!((last.is_final, last.data_sn, last.buffer_offset), (true, Serial32(2), 4048));
    assert_eq!(last.target_transfer_tag, TargetTransferTag::new(77));
    assert_eq!(sent[0].data.bytes(), &ramp(9000)[3000..4024]);
    // An R2T for a task that has ended is ignored; one beyond the data ends the connection.
    let stale = pair.r2t(InitiatorTaskTag::new(command.initiator_task_tag.get() ^ 0x10_0000).unwrap(), 0, 512);
    pair.send(&stale, Vec::new()).unwrap();
    assert!(pair.sent().is_empty());
    let greedy = pair.r2t(command.initiator_task_tag, 5000, 1001);
    assert!(matches!(pair.send(&greedy, Vec::new()), Err(ConnectionError::Protocol(_))));
}

#[test]
fn data_in_lands_at_its_offset() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::Read(Buffer::copy_of(&[0xa5; 6000]), 500..5500));
    let tag = command.initiator_task_tag;
    for (offset, length) in [(3000usize, 2000usize), (0, 1000), (1000, 2000)] {
        let header = pair.data_in(tag, offset as u32);
        pair.send(&header, ramp(5000)[offset..offset + length].to_vec()).unwrap();
    }
    let response = pair.response(tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    let completed = pair.completed();
    assert!(matches!(completed.outcome, Outcome::Status { status: 0, received_bytes: 5000, .. }));
    assert_eq!(completed.buffer[500..5500], ramp(5000)[..]);
    assert!(completed.buffer[..500].iter().chain(&completed.buffer[5500..]).all(|&byte| byte == 0xa5));
}

#[test]
fn status_may_ride_on_the_last_data() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let status = DataInStatus { status: 0, stat_sn: pair.next_stat_sn(), residual: Residual::Underflow(412) };
    let header = DataIn { status: Some(status), ..pair.data_in(command.initiator_task_tag, 0) };
    pair.send(&header, ramp(100)).unwrap();
    let Outcome::Status { residual, received_bytes, .. } = pair.completed().outcome else { panic!("a status") };
    assert_eq!((residual, received_bytes), (Residual::Underflow(412), 100));
}

#[test]
fn good_without_the_data_is_a_failure() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let response = pair.response(command.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Failed(_)));
}

/// One half twice is not the whole (found by fuzzing: `iscsi_initiator`).
#[test]
fn data_that_comes_twice_ends_the_connection() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let header = pair.data_in(command.initiator_task_tag, 0);
    pair.send(&header, ramp(256)).unwrap();
    let result = pair.send(&header, ramp(256));
    assert_eq!(result, Err(ConnectionError::Protocol("Data-In that came before")));
}

#[test]
fn data_outside_of_what_was_asked_for_ends_the_connection() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let header = pair.data_in(command.initiator_task_tag, 1);
    assert!(matches!(pair.send(&header, ramp(512)), Err(ConnectionError::Protocol(_))));
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(write_of(512));
    let header = pair.data_in(command.initiator_task_tag, 0);
    assert!(matches!(pair.send(&header, ramp(4)), Err(ConnectionError::Protocol(_))));
}

#[test]
fn sense_data_comes_along() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::None);
    let response = pair.response(command.initiator_task_tag, 2);
    pair.send(&response, vec![0, 3, 0x70, 0, 6, 99]).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Status { status: 2, sense, .. } if sense == [0x70, 0, 6]));
}

/// The target ends a write before all of its data is sent: the buffer comes back when the last byte has left.
#[test]
fn a_write_that_ends_early_keeps_its_buffer_until_it_is_sent() {
    let mut pair = Pair::logged_in(modest());
    pair.submit(1, write_of(4096));
    while pair.connection.takes_commands(&pair.session) && pair.connection.send_next(&mut pair.session) {}
    let tag = pair.session.tags().next().unwrap().0;
    let response = pair.response(tag, 2);
    pair.send(&response, Vec::new()).unwrap();
    assert!(pair.session.poll_completed().is_none());
    assert_eq!(pair.flush().len(), 4);
    let completed = pair.completed();
    assert!(matches!(completed.outcome, Outcome::Status { status: 2, .. }));
    assert_eq!(completed.buffer[..], ramp(4096)[..]);
    assert_eq!(pair.session.outstanding_count(), 0);
}

#[test]
fn a_lost_session_gives_everything_back_in_order() {
    let mut pair = Pair::logged_in(Offer::target());
    for token in 0..12 {
        pair.submit(token, if token % 2 == 0 { write_of(512) } else { read_of(512) });
    }
    let sent = pair.sent();
    let Ok(Bhs::ScsiCommand(third)) = sent[2].header.bhs else { panic!("a command") };
    let response = pair.response(third.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    drop(pair.connection);
    let returned = pair.session.take_all();
    assert_eq!(returned.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert!(returned.iter().all(|(_, buffer)| buffer.len() == 512));
    assert_eq!(pair.session.outstanding_count(), 0);
}

#[test]
fn pings_are_answered_and_sent() {
    let mut pair = Pair::logged_in(Offer::target());
    let asking = NopIn {
        lun: LUN,
        initiator_task_tag: None,
        target_transfer_tag: TargetTransferTag::new(5),
        stat_sn: pair.stat_sn,
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
    };
    pair.send(&asking, Vec::new()).unwrap();
    let sent = pair.sent();
    let Ok(Bhs::NopOut(answer)) = sent[0].header.bhs else { panic!("an answer") };
    assert_eq!((answer.target_transfer_tag, answer.initiator_task_tag), (TargetTransferTag::new(5), None));
    assert_eq!((answer.lun, answer.is_immediate), (LUN, true));
    // A minute of silence, a ping, and five seconds to answer it.
    pair.pass(Duration::from_secs(60)).unwrap();
    let sent = pair.sent();
    let Ok(Bhs::NopOut(ping)) = sent[0].header.bhs else { panic!("a ping") };
    assert!(ping.initiator_task_tag.is_some() && ping.is_immediate);
    let pong = NopIn {
        initiator_task_tag: ping.initiator_task_tag,
        target_transfer_tag: None,
        stat_sn: pair.next_stat_sn(),
        ..asking
    };
    pair.send(&pong, Vec::new()).unwrap();
    pair.pass(Duration::from_secs(5)).unwrap();
    assert!(pair.sent().is_empty());
    pair.pass(Duration::from_secs(55)).unwrap();
    assert_eq!(pair.sent().len(), 1);
    assert_eq!(pair.pass(Duration::from_secs(5)), Err(ConnectionError::Silent));
}

#[test]
fn a_command_that_does_not_end_is_aborted() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    pair.pass(Duration::from_secs(30)).unwrap();
    let functions = pair.functions_sent();
    assert_eq!(functions.len(), 1);
    assert_eq!(functions[0].function, Ok(TaskManagementFunction::AbortTask));
    assert_eq!(functions[0].referenced_task_tag, Some(command.initiator_task_tag));
    assert_eq!((functions[0].ref_cmd_sn, functions[0].lun, functions[0].is_immediate), (command.cmd_sn, LUN, true));
    pair.answer_function(&functions[0], TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    // Data that still comes for it is dropped.
    let header = pair.data_in(command.initiator_task_tag, 0);
    pair.send(&header, ramp(512)).unwrap();
    assert!(pair.session.poll_completed().is_none());
}

#[test]
fn an_abort_that_does_not_help_is_followed_by_a_reset_and_then_by_the_end() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(read_of(512));
    pair.submit(2, Data::None);
    pair.sent();
    pair.pass(Duration::from_secs(30)).unwrap();
    let aborts = pair.functions_sent();
    assert_eq!(aborts.len(), 2);
    pair.answer_function(&aborts[0], TaskManagementOutcome::FunctionRejected).unwrap();
    let resets = pair.functions_sent();
    assert_eq!(resets[0].function, Ok(TaskManagementFunction::LogicalUnitReset));
    pair.answer_function(&resets[0], TaskManagementOutcome::FunctionComplete).unwrap();
    assert!(matches!(pair.connection.poll_event(), Some(Event::LogicalUnitReset { lun: LUN })));
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    assert_eq!(pair.completed().outcome, Outcome::Aborted);
    // No answer at all, three seconds for each step.
    pair.submit(3, Data::None);
    pair.sent();
    pair.pass(Duration::from_secs(30)).unwrap();
    assert_eq!(pair.functions_sent().len(), 1);
    pair.pass(Duration::from_secs(3)).unwrap();
    assert_eq!(pair.functions_sent().len(), 1);
    assert_eq!(pair.pass(Duration::from_secs(3)), Err(ConnectionError::Unresponsive));
}

impl Pair {
    /// Lets the command that was sent last become overdue, and has the target refuse its abort. Returns the reset.
    fn reset(&mut self) -> TaskManagementRequest {
        self.pass(Duration::from_secs(30)).unwrap();
        let aborts = self.functions_sent();
        self.answer_function(&aborts[0], TaskManagementOutcome::FunctionRejected).unwrap();
        let resets = self.functions_sent();
        assert_eq!(resets[0].function, Ok(TaskManagementFunction::LogicalUnitReset));
        resets[0]
    }

    /// The commands that our end sends.
    fn commands_sent(&mut self) -> Vec<ScsiCommand> {
        let sent = self.sent();
        let command = |pdu: &ReceivedPdu| match pdu.header.bhs {
            Ok(Bhs::ScsiCommand(command)) => Some(command),
            _ => None,
        };
        sent.iter().filter_map(command).collect()
    }

    fn command(&self, token: u64, lun: u64, data: Data) -> Command {
        let (cdb, attribute, timeout) = ([token as u8; 16], TaskAttribute::Simple, Duration::from_secs(30));
        Command { token, lun, cdb, attribute, data, timeout }
    }
}

/// RFC 7143 11.5.1: a command that is sent behind a reset outlives it, and may be carried out whenever the target
/// likes. So none is sent, and what comes for other units passes.
#[test]
fn a_command_that_comes_while_its_unit_is_reset_is_sent_when_that_is_over() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    pair.submit(2, write_of(512));
    pair.session.submit(pair.now, pair.command(3, 0, Data::None));
    let sent = pair.commands_sent();
    assert_eq!(sent.iter().map(|command| (command.lun, command.cdb[0])).collect::<Vec<_>>(), [(0, 3)]);
    assert_eq!(reset.cmd_sn, sent[0].cmd_sn);
    assert!(!pair.session.has_to_send(), "the driver is not kept busy");
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    assert_eq!(pair.commands_sent().iter().map(|command| command.cdb[0]).collect::<Vec<_>>(), [2]);
    assert_eq!(pair.session.outstanding_count(), 2);
}

/// Immediate commands pass, and have the number of the reset: it does not cover them. One that gets no answer is ended
/// by its own abort.
#[test]
fn a_reset_ends_commands_with_lower_numbers_and_no_others() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    pair.session.submit_immediate(pair.now, pair.command(2, LUN, Data::None));
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    assert_eq!((immediate.is_immediate, immediate.cmd_sn), (true, reset.cmd_sn));
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    pair.pass(Duration::from_secs(30)).unwrap();
    let aborts = pair.functions_sent();
    assert_eq!(aborts[0].referenced_task_tag, Some(immediate.initiator_task_tag));
    pair.answer_function(&aborts[0], TaskManagementOutcome::TaskDoesNotExist).unwrap();
    assert_eq!(pair.completed().token, 2);
}

/// RFC 7143 11.5.5: an ordinary command may have the number that an immediate one carried.
#[test]
fn an_abort_of_an_immediate_command_refers_to_its_own_number() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.session.submit_immediate(pair.now, pair.command(2, LUN, Data::None));
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    let mut later = pair.command(3, LUN, Data::None);
    later.timeout = Duration::from_secs(600);
    pair.session.submit(pair.now, later);
    let [ordinary] = pair.commands_sent()[..] else { panic!("one command") };
    assert_eq!(immediate.cmd_sn, ordinary.cmd_sn);
    pair.pass(Duration::from_secs(30)).unwrap();
    let abort = pair.functions_sent()[0];
    assert_eq!(abort.referenced_task_tag, Some(immediate.initiator_task_tag));
    assert_eq!(abort.ref_cmd_sn, abort.cmd_sn, "not that of the ordinary one");
}

/// Its time was up while the reset was under way, which did not end it.
#[test]
fn a_command_that_was_overdue_during_a_reset_and_outlives_it_is_aborted_behind_it() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    let reset = pair.reset();
    let command = Command { timeout: Duration::from_secs(1), ..pair.command(2, LUN, Data::None) };
    pair.session.submit_immediate(pair.now, command);
    let [immediate] = pair.commands_sent()[..] else { panic!("one command") };
    pair.pass(Duration::from_secs(1)).unwrap();
    assert!(pair.functions_sent().is_empty(), "the reset may end it");
    pair.answer_function(&reset, TaskManagementOutcome::FunctionComplete).unwrap();
    assert_eq!((pair.completed().token, pair.session.poll_completed().is_none()), (1, true));
    pair.pass(Duration::ZERO).unwrap();
    assert_eq!(pair.functions_sent()[0].referenced_task_tag, Some(immediate.initiator_task_tag));
}

#[test]
fn a_connection_that_is_lost_during_its_reset_holds_no_commands_back() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.issue(Data::None);
    pair.reset();
    pair.submit(2, Data::None);
    assert!(pair.commands_sent().is_empty());
    let fresh = Connection::new(pair.now, &pair.session, LoginConfig { cid: 4, ..config() }, TIMING);
    std::mem::replace(&mut pair.connection, fresh).abandon(&mut pair.session);
    assert!(pair.session.has_to_send());
}

#[test]
fn a_window_that_stays_closed_is_told_apart() {
    let mut pair = Pair::logged_in(Offer::target());
    (0..9).for_each(|token| pair.submit(token, Data::None));
    assert_eq!(pair.sent().len(), 8);
    pair.pass(Duration::from_secs(30)).unwrap();
    let completed = pair.completed();
    assert_eq!((completed.token, completed.outcome), (8, Outcome::NotSent));
}

#[test]
fn a_rejected_command_fails_alone() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::None);
    let reject = |pair: &mut Pair, reason| Reject {
        reason,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        data_sn: Serial32(0),
    };
    let header = reject(&mut pair, RejectReason::InvalidPduField);
    pair.send(&header, command.to_bytes().to_vec()).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Failed(words) if words.contains("Invalid PDU field")));
    let header = reject(&mut pair, RejectReason::ProtocolError);
    assert_eq!(pair.send(&header, vec![1, 2, 3]), Err(ConnectionError::Rejected(RejectReason::ProtocolError)));
}

#[test]
fn asynchronous_messages() {
    let mut pair = Pair::logged_in(Offer::target());
    let message = |pair: &mut Pair, event| AsyncMessage {
        event,
        lun: LUN,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
    };
    let logout = message(&mut pair, AsyncEvent::LogoutRequest { logout_within_seconds: 7 });
    pair.send(&logout, Vec::new()).unwrap();
    assert!(matches!(pair.connection.poll_event(), Some(Event::LogoutRequested { within_seconds: 7 })));
    let scsi = message(&mut pair, AsyncEvent::ScsiAsyncEvent);
    pair.send(&scsi, vec![0, 2, 0x70, 0]).unwrap();
    assert!(matches!(pair.connection.poll_event(), Some(Event::ScsiEvent { lun: LUN, sense }) if sense == [0x70, 0]));
    let other = message(&mut pair, AsyncEvent::ConnectionDrop { cid: 4, wait_seconds: 1, retain_seconds: 0 });
    pair.send(&other, Vec::new()).unwrap();
    let ours = message(&mut pair, AsyncEvent::ConnectionDrop { cid: 3, wait_seconds: 1, retain_seconds: 0 });
    assert_eq!(pair.send(&ours, Vec::new()), Err(ConnectionError::Dropped { wait_seconds: 1 }));
}

#[test]
fn a_logout_is_answered() {
    let mut pair = Pair::logged_in(Offer::target());
    pair.connection.logout(&pair.session);
    let sent = pair.sent();
    let Ok(Bhs::LogoutRequest(request)) = sent[0].header.bhs else { panic!("a logout") };
    assert_eq!((request.reason, request.is_immediate), (LogoutReason::CloseSession, true));
    let response = LogoutResponse {
        outcome: LogoutOutcome::Closed,
        initiator_task_tag: request.initiator_task_tag,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        wait_seconds: 0,
        retain_seconds: 0,
    };
    pair.send(&response, Vec::new()).unwrap();
    assert!(matches!(pair.connection.poll_event(), Some(Event::LoggedOut(LogoutOutcome::Closed))));
}

/// Any bytes of a target are handled: nothing panics, and no buffer is lost.
#[test]
fn foreign_bytes_never_panic() {
    let mut random = Random::new(5);
    for _ in 0..3000 {
        let mut pair = Pair::logged_in(Offer { max_recv_data_segment_length: 8192, ..Offer::target() });
        pair.submit(1, read_of(512));
        pair.submit(2, write_of(512));
        let tags: Vec<u32> = pair
            .sent()
            .iter()
            .filter_map(|pdu| pdu.header.raw[16..20].first_chunk().map(|bytes| u32::from_be_bytes(*bytes)))
            .collect();
        for _ in 0..4 {
            let opcodes = [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f, random.bits() as u8];
            let mut bytes = vec![0; BHS_BYTES + 64];
            random.fill(&mut bytes);
            bytes[0] = opcodes[random.below(opcodes.len() as u64) as usize];
            bytes[4..8].copy_from_slice(&[0, 0, 0, random.below(65) as u8]);
            let tag = tags[random.below(tags.len() as u64) as usize];
            bytes[16..20].copy_from_slice(&tag.to_be_bytes());
            if random.chance(0.5) {
                bytes[40..44].copy_from_slice(&(random.below(600) as u32).to_be_bytes());
                bytes[44..48].copy_from_slice(&(random.below(600) as u32).to_be_bytes());
            }
            if pair.receive(&bytes, 1 << 20).is_err() {
                break;
            }
            pair.sent();
        }
        let mut returned = 0;
        while pair.session.poll_completed().is_some() {
            returned += 1;
        }
        drop(pair.connection);
        assert_eq!(returned + pair.session.take_all().len(), 2);
    }
}
