//! The server and the client of this crate against each other.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::random::Random;
use block::completion::SlotSender;
use block::device::DeviceExt;
use block::{
    Completion, Device, ErrorKind, Event, Extent, ExtentKind, Geometry, Identity, Operation, Request, Response,
    SharedDevice,
};
use common::{Running, memory, memory_with};
use front::{NbdClient, NbdOptions, NbdServer};
use nbd::client::ClientOptions;

const MIB: u64 = 1 << 20;

fn options() -> NbdOptions {
    NbdOptions { export_name: "disk".into(), description: "a test disk".into(), ..NbdOptions::default() }
}

async fn connect(running: &Running) -> Arc<NbdClient> {
    let (device, driver) = NbdClient::connect_to(&running.address, "disk").await.unwrap();
    tokio::spawn(driver);
    device
}

fn pattern(seed: u64, length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    Random::new(seed).fill(&mut buffer);
    buffer
}

#[tokio::test]
async fn every_operation_reaches_the_device_and_comes_back() {
    let below = memory(64 * MIB);
    let running = Running::start(Arc::clone(&below), options());
    let device = connect(&running).await;
    assert_eq!(device.geometry().size_bytes, 64 * MIB);
    assert_eq!(device.geometry().logical_block_bytes, 512);
    assert_eq!(device.info().description, "a test disk");

    let written = pattern(1, 300 * 1024);
    device.write(512, Buffer::copy_of(&written), true).await.unwrap();
    assert_eq!(below.read(512, Buffer::zeroed(written.len())).await.unwrap()[..], written[..]);
    assert_eq!(device.read(512, Buffer::copy_of(&[0xa5; 300 * 1024])).await.unwrap()[..], written[..]);
    let zeroes = device.read(32 * MIB, Buffer::copy_of(&[0xa5; 8192])).await.unwrap();
    assert!(zeroes.iter().all(|&byte| byte == 0), "a hole fills the buffer");

    device.write_zeroes(1024, 4096, true, true).await.unwrap();
    assert_eq!(below.read(1024, Buffer::zeroed(4096)).await.unwrap()[..], [0; 4096]);
    let kinds: Vec<_> = device.extents(0, 2 * MIB).await.unwrap().iter().map(|extent| extent.kind).collect();
    assert_eq!(kinds, [ExtentKind::Data, ExtentKind::Hole]);
    device.discard(0, 64 * MIB).await.unwrap();
    let hole = Extent { range: block::ByteRange { offset: 0, length: 64 * MIB }, kind: ExtentKind::Hole };
    assert_eq!(device.extents(0, 64 * MIB).await.unwrap(), [hole]);
    device.flush().await.unwrap();

    let counters = running.server.counters();
    assert_eq!((counters.write.requests, counters.write.bytes), (1, 300 * 1024));
    assert_eq!((counters.read.requests, counters.flush.requests, counters.trim.requests), (2, 1, 1));
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn many_requests_in_flight_keep_their_data_apart() {
    let running = Running::start(memory(64 * MIB), options());
    let device = connect(&running).await;
    let mut random = Random::new(7);
    let places: Vec<_> =
        (0..200u64).map(|index| (index * 256 * 1024, 512 * (1 + random.below(400)) as usize)).collect();
    let writes: Vec<_> =
        places.iter().map(|&(offset, length)| device.write(offset, pattern(offset, length), false)).collect();
    for write in writes {
        write.await.unwrap();
    }
    let reads: Vec<_> = places.iter().map(|&(offset, length)| device.read(offset, Buffer::zeroed(length))).collect();
    for (&(offset, length), read) in places.iter().zip(reads) {
        assert_eq!(read.await.unwrap()[..], pattern(offset, length)[..], "at {offset}");
    }
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn a_pool_smaller_than_the_requests_makes_them_wait_not_fail() {
    let small = NbdOptions { buffer_bytes_max: 64 * 1024, ..options() };
    let running = Running::start(memory(64 * MIB), small);
    let (first, second) = (connect(&running).await, connect(&running).await);
    let writes: Vec<_> = (0..32u64)
        .flat_map(|index| {
            let buffer = || pattern(index, 256 * 1024);
            [first.write(index * MIB, buffer(), false), second.write(index * MIB + MIB / 2, buffer(), false)]
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    let reads: Vec<_> = (0..64u64).map(|index| second.read(index * MIB / 2, Buffer::zeroed(256 * 1024))).collect();
    for (index, read) in reads.into_iter().enumerate() {
        assert_eq!(read.await.unwrap()[..], pattern(index as u64 / 2, 256 * 1024)[..]);
    }
    drop((first, second));
    running.stop().await;
}

#[tokio::test]
async fn a_device_that_takes_less_at_once_is_served_in_pieces() {
    let geometry = Geometry { transfer_bytes_max: 64 * 1024, ..Geometry::plain(4 * MIB) };
    let running = Running::start(memory_with(geometry), options());
    let device = connect(&running).await;
    let written = pattern(3, MIB as usize);
    device.write(512, Buffer::copy_of(&written), true).await.unwrap();
    assert_eq!(device.read(512, Buffer::zeroed(written.len())).await.unwrap()[..], written[..]);
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn a_size_of_odd_blocks_is_served_to_the_last_one() {
    let size_bytes = 5 * 4096 + 3 * 512;
    let running = Running::start(memory(size_bytes), options());
    let device = connect(&running).await;
    assert_eq!(device.geometry().size_bytes, size_bytes);
    device.write(size_bytes - 512, pattern(4, 512), false).await.unwrap();
    assert_eq!(device.read(size_bytes - 512, Buffer::zeroed(512)).await.unwrap()[..], pattern(4, 512)[..]);
    let past = device.read(size_bytes - 512, Buffer::zeroed(1024)).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::InvalidRange);
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn a_read_only_export_refuses_writes() {
    let running = Running::start(memory(MIB), NbdOptions { is_read_only: true, ..options() });
    let device = connect(&running).await;
    assert!(device.geometry().is_read_only);
    assert_eq!(device.write(0, pattern(1, 512), false).await.unwrap_err().kind(), ErrorKind::ReadOnly);
    device.read(0, Buffer::zeroed(512)).await.unwrap();
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn the_wrong_export_and_no_server_are_told_apart() {
    let running = Running::start(memory(MIB), options());
    let refused = NbdClient::connect_to(&running.address, "other").await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("no such export"), "{refused}");
    let address = running.address.clone();
    running.stop().await;
    let gone = NbdClient::connect_to(&address, "disk").await.map(drop).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn one_connection_too_many_is_closed() {
    let running = Running::start(memory(MIB), NbdOptions { connections_max: 1, spare_connections_max: 0, ..options() });
    let device = connect(&running).await;
    let refused = NbdClient::connect_to(&running.address, "disk").await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Gone);
    assert_eq!(running.server.counters().connections_refused, 1);
    device.flush().await.unwrap();
    drop(device);
    running.stop().await;
}

/// Blocks above 64 KiB are only the server's preference: a client need not keep to it, and one that
/// does is served.
#[tokio::test]
async fn a_preferred_block_above_64_kib_binds_nobody() {
    for block_bytes in [128 << 10, 1 << 20] {
        let geometry = Geometry {
            logical_block_bytes: block_bytes,
            physical_block_bytes: block_bytes,
            discard_granularity_bytes: Some(block_bytes),
            ..Geometry::plain(8 * MIB)
        };
        let running = Running::start(memory_with(geometry), options());
        let device = connect(&running).await;
        let seen = device.geometry();
        assert_eq!((seen.logical_block_bytes, seen.physical_block_bytes), (512, block_bytes));
        let (whole, part) = (pattern(1, block_bytes as usize), pattern(2, 4096));
        device.write(MIB, Buffer::copy_of(&whole), false).await.unwrap();
        device.write(MIB + 512, Buffer::copy_of(&part), true).await.unwrap();
        let mut model = whole.to_vec();
        model[512..512 + 4096].copy_from_slice(&part);
        let read = device.read(MIB, Buffer::zeroed(model.len())).await.unwrap();
        assert!(read[..] == model[..], "blocks of {block_bytes}");
        device.discard(MIB, block_bytes.into()).await.unwrap();
        let read = device.read(MIB, Buffer::zeroed(model.len())).await.unwrap();
        assert!(read.iter().all(|&byte| byte == 0), "blocks of {block_bytes}");
        drop(device);
        running.stop().await;
    }
}

/// A device that grows.
struct Growing(AtomicU64);

impl Device for Growing {
    fn geometry(&self) -> Geometry {
        Geometry::plain(self.0.load(Ordering::Relaxed))
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&self, request: Request) -> Completion {
        Completion::ready(request.fail(ErrorKind::Unsupported))
    }
}

#[tokio::test]
async fn who_was_told_another_size_is_counted_until_it_connects_anew() {
    let below = Arc::new(Growing(AtomicU64::new(MIB)));
    let running = Running::start(Arc::clone(&below) as SharedDevice, options());
    let outdated = || running.server.counters().connections_outdated;
    let old = connect(&running).await;
    assert_eq!(outdated(), 0);
    below.0.store(2 * MIB, Ordering::Relaxed);
    assert_eq!(outdated(), 1);
    let new = connect(&running).await;
    assert_eq!((old.geometry().size_bytes, new.geometry().size_bytes), (MIB, 2 * MIB));
    assert_eq!(outdated(), 1);
    drop(old);
    let is_alone = || running.server.counters().connections_open == 1;
    common::wait_until("the connection of the one that went is closed", is_alone).await;
    assert_eq!(outdated(), 0);
    drop(new);
    running.stop().await;
}

/// A device whose requests finish on the test's order.
#[derive(Default)]
struct HeldDevice {
    held: Mutex<Vec<(Request, SlotSender)>>,
}

impl HeldDevice {
    async fn wait_for(&self, count: usize) {
        let has_come = || self.held.lock().unwrap().len() >= count;
        common::wait_until("the requests come to the device", has_come).await;
    }

    fn release(&self, result: Result<(), ErrorKind>) {
        for (request, sender) in self.held.lock().unwrap().drain(..) {
            let buffer = match request.operation {
                Operation::Read { buffer } => buffer,
                _ => Buffer::empty(),
            };
            sender.complete(Response { result: result.map_err(Into::into), ..Response::done(buffer) });
        }
    }
}

impl Device for HeldDevice {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..Geometry::plain(64 * MIB) }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&self, request: Request) -> Completion {
        let (completion, sender) = Completion::slot();
        self.held.lock().unwrap().push((request, sender));
        completion
    }
}

#[tokio::test]
async fn requests_under_way_finish_before_a_shutdown_does() {
    let held = Arc::new(HeldDevice::default());
    let running = Running::start(Arc::clone(&held) as SharedDevice, options());
    let device = connect(&running).await;
    let write = device.write(0, pattern(1, 4096), false);
    held.wait_for(1).await;
    let stopping = tokio::spawn(running.stop());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!stopping.is_finished(), "a write is under way");
    held.release(Ok(()));
    write.await.unwrap();
    stopping.await.unwrap();
}

#[tokio::test]
async fn errors_of_the_device_arrive_with_their_kind() {
    let held = Arc::new(HeldDevice::default());
    let running = Running::start(Arc::clone(&held) as SharedDevice, options());
    let device = connect(&running).await;
    for (kind, arrives) in [
        (ErrorKind::Media, ErrorKind::Media),
        (ErrorKind::NoSpace, ErrorKind::NoSpace),
        (ErrorKind::ReservationConflict, ErrorKind::AccessDenied),
    ] {
        let write = device.write(0, pattern(1, 4096), false);
        held.wait_for(1).await;
        held.release(Err(kind));
        assert_eq!(write.await.unwrap_err().kind(), arrives);
    }
    assert_eq!(running.server.counters().write.errors, 3);
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn fua_and_flush_are_told_to_the_device() {
    let held = Arc::new(HeldDevice::default());
    let running = Running::start(Arc::clone(&held) as SharedDevice, options());
    let device = connect(&running).await;
    let requests = [
        device.submit(Request::write(0, pattern(1, 512), true)),
        device.submit(Request::write(512, pattern(1, 512), false)),
        device.submit(Request::write_zeroes(1024, 512, true, false)),
        device.submit(Request::write_zeroes(1536, 512, false, true)),
        device.submit(Request::flush()),
    ];
    held.wait_for(requests.len()).await;
    let mut seen: Vec<_> = held
        .held
        .lock()
        .unwrap()
        .iter()
        .map(|(request, _)| match &request.operation {
            Operation::Write { fua, .. } => (request.offset, "write", *fua, false),
            Operation::WriteZeroes { fua, may_discard, .. } => (request.offset, "zero", *fua, *may_discard),
            Operation::Flush => (u64::MAX, "flush", false, false),
            other => panic!("nobody asked for {other:?}"),
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            (0, "write", true, false),
            (512, "write", false, false),
            (1024, "zero", true, false),
            (1536, "zero", false, true),
            (u64::MAX, "flush", false, false)
        ]
    );
    held.release(Ok(()));
    for request in requests {
        request.await.result.unwrap();
    }
    drop(device);
    running.stop().await;
}

#[tokio::test]
async fn a_lost_connection_ends_every_request_at_once() {
    let held = Arc::new(HeldDevice::default());
    let server = NbdServer::new(Arc::clone(&held) as SharedDevice, options());
    let (near, far) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
    let (device, driver) = NbdClient::over(near, ClientOptions::default(), "test").await.unwrap();
    let driver = tokio::spawn(driver);
    let events = device.subscribe();
    let (read, write) = (device.read(0, Buffer::zeroed(512)), device.write(512, pattern(1, 512), false));
    held.wait_for(2).await;
    serving.abort();
    assert_eq!(read.await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(write.await.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    driver.await.unwrap();
    assert_eq!(events.try_receive(), Some(Event::Offline));
    assert_eq!(device.flush().await.unwrap_err().kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn a_dropped_driver_ends_every_request() {
    let server = NbdServer::new(memory(MIB), options());
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
    let (device, driver) = NbdClient::over(near, ClientOptions::default(), "test").await.unwrap();
    let write = device.write(0, pattern(1, 512), false);
    drop(driver);
    assert_eq!(write.await.unwrap_err().kind(), ErrorKind::Gone, "not a byte of it was sent");
}

#[tokio::test]
async fn simple_replies_do_everything_but_block_status() {
    let server = NbdServer::new(memory(4 * MIB), options());
    let (near, far) = tokio::io::duplex(4096);
    tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
    let options = ClientOptions { wants_structured: false, ..ClientOptions::default() };
    let (device, driver) = NbdClient::over(near, options, "test").await.unwrap();
    tokio::spawn(driver);
    device.write(0, pattern(9, 100 * 1024), true).await.unwrap();
    assert_eq!(device.read(0, Buffer::zeroed(100 * 1024)).await.unwrap()[..], pattern(9, 100 * 1024)[..]);
    assert_eq!(device.extents(0, MIB).await.unwrap()[0].kind, ExtentKind::Data);
}
