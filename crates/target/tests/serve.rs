//! The server over streams and sockets, with an initiator that is no more than framing and a script.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::serial::Serial32;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use iscsi::pdu::*;
use iscsi::target::{AccessRule, NamePattern, TargetPortal};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, NexusId};
use scsi::{Cdb, Status};
use target::limits::{DRAIN_GRACE, DRAIN_SECONDS, LINGER_TIMEOUT, SESSION_DATA_IN_BYTES_MAX, SETTLING_TIMEOUT};
use target::{Addresses, LunMask, MaskedLun, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

mod support;
use support::*;

fn server() -> TargetServer {
    TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], TargetServerOptions::default())
}

#[tokio::test]
async fn what_is_written_is_read_and_counted() {
    let server = server();
    let (mut client, serving) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let data: Vec<u8> = (0..4096u32).map(|index| (index * 7) as u8).collect();
    client.command(5, &cdb10(0x2a, 8, 8), Some(data.clone()), 4096).await;
    assert!(matches!(
        client.receive_bhs().await,
        Bhs::ScsiResponse(ScsiResponse { response: ServiceResponse::CommandCompleted { status: 0 }, .. })
    ));
    client.command(6, &cdb10(0x28, 8, 8), None, 4096).await;
    let read = client.receive().await.expect("the data comes");
    assert_eq!(read.data.bytes(), data);
    let status = server.status().await;
    assert_eq!((status.sessions.len(), status.connections.len()), (1, 1));
    let lun = &status.luns[0];
    assert_eq!((lun.reads, lun.read_bytes, lun.writes, lun.written_bytes), (1, 4096, 1, 4096));
    assert_eq!(status.pdus_received, 5);
    client.log_out().await;
    assert!(matches!(client.receive_bhs().await, Bhs::LogoutResponse(_)));
    assert!(client.receive().await.is_none(), "the target closes");
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::Logout);
    assert_eq!(server.status().await.sessions, []);
}

/// A stream that reports every write before it takes it.
struct Witness<S, W> {
    stream: S,
    before_write: W,
}

impl<S: AsyncRead + Unpin, W: Unpin> AsyncRead for Witness<S, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, W: FnMut(&[u8]) + Unpin> AsyncWrite for Witness<S, W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        (self.before_write)(bytes);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// libiscsi's Sanitize.Reset failed now and then: the test before it logs out a second session that
/// holds a RESERVE(6), and the SANITIZE of the first one still met the reservation.
#[tokio::test]
async fn a_reservation_is_gone_before_the_logout_is_answered() {
    let ram = ram_target(&BufferPool::new(READ_BUFFERS_BYTES));
    let luns = ram.luns.clone();
    let server = TargetServer::new(vec![ram], TargetServerOptions::default());
    let other = NexusId::new("another host,i,0x1,target,t,0x1");
    luns.add_nexus(&other);
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&statuses);
    let before_write = move |bytes: &[u8]| {
        let test_unit_ready = logical_unit::Command {
            cdb: Ok(Cdb::TestUnitReady),
            data_out: Buffer::empty(),
            data_in_bytes_max: 0,
            attribute: scsi::TaskAttribute::Simple,
            task_tag: 1,
        };
        let outcome = luns.execute(&other, 0, test_unit_ready).try_take().expect("it waits for nothing");
        seen.lock().unwrap().push((bytes[0] & 0x3f, outcome.status));
    };
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let stream = Witness { stream: theirs, before_write };
    let serving = tokio::spawn(async move { server.serve_connection(stream, Addresses::default()).await });
    let mut client = Client::new(ours);
    client.log_in(1).await;
    client.settle().await;
    client.command(5, &[0x16, 0, 0, 0, 0, 0], None, 0).await;
    client.receive().await.expect("RESERVE(6) is answered");
    client.log_out().await;
    assert!(matches!(client.receive_bhs().await, Bhs::LogoutResponse(_)));
    serving.await.unwrap();
    let statuses = statuses.lock().unwrap();
    let last = &statuses[statuses.len() - 2..];
    assert_eq!(last, [(0x21, Status::ReservationConflict), (0x26, Status::Good)], "before each response was written");
}

