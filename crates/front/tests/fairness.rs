//! Clients that hold the resources of their requests: they do not delay others for ever, nor a
//! shutdown.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use block::SharedDevice;
use block::device::DeviceExt;
use common::raw_client::{request, shake_hands};
use common::{Running, memory};
use front::limits::CONNECTIONS_MAX;
use front::{ListenAddress, NbdClient, NbdOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const LARGE: u32 = 32 << 20;

/// Far longer than any step may take; the clock is a paused one.
const TIME_MAX: Duration = Duration::from_secs(300);

/// A connection in transmission whose client does what the test says.
async fn connect_raw(running: &Running) -> UnixStream {
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut stream = UnixStream::connect(path).await.unwrap();
    shake_hands(&mut stream).await;
    stream
}

async fn ask(stream: &mut UnixStream, command: u16, length: u32) {
    stream.write_all(&request(command, length)).await.unwrap();
}

async fn connect(running: &Running) -> Arc<NbdClient> {
    let (device, driver) = NbdClient::connect_to(&running.address, "").await.unwrap();
    tokio::spawn(driver);
    device
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_MAX, future).await.unwrap_or_else(|_| panic!("{what} waits for ever"))
}

/// A device with data: zeroes would be answered with a few bytes.
async fn full_device() -> SharedDevice {
    let device = memory(64 * MIB);
    for offset in (0..64 * MIB).step_by(MIB as usize) {
        device.write(offset, Buffer::copy_of(&vec![7; MIB as usize]), false).await.unwrap();
    }
    device
}

/// Eight clients that ask for 32 MiB each and do not read the reply, or announce as much and send a
/// byte.
async fn hold_all(running: &Running, command: u16) -> Vec<UnixStream> {
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = connect_raw(running).await;
        ask(&mut stream, command, LARGE).await;
        if command == WRITE {
            stream.write_all(&[7]).await.unwrap();
        }
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    held
}

#[tokio::test(start_paused = true)]
async fn clients_that_hold_large_requests_do_not_stop_small_ones() {
    for command in [READ, WRITE] {
        let running = Running::start(full_device().await, NbdOptions::default());
        let good = connect(&running).await;
        let held = hold_all(&running, command).await;
        let before = tokio::time::Instant::now();
        in_time("a read", good.read(0, Buffer::zeroed(4096))).await.unwrap();
        in_time("a write", good.write(0, Buffer::zeroed(4096), false)).await.unwrap();
        assert!(before.elapsed() < Duration::from_secs(1), "they wait for nobody");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn who_holds_a_large_request_that_others_wait_for_is_closed() {
    for command in [READ, WRITE] {
        let running = Running::start(full_device().await, NbdOptions::default());
        let good = connect(&running).await;
        let held = hold_all(&running, command).await;
        in_time("a large read", good.read(0, Buffer::zeroed(LARGE as usize))).await.unwrap();
        in_time("a large write", good.write(0, Buffer::zeroed(LARGE as usize), false)).await.unwrap();
        drop(held);
    }
}

/// A client may be stopped for a long time: while no other waits for what it holds, it is left
/// alone.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_its_time_is_served_when_nobody_waits() {
    let running = Running::start(full_device().await, NbdOptions::default());
    let mut slow = connect_raw(&running).await;
    ask(&mut slow, READ, LARGE).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut reply = vec![0; 16 + LARGE as usize];
    slow.read_exact(&mut reply).await.unwrap();
    assert!(reply[16..].iter().all(|&byte| byte == 7));
}

#[tokio::test(start_paused = true)]
async fn clients_that_do_not_take_their_replies_do_not_stop_a_shutdown() {
    let running = Running::start(full_device().await, NbdOptions::default());
    let held = hold_all(&running, READ).await;
    let before = tokio::time::Instant::now();
    running.stop().await;
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    drop(held);
}

/// Mounted and idle clients hold nothing: others get full shares beside them.
#[tokio::test(start_paused = true)]
async fn idle_clients_leave_room_for_others() {
    let running = Running::start(full_device().await, NbdOptions::default());
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        idle.push(connect_raw(&running).await);
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let good = connect(&running).await;
    let reads: Vec<_> = (0..8).map(|index| good.read(index * MIB, Buffer::zeroed(MIB as usize))).collect();
    for read in reads {
        in_time("a read", read).await.unwrap();
    }
    ask(&mut idle[0], READ, 4096).await;
    let mut reply = vec![0; 16 + 4096];
    in_time("who was idle", idle[0].read_exact(&mut reply)).await.unwrap();
    assert!(reply[16..].iter().all(|&byte| byte == 7), "it was let be");
}
