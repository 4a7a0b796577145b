//! Peers that use shared resources and give nothing back: others go on beside them, and the peers
//! lose what they hold.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use base::buffer::BufferPool;
use base::serial::Serial32;
use block::Identity;
use block::memory::MemoryDevice;
use iscsi::limits::{NEGOTIATION_EXCHANGES_MAX, STAGING_BYTES, WORK_PER_TURN};
use iscsi::pdu::*;
use iscsi::target::CloseReason;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Addresses, LunStatus, Quota, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod support;
use support::endless::{AdvancingClock, Endless};
use support::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What docs/concepts/limits.md promises: for commands before which one is missing, which are looked at every ten
/// seconds, and for a session without a connection.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60 + 10);
const RETAINED_TIME_MAX: Duration = Duration::from_secs(120);
/// Where time is the model's, and passes only while nothing else can.
const A_SECOND: Duration = Duration::from_secs(1);

/// A RAM disk with the buffers that a logical unit has by default.
fn plain_server(quota: Quota) -> TargetServer {
    let luns = LunMap::new();
    let device = MemoryDevice::new(64 << 20, Identity::default());
    luns.insert(0, LogicalUnit::new(Arc::new(device), LogicalUnitOptions::default()));
    TargetServer::new(vec![Target::new(NAME, luns)], TargetServerOptions { quota, ..Default::default() })
}

async fn session(server: &TargetServer, isid: u32) -> (Client<DuplexStream>, JoinHandle<CloseReason>) {
    let (mut client, serving) = connect(server);
    client.log_in(isid).await;
    client.settle().await;
    (client, serving)
}