#[tokio::test]
async fn the_same_initiator_port_replaces_its_session() {
    let server = server();
    let (mut first, serving) = connect(&server);
    let old = first.log_in(1).await;
    let (mut other, _) = connect(&server);
    other.log_in(2).await;
    let (mut second, _) = connect(&server);
    let new = second.log_in(1).await;
    assert_ne!(old.tsih, new.tsih);
    assert!(first.receive().await.is_none(), "the old connection is closed");
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::Local);
    assert_eq!(server.status().await.sessions.len(), 2, "another ISID is another session");
    second.command(5, &[0; 6], None, 0).await;
    let Bhs::ScsiResponse(response) = second.receive_bhs().await else { panic!("a response") };
    let attention = ServiceResponse::CommandCompleted { status: 2 };
    assert_eq!(response.response, attention, "the nexus was lost: there is a unit attention");
}

#[tokio::test]
async fn a_reinstatement_waits_for_io_of_the_session_it_replaces() {
    let (device, server, mut old) = with_a_held_write().await;
    let (mut new, _) = connect(&server);
    let login = tokio::spawn(async move {
        new.log_in(1).await;
        new
    });
    assert!(old.receive().await.is_none(), "the old connection is closed at once");
    let_things_happen().await;
    assert!(!login.is_finished(), "its write may still land");
    device.release();
    let mut new = login.await.unwrap();
    new.settle().await;
    new.command(5, &cdb10(0x28, 0, 1), None, 512).await;
    let pdu = new.receive().await.expect("the read is answered");
    assert_eq!(pdu.data.bytes(), [7; 512], "and it did, before the new session began");
}

/// A backend that never answers does not exclude its initiator for ever: each login waits as long
/// as one may take, and the first that waits or comes after a minute is admitted.
#[tokio::test(start_paused = true)]
async fn an_initiator_that_tries_again_is_let_in_after_a_minute_whatever_the_backend_does() {
    let (_device, server, mut old) = with_a_held_write().await;
    let begun = tokio::time::Instant::now();
    let logging_in = async {
        loop {
            let (mut new, serving) = connect(&server);
            tokio::select! {
                biased;
                ended = serving => assert_eq!(ended.unwrap(), iscsi::target::CloseReason::LoginTimeout),
                _ = new.log_in(1) => return,
            }
        }
    };
    tokio::time::timeout(10 * SETTLING_TIMEOUT, logging_in).await.expect("it is let in");
    assert!((SETTLING_TIMEOUT..2 * SETTLING_TIMEOUT).contains(&begun.elapsed()), "after {:?}", begun.elapsed());
    assert!(old.receive().await.is_none(), "the old connection was closed");
}

#[tokio::test]
async fn an_abort_waits_for_io_under_way() {
    for function in [
        TaskManagementFunction::AbortTask,
        TaskManagementFunction::AbortTaskSet,
        TaskManagementFunction::ClearTaskSet,
        TaskManagementFunction::LogicalUnitReset,
        TaskManagementFunction::TargetWarmReset,
    ] {
        let (device, _server, mut client) = with_a_held_write().await;
        let request = TaskManagementRequest {
            is_immediate: true,
            function: Ok(function),
            lun: 0,
            initiator_task_tag: tag(9),
            referenced_task_tag: (function == TaskManagementFunction::AbortTask).then(|| tag(5)),
            cmd_sn: client.cmd_sn,
            exp_stat_sn: Serial32(0),
            ref_cmd_sn: client.cmd_sn,
            exp_data_sn: Serial32(0),
        };
        client.send(&request, Vec::new()).await;
        let answer = tokio::spawn(async move { client.receive_bhs().await });
        let_things_happen().await;
        assert!(!answer.is_finished(), "{function}");
        device.release();
        let Bhs::TaskManagementResponse(response) = answer.await.unwrap() else { panic!("no word of the task itself") };
        assert_eq!(response.outcome, TaskManagementOutcome::FunctionComplete, "{function}");
    }
}

