//! Clients with caches, stock initiators and a target over links that are cut and delayed, in
//! virtual time: hosts freeze for longer than their lease, their clocks run apart, the target is
//! killed at any of its writes. In all cases the unit is one disk to all of them: each block's
//! history has an order that fits every answer (`history`); no host believes to hold what another
//! holds; and every host finishes.
//!
//! The same with one deliberate fault at a time: the history, or a lock, shows it within a few
//! seeds.

mod history;
mod host;
mod packet;
mod plan;
mod target;
mod world;

use base::random::Random;
use plan::{Fault, Plan};
use world::{Sums, World};

/// Every fault shows within this many seeds.
const FAULT_SEEDS: u64 = 2000;

fn plan_of(seed: u64) -> Plan {
    Plan::draw(&mut Random::new(seed ^ 0x5eed))
}

fn run(seed: u64, plan: Plan) -> Result<Sums, String> {
    World::new(seed, plan).run()
}

fn add(all: &mut Sums, sums: Sums) {
    all.answered += sums.answered;
    all.hits += sums.hits;
    all.sessions += sums.sessions;
    all.starts += sums.starts;
    all.messages += sums.messages;
    all.target_writes += sums.target_writes;
    all.fenced += sums.fenced;
}

#[test]
fn a_shared_unit_is_one_disk_whatever_happens() {
    let test = block::crash_test!();
    let (mut all, mut count) = (Sums::default(), 0);
    for seed in test.seeds(0, 200, 1) {
        let _printed = test.on_panic(seed, None);
        add(&mut all, run(seed, plan_of(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")));
        count += 1;
    }
    println!("{count} seeds: {all:?}");
    let has_broken = all.sessions > 5 * count && all.starts > count && all.hits > 10 * count as usize;
    assert!(count < 20 || has_broken, "too little has happened");
}

#[test]
fn one_seed_is_one_run() {
    assert_eq!(run(3, plan_of(3)), run(3, plan_of(3)));
}

fn short_plan(seed: u64) -> Plan {
    Plan::short(&mut Random::new(seed ^ 0x5eed))
}

#[test]
fn a_session_may_be_lost_with_every_message() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 3, 1) {
        test.crash_at_every(seed, 5000, |nth| {
            let plan = Plan { cut_at: Some(nth + 1), ..short_plan(seed) };
            let sums = run(seed, plan).unwrap_or_else(|wrong| panic!("message {nth} of seed {seed}: {wrong}"));
            sums.messages > nth
        });
    }
}

#[test]
fn the_target_may_be_killed_at_every_write_of_its_store_and_its_disk() {
    let test = block::crash_test!().of_few_crashes(5);
    for seed in test.seeds(0, 5, 1) {
        test.crash_at_every(seed, 5000, |nth| {
            let plan = Plan { kill_at: Some(nth + 1), ..short_plan(seed) };
            let sums = run(seed, plan).unwrap_or_else(|wrong| panic!("write {nth} of seed {seed}: {wrong}"));
            sums.target_writes > nth
        });
    }
}

/// Race 11: a client that says that it dropped its copies, and keeps them.
#[test]
fn a_client_that_lies_harms_only_itself() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 50, 1) {
        let _printed = test.on_panic(seed, None);
        let plan = Plan { liar: Some(0), ..plan_of(seed) };
        run(seed, plan).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The number of seeds until a fault shows, and the error.
fn found(fault: Fault, seeds: u64) -> Option<(u64, String)> {
    let wrong = |seed| run(seed, Plan { fault: Some(fault), ..plan_of(seed) }).err();
    (0..seeds).find_map(|seed| wrong(seed).map(|wrong| (seed + 1, wrong)))
}

#[test]
fn every_fault_shows_within_few_seeds() {
    let mut hidden = Vec::new();
    for fault in Fault::ALL {
        match found(fault, FAULT_SEEDS) {
            Some((seeds, wrong)) => println!("{fault:?}: {seeds} seeds: {}", wrong.lines().next().unwrap_or_default()),
            None => hidden.push(fault),
        }
    }
    assert_eq!(hidden, [], "nothing shows these");
}
