//! Links break, targets restart, and commands do not end: requests wait and are carried out,
//! acknowledged writes last, and where that cannot be, an error reports it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::{InitiatorOptions, State};
use iscsi::negotiation::Offer;
use support::load::{BLOCK, check, load, version};
use support::{World, identity};
use target::TargetServerOptions;

fn memory(serial: &str) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(8 << 20, identity(serial)))
}

#[test]
fn a_link_that_is_cut_at_any_byte_loses_nothing() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 40, 1) {
        let _printed = test.on_panic(seed, None);
        let mut world = World::new(seed);
        world.serve(memory("one"));
        let lun = world.connect(world.options()).unwrap();
        let mut random = Random::new(seed);
        // The first cut comes by hand, the next ones wherever the bytes run out: in a login, in a header, in the middle
        // of data.
        for _ in 0..6 {
            world.network.cut_next_after(random.below(150_000));
        }
        let acknowledged = load(&mut world, &lun, 8, 30, seed);
        world.pass(Duration::from_micros(random.below(3000)));
        world.network.cut();
        world.pass(Duration::from_secs(60));
        assert_eq!(*acknowledged.borrow(), [30; 8], "seed {seed}: everything is carried out in the end");
        check(&mut world, &lun, &acknowledged.borrow());
        let status = lun.status();
        assert!(status.session_count >= 2, "seed {seed}");
        assert_eq!((status.state, status.in_flight, status.waiting), (State::Online, 0, 0));
    }
}

/// The target dies with what its cache had not made durable, and comes back with the same medium.
#[test]
fn a_target_that_loses_its_cache_gets_it_back() {
    let (mut restarts_seen, mut writes_replayed, mut count) = (0, 0, 0);
    let test = block::crash_test!();
    for seed in test.seeds(0, 40, 1) {
        let _printed = test.on_panic(seed, None);
        count += 1;
        let mut world = World::new(seed);
        let power = Power::new();
        let mut device = CrashLayer::on(&power, 8 << 20, seed);
        let mut power = power;
        world.serve(Arc::new(device.clone()));
        let options = InitiatorOptions {
            retained_bytes_max: 256 << 10,
            reconnect_wait_min: Duration::from_millis(1),
            ..world.options()
        };
        let lun = world.connect(options).unwrap();
        let acknowledged = load(&mut world, &lun, 8, 100, seed);
        let mut random = Random::new(seed);
        let loss = if seed % 2 == 0 { Loss::All } else { Loss::Seeded(seed) };
        for _ in 0..4 {
            world.pass(Duration::from_micros(random.below(4000)));
            world.network.set_server(None);
            world.network.cut();
            power.lose();
            power = Power::new();
            device = device.after_power_loss_as(loss, &power);
            world.pass(Duration::from_micros(random.below(2000)));
            world.serve(Arc::new(device.clone()));
        }
        world.pass(Duration::from_secs(60));
        assert_eq!(*acknowledged.borrow(), [100; 8], "seed {seed}");
        check(&mut world, &lun, &acknowledged.borrow());
        restarts_seen += lun.status().session_count - 1;
        writes_replayed += lun.status().writes_replayed;
        // Flushed data does not depend on the initiator any more.
        let flushing = lun.flush();
        world.run(flushing).unwrap();
        for (block, &expected) in acknowledged.borrow().iter().enumerate() {
            let bytes = device.durable_bytes((block * BLOCK) as u64, BLOCK);
            assert_eq!(version(block as u64, &bytes), expected, "seed {seed}");
        }
    }
    let has_broken = restarts_seen >= 2 * count && writes_replayed >= 2 * count;
    assert!(has_broken || count < 20, "{restarts_seen} restarts, {writes_replayed} writes again");
}

#[test]
fn zeroes_and_discards_are_written_again_as_such() {
    let mut world = World::new(3);
    let device = CrashLayer::new(1 << 20, 3);
    world.serve(Arc::new(device.clone()));
    let lun = world.connect(world.options()).unwrap();
    let writing = lun.write(0, Buffer::copy_of(&[7; 64 << 10]), false);
    world.run(writing).unwrap();
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    let zeroing = lun.write_zeroes(4096, 8192, false, true);
    world.run(zeroing).unwrap();
    let discarding = lun.discard(16384, 4096);
    world.run(discarding).unwrap();
    // Part of the zeroes is overwritten: only the newest version counts.
    let writing = lun.write(8192, Buffer::copy_of(&[9; 512]), false);
    world.run(writing).unwrap();
    world.network.set_server(None);
    world.network.cut();
    device.power().lose();
    let after = device.after_power_loss_as(Loss::All, &Power::new());
    assert_eq!(after.durable_bytes(4096, 512), [7; 512], "the crash lost the zeroes");
    world.serve(Arc::new(after));
    world.pass(Duration::from_secs(1));
    let reading = lun.read(0, Buffer::zeroed(32 << 10));
    let bytes = world.run(reading).unwrap();
    let expected = |at: usize| match at {
        8192..8704 => 9,
        4096..12288 | 16384..20480 => 0,
        _ => 7,
    };
    for (at, &byte) in bytes.iter().enumerate() {
        assert_eq!(byte, expected(at), "byte {at}");
    }
    assert!(lun.status().writes_replayed >= 3);
}

