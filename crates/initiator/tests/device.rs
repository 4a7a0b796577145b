//! A remote LUN does what any block device does, through our own target, in virtual time.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::read_only::ReadOnlyLayer;
use block::memory::MemoryDevice;
use block::{Buffer, Device, ErrorKind, Event, ExtentKind, Geometry};
use initiator::State;
use iscsi::chap::{Credentials, Secret};
use iscsi::negotiation::{Digest, Offer};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use support::{World, identity};
use target::{Target, TargetServer, TargetServerOptions};

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn memory(size_bytes: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(size_bytes, identity("serial-1")))
}

#[test]
fn it_says_what_the_lun_is() {
    let mut world = World::new(1);
    world.serve(memory(8 << 20));
    let lun = world.connect(world.options()).unwrap();
    let geometry = lun.geometry();
    assert_eq!((geometry.size_bytes, geometry.logical_block_bytes), (8 << 20, 512));
    // The target reports a larger block size only when it is configured to.
    assert_eq!(geometry.physical_block_bytes, 512);
    assert!(!geometry.is_write_cache_volatile && !geometry.is_read_only);
    let identity = lun.identity();
    assert_eq!(identity.target, support::IQN);
    assert_eq!(identity.serial, "serial-1");
    assert!(!identity.unit.is_empty());
    let status = lun.status();
    assert_eq!((status.state, status.session_count), (State::Online, 1));
    assert!(status.negotiated.is_some());
}

#[test]
fn what_is_written_is_read_whatever_was_negotiated() {
    let plain = Offer::initiator;
    for offer in [
        plain(),
        Offer { immediate_data: false, ..plain() },
        Offer { initial_r2t: true, immediate_data: false, max_outstanding_r2t: 1, ..plain() },
        Offer { initial_r2t: true, max_burst_length: 512, first_burst_length: 512, ..plain() },
        Offer { max_recv_data_segment_length: 512, max_burst_length: 4096, first_burst_length: 1024, ..plain() },
    ] {
        let mut world = World::new(2);
        let device = memory(64 << 20);
        world.serve(device.clone());
        let lun = world.connect(initiator::InitiatorOptions { offer, ..world.options() }).unwrap();
        for (offset, length) in [(0, 512), (4096, 4096), (512, 65536), (1 << 20, 3 << 20), (512 * 77, 512 * 1001)] {
            let bytes = pattern(length, offset as u8);
            let writing = lun.write(offset, Buffer::copy_of(&bytes), false);
            world.run(writing).unwrap();
            let reading = lun.read(offset, Buffer::zeroed(length));
            assert!(world.run(reading).unwrap()[..] == bytes[..]);
            let below = device.read(offset, Buffer::zeroed(length));
            assert!(world.run(below).unwrap()[..] == bytes[..]);
        }
    }
}

#[test]
fn digests_are_made_and_checked_on_both_ends() {
    let mut world = World::new(3);
    world.serve(memory(8 << 20));
    let options = initiator::InitiatorOptions { header_digest: true, data_digest: true, ..world.options() };
    let lun = world.connect(options).unwrap();
    let negotiated = lun.status().negotiated.unwrap();
    assert_eq!((negotiated.header_digest, negotiated.data_digest), (Digest::Crc32c, Digest::Crc32c));
    let bytes = pattern(1 << 20, 9);
    let writing = lun.write(512, Buffer::copy_of(&bytes), false);
    world.run(writing).unwrap();
    let reading = lun.read(512, Buffer::zeroed(1 << 20));
    assert!(world.run(reading).unwrap()[..] == bytes[..]);
}

#[test]
fn many_requests_are_under_way_at_once() {
    let mut world = World::new(4);
    world.serve(memory(16 << 20));
    let lun = world.connect(world.options()).unwrap();
    let writes: Vec<_> = (0..1000u64)
        .map(|index| lun.write(index * 4096, Buffer::copy_of(&pattern(4096, index as u8)), false))
        .collect();
    for write in writes {
        world.run(write).unwrap();
    }
    let reads: Vec<_> = (0..1000u64).map(|index| lun.read(index * 4096, Buffer::zeroed(4096))).collect();
    for (index, read) in reads.into_iter().enumerate() {
        assert!(world.run(read).unwrap()[..] == pattern(4096, index as u8)[..], "block {index}");
    }
    assert_eq!(lun.status().commands_retried, 0);
}

