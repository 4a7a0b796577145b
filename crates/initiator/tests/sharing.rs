//! A LUN that several hosts share (`docs/protocol/sharing.md`): copies are called back before
//! another host writes, and a host that was silent for too long writes nothing.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use block::{
    Buffer, ByteRange, Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Request,
    SharedDevice,
};
use initiator::{InitiatorOptions, RemoteLun, State};
use logical_unit::SharingOptions;
use support::sharing::{Cache, host, memory, read, serve, write};
use support::{World, identity};

fn client(lun: &Arc<RemoteLun>) -> Option<u64> {
    lun.status().sharing.expect("it is shared").client
}

fn two_hosts(world: &mut World) -> (Arc<MemoryDevice>, Arc<RemoteLun>, Arc<RemoteLun>) {
    let device = memory();
    serve(world, device.clone(), SharingOptions::default());
    let (one, two) = (host(world, 1), host(world, 2));
    (device, world.connect(one).unwrap(), world.connect(two).unwrap())
}

#[test]
fn a_copy_is_asked_back_before_another_host_writes() {
    let mut world = World::new(1);
    let (_, one, two) = two_hosts(&mut world);
    let (cache, others) = (Cache::over(&one), Cache::over(&two));
    assert_eq!(read(&mut world, &one, 4096), 0);
    assert!(one.copies().unwrap().may_use());
    write(&mut world, &two, 4096, 7).unwrap();
    assert_eq!(cache.dropped(), [ByteRange { offset: 4096, length: 4096 }]);
    assert_eq!(others.dropped(), [], "it has no copy but its own");
    assert_eq!(read(&mut world, &one, 4096), 7);
}

/// Each purge has its time from when it was asked, and an answer takes a round trip.
#[test]
fn who_answers_over_a_long_link_is_not_fenced_by_the_writes_of_others() {
    const OF_A_SESSION: u32 = 127;
    for (round_trip_ms, count) in [(100, OF_A_SESSION), (10, 2000)] {
        let mut world = World::new(17);
        let device = Arc::new(MemoryDevice::new(16 << 20, identity("shared")));
        serve(&mut world, device, SharingOptions::default());
        world.network.set_delay(Some((world.clock.clone(), Duration::from_millis(round_trip_ms) / 2)));
        let options = host(&world, 1);
        let one = world.connect(options).unwrap();
        world.network.set_delay(None);
        let cache = Cache::over(&one);
        register(&mut world, &one, ByteRange { offset: 0, length: u64::MAX }).unwrap();
        let before = client(&one);
        let mut others = Vec::new();
        for number in 2..2 + count.div_ceil(OF_A_SESSION) {
            let options = InitiatorOptions { is_shared: false, ..host(&world, number) };
            others.push(world.connect(options).unwrap());
        }
        let asked = base::clock::Clock::now(&world.clock);
        let write = |number: u32| {
            let other = &others[(number / OF_A_SESSION) as usize];
            other.write(u64::from(number) * 8192, Buffer::copy_of(&[7; 512]), false)
        };
        let writes: Vec<_> = (0..count).map(write).collect();
        for write in writes {
            world.run(write).unwrap();
        }
        let took = base::clock::Clock::now(&world.clock).since(asked);
        world.pass(Duration::from_secs(1));
        let case = format!("{count} writes, {round_trip_ms} ms: {took:?}");
        assert_eq!((one.status().state, client(&one)), (State::Online, before), "{case}");
        assert_eq!(cache.dropped().len(), count as usize, "{case}");
        assert!(took < Duration::from_secs(1), "{case}");
    }
}

fn register(world: &mut World, lun: &Arc<RemoteLun>, range: ByteRange) -> Result<(), block::Error> {
    let lun = Arc::clone(lun);
    world.run(async move { lun.register_copies(range).await })
}

/// Registration reads nothing. Ranges beyond the end are not registered.
#[test]
fn copies_from_before_are_asked_back_once_they_are_registered() {
    let mut world = World::new(9);
    let (_, one, two) = two_hosts(&mut world);
    let cache = Cache::over(&one);
    assert!(one.registers_copies());
    write(&mut world, &two, 4096, 6).unwrap();
    assert_eq!(cache.dropped(), [], "nobody knows of any");
    register(&mut world, &one, ByteRange { offset: 5000, length: u64::MAX - 5000 }).unwrap();
    write(&mut world, &two, 0, 7).unwrap();
    assert_eq!(cache.dropped(), []);
    write(&mut world, &two, 4096, 7).unwrap();
    write(&mut world, &two, (1 << 20) - 512, 7).unwrap();
    let block = |offset| ByteRange { offset, length: 4096 };
    assert_eq!(cache.dropped(), [block(4096), block((1 << 20) - 4096)]);
}