/// What was completed while a flush was under way may have come too late for it.
#[test]
fn what_was_written_while_a_flush_was_under_way_is_written_again() {
    let mut world = World::new(4);
    let device = CrashLayer::new(1 << 20, 4);
    let delays = Delays { flush: Latency::Fixed(Duration::from_millis(10)), ..Delays::default() };
    let slow = DelayLayer::new(Arc::new(device.clone()), Arc::new(world.clock.clone()), &world.workers, delays, 4);
    world.serve(Arc::new(slow));
    let lun = world.connect(world.options()).unwrap();
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    let flushing = lun.flush();
    world.pass(Duration::from_millis(1));
    // The flush itself has been carried out by now, and is answered later.
    for (block, byte) in [(1, 8), (2, 9)] {
        let writing = lun.write(block * 4096, Buffer::copy_of(&[byte; 4096]), false);
        world.run(writing).unwrap();
    }
    world.run(flushing).unwrap();
    world.network.set_server(None);
    world.network.cut();
    device.power().lose();
    let after = device.after_power_loss_as(Loss::All, &Power::new());
    assert_eq!((after.durable_bytes(0, 512), after.durable_bytes(4096, 512)), (vec![7; 512], vec![0; 512]));
    world.serve(Arc::new(after));
    world.pass(Duration::from_secs(1));
    let reading = lun.read(0, Buffer::zeroed(3 * 4096));
    let bytes = world.run(reading).unwrap();
    assert_eq!([bytes[0], bytes[4096], bytes[8192]], [7, 8, 9]);
    assert_eq!(lun.status().writes_replayed, 2, "the first write is durable");
}

#[test]
fn another_device_in_its_place_is_found_out() {
    let mut world = World::new(4);
    world.serve(memory("one"));
    let lun = world.connect(world.options()).unwrap();
    let events = lun.subscribe();
    let other = memory("two");
    world.serve(other.clone());
    let write = lun.write(0, Buffer::copy_of(&[1; 512]), false);
    world.network.cut();
    let error = world.run(write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("one") && error.to_string().contains("two"), "{error}");
    world.executor.run_until_stalled();
    assert_eq!(events.try_receive(), Some(Event::Offline));
    assert_eq!(events.try_receive(), Some(Event::IdentityChanged));
    assert_eq!(lun.status().state, State::Replaced);
    let late = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(late).unwrap_err().kind(), ErrorKind::Gone);
    let below = other.read(0, Buffer::zeroed(512));
    assert!(world.run(below).unwrap().iter().all(|&byte| byte == 0), "nothing was written to it");
}

#[test]
fn requests_fail_after_the_replacement_timeout_and_work_again_later() {
    let mut world = World::new(5);
    let device = memory("one");
    let server = world.serve(device);
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(20), ..world.options() };
    let lun = world.connect(options).unwrap();
    let events = lun.subscribe();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_millis(1));
    let began = world.clock.now();
    let read = lun.read(0, Buffer::zeroed(512));
    let write = lun.write(0, Buffer::zeroed(512), false);
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(world.run(write).unwrap_err().kind(), ErrorKind::TimedOut, "it was never sent");
    let waited = world.clock.now().since(began);
    assert!(waited > Duration::from_secs(18) && waited < Duration::from_secs(21), "{waited:?}");
    let late = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(late).unwrap_err().kind(), ErrorKind::Gone);
    let status = lun.status();
    assert_eq!(status.state, State::Failing);
    assert!(status.reconnect_attempts > 5 && status.reconnect_wait.is_some());
    assert!(status.last_error.unwrap().contains("10.0.0.1:3260"));
    world.network.set_server(Some(server));
    world.pass(Duration::from_secs(6));
    let back = lun.read(0, Buffer::zeroed(512));
    world.run(back).unwrap();
    assert_eq!(events.try_receive(), Some(Event::Offline));
    assert_eq!(events.try_receive(), Some(Event::Back));
}

#[test]
fn attempts_are_made_less_and_less_often() {
    let mut world = World::new(6);
    world.serve(memory("one"));
    let options = InitiatorOptions {
        reconnect_wait_min: Duration::from_millis(100),
        reconnect_wait_max: Duration::from_secs(2),
        ..world.options()
    };
    let _lun = world.connect(options).unwrap();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_secs(60));
    // 0, 0.1, 0.2, 0.4, 0.8, 1.6 s, then every 2 s.
    let attempts = world.network.connect_count() - 1;
    assert!((30..=36).contains(&attempts), "{attempts}");
}

