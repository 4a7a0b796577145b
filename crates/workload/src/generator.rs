//! Seeded streams of accesses: share of writes, sizes and places.
//!
//! The footprint is cut into *slots* of the largest size; the pattern picks a slot, and a smaller access picks its
//! place inside the slot, aligned to its own size. A skewed pattern ranks the slots, and a seeded permutation scatters
//! the ranks over the footprint. One seed, one stream.

use base::random::Random;
use base::range::ByteRange;

use crate::access::{Access, AccessKind};
use crate::limits::{REQUEST_BYTES_MAX, UNIT_BYTES};
use crate::permutation::{Permutation, mix};
use crate::zipf::Zipf;

/// The places of accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Every slot equally likely.
    Uniform,
    /// The slot of rank k with a probability proportional to `1 / k^theta`, ranks scattered.
    Zipf {
        /// The exponent, from 0.
        theta: f64,
    },
    /// One after the other, from the first again after the last. Each access takes a whole slot or the next part of
    /// one.
    Sequential,
}

/// The parameters of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Seed: it determines the stream.
    pub seed: u64,
    /// Share of writes, 0.0 to 1.0.
    pub write_share: f64,
    /// Sizes in bytes with their weights; each a multiple of 512 that divides the largest.
    pub sizes: Vec<(u32, f64)>,
    /// The places of accesses.
    pub pattern: Pattern,
    /// The bytes of the device it may touch. A rest at the end that does not fill a slot is left
    /// out.
    pub footprint: ByteRange,
}

/// The error for an impossible profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The share of writes is out of range.
    #[error("a write share of {0} is not between 0 and 1")]
    WriteShare(f64),
    /// No sizes, or weights that are not positive.
    #[error("a workload needs at least one size, and each size a positive weight")]
    NoSizes,
    /// An impossible size.
    #[error("a request of {0} bytes is not a multiple of 512 up to 16 MiB")]
    Size(u32),
    /// Sizes that do not divide the largest.
    #[error("requests of {0} bytes do not divide the largest of {1} bytes")]
    SizeMix(u32, u32),
    /// The exponent is out of range.
    #[error("a zipf exponent of {0} is not a number from 0")]
    Theta(f64),
    /// No slot fits.
    #[error("{footprint} do not hold one request of {size} bytes, or do not begin at a multiple of 512")]
    Footprint {
        /// The footprint asked for.
        footprint: ByteRange,
        /// The largest size.
        size: u32,
    },
}

impl Profile {
    /// The demo's workload: 89 % writes of 2 KiB, zipf 0.99 over `footprint`; the shares are those of the iCache
    /// paper's trace (3.3.2).
    pub fn icache(seed: u64, footprint: ByteRange) -> Self {
        Self { seed, write_share: 0.89, sizes: vec![(2048, 1.0)], pattern: Pattern::Zipf { theta: 0.99 }, footprint }
    }

    /// The largest size.
    pub fn size_max(&self) -> u32 {
        self.sizes.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), ProfileError> {
        if !(0.0..=1.0).contains(&self.write_share) {
            return Err(ProfileError::WriteShare(self.write_share));
        }
        if self.sizes.is_empty() || self.sizes.iter().any(|(_, weight)| !weight.is_finite() || *weight <= 0.0) {
            return Err(ProfileError::NoSizes);
        }
        let size_max = self.size_max();
        for (size, _) in &self.sizes {
            if *size == 0 || !size.is_multiple_of(UNIT_BYTES as u32) || *size > REQUEST_BYTES_MAX {
                return Err(ProfileError::Size(*size));
            }
            if !size_max.is_multiple_of(*size) {
                return Err(ProfileError::SizeMix(*size, size_max));
            }
        }
        if let Pattern::Zipf { theta } = self.pattern
            && !(theta.is_finite() && theta >= 0.0)
        {
            return Err(ProfileError::Theta(theta));
        }
        let is_room = self.footprint.length >= u64::from(size_max);
        if !is_room || !self.footprint.offset.is_multiple_of(UNIT_BYTES as u64) {
            return Err(ProfileError::Footprint { footprint: self.footprint, size: size_max });
        }
        Ok(())
    }
}

/// An endless stream of accesses.
#[derive(Clone, Debug)]
pub struct Generator {
    profile: Profile,
    slots: Slots,
    size_max: u32,
    weight_total: f64,
    random: Draws,
    /// Where the next sequential access begins, relative to the footprint.
    sequential_next: u64,
}

#[derive(Clone, Debug)]
struct Slots {
    count: u64,
    ranking: Option<(Zipf, Permutation)>,
}

/// `Random` has no `Debug`, and its state is of no use to a reader.
#[derive(Clone)]
struct Draws(Random);

impl std::fmt::Debug for Draws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Draws")
    }
}

impl Generator {
    /// The stream of `profile`.
    ///
    /// # Errors
    /// For an impossible profile.
    pub fn new(profile: Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        let size_max = profile.size_max();
        let count = profile.footprint.length / u64::from(size_max);
        let ranking = match profile.pattern {
            Pattern::Zipf { theta } => Some((Zipf::new(count, theta), Permutation::new(count, mix(profile.seed)))),
            Pattern::Uniform | Pattern::Sequential => None,
        };
        let weight_total = profile.sizes.iter().map(|(_, weight)| weight).sum();
        let random = Draws(Random::new(profile.seed));
        Ok(Self { slots: Slots { count, ranking }, size_max, weight_total, random, sequential_next: 0, profile })
    }

