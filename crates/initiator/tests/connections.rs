//! Several connections of one session, and pairs that carry requests and responses apart: all are used, they come and
//! go under load, and whatever breaks, nothing is lost.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::random::Random;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use initiator::{InitiatorOptions, RemoteLun};
use iscsi::negotiation::Offer;
use support::load::{check, load};
use support::{World, identity};
use target::TargetServerOptions;

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(8 << 20, identity("one")))
}

fn options(world: &World, connections: u16, split: bool) -> InitiatorOptions {
    InitiatorOptions { connections, split, ..world.options() }
}

/// A target with a different offer than our default.
fn serve_with(world: &mut World, change: impl FnOnce(&mut Offer)) {
    let mut offer = Offer { max_connections: 8, ..Offer::target() };
    change(&mut offer);
    let server = world.server(memory(), TargetServerOptions { offer: Some(offer), ..TargetServerOptions::default() });
    world.network.set_server(Some(server));
}

/// Connections wanted, whether split, the target's offer, and the expected connections.
type Case = (u16, bool, fn(&mut Offer), (usize, usize));

/// TCP connections, and halves of pairs among them.
fn connections(lun: &RemoteLun) -> (usize, usize) {
    let status = lun.status();
    (status.connections, status.split_connections)
}

#[test]
fn a_session_grows_to_the_connections_wanted_and_uses_them_all() {
    let mut world = World::new(1);
    let latency = Delays::all(Latency::Between(Duration::from_micros(200), Duration::from_micros(900)));
    let device = DelayLayer::new(memory(), Arc::new(world.clock.clone()), &world.workers, latency, 1);
    world.serve(Arc::new(device));
    let options = options(&world, 4, false);
    let lun = world.connect(options).unwrap();
    world.pass(Duration::from_millis(10));
    assert_eq!(connections(&lun), (4, 0));
    let before = world.network.traffic();
    let acknowledged = load(&mut world, &lun, 16, 40, 1);
    world.pass(Duration::from_secs(1));
    assert!(acknowledged.borrow().iter().all(|&version| version == 40));
    let moved: Vec<u64> = world.network.traffic().iter().zip(&before).map(|(now, before)| now.0 - before.0).collect();
    let (least, most) = (moved.iter().min().unwrap(), moved.iter().max().unwrap());
    assert!(*least > 0 && most / least < 4, "commands are spread: {moved:?}");
    check(&mut world, &lun, &acknowledged.borrow());
    assert_eq!(lun.status().session_count, 1);
}

#[test]
fn a_pair_carries_requests_one_way_and_responses_the_other() {
    let mut world = World::new(2);
    world.serve(memory());
    let options = options(&world, 2, true);
    let lun = world.connect(options).unwrap();
    world.pass(Duration::from_millis(10));
    assert_eq!(connections(&lun), (4, 4));
    let before = world.network.traffic();
    let acknowledged = load(&mut world, &lun, 16, 40, 2);
    world.pass(Duration::from_secs(1));
    assert!(acknowledged.borrow().iter().all(|&version| version == 40));
    check(&mut world, &lun, &acknowledged.borrow());
    let moved: Vec<(u64, u64)> =
        world.network.traffic().iter().zip(&before).map(|(now, before)| (now.0 - before.0, now.1 - before.1)).collect();
    let one_way = |(there, back): &(u64, u64)| (*there > 100_000 && *back == 0) || (*there == 0 && *back > 10_000);
    assert!(moved.iter().all(one_way), "{moved:?}");
    assert_eq!(moved.iter().filter(|(there, _)| *there > 0).count(), 2, "{moved:?}");
}