/// A login alone is no reason to return at once: a target that breaks off at the first request is
/// tried less and less often.
#[test]
fn a_target_that_logs_in_and_fails_at_once_is_tried_less_and_less_often() {
    let mut world = World::new(15);
    // A target that does not ask for a pause.
    let offer = Offer { default_time2wait: 0, ..Offer::target() };
    let server = TargetServerOptions { offer: Some(offer), ..TargetServerOptions::default() };
    let server = world.server(memory("one"), server);
    world.network.set_server(Some(server));
    let offer = Offer { default_time2wait: 0, ..world.options().offer };
    let options = InitiatorOptions { offer, replacement_timeout: Duration::from_secs(30), ..world.options() };
    let lun = world.connect(options).unwrap();
    // The time that a reconnect takes, without any request.
    world.network.cut();
    world.pass(Duration::from_millis(1));
    let (sent, received) = *world.network.traffic().last().unwrap();
    for _ in 0..200 {
        world.network.cut_next_after(sent + received + 8);
    }
    world.network.cut();
    let before = world.network.connect_count();
    let read = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::TimedOut);
    let sessions = lun.status().session_count;
    assert!(sessions > 5, "there were {sessions} sessions");
    let attempts = world.network.connect_count() - before;
    assert!(attempts < 20, "{attempts} logins for one read");
}

#[test]
fn a_word_from_the_user_ends_the_wait_and_resets_the_back_off() {
    let mut world = World::new(9);
    world.serve(memory("one"));
    let options = InitiatorOptions {
        reconnect_wait_min: Duration::from_secs(1),
        reconnect_wait_max: Duration::from_secs(1 << 20),
        ..world.options()
    };
    let lun = world.connect(options).unwrap();
    world.network.set_server(None);
    world.network.cut();
    // Attempts at 0, 1, 3, 7, 15, 31 and 63 s.
    world.pass(Duration::from_secs(70));
    let status = lun.status();
    assert_eq!((status.reconnect_attempts, status.reconnect_wait), (8, Some(Duration::from_secs(64))));
    let before = world.network.connect_count();
    lun.reconnect_now();
    world.pass(Duration::from_millis(10));
    assert_eq!(world.network.connect_count(), before + 1, "at once");
    assert_eq!(lun.status().reconnect_wait, Some(Duration::from_secs(1)), "and from the beginning");
    // At 1 and 3 s again.
    world.pass(Duration::from_secs(5));
    assert_eq!(world.network.connect_count(), before + 3);
    // An attempt that waits for a portal that is silent is given up as well.
    world.network.set_mute(true);
    world.serve(memory("one"));
    world.pass(Duration::from_secs(3));
    let before = world.network.connect_count();
    world.network.set_mute(false);
    lun.reconnect_now();
    let began = world.clock.now();
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).unwrap();
    assert_eq!(world.network.connect_count(), before + 1);
    assert!(
        world.clock.now().since(began) < Duration::from_secs(1),
        "before the login timeout of the one that was given up"
    );
    // With a session it has no effect.
    lun.reconnect_now();
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).unwrap();
    assert_eq!((lun.status().state, lun.status().session_count), (State::Online, 2));
}

#[test]
fn a_portal_that_accepts_and_never_answers_is_given_up_each_time() {
    let mut world = World::new(7);
    world.serve(memory("one"));
    let options = InitiatorOptions { login_timeout: Duration::from_secs(3), ..world.options() };
    let lun = world.connect(options).unwrap();
    world.network.set_mute(true);
    world.network.cut();
    world.pass(Duration::from_secs(15));
    assert_eq!(lun.status().state, State::Reconnecting);
    assert!(lun.status().last_error.unwrap().contains("login"), "the error says what did not happen");
    world.network.set_mute(false);
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).unwrap();
}

#[test]
fn a_silent_link_is_found_out_by_pings() {
    let mut world = World::new(8);
    world.serve(memory("one"));
    let lun = world.connect(world.options()).unwrap();
    world.network.freeze();
    let began = world.clock.now();
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).unwrap();
    // The interval and the timeout are five seconds each.
    let waited = world.clock.now().since(began);
    assert!(waited >= Duration::from_secs(9) && waited < Duration::from_secs(12), "{waited:?}");
    assert_eq!(lun.status().session_count, 2);
}

