//! Our initiator and our target over links that delay, lose, stall, overtake each other and break,
//! with a disk below whose cache is lost now and then, and which hosts switch off and on. Several
//! hosts work at once. A [model](model) knows the possible contents of every unit: no effect of a
//! write is lost, comes twice where that can be seen, or comes after one that was acknowledged
//! later; data that a flush or FUA covers is on the medium.

mod client;
mod disk;
mod model;
mod world;

use std::sync::Arc;
use std::time::Duration;

use base::random::Random;
use block::layer::crash::Loss;
use initiator::{RemoteLun, Status};
use sim::link::{Cut, CutKind, FaultyLinkModel};

use world::{Plan, World};

/// The result of a history: enough to tell it from others, and to see that enough has broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    sessions: u64,
    commands: u64,
    retried: u64,
    replayed: u64,
    /// Count of hosts that had more than one connection in the end.
    wide: u64,
    pdus: u64,
}

impl Sums {
    fn add(&mut self, status: &Status) {
        self.sessions += status.session_count;
        self.commands += status.commands_sent;
        self.retried += status.commands_retried;
        self.replayed += status.writes_replayed;
        self.wide += u64::from(status.connections > 1);
        self.pdus += status.pdus_sent;
    }
}

/// Waits until every host has finished its work, and then checks the content of the medium.
fn settle(world: &mut World, luns: &[Arc<RemoteLun>]) -> Sums {
    // Every cut costs at most a keepalive, its answer and a back-off; every slow write its time.
    for _ in 0..3600 {
        if !world.is_busy() {
            break;
        }
        world.pass(Duration::from_secs(1));
    }
    world.model.check_all_answered();
    assert!(!world.is_busy(), "somebody waits for ever");
    let mut sums = Sums::default();
    for (client, lun) in luns.iter().enumerate() {
        let start = world.model.tick();
        let (disk, flushed) = (world.disk.clone(), Arc::clone(lun));
        world.run(async move {
            // A loss is reported once.
            if disk.flush(&flushed).await.is_none() {
                disk.flush(&flushed).await.expect("it was told");
            }
        });
        let first = client::SHARED.end + client as u64 * client::OWN;
        world.disk.check_durable(first..first + client::OWN, start, "the last flush");
        world.disk.check_durable(client::SHARED, start, "the last flush");
        sums.add(&lun.status());
    }
    sums
}

/// One history.
fn run(seed: u64) -> Sums {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let plan = Plan::draw(&mut random);
    let (clients, connections) = (plan.clients, plan.connections);
    let mut world = World::new(seed, plan);
    world.serve();
    let luns: Vec<_> = (0..clients).map(|client| world.attach(client)).collect();
    luns.iter().enumerate().for_each(|(client, lun)| world.employ(client, lun));
    for _ in 0..random.below(12) {
        world.pass(Duration::from_micros(random.below(60_000)));
        let lun = &luns[random.below(clients as u64) as usize];
        match random.below(12) {
            0..3 => {
                let losses = [Loss::All, Loss::InFlightOnly, Loss::Seeded(random.bits())];
                world.lose_power(Duration::from_micros(random.below(500_000)), losses[random.below(3) as usize]);
            }
            3..5 => world.cut_one(&mut random),
            5..8 => world.disk.lose_cache([Loss::All, Loss::Seeded(random.bits())][random.below(2) as usize]),
            8..10 => lun.set_connections(1 + random.below(6) as u16),
            _ => world.switch_cache(lun, random.chance(0.4)),
        }
    }
    luns.iter().for_each(|lun| lun.set_connections(connections));
    settle(&mut world, &luns)
}

#[test]
fn no_effect_is_lost_or_comes_too_late() {
    let mut all = Sums::default();
    let test = block::crash_test!();
    let mut count = 0;
    for seed in test.seeds(0, 100, 1) {
        let _printed = test.on_panic(seed, None);
        count += 1;
        let sums = run(seed);
        all.sessions += sums.sessions;
        all.retried += sums.retried;
        all.replayed += sums.replayed;
        all.wide += sums.wide;
    }
    println!("{count} seeds: {all:?}");
    let has_broken = all.sessions > 2 * count && all.retried > count && all.replayed > count && all.wide > count / 2;
    assert!(count < 20 || has_broken, "too little has broken");
}

#[test]
fn one_seed_is_one_history() {
    assert_eq!(run(3), run(3));
}

/// A short history of one host over two connections.
fn short_plan(is_split: bool) -> Plan {
    Plan {
        clients: 1,
        workers: 2,
        rounds: 4,
        connections: 2,
        is_split,
        header_digest: true,
        data_digest: !is_split,
        link: FaultyLinkModel {
            delay: Duration::from_micros(50),
            bytes_per_second: 125_000_000,
            loss: 0.0,
            stall: Duration::ZERO,
            header_digest: true,
            data_digest: !is_split,
            cut: None,
        },
        cuts: 0,
        is_volatile: true,
        latency_us_max: 300,
        transfer_bytes_max: 4096,
    }
}

/// A short history with one link cut. Returns the PDUs that went over each link.
fn run_short(seed: u64, is_split: bool, cut: Option<(usize, Cut)>) -> Vec<[u64; 2]> {
    let mut world = World::new(seed, short_plan(is_split));
    if let Some((number, cut)) = cut {
        world.choose_cut(number, cut);
    }
    world.serve();
    let lun = world.attach(0);
    world.employ(0, &lun);
    settle(&mut world, &[lun]);
    world.pdus()
}

/// Cuts every link at every border between two PDUs, in both directions and in every manner.
#[test]
fn a_link_may_be_cut_at_every_border_of_a_pdu() {
    for is_split in [false, true] {
        let seed = 1;
        let links = run_short(seed, is_split, None);
        assert_eq!(links.len(), if is_split { 4 } else { 2 });
        let mut cuts = 0;
        for (number, pdus) in links.iter().enumerate() {
            for (by_far_end, &pdus) in [false, true].into_iter().zip(pdus) {
                for border in 0..pdus {
                    for kind in [CutKind::Reset, CutKind::Closed, CutKind::Silent] {
                        println!(
                            "link {number}, split: {is_split}, {kind:?} after {border} PDUs, far end: {by_far_end}"
                        );
                        run_short(seed, is_split, Some((number, Cut { by_far_end, pdus: border, bytes: 0, kind })));
                        cuts += 1;
                    }
                }
            }
        }
        assert!(cuts > 100, "there is more to cut than {cuts} places");
    }
}