/// RFC 7143 11.14, 4.6.3.3: after the response the initiator may pass on what it wrote.
#[tokio::test]
async fn a_logout_waits_for_io_under_way() {
    let (device, server, mut client) = with_a_held_write().await;
    client.log_out().await;
    let answer = tokio::spawn(async move { client.receive_bhs().await });
    let_things_happen().await;
    assert!(!answer.is_finished(), "its write may still land");
    assert_eq!(server.status().await.sessions.len(), 1);
    device.release();
    let Bhs::LogoutResponse(response) = answer.await.unwrap() else { panic!("no word of the write itself") };
    assert_eq!(response.outcome, LogoutOutcome::Closed);
}

#[tokio::test]
async fn a_connection_is_logged_out_when_its_io_has_ended() {
    let device = Arc::new(HeldDevice::new(1 << 20));
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::clone(&device) as SharedDevice, LogicalUnitOptions::default()));
    let server = TargetServer::new(vec![Target::new(NAME, luns)], TargetServerOptions::default());
    let (mut first, _) = connect(&server);
    let keys = [("TargetName", NAME), ("MaxConnections", "2")];
    let tsih = first.try_log_in(1, 0, &keys).await.tsih;
    first.settle().await;
    let (mut second, serving) = connect(&server);
    (second.cid, second.cmd_sn) = (1, first.cmd_sn);
    assert_eq!(second.try_log_in(1, tsih, &[("TargetName", NAME)]).await.status, LoginStatus::SUCCESS);
    second.command(5, &cdb10(0x2a, 0, 1), Some(vec![7; 512]), 512).await;
    let_things_happen().await;
    first.cmd_sn = second.cmd_sn;
    let request = LogoutRequest {
        is_immediate: true,
        reason: LogoutReason::CloseConnection,
        initiator_task_tag: tag(77),
        cid: 1,
        cmd_sn: first.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    first.send(&request, Vec::new()).await;
    // The first connection goes on, and a unit attention reports that commands ended with the other
    // one.
    assert_eq!(first.sense_of(&[0; 6], None).await, (6, 0x47, 0x7f));
    first.command(42, &[0; 6], None, 0).await;
    assert!(matches!(first.receive_bhs().await, Bhs::ScsiResponse(_)), "the logout is not answered yet");
    assert!(!serving.is_finished());
    device.release();
    assert!(matches!(first.receive_bhs().await, Bhs::LogoutResponse(_)));
    assert!(second.receive().await.is_none(), "the connection is closed without a word of its write");
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::LoggedOut);
}

#[tokio::test]
async fn a_session_is_joined_only_if_it_exists_and_has_room() {
    let server = server();
    let (mut first, _) = connect(&server);
    let tsih = first.log_in(1).await.tsih;
    for (tsih, status) in
        [(tsih.wrapping_add(1000), LoginStatus::SESSION_DOES_NOT_EXIST), (tsih, LoginStatus::TOO_MANY_CONNECTIONS)]
    {
        let (mut client, _) = connect(&server);
        client.cid = 1;
        assert_eq!(client.try_log_in(1, tsih, &[("TargetName", NAME)]).await.status, status);
        assert!(client.receive().await.is_none());
    }
    assert_eq!(server.status().await.logins_refused, 2);
    assert_eq!(server.status().await.sessions.len(), 1);
}