#[test]
fn a_command_that_takes_too_long_is_aborted_and_issued_again() {
    let mut world = World::new(9);
    let delays = Delays::all(Latency::Fixed(Duration::from_secs(3600)));
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let slow = DelayLayer::new(memory("one"), clock, &world.workers, delays, 9);
    let slow = Arc::new(slow);
    world.serve(slow.clone());
    let options = InitiatorOptions {
        command_timeout: Duration::from_secs(5),
        task_management_timeout: Duration::from_secs(2),
        replacement_timeout: Duration::from_secs(12),
        keepalive_interval: Duration::from_secs(1),
        ..world.options()
    };
    let lun = world.connect(options).unwrap();
    let began = world.clock.now();
    let read = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(world.clock.now().since(began) < Duration::from_secs(40));
    // The target lets no session replace one with I/O under way, until it declares the backend
    // stuck.
    world.pass(Duration::from_secs(120));
    let write = lun.write(0, Buffer::zeroed(512), false);
    assert_eq!(world.run(write).unwrap_err().kind(), ErrorKind::OutcomeUnknown, "it may have been carried out");
    slow.set_delays(Delays::all(Latency::Fixed(Duration::ZERO)));
    world.pass(Duration::from_secs(120));
    // Elsewhere: the target still holds the range of the write.
    let read = lun.read(1 << 20, Buffer::zeroed(512));
    world.run(read).unwrap();
}

/// Neither the abort nor the reset is answered: the steps take no longer than the command did, and one round of them is
/// enough.
#[test]
fn a_command_that_nothing_ends_fails_when_its_times_are_over() {
    let mut world = World::new(16);
    let delays = Delays::all(Latency::Fixed(Duration::from_secs(3600)));
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let slow = DelayLayer::new(memory("one"), clock, &world.workers, delays, 16);
    world.serve(Arc::new(slow));
    let options = InitiatorOptions {
        command_timeout: Duration::from_secs(3),
        replacement_timeout: Duration::from_secs(6),
        ..world.options()
    };
    let lun = world.connect(options).unwrap();
    let began = world.clock.now();
    let read = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::TimedOut);
    let waited = world.clock.now().since(began);
    assert!(waited <= Duration::from_secs(10), "{waited:?}");
}

#[test]
fn a_reset_of_the_unit_brings_a_replay_without_a_new_session() {
    let mut world = World::new(10);
    let device = CrashLayer::new(1 << 20, 10);
    world.serve(Arc::new(device));
    let lun = world.connect(world.options()).unwrap();
    let write = lun.write(0, Buffer::copy_of(&[5; 4096]), false);
    world.run(write).unwrap();
    // Another initiator resets the unit: our next command reports it.
    let other = InitiatorOptions { initiator_name: "iqn.2026-01.io.forebay:other".to_owned(), ..world.options() };
    support::reset_unit(&mut world, other);
    let read = lun.read(0, Buffer::zeroed(4096));
    assert!(world.run(read).unwrap().iter().all(|&byte| byte == 5));
    let status = lun.status();
    assert_eq!((status.session_count, status.writes_replayed), (1, 1));
}

/// A target without target port groups reports nothing; ours reports active/optimized.
#[test]
fn the_access_state_of_the_port_is_asked_for() {
    let mut world = World::new(13);
    world.serve(memory("one"));
    let lun = world.connect(world.options()).unwrap();
    let state = world.run(async move { lun.access_state().await }).unwrap();
    assert_eq!(state, Some(scsi::target_port_groups::AccessState::ActiveOptimized));
}

#[test]
fn a_target_that_asks_for_a_logout_gets_one_and_is_found_again() {
    let mut world = World::new(11);
    let device = memory("one");
    let server = world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let acknowledged = load(&mut world, &lun, 4, 20, 11);
    world.pass(Duration::from_millis(1));
    world.serve(device);
    world.run(async move { server.drain().await });
    world.pass(Duration::from_secs(20));
    assert_eq!(*acknowledged.borrow(), [20; 4]);
    check(&mut world, &lun, &acknowledged.borrow());
}

/// To the target a connection that only closes is a broken one, whose session it keeps for a while.
#[test]
fn a_session_that_the_target_wants_to_end_ends_with_a_logout() {
    let mut world = World::new(14);
    let server = world.serve(memory("one"));
    let lun = world.connect(world.options()).unwrap();
    let received = |world: &mut World| {
        let server = server.clone();
        world.run(async move { server.status().await }).pdus_received
    };
    let before = received(&mut world);
    let draining = server.clone();
    world.run(async move { draining.drain().await });
    assert_eq!(received(&mut world) - before, 1, "the Logout Request");
    world.run(async move { lun.close().await }).unwrap();
}

#[test]
fn closing_while_away_answers_what_waits() {
    let mut world = World::new(12);
    world.serve(memory("one"));
    let lun = world.connect(world.options()).unwrap();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_secs(1));
    let read = lun.read(0, Buffer::zeroed(512));
    let closing = Arc::clone(&lun);
    world.run(async move { closing.close().await }).unwrap();
    assert_eq!(world.run(read).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(lun.geometry().size_bytes, 8 << 20);
}
