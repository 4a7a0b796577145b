//! The memory that peers make the process use, as the operating system counts it: a few bytes sent
//! use a few bytes.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use base::serial::Serial32;
use block::Identity;
use block::memory::MemoryDevice;
use iscsi::pdu::*;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Target, TargetServer, TargetServerOptions};
use tokio::io::DuplexStream;
use tokio::sync::Mutex;

mod support;
use support::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The tests run one at a time: they share the process that is measured.
static TURN: Mutex<()> = Mutex::const_new(());

fn server() -> TargetServer {
    let luns = LunMap::new();
    let device = MemoryDevice::new(16 << 20, Identity::default());
    luns.insert(0, LogicalUnit::new(Arc::new(device), LogicalUnitOptions::default()));
    TargetServer::new(vec![Target::new(NAME, luns)], TargetServerOptions::default())
}

/// Bytes of private memory of the process, whether written to or not.
fn private_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("it is a number") * KIB
}

/// A session with all keys as given, beside its names.
async fn session(server: &TargetServer, isid: u32, keys: &[(&str, &str)]) -> Client<DuplexStream> {
    let (mut client, _) = connect(server);
    let mut all = vec![("InitiatorName", HOST), ("TargetName", NAME)];
    all.extend_from_slice(keys);
    client.request_login(isid, 0, Some(LoginStage::FullFeaturePhase), &all).await;
    let Bhs::LoginResponse(response) = client.receive_bhs().await else { panic!("a login response") };
    assert!(response.status.is_success());
    client.settle().await;
    client
}

/// Sends as much as the target takes while the client reads nothing.
async fn flood<H: Header>(client: &mut Client<DuplexStream>, count: usize, header: &H, data: &[u8]) {
    for _ in 0..count {
        let sending = client.send(header, data.to_vec());
        if tokio::time::timeout(std::time::Duration::from_millis(200), sending).await.is_err() {
            return;
        }
    }
    let_things_happen().await;
}

/// The echo of a ping is cut at the initiator's receive limit; the rest is not kept.
#[tokio::test]
async fn echoes_of_pings_hold_what_they_send() {
    let _turn = TURN.lock().await;
    let server = server();
    let mut client = session(&server, 1, &[("MaxRecvDataSegmentLength", "512")]).await;
    let before = private_bytes();
    let ping = client.ping(true);
    flood(&mut client, 400, &ping, &vec![b'n'; 256 * KIB]).await;
    let grown = private_bytes().saturating_sub(before);
    assert!(grown < 20 * MIB, "{} MiB for echoes of 512 bytes", grown / MIB);
}

/// Pings of one byte: the queued memory is larger than the bytes sent.
#[tokio::test]
async fn small_echoes_are_counted_as_large_as_they_are() {
    let _turn = TURN.lock().await;
    let server = server();
    let mut client = session(&server, 1, &[]).await;
    let before = private_bytes();
    let ping = client.ping(true);
    flood(&mut client, 100_000, &ping, b"n").await;
    let grown = private_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB, "{} MiB for echoes of one byte", grown / MIB);
}

async fn open_write(client: &mut Client<DuplexStream>, number: u32, bytes: u32, is_final: bool, immediate: Vec<u8>) {
    let mut cdb = [0; 16];
    cdb[0] = 0x8a;
    cdb[10..14].copy_from_slice(&(bytes / 512).to_be_bytes());
    let command = ScsiCommand {
        is_immediate: false,
        is_final,
        reads: false,
        writes: true,
        attribute: TaskAttribute::Simple,
        lun: 0,
        initiator_task_tag: tag(number),
        expected_data_transfer_length: bytes,
        cmd_sn: client.cmd_sn,
        exp_stat_sn: Serial32(0),
        cdb,
    };
    client.cmd_sn = client.cmd_sn.next();
    client.send(&command, immediate).await;
}

const UNSOLICITED: [(&str, &str); 3] =
    [("InitialR2T", "No"), ("FirstBurstLength", "262144"), ("MaxBurstLength", "1048576")];

/// Unsolicited data gets its buffer when it comes.
#[tokio::test]
async fn open_unsolicited_writes_hold_what_came() {
    let _turn = TURN.lock().await;
    let server = server();
    let before = private_bytes();
    let mut clients = Vec::new();
    for isid in 0..8 {
        let mut client = session(&server, isid, &UNSOLICITED).await;
        for number in 0..128 {
            open_write(&mut client, 100 + number, 8 << 20, false, vec![7]).await;
        }
        let_things_happen().await;
        clients.push(client);
    }
    let grown = private_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB for a KiB of data", grown / MIB);
}

/// Requests that wait for a command number before them are held with their data.
#[tokio::test]
async fn pings_behind_a_missing_number_hold_little() {
    let _turn = TURN.lock().await;
    let server = server();
    let mut client = session(&server, 1, &UNSOLICITED).await;
    let before = private_bytes();
    client.cmd_sn = client.cmd_sn.next();
    for _ in 0..127 {
        let ping = client.ping(false);
        client.cmd_sn = client.cmd_sn.next();
        let mut queue = iscsi::framing::TransmitQueue::new(iscsi::framing::Digests::default());
        let data = iscsi::framing::DataSegment::from(vec![7; 256 * KIB]);
        queue.push(&ping, &AdditionalHeaders::default(), data);
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let count = queue.io_slices(&mut slices);
        let bytes = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &bytes).await.is_err() {
            break;
        }
    }
    let_things_happen().await;
    let grown = private_bytes().saturating_sub(before);
    assert!(grown < 16 * MIB, "{} MiB are held", grown / MIB);
}

/// Writes of a session without a connection give their buffers back: their data is requested again.
#[tokio::test]
async fn sessions_without_a_connection_hold_no_data() {
    let _turn = TURN.lock().await;
    let server = server();
    let before = private_bytes();
    for isid in 0..12 {
        let mut keys = UNSOLICITED.to_vec();
        keys.extend([("ErrorRecoveryLevel", "2"), ("DefaultTime2Retain", "3600"), ("DefaultTime2Wait", "60")]);
        let mut client = session(&server, isid, &keys).await;
        for number in 0..120 {
            open_write(&mut client, 100 + number, 1 << 20, true, vec![7; 128 * KIB]).await;
        }
        let_things_happen().await;
    }
    let_things_happen().await;
    let grown = private_bytes().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB are held for nobody", grown / MIB);
}