/// The command is sent only where the session is the client's: in another session it would succeed
/// and register nothing.
#[test]
fn copies_are_registered_by_the_client_also_where_its_session_is_lost_meanwhile() {
    let mut world = World::new(10);
    let (_, one, two) = two_hosts(&mut world);
    let cache = Cache::over(&one);
    world.network.cut();
    register(&mut world, &one, ByteRange { offset: 0, length: 4096 }).unwrap();
    write(&mut world, &two, 0, 7).unwrap();
    assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: 4096 }]);
}

#[test]
fn a_host_that_does_not_share_the_lun_registers_nothing() {
    let mut world = World::new(11);
    serve(&mut world, memory(), SharingOptions::default());
    let options = world.options();
    let alone = world.connect(options).unwrap();
    assert!(!alone.registers_copies());
    let refused = register(&mut world, &alone, ByteRange { offset: 0, length: 4096 }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_lease_is_renewed_while_nothing_is_asked() {
    let mut world = World::new(2);
    let (_, one, _) = two_hosts(&mut world);
    read(&mut world, &one, 0);
    let before = client(&one);
    world.pass(Duration::from_secs(60));
    assert!(one.copies().unwrap().may_use());
    assert_eq!(client(&one), before);
}

#[test]
fn a_lost_session_keeps_the_client_and_its_copies_and_what_it_missed_is_told() {
    let mut world = World::new(3);
    let (_, one, two) = two_hosts(&mut world);
    let cache = Cache::over(&one);
    read(&mut world, &one, 0);
    let before = client(&one);
    world.network.cut();
    assert!(one.copies().unwrap().may_use(), "nobody changes it before the lease is over");
    write(&mut world, &two, 0, 9).unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: 4096 }]);
    assert_eq!((client(&one), one.status().sharing.unwrap().lives), (before, 1));
    assert_eq!(read(&mut world, &one, 0), 9);
}

/// Its copies end before another host's change, and what it sends after that has no effect.
#[test]
fn who_is_silent_for_too_long_uses_no_copies_and_writes_nothing_any_more() {
    let mut world = World::new(4);
    let device = memory();
    serve(&mut world, device.clone(), SharingOptions::default());
    let one = world.connect(host(&world, 1)).unwrap();
    read(&mut world, &one, 0);
    let copies = one.copies().unwrap();
    world.network.freeze();
    let late = one.write(8192, Buffer::copy_of(&[1; 512]), false);
    let two = world.connect(host(&world, 2)).unwrap();
    assert!(copies.may_use());
    write(&mut world, &two, 0, 9).unwrap();
    assert!(!copies.may_use());
    world.network.cut();
    let error = world.run(late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    world.pass(Duration::from_secs(2));
    assert_eq!(one.status().state, State::Fenced);
    let error = write(&mut world, &one, 8192, 2).unwrap_err();
    assert!(error.to_string().contains("fenced"), "{error}");
    assert_eq!(read(&mut world, &two, 8192), 0);
}

#[test]
fn a_write_of_a_lost_session_is_not_written_again() {
    let mut world = World::new(5);
    let (_, one, _) = two_hosts(&mut world);
    read(&mut world, &one, 0);
    world.network.freeze();
    let write = one.write(0, Buffer::copy_of(&[3; 512]), false);
    world.pass(Duration::from_millis(10));
    world.network.cut();
    assert_eq!(world.run(write).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(read(&mut world, &one, 0), 0);
}

#[test]
fn a_target_that_starts_again_makes_copies_void_and_the_host_a_new_client() {
    let mut world = World::new(6);
    let (device, one, _) = two_hosts(&mut world);
    let cache = Cache::over(&one);
    read(&mut world, &one, 0);
    let before = client(&one);
    let first = SharingOptions::default();
    let again = SharingOptions { saved: first.saved.next_start(), ..first };
    serve(&mut world, device, again);
    world.network.cut();
    world.pass(Duration::from_secs(1));
    assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: u64::MAX }]);
    assert_ne!(client(&one), before);
    assert_eq!(one.status().state, State::Online);
    assert!(one.copies().unwrap().may_use());
}

/// A target and its hosts stood still for longer than a lease, as where their machine did, and each looks at its clock:
/// the target counts nothing against them, and they use no copies until it has answered.
#[test]
fn a_target_that_was_not_run_for_longer_than_a_lease_fences_nobody() {
    let mut world = World::new(16);
    let (_, one, two) = two_hosts(&mut world);
    let cache = Cache::over(&one);
    read(&mut world, &one, 4096);
    world.pass(Duration::from_secs(1));
    let before = client(&one);
    world.clock.advance(Duration::from_secs(13));
    assert!(!one.copies().unwrap().may_use(), "by its own count its lease is over");
    world.pass(Duration::from_secs(3));
    for host in [&one, &two] {
        assert_eq!((host.status().state, host.copies().unwrap().may_use()), (State::Online, true));
    }
    assert_eq!(client(&one), before);
    assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: u64::MAX }], "it begins cold");
    write(&mut world, &two, 4096, 7).unwrap();
    assert_eq!(read(&mut world, &one, 4096), 7);
}

