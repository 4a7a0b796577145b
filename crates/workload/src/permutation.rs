//! A seeded permutation of `0..count` in constant memory.
//!
//! A Feistel network permutes the smallest square power of two that holds `count`; a value that falls outside is put
//! through again until it lands inside (cycle walking), which needs below four steps on average. It scatters the hot
//! items of a skewed distribution, so that hot blocks are not neighbours. It is not fit for secrets.

/// Feistel rounds: four make neighbours unrelated, which is all that is needed here.
const ROUND_COUNT: usize = 4;

/// A permutation of `0..count`.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; ROUND_COUNT],
}

impl Permutation {
    /// The permutation of `0..count` for `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let keys = std::array::from_fn(|round| mix(seed.wrapping_add(round as u64 + 1)));
        Self { count, half_bits, keys }
    }

    /// The image of `index`.
    ///
    /// # Panics
    /// When `index` is not below the count.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.count, "index {index} is not below {}", self.count);
        let mut value = index;
        loop {
            value = self.network(value);
            if value < self.count {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// A bijection of 64 bits that changes about half of them for each bit of the input (the finalizer of splitmix64).
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_hit_once() {
        for count in [1, 2, 3, 5, 64, 1000, 4096, 4097] {
            let permutation = Permutation::new(count, 9);
            let mut hits = vec![false; count as usize];
            (0..count).for_each(|index| hits[permutation.apply(index) as usize] = true);
            assert!(hits.iter().all(|&is_hit| is_hit), "{count}");
        }
    }

    #[test]
    fn seeds_differ_and_neighbours_part() {
        let (one, other) = (Permutation::new(16_384, 1), Permutation::new(16_384, 2));
        assert!((0..64).any(|index| one.apply(index) != other.apply(index)));
        let adjacent = (0..1000).filter(|&index| one.apply(index).abs_diff(one.apply(index + 1)) == 1).count();
        assert!(adjacent < 10, "{adjacent} of 1000 neighbours stayed together");
    }
}
