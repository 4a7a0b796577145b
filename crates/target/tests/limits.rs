//! Every bound of [`Quota`], exceeded by peers: the answer they get, and that no other session is
//! affected.

use std::sync::Arc;
use std::time::Duration;

use base::buffer::BufferPool;
use base::serial::Serial32;
use block::SharedDevice;
use iscsi::pdu::*;
use iscsi::target::CloseReason;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::limits::JOINING_MAX;
use target::{Quota, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

mod support;
use support::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Only the status shows the cause of a refusal.
const TARGET: [(&str, &str); 1] = [("TargetName", NAME)];

fn server_with(quota: Quota, read_buffers: &BufferPool) -> TargetServer {
    TargetServer::new(vec![ram_target(read_buffers)], TargetServerOptions { quota, ..Default::default() })
}

fn server(quota: Quota) -> TargetServer {
    server_with(quota, &BufferPool::new(READ_BUFFERS_BYTES))
}

/// Asks for `count` reads of `bytes` each and takes nothing of them.
async fn ask<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    client: &mut Client<S>,
    count: u32,
    bytes: usize,
) {
    for number in 0..count {
        client.command(100 + number, &cdb10(0x28, 0, (bytes / 512) as u16), None, bytes as u32).await;
    }
    let_things_happen().await;
}