/// RFC 7143 6.3.4: the same CID replaces its old connection, even where only one connection is
/// allowed.
#[tokio::test]
async fn the_same_connection_id_replaces_its_connection_and_keeps_the_session() {
    let server = server();
    let (mut first, _) = connect(&server);
    let tsih = first.log_in(1).await.tsih;
    first.settle().await;
    let (mut second, serving) = connect(&server);
    second.cmd_sn = first.cmd_sn;
    let response = second.try_log_in(1, tsih, &[("TargetName", NAME)]).await;
    assert_eq!((response.status, response.tsih), (LoginStatus::SUCCESS, tsih));
    assert!(first.receive().await.is_none(), "the old connection is closed");
    second.command(5, &[0; 6], None, 0).await;
    let Bhs::ScsiResponse(response) = second.receive_bhs().await else { panic!("a response") };
    let good = ServiceResponse::CommandCompleted { status: 0 };
    assert_eq!(response.response, good, "the nexus was not lost");
    second.log_out().await;
    assert!(matches!(second.receive_bhs().await, Bhs::LogoutResponse(_)));
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::Logout);
    assert_eq!(server.status().await.sessions, []);
}

/// RFC 7143 4.2.2.1, 4.2.5.1: commands of two connections are one sequence, and each is answered on
/// its own connection.
#[tokio::test]
async fn two_connections_share_one_command_order() {
    let server = server();
    let (mut first, _) = connect(&server);
    let keys = [("TargetName", NAME), ("MaxConnections", "2")];
    let tsih = first.try_log_in(1, 0, &keys).await.tsih;
    first.settle().await;
    let (mut second, _) = connect(&server);
    (second.cid, second.cmd_sn) = (1, first.cmd_sn);
    assert_eq!(second.try_log_in(1, tsih, &[("TargetName", NAME)]).await.status, LoginStatus::SUCCESS);
    let earlier = first.cmd_sn;
    second.cmd_sn = earlier.next();
    second.command(6, &[0; 6], None, 0).await;
    let too_early = tokio::time::timeout(Duration::from_millis(50), second.receive()).await;
    assert!(too_early.is_err(), "a command waits for those before it");
    first.command(5, &[0; 6], None, 0).await;
    let tag_of = |bhs| match bhs {
        Bhs::ScsiResponse(response) => response.initiator_task_tag.get(),
        other => panic!("{other:?}"),
    };
    assert_eq!(tag_of(first.receive_bhs().await), 5);
    assert_eq!(tag_of(second.receive_bhs().await), 6);
}