/// READ(16) of 512-byte blocks.
fn read16(blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// WRITE SAME(16) of one block, not zero, over `blocks`.
fn write_same16(blocks: u32) -> [u8; 16] {
    let mut cdb = read16(blocks);
    cdb[0] = 0x93;
    cdb
}

/// Waits at most ten seconds of virtual time, which passes only while no task can run.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(10), future).await {
        Ok(result) => result,
        Err(_) => panic!("{what} waits for peers that hold everything"),
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_that_do_not_read_leave_reads_to_others() {
    let server = plain_server(Quota::default());
    let mut silent = Vec::new();
    for isid in 0..6 {
        let (mut client, serving) = session(&server, isid).await;
        for number in 0..16 {
            client.command(100 + number, &cdb10(0x28, 0, 2048), None, MIB as u32).await;
        }
        let_things_happen().await;
        silent.push((client, serving));
    }
    let (mut good, _serving) = session(&server, 100).await;
    for number in 0..20 {
        good.command(number, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(soon("a read", good.receive()).await.expect("it goes on").data.length, 4096);
    }
    good.command(50, &write_same16(4096), Some(vec![7; 512]), 512).await;
    soon("a WRITE SAME", good.receive()).await.expect("it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_read_of_which_little_is_wanted_holds_little() {
    const BLOCKS: u32 = 32768;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let server = TargetServer::new(vec![ram_target(&pool)], TargetServerOptions::default());
    let (mut client, _serving) = session(&server, 1).await;
    // The pipe is full from here on.
    client.command(100, &cdb10(0x28, 0, 512), None, 256 * KIB as u32).await;
    for number in 0..8 {
        client.command(200 + number, &read16(BLOCKS), None, 512).await;
    }
    let_things_happen().await;
    let out = pool.bytes_out();
    assert!(out <= 256 * KIB + 8 * 4096, "{out} bytes are out for nine commands that want 260 KiB");
    assert_eq!(client.receive().await.expect("the first read").data.length, 256 * KIB);
    for _ in 0..8 {
        let pdu = client.receive().await.expect("the others");
        assert_eq!(pdu.data.length, 512);
        let Ok(Bhs::DataIn(data)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        let status = data.status.expect("it rides on the data");
        assert_eq!((status.status, status.residual), (0, Residual::Overflow(BLOCKS * 512 - 512)));
    }
}

/// A session may always have one read of a MiB; larger reads wait for room, and a peer that holds
/// room and does not read loses it.
#[tokio::test(start_paused = true)]
async fn large_reads_of_all_sessions_wait_until_there_is_room() {
    const SESSIONS: u32 = 8;
    const READ_BYTES: usize = 4 * MIB;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let quota = Quota { data_in_bytes: 2 * READ_BYTES, ..Quota::default() };
    let server = TargetServer::new(vec![ram_target(&pool)], TargetServerOptions { quota, ..Default::default() });
    let mut clients = Vec::new();
    for isid in 0..SESSIONS {
        let (mut client, serving) = session(&server, isid).await;
        client.command(100, &read16((READ_BYTES / 512) as u32), None, READ_BYTES as u32).await;
        let_things_happen().await;
        clients.push((client, serving));
    }
    assert_eq!(pool.bytes_out(), 2 * READ_BYTES, "as many reads are under way as there is room for");
    let (mut last, _serving) = clients.pop().expect("there are eight");
    let mut taken = 0;
    let reading = async {
        while taken < READ_BYTES {
            taken += last.receive().await.expect("its turn comes").data.length;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("who does not read makes room");
    drop(clients);
}

/// Keys of an initiator whose data-out is all solicited.
const SOLICITED: [(&str, &str); 3] = [("TargetName", NAME), ("InitialR2T", "Yes"), ("ImmediateData", "No")];

async fn solicited(server: &TargetServer, isid: u32) -> (Client<DuplexStream>, JoinHandle<CloseReason>) {
    let (mut client, serving) = connect(server);
    assert!(client.try_log_in(isid, 0, &SOLICITED).await.status.is_success());
    client.settle().await;
    (client, serving)
}

/// WRITE(16) whose data is still to come.
async fn write(client: &mut Client<DuplexStream>, number: u32, bytes: usize, is_final: bool, immediate: Vec<u8>) {
    let mut cdb = read16((bytes / 512) as u32);
    cdb[0] = 0x8a;
    let command = ScsiCommand {
        is_immediate: false,
        is_final,
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
    client.send(&command, immediate).await;
}

/// An ordinary write: answers R2Ts until the response comes.
async fn write_whole(client: &mut Client<DuplexStream>, number: u32, bytes: usize) {
    write(client, number, bytes, true, Vec::new()).await;
    loop {
        match client.receive_bhs().await {
            Bhs::ReadyToTransfer(r2t) => {
                let header = DataOut {
                    is_final: true,
                    lun: 0,
                    initiator_task_tag: r2t.initiator_task_tag,
                    target_transfer_tag: Some(r2t.target_transfer_tag),
                    exp_stat_sn: Serial32(0),
                    data_sn: Serial32(0),
                    buffer_offset: r2t.buffer_offset,
                };
                client.send(&header, vec![7; r2t.desired_data_transfer_length as usize]).await;
            }
            Bhs::ScsiResponse(response) => {
                assert_eq!(response.response, ServiceResponse::CommandCompleted { status: 0 });
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Answers pings, as a peer does that wants to keep its resources.
fn keep_alive(mut client: Client<DuplexStream>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(pdu) = client.receive().await {
            if let Ok(Bhs::NopIn(ping)) = pdu.header.bhs
                && ping.target_transfer_tag.is_some()
            {
                let answer = NopOut {
                    is_immediate: true,
                    lun: 0,
                    initiator_task_tag: None,
                    target_transfer_tag: ping.target_transfer_tag,
                    cmd_sn: client.cmd_sn,
                    exp_stat_sn: Serial32(0),
                };
                // The target may close meanwhile.
                let bytes = answer.to_bytes();
                if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &bytes).await.is_err() {
                    return;
                }
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn r2ts_without_an_answer_leave_buffers_to_others_and_have_a_deadline() {
    let server = plain_server(Quota::default());
    let mut greedy = Vec::new();
    for isid in 0..6 {
        let (mut client, serving) = solicited(&server, isid).await;
        for number in 0..20 {
            write(&mut client, 100 + number, 16 * MIB, true, Vec::new()).await;
        }
        let_things_happen().await;
        greedy.push((keep_alive(client), serving));
    }
    let (mut good, _serving) = solicited(&server, 100).await;
    for number in 0..20 {
        soon("a write", write_whole(&mut good, number, 64 * KIB)).await;
    }
    for (answering, serving) in greedy {
        let ended = tokio::time::timeout(Duration::from_secs(120), serving).await;
        ended.expect("who holds buffers without sending data loses them").expect("it does not panic");
        answering.abort();
    }
    // The good one has answered no pings meanwhile.
    let (mut next, _serving) = solicited(&server, 101).await;
    soon("a large write", write_whole(&mut next, 300, 256 * KIB)).await;
}

/// A command whose turn never comes may hold its data only for a while.
#[tokio::test(start_paused = true)]
async fn commands_behind_a_missing_number_have_a_deadline() {
    let server = plain_server(Quota::default());
    let (mut client, serving) = session(&server, 1).await;
    client.cmd_sn = client.cmd_sn.next();
    for number in 0..32 {
        write(&mut client, 100 + number, 4096, true, vec![7; 4096]).await;
    }
    let sent = Instant::now();
    let answering = keep_alive(client);
    let ended = tokio::time::timeout_at(sent + COMMAND_TIME_MAX + A_SECOND, serving).await;
    ended.expect("the number does not come").expect("it does not panic");
    answering.abort();
}

/// Keys of an initiator that wants its tasks kept for two hours.
const RETAINED: [(&str, &str); 4] =
    [("TargetName", NAME), ("ErrorRecoveryLevel", "2"), ("DefaultTime2Wait", "3600"), ("DefaultTime2Retain", "3600")];

async fn log_in_and_vanish(server: &TargetServer, isid: u32, name: &'static str) -> JoinHandle<CloseReason> {
    log_in_from_and_vanish(server, "a test", isid, name).await
}

async fn log_in_from_and_vanish(
    server: &TargetServer,
    peer: &str,
    isid: u32,
    name: &'static str,
) -> JoinHandle<CloseReason> {
    let (mut client, serving) = connect_from(server, peer);
    client.initiator_name = name;
    assert_eq!(client.try_log_in(isid, 0, &RETAINED).await.status, LoginStatus::SUCCESS, "session {isid}");
    drop(client);
    let_things_happen().await;
    serving
}

#[tokio::test]
async fn sessions_without_a_connection_leave_room_for_logins() {
    let server = plain_server(Quota { sessions: 4, ..Quota::default() });
    let mut kept = Vec::new();
    for isid in 0..4 {
        kept.push(log_in_and_vanish(&server, isid, HOST).await);
    }
    let (mut client, _serving) = connect(&server);
    client.initiator_name = "iqn.2026-01.io.example:victim";
    let response = client.try_log_in(9, 0, &[("TargetName", NAME)]).await;
    assert_eq!(response.status, LoginStatus::SUCCESS, "a dead session gives way");
    assert_eq!(kept.remove(0).await.expect("it does not panic"), CloseReason::Local, "the oldest one");
}

#[tokio::test]
async fn an_initiator_has_a_share_of_sessions_without_a_connection() {
    let server = plain_server(Quota::default());
    let mut kept = Vec::new();
    for isid in 0..40 {
        kept.push(log_in_and_vanish(&server, isid, HOST).await);
    }
    let there = server.status().await.sessions.len();
    assert!((1..=16).contains(&there), "{there} sessions are kept for one initiator");
}

/// Whatever their initiator names.
#[tokio::test]
async fn sessions_without_a_connection_are_bounded_for_each_address_and_in_all() {
    let server = plain_server(Quota::default());
    for (address, there) in [(1, 32), (2, 64), (3, 96), (4, 128), (5, 128)] {
        for isid in 0..40 {
            let name = format!("iqn.2026-01.io.example:{address}-{isid}").leak();
            log_in_from_and_vanish(&server, &format!("10.0.0.{address}:{isid}"), isid, name).await;
        }
        assert_eq!(server.status().await.sessions.len(), there);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_connection_is_not_kept_for_ever() {
    let server = plain_server(Quota::default());
    let serving = log_in_and_vanish(&server, 1, HOST).await;
    let ended = tokio::time::timeout(RETAINED_TIME_MAX + A_SECOND, serving).await;
    ended.expect("an hour is too long").expect("no panic");
    assert!(server.status().await.sessions.is_empty());
}

/// One session works in portions, and others have their turn between them.
#[tokio::test]
async fn a_pipeline_of_large_reads_does_not_hold_up_others() {
    const READS: u32 = 100;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let quota = Quota { session_data_in_bytes: 256 * MIB, ..Quota::default() };
    let server = TargetServer::new(vec![ram_target(&pool)], TargetServerOptions { quota, ..Default::default() });
    let (mut heavy, _first) = session(&server, 1).await;
    let (mut light, _second) = session(&server, 2).await;
    // No task of the server runs between these: each write fits in the pipe.
    for number in 0..READS {
        heavy.command(100 + number, &cdb10(0x28, 0, 2048), None, MIB as u32).await;
    }
    light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
    assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
    let begun = pool.bytes_out() / MIB;
    assert!(begun < 20, "{begun} reads of a MiB came before one of 4 KiB that was asked for at the same time");
}

/// However many heavy sessions there are, a light one waits for a portion of one of them.
#[tokio::test]
async fn a_light_session_waits_for_a_portion_of_one_heavy_session() {
    const HEAVY: u32 = 40;
    const ROUNDS: usize = 10;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let server = TargetServer::new(vec![ram_target(&pool)], TargetServerOptions::default());
    let mut heavy = Vec::new();
    for isid in 0..HEAVY {
        heavy.push(session(&server, isid).await);
    }
    let (mut light, _serving) = session(&server, 100).await;
    // No task of the server runs between these: each write fits in the pipe.
    for (client, _) in &mut heavy {
        for number in 0..100 {
            client.command(100 + number, &cdb10(0x28, 0, 256), None, 128 * KIB as u32).await;
        }
    }
    let ask = async |light: &mut Client<DuplexStream>| {
        light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
    };
    // The commands of all have arrived.
    ask(&mut light).await;
    let before = pool.bytes_out();
    for _ in 0..ROUNDS {
        ask(&mut light).await;
    }
    let round = (pool.bytes_out() - before) / ROUNDS;
    let all = HEAVY as usize * 128 * KIB;
    assert!(round < all / 2, "{round} bytes were read for others between two answers");
}

/// How many of a hundred commands of one session that lie there are carried out for each answer to another one, where
/// each look at the clock finds the time of a portion over.
async fn between_answers(cdb: &[u8], data: &[u8], count: fn(&LunStatus) -> u64) -> u64 {
    const ROUNDS: u64 = 10;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let clock = Arc::new(AdvancingClock::by(LONG_STEP));
    let server = TargetServer::with_clock(vec![ram_target(&pool)], TargetServerOptions::default(), clock);
    let (mut heavy, _first) = session(&server, 1).await;
    let (mut light, _second) = session(&server, 2).await;
    // Nothing of the server runs between these: each write fits in the pipe.
    for number in 0..100 {
        heavy.command(100 + number, cdb, Some(data.to_vec()), data.len() as u32).await;
    }
    let carried_out = async |server: &TargetServer| count(&server.status().await.luns[0]);
    light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
    assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
    let before = carried_out(&server).await;
    for _ in 0..ROUNDS {
        light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
    }
    let all = carried_out(&server).await - before;
    assert!(all > 0, "they went on");
    all.saturating_sub(2) / ROUNDS
}

/// What a list of things to do takes is not told by its bytes: where the time of a portion is over, one such command
/// was the last.
#[tokio::test]
async fn a_command_with_a_list_is_the_last_of_a_portion_whose_time_is_over() {
    // UNMAP of one range of eight blocks.
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0]);
    let mut cdb = [0; 10];
    (cdb[0], cdb[8]) = (0x42, list.len() as u8);
    let between = between_answers(&cdb, &list, |unit| unit.others).await;
    assert!(between <= 2, "{between} lists were worked through between two answers");
}

/// The same of what passes over its blocks more often than a write of so many bytes.
#[tokio::test]
async fn an_orwrite_is_the_last_of_a_portion_whose_time_is_over() {
    let between = between_answers(&cdb16(0x8b, 0, 1), &[1; 512], |unit| unit.writes).await;
    assert!(between <= 2, "{between} were carried out between two answers");
}

/// What a peer says that logs in, and then a PDU.
async fn login_and<H: Header>(segment_bytes: &str, header: &H, data: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let (ours, mut theirs) = tokio::io::duplex(MIB);
    let mut client = Client::new(ours);
    let lengths = ["FirstBurstLength", "MaxBurstLength"].map(|key| (key, "262144"));
    let names = [("InitiatorName", HOST), ("TargetName", NAME), ("MaxRecvDataSegmentLength", segment_bytes)];
    let keys = [&names[..], &lengths[..]].concat();
    client.request_login(1, 0, Some(LoginStage::FullFeaturePhase), &keys).await;
    let mut login = vec![0; MIB];
    let length = theirs.read(&mut login).await.expect("it was sent");
    login.truncate(length);
    client.send(header, data).await;
    drop(client);
    let mut bytes = Vec::new();
    theirs.read_to_end(&mut bytes).await.expect("it was sent");
    (login, bytes)
}

/// An immediate ping, which may come again and again with the same numbers.
fn immediate_ping() -> NopOut {
    NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(tag(7)),
        target_transfer_tag: None,
        cmd_sn: Serial32(1),
        exp_stat_sn: Serial32(0),
    }
}

/// An immediate command, which may be repeated, too.
fn immediate(cdb: [u8; 16], reads: u32, writes: usize) -> ScsiCommand {
    ScsiCommand {
        is_immediate: true,
        is_final: true,
        reads: reads > 0,
        writes: writes > 0,
        attribute: TaskAttribute::Simple,
        lun: 0,
        initiator_task_tag: tag(9),
        expected_data_transfer_length: reads + writes as u32,
        cmd_sn: Serial32(1),
        exp_stat_sn: Serial32(0),
        cdb,
    }
}

/// A CDB of 16 bytes over blocks from the start.
fn cdb16(operation_code: u8, flags: u8, length: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (operation_code, flags);
    cdb[10..14].copy_from_slice(&length.to_be_bytes());
    cdb
}

/// Time between two looks at the clock: by the long one every poll takes longer than the share of a light session, by
/// the short one none does.
const LONG_STEP: Duration = Duration::from_millis(1);
const SHORT_STEP: Duration = Duration::from_micros(1);

/// A light session asks repeatedly beside a peer that sends a PDU without end. Returns the mean
/// count of PDUs handled between two of its answers.
async fn pdus_between_answers<H: Header>(header: &H, data: Vec<u8>, step: Duration) -> u64 {
    const ROUNDS: u64 = 100;
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let options = TargetServerOptions::default();
    let server = TargetServer::with_clock(vec![ram_target(&pool)], options, Arc::new(AdvancingClock::by(step)));
    let (login, again) = login_and("262144", header, data).await;
    let (peer, _) = Endless::new(login, again);
    let busy = server.clone();
    let _flood = AbortOnDrop(tokio::spawn(async move {
        busy.serve_connection(peer, Addresses::default()).await;
    }));
    let (mut light, _serving) = session(&server, 100).await;
    let before = server.status().await.pdus_received;
    for _ in 0..ROUNDS {
        light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
    }
    (server.status().await.pdus_received - before) / ROUNDS - 1
}

/// Ends a task with the test that began it.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whatever a peer sends without end, a light session waits for a portion of it.
#[tokio::test]
async fn floods_of_every_kind_are_taken_in_portions() {
    // PDUs of two polls, of three turns each while they move little: an answer to a light session takes two. Of three
    // where each takes longer than its share, so that it stands in line for both.
    for (step, turns) in [(SHORT_STEP, 6), (LONG_STEP, 9)] {
        check_portions(step, turns * WORK_PER_TURN as u64).await;
    }
}

async fn check_portions(step: Duration, few_turns: u64) {
    let unmapped = immediate(cdb16(0x9e, 0x12, 65_536), 65_536, 0);
    let kinds = [
        ("WRITE of 256 KiB", immediate(cdb16(0x8a, 0, 512), 0, 256 * KIB), 256 * KIB, 4),
        ("WRITE SAME of zeroes", immediate(cdb16(0x93, 0, 65_535), 0, 512), 512, few_turns),
        ("VERIFY of 256 KiB", immediate(cdb16(0x8f, 2, 512), 0, 256 * KIB), 256 * KIB, 4),
        ("GET LBA STATUS", unmapped, 0, few_turns),
    ];
    for (name, command, data_bytes, most) in kinds {
        let between = pdus_between_answers(&command, vec![0; data_bytes], step).await;
        assert!(between <= most, "{name}: {between} between two answers, {step:?} a look");
    }
    let ping = immediate_ping();
    let between = pdus_between_answers(&ping, Vec::new(), step).await;
    assert!(between <= few_turns, "empty pings: {between} between two answers, {step:?} a look");
}

/// Bytes that a peer which asks for the same again and again moves between two answers to a light session beside it: of
/// fifty rounds, those with few before those with many.
async fn bytes_between_answers<H: Header>(
    segment_bytes: &str,
    header: &H,
    data: Vec<u8>,
    step: Duration,
) -> Vec<usize> {
    let options = TargetServerOptions::default();
    let pool = BufferPool::new(READ_BUFFERS_BYTES);
    let server = TargetServer::with_clock(vec![ram_target(&pool)], options, Arc::new(AdvancingClock::by(step)));
    let (login, again) = login_and(segment_bytes, header, data).await;
    let (peer, moved) = Endless::new(login, again);
    let busy = server.clone();
    tokio::spawn(async move { busy.serve_connection(peer, Addresses::default()).await });
    let (mut light, _serving) = session(&server, 100).await;
    let mut rounds = Vec::new();
    for _ in 0..50 {
        let before = moved.load(Ordering::Relaxed);
        light.command(5, &cdb10(0x28, 0, 8), None, 4096).await;
        assert_eq!(light.receive().await.expect("it is answered").data.length, 4096);
        rounds.push(moved.load(Ordering::Relaxed) - before);
    }
    rounds.sort_unstable();
    rounds
}

/// What a session receives and what it sends in a turn are one portion: others wait for both. Who takes longer
/// than its share stands in line for each of the two polls that an answer takes.
#[tokio::test]
async fn echoes_of_large_pings_are_received_and_sent_in_portions() {
    for (step, least, portions) in [(SHORT_STEP, 0, 1), (LONG_STEP, 1, 2)] {
        let rounds = bytes_between_answers("262144", &immediate_ping(), vec![7; 256 * KIB], step).await;
        let most = portions * 160 * KIB;
        assert!((least..=most).contains(&rounds[49]), "{rounds:?} bytes between two answers, {step:?} a look");
    }
}

/// In small segments a byte costs twenty times as much: it is the time that ends what is sent, and not the bytes.
#[tokio::test]
async fn data_in_small_segments_is_sent_in_portions_of_time() {
    let read = immediate(cdb16(0x88, 0, 2048), MIB as u32, 0);
    let rounds = bytes_between_answers("512", &read, Vec::new(), LONG_STEP).await;
    // Now and then it is a buffer full of commands that comes as well.
    assert!((1..=64 * KIB).contains(&rounds[25]), "{rounds:?} bytes between two answers to a light session");
}

/// Who says much in a negotiation is received from in portions: others have their turn between them.
#[tokio::test]
async fn a_login_receives_so_much_in_a_turn() {
    /// As many as a login may have, but for one.
    const REQUESTS: usize = NEGOTIATION_EXCHANGES_MAX as usize - 1;
    let server = plain_server(Quota::default());
    let (near, mut far) = tokio::io::duplex(MIB);
    let mut client = Client::new(near);
    let long = "y".repeat(4000);
    for number in 0..REQUESTS {
        let [one, other] = ["a", "b"].map(|end| format!("X-{number}{end}"));
        let mut keys = vec![(&*one, &*long), (&*other, &*long)];
        if number == 0 {
            keys = vec![("InitiatorName", "iqn.2026-01.io.forebay:a"), ("TargetName", NAME)];
        }
        client.request_login(1, 0, None, &keys).await;
    }
    drop(client);
    let mut all = Vec::new();
    far.read_to_end(&mut all).await.expect("it was sent");
    let length = all.len();
    let (peer, received) = Endless::new(all, vec![0]);
    let stream = tokio::io::join(peer.take(length as u64), tokio::io::sink());
    let mut serving = Box::pin(server.serve_connection(stream, Addresses::default()));
    let (mut before, mut turns) = (0, 0);
    while before < length {
        turns += 1;
        let has_ended = poll_fn(|context| Poll::Ready(serving.as_mut().poll(context).is_ready())).await;
        let now = received.load(Ordering::Relaxed);
        assert!(!has_ended, "after {now} of {length} bytes, in turn {turns}");
        assert!(now > before && now - before <= STAGING_BYTES, "{} bytes in turn {turns}", now - before);
        before = now;
    }
    assert!(turns > 3, "{turns} turns for {length} bytes");
}

/// A login has its turns beside the busiest session.
#[tokio::test]
async fn a_login_beside_a_busy_session_is_answered() {
    let server = plain_server(Quota::default());
    let (mut busy, _serving) = session(&server, 1).await;
    let reading = tokio::spawn(async move {
        for number in 0.. {
            busy.command(number, &cdb10(0x28, 0, 8), None, 4096).await;
            busy.receive().await.expect("it goes on");
        }
    });
    for isid in 2..6 {
        let (mut client, _serving) = connect(&server);
        client.log_in(isid).await;
    }
    assert!(!reading.is_finished());
    reading.abort();
}
