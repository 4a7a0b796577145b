//! A client beside one whose small requests are much work: it has its turn between the pieces of
//! that work.

mod common;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{OperationKind, SharedDevice};
use common::Running;
use common::model::{Model, SIZE};
use common::raw_client::{RawClient, request, shake_hands};
use common::step_client::StepClient;
use front::limits::SHUTDOWN_TIME_MAX;
use front::{ListenAddress, NbdOptions, NbdServer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The offset that the good client reads; the others do not touch it.
const OWN: u64 = SIZE - MIB;
/// The length of the others' requests.
const LONG: u32 = 32 << 20;
/// As many as one connection may have under way.
const FLOOD: usize = 256;
/// The duration of a request on a device that does not answer within a test.
const NEVER: Duration = Duration::from_secs(100_000);

/// A client that floods, and a good one.
async fn flood(device: &Arc<Model>, command: u16) -> (NbdServer, RawClient, StepClient) {
    let server = NbdServer::new(Arc::clone(device) as SharedDevice, NbdOptions::default());
    let good = StepClient::connect(&server).await;
    let mut bad = RawClient::connect(&server).await;
    bad.ask(command, if command == FLUSH { 0 } else { LONG }, FLOOD).await;
    (server, bad, good)
}

/// Bytes carried out for others than the good client since the last call.
fn bytes_of_others(device: &Model) -> u64 {
    let others = device.take_asked().into_iter().filter(|(_, offset, _)| *offset != OWN);
    others.map(|(_, _, length)| length).sum()
}

/// The most bytes carried out for others during one of sixty-four reads of the good client.
async fn most_in_a_read(device: &Model, good: &mut StepClient) -> u64 {
    let mut most = 0;
    for _ in 0..64 {
        good.read(OWN, 4096).await;
        most = most.max(bytes_of_others(device));
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_device_that_takes_its_time_does_one_piece_of_a_flood_between_two_reads_of_others() {
    for command in [CACHE, TRIM, WRITE_ZEROES] {
        let device = Model::new(Some(Duration::from_millis(10)));
        let (_server, _bad, mut good) = flood(&device, command).await;
        // Before another connection is active, a flood may do more at once.
        good.read(OWN, 4096).await;
        bytes_of_others(&device);
        let most = most_in_a_read(&device, &mut good).await;
        let piece = if command == CACHE { 64 * KIB } else { MIB };
        assert!((1..=piece).contains(&most), "command {command}: {most} bytes");
    }
}

/// However many connections ask, and however many such requests each has under way.
#[tokio::test(start_paused = true)]
async fn a_device_is_asked_once_what_a_long_range_stores_between_two_reads_of_others() {
    const RANGE: u64 = 2 * MIB;
    let device = Model::new(Some(Duration::from_millis(1)));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut good = StepClient::connect(&server).await;
    let mut bad = Vec::new();
    for _ in 0..4 {
        let mut client = StepClient::connect(&server).await;
        for index in 0..FLOOD as u64 {
            let mut request = request(BLOCK_STATUS, RANGE as u32);
            request[16..24].copy_from_slice(&(index % (OWN / RANGE) * RANGE).to_be_bytes());
            client.stream.write_all(&request).await.unwrap();
        }
        bad.push(client);
    }
    good.read(OWN, 4096).await;
    bytes_of_others(&device);
    let most = most_in_a_read(&device, &mut good).await;
    assert!((1..=RANGE).contains(&most), "{most} bytes");
}

/// A block status request changes nothing, also when it has to wait for others of its own
/// connection.
#[tokio::test(start_paused = true)]
async fn a_write_does_not_wait_for_others_who_ask_what_its_blocks_store() {
    let device = Model::new(Some(Duration::from_millis(1)));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let (mut good, mut bad) = (StepClient::connect(&server).await, StepClient::connect(&server).await);
    bad.stream.write_all(&request(BLOCK_STATUS, 4096).repeat(FLOOD)).await.unwrap();
    good.read(OWN, 4096).await;
    let asked_before_a_write = |device: &Model| {
        let asked = device.take_asked();
        asked.iter().take_while(|(kind, ..)| *kind != OperationKind::Write).count()
    };
    for _ in 0..16 {
        device.take_asked();
        good.write(0, &[7; 4096]).await;
        assert_eq!(asked_before_a_write(&device), 0);
    }
}

/// Requests that only read into caches need not be finished when the server ends.
#[tokio::test(start_paused = true)]
async fn cache_requests_do_not_hold_the_end_of_a_server_up() {
    let device = Model::new(Some(Duration::from_millis(10)));
    let running = Running::start(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let ListenAddress::Unix(path) = &running.address else { unreachable!("the tests use socket files") };
    let mut bad = UnixStream::connect(path).await.unwrap();
    shake_hands(&mut bad).await;
    bad.write_all(&request(CACHE, LONG).repeat(FLOOD)).await.unwrap();
    while device.take_asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = tokio::time::Instant::now();
    running.stop().await;
    assert!(before.elapsed() < SHUTDOWN_TIME_MAX, "{:?}", before.elapsed());
}

/// Of four clients that flood, only one has a piece carried out at a time.
#[tokio::test(start_paused = true)]
async fn several_floods_do_one_piece_at_a_time() {
    let device = Model::new(Some(Duration::from_millis(10)));
    let (server, _bad, mut good) = flood(&device, CACHE).await;
    let mut floods = Vec::new();
    for _ in 0..3 {
        let mut bad = RawClient::connect(&server).await;
        bad.ask(CACHE, LONG, FLOOD).await;
        floods.push(bad);
    }
    good.read(OWN, 4096).await;
    bytes_of_others(&device);
    let most = most_in_a_read(&device, &mut good).await;
    assert!((1..=64 * KIB).contains(&most), "{most} bytes");
}

/// A device that answers at once uses the thread of all connections.
#[tokio::test]
async fn on_the_spot_a_flood_does_a_few_pieces_while_others_are_read_from_and_answered() {
    for command in [CACHE, TRIM, WRITE_ZEROES] {
        let device = Model::new(None);
        let (_server, _bad, mut good) = flood(&device, command).await;
        let most = most_in_a_read(&device, &mut good).await;
        assert!(most <= 8 * MIB, "command {command}: {most} bytes");
    }
}

#[tokio::test]
async fn on_the_spot_small_requests_are_carried_out_in_portions() {
    let device = Model::new(None);
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut good = StepClient::connect(&server).await;
    let mut bad = RawClient::connect(&server).await;
    bad.ask(TRIM, 4096, 30_000).await;
    let most = most_in_a_read(&device, &mut good).await;
    assert!(most <= 8 * MIB, "{most} bytes");
}

/// However small they are.
#[tokio::test(start_paused = true)]
async fn a_connection_has_so_many_requests_in_the_device_and_no_more() {
    let device = Model::new(Some(NEVER));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut client = RawClient::connect(&server).await;
    client.ask(READ, 512, 4 * FLOOD).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(device.take_asked().len(), FLOOD);
}

/// Requests that are too small for the line of long ones.
#[tokio::test(start_paused = true)]
async fn small_trims_and_zeroes_of_a_connection_in_the_device_have_so_many_bytes_and_no_more() {
    const SMALL: u32 = 64 << 10;
    for command in [TRIM, WRITE_ZEROES] {
        let device = Model::new(Some(NEVER));
        let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
        let mut client = RawClient::connect(&server).await;
        // Each has its own blocks, and waits for no other change of them.
        for index in 0..FLOOD as u64 {
            let mut request = request(command, SMALL);
            request[16..24].copy_from_slice(&(index * u64::from(SMALL)).to_be_bytes());
            client.0.write_all(&request).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(bytes_of_others(&device), MIB, "command {command}");
    }
}

/// A refused request never reaches the device, but takes time of others.
#[tokio::test]
async fn requests_that_are_refused_are_answered_in_portions() {
    const UNKNOWN: u16 = 77;
    let server = NbdServer::new(Model::new(None), NbdOptions::default());
    let mut good = StepClient::connect(&server).await;
    let mut bad = RawClient::connect(&server).await;
    good.read(OWN, 4096).await;
    bad.ask(UNKNOWN, 4096, 30_000).await;
    good.read(OWN, 4096).await;
    let mut answers = vec![0; 16 * 30_000];
    let mut answers = ReadBuf::new(&mut answers);
    poll_fn(|context| Poll::Ready(Pin::new(&mut bad.0).poll_read(context, &mut answers).is_ready())).await;
    let most = answers.filled().len() / 16;
    assert!((1..=40).contains(&most), "{most} answers during one read of another");
}

/// Clients may repeat options of the handshake without end: all of them have one turn together, and
/// a new client has its turns among them.
#[tokio::test]
async fn those_who_shake_hands_without_end_have_one_turn_together() {
    const UNKNOWN: u32 = 77;
    let server = NbdServer::new(Model::new(None), NbdOptions::default());
    let mut good = StepClient::connect(&server).await;
    let option = [&b"IHAVEOPT"[..], &UNKNOWN.to_be_bytes(), &[0; 4]].concat();
    let mut bad = Vec::new();
    for _ in 0..100 {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let server = server.clone();
        tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
        near.read_exact(&mut [0; 18]).await.unwrap();
        near.write_all(&[&3u32.to_be_bytes()[..], &option.repeat(1000)].concat()).await.unwrap();
        bad.push(near);
    }
    good.read(OWN, 4096).await;
    let mut answers = async || {
        let mut count = 0;
        for near in &mut bad {
            let mut bytes = vec![0; 1 << 20];
            let mut bytes = ReadBuf::new(&mut bytes);
            poll_fn(|context| Poll::Ready(Pin::new(&mut *near).poll_read(context, &mut bytes).is_ready())).await;
            count += bytes.filled().windows(8).filter(|bytes| *bytes == 0x0003_e889_0455_65a9u64.to_be_bytes()).count();
        }
        count
    };
    answers().await;
    let mut most = 0;
    for _ in 0..16 {
        good.read(OWN, 4096).await;
        most = most.max(answers().await);
    }
    assert!((1..=40).contains(&most), "{most} answers during one read of who is served");
    StepClient::connect(&server).await.read(OWN, 4096).await;
}

/// Half of the time of a light connection would pass with what others send and receive at once.
#[tokio::test]
async fn beside_one_that_asks_for_little_little_is_received_and_sent_at_once() {
    for (command, depth) in [(READ, 8), (WRITE, 8)] {
        let device = Model::new(None);
        let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
        let mut good = StepClient::connect(&server).await;
        good.read(OWN, 4096).await;
        keep_asking(&server, (command, MIB as u32, depth), 1).await;
        for _ in 0..64 {
            good.read(OWN, 4096).await;
        }
        bytes_of_others(&device);
        for _ in 0..256 {
            good.read(OWN, 4096).await;
        }
        let mean = bytes_of_others(&device) / 256;
        assert!((1..=320 * KIB).contains(&mean), "command {command}: {mean} bytes during a read");
    }
}

/// A device that wakes a connection at once does not take the turns of others, which come after a
/// look at the sockets.
#[tokio::test]
async fn what_is_answered_at_once_by_another_task_does_not_begin_the_next_turn() {
    let device = Model::new(Some(Duration::ZERO));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut bad = RawClient::connect(&server).await;
    bad.ask(FLUSH, 0, 30_000).await;
    let mut asked = Vec::new();
    for _ in 0..64 {
        tokio::task::yield_now().await;
        asked.push(device.take_asked().len());
    }
    assert!(
        asked.iter().sum::<usize>() > 32 && asked.iter().all(|&count| count <= 2),
        "{asked:?} flushes between two looks"
    );
}

/// Deep and large reads and writes: command, length, and depth.
const MUCH: [(u16, u32, usize); 6] = [
    (READ, 4096, FLOOD),
    (READ, MIB as u32, FLOOD),
    (READ, LONG, 4),
    (WRITE, 4096, FLOOD),
    (WRITE, MIB as u32, 16),
    (WRITE, LONG, 1),
];

/// Starts `count` heavy clients.
async fn keep_asking(server: &NbdServer, (command, length, depth): (u16, u32, usize), count: usize) {
    for _ in 0..count {
        RawClient::connect(server).await.keep_asking(command, length, depth);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_a_few_pieces_of_those_who_ask_for_much() {
    for (much, count) in MUCH.into_iter().flat_map(|much| [(much, 1), (much, 4)]) {
        let device = Model::new(Some(Duration::from_millis(1)));
        let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
        let mut good = StepClient::connect(&server).await;
        keep_asking(&server, much, count).await;
        // They may have more in the device until another connection is active.
        for _ in 0..4 {
            good.read(OWN, 4096).await;
        }
        bytes_of_others(&device);
        let most = most_in_a_read(&device, &mut good).await;
        assert!((1..=512 * KIB).contains(&most), "{count} clients with {much:?}: {most} bytes");
    }
}

/// A device that answers at once uses the thread of all connections.
#[tokio::test]
async fn on_the_spot_a_read_waits_for_a_few_pieces_of_those_who_ask_for_much() {
    for much in MUCH {
        let device = Model::new(None);
        let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
        let mut good = StepClient::connect(&server).await;
        keep_asking(&server, much, 4).await;
        for _ in 0..4 {
            good.read(OWN, 4096).await;
        }
        bytes_of_others(&device);
        let most = most_in_a_read(&device, &mut good).await;
        assert!(most <= 2 * MIB, "{much:?}: {most} bytes");
    }
}

/// Over a long link requests do not delay each other: heavy connections have many under way, also
/// beside a light one.
#[tokio::test(start_paused = true)]
async fn over_a_long_link_those_who_ask_for_much_are_not_held_up() {
    let model = Model::new(Some(Duration::from_millis(10)));
    let device = Arc::new(Model { is_parallel: true, ..Arc::into_inner(model).unwrap() });
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut good = StepClient::connect(&server).await;
    keep_asking(&server, (READ, MIB as u32, 16), 1).await;
    for _ in 0..100 {
        good.read(OWN, 4096).await;
    }
    bytes_of_others(&device);
    let most = most_in_a_read(&device, &mut good).await;
    assert!(most >= 8 * MIB, "{most} bytes in 10 ms");
}

/// Bytes of the reads of this length since the last call, and of all other requests.
fn bytes_by_length(device: &Model, length: u64) -> (u64, u64) {
    let asked = device.take_asked();
    let (own, others): (Vec<u64>, Vec<u64>) = asked.iter().map(|asked| asked.2).partition(|&asked| asked == length);
    (own.iter().sum(), others.iter().sum())
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_for_much_have_equal_shares_of_the_device() {
    const SMALL: u32 = 64 << 10;
    let device = Model::new(Some(Duration::from_millis(1)));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    keep_asking(&server, (READ, LONG, 4), 1).await;
    keep_asking(&server, (READ, SMALL, 16), 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    bytes_by_length(&device, SMALL.into());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (small, large) = bytes_by_length(&device, SMALL.into());
    assert!(small * 2 > large, "{small} bytes in small requests, {large} in large ones");
}

/// A client is not delayed by its own requests, and by others only while these are active.
#[tokio::test(start_paused = true)]
async fn who_is_alone_has_all_its_requests_in_the_device_as_they_are() {
    let device = Model::new(Some(Duration::from_millis(1)));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let (mut alone, mut other) = (RawClient::connect(&server).await, StepClient::connect(&server).await);
    let most_at_once = async |alone: &mut RawClient, length: u32, count: usize| {
        device.take_asked();
        alone.ask(READ, length, count).await;
        tokio::time::sleep(Duration::from_micros(10)).await;
        let asked = device.take_asked();
        let mut replies = vec![0; (16 + length as usize) * count];
        alone.0.read_exact(&mut replies).await.unwrap();
        asked.iter().map(|(_, _, length)| *length).collect::<Vec<u64>>()
    };
    assert_eq!(most_at_once(&mut alone, 4096, FLOOD).await, [4096; FLOOD]);
    assert_eq!(most_at_once(&mut alone, MIB as u32, 16).await, [MIB; 16]);
    assert_eq!(most_at_once(&mut alone, 16 * MIB as u32, 1).await, [16 * MIB]);
    other.read(OWN, 4096).await;
    let beside = most_at_once(&mut alone, LONG, 1).await;
    assert!(beside.iter().sum::<u64>() < MIB, "another one was just there: {beside:?}");
    other.read(OWN, 4096).await;
    drop(other);
    tokio::time::sleep(Duration::from_micros(10)).await;
    assert_eq!(most_at_once(&mut alone, 16 * MIB as u32, 1).await, [16 * MIB], "it is gone");
}

/// Cut or not, reads and writes return and store the right data, and are durable where that was
/// requested.
#[tokio::test(start_paused = true)]
async fn pieces_of_reads_and_writes_together_are_what_was_asked_for() {
    let device = Model::new(None);
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let (mut client, mut other) = (StepClient::connect(&server).await, StepClient::connect(&server).await);
    for (offset, length) in [(MIB, LONG as usize), (MIB + 100, (LONG - 1000) as usize), (512, 300 << 10)] {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 100) as u8).collect();
        other.read(OWN, 4096).await;
        device.take_asked();
        let write = nbd::Command::Write { offset, buffer: Buffer::copy_of(&bytes), fua: true };
        client.ask(write).await.result.unwrap();
        let asked = device.take_asked();
        assert_eq!(asked.last().map(|(kind, ..)| *kind), Some(OperationKind::Flush), "once, at the end");
        assert!(asked.iter().all(|(_, _, length)| *length <= 64 * KIB), "{asked:?}");
        assert_eq!(asked.iter().filter(|(kind, ..)| *kind == OperationKind::Flush).count(), 1);
        other.read(OWN, 4096).await;
        assert!(client.read(offset, length).await == bytes);
        assert!(device.take_asked().iter().all(|(_, _, length)| *length <= 64 * KIB));
    }
}

#[tokio::test(start_paused = true)]
async fn flushes_that_come_while_one_is_under_way_share_the_next_one() {
    let device = Model::new(Some(Duration::from_millis(10)));
    let (server, mut bad, _good) = flood(&device, FLUSH).await;
    let answers = bad.errors(FLOOD).await;
    assert!(answers.iter().all(|&error| error == 0), "{answers:?}");
    let flushes = device.take_asked().into_iter().filter(|(kind, ..)| *kind == OperationKind::Flush).count();
    assert!((1..=4).contains(&flushes), "{flushes} flushes for {FLOOD}");
    assert_eq!(server.counters().flush.requests, FLOOD as u64);
}

#[tokio::test(start_paused = true)]
async fn who_shares_a_flush_shares_its_failure() {
    let device = Model::new(Some(Duration::from_millis(10)));
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut client = RawClient::connect(&server).await;
    device.failing_flushes.store(1, Ordering::Relaxed);
    client.ask(FLUSH, 0, 3).await;
    assert!(client.errors(3).await.iter().all(|&error| error != 0));
    client.ask(FLUSH, 0, 1).await;
    assert_eq!(client.errors(1).await, [0]);
    assert_eq!(server.counters().flush.errors, 3);
}

/// Pieces are cut at whole blocks, and what is not whole at the ends is carried out in part.
#[tokio::test]
async fn pieces_together_are_what_was_asked_for() {
    let device = Model::new(None);
    let server = NbdServer::new(Arc::clone(&device) as SharedDevice, NbdOptions::default());
    let mut client = StepClient::connect(&server).await;
    let full = || Buffer::copy_of(&vec![7; 8 << 20]);
    let (offset, length) = (MIB + 100, 5 * MIB as u32 + 1000);
    for command in [
        nbd::Command::Trim { offset, length, fua: true },
        nbd::Command::WriteZeroes { offset, length, fua: true, may_discard: false, only_if_fast: false },
    ] {
        device.write(0, full(), false).await.unwrap();
        device.take_asked();
        let is_trim = matches!(command, nbd::Command::Trim { .. });
        client.ask(command).await.result.unwrap();
        let asked = device.take_asked();
        assert_eq!(asked.last().map(|(kind, ..)| *kind), Some(OperationKind::Flush), "once, at the end");
        assert!(asked.iter().all(|(_, _, length)| *length <= MIB));
        let (first, end) = (offset as usize, offset as usize + length as usize);
        let zeroes = if is_trim { first.next_multiple_of(512)..end / 512 * 512 } else { first..end };
        let read = device.read(0, Buffer::zeroed(8 << 20)).await.unwrap();
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == if zeroes.contains(&at) { 0 } else { 7 }));
    }
}