#[tokio::test]
async fn a_slow_peer_holds_no_more_buffers_than_its_share() {
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let server = TargetServer::new(vec![ram_target(&pool)], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    for number in 0..64 {
        client.command(100 + number, &cdb10(0x28, 0, 2048), None, 1 << 20).await;
    }
    // A turn of a session ends early on a busy machine: its share of the time has an end.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
        assert!(pool.bytes_out() <= SESSION_DATA_IN_BYTES_MAX + (1 << 20), "{} bytes are out", pool.bytes_out());
    }
    assert!(pool.bytes_out() > 0);
    for _ in 0..64 {
        let pdu = client.receive().await.expect("all come in the end");
        assert_eq!(pdu.data.bytes().len(), 1 << 20);
    }
    assert_eq!(pool.bytes_out(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_does_not_hold_the_end_up() {
    let server = server();
    let (mut client, serving) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    client.command(5, &cdb10(0x28, 0, 2048), None, 1 << 20).await;
    client.log_out().await;
    let ended = tokio::time::timeout(Duration::from_secs(60), serving).await.expect("it ends");
    assert_eq!(ended.unwrap(), iscsi::target::CloseReason::Logout);
}

/// A backend may be a remote target that is away, and its session waits for it for minutes.
#[tokio::test(start_paused = true)]
async fn io_that_does_not_end_does_not_hold_the_end_of_a_server_up() {
    for (logs_out, drain_seconds) in [(false, DRAIN_SECONDS), (true, DRAIN_SECONDS), (false, 1), (true, 1)] {
        let options = TargetServerOptions { drain_seconds, ..TargetServerOptions::default() };
        let (_device, server, mut client) = with_a_held_write_at(options).await;
        let begun = tokio::time::Instant::now();
        if logs_out {
            client.log_out().await;
            let_things_happen().await;
        }
        tokio::time::timeout(10 * SETTLING_TIMEOUT, server.drain()).await.expect("it ends");
        let bound =
            Duration::from_secs(drain_seconds.into()) + DRAIN_GRACE + LINGER_TIMEOUT + Duration::from_millis(100);
        assert!(begun.elapsed() < bound, "after {:?} of {bound:?}, logging out: {logs_out}", begun.elapsed());
    }
}

#[tokio::test]
async fn portals_of_both_families_serve_until_the_shutdown() {
    let portals = ["127.0.0.1:0", "[::1]:0"].map(portal).to_vec();
    let options = TargetServerOptions { portals, shards: 2, ..TargetServerOptions::default() };
    let server = TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], options);
    let bound = server.bind().expect("port 0 is always free");
    let addresses = bound.addresses().to_vec();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(bound.run(async move {
        let _ = stopped.await;
    }));
    let mut clients = Vec::new();
    for (isid, address) in addresses.iter().enumerate() {
        let mut client = Client::new(TcpStream::connect(address).await.expect("it listens"));
        client.log_in(isid as u32).await;
        clients.push(client);
    }
    assert_eq!(server.status().await.connections.len(), 2);
    stop.send(()).expect("it runs");
    for client in &mut clients {
        let Bhs::AsyncMessage(message) = client.receive_bhs().await else { panic!("it asks for a logout") };
        assert!(matches!(message.event, AsyncEvent::LogoutRequest { .. }));
        client.log_out().await;
        assert!(matches!(client.receive_bhs().await, Bhs::LogoutResponse(_)));
    }
    let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
    ended.expect("nothing holds it up").expect("it does not panic").expect("it ends well");
    assert!(TcpStream::connect(addresses[0]).await.is_err(), "it does not listen any more");
}

/// An initiator that waits for each answer and acknowledges it: the session polls its socket in
/// between, without the runtime. Some rounds begin with a rest longer than the busy polling, after
/// which the session must be asleep and be woken.
#[tokio::test]
async fn a_session_that_looks_at_its_socket_loses_nothing() {
    let busy_poll = Duration::from_micros(50);
    let options =
        TargetServerOptions { portals: vec![portal("127.0.0.1:0")], shards: 1, busy_poll, ..Default::default() };
    let server = TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], options);
    let bound = server.bind().expect("port 0 is always free");
    let address = bound.addresses()[0];
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(bound.run(async move {
        let _ = stopped.await;
    }));
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("TCP has it");
    let mut client = Client::new(stream);
    let login = client.log_in(1).await;
    client.exp_stat_sn = login.stat_sn.next();
    for number in 0..2 {
        client.command(number, &[0; 6], None, 0).await;
        client.acknowledge().await;
    }
    for round in 0..300u32 {
        if round % 16 == 0 {
            tokio::time::sleep(10 * busy_poll).await;
        }
        let data: Vec<u8> = (0..4096u32).map(|index| (index * 7 + round) as u8).collect();
        let lba = round * 8;
        client.command(5, &cdb10(0x2a, lba, 8), Some(data.clone()), 4096).await;
        client.acknowledge().await;
        client.command(6, &cdb10(0x28, lba, 8), None, 4096).await;
        assert_eq!(client.acknowledge().await, data, "round {round}");
    }
    let lun = &server.status().await.luns[0];
    assert_eq!((lun.reads, lun.writes), (300, 300));
    assert!(server.status().await.busy_poll.begun > 0, "it looked");
    drop(client);
    stop.send(()).expect("it runs");
    running.await.expect("it does not panic").expect("it ends well");
}