#[test]
fn what_the_target_does_not_allow_is_done_without() {
    let cases: [Case; 5] = [
        (4, false, |offer| offer.max_connections = 2, (2, 0)),
        (4, false, |offer| offer.max_connections = 1, (1, 0)),
        (2, true, |offer| offer.private.clear(), (2, 0)),
        (2, true, |offer| offer.max_connections = 1, (1, 0)),
        (4, true, |offer| offer.max_connections = 5, (4, 4)),
    ];
    for (wanted, split, change, expected) in cases {
        let mut world = World::new(3);
        serve_with(&mut world, change);
        let options = options(&world, wanted, split);
        let lun = world.connect(options).unwrap();
        let acknowledged = load(&mut world, &lun, 4, 10, 3);
        world.pass(Duration::from_secs(1));
        assert_eq!(connections(&lun), expected, "{wanted} wanted, split: {split}");
        check(&mut world, &lun, &acknowledged.borrow());
    }
}

#[test]
fn connections_come_and_go_under_load() {
    let test = block::crash_test!();
    for split in [false, true] {
        for seed in test.seeds(0, 8, 1) {
            let _printed = test.on_panic(seed, None);
            let mut world = World::new(seed);
            world.serve(memory());
            let options = options(&world, 1, split);
            let lun = world.connect(options).unwrap();
            let acknowledged = load(&mut world, &lun, 12, 60, seed);
            let mut random = Random::new(seed);
            for _ in 0..12 {
                lun.set_connections(1 + random.below(6) as u16);
                world.pass(Duration::from_micros(random.below(2500)));
            }
            lun.set_connections(3);
            world.pass(Duration::from_secs(1));
            let halves = if split { 6 } else { 0 };
            assert_eq!(connections(&lun), (if split { 6 } else { 3 }, halves), "seed {seed}");
            assert_eq!(lun.status().session_count, 1, "nothing was lost on the way");
            assert!(acknowledged.borrow().iter().all(|&version| version == 60), "seed {seed}: everything was answered");
            check(&mut world, &lun, &acknowledged.borrow());
        }
    }
}

#[test]
fn a_session_of_level_0_that_loses_a_connection_comes_back_with_all() {
    let test = block::crash_test!();
    for split in [false, true] {
        for seed in test.seeds(0, 12, 1) {
            let _printed = test.on_panic(seed, None);
            let mut world = World::new(seed);
            world.serve(memory());
            let options = InitiatorOptions { error_recovery_level: 0, ..options(&world, 3, split) };
            let lun = world.connect(options).unwrap();
            let acknowledged = load(&mut world, &lun, 8, 40, seed);
            let mut random = Random::new(seed);
            world.pass(Duration::from_micros(500 + random.below(2000)));
            let links = world.network.traffic().len();
            world.network.cut_one(random.below(links as u64) as usize);
            world.pass(Duration::from_secs(30));
            assert!(acknowledged.borrow().iter().all(|&version| version == 40), "seed {seed}: nobody waits for ever");
            let status = lun.status();
            assert_eq!(status.session_count, 2, "seed {seed}");
            assert_eq!(status.connections, if split { 6 } else { 3 }, "seed {seed}");
            check(&mut world, &lun, &acknowledged.borrow());
        }
    }
}

#[test]
fn a_connection_that_does_not_come_about_disturbs_nobody() {
    let test = block::crash_test!();
    for split in [false, true] {
        for seed in test.seeds(0, 12, 1) {
            let _printed = test.on_panic(seed, None);
            let mut world = World::new(seed);
            world.serve(memory());
            let options = options(&world, 1, split);
            let lun = world.connect(options).unwrap();
            world.pass(Duration::from_millis(5));
            let mut random = Random::new(seed);
            // The next two end in the middle of their logins.
            for _ in 0..2 {
                world.network.cut_next_after(random.below(1200));
            }
            lun.set_connections(2);
            let acknowledged = load(&mut world, &lun, 8, 40, seed);
            world.pass(Duration::from_secs(10));
            assert!(acknowledged.borrow().iter().all(|&version| version == 40), "seed {seed}");
            assert_eq!(connections(&lun).0, if split { 4 } else { 2 }, "seed {seed}: it was tried again");
            check(&mut world, &lun, &acknowledged.borrow());
        }
    }
}
