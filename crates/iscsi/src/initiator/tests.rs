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
mod commands;
mod data;
mod login;
mod recovery;
mod task_management;

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