#[tokio::test]
async fn discovery_names_the_address_that_was_reached() {
    let options = TargetServerOptions { portals: vec![portal("0.0.0.0:3260")], ..Default::default() };
    let server = TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], options);
    let (mut client, _) = connect(&server);
    assert!(client.try_log_in(1, 0, &[("SessionType", "Discovery")]).await.status.is_success());
    let request = TextRequest {
        is_immediate: true,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: tag(2),
        target_transfer_tag: None,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    client.send(&request, b"SendTargets=All\0".to_vec()).await;
    let pdu = client.receive().await.expect("the target answers");
    let expected = format!("TargetName={NAME}\0TargetAddress=127.0.0.1:3260,1\0");
    assert_eq!(String::from_utf8_lossy(pdu.data.bytes()), expected);
}

#[tokio::test]
async fn sessions_of_a_removed_target_are_asked_to_end() {
    let server = server();
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    server.set_targets(Vec::new());
    assert!(matches!(client.receive_bhs().await, Bhs::AsyncMessage(_)));
    let (mut late, _) = connect(&server);
    assert_eq!(late.try_log_in(2, 0, &[("TargetName", NAME)]).await.status, LoginStatus::NOT_FOUND);
}

#[tokio::test]
async fn a_reset_of_the_target_ends_its_sessions() {
    let server = server();
    let (mut client, serving) = connect(&server);
    client.log_in(1).await;
    let request = TaskManagementRequest {
        is_immediate: true,
        function: Ok(TaskManagementFunction::TargetColdReset),
        lun: 0,
        initiator_task_tag: tag(9),
        referenced_task_tag: None,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: Serial32(0),
        ref_cmd_sn: Serial32(0),
        exp_data_sn: Serial32(0),
    };
    client.send(&request, Vec::new()).await;
    let Bhs::TaskManagementResponse(response) = client.receive_bhs().await else { panic!("it answers first") };
    assert_eq!(response.outcome, TaskManagementOutcome::FunctionComplete);
    assert!(client.receive().await.is_none());
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::Local);
}

