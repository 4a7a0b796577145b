//! The 512-byte sectors of a line, as bits: bit 0 is the first sector of the line.

use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not};

use crate::limits::{LINE_BYTES_MAX, SECTOR_BYTES};

/// Words of the bitmap of the largest line.
const WORDS: usize = (LINE_BYTES_MAX / SECTOR_BYTES / 64) as usize;

/// Sectors `first..first + count` of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRun {
    /// First sector.
    pub first: u32,
    /// Count of sectors.
    pub count: u32,
}

impl SectorRun {
    /// Bytes from the start of the line.
    pub fn offset(&self) -> u64 {
        u64::from(self.first) * SECTOR_BYTES
    }

    /// Bytes of the run.
    pub fn length(&self) -> u64 {
        u64::from(self.count) * SECTOR_BYTES
    }

    /// The bytes of the run in a line's buffer.
    pub fn bytes(&self) -> std::ops::Range<usize> {
        self.offset() as usize..(self.offset() + self.length()) as usize
    }
}

/// A set of sectors of one line. It has room for the largest line; a smaller one uses the lowest bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sectors {
    words: [u64; WORDS],
}

impl Sectors {
    /// No sector.
    pub const NONE: Self = Self { words: [0; WORDS] };

    /// The sectors of a run.
    pub fn of(run: SectorRun) -> Self {
        let mut words = [0; WORDS];
        let end = run.first + run.count;
        for (word, from) in words.iter_mut().zip((0u32..).step_by(64)) {
            let (first, end) = (run.first.clamp(from, from + 64) - from, end.clamp(from, from + 64) - from);
            *word = below(end) & !below(first);
        }
        Self { words }
    }

    /// The sectors of a bitmap, lowest bit of the first byte first. Bytes beyond the largest line are left out.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        if let [byte] = bytes {
            let mut words = [0; WORDS];
            words[0] = u64::from(*byte);
            return Self { words };
        }
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(padded);
        }
        Self { words }
    }

    /// Writes the bitmap into `bytes`; bits that do not fit have to be zero.
    pub fn to_bytes(self, bytes: &mut [u8]) {
        if let [byte] = bytes {
            *byte = self.words[0] as u8;
            return;
        }
        for (word, chunk) in self.words.iter().zip(bytes.chunks_mut(8)) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |sum, word| sum | word) == 0
    }

    /// Count of the sectors.
    pub fn count(&self) -> u32 {
        // Of most lines only the first word is in use, and counting takes a dozen instructions a word.
        self.words.iter().map(|word| if *word == 0 { 0 } else { word.count_ones() }).sum()
    }

    /// Bytes of these sectors.
    pub fn bytes(&self) -> u64 {
        u64::from(self.count()) * SECTOR_BYTES
    }

    /// Whether all sectors of `other` are in this set.
    pub fn contains(&self, other: Self) -> bool {
        (other & !*self).is_empty()
    }

    /// The first sector.
    pub fn first(&self) -> Option<u32> {
        let (at, word) = (0u32..).zip(self.words).find(|(_, word)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros())
    }

    /// Runs of adjacent sectors, ascending.
    pub fn runs(self) -> impl Iterator<Item = SectorRun> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let first = rest.first()?;
            let end = rest.end_of_run(first);
            let run = SectorRun { first, count: end - first };
            rest &= !Self::of(run);
            Some(run)
        })
    }

    /// The shortest run with all sectors; `None` of an empty set.
    pub fn hull(&self) -> Option<SectorRun> {
        let first = self.first()?;
        let (at, word) = (0u32..).zip(self.words).filter(|(_, word)| *word != 0).last()?;
        let last = at * 64 + 63 - word.leading_zeros();
        Some(SectorRun { first, count: last - first + 1 })
    }

    /// The first sector from `first` on that is not in the set.
    fn end_of_run(&self, first: u32) -> u32 {
        let (start, shift) = (first / 64, first % 64);
        for (at, word) in (0u32..).zip(self.words).skip(start as usize) {
            let missing = if at == start { !(word >> shift << shift | below(shift)) } else { !word };
            if missing != 0 {
                return at * 64 + missing.trailing_zeros();
            }
        }
        WORDS as u32 * 64
    }
}