#[test]
fn zeroes_discards_and_flushes_reach_the_lun() {
    let mut world = World::new(5);
    let device = memory(8 << 20);
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let fill = |world: &mut World| {
        let writing = device.write(0, Buffer::copy_of(&vec![7; 4 << 20]), false);
        world.run(writing).unwrap();
    };
    let read = |world: &mut World| {
        let reading = device.read(0, Buffer::zeroed(4 << 20));
        world.run(reading).unwrap()
    };
    for may_discard in [false, true] {
        fill(&mut world);
        let zeroing = lun.write_zeroes(4096, 2 << 20, true, may_discard);
        world.run(zeroing).unwrap();
        let bytes = read(&mut world);
        assert!(bytes[4096..(2 << 20) + 4096].iter().all(|&byte| byte == 0));
        assert!(bytes[..4096].iter().chain(&bytes[(2 << 20) + 4096..]).all(|&byte| byte == 7));
    }
    fill(&mut world);
    assert_eq!(lun.geometry().discard_granularity_bytes, Some(4096));
    let discarding = lun.discard(0, 4 << 20);
    world.run(discarding).unwrap();
    assert!(read(&mut world).iter().all(|&byte| byte == 0));
    let flushing = lun.flush();
    world.run(flushing).unwrap();
}

/// The extents of a LUN's first four MiB, as (bytes, is a hole).
fn extents(world: &mut World, lun: &Arc<initiator::RemoteLun>) -> Vec<(u64, bool)> {
    let extents = lun.extents(0, 4 << 20);
    let extents = world.run(extents).unwrap();
    extents.iter().map(|extent| (extent.range.length, extent.kind == ExtentKind::Hole)).collect()
}

#[test]
fn holes_are_told_from_data() {
    let mut world = World::new(11);
    world.serve(memory(8 << 20));
    let lun = world.connect(world.options()).unwrap();
    assert_eq!(extents(&mut world, &lun), [(4 << 20, true)], "nothing was written yet");
    let writing = lun.write(1 << 20, Buffer::copy_of(&vec![7; 2 << 20]), false);
    world.run(writing).unwrap();
    assert_eq!(extents(&mut world, &lun), [(1 << 20, true), (2 << 20, false), (1 << 20, true)]);
    let discarding = lun.discard(2 << 20, 1 << 20);
    world.run(discarding).unwrap();
    assert_eq!(extents(&mut world, &lun), [(1 << 20, true), (1 << 20, false), (2 << 20, true)]);
    assert_eq!(lun.status().commands_retried, 0);
}