/// Takes `count` reads of `bytes` each.
async fn take(client: &mut Client<DuplexStream>, count: u32, bytes: usize) {
    for _ in 0..count {
        let mut taken = 0;
        while taken < bytes {
            taken += client.receive().await.expect("all come in the end").data.length;
        }
        assert_eq!(taken, bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_reads_is_held_to_its_share_and_ended() {
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let quota = Quota { session_data_in_bytes: 2 * MIB, ..Quota::default() };
    let server = server_with(quota, &pool);
    let (mut silent, ended) = connect(&server);
    silent.log_in(1).await;
    silent.settle().await;
    let (mut other, _) = connect(&server);
    other.log_in(2).await;
    other.settle().await;
    ask(&mut silent, 100, 256 * KIB).await;
    assert!((2 * MIB..=2 * MIB + 256 * KIB).contains(&pool.bytes_out()), "{} bytes are out", pool.bytes_out());
    let going_on = tokio::spawn(async move {
        for _ in 0..24 {
            ask(&mut other, 1, 256 * KIB).await;
            take(&mut other, 1, 256 * KIB).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let reason = tokio::time::timeout(Duration::from_secs(100), ended).await.expect("it is ended");
    assert_eq!(reason.unwrap(), CloseReason::PingTimeout);
    assert!(!going_on.is_finished(), "the end came while the other session went on");
    going_on.await.expect("the other session goes on for two minutes");
    assert_eq!(pool.bytes_out(), 0, "the silent peer's buffers are free");
}

/// The same over TCP, where the kernel has buffers of its own and then shuts the window.
#[tokio::test]
async fn a_shut_tcp_window_holds_no_more_than_the_share() {
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let quota = Quota { session_data_in_bytes: 2 * MIB, ..Quota::default() };
    let options = TargetServerOptions { portals: vec![portal("127.0.0.1:0")], shards: 1, quota, ..Default::default() };
    let server = TargetServer::new(vec![ram_target(&pool)], options);
    let bound = server.bind().expect("port 0 is always free");
    let address = bound.addresses()[0];
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(bound.run(async move {
        let _ = stopped.await;
    }));
    let mut silent = Client::new(TcpStream::connect(address).await.expect("it listens"));
    silent.log_in(1).await;
    silent.settle().await;
    let mut other = Client::new(TcpStream::connect(address).await.expect("it listens"));
    other.log_in(2).await;
    other.settle().await;
    // 64 MiB: more than the kernel takes for a peer that does not read.
    ask(&mut silent, 64, MIB).await;
    for _ in 0..200 {
        other.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(other.receive().await.expect("the other session goes on").data.length, 4096);
        let out = pool.bytes_out();
        // The last data sent to the other session may not be freed yet.
        assert!(out <= 3 * MIB + 2 * 4096, "{out} bytes are out");
    }
    // Until the kernel takes no more, sessions start and stop waiting.
    let waits = async {
        while pool.bytes_out() < MIB {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("the silent peer's data waits");
    drop((silent, other));
    stop.send(()).expect("it runs");
    running.await.expect("it does not panic").expect("it ends well");
    assert_eq!(pool.bytes_out(), 0);
}

#[tokio::test]
async fn data_in_of_all_sessions_has_a_bound() {
    const SESSIONS: u32 = 6;
    const READ_BYTES: usize = 512 * KIB;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let server = server_with(Quota { data_in_bytes: 2 * MIB, ..Quota::default() }, &pool);
    let mut clients = Vec::new();
    for isid in 0..SESSIONS {
        let (mut client, _) = connect(&server);
        client.log_in(isid).await;
        client.settle().await;
        ask(&mut client, 16, READ_BYTES).await;
        clients.push(client);
    }
    // Without the bound each would have 16 MiB. A session may always have one read.
    let bound = 2 * MIB + SESSIONS as usize * READ_BYTES;
    assert!((2 * MIB..=bound).contains(&pool.bytes_out()), "{} bytes are out", pool.bytes_out());
    for client in &mut clients {
        take(client, 16, READ_BYTES).await;
    }
    assert_eq!(pool.bytes_out(), 0);
}

/// Keys of an initiator whose data-out is all solicited.
const SOLICITED: [(&str, &str); 3] = [("TargetName", NAME), ("InitialR2T", "Yes"), ("ImmediateData", "No")];

/// The R2T that comes next.
async fn r2t(client: &mut Client<DuplexStream>) -> ReadyToTransfer {
    match client.receive_bhs().await {
        Bhs::ReadyToTransfer(r2t) => r2t,
        other => panic!("{other:?} is no R2T"),
    }
}

async fn write(client: &mut Client<DuplexStream>, number: u32, bytes: usize) {
    let [_, _, high, low] = ((bytes / 512) as u32).to_be_bytes();
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&[0x2a, 0, 0, 0, 0, 0, 0, high, low, 0]);
    let command = ScsiCommand {
        is_immediate: false,
        is_final: true,
        reads: false,
        writes: true,
        attribute: TaskAttribute::Simple,
        lun: 0,
        initiator_task_tag: tag(number),
        expected_data_transfer_length: bytes as u32,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: client.exp_stat_sn,
        cdb,
    };
    client.cmd_sn = client.cmd_sn.next();
    client.send(&command, Vec::new()).await;
}

/// Answers an R2T in pieces of a size that the target accepts.
async fn answer(client: &mut Client<DuplexStream>, r2t: &ReadyToTransfer) {
    const PIECE_BYTES: u32 = 128 << 10;
    let mut sent = 0;
    let mut data_sn = Serial32(0);
    while sent < r2t.desired_data_transfer_length {
        let length = PIECE_BYTES.min(r2t.desired_data_transfer_length - sent);
        let header = DataOut {
            is_final: sent + length == r2t.desired_data_transfer_length,
            lun: 0,
            initiator_task_tag: r2t.initiator_task_tag,
            target_transfer_tag: Some(r2t.target_transfer_tag),
            exp_stat_sn: Serial32(0),
            data_sn,
            buffer_offset: r2t.buffer_offset + sent,
        };
        client.send(&header, vec![7; length as usize]).await;
        sent += length;
        data_sn = data_sn.next();
    }
}

#[tokio::test]
async fn data_out_is_asked_for_as_far_as_there_are_buffers() {
    is_asked_for_two_writes_at_once(Quota { data_out_bytes: 2 * WRITE_BYTES, ..Quota::default() }).await;
}

#[tokio::test]
async fn data_out_of_a_session_is_asked_for_as_far_as_its_share_goes() {
    is_asked_for_two_writes_at_once(Quota { session_data_out_bytes: 2 * WRITE_BYTES, ..Quota::default() }).await;
}

const WRITE_BYTES: usize = 512 * KIB;

async fn is_asked_for_two_writes_at_once(quota: Quota) {
    let server = server(quota);
    let (mut client, _) = connect(&server);
    assert!(client.try_log_in(1, 0, &SOLICITED).await.status.is_success());
    client.settle().await;
    for number in 0..4 {
        write(&mut client, 10 + number, WRITE_BYTES).await;
    }
    let asked = [r2t(&mut client).await, r2t(&mut client).await];
    let third = tokio::time::timeout(Duration::from_millis(50), client.receive()).await;
    assert!(third.is_err(), "two buffers, two R2Ts");
    for r2t in &asked {
        answer(&mut client, r2t).await;
    }
    let mut answered = 0;
    while answered < 4 {
        match client.receive_bhs().await {
            Bhs::ReadyToTransfer(r2t) => answer(&mut client, &r2t).await,
            Bhs::ScsiResponse(response) => {
                assert_eq!(response.response, ServiceResponse::CommandCompleted { status: 0 });
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_session_has_as_many_connections_as_it_may() {
    let server = server(Quota { connections_per_session: 2, ..Quota::default() });
    let keys = [("TargetName", NAME), ("MaxConnections", "4")];
    let (mut first, _) = connect(&server);
    let tsih = first.try_log_in(1, 0, &keys).await.tsih;
    let mut kept = Vec::new();
    for (cid, status) in [(1, LoginStatus::SUCCESS), (2, LoginStatus::TOO_MANY_CONNECTIONS)] {
        let (mut client, _) = connect(&server);
        client.cid = cid;
        assert_eq!(client.try_log_in(1, tsih, &keys).await.status, status, "CID {cid}");
        kept.push(client);
    }
    assert_eq!(server.status().await.connections.len(), 2);
}

/// RFC 7143 4.2.2.1: a command beyond MaxCmdSN is silently ignored; sent again inside the window, it is carried out.
#[tokio::test]
async fn a_command_beyond_the_window_is_ignored() {
    let device = Arc::new(HeldDevice::new(MIB as u64));
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::clone(&device) as SharedDevice, LogicalUnitOptions::default()));
    let quota = Quota { session_commands: 4, ..Quota::default() };
    let server = TargetServer::new(vec![Target::new(NAME, luns)], TargetServerOptions { quota, ..Default::default() });
    let (mut client, _) = connect(&server);
    let login = client.log_in(1).await;
    assert_eq!(login.max_cmd_sn.next().distance_from(login.exp_cmd_sn), 4, "the window is told");
    client.settle().await;
    for number in 0..5 {
        client.command(10 + number, &cdb10(0x2a, number, 1), Some(vec![number as u8 + 1; 512]), 512).await;
    }
    let_things_happen().await;
    assert_eq!(device.held.lock().unwrap().len(), 4, "the fifth has not begun");
    device.release();
    let mut last = None;
    for number in 0..4 {
        let Bhs::ScsiResponse(response) = client.receive_bhs().await else { panic!("a response") };
        assert_eq!(response.initiator_task_tag, tag(10 + number));
        last = Some(response);
    }
    let last = last.expect("four came");
    assert_eq!(last.max_cmd_sn.next().distance_from(last.exp_cmd_sn), 4, "the window is open again");
    assert_eq!(last.exp_cmd_sn.next(), client.cmd_sn, "the fifth was not taken");
    client.cmd_sn = last.exp_cmd_sn;
    client.command(20, &cdb10(0x2a, 4, 1), Some(vec![5; 512]), 512).await;
    let_things_happen().await;
    device.release();
    let Bhs::ScsiResponse(response) = client.receive_bhs().await else { panic!("a response") };
    assert_eq!(response.response, ServiceResponse::CommandCompleted { status: 0 });
}

#[tokio::test]
async fn a_server_has_as_many_sessions_as_it_may() {
    let server = server(Quota { sessions: 2, ..Quota::default() });
    let mut kept = Vec::new();
    for (isid, status) in [(1, LoginStatus::SUCCESS), (2, LoginStatus::SUCCESS), (3, LoginStatus::OUT_OF_RESOURCES)] {
        let (mut client, serving) = connect(&server);
        assert_eq!(client.try_log_in(isid, 0, &TARGET).await.status, status, "session {isid}");
        kept.push((client, serving));
    }
    let (mut first, serving) = kept.remove(0);
    first.log_out().await;
    assert_eq!(serving.await.unwrap(), CloseReason::Logout);
    let (mut client, _) = connect(&server);
    assert_eq!(client.try_log_in(3, 0, &TARGET).await.status, LoginStatus::SUCCESS, "there is room again");
}

#[tokio::test]
async fn an_initiator_has_as_many_connections_as_it_may() {
    let server = server(Quota { connections_per_initiator: 2, ..Quota::default() });
    let mut kept = Vec::new();
    for (isid, status) in [(1, LoginStatus::SUCCESS), (2, LoginStatus::SUCCESS), (3, LoginStatus::OUT_OF_RESOURCES)] {
        let (mut client, _) = connect(&server);
        assert_eq!(client.try_log_in(isid, 0, &TARGET).await.status, status, "session {isid}");
        kept.push(client);
    }
    let (mut another, _) = connect(&server);
    another.initiator_name = "iqn.2026-01.io.example:another";
    let response = another.try_log_in(4, 0, &TARGET).await;
    assert_eq!(response.status, LoginStatus::SUCCESS, "another initiator is another matter");
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed_at_once() {
    let server = server(Quota { connections: 2, ..Quota::default() });
    let (mut first, _) = connect(&server);
    first.log_in(1).await;
    let (mut second, _) = connect(&server);
    second.log_in(2).await;
    let (mut third, serving) = connect(&server);
    assert!(third.receive().await.is_none(), "not a word");
    assert_eq!(serving.await.unwrap(), CloseReason::Local);
    assert_eq!(server.status().await.connections_refused, 1);
    second.settle().await;
}

#[tokio::test]
async fn an_address_has_as_many_strangers_as_it_may() {
    let server = server(Quota { unauthenticated_per_address: 1, ..Quota::default() });
    let (mut stranger, _) = connect(&server);
    let_things_happen().await;
    let (mut second, _) = connect(&server);
    assert!(stranger.receive().await.is_none(), "not a word");
    second.log_in(1).await;
    let (mut third, _) = connect(&server);
    third.log_in(2).await;
}

/// However many connect and send nothing: a later client can log in.
#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_keep_nobody_of_their_address_out() {
    let server = server(Quota { unauthenticated_per_address: 4, ..Quota::default() });
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(connect(&server));
        let_things_happen().await;
    }
    let began = tokio::time::Instant::now();
    let (mut good, _) = connect(&server);
    good.log_in(1).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    let there = server.status().await.connections.len();
    assert!(there <= 5, "{there} connections are there");
}

#[tokio::test(start_paused = true)]
async fn a_login_has_its_time() {
    let times = Quota { login_time: Duration::from_secs(6), login_idle: Duration::from_secs(2), ..Quota::default() };
    // One sends nothing, the other a byte now and then: neither finishes its login.
    for pause in [Duration::from_secs(60), Duration::from_millis(500)] {
        let server = server(times);
        let began = tokio::time::Instant::now();
        let (mut client, serving) = connect(&server);
        let trickle = tokio::spawn(async move {
            for byte in [0x43; 40] {
                tokio::time::sleep(pause).await;
                if client.stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        });
        assert_eq!(serving.await.unwrap(), CloseReason::LoginTimeout);
        assert!((2..3).contains(&began.elapsed().as_secs()), "{:?} with a byte every {pause:?}", began.elapsed());
        trickle.abort();
    }
    // The login goes on without an end.
    let server = server(times);
    let began = tokio::time::Instant::now();
    let (mut client, serving) = connect(&server);
    let negotiating = tokio::spawn(async move {
        client.request_login(1, 0, None, &[("InitiatorName", HOST), ("TargetName", NAME)]).await;
        while client.receive().await.is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            client.request_login(1, 0, None, &[]).await;
        }
    });
    assert_eq!(serving.await.unwrap(), CloseReason::LoginTimeout);
    assert!((6..7).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    negotiating.abort();
}

/// Existing sessions stay; new ones meet the new bounds.
#[tokio::test]
async fn bounds_change_while_serving() {
    const READ_BYTES: usize = 256 * KIB;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let quota = Quota { session_data_in_bytes: MIB, ..Quota::default() };
    let server = server_with(quota, &pool);
    let (mut client, _) = connect(&server);
    let login = client.log_in(1).await;
    client.settle().await;
    ask(&mut client, 32, READ_BYTES).await;
    assert!(pool.bytes_out() <= MIB + READ_BYTES, "{} bytes are out", pool.bytes_out());
    server.set_quota(Quota { session_data_in_bytes: 4 * MIB, sessions: 1, session_commands: 2, ..quota });
    take(&mut client, 1, READ_BYTES).await;
    let_things_happen().await;
    assert!((3 * MIB..=4 * MIB + READ_BYTES).contains(&pool.bytes_out()), "{} bytes are out", pool.bytes_out());
    let (mut second, _) = connect(&server);
    assert_eq!(second.try_log_in(2, 0, &TARGET).await.status, LoginStatus::OUT_OF_RESOURCES);
    server.set_quota(Quota { sessions: 2, session_commands: 2, ..quota });
    let (mut third, _) = connect(&server);
    let response = third.log_in(3).await;
    assert_eq!(response.max_cmd_sn.next().distance_from(response.exp_cmd_sn), 2, "a new session has the new window");
    assert!(login.max_cmd_sn.next().distance_from(login.exp_cmd_sn) > 2);
    take(&mut client, 31, READ_BYTES).await;
    assert_eq!(pool.bytes_out(), 0);
}

/// All in the same moment, before the session handles one of them.
#[tokio::test]
async fn connections_on_their_way_into_a_session_are_bounded() {
    const COUNT: usize = 12;
    let server = server(Quota::default());
    let (mut first, _) = connect(&server);
    let login = first.try_log_in(1, 0, &[("TargetName", NAME), ("MaxConnections", "8")]).await;
    assert_eq!(login.status, LoginStatus::SUCCESS);
    let mut joining = Vec::new();
    for cid in 1..=COUNT as u16 {
        let (mut client, _) = connect(&server);
        (client.cid, client.cmd_sn) = (cid, first.cmd_sn);
        let keys = [("InitiatorName", HOST), TARGET[0]];
        client.request_login(1, login.tsih, Some(LoginStage::FullFeaturePhase), &keys).await;
        joining.push(client);
    }
    let mut statuses = Vec::new();
    for client in &mut joining {
        let Bhs::LoginResponse(response) = client.receive_bhs().await else { panic!("a login is answered") };
        statuses.push(response.status);
    }
    let count = |status| statuses.iter().filter(|&&other| other == status).count();
    // The session accepts one of these too many; the others do not get that far.
    let expected = (JOINING_MAX - 1, 1, COUNT - JOINING_MAX);
    let counts = (
        count(LoginStatus::SUCCESS),
        count(LoginStatus::TOO_MANY_CONNECTIONS),
        count(LoginStatus::SESSION_DOES_NOT_EXIST),
    );
    assert_eq!(counts, expected, "{statuses:?}");
}

/// The function comes behind the read in the queue of the session.
#[tokio::test]
async fn an_abort_does_not_wait_for_the_room_of_the_read_that_it_aborts() {
    const BYTES: u32 = 256 << 10;
    let server = server(Quota { session_data_in_bytes: 64 << 10, ..Quota::default() });
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let first = client.cmd_sn;
    for number in [1, 2] {
        client.command(number, &cdb10(0x28, 0, (BYTES / 512) as u16), None, BYTES).await;
    }
    let abort = TaskManagementRequest {
        is_immediate: true,
        function: Ok(TaskManagementFunction::AbortTask),
        lun: 0,
        initiator_task_tag: tag(20),
        referenced_task_tag: Some(tag(2)),
        cmd_sn: client.cmd_sn,
        exp_stat_sn: client.exp_stat_sn,
        ref_cmd_sn: first.next(),
        exp_data_sn: Serial32(0),
    };
    client.send(&abort, Vec::new()).await;
    let_things_happen().await;
    let Bhs::DataIn(data) = client.receive_bhs().await else { panic!("the first has all room that there is") };
    assert_eq!(data.initiator_task_tag, tag(1));
    let Bhs::TaskManagementResponse(response) = client.receive_bhs().await else { panic!("the second is aborted") };
    assert_eq!(response.outcome, TaskManagementOutcome::FunctionComplete);
}
