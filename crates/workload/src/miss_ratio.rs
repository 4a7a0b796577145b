//! The exact miss ratio of LRU for every size of cache at once.
//!
//! An access to a block hits in an LRU cache of `c` blocks exactly when fewer than `c` other blocks were touched since
//! the block was touched last. That number, the *reuse distance*, is a count of marks in a Fenwick tree over time that
//! has one mark per block, at its last use (Mattson's stack algorithm in the form of Bennett and Kruskal). Each access
//! costs the logarithm of the number of blocks; when the tree's time runs out, the marks are moved together.
//!
//! Every 4 KiB block that a request touches is one access, in ascending order; reads and writes both allocate.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use crate::access::{Access, AccessKind};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;

/// Time slots before the first growth.
const SLOTS_MIN: usize = 1 << 10;

/// The blocks an access touches, ascending; none for a flush or a discard.
pub fn blocks(access: &Access) -> std::ops::Range<u64> {
    match access.kind {
        AccessKind::Read | AccessKind::Write if !access.range.is_empty() => {
            access.range.offset / BLOCK_BYTES..access.range.end().div_ceil(BLOCK_BYTES)
        }
        _ => 0..0,
    }
}

/// Counts reuse distances, access by access.
pub struct MissRatioCurve {
    /// The slot of each block's last use. A fixed hash, so that runs are alike.
    last_use: HashMap<u64, usize, BuildHasherDefault<DefaultHasher>>,
    marks: Fenwick,
    slot_next: usize,
    /// `distances[d]` counts accesses with `d` other blocks since the last use.
    distances: Vec<u64>,
    first_uses: u64,
}

impl Default for MissRatioCurve {
    fn default() -> Self {
        Self {
            last_use: HashMap::default(),
            marks: Fenwick::new(SLOTS_MIN),
            slot_next: 0,
            distances: Vec::new(),
            first_uses: 0,
        }
    }
}

impl MissRatioCurve {
    /// A curve of no accesses.
    pub fn new() -> Self {
        Self::default()
    }

    /// The curve of a sequence of accesses.
    pub fn of(accesses: impl IntoIterator<Item = Access>) -> Self {
        let mut curve = Self::new();
        accesses.into_iter().for_each(|access| curve.access(&access));
        curve
    }

    /// Counts every block of a request.
    pub fn access(&mut self, access: &Access) {
        blocks(access).for_each(|block| self.access_block(block));
    }

    /// Counts one block.
    pub fn access_block(&mut self, block: u64) {
        if self.slot_next == self.marks.slot_count() {
            self.compact();
        }
        let slot = self.slot_next;
        self.slot_next += 1;
        match self.last_use.insert(block, slot) {
            None => self.first_uses += 1,
            Some(previous) => {
                let distance = self.last_use.len() - self.marks.count_through(previous);
                self.marks.remove(previous);
                if self.distances.len() <= distance {
                    self.distances.resize(distance + 1, 0);
                }
                self.distances[distance] += 1;
            }
        }
        self.marks.add(slot);
    }

    /// Block accesses counted.
    pub fn access_count(&self) -> u64 {
        self.first_uses + self.distances.iter().sum::<u64>()
    }

    /// Different blocks among them.
    pub fn block_count(&self) -> u64 {
        self.first_uses
    }

    /// Misses of a cache of `cache_blocks` blocks that starts empty.
    pub fn misses(&self, cache_blocks: usize) -> u64 {
        let hits: u64 = self.distances.iter().take(cache_blocks).sum();
        self.access_count() - hits
    }

    /// Share of accesses that a cache of `cache_blocks` blocks misses, or `None` without accesses.
    pub fn miss_ratio(&self, cache_blocks: usize) -> Option<f64> {
        let count = self.access_count();
        (count > 0).then(|| self.misses(cache_blocks) as f64 / count as f64)
    }