    /// The profile it follows.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The next access.
    pub fn draw(&mut self) -> Access {
        let kind = if self.random.0.chance(self.profile.write_share) { AccessKind::Write } else { AccessKind::Read };
        let size = u64::from(self.draw_size());
        let place = match self.profile.pattern {
            Pattern::Sequential => self.next_place(size),
            Pattern::Uniform | Pattern::Zipf { .. } => self.draw_place(size),
        };
        let offset = self.profile.footprint.offset + place;
        Access { kind, range: ByteRange { offset, length: size } }
    }

    fn draw_size(&mut self) -> u32 {
        let [(only, _)] = self.profile.sizes[..] else {
            let mut left = self.random.0.unit() * self.weight_total;
            for (size, weight) in &self.profile.sizes {
                left -= weight;
                if left < 0.0 {
                    return *size;
                }
            }
            // Rounding of the sum can leave a rest, which counts for the last size.
            return self.profile.sizes.last().map_or(self.size_max, |(size, _)| *size);
        };
        only
    }

    fn draw_place(&mut self, size: u64) -> u64 {
        let slot = match &self.slots.ranking {
            Some((zipf, scatter)) => scatter.apply(zipf.draw(&mut self.random.0) - 1),
            None => self.random.0.below(self.slots.count),
        };
        let size_max = u64::from(self.size_max);
        let part_count = size_max / size;
        let part = if part_count > 1 { self.random.0.below(part_count) } else { 0 };
        slot * size_max + part * size
    }

    fn next_place(&mut self, size: u64) -> u64 {
        let place = self.sequential_next.next_multiple_of(size);
        let end = self.slots.count * u64::from(self.size_max);
        let place = if place + size > end { 0 } else { place };
        self.sequential_next = place + size;
        place
    }
}

impl Iterator for Generator {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        Some(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn footprint(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn one_seed_one_stream() {
        let draw = |seed| {
            let generator = Generator::new(Profile::icache(seed, footprint(0, 32 << 20))).unwrap();
            generator.take(1000).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn the_demo_profile_is_what_it_says() {
        let generator = Generator::new(Profile::icache(1, footprint(0, 32 << 20))).unwrap();
        let mut writes = 0;
        let mut slots = BTreeMap::<u64, u64>::new();
        for access in generator.take(100_000) {
            writes += u64::from(access.kind == AccessKind::Write);
            *slots.entry(access.range.offset / 2048).or_default() += 1;
        }
        assert!((88_500..89_500).contains(&writes), "{writes} writes of 100000");
        let mut ranked: Vec<(u64, u64)> = slots.iter().map(|(slot, count)| (*count, *slot)).collect();
        ranked.sort_unstable();
        // 1 / H(16384, 0.99) is 9.6 %.
        let (hottest, second) = (ranked[ranked.len() - 1], ranked[ranked.len() - 2]);
        assert!((9_200..10_100).contains(&hottest.0), "the hottest slot has {} of 100000", hottest.0);
        assert!(hottest.1.abs_diff(second.1) > 1, "hot slots are scattered");
    }

    #[test]
    fn sequential_runs_through_and_starts_again() {
        let sizes = vec![(4096, 1.0)];
        let range = footprint(8192, 3 * 4096 + 512);
        let profile = Profile { seed: 1, write_share: 0.0, sizes, pattern: Pattern::Sequential, footprint: range };
        let offsets: Vec<u64> =
            Generator::new(profile).unwrap().take(4).map(|access| access.range.offset - 8192).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0]);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Profile::icache(1, footprint(0, 1 << 20));
        let refused = |change: &dyn Fn(&mut Profile)| {
            let mut profile = good.clone();
            change(&mut profile);
            Generator::new(profile).expect_err("this makes no sense")
        };
        assert_eq!(refused(&|p| p.write_share = 1.5), ProfileError::WriteShare(1.5));
        assert_eq!(refused(&|p| p.sizes.clear()), ProfileError::NoSizes);
        assert_eq!(refused(&|p| p.sizes[0].1 = 0.0), ProfileError::NoSizes);
        assert_eq!(refused(&|p| p.sizes[0].0 = 1000), ProfileError::Size(1000));
        assert_eq!(refused(&|p| p.sizes = vec![(1024, 1.0), (1536, 1.0)]), ProfileError::SizeMix(1024, 1536));
        assert_eq!(refused(&|p| p.pattern = Pattern::Zipf { theta: -1.0 }), ProfileError::Theta(-1.0));
        assert!(matches!(refused(&|p| p.footprint.length = 512), ProfileError::Footprint { .. }));
        assert!(matches!(refused(&|p| p.footprint.offset = 3), ProfileError::Footprint { .. }));
    }

    proptest! {
        #[test]
        fn accesses_stay_inside_and_aligned(
            seed in any::<u64>(),
            offset_units in 0u64..100,
            length in 16384u64..1_000_000,
            pattern in prop_oneof![
                Just(Pattern::Uniform),
                Just(Pattern::Sequential),
                (0.0f64..2.0).prop_map(|theta| Pattern::Zipf { theta }),
            ],
        ) {
            let range = footprint(offset_units * 512, length);
            let sizes = vec![(512, 1.0), (4096, 3.0), (16384, 0.5)];
            let profile = Profile { seed, write_share: 0.5, sizes, pattern, footprint: range };
            for access in Generator::new(profile).unwrap().take(200) {
                prop_assert!(range.contains(&access.range));
                prop_assert!((access.range.offset - range.offset).is_multiple_of(access.range.length));
            }
        }
    }
}
