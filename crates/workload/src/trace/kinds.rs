//! Synthetic traces of the kinds with which replacement and cleaning are measured.
//!
//! Blocks are of 4 KiB and requests are whole ones. The seed determines the trace; times are zero,
//! since they are replayed at full speed.

use std::time::Duration;

use base::random::Random;
use base::range::ByteRange;

use super::record::Record;
use crate::access::{Access, AccessKind};
use crate::miss_ratio::BLOCK_BYTES;
use crate::permutation::Permutation;
use crate::zipf::Zipf;

/// A kind of trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Skewed single blocks, half of them written, and now and then the next eight blocks of a long scan.
    ZipfAndScan,
    /// A loop over half of the disk, read, beside skewed single blocks of the other half, a third of them written.
    Loop,
    /// Skewed short requests in a window that moves on; more than half are writes.
    Shifting,
    /// What a server's volume sees: sequential bursts of writes that are not read again, a few hot blocks written again
    /// and again, skewed reads, scans.
    Server,
    /// Large writes, 277 KiB on average, at random places, with as many small reads.
    LargeWrites,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::ZipfAndScan, Self::Loop, Self::Shifting, Self::Server, Self::LargeWrites];

    /// `count` requests to a disk of `block_count` blocks.
    ///
    /// # Panics
    /// When the disk has fewer than 1024 blocks.
    pub fn trace(self, seed: u64, count: usize, block_count: u64) -> Vec<Record> {
        assert!(block_count >= 1024, "a disk of {block_count} blocks is too small for these kinds");
        let mut mix = Mix { random: Random::new(seed), block_count, records: Vec::with_capacity(count) };
        match self {
            Self::ZipfAndScan => mix.zipf_and_scan(seed, count),
            Self::Loop => mix.loop_beside(seed, count),
            Self::Shifting => mix.shifting(count),
            Self::Server => mix.server(seed, count),
            Self::LargeWrites => mix.large_writes(count),
        }
        mix.records.truncate(count);
        mix.records
    }
}

struct Mix {
    random: Random,
    block_count: u64,
    records: Vec<Record>,
}

impl Mix {
    fn push(&mut self, is_write: bool, first: u64, count: u64) {
        let first = first.min(self.block_count - count);
        let range = ByteRange { offset: first * BLOCK_BYTES, length: count * BLOCK_BYTES };
        let kind = if is_write { AccessKind::Write } else { AccessKind::Read };
        self.records.push(Record { at: Duration::ZERO, access: Access { kind, range } });
    }

    fn zipf_and_scan(&mut self, seed: u64, count: usize) {
        let hot_count = self.block_count / 2;
        let (zipf, scatter) = (Zipf::new(hot_count, 0.9), Permutation::new(hot_count, seed));
        let mut scan = 0;
        while self.records.len() < count {
            if self.records.len().is_multiple_of(20) {
                self.push(false, hot_count + scan, 8);
                scan = (scan + 8) % (self.block_count - hot_count);
            }
            let is_write = self.random.chance(0.5);
            let block = scatter.apply(zipf.draw(&mut self.random) - 1);
            self.push(is_write, block, 1);
        }
    }

    fn loop_beside(&mut self, seed: u64, count: usize) {
        let half = self.block_count / 2;
        let (zipf, scatter) = (Zipf::new(half, 0.8), Permutation::new(half, seed));
        let mut next = 0;
        while self.records.len() < count {
            if self.records.len().is_multiple_of(3) {
                self.push(false, next, 2);
                next = (next + 2) % half;
            }
            let is_write = self.random.chance(0.3);
            let block = half + scatter.apply(zipf.draw(&mut self.random) - 1);
            self.push(is_write, block, 1);
        }
    }

    fn shifting(&mut self, count: usize) {
        let window = self.block_count / 5;
        let zipf = Zipf::new(window, 0.7);
        while self.records.len() < count {
            // The window moves over the whole disk in the course of the trace.
            let start = self.records.len() as u64 * (self.block_count - window) / count as u64;
            let is_write = self.random.chance(0.6);
            let (block, length) = (start + zipf.draw(&mut self.random) - 1, 1 + self.random.below(4));
            self.push(is_write, block, length);
        }
    }

    fn server(&mut self, seed: u64, count: usize) {
        let read_count = self.block_count / 2;
        let hot_count = self.block_count / 30;
        let (reads, hot) = (Zipf::new(read_count, 1.05), Zipf::new(hot_count, 0.9));
        let scatter = Permutation::new(read_count, seed);
        let mut log = 0;
        while self.records.len() < count {
            match self.random.below(100) {
                0..15 => {
                    for _ in 0..4 {
                        self.push(true, read_count + log, 4);
                        log = (log + 4) % (self.block_count - read_count - 4);
                    }
                }
                15..55 => {
                    let block = scatter.apply(hot.draw(&mut self.random) - 1);
                    self.push(true, block, 1);
                }
                55..95 => {
                    let is_write = self.random.chance(0.15);
                    let (block, length) = (scatter.apply(reads.draw(&mut self.random) - 1), 1 + self.random.below(4));
                    self.push(is_write, block, length);
                }
                _ => {
                    let first = self.random.below(read_count);
                    (0..8).for_each(|step| self.push(false, first + 8 * step, 8));
                }
            }
        }
    }

    fn large_writes(&mut self, count: usize) {
        while self.records.len() < count {
            let (first, length) = (self.random.below(self.block_count), 10 + self.random.below(118));
            self.push(true, first, length);
            let (block, length) = (self.random.below(self.block_count), 1 + self.random.below(4));
            self.push(false, block, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_the_same_for_one_seed_and_stays_on_its_disk() {
        for kind in Kind::ALL {
            let trace = kind.trace(7, 2000, 4096);
            assert_eq!(trace, kind.trace(7, 2000, 4096), "{kind:?}");
            assert_ne!(trace, kind.trace(8, 2000, 4096), "{kind:?}");
            assert_eq!(trace.len(), 2000);
            assert!(trace.iter().all(|record| record.access.range.end() <= 4096 * BLOCK_BYTES), "{kind:?}");
            let writes = trace.iter().filter(|record| record.access.kind == AccessKind::Write).count();
            assert!((300..1700).contains(&writes), "{kind:?}: {writes} of 2000 are writes");
        }
    }
}