/// The lowest `count` bits, of 64 at most.
fn below(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

impl BitAnd for Sectors {
    type Output = Self;

    fn bitand(mut self, other: Self) -> Self {
        self &= other;
        self
    }
}

impl BitAndAssign for Sectors {
    fn bitand_assign(&mut self, other: Self) {
        self.words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
    }
}

impl BitOr for Sectors {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

impl BitOrAssign for Sectors {
    fn bitor_assign(&mut self, other: Self) {
        self.words.iter_mut().zip(other.words).for_each(|(word, other)| *word |= other);
    }
}

/// The sectors that are not in the set, also beyond the end of the line: only for taking sectors
/// out of another set.
impl Not for Sectors {
    type Output = Self;

    fn not(mut self) -> Self {
        self.words.iter_mut().for_each(|word| *word = !*word);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive model: the bits as numbers.
    fn list(sectors: Sectors) -> Vec<u32> {
        let mut bytes = [0; WORDS * 8];
        sectors.to_bytes(&mut bytes);
        (0..WORDS as u32 * 64).filter(|bit| bytes[*bit as usize / 8] >> (bit % 8) & 1 != 0).collect()
    }

    #[test]
    fn every_mask_of_a_small_line_is_its_runs_and_has_its_hull() {
        for mask in 0..=255u8 {
            let sectors = Sectors::from_bytes(&[mask]);
            let covered = sectors.runs().fold(0, |sum, run| sum | (((1u32 << run.count) - 1) << run.first));
            assert_eq!(covered, u32::from(mask));
            let mut byte = [0xa5];
            sectors.to_bytes(&mut byte);
            assert_eq!((byte[0], sectors.count()), (mask, mask.count_ones()));
        }
    }

    proptest! {
        #[test]
        fn sectors_are_a_set_of_numbers(bytes in proptest::collection::vec(
            prop_oneof![Just(0u8), Just(0xff), any::<u8>()], WORDS * 8
        ), first in 0u32..512, count in 0u32..=512) {
            let sectors = Sectors::from_bytes(&bytes);
            let numbers = list(sectors);
            prop_assert_eq!(sectors.count() as usize, numbers.len());
            prop_assert_eq!(sectors.is_empty(), numbers.is_empty());
            prop_assert_eq!(sectors.first(), numbers.first().copied());
            let ends = sectors.hull().map(|hull| (hull.first, hull.first + hull.count - 1));
            prop_assert_eq!(ends, numbers.first().copied().zip(numbers.last().copied()));
            let runs: Vec<SectorRun> = sectors.runs().collect();
            let unrolled: Vec<u32> = runs.iter().flat_map(|run| run.first..run.first + run.count).collect();
            prop_assert_eq!(&unrolled, &numbers);
            prop_assert!(runs.windows(2).all(|pair| pair[0].first + pair[0].count < pair[1].first));
            let count = count.min(512 - first);
            let run = Sectors::of(SectorRun { first, count });
            prop_assert_eq!(list(run), (first..first + count).collect::<Vec<_>>());
            let kept: Vec<u32> = numbers.iter().copied().filter(|bit| (first..first + count).contains(bit)).collect();
            let rest: Vec<u32> = numbers.iter().copied().filter(|bit| !kept.contains(bit)).collect();
            prop_assert_eq!(list(sectors & run), kept.clone());
            prop_assert_eq!(list(sectors & !run), rest);
            prop_assert_eq!(sectors.contains(run), kept.len() == count as usize);
            prop_assert_eq!(list((sectors & !run) | run).len(), numbers.len() - kept.len() + count as usize);
        }
    }
}
