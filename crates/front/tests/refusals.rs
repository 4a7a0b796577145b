//! Refused connections: even ten thousand of them keep the log readable.

mod common;
#[path = "../../cache/tests/common/lines.rs"]
mod lines;

use std::time::Duration;

use base::buffer::Buffer;
use base::limits::REFUSALS_LOGGED_MAX;
use block::device::DeviceExt;
use common::raw_client::shake_hands;
use common::{Running, memory};
use front::limits::{CONNECTIONS_MAX, HANDSHAKES_MAX, SPARE_CONNECTIONS_MAX};
use front::{ListenAddress, NbdClient, NbdOptions};
use lines::Lines;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

#[tokio::test(start_paused = true)]
async fn a_flood_of_refused_clients_is_a_few_lines() {
    const REFUSED: u64 = 200;
    let lines = Lines::default();
    let _guard = lines.listen();
    let options = NbdOptions { connections_max: 1, spare_connections_max: 0, ..NbdOptions::default() };
    let running = Running::start(memory(1 << 20), options);
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut first = UnixStream::connect(path).await.unwrap();
    shake_hands(&mut first).await;
    for _ in 0..REFUSED {
        let mut refused = UnixStream::connect(path).await.unwrap();
        assert_eq!(refused.read(&mut [0; 1]).await.unwrap(), 0, "it is closed");
    }
    assert_eq!(running.server.counters().connections_refused, REFUSED);
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
    drop(first);
}

/// A client that connects and sends nothing takes no place that others need, and is closed for
/// them.
#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_keep_nobody_out() {
    let running = Running::start(memory(1 << 20), NbdOptions::default());
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut silent = Vec::new();
    for _ in 0..2 * HANDSHAKES_MAX {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.read_exact(&mut [0; 18]).await.unwrap();
        silent.push(stream);
    }
    let before = tokio::time::Instant::now();
    let (good, driver) = NbdClient::connect_to(&running.address, "").await.unwrap();
    tokio::spawn(driver);
    good.read(0, Buffer::zeroed(4096)).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1));
    let counters = running.server.counters();
    assert!(counters.connections_open <= HANDSHAKES_MAX as u64 + 1, "{counters:?}");
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest gave way");
    silent.pop().unwrap().write_all(&3u32.to_be_bytes()).await.unwrap();
}

/// A handshake has a place of its own while others are free, and ends when all places are taken
/// meanwhile.
#[tokio::test(start_paused = true)]
async fn a_handshake_that_finds_all_places_taken_is_closed() {
    let running = Running::start(memory(1 << 20), NbdOptions::default());
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut streams = Vec::new();
    for _ in 0..=CONNECTIONS_MAX + SPARE_CONNECTIONS_MAX {
        streams.push(UnixStream::connect(path).await.unwrap());
    }
    let mut late = streams.pop().unwrap();
    late.read_exact(&mut [0; 18]).await.unwrap();
    for stream in &mut streams {
        shake_hands(stream).await;
    }
    late.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").await.unwrap();
    assert_eq!(late.read(&mut [0; 1]).await.unwrap(), 0, "it is closed");
    assert_eq!(running.server.counters().connections_refused, 1);
}
