//! Synthetic traces for tests that must not depend on a recorded one.
//!
//! [`mixed`] resembles a busy virtual disk: skewed small requests, off 4 KiB boundaries like those
//! of a guest's partition, with sequential runs between them. [`cyclic`] is a loop whose miss ratio
//! under LRU is known without any computation. [`lru_miss_ratio`] keeps an actual list in order of
//! use and counts: slow, obvious, and independent of
//! [`MissRatioCurve`](crate::miss_ratio::MissRatioCurve).

use std::time::Duration;

use base::random::Random;
use base::range::ByteRange;

use super::record::Record;
use crate::access::{Access, AccessKind};
use crate::miss_ratio::{BLOCK_BYTES, blocks};
use crate::permutation::Permutation;
use crate::zipf::Zipf;

/// Guests' partitions used to begin at sector 63, which puts nearly every request off a 4 KiB boundary.
const PARTITION_OFFSET_BYTES: u64 = 63 * 512;

/// `count` requests of a busy virtual disk of `size_bytes` (at least 1 MiB): 60 % writes, one request in 50 begins a
/// sequential run.
///
/// # Panics
/// When the disk is smaller than 1 MiB.
pub fn mixed(seed: u64, count: usize, size_bytes: u64) -> Vec<Record> {
    assert!(size_bytes >= 1 << 20, "a disk of {size_bytes} bytes is too small for this mix");
    let page_count = (size_bytes - PARTITION_OFFSET_BYTES) / BLOCK_BYTES - RUN_REQUESTS_MAX * RUN_PAGES;
    let (zipf, scatter) = (Zipf::new(page_count, 0.9), Permutation::new(page_count, seed));
    let mut random = Random::new(seed);
    let mut records = Vec::with_capacity(count);
    let push = |page: u64, units: u64, kind, records: &mut Vec<Record>| {
        let range = ByteRange { offset: PARTITION_OFFSET_BYTES + page * BLOCK_BYTES, length: units * 512 };
        let at = Duration::from_millis(records.len() as u64);
        records.push(Record { at, access: Access { kind, range } });
    };
    while records.len() < count {
        let kind = if random.chance(0.6) { AccessKind::Write } else { AccessKind::Read };
        let page = scatter.apply(zipf.draw(&mut random) - 1);
        if random.chance(0.02) {
            for step in 0..1 + random.below(RUN_REQUESTS_MAX) {
                push(page + step * RUN_PAGES, RUN_PAGES * 8, kind, &mut records);
            }
        } else {
            push(page, 1 + random.below(16), kind, &mut records);
        }
    }
    records.truncate(count);
    records
}

/// Requests of a sequential run, and 4 KiB pages of each: 64 KiB, what guests' readahead asks for.
const RUN_REQUESTS_MAX: u64 = 8;
const RUN_PAGES: u64 = 16;

/// `rounds` times over the first `block_count` blocks of 4 KiB, one after the other. Under LRU a cache of fewer blocks
/// misses every time, one of at least as many misses once per block: a ratio of `1 / rounds`.
pub fn cyclic(block_count: u64, rounds: u64) -> Vec<Record> {
    let round = |_| (0..block_count).map(|block| ByteRange { offset: block * BLOCK_BYTES, length: BLOCK_BYTES });
    let ranges = (0..rounds).flat_map(round);
    ranges.map(|range| Record { at: Duration::ZERO, access: Access { kind: AccessKind::Read, range } }).collect()
}

/// Share of block accesses that miss in a cache of `cache_blocks` blocks with LRU eviction, counted
/// with a list.
pub fn lru_miss_ratio(records: &[Record], cache_blocks: usize) -> f64 {
    let mut by_use: Vec<u64> = Vec::new();
    let (mut accesses, mut misses) = (0u64, 0u64);
    for block in records.iter().flat_map(|record| blocks(&record.access)) {
        accesses += 1;
        match by_use.iter().rposition(|&other| other == block) {
            Some(position) => drop(by_use.remove(position)),
            None => {
                misses += 1;
                if by_use.len() == cache_blocks {
                    by_use.remove(0);
                }
            }
        }
        by_use.push(block);
    }
    if accesses == 0 { 0.0 } else { misses as f64 / accesses as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_what_it_says() {
        let size_bytes = 64 << 20;
        let records = mixed(7, 5000, size_bytes);
        assert_eq!(records.len(), 5000);
        assert_eq!(records, mixed(7, 5000, size_bytes));
        assert_ne!(records, mixed(8, 5000, size_bytes));
        let writes = records.iter().filter(|record| record.access.kind == AccessKind::Write).count();
        assert!((2700..3300).contains(&writes), "{writes} writes");
        assert!(records.iter().all(|record| record.access.range.end() <= size_bytes));
        assert!(records.iter().all(|record| !record.access.range.offset.is_multiple_of(BLOCK_BYTES)));
    }

    #[test]
    fn a_circle_has_a_known_ratio() {
        let records = cyclic(10, 4);
        assert_eq!(lru_miss_ratio(&records, 9), 1.0);
        assert_eq!(lru_miss_ratio(&records, 10), 0.25);
    }
}