#[test]
fn a_unit_that_says_nothing_of_holes_has_none() {
    let mut world = World::new(12);
    let thick = LogicalUnitOptions { is_thin: false, ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(memory(8 << 20), thick);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let clock = Arc::new(world.clock.clone());
    let targets = vec![Target::new(support::IQN, luns)];
    world.network.set_server(Some(TargetServer::with_clock(targets, TargetServerOptions::default(), clock)));
    let lun = world.connect(world.options()).unwrap();
    assert_eq!(extents(&mut world, &lun), [(4 << 20, false)]);
}

/// COMPARE AND WRITE of block 0: zeroes become `byte`.
fn compare_and_write(
    lun: &Arc<initiator::RemoteLun>,
    byte: u8,
) -> impl Future<Output = Result<initiator::RawOutcome, block::Error>> + use<> {
    let lun = lun.clone();
    async move {
        let cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        lun.execute(&cdb, &[[0; 512], [byte; 512]].concat(), 0).await
    }
}

/// It cannot be issued again: if it was carried out the first time, it would fail the second.
#[test]
fn nobody_guesses_what_came_of_a_compare_and_write() {
    for is_cut in [true, false] {
        let mut world = World::new(13);
        let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
        let slow = Delays::all(Latency::Fixed(Duration::from_secs(60)));
        let device = Arc::new(DelayLayer::new(memory(1 << 20), clock, &world.workers, slow, 13));
        world.serve(device.clone());
        let options = initiator::InitiatorOptions {
            command_timeout: Duration::from_secs(5),
            // An idle unit is asked by a command.
            keepalive_interval: Duration::ZERO,
            ..world.options()
        };
        let lun = world.connect(options).unwrap();
        let (network, clock) = (world.network.clone(), world.clock.clone());
        world.executor.spawn(async move {
            clock.sleep(Duration::from_secs(1)).await;
            if is_cut {
                network.cut();
            }
        });
        let error = world.run(compare_and_write(&lun, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "the link is cut: {is_cut}; {error}");
        let raw = |status: &initiator::Status| status.commands_sent;
        let sent = raw(&lun.status());
        device.set_delays(Delays::all(Latency::Fixed(Duration::ZERO)));
        world.pass(Duration::from_secs(300));
        assert_eq!((raw(&lun.status()), lun.status().state), (sent, State::Online), "it was sent once");
    }
}

#[test]
fn a_flush_makes_writes_durable_and_fua_needs_none() {
    let mut world = World::new(6);
    let device = CrashLayer::new(1 << 20, 6);
    world.serve(Arc::new(device.clone()));
    let lun = world.connect(world.options()).unwrap();
    assert!(lun.geometry().is_write_cache_volatile);
    let writing = lun.write(0, Buffer::copy_of(&pattern(4096, 1)), true);
    world.run(writing).unwrap();
    assert_eq!(device.durable_bytes(0, 4096), pattern(4096, 1));
    let writing = lun.write(8192, Buffer::copy_of(&pattern(4096, 2)), false);
    world.run(writing).unwrap();
    assert_eq!(device.durable_bytes(8192, 4096), [0; 4096]);
    assert_eq!(lun.status().retained_bytes, 4096);
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    assert_eq!(device.durable_bytes(8192, 4096), pattern(4096, 2));
    world.executor.run_until_stalled();
    assert_eq!(lun.status().retained_bytes, 0);
}

#[test]
fn retained_copies_are_bounded_by_flushes_of_our_own() {
    let mut world = World::new(7);
    let device = CrashLayer::new(8 << 20, 7);
    world.serve(Arc::new(device.clone()));
    let options = initiator::InitiatorOptions { retained_bytes_max: 64 << 10, ..world.options() };
    let lun = world.connect(options).unwrap();
    let writes: Vec<_> =
        (0..200u64).map(|index| lun.write(index * 4096, Buffer::copy_of(&pattern(4096, 3)), false)).collect();
    for write in writes {
        world.run(write).unwrap();
        assert!(lun.status().retained_bytes <= 64 << 10);
    }
    assert!(device.flushes_seen() > 0);
    // A single write above the bound is taken as well.
    let large = lun.write(0, Buffer::copy_of(&pattern(1 << 20, 4)), false);
    world.run(large).unwrap();
}

/// Zeroes take no room for copies, so only their number limits them.
#[test]
fn zeroes_that_are_not_durable_wait_when_there_are_too_many_of_them() {
    const FLUSH: Duration = Duration::from_secs(100);
    const RETAINED_MAX: u64 = 64 << 10;
    let mut world = World::new(7);
    let delays = Delays { flush: Latency::Fixed(FLUSH), ..Delays::all(Latency::Fixed(Duration::ZERO)) };
    let device = Arc::new(CrashLayer::new(160 << 20, 7));
    world.serve(Arc::new(DelayLayer::new(device, Arc::new(world.clock.clone()), &world.workers, delays, 7)));
    let lun = world.connect(initiator::InitiatorOptions { command_timeout: 2 * FLUSH, ..world.options() }).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let (zeroing, counted) = (Arc::clone(&lun), Arc::clone(&done));
    world.executor.spawn(async move {
        // No two of them are neighbours, and no more are under way than the target takes.
        for first in (0..2 * RETAINED_MAX).step_by(64) {
            let some = (first..first + 64).map(|index| zeroing.write_zeroes(index * 1024, 512, false, false));
            for zeroes in some.collect::<Vec<_>>() {
                zeroes.await.expect("a flush makes room");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    world.pass(FLUSH / 2);
    let seen = done.load(Ordering::Relaxed);
    assert!((RETAINED_MAX / 2..=RETAINED_MAX + 64).contains(&seen), "{seen} before the first flush has ended");
    world.pass(3 * FLUSH);
    assert_eq!(done.load(Ordering::Relaxed), 2 * RETAINED_MAX, "flushes made room");
}

#[test]
fn requests_off_the_device_and_writes_to_a_read_only_one_are_refused() {
    let mut world = World::new(8);
    world.serve(Arc::new(ReadOnlyLayer::new(memory(1 << 20))));
    let lun = world.connect(world.options()).unwrap();
    let reading = lun.read(1 << 20, Buffer::zeroed(512));
    assert_eq!(world.run(reading).unwrap_err().kind(), ErrorKind::InvalidRange);
    assert!(lun.geometry().is_read_only);
    let writing = lun.write(0, Buffer::zeroed(512), false);
    assert_eq!(world.run(writing).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn raw_commands_come_back_as_they_are() {
    let mut world = World::new(9);
    world.serve(memory(1 << 20));
    let lun = world.connect(world.options()).unwrap();
    let asking = {
        let lun = lun.clone();
        async move { lun.execute(&[0x12, 0, 0, 0, 96, 0], &[], 96).await }
    };
    let inquiry = world.run(asking).unwrap();
    assert_eq!(inquiry.status, 0);
    assert_eq!(&inquiry.data_in[8..15], b"FOREBAY");
    let asking = {
        let lun = lun.clone();
        async move { lun.execute(&[0xee; 10], &[], 0).await }
    };
    let unknown = world.run(asking).unwrap();
    assert_eq!((unknown.status, unknown.sense[2] & 0x0f), (2, 5));
}

#[test]
fn errors_say_what_happened_to_what() {
    let mut world = World::new(10);
    let refused = world.connect(world.options()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Gone);
    assert!(refused.to_string().contains("10.0.0.1:3260"), "{refused}");
    world.serve(memory(1 << 20));
    let mut options = world.options();
    options.target = "iqn.2026-01.io.forebay:nobody".to_owned();
    let unknown = world.connect(options).map(drop).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("iqn.2026-01.io.forebay:nobody"), "{unknown}");
    let mut options = world.options();
    options.lun = 5;
    let no_lun = world.connect(options).map(drop).unwrap_err();
    assert_eq!(no_lun.kind(), ErrorKind::NotFound);
    assert!(no_lun.to_string().contains("LUN 5"), "{no_lun}");
    world.network.set_mute(true);
    let mute = world.connect(world.options()).map(drop).unwrap_err();
    assert_eq!(mute.kind(), ErrorKind::TimedOut);
    assert_eq!(world.network.connect_count(), 4, "a first connect is never tried twice");
}

#[test]
fn chap_lets_the_right_ones_in() {
    use iscsi::target::{AccessList, AccessRule};
    let credentials =
        |name: &str, secret: &str| Credentials { name: name.into(), secret: Secret::new(secret).unwrap() };
    let mut world = World::new(11);
    let server = world.serve(memory(1 << 20));
    let mut targets = server.targets();
    targets[0].access = AccessList(vec![AccessRule::any_initiator(vec![credentials("alice", "alice's secret")])]);
    targets[0].own = Some(credentials("target", "target's secret"));
    server.set_targets(targets);
    let with = |world: &World, secret: &str, target_secret: Option<&str>| initiator::InitiatorOptions {
        chap: Some(initiator::ChapCredentials {
            own: credentials("alice", secret),
            target: target_secret.map(|secret| credentials("target", secret)),
        }),
        ..world.options()
    };
    let none = world.connect(world.options()).map(drop).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::AccessDenied, "{none}");
    assert!(none.to_string().contains("--chap-file"), "{none}");
    for (secret, target_secret, is_right) in [
        ("alice's secret", None, true),
        ("alice's secret", Some("target's secret"), true),
        ("alice's secret", Some("another secret"), false),
        ("another secret", None, false),
    ] {
        let options = with(&world, secret, target_secret);
        match world.connect(options) {
            Ok(lun) => {
                assert!(is_right);
                world.run(async move { lun.close().await }).unwrap();
            }
            Err(error) => {
                assert!(!is_right, "{error}");
                assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            }
        }
    }
}

#[test]
fn targets_are_discovered() {
    let mut world = World::new(12);
    world.serve(memory(1 << 20));
    let connector = Arc::new(world.network.clone());
    let asking = initiator::discover(world.options(), connector);
    let found = world.run(asking).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, support::IQN);
}

#[test]
fn close_answers_flushes_and_logs_out() {
    let mut world = World::new(13);
    let device = CrashLayer::new(1 << 20, 13);
    let server = world.serve(Arc::new(device.clone()));
    let lun = world.connect(world.options()).unwrap();
    let write = lun.write(0, Buffer::copy_of(&pattern(4096, 5)), false);
    let closing = lun.clone();
    world.run(async move { closing.close().await.expect("nothing is left to flush") });
    world.run(write).unwrap();
    assert_eq!(device.durable_bytes(0, 4096), pattern(4096, 5));
    assert_eq!(lun.status().state, State::Closed);
    world.executor.run_until_stalled();
    let status = world.run(async move { server.status().await });
    assert!(status.sessions.is_empty());
    let late = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(late).unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn a_driver_that_is_dropped_leaves_nothing_hanging() {
    let mut world = World::new(14);
    world.serve(memory(1 << 20));
    let connector = Arc::new(world.network.clone());
    let connecting = initiator::connect(world.options(), connector);
    let (lun, driver) = world.run(connecting).unwrap();
    let read = lun.read(0, Buffer::zeroed(512));
    drop(driver);
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::Gone);
    world.run(async move { lun.close().await }).unwrap();
}

#[test]
fn a_lun_that_grows_says_so() {
    let mut world = World::new(15);
    let device = support::Resizable::new(1 << 20);
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let events = lun.subscribe();
    device.resize(2 << 20);
    world.pass(Duration::from_millis(1));
    let reading = lun.read(0, Buffer::zeroed(512));
    world.run(reading).unwrap();
    world.executor.run_until_stalled();
    assert!(matches!(events.try_receive(), Some(Event::Resized(Geometry { size_bytes, .. })) if size_bytes == 2 << 20));
    let reading = lun.read((2 << 20) - 512, Buffer::zeroed(512));
    world.run(reading).unwrap();
    assert_eq!(lun.status().session_count, 1, "the session goes on");
}