#[test]
fn a_portal_that_is_taken_is_named_in_the_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = taken.local_addr().unwrap();
    let portals = vec![TargetPortal { address: portal, group: 1 }];
    let options = TargetServerOptions { portals, ..TargetServerOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let error = TargetServer::new(Vec::new(), options).bind().err().expect("it is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&portal.to_string()), "{error}");
}

/// A target of two LUNs with rules: the first is for a host that sees LUN 1 as 0 and may only read
/// it.
fn masked(names: &[&str], of: u64, is_read_only: bool) -> (Vec<AccessRule>, Vec<LunMask>) {
    let initiators = names.iter().map(|name| NamePattern::new(*name)).collect();
    let rules = vec![AccessRule { initiators, accounts: Vec::new() }];
    (rules, vec![LunMask { luns: Some(vec![MaskedLun { lun: 0, of, is_read_only }]), is_read_only: false }])
}

fn two_luns() -> Target {
    let target = ram_target(&BufferPool::new(READ_BUFFERS_BYTES));
    let identity = Identity { target: NAME.to_owned(), unit: "1".to_owned(), serial: "two".to_owned() };
    let options = LogicalUnitOptions::default();
    target.luns.insert(1, LogicalUnit::new(Arc::new(MemoryDevice::new(1 << 20, identity)), options));
    target
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn capacity(&mut self) -> u64 {
        self.command(41, &[0x25], None, 8).await;
        let pdu = self.receive().await.expect("it is answered");
        u64::from(u32::from_be_bytes(pdu.data.bytes()[..4].try_into().expect("READ CAPACITY(10) has eight bytes")))
    }
}

#[tokio::test]
async fn an_initiator_sees_what_its_rule_shows_and_may_only_read_it() {
    let mut target = two_luns();
    (target.access.0, target.masks) = masked(&["iqn.2026-01.io.example:h*"], 1, true);
    let server = TargetServer::new(vec![target], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    assert_eq!(client.capacity().await, (1 << 20) / 512 - 1, "LUN 0 is the target's LUN 1");
    assert_eq!(client.sense_of(&cdb10(0x2a, 0, 1), Some(vec![1; 512])).await, (7, 0x27, 0), "write protected");
    client.command(42, &[0x1a, 0, 0x3f, 0, 0xff, 0], None, 0xff).await;
    let mode = client.receive().await.expect("MODE SENSE is answered");
    assert_eq!(mode.data.bytes()[2] & 0x80, 0x80, "and MODE SENSE says so");
}

#[tokio::test]
async fn an_initiator_without_a_rule_is_not_authorized() {
    let mut target = two_luns();
    (target.access.0, target.masks) = masked(&["iqn.2026-01.io.example:another"], 0, false);
    let server = TargetServer::new(vec![target], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    let response = client.try_log_in(1, 0, &[("TargetName", NAME)]).await;
    assert_eq!(response.status, LoginStatus::AUTHORIZATION_FAILURE);
}

#[tokio::test]
async fn a_target_is_not_found_in_a_portal_group_that_is_not_its_own() {
    let mut target = two_luns();
    target.portal_groups = Some(vec![2]);
    let server = TargetServer::new(vec![target], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    assert_eq!(client.try_log_in(1, 0, &[("TargetName", NAME)]).await.status, LoginStatus::NOT_FOUND);
}

#[tokio::test]
async fn masks_change_under_sessions_that_are_told() {
    let mut target = two_luns();
    let server = TargetServer::new(vec![target.clone()], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let write = || Some(vec![1; 512]);
    assert_eq!(client.sense_of(&cdb10(0x2a, 0, 1), write()).await, (0, 0, 0));
    // Without a change there is no unit attention.
    assert_eq!(server.set_targets(vec![target.clone()]), 0);
    assert_eq!(client.sense_of(&[0; 6], None).await, (0, 0, 0));
    // LUN 1 goes, and LUN 0 may only be read.
    (target.access.0, target.masks) = masked(&["*"], 0, true);
    assert_eq!(server.set_targets(vec![target.clone()]), 0);
    assert_eq!(client.sense_of(&[0; 6], None).await, (6, 0x2a, 1), "mode parameters changed");
    assert_eq!(client.sense_of(&[0; 6], None).await, (6, 0x3f, 0x0e), "reported LUNs data has changed");
    assert_eq!(client.sense_of(&cdb10(0x2a, 0, 1), write()).await, (7, 0x27, 0));
    // LUN 0 goes, too.
    target.masks[0].luns = Some(Vec::new());
    server.set_targets(vec![target.clone()]);
    assert_eq!(client.sense_of(&[0; 6], None).await, (5, 0x25, 0), "logical unit not supported");
    // It comes back: a unit that this nexus has not met.
    target.masks.clear();
    server.set_targets(vec![target.clone()]);
    assert_eq!(client.sense_of(&[0; 6], None).await, (6, 0x29, 0));
    assert_eq!(client.sense_of(&cdb10(0x2a, 0, 1), write()).await, (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_session_no_longer_allowed_is_asked_to_log_out_and_then_dropped() {
    let mut target = two_luns();
    let server = TargetServer::new(vec![target.clone()], TargetServerOptions::default());
    let (mut client, serving) = connect(&server);
    client.log_in(1).await;
    (target.access.0, target.masks) = masked(&["iqn.2026-01.io.example:another"], 0, false);
    assert_eq!(server.set_targets(vec![target]), 1);
    let mut events = Vec::new();
    while let Some(pdu) = client.receive().await {
        let Ok(Bhs::AsyncMessage(message)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        events.push(message.event);
    }
    assert!(matches!(events[..], [AsyncEvent::LogoutRequest { .. }, AsyncEvent::SessionDrop { .. }]), "{events:?}");
    assert_eq!(serving.await.unwrap(), iscsi::target::CloseReason::Local);
}