/// The same while hosts write: each is asked to drop copies before its lease is renewed, and none
/// is fenced for it.
#[test]
fn who_is_asked_to_drop_copies_while_its_lease_is_over_answers() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        let _printed = test.on_panic(seed, None);
        for (is_stock, loses_session) in [(false, false), (true, false), (true, true)] {
            let mut world = World::new(seed);
            let (_, one, two) = two_hosts(&mut world);
            let cache = Cache::over(&one);
            read(&mut world, &one, 4096);
            world.pass(Duration::from_secs(1));
            let before = client(&one);
            let options = world.options();
            let stock = world.connect(options).unwrap();
            if loses_session {
                world.network.freeze_one(0);
            }
            let writer = if is_stock { &stock } else { &two };
            let late = writer.write(4096, Buffer::copy_of(&[7; 512]), false);
            if loses_session {
                world.pass(Duration::from_millis(10));
            }
            world.clock.advance(Duration::from_secs(13));
            if loses_session {
                world.network.cut_one(0);
            }
            world.pass(Duration::from_secs(3));
            let case = (seed, is_stock, loses_session);
            let copies = one.copies().unwrap();
            assert!(copies.may_use(), "{case:?}");
            let started = base::clock::Clock::now(&world.clock);
            world.run(late).unwrap();
            assert_eq!(base::clock::Clock::now(&world.clock), started, "{case:?}: it is written by now");
            assert_eq!(read(&mut world, &one, 4096), 7, "{case:?}");
            world.pass(Duration::from_secs(15));
            assert_eq!((one.status().state, client(&one)), (State::Online, before), "{case:?}");
            assert_eq!(two.status().state, State::Online, "{case:?}");
            assert!(cache.dropped().contains(&ByteRange { offset: 4096, length: 4096 }), "{case:?}");
        }
    }
}

/// The target had a volatile cache. What was in it is not written again, and the next flush reports
/// the loss.
#[test]
fn what_a_target_that_starts_again_had_not_made_durable_is_told_as_lost() {
    let mut world = World::new(13);
    let medium = CrashLayer::new(1 << 20, 13);
    serve(&mut world, Arc::new(medium.clone()), SharingOptions::default());
    let one = world.connect(host(&world, 1)).unwrap();
    let events = one.subscribe();
    write(&mut world, &one, 0, 7).unwrap();
    world.network.set_server(None);
    world.network.cut();
    let after = medium.after_power_loss_as(Loss::All, &Power::new());
    let first = SharingOptions::default();
    let again = SharingOptions { saved: first.saved.next_start(), ..first };
    serve(&mut world, Arc::new(after), again);
    world.pass(Duration::from_secs(1));
    let flush = one.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    let flush = one.flush();
    world.run(flush).expect("it is told once");
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost));
    assert_eq!(read(&mut world, &one, 0), 0, "it is not written again");
}

#[test]
fn who_leaves_in_order_keeps_nobody_waiting() {
    let mut world = World::new(7);
    let (_, one, two) = two_hosts(&mut world);
    read(&mut world, &one, 0);
    let closing = Arc::clone(&one);
    world.run(async move { closing.close().await }).unwrap();
    let before = base::clock::Clock::now(&world.clock);
    write(&mut world, &two, 0, 4).unwrap();
    assert!(base::clock::Clock::now(&world.clock).since(before) < Duration::from_secs(1), "by the hand-turned clock");
}

#[test]
fn a_lun_that_is_not_shared_says_what_to_do() {
    let mut world = World::new(8);
    world.serve(memory());
    let error = world.connect(host(&world, 1)).err().expect("it is not shared");
    assert!(error.to_string().contains("option \"shared\""), "{error}");
}

/// A device whose writes take a while.
fn slow(world: &World, device: Arc<MemoryDevice>) -> SharedDevice {
    let latency = Delays { write: Latency::Fixed(Duration::from_millis(50)), ..Delays::default() };
    Arc::new(DelayLayer::new(device, Arc::new(world.clock.clone()), &world.workers, latency, 1))
}

