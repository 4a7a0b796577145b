//! With write-through the tags resident are exactly those of a textbook cache: with one set and LRU the counts of hits
//! and misses equal an independent computation from reuse distances, with any policy and any sets those of a slow
//! obvious model, and on a real trace those published.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{Completion, Device, Request, SharedDevice};
use cache::{Associativity, Cache, FormatOptions, Mode, OpenOptions, Replacement};
use futures_util::stream::{FuturesUnordered, StreamExt};

use common::{format, format_options, open_options, try_open};
use common::{lists::Lists, memory};

/// A request: offset and length in bytes, and whether it writes.
type Access = (u64, u64, bool);

/// Misses of an LRU of `capacity` blocks: a block hits when fewer than `capacity` others were used since its last use.
fn misses_by_reuse_distance(trace: &[Access], capacity: usize) -> (u64, u64) {
    let mut stack: Vec<u64> = Vec::new();
    let (mut accesses, mut misses) = (0, 0);
    for &(offset, length, _) in trace {
        for block in offset / 4096..(offset + length).div_ceil(4096) {
            accesses += 1;
            match stack.iter().rev().position(|&other| other == block) {
                Some(distance) => {
                    stack.remove(stack.len() - 1 - distance);
                    misses += u64::from(distance >= capacity);
                }
                None => misses += 1,
            }
            stack.push(block);
        }
    }
    (accesses, misses)
}

/// Hot spots, scans and single sectors.
fn generated_trace(seed: u64, requests: usize, blocks: u64) -> Vec<Access> {
    let mut random = Random::new(seed);
    let mut scan = 0;
    (0..requests)
        .map(|_| {
            let sectors_max = if random.chance(0.3) { 64 } else { 8 };
            let sectors = 1 + random.below(sectors_max);
            let first_sector = if random.chance(0.2) {
                scan = (scan + 64) % (blocks * 8 - 64);
                scan
            } else {
                let skew = random.unit().powi(3);
                (skew * (blocks * 8 - 64) as f64) as u64
            };
            (first_sector * 512, sectors * 512, random.chance(0.5))
        })
        .collect()
}

fn run_trace(executor: &mut Executor, cache: &Arc<Cache>, trace: Vec<Access>, depth: usize) {
    let cache = Arc::clone(cache);
    executor.block_on(async move {
        let mut running: FuturesUnordered<Completion> = FuturesUnordered::new();
        for (offset, length, is_write) in trace {
            let buffer = Buffer::zeroed(length as usize);
            let request = if is_write { Request::write(offset, buffer, false) } else { Request::read(offset, buffer) };
            running.push(cache.submit(request));
            if running.len() == depth {
                running.next().await.expect("it is full").result.expect("nothing fails");
            }
        }
        while let Some(response) = running.next().await {
            response.result.expect("nothing fails");
        }
    });
}

/// Parameters of a run.
#[derive(Clone, Copy)]
struct Setup {
    replacement: Replacement,
    ways: Associativity,
    capacity: u64,
    depth: usize,
}

fn tag_misses(trace: Vec<Access>, origin_bytes: u64, setup: Setup) -> (u64, u64) {
    let Setup { replacement, ways, capacity, depth } = setup;
    let mut executor = Executor::new(capacity);
    let cache_bytes = capacity * 4096 * 2 + (1 << 20);
    let cache_device = memory(cache_bytes);
    let memory = memory(origin_bytes);
    let workers = Workers::new();
    let delays = Delays::all(Latency::Between(Duration::ZERO, Duration::from_micros(if depth > 1 { 50 } else { 0 })));
    let origin: SharedDevice = Arc::new(DelayLayer::new(memory, Arc::new(executor.clock()), &workers, delays, 1));
    executor.spawn(async move { workers.run().await });
    let options = FormatOptions { associativity: ways, frames_max: Some(capacity), ..format_options() };
    format(&mut executor, &cache_device, &origin, options);
    let options = OpenOptions { replacement, ..open_options(&executor, Mode::WriteThrough) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).expect("it was just made");
    assert_eq!(cache.status().lines, capacity);
    run_trace(&mut executor, &cache, trace, depth);
    let status = cache.status();
    let hits = status.reads.tag_hits + status.writes.tag_hits;
    let misses = status.reads.tag_misses + status.writes.tag_misses;
    (hits + misses, misses)
}

#[test]
fn one_set_is_a_textbook_lru() {
    let blocks = 2000;
    for (seed, capacity, depth) in [(1, 64, 1), (2, 200, 1), (3, 500, 1), (4, 500, 4), (5, 1500, 8)] {
        let trace = generated_trace(seed, 4000, blocks);
        let expected = misses_by_reuse_distance(&trace, capacity);
        let ways = Associativity::Full;
        let setup = Setup { replacement: Replacement::Lru, ways, capacity: capacity as u64, depth };
        let found = tag_misses(trace, blocks * 4096, setup);
        assert_eq!(found, expected, "capacity {capacity}, depth {depth}");
        assert!(expected.1 > 0 && expected.1 < expected.0, "a trace of only hits or misses tests nothing");
    }
}

