//! Several paths to a LUN that several hosts share are one client (`docs/protocol/sharing.md`): what one path cannot do
//! any more, another does, and no copy is dropped for it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock as _;
use block::device::DeviceExt;
use block::{Buffer, ByteRange, Device, ErrorKind};
use initiator::{InitiatorOptions, RemoteLun, SharingClient, State};
use iscsi::pdu::Isid;
use logical_unit::SharingOptions;
use support::World;
use support::sharing::{Cache, memory, read, serve, write};

const MOMENT: Duration = Duration::from_millis(10);

fn host(world: &World, number: u32, joins: Option<SharingClient>) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        is_shared: true,
        has_other_paths: true,
        joins,
        ..world.options()
    }
}

fn joined(world: &mut World, lun: &Arc<RemoteLun>) -> Result<(), block::Error> {
    let lun = Arc::clone(lun);
    world.run(async move { lun.joined().await })
}

/// The paths of one client, each over the link with the same number, and another host behind them.
fn paths(world: &mut World, count: u32) -> (Vec<Arc<RemoteLun>>, Arc<RemoteLun>) {
    let mut all: Vec<Arc<RemoteLun>> = Vec::new();
    for number in 0..count {
        let options = host(world, 1 + number, all.first().and_then(|first| first.sharing_client()));
        let path = world.connect(options).unwrap();
        joined(world, &path).unwrap();
        all.push(path);
    }
    let options = host(world, 100, None);
    let other = world.connect(options).unwrap();
    joined(world, &other).unwrap();
    (all, other)
}

/// How long it takes by the hand-turned clock.
fn timed<R>(world: &mut World, act: impl FnOnce(&mut World) -> R) -> (R, Duration) {
    let began = world.clock.now();
    let result = act(world);
    (result, world.clock.now().since(began))
}

fn client(lun: &Arc<RemoteLun>) -> (Option<u64>, u64) {
    let sharing = lun.status().sharing.expect("it is shared");
    (sharing.client, sharing.lives)
}

fn block(offset: u64) -> ByteRange {
    ByteRange { offset, length: 4096 }
}

