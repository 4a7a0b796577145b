//! The server with clients that speak the protocol by hand: commands that the device trait lacks,
//! and clients that misbehave.

mod common;

use std::io::ErrorKind as IoErrorKind;
use std::time::Duration;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Geometry, SharedDevice};
use common::step_client::StepClient;
use common::{Running, memory, memory_with};
use front::{ListenAddress, NbdOptions, NbdServer};
use nbd::{Command, ErrorCode, StatusExtent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const MIB: u64 = 1 << 20;

/// A client of a server of `device`.
async fn client_of(device: SharedDevice) -> StepClient {
    StepClient::connect(&NbdServer::new(device, NbdOptions::default())).await
}

fn zeroing(offset: u64, length: u32, may_discard: bool, only_if_fast: bool) -> Command {
    Command::WriteZeroes { offset, length, fua: false, may_discard, only_if_fast }
}

#[tokio::test]
async fn zeroing_is_fast_only_where_a_discard_does_it() {
    let mut slow = client_of(memory(MIB + 512)).await;
    assert_eq!(slow.code_of(zeroing(4096, 8192, true, true)).await, None);
    assert_eq!(slow.code_of(zeroing(MIB, 512, true, true)).await, None, "the end is a border, too");
    assert_eq!(slow.code_of(zeroing(512, 8192, true, true)).await, Some(ErrorCode::NotSupported));
    assert_eq!(slow.code_of(zeroing(4096, 8192, false, true)).await, Some(ErrorCode::NotSupported));
    assert_eq!(slow.code_of(zeroing(512, 8192, false, false)).await, None);
    let geometry = Geometry { discard_reads_zeroes: false, ..Geometry::plain(MIB) };
    let mut slow = client_of(memory_with(geometry)).await;
    assert_eq!(slow.code_of(zeroing(4096, 8192, true, true)).await, Some(ErrorCode::NotSupported));
}

#[tokio::test]
async fn a_durable_trim_and_a_cache_request_succeed() {
    let device = memory(4 * MIB);
    device.write(0, Buffer::copy_of(&[7; 4096]), false).await.unwrap();
    let mut slow = client_of(device.clone()).await;
    assert_eq!(slow.code_of(Command::Cache { offset: 512, length: 3 * MIB as u32 + 512 }).await, None);
    assert_eq!(slow.code_of(Command::Trim { offset: 0, length: 4096, fua: true }).await, None);
    assert_eq!(device.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [0; 4096]);
    let without_discard = Geometry { discard_granularity_bytes: None, ..Geometry::plain(MIB) };
    let mut slow = client_of(memory_with(without_discard)).await;
    assert_eq!(slow.code_of(Command::Trim { offset: 0, length: 4096, fua: false }).await, Some(ErrorCode::Invalid));
}

#[tokio::test]
async fn block_status_can_be_asked_for_one_extent() {
    let device = memory(4 * MIB);
    device.write(MIB, Buffer::copy_of(&[7; 4096]), false).await.unwrap();
    let mut slow = client_of(device).await;
    let one = slow.ask(Command::BlockStatus { offset: 512, length: 3 * MIB as u32, only_first: true }).await;
    let hole = StatusExtent { length_bytes: MIB as u32 - 512, is_hole: true, is_zero: true };
    assert_eq!(one.extents, [hole]);
    let all = slow.ask(Command::BlockStatus { offset: 0, length: 4 * MIB as u32, only_first: false }).await;
    assert_eq!(all.extents.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_finishes_the_handshake_is_closed() {
    let running = Running::start(memory(MIB), NbdOptions::default());
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut stream = UnixStream::connect(path).await.unwrap();
    let (mut said, begun) = (Vec::new(), tokio::time::Instant::now());
    // The clock is a paused one: it jumps to the deadline as soon as all tasks wait.
    stream.read_to_end(&mut said).await.unwrap();
    assert!(begun.elapsed() < 2 * front::limits::HANDSHAKE_TIME_MAX, "after {:?}", begun.elapsed());
    assert_eq!(said.len(), 18, "a greeting and nothing else");
    assert_eq!(running.server.counters().protocol_errors, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_client_that_talks_nonsense_is_closed() {
    let device = memory(MIB);
    let server = NbdServer::new(device, NbdOptions::default());
    let (mut near, far) = tokio::io::duplex(4096);
    near.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let ended = server.serve_connection(far, std::future::pending()).await.unwrap_err();
    assert_eq!(ended.kind(), IoErrorKind::InvalidData);
    assert_eq!((server.counters().protocol_errors, server.counters().connections_open), (1, 0));
}

#[tokio::test]
async fn a_client_that_does_not_fetch_its_replies_stops_being_read() {
    let server = NbdServer::new(memory(64 * MIB), NbdOptions::default());
    let (near, far) = tokio::io::duplex(4096);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve_connection(far, std::future::pending()).await });
    let mut slow = StepClient::over(near).await;
    // Data, not holes, so that replies are long.
    let written = Buffer::copy_of(&vec![7; MIB as usize]);
    assert_eq!(slow.code_of(Command::Write { offset: 0, buffer: written, fua: false }).await, None);
    let (mut reader, mut writer) = tokio::io::split(slow.stream);
    let flooding = tokio::spawn(async move {
        let mut request = [0; 28];
        request[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        request[24..].copy_from_slice(&(MIB as u32).to_be_bytes());
        while writer.write_all(&request).await.is_ok() {}
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!flooding.is_finished());
    let reads = server.counters().read.requests;
    assert!(reads <= front::limits::BYTES_IN_FLIGHT_MAX / MIB + 1, "{reads} MiB are under way");
    let mut reply = [0; 28];
    reader.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
    flooding.abort();
}
