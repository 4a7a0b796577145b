//! SIGTERM while I/O is under way: what was begun is answered, initiators are asked to log out and given the time for
//! it, and whatever was acknowledged is in the file.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::serial::Serial32;
use iscsi::framing::{Destination, Progress, ReceivedPdu, Receiver};
use iscsi::pdu::*;
use iscsi::text::Keys;
use tests::bare_session::{login_request, pdu_bytes, tag};
use tests::{IQN, Target, World};

const BLOCK_BYTES: usize = 512;
/// Longest wait for anything: generous, because a loaded machine is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// An initiator that does just what it is told.
struct Initiator {
    stream: TcpStream,
    receiver: Receiver,
    cmd_sn: Serial32,
}

impl Initiator {
    fn log_in(target: &Target) -> Self {
        let stream = TcpStream::connect(target.portal()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it is not zero");
        let mut initiator = Self { stream, receiver: Receiver::new(1 << 20), cmd_sn: Serial32(1) };
        let keys = [("InitiatorName", "iqn.2026-11.io.forebay:stop"), ("TargetName", IQN)];
        let request = login_request(1, LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase));
        initiator.send(&request, keys.into_iter().collect::<Keys>().emit());
        let Some(Bhs::LoginResponse(response)) = initiator.receive() else { panic!("no login response") };
        assert_eq!(response.status, LoginStatus::SUCCESS);
        // The unit attention of a new nexus.
        initiator.command(2, [0; 16], Vec::new());
        assert!(matches!(initiator.receive(), Some(Bhs::ScsiResponse(_))));
        initiator
    }

    fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) {
        self.stream.write_all(&pdu_bytes(header, data)).expect("the target listens");
    }

    fn command(&mut self, number: u32, cdb: [u8; 16], data: Vec<u8>) {
        let command = ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: false,
            writes: !data.is_empty(),
            attribute: TaskAttribute::Simple,
            lun: 0,
            initiator_task_tag: tag(number),
            expected_data_transfer_length: data.len() as u32,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
            cdb,
        };
        self.cmd_sn = self.cmd_sn.next();
        self.send(&command, data);
    }

    /// WRITE(10) of one block.
    fn write(&mut self, number: u32, lba: u8, byte: u8) {
        self.command(number, [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], vec![byte; BLOCK_BYTES]);
    }

    fn log_out(&mut self) {
        let request = LogoutRequest {
            is_immediate: true,
            reason: LogoutReason::CloseSession,
            initiator_task_tag: tag(99),
            cid: 0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&request, Vec::new());
    }

    /// The next PDU; `None` when the target closed the connection.
    fn receive(&mut self) -> Option<Bhs> {
        self.receive_pdu().map(|pdu| pdu.header.bhs.expect("the target sends valid headers"))
    }

    fn receive_pdu(&mut self) -> Option<ReceivedPdu> {
        loop {
            match self.receiver.poll().expect("the target frames its PDUs") {
                Progress::Pdu(pdu) => return Some(pdu),
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().expect("it waits").data_segment_bytes;
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes => match self.stream.read(self.receiver.receive_space()) {
                    Ok(0) => return None,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                    Ok(length) => self.receiver.handle_received(length),
                    Err(error) => panic!("nothing comes: {error}"),
                },
            }
        }
    }
}

/// The LBA of a write: away from where the head is, which is at zero in the beginning.
fn place_of(write: u8) -> u8 {
    2 + 2 * write
}

/// Sends writes of 1, 2, 3 ... to as many blocks, and waits until the backend has them all and has answered none.
fn begin_writes(world: &World, initiator: &mut Initiator, count: u8) {
    for write in 0..count {
        initiator.write(10 + u32::from(write), place_of(write), write + 1);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = world.run(["target", "status", "--json"]).json();
        if status["sessions"][0]["commands_under_way"] == count {
            return;
        }
        assert!(Instant::now() < deadline, "the writes are not under way: {status}");
    }
}

/// The block of each write that was answered, as the file has it.
fn assert_in_file(world: &World, written: &[u8]) {
    let file = fs::read(world.path("disk.img")).expect("it is there");
    for &write in written {
        let at = usize::from(place_of(write)) * BLOCK_BYTES;
        assert_eq!(file[at..at + BLOCK_BYTES], [write + 1; BLOCK_BYTES], "write {write} was acknowledged");
    }
}

fn terminate(target: &Target) {
    tests::tool("kill", ["-TERM", &target.process.id().to_string()]);
}

#[test]
fn writes_under_way_are_answered_before_the_target_ends() {
    let world = World::new();
    // Three writes at 600 ms each, one after another.
    let target = world.target(["--lun", "0=file:disk.img,size=1MiB,seek=600ms,rotation=0s"]);
    let mut initiator = Initiator::log_in(&target);
    begin_writes(&world, &mut initiator, 3);
    terminate(&target);
    let Some(Bhs::AsyncMessage(message)) = initiator.receive() else { panic!("it asks for a logout first") };
    let AsyncEvent::LogoutRequest { logout_within_seconds } = message.event else { panic!("{message:?}") };
    assert!(logout_within_seconds >= 1);
    // Nothing new is begun (RFC 7143 11.17.1).
    initiator.write(50, 100, 0xff);
    let mut answered = Vec::new();
    let mut is_rejected = false;
    while answered.len() < 3 {
        match initiator.receive().expect("what was begun is answered") {
            Bhs::ScsiResponse(response) => {
                assert_eq!(response.response, ServiceResponse::CommandCompleted { status: 0 });
                answered.push((response.initiator_task_tag.get() - 10) as u8);
            }
            Bhs::Reject(reject) => is_rejected = reject.reason == RejectReason::WaitingForLogout,
            other => panic!("{other:?}"),
        }
    }
    assert!(is_rejected, "a command after the request to log out is rejected");
    initiator.log_out();
    assert!(matches!(initiator.receive(), Some(Bhs::LogoutResponse(_))));
    assert!(initiator.receive().is_none(), "the connection ends");
    target.process.wait().success();
    assert_in_file(&world, &answered);
}

#[test]
fn an_initiator_that_does_not_log_out_is_dropped_with_what_it_was_told() {
    let world = World::new();
    // More than the target waits for.
    let target = world.target(["--lun", "0=file:disk.img,size=1MiB,seek=900ms,rotation=0s"]);
    let mut initiator = Initiator::log_in(&target);
    begin_writes(&world, &mut initiator, 8);
    terminate(&target);
    let mut answered = Vec::new();
    let mut events = Vec::new();
    while let Some(bhs) = initiator.receive() {
        match bhs {
            Bhs::ScsiResponse(response) => answered.push((response.initiator_task_tag.get() - 10) as u8),
            Bhs::AsyncMessage(message) => events.push(message.event),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(events[..], [AsyncEvent::LogoutRequest { .. }, AsyncEvent::SessionDrop { .. }]), "{events:?}");
    assert!(!answered.is_empty() && answered.len() < 8, "{answered:?}");
    // The last flush is behind the writes that are left, and is not waited for as long as these take.
    let finished = target.process.wait();
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("the last flush did not end in time"), "{}", finished.stderr);
    assert_in_file(&world, &answered);
}
