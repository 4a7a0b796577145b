//! The changed ranges of a unit, one bit each. Every command that changes the medium tests it
//! without a lock.
//!
//! The last bit stands for all ranges from there on: a unit that grew beyond the bitmap loses
//! precision, not changes.

use std::sync::atomic::{AtomicU64, Ordering};

use scsi::change_mark::Run;

use crate::limits::{CHANGE_RANGES_MAX, MARK_PART_WORDS, MARK_PARTS};

const WORDS: usize = CHANGE_RANGES_MAX / 64;

/// A part of a bitmap, the unit in which it is made durable: one page with its header.
pub type PartWords = [u64; MARK_PART_WORDS];

/// A span of ranges, from `first` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) end: usize,
}

impl Span {
    /// Grown to whole groups of `1 << step` ranges.
    pub(super) fn in_groups(self, step: u32) -> Self {
        let group = 1 << step;
        Self { first: self.first / group * group, end: self.end.next_multiple_of(group).min(CHANGE_RANGES_MAX) }
    }

    /// The parts that the span touches.
    pub(super) fn parts(self) -> std::ops::Range<usize> {
        let part = MARK_PART_WORDS * 64;
        self.first / part..self.end.div_ceil(part)
    }

    /// The words that the span touches, each with a mask of its bits.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        (self.first / 64..self.end.div_ceil(64)).map(move |word| {
            let (low, high) = (self.first.max(word * 64) - word * 64, self.end.min(word * 64 + 64) - word * 64);
            let below = |bit: usize| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
            (word, below(high) & !below(low))
        })
    }
}

/// The bits of one mark.
pub(super) struct Bitmap(Box<[AtomicU64]>);

impl Bitmap {
    pub(super) fn new() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn fill(&self, is_changed: bool) {
        let value = if is_changed { u64::MAX } else { 0 };
        self.0.iter().for_each(|word| word.store(value, Ordering::Release));
    }

    /// Loads durable words; ranges without one count as changed.
    pub(super) fn load(&self, words: &[u64]) {
        for (index, word) in self.0.iter().enumerate() {
            word.store(words.get(index).copied().unwrap_or(u64::MAX), Ordering::Release);
        }
    }

    /// Moves all bits of `other` into this bitmap.
    pub(super) fn take_over(&self, other: &Self) {
        for (word, from) in self.0.iter().zip(&other.0) {
            word.fetch_or(from.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        }
    }

    /// The union of this bitmap and another.
    pub(super) fn with(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        let word = |(a, b): (&AtomicU64, &AtomicU64)| (a.load(Ordering::Acquire) | b.load(Ordering::Acquire)).into();
        Self(pairs.map(word).collect())
    }

    pub(super) fn set(&self, span: Span) {
        span.words().for_each(|(word, bits)| {
            self.0[word].fetch_or(bits, Ordering::Release);
        });
    }

    pub(super) fn has(&self, span: Span) -> bool {
        // Nearly every write lies in one range.
        if span.end - span.first == 1 {
            return self.0[span.first / 64].load(Ordering::Acquire) & 1 << (span.first % 64) != 0;
        }
        span.words().all(|(word, bits)| self.0[word].load(Ordering::Acquire) & bits == bits)
    }

    /// Part `part`, with the bits of `spans` set in addition.
    pub(super) fn part_with(&self, part: usize, spans: &[Span]) -> Box<PartWords> {
        debug_assert!(part < MARK_PARTS);
        let base = part * MARK_PART_WORDS;
        let mut words = Box::new([0; MARK_PART_WORDS]);
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.0.get(base + index).map_or(0, |bits| bits.load(Ordering::Acquire));
        }
        for (word, bits) in spans.iter().flat_map(|span| span.words()) {
            if let Some(place) = word.checked_sub(base).and_then(|index| words.get_mut(index)) {
                *place |= bits;
            }
        }
        words
    }

    /// At most `runs_max` runs of changed ranges from `first` on, in a unit of `range_count`
    /// ranges; and whether there are more.
    pub(super) fn runs(&self, first: u64, range_count: u64, runs_max: usize) -> (Vec<Run>, bool) {
        let covered = range_count.min(CHANGE_RANGES_MAX as u64) as usize;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = usize::try_from(first).map_or(covered, |first| first.min(covered));
        while let Some(start) = self.next(at, covered, true) {
            if runs.len() == runs_max {
                return (runs, true);
            }
            let end = self.next(start, covered, false).unwrap_or(covered);
            // The last bit stands for all ranges from there on.
            let end_told = if end == CHANGE_RANGES_MAX { range_count } else { end as u64 };
            let end_told = end_told.min(u64::from(u32::MAX));
            runs.push(Run { first: start as u32, count: (end_told - start as u64) as u32 });
            at = end;
        }
        (runs, false)
    }

    /// The next range from `at` on, before `end`, whose bit equals `is_changed`.
    fn next(&self, at: usize, end: usize, is_changed: bool) -> Option<usize> {
        let mut at = at;
        while at < end {
            let word = self.0[at / 64].load(Ordering::Acquire);
            let wanted = (if is_changed { word } else { !word }) >> (at % 64);
            if wanted != 0 {
                let found = at + wanted.trailing_zeros() as usize;
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn span() -> impl Strategy<Value = Span> {
        (0..2000_usize, 1..300_usize).prop_map(|(first, count)| Span { first, end: first + count })
    }

    proptest! {
        /// The slow model is a set of numbers.
        #[test]
        fn bits_are_the_set_of_what_was_set(
            spans in proptest::collection::vec(span(), 0..8),
            asked in span(),
            first in 0..2500_u64,
            runs_max in 1..4_usize,
        ) {
            let (bitmap, mut model) = (Bitmap::new(), BTreeSet::new());
            for span in &spans {
                bitmap.set(*span);
                model.extend(span.first..span.end);
            }
            prop_assert_eq!(bitmap.has(asked), (asked.first..asked.end).all(|range| model.contains(&range)));
            let (runs, has_more) = bitmap.runs(first, 2400, runs_max);
            let told: Vec<usize> =
                runs.iter().flat_map(|run| run.first as usize..(run.first + run.count) as usize).collect();
            let all: Vec<usize> = model.iter().copied().filter(|&range| range as u64 >= first).collect();
            prop_assert!(all.starts_with(&told));
            prop_assert_eq!(has_more, told.len() < all.len());
        }
    }

    #[test]
    fn groups_are_aligned_and_the_last_bit_is_all_the_rest() {
        assert_eq!(Span { first: 5, end: 6 }.in_groups(3), Span { first: 0, end: 8 });
        assert_eq!(Span { first: 7, end: 9 }.in_groups(3), Span { first: 0, end: 16 });
        let last = Span { first: CHANGE_RANGES_MAX - 1, end: CHANGE_RANGES_MAX };
        assert_eq!(last.in_groups(0), last);
        let bitmap = Bitmap::new();
        bitmap.set(last);
        let (runs, has_more) = bitmap.runs(0, CHANGE_RANGES_MAX as u64 + 10, 8);
        assert_eq!((runs, has_more), (vec![Run { first: CHANGE_RANGES_MAX as u32 - 1, count: 11 }], false));
        assert_eq!(last.parts(), MARK_PARTS - 1..MARK_PARTS);
    }
}