    /// Moves the marks to the first slots, in their order, and makes room for as many again.
    fn compact(&mut self) {
        let mut by_slot: Vec<(usize, u64)> = self.last_use.iter().map(|(block, slot)| (*slot, *block)).collect();
        by_slot.sort_unstable();
        self.marks = Fenwick::new((by_slot.len() * 2).max(SLOTS_MIN));
        for (slot, (_, block)) in by_slot.iter().enumerate() {
            self.last_use.insert(*block, slot);
            self.marks.add(slot);
        }
        self.slot_next = by_slot.len();
    }
}

/// Marks on a line of slots, counted up to any slot in logarithmic time.
struct Fenwick {
    /// `sums[i]` counts the marks of the `i & -i` slots that end at slot `i - 1`; `sums[0]` is not used.
    sums: Vec<u32>,
}

impl Fenwick {
    fn new(slot_count: usize) -> Self {
        Self { sums: vec![0; slot_count + 1] }
    }

    fn slot_count(&self) -> usize {
        self.sums.len() - 1
    }

    fn add(&mut self, slot: usize) {
        self.change(slot, |sum| *sum += 1);
    }

    fn remove(&mut self, slot: usize) {
        self.change(slot, |sum| *sum -= 1);
    }

    fn change(&mut self, slot: usize, change: impl Fn(&mut u32)) {
        let mut index = slot + 1;
        while index < self.sums.len() {
            change(&mut self.sums[index]);
            index += index & index.wrapping_neg();
        }
    }

    /// Marks at slots `0..=slot`.
    fn count_through(&self, slot: usize) -> usize {
        let mut index = slot + 1;
        let mut count = 0;
        while index > 0 {
            count += self.sums[index] as usize;
            index &= index - 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::synthetic;
    use base::range::ByteRange;
    use proptest::prelude::*;

    fn curve(records: &[crate::trace::Record]) -> MissRatioCurve {
        MissRatioCurve::of(records.iter().map(|record| record.access))
    }

    #[test]
    fn requests_touch_blocks() {
        for (kind, offset, length, touched) in [
            (AccessKind::Read, 0, 4096, 0..1),
            (AccessKind::Write, 3584, 1024, 0..2),
            (AccessKind::Read, 63 * 512, 8192, 7..10),
            (AccessKind::Read, 4096, 0, 0..0),
            (AccessKind::Flush, 0, 0, 0..0),
            (AccessKind::Discard, 0, 4096, 0..0),
        ] {
            assert_eq!(blocks(&Access { kind, range: ByteRange { offset, length } }), touched);
        }
    }

    #[test]
    fn a_circle_misses_always_or_once() {
        let curve = curve(&synthetic::cyclic(1500, 4));
        assert_eq!((curve.access_count(), curve.block_count()), (6000, 1500));
        assert_eq!(curve.miss_ratio(1499), Some(1.0));
        assert_eq!(curve.miss_ratio(1500), Some(0.25));
        assert_eq!(MissRatioCurve::new().miss_ratio(1), None);
    }

    #[test]
    fn the_curve_of_a_mixed_trace_is_what_a_list_counts() {
        let records = synthetic::mixed(11, 3000, 8 << 20);
        let curve = curve(&records);
        for cache_blocks in [1, 10, 100, 500, 1000, 2000] {
            assert_eq!(curve.miss_ratio(cache_blocks), Some(synthetic::lru_miss_ratio(&records, cache_blocks)));
        }
    }

    proptest! {
        #[test]
        fn any_sequence_agrees_with_a_list(blocks in proptest::collection::vec(0u64..40, 1..400), size in 1usize..45) {
            let mut curve = MissRatioCurve::new();
            let mut by_use: Vec<u64> = Vec::new();
            let mut misses = 0;
            for &block in &blocks {
                curve.access_block(block);
                match by_use.iter().position(|&other| other == block) {
                    Some(position) => drop(by_use.remove(position)),
                    None => misses += 1,
                }
                by_use.push(block);
                if by_use.len() > size {
                    by_use.remove(0);
                }
            }
            prop_assert_eq!(curve.misses(size), misses);
        }
    }
}
