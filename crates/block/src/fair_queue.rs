//! A fair queue: which of the waiting requests is served next, so that submitters get equal shares,
//! in bytes.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996). The requests of one submitter keep
//! their order. Each entry has a start tag: the end of the entry before it of the same submitter,
//! or the tag of the entry served last, whichever is later. The entry with the least tag is served
//! next. So a submitter of few requests is served at once, before those that others have queued,
//! and a submitter of many gets the rest, but no less than its share.

use std::collections::{BTreeMap, VecDeque};

use crate::submitter::Submitter;

/// The waiting entries of one submitter.
struct Line<T> {
    /// Start tag of the first entry, or of the next one to come.
    start: u64,
    /// Costs and entries.
    waiting: VecDeque<(u64, T)>,
}

/// The waiting entries by submitter; the one with the least start tag is served next.
pub struct FairQueue<T> {
    lines: BTreeMap<Submitter, Line<T>>,
    /// Start tag of the entry served last.
    tag: u64,
    count: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { lines: BTreeMap::new(), tag: 0, count: 0 }
    }

    /// Count of waiting entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an entry that costs `cost` bytes behind all others of `submitter`.
    pub fn push(&mut self, submitter: Submitter, cost: u64, entry: T) {
        let start = self.tag;
        let line = self.lines.entry(submitter).or_insert_with(|| Line { start, waiting: VecDeque::new() });
        line.start = if line.waiting.is_empty() { line.start.max(start) } else { line.start };
        line.waiting.push_back((cost, entry));
        self.count += 1;
    }

    /// The entry that is served next.
    pub fn peek(&self) -> Option<&T> {
        let line = self.lines.get(&self.next()?)?;
        line.waiting.front().map(|(_, entry)| entry)
    }

    /// Takes the entry that is served next.
    pub fn pop(&mut self) -> Option<T> {
        let submitter = self.next()?;
        let line = self.lines.get_mut(&submitter)?;
        let (cost, entry) = line.waiting.pop_front()?;
        self.tag = line.start;
        line.start += cost;
        self.count -= 1;
        let tag = self.tag;
        if self.count == 0 {
            // The queue is empty: tags begin anew.
            *self = Self::new();
        } else {
            self.lines.retain(|_, line| !line.waiting.is_empty() || line.start > tag);
        }
        Some(entry)
    }

    fn next(&self) -> Option<Submitter> {
        let waiting = self.lines.iter().filter(|(_, line)| !line.waiting.is_empty());
        waiting.min_by_key(|(submitter, line)| (line.start, **submitter)).map(|(submitter, _)| *submitter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn submitters(count: usize) -> Vec<Submitter> {
        (0..count).map(|_| Submitter::new()).collect()
    }

    #[test]
    fn one_who_sends_little_goes_before_what_another_has_heaped_up() {
        let (mut queue, ids) = (FairQueue::new(), submitters(2));
        (0..100).for_each(|number| queue.push(ids[0], 4096, number));
        (0..10).for_each(|_| assert!(queue.pop().is_some()));
        queue.push(ids[1], 4096, 1000);
        let next: Vec<i32> = (0..2).filter_map(|_| queue.pop()).collect();
        assert!(next.contains(&1000), "{next:?}");
        assert!(next.contains(&10), "and it is the other one's turn again: {next:?}");
    }

    /// A submitter with one entry at a time, added again as soon as it was served, gets no more
    /// than its share of bytes.
    #[test]
    fn one_who_comes_back_at_once_gets_no_more_than_his_share() {
        let (mut queue, ids) = (FairQueue::new(), submitters(2));
        (0..1000).for_each(|_| queue.push(ids[0], 4096, 0));
        queue.push(ids[1], 8192, 1);
        let mut bytes = [0u64, 0];
        for _ in 0..300 {
            let who = queue.pop().expect("there are more");
            bytes[who] += [4096, 8192][who];
            if who == 1 {
                queue.push(ids[1], 8192, 1);
            }
        }
        assert!(bytes[0].abs_diff(bytes[1]) <= 8192, "{bytes:?}");
    }

    proptest! {
        /// Of submitters that always have entries waiting none gets ahead by more than two of the
        /// largest entries; and the entries of each stay in order.
        #[test]
        fn shares_are_equal_and_orders_kept(
            costs in proptest::collection::vec(1..9000u64, 2..6),
            turns in 1..400usize,
        ) {
            let (mut queue, ids) = (FairQueue::new(), submitters(costs.len()));
            let (mut given, mut next) = (vec![0u64; costs.len()], vec![0u64; costs.len()]);
            for (who, &cost) in costs.iter().enumerate() {
                (0..turns as u64 + 1).for_each(|number| queue.push(ids[who], cost, (who, number)));
            }
            for _ in 0..turns {
                let peeked = queue.peek().copied();
                let (who, number) = queue.pop().expect("all have more");
                prop_assert_eq!(peeked, Some((who, number)));
                prop_assert_eq!(number, next[who]);
                next[who] += 1;
                given[who] += costs[who];
            }
            let (least, most) = (given.iter().min().unwrap(), given.iter().max().unwrap());
            prop_assert!(most - least <= 2 * costs.iter().max().unwrap(), "{:?} of {:?}", given, costs);
        }
    }
}