/// Its connection is lost, and the session goes on: the target may have carried it out, and another host may have
/// written there since.
#[test]
fn a_write_that_ended_with_its_connection_is_not_written_again() {
    let mut world = World::new(9);
    let device = memory();
    let slow = slow(&world, device.clone());
    serve(&mut world, slow, SharingOptions::default());
    let options = InitiatorOptions { connections: 3, error_recovery_level: 1, ..host(&world, 1) };
    let one = world.connect(options).unwrap();
    read(&mut world, &one, 0);
    world.pass(Duration::from_secs(1));
    let two = world.connect(host(&world, 2)).unwrap();
    read(&mut world, &two, 0);
    let before = world.network.traffic();
    let late = one.write(65536, Buffer::copy_of(&[1; 65536]), false);
    world.pass(Duration::from_millis(10));
    let after = world.network.traffic();
    let used = (0..after.len()).max_by_key(|&link| after[link].0 - before[link].0).unwrap();
    world.network.cut_one(used);
    let error = world.run(late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert_eq!(one.status().session_count, 1, "the session goes on: {:?}", one.status());
    write(&mut world, &two, 65536, 2).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(read(&mut world, &one, 65536), 2);
}

/// Another initiator resets the unit: what was under way gets no answer, and may have been carried out.
#[test]
fn a_write_that_a_reset_cleared_is_not_written_again() {
    let mut world = World::new(10);
    let device = memory();
    let slow = slow(&world, device.clone());
    serve(&mut world, slow, SharingOptions::default());
    let one = world.connect(host(&world, 1)).unwrap();
    let two = world.connect(host(&world, 2)).unwrap();
    read(&mut world, &two, 0);
    let late = one.write(0, Buffer::copy_of(&[1; 512]), false);
    world.pass(Duration::from_millis(10));
    let resetting = InitiatorOptions { initiator_name: "iqn.2026-01.io.forebay:stock".to_owned(), ..world.options() };
    support::reset_unit(&mut world, resetting);
    assert_eq!(read(&mut world, &two, 0), 1, "it was carried out");
    write(&mut world, &two, 0, 2).unwrap();
    let error = world.run(late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert_eq!(read(&mut world, &two, 0), 2);
    write(&mut world, &one, 0, 3).unwrap();
}

/// A device that takes requests of 64 KiB, and reports the loss of its cache when the test says so.
struct Losing {
    below: SharedDevice,
    events: EventHub,
}

impl Device for Losing {
    fn geometry(&self) -> Geometry {
        Geometry { transfer_bytes_max: 64 << 10, ..self.below.geometry() }
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.below.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

/// A write of several commands of which some were carried out when the unit lost its cache: with one at a time, and
/// with several under way.
#[test]
fn a_write_of_several_commands_is_not_begun_again() {
    for queue_depth in [1, 4] {
        let mut world = World::new(12);
        let device = memory();
        let below = slow(&world, device.clone());
        let losing = Arc::new(Losing { below, events: EventHub::new() });
        serve(&mut world, losing.clone(), SharingOptions::default());
        let one = world.connect(InitiatorOptions { queue_depth, ..host(&world, 1) }).unwrap();
        let late = one.write(0, Buffer::copy_of(&[1; 12 * (64 << 10)]), false);
        world.pass(Duration::from_millis(75));
        losing.events.publish(&Event::WritesLost);
        let error = world.run(late).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "depth {queue_depth}: {error}");
        write(&mut world, &one, 0, 3).unwrap();
    }
}

/// A callback that was lost with its connection is sent again on another connection of the session,
/// and the client is not fenced.
#[test]
fn a_callback_that_is_lost_with_its_connection_comes_by_another() {
    for (level, split) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut world = World::new(11);
        serve(&mut world, memory(), SharingOptions::default());
        let two = world.connect(host(&world, 2)).unwrap();
        let options = InitiatorOptions { connections: 3, split, error_recovery_level: level, ..host(&world, 1) };
        let one = world.connect(options).unwrap();
        let cache = Cache::over(&one);
        world.pass(Duration::from_secs(1));
        let live = if split { 6 } else { 3 };
        for round in 0..12 {
            assert_eq!(read(&mut world, &one, 0), round);
            assert_eq!(one.status().connections, live, "level {level}, split: {split}");
            cache.dropped();
            // A connection that lives, and whose data is lost.
            let links = world.network.traffic().len();
            let lost = links - 1 - usize::from(round) % live;
            world.network.freeze_one(lost);
            let write = two.write(0, Buffer::copy_of(&[round + 1; 512]), false);
            world.pass(Duration::from_millis(10));
            world.network.cut_one(lost);
            world.run(write).unwrap();
            assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: 4096 }], "level {level}, split: {split}");
            world.pass(Duration::from_secs(10));
        }
        let status = one.status();
        assert_eq!(status.sharing.unwrap().lives, 1);
        assert!(status.connections_recovered > 3, "{status:?}");
    }
}