#[test]
fn several_paths_are_one_client_which_is_asked_once() {
    let mut world = World::new(1);
    serve(&mut world, memory(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 3);
    let cache = Cache::over(&paths[0]);
    for (path, offset) in paths.iter().zip([0, 4096, 8192]) {
        assert!(path.copies().unwrap().are_one(&paths[0].copies().unwrap()));
        assert_eq!((read(&mut world, path, offset), client(path)), (0, client(&paths[0])));
        write(&mut world, path, 0, 1).unwrap();
    }
    assert_eq!(cache.dropped(), [], "what one path changes the others need not drop");
    write(&mut world, &other, 4096, 7).unwrap();
    assert_eq!(cache.dropped(), [block(4096)]);
    for path in &paths {
        assert_eq!(read(&mut world, path, 4096), 7);
    }
    write(&mut world, &other, 4096, 8).unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(cache.dropped(), [block(4096)], "also where all have read it");
}

/// A path that carries nothing any more and reports no error, for longer than a lease, and later one that is cut.
#[test]
fn copies_and_the_lease_stay_while_any_path_lives() {
    for (lost, is_cut) in [(0, false), (1, false), (0, true), (1, true)] {
        let case = format!("path {lost}, cut: {is_cut}");
        let mut world = World::new(2);
        serve(&mut world, memory(), SharingOptions::default());
        let (paths, other) = paths(&mut world, 2);
        let cache = Cache::over(&paths[0]);
        let before = client(&paths[0]);
        assert_eq!(read(&mut world, &paths[lost], 0), 0);
        assert_eq!(read(&mut world, &paths[lost], 4096), 0);
        world.network.set_server(None);
        if is_cut {
            world.network.cut_one(lost);
        } else {
            world.network.freeze_one(lost);
        }
        let (written, took) = timed(&mut world, |world| write(world, &other, 0, 5));
        written.unwrap();
        assert!(took < MOMENT, "{case}: it took {took:?}");
        assert_eq!(cache.dropped(), [block(0)], "{case}");
        for _ in 0..30 {
            world.pass(Duration::from_secs(1));
            assert!(paths[0].copies().unwrap().may_use(), "{case}");
        }
        assert_eq!((cache.dropped(), client(&paths[1 - lost])), (vec![], before), "{case}");
        let (seen, took) = timed(&mut world, |world| read(world, &paths[1 - lost], 0));
        assert!(seen == 5 && took < MOMENT, "{case}: {seen}, {took:?}");
        write(&mut world, &other, 4096, 6).unwrap();
        assert_eq!(cache.dropped(), [block(4096)], "{case}: it was registered by the path that is lost");
        write(&mut world, &paths[1 - lost], 0, 9).unwrap();
    }
}

#[test]
fn a_path_that_is_back_is_one_of_the_client_again() {
    let mut world = World::new(3);
    serve(&mut world, memory(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 3);
    let cache = Cache::over(&paths[0]);
    let before = client(&paths[0]);
    assert_eq!(read(&mut world, &paths[0], 0), 0);
    for lost in [0, 1, 2] {
        world.network.cut_one(lost);
        world.pass(Duration::from_secs(1));
        for path in &paths {
            assert_eq!((read(&mut world, path, 4096), client(path)), (0, before), "after path {lost} was lost");
            write(&mut world, path, 8192, 1).unwrap();
            assert_eq!(path.status().state, State::Online);
        }
    }
    assert_eq!(cache.dropped(), []);
    write(&mut world, &other, 0, 7).unwrap();
    assert_eq!((cache.dropped(), read(&mut world, &paths[2], 0)), (vec![block(0)], 7));
}

/// It would else wait until its own session is back.
#[test]
fn what_a_lost_path_had_not_carried_out_fails_at_once_for_another_to_take_it() {
    let mut world = World::new(4);
    serve(&mut world, memory(), SharingOptions::default());
    let (paths, _) = paths(&mut world, 2);
    world.network.set_server(None);
    world.network.freeze_one(0);
    let (under_way, changing) =
        (paths[0].read(0, Buffer::zeroed(512)), paths[0].write(4096, Buffer::zeroed(512), false));
    world.pass(MOMENT);
    world.network.cut_one(0);
    let (ends, took) = timed(&mut world, |world| (world.run(under_way), world.run(changing)));
    let kinds = (ends.0.unwrap_err().kind(), ends.1.unwrap_err().kind());
    assert_eq!((kinds, took), ((ErrorKind::Gone, ErrorKind::OutcomeUnknown), Duration::ZERO));
    let later = paths[0].read(0, Buffer::zeroed(512));
    let (later, took) = timed(&mut world, |world| world.run(later));
    assert_eq!((later.unwrap_err().kind(), took), (ErrorKind::Gone, Duration::ZERO));
    assert_eq!(read(&mut world, &paths[1], 0), 0);
}

#[test]
fn a_fence_hits_every_path() {
    let mut world = World::new(5);
    serve(&mut world, memory(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 3);
    assert_eq!(read(&mut world, &paths[1], 0), 0);
    let victim = client(&paths[0]).0.expect("it lives");
    let fencing = Arc::clone(&other);
    world.run(async move { fencing.fence_client(victim).await }).unwrap();
    let refused = write(&mut world, &paths[1], 0, 1).unwrap_err();
    assert!(refused.to_string().contains("fenced"), "{refused}");
    world.pass(Duration::from_secs(1));
    for path in &paths {
        assert_eq!(path.status().state, State::Fenced);
        assert_eq!(write(&mut world, path, 0, 1).unwrap_err().kind(), ErrorKind::Gone);
    }
    assert!(!paths[0].copies().unwrap().may_use());
    write(&mut world, &other, 0, 2).unwrap();
    assert_eq!(read(&mut world, &other, 0), 2);
}

#[test]
fn a_path_to_a_target_that_does_not_know_the_client_is_refused_with_words() {
    let mut world = World::new(6);
    let device = memory();
    serve(&mut world, device.clone(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 1);
    let cache = Cache::over(&paths[0]);
    assert_eq!(read(&mut world, &paths[0], 0), 0);
    // Another process that serves the same disk.
    serve(&mut world, device, SharingOptions::default());
    let options = host(&world, 2, paths[0].sharing_client());
    let stranger = world.connect(options).unwrap();
    let refused = joined(&mut world, &stranger).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("two targets that do not know of each other"), "{refused}");
    let closing = Arc::clone(&stranger);
    world.run(async move { closing.close().await }).unwrap();
    // The client goes on, and nothing of it was lost.
    write(&mut world, &other, 0, 7).unwrap();
    assert_eq!((cache.dropped(), read(&mut world, &paths[0], 0)), (vec![block(0)], 7));
    assert_eq!(paths[0].status().state, State::Online);
}

/// It had joined; then another target answers at its portal. Nothing is asked of it, and nothing waits for it.
#[test]
fn a_path_that_comes_to_another_target_later_gets_no_requests() {
    let mut world = World::new(7);
    let device = memory();
    serve(&mut world, device.clone(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 2);
    let before = client(&paths[0]);
    serve(&mut world, device, SharingOptions::default());
    world.network.cut_one(1);
    world.pass(Duration::from_secs(20));
    let request = paths[1].read(0, Buffer::zeroed(512));
    let (failed, took) = timed(&mut world, |world| world.run(request));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Gone);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let words = paths[1].status().last_error.unwrap_or_default();
    assert!(words.contains("another one goes on") || words.contains("do not know of each other"), "{words}");
    write(&mut world, &other, 0, 7).unwrap();
    assert_eq!((read(&mut world, &paths[0], 0), client(&paths[0])), (7, before));
}

#[test]
fn the_last_path_that_is_closed_leaves_for_the_client() {
    let mut world = World::new(8);
    serve(&mut world, memory(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 2);
    let cache = Cache::over(&paths[0]);
    assert_eq!(read(&mut world, &paths[0], 0), 0);
    let close = |world: &mut World, path: &Arc<RemoteLun>| {
        let closing = Arc::clone(path);
        world.run(async move { closing.close().await }).unwrap();
    };
    close(&mut world, &paths[0]);
    world.pass(Duration::from_secs(30));
    assert!(paths[1].copies().unwrap().may_use(), "the other goes on");
    write(&mut world, &other, 0, 7).unwrap();
    assert_eq!((cache.dropped(), read(&mut world, &paths[1], 0)), (vec![block(0)], 7));
    close(&mut world, &paths[1]);
    let (written, took) = timed(&mut world, |world| write(world, &other, 0, 4));
    written.unwrap();
    assert!(took < Duration::from_secs(1), "nobody waits for who has left: {took:?}");
}

#[test]
fn a_target_that_starts_again_gives_all_paths_one_new_life() {
    let mut world = World::new(9);
    let device = memory();
    serve(&mut world, device.clone(), SharingOptions::default());
    let (paths, other) = paths(&mut world, 3);
    let cache = Cache::over(&paths[0]);
    assert_eq!(read(&mut world, &paths[0], 0), 0);
    let before = client(&paths[0]);
    let first = SharingOptions::default();
    let again = SharingOptions { saved: first.saved.next_start(), ..first };
    serve(&mut world, device, again);
    world.network.cut();
    world.pass(Duration::from_secs(12));
    assert_eq!(cache.dropped(), [ByteRange { offset: 0, length: u64::MAX }]);
    let after = client(&paths[0]);
    assert!(after.0 != before.0 && after.1 == before.1 + 1, "{before:?}, {after:?}");
    for path in &paths {
        assert_eq!((client(path), path.status().state), (after, State::Online));
        assert_eq!(read(&mut world, path, 0), 0);
    }
    write(&mut world, &other, 0, 7).unwrap();
    assert_eq!((cache.dropped(), read(&mut world, &paths[1], 0)), (vec![block(0)], 7));
}