/// Uses a block of a full set, or evicts another for it. Returns whether it was resident.
fn access(set: &mut Lists, policy: Replacement, ways: usize, block: u64) -> bool {
    if set.touch(policy, block) {
        return true;
    }
    let is_known = set.recall(block);
    while set.count() == ways {
        set.step(policy, ways, ways, &[]);
    }
    set.insert(block, is_known);
    false
}

#[test]
fn every_policy_with_sets_equals_a_slow_obvious_model() {
    let blocks = 3000;
    for replacement in Replacement::ALL {
        for (seed, ways) in [(1, 1), (2, 3), (3, 16), (4, 50), (5, 256), (6, 300)] {
            let capacity = if ways > 100 { ways * 2 } else { 400 / ways * ways };
            let trace = generated_trace(seed, 4000, blocks);
            let mut sets = vec![Lists::default(); (capacity / ways) as usize];
            let (mut accesses, mut misses) = (0, 0);
            let run_lines = 16.min(ways);
            for &(offset, length, _) in &trace {
                for block in offset / 4096..(offset + length).div_ceil(4096) {
                    let set = (block / run_lines % (capacity / ways)) as usize;
                    accesses += 1;
                    misses += u64::from(!access(&mut sets[set], replacement, ways as usize, block));
                }
            }
            let setup = Setup { replacement, ways: Associativity::Ways(ways as u32), capacity, depth: 1 };
            let found = tag_misses(trace, blocks * 4096, setup);
            assert_eq!(found, (accesses, misses), "{replacement}, {ways} ways of {capacity}");
        }
    }
}

/// The policies differ from each other, or the tests above would not tell them apart.
#[test]
fn policies_are_not_the_same() {
    let trace = generated_trace(9, 4000, 3000);
    let misses = Replacement::ALL.map(|replacement| {
        let setup = Setup { replacement, ways: Associativity::Ways(64), capacity: 512, depth: 1 };
        tag_misses(trace.clone(), 3000 * 4096, setup).1
    });
    let different: std::collections::BTreeSet<u64> = misses.into_iter().collect();
    assert_eq!(different.len(), Replacement::ALL.len(), "{misses:?}");
}

/// The published rows for the CloudPhysics trace of libCacheSim's data folder, each within half of the last digit.
/// `FOREBAY_TRACE` names the file.
#[test]
fn a_real_trace_has_the_published_miss_ratios() {
    let Some(path) = std::env::var_os("FOREBAY_TRACE").filter(|path| !path.is_empty()) else {
        eprintln!("skipped: FOREBAY_TRACE does not name cloudPhysicsIO.csv (from libCacheSim's data folder)");
        return;
    };
    let text = std::fs::read_to_string(path).expect("FOREBAY_TRACE names a file");
    let trace: Vec<Access> = text.lines().filter_map(parse_line).collect();
    let capacities = [2692, 13460, 26921, 53842];
    let published = [
        (Replacement::Lru, [0.8969, 0.8871, 0.8741, 0.8129]),
        (Replacement::Clock, [0.8970, 0.8868, 0.8729, 0.8021]),
        (Replacement::TwoQueue, [0.8941, 0.8756, 0.8443, 0.7238]),
        (Replacement::S3Fifo, [0.8932, 0.8654, 0.8110, 0.7264]),
    ];
    let runs: Vec<_> = published
        .into_iter()
        .flat_map(|(policy, row)| capacities.into_iter().zip(row).map(move |cell| (policy, cell)))
        .collect();
    std::thread::scope(|scope| {
        for half in runs.chunks(runs.len().div_ceil(2)) {
            let trace = &trace;
            scope.spawn(move || {
                for &(replacement, (capacity, published)) in half {
                    let setup = Setup { replacement, ways: Associativity::Full, capacity, depth: 1 };
                    let (accesses, misses) = tag_misses(trace.clone(), 32 << 30, setup);
                    let ratio = misses as f64 / accesses as f64;
                    assert!(
                        (ratio - published).abs() < 0.000_05,
                        "{replacement}, {capacity} lines: {ratio:.4}, published {published:.4}"
                    );
                }
            });
        }
    });
}

/// Version, time, SCSI opcode in hexadecimal, bytes, block of 512 bytes.
fn parse_line(line: &str) -> Option<Access> {
    let mut fields = line.split(',').map(str::trim);
    let opcode = fields.nth(2)?;
    let length: u64 = fields.next()?.parse().ok()?;
    let block: u64 = fields.next()?.parse().ok()?;
    let is_write = opcode.trim_start_matches("0x").eq_ignore_ascii_case("2a");
    Some((block * 512, length, is_write))
}
