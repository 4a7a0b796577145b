//! A set of small numbers, such as table pages that no longer agree with what is in memory.

use std::marker::PhantomData;

use crate::numbers::Member;

/// One bit for each number below a bound. A set of none is always empty.
#[derive(Clone)]
pub(crate) struct PageSet<N> {
    words: Vec<u64>,
    count: u64,
    members: PhantomData<N>,
}

impl<N: Member> PageSet<N> {
    /// An empty set of numbers below `bound`.
    pub(crate) fn new(bound: u64) -> Self {
        Self { words: vec![0; bound.div_ceil(64) as usize], count: 0, members: PhantomData }
    }

    pub(crate) fn insert(&mut self, number: N) {
        self.count += u64::from(!self.contains(number));
        self.words[number.bit() as usize / 64] |= 1 << (number.bit() % 64);
    }

    pub(crate) fn contains(&self, number: N) -> bool {
        let number = number.bit();
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its numbers, ascending.
    pub(crate) fn list(&self) -> Vec<N> {
        let mut numbers = Vec::with_capacity(self.count as usize);
        if self.count > 0 {
            for index in 0..self.words.len() {
                self.list_word(index, &mut numbers);
            }
        }
        numbers
    }

    /// Takes all numbers out, ascending.
    pub(crate) fn take(&mut self) -> Vec<N> {
        let numbers = self.list();
        if !numbers.is_empty() {
            self.words.fill(0);
            self.count = 0;
        }
        numbers
    }

    /// Takes about `count_max` of its numbers out, ascending from `from` on, around.
    pub(crate) fn take_from(&mut self, from: N, count_max: usize) -> Vec<N> {
        let mut numbers = Vec::new();
        let first = from.bit() as usize / 64;
        for index in (first..self.words.len()).chain(0..first.min(self.words.len())) {
            if numbers.len() >= count_max || self.count == 0 {
                break;
            }
            self.list_word(index, &mut numbers);
            self.count -= u64::from(std::mem::take(&mut self.words[index]).count_ones());
        }
        numbers
    }

    fn list_word(&self, index: usize, numbers: &mut Vec<N>) {
        let mut bits = self.words[index];
        while bits != 0 {
            numbers.push(N::of_bit(index as u64 * 64 + u64::from(bits.trailing_zeros())));
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::PageNumber;

    #[test]
    fn numbers_are_taken_around_and_all_of_them() {
        let mut set = PageSet::new(1000);
        let all = [3, 64, 65, 400, 999].map(PageNumber);
        all.into_iter().for_each(|number| set.insert(number));
        set.insert(PageNumber(64));
        assert!([65, 66, 5000].map(|number| set.contains(PageNumber(number))) == [true, false, false]);
        assert_eq!(set.list(), all);
        let mut taken = set.take_from(PageNumber(400), 2);
        assert_eq!(taken, [400, 999].map(PageNumber));
        taken.extend(set.take_from(PageNumber(1000), 100));
        assert_eq!(taken, [400, 999, 3, 64, 65].map(PageNumber));
        assert!(set.is_empty() && set.take().is_empty());
    }
}
