//! With one set and write-through the tags resident are exactly those of a textbook LRU: the counts of tag hits and misses equal an
//! independent computation from reuse distances.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use block::{Completion, Device, Identity, Request, SharedDevice};
use cache::{Associativity, Cache, FormatOptions, Mode};
use futures_util::stream::{FuturesUnordered, StreamExt};

use common::{format, format_options, open};

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

fn tag_misses(trace: Vec<Access>, capacity: u64, origin_bytes: u64, depth: usize) -> (u64, u64) {
    let mut executor = Executor::new(capacity);
    let cache_bytes = capacity * 4096 * 2 + (1 << 20);
    let cache_device: SharedDevice = Arc::new(MemoryDevice::new(cache_bytes, Identity::default()));
    let memory: SharedDevice = Arc::new(MemoryDevice::new(origin_bytes, Identity::default()));
    let workers = Workers::new();
    let delays = Delays::all(Latency::Between(Duration::ZERO, Duration::from_micros(if depth > 1 { 50 } else { 0 })));
    let origin: SharedDevice = Arc::new(DelayLayer::new(memory, Arc::new(executor.clock()), &workers, delays, 1));
    executor.spawn(async move { workers.run().await });
    let options = FormatOptions { associativity: Associativity::Full, frames_max: Some(capacity), ..format_options() };
    format(&mut executor, &cache_device, &origin, options);
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteThrough);
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
        let found = tag_misses(trace, capacity as u64, blocks * 4096, depth);
        assert_eq!(found, expected, "capacity {capacity}, depth {depth}");
        assert!(expected.1 > 0 && expected.1 < expected.0, "a trace of only hits or misses tests nothing");
    }
}

/// The published LRU row for the CloudPhysics trace of libCacheSim's data folder. `FOREBAY_TRACE` names the file.
#[test]
fn a_real_trace_has_the_published_miss_ratios() {
    let Some(path) = std::env::var_os("FOREBAY_TRACE").filter(|path| !path.is_empty()) else {
        eprintln!("skipped: FOREBAY_TRACE does not name cloudPhysicsIO.csv (from libCacheSim's data folder)");
        return;
    };
    let text = std::fs::read_to_string(path).expect("FOREBAY_TRACE names a file");
    let trace: Vec<Access> = text.lines().filter_map(parse_line).collect();
    for (capacity, published) in [(2692, 0.8969), (13460, 0.8871), (26921, 0.8741), (53842, 0.8129)] {
        let (accesses, misses) = tag_misses(trace.clone(), capacity, 32 << 30, 1);
        let ratio = misses as f64 / accesses as f64;
        assert!((ratio - published).abs() < 0.000_05, "{capacity} lines: {ratio:.4}, published {published:.4}");
    }
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
