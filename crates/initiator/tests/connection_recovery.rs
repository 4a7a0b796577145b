//! A connection of several is lost: its session goes on, its tasks go on or are issued again, and nothing is lost,
//! doubled or swapped.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::random::Random;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use initiator::{InitiatorOptions, RemoteLun};
use support::load::{check, load};
use support::{World, identity};

/// Seeds of each case.
const SEEDS: u64 = 20;

fn options(world: &World, level: u8, connections: u16, split: bool) -> InitiatorOptions {
    InitiatorOptions { connections, split, error_recovery_level: level, ..world.options() }
}

/// A world whose target takes a while over each request, so that a cut finds some of them in every state.
fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    let latency = Delays::all(Latency::Between(Duration::from_micros(20), Duration::from_micros(900)));
    let memory = Arc::new(MemoryDevice::new(8 << 20, identity("one")));
    let device = DelayLayer::new(memory, Arc::new(world.clock.clone()), &world.workers, latency, seed);
    world.serve(Arc::new(device));
    world
}

/// Session, connections, and connections that were recovered.
fn counts(lun: &RemoteLun) -> (u64, usize, u64) {
    let status = lun.status();
    (status.session_count, status.connections, status.connections_recovered)
}

#[test]
fn a_session_goes_on_without_a_connection_that_is_lost() {
    let test = block::crash_test!();
    for (level, split) in [(1, false), (2, false), (1, true), (2, true)] {
        let (mut retried, mut count) = (0, 0);
        for seed in test.seeds(0, SEEDS, 1) {
            let _printed = test.on_panic(seed, None);
            count += 1;
            let mut world = world(seed);
            let options = options(&world, level, 3, split);
            let lun = world.connect(options).unwrap();
            world.pass(Duration::from_millis(5));
            let acknowledged = load(&mut world, &lun, 12, 40, seed);
            let mut random = Random::new(seed);
            world.pass(Duration::from_micros(random.below(3000)));
            let links = world.network.traffic().len();
            world.network.cut_one(random.below(links as u64) as usize);
            world.pass(Duration::from_secs(20));
            let words = format!("level {level}, split: {split}, seed {seed}: {:?}", lun.status());
            assert!(acknowledged.borrow().iter().all(|&version| version == 40), "everything is answered; {words}");
            assert_eq!(counts(&lun), (1, if split { 6 } else { 3 }, 1), "{words}");
            check(&mut world, &lun, &acknowledged.borrow());
            retried += lun.status().commands_retried;
        }
        assert!(retried == 0 || level == 1, "level 2 moves commands: {retried} were issued again");
        assert!(retried > 0 || level == 2 || count < SEEDS, "level 1 ends commands");
    }
}

#[test]
fn a_connection_may_be_lost_at_any_byte() {
    for split in [false, true] {
        for bytes in (1..60_000).step_by(if split { 641 } else { 311 }) {
            let mut world = world(bytes);
            // The leading connection lives, as a pair with its response half.
            (0..if split { 2 } else { 1 }).for_each(|_| world.network.cut_next_after(u64::MAX));
            world.network.cut_next_after(bytes);
            let options = options(&world, 2, 3, split);
            let lun = world.connect(options).unwrap();
            let acknowledged = load(&mut world, &lun, 6, 15, bytes);
            world.pass(Duration::from_secs(20));
            let words = format!("split: {split}, {bytes} bytes: {:?}", lun.status());
            assert!(acknowledged.borrow().iter().all(|&version| version == 15), "everything is answered; {words}");
            let (sessions, connections, _) = counts(&lun);
            assert_eq!((sessions, connections), (1, if split { 6 } else { 3 }), "{words}");
            check(&mut world, &lun, &acknowledged.borrow());
        }
    }
}

#[test]
fn a_session_goes_on_as_long_as_one_connection_is_left() {
    let test = block::crash_test!();
    for split in [false, true] {
        for seed in test.seeds(0, SEEDS, 1) {
            let _printed = test.on_panic(seed, None);
            let mut world = world(seed);
            let options = options(&world, 2, 4, split);
            let lun = world.connect(options).unwrap();
            world.pass(Duration::from_millis(5));
            let acknowledged = load(&mut world, &lun, 12, 60, seed);
            let mut random = Random::new(seed);
            for _ in 0..6 {
                // Connections made meanwhile are lost as well, and sometimes the one that was to
                // remove another.
                world.pass(Duration::from_micros(random.below(1200)));
                let links = world.network.traffic().len() as u64;
                world.network.cut_one((links - 1 - random.below(3)) as usize);
            }
            world.pass(Duration::from_secs(60));
            let words = format!("split: {split}, seed {seed}: {:?}", lun.status());
            assert!(acknowledged.borrow().iter().all(|&version| version == 60), "everything is answered; {words}");
            assert_eq!(lun.status().connections, if split { 8 } else { 4 }, "{words}");
            check(&mut world, &lun, &acknowledged.borrow());
        }
    }
}

#[test]
fn a_session_that_loses_all_connections_at_once_is_reinstated() {
    let test = block::crash_test!();
    for seed in test.seeds(0, SEEDS, 1) {
        let _printed = test.on_panic(seed, None);
        let mut world = world(seed);
        let options = options(&world, 2, 3, false);
        let lun = world.connect(options).unwrap();
        world.pass(Duration::from_millis(5));
        let acknowledged = load(&mut world, &lun, 12, 40, seed);
        let mut random = Random::new(seed);
        world.pass(Duration::from_micros(random.below(3000)));
        (0..world.network.traffic().len()).for_each(|index| world.network.cut_one(index));
        world.pass(Duration::from_secs(30));
        assert!(acknowledged.borrow().iter().all(|&version| version == 40), "seed {seed}");
        assert_eq!(lun.status().session_count, 2, "seed {seed}");
        check(&mut world, &lun, &acknowledged.borrow());
    }
}

#[test]
fn a_session_of_one_connection_has_no_level() {
    let mut world = world(1);
    let one = options(&world, 2, 1, false);
    let lun = world.connect(one).unwrap();
    assert_eq!(lun.status().negotiated.unwrap().error_recovery_level, 0);
    let mut world = self::world(2);
    let several = options(&world, 2, 2, false);
    let lun = world.connect(several).unwrap();
    assert_eq!(lun.status().negotiated.unwrap().error_recovery_level, 2);
}
