//! The queue of appends that wait for a record of a log, and of the records under way: which record
//! may start, and how each ends. No I/O: the log reports here what started, landed and failed, and
//! takes out what is settled or refused.
//!
//! ```text
//!   waiting ──(the rule allows it)──► on its way ──► landed ──(all before it, too)──► settled: all it stands for is acknowledged
//!      │                                  └──(error)──► ended ──► refused, and all behind it
//!      └──(the log failed)──► refused
//! ```
//! - Records start in their order, and count in that order: one that landed waits for those before it.
//! - [`Gathering`] decides when the next record may start.
//! - After a failure no record starts. What is in a record under way is refused only when the write
//!   of that record has ended, so that nothing lands after its writer got the error.

use std::collections::VecDeque;

use block::Error;

use crate::gathering::Gathering;
use crate::sequence::Sequence;

/// An append, or a batch of them, that waits for a record.
pub trait Weighed {
    /// What counts for [`Worth`](crate::Worth): bytes, or appends.
    fn weight(&self) -> u64;

    /// Whether it fills a record, so that no later append is added to it.
    fn is_full(&self) -> bool;
}

/// The appends that wait for a record, and the records under way. `W` is what waits. `R` is what is
/// kept of a record until it is settled or refused.
pub struct Appends<W, R> {
    rule: Gathering,
    /// Oldest first.
    waiting: VecDeque<W>,
    waiting_weight: u64,
    /// Records that are not settled, oldest first.
    records: VecDeque<OnItsWay<R>>,
    records_weight: u64,
    /// Sequence of the oldest record in `records`, or of the next one to start: all before it are
    /// durable.
    first: Sequence,
    /// The first refused sequence, and the error: it and all behind it are refused, whether they
    /// landed or not.
    failure: Option<(Sequence, Error)>,
}

struct OnItsWay<R> {
    /// `None` once it was handed out as refused.
    record: Option<R>,
    weight: u64,
    has_ended: bool,
}

impl<W: Weighed, R> Appends<W, R> {
    /// An empty queue; the first record gets the sequence `first`.
    pub fn new(rule: Gathering, first: Sequence) -> Self {
        Self {
            rule,
            waiting: VecDeque::new(),
            waiting_weight: 0,
            records: VecDeque::new(),
            records_weight: 0,
            first,
            failure: None,
        }
    }

    /// What waits, oldest first.
    pub fn waiting(&self) -> impl DoubleEndedIterator<Item = &W> + ExactSizeIterator {
        self.waiting.iter()
    }

    /// Total weight of all that waits.
    pub fn waiting_weight(&self) -> u64 {
        self.waiting_weight
    }

    /// Adds to the end of the queue.
    pub fn push(&mut self, waiting: W) {
        self.waiting_weight += waiting.weight();
        self.waiting.push_back(waiting);
    }

    /// Changes the entry at `index` of the queue, counted from the oldest; `None` where there is
    /// none.
    pub fn change<T>(&mut self, index: usize, change: impl FnOnce(&mut W) -> T) -> Option<T> {
        let waiting = self.waiting.get_mut(index)?;
        let before = waiting.weight();
        let changed = change(waiting);
        self.waiting_weight = self.waiting_weight - before + waiting.weight();
        Some(changed)
    }

    /// Takes the oldest entry of the queue.
    pub fn pop(&mut self) -> Option<W> {
        let front = self.waiting.pop_front()?;
        self.waiting_weight -= front.weight();
        Some(front)
    }

    /// Puts the rest of an entry that was taken back to the head of the queue.
    pub fn put_back(&mut self, rest: W) {
        self.waiting_weight += rest.weight();
        self.waiting.push_front(rest);
    }

    /// Takes the whole queue, since no record will hold it.
    pub fn drain(&mut self) -> VecDeque<W> {
        self.waiting_weight = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Whether the next record may start now.
    pub fn may_start(&self) -> bool {
        let Some(next) = self.waiting.front() else { return false };
        self.failure.is_none()
            && self.rule.allows(self.records.len(), self.records_weight, self.waiting_weight, next.is_full())
    }

    /// Sequence of the next record.
    pub fn next_sequence(&self) -> Sequence {
        self.first + self.records.len() as u64
    }

    /// All records before this sequence are durable.
    pub fn durable_end(&self) -> Sequence {
        self.first
    }

    /// Count of records that are not settled: how many right before the next one may not have landed.
    pub fn in_flight(&self) -> usize {
        self.records.len()
    }

    /// Notes that the record [`next_sequence`](Self::next_sequence) has started; its entries
    /// weighed `weight`.
    pub fn start(&mut self, record: R, weight: u64) {
        self.records_weight += weight;
        self.records.push_back(OnItsWay { record: Some(record), weight, has_ended: false });
    }

    /// Those on their way or landed, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &R> {
        self.records.iter().filter_map(|on_its_way| on_its_way.record.as_ref())
    }

    /// Likewise, with their sequences.
    pub fn records_mut(&mut self) -> impl Iterator<Item = (Sequence, &mut R)> {
        self.first
            .onwards()
            .zip(&mut self.records)
            .filter_map(|(at, on_its_way)| Some((at, on_its_way.record.as_mut()?)))
    }

    /// A record that is on its way or landed.
    pub fn record_mut(&mut self, sequence: Sequence) -> Option<&mut R> {
        self.at(sequence)?.record.as_mut()
    }

    /// The write of a record has ended. After an error all records behind it are refused, too.
    pub fn finish(&mut self, sequence: Sequence, result: Result<(), Error>) {
        self.at(sequence).expect("a record stays until it has ended").has_ended = true;
        if let Err(error) = result {
            self.refuse_from(sequence, error);
        }
    }

    /// The log failed: refuses everything from the record `sequence` on that is not settled, even
    /// if it lands.
    pub fn refuse_from(&mut self, sequence: Sequence, error: Error) {
        match &mut self.failure {
            Some((from, _)) => *from = (*from).min(sequence),
            None => self.failure = Some((sequence, error)),
        }
    }

    /// The error with which the log failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().map(|(_, error)| error)
    }

    /// Takes the oldest record whose outcome is known: durable with all before it, or refused. Call
    /// until `None`.
    pub fn settle(&mut self) -> Option<(R, Result<(), Error>)> {
        let refused_from = self.failure.as_ref().map(|(from, _)| *from);
        if refused_from.is_none_or(|from| self.first < from)
            && self.records.front().is_some_and(|front| front.has_ended)
        {
            let front = self.records.pop_front()?;
            self.first = self.first.next();
            self.records_weight -= front.weight;
            return front.record.map(|record| (record, Ok(())));
        }
        let (refused_from, error) = self.failure.as_ref()?;
        let refused =
            self.first.onwards().zip(&mut self.records).filter(|(at, one)| at >= refused_from && one.has_ended);
        let mut refused = refused.filter_map(|(_, one)| one.record.take());
        refused.next().map(|record| (record, Err(error.clone())))
    }

    /// The outcome of what is in the record `sequence` or waits for it; `None` while it is not
    /// known.
    pub fn outcome(&self, sequence: Sequence) -> Option<Result<(), Error>> {
        let Some(index) = sequence.checked_since(self.first) else { return Some(Ok(())) };
        let (_, error) = self.failure.as_ref().filter(|(from, _)| *from <= sequence)?;
        let is_open = self.records.get(index as usize).is_some_and(|record| !record.has_ended);
        (!is_open).then(|| Err(error.clone()))
    }

    fn at(&mut self, sequence: Sequence) -> Option<&mut OnItsWay<R>> {
        let index = sequence.checked_since(self.first)?;
        self.records.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use block::ErrorKind;
    use proptest::prelude::*;

    use super::*;
    use crate::gathering::Worth;

    const IN_FLIGHT_MAX: usize = 3;
    /// What is kept of a record.
    const RECORD: Sequence = Sequence(7);

    struct Append {
        weight: u64,
        is_full: bool,
    }

    impl Weighed for Append {
        fn weight(&self) -> u64 {
            self.weight
        }

        fn is_full(&self) -> bool {
            self.is_full
        }
    }

    fn appends() -> Appends<Append, Sequence> {
        Appends::new(Gathering { in_flight_max: IN_FLIGHT_MAX, worth: Worth::Share, turns: 1 }, Sequence::FIRST)
    }

    /// Makes a record of all that waits; its sequence.
    fn start(appends: &mut Appends<Append, Sequence>) -> Sequence {
        let (sequence, weight) = (appends.next_sequence(), appends.waiting_weight());
        appends.drain();
        appends.start(sequence, weight);
        sequence
    }

    fn broken() -> Error {
        Error::new(ErrorKind::Media, "it failed")
    }

    #[test]
    fn a_record_on_its_way_behind_one_that_failed_is_refused_only_when_it_has_ended() {
        let mut appends = appends();
        (0..2).for_each(|_| appends.start(RECORD, 1));
        appends.finish(Sequence(1), Err(broken()));
        assert!(matches!(appends.settle(), Some((RECORD, Err(_)))));
        assert!(matches!(appends.outcome(Sequence(1)), Some(Err(_))));
        assert!(appends.settle().is_none(), "it may land yet, and then over what came after the refusal");
        assert!(appends.outcome(Sequence(2)).is_none());
        appends.finish(Sequence(2), Ok(()));
        assert!(matches!(appends.settle(), Some((RECORD, Err(_)))), "nothing behind a hole counts");
        assert!(matches!(appends.outcome(Sequence(2)), Some(Err(_))));
    }

    #[test]
    fn one_that_landed_counts_when_all_before_it_have() {
        let mut appends = appends();
        (0..2).for_each(|_| appends.start(RECORD, 1));
        appends.finish(Sequence(2), Ok(()));
        assert!(appends.settle().is_none() && appends.outcome(Sequence(2)).is_none());
        assert_eq!(appends.durable_end(), Sequence(1));
        appends.finish(Sequence(1), Ok(()));
        assert!(matches!((appends.settle(), appends.settle()), (Some((RECORD, Ok(()))), Some((RECORD, Ok(()))))));
        assert_eq!((appends.durable_end(), appends.in_flight()), (Sequence(3), 0));
    }

    #[test]
    fn what_is_left_of_one_that_was_taken_waits_first_and_weighs_what_it_is() {
        let mut appends = appends();
        [5, 9].into_iter().for_each(|weight| appends.push(Append { weight, is_full: false }));
        let mut first = appends.pop().expect("it waits");
        assert_eq!(appends.waiting_weight(), 9);
        first.weight = 2;
        appends.put_back(first);
        assert_eq!(appends.waiting().map(Append::weight).collect::<Vec<u64>>(), [2, 9]);
        assert_eq!(appends.change(1, |last| last.weight = 1), Some(()));
        assert_eq!(appends.waiting_weight(), 3);
    }

    proptest! {
        /// Beside a table of what became of each record.
        #[test]
        fn records_settle_in_order_up_to_the_first_failure(
            steps in proptest::collection::vec((0..6u8, 0..3usize), 0..80),
        ) {
            let mut appends = appends();
            let (mut under_way, mut landed, mut told) = (Vec::new(), Vec::new(), BTreeMap::new());
            let mut refused_from = Sequence(u64::MAX);
            for (step, which) in steps {
                match step {
                    0 | 1 => appends.push(Append { weight: 1 + which as u64, is_full: step == 0 }),
                    2 | 3 if appends.may_start() => {
                        prop_assert!(refused_from == Sequence(u64::MAX), "nothing starts after a failure");
                        prop_assert!(appends.in_flight() < IN_FLIGHT_MAX);
                        under_way.push(start(&mut appends));
                    }
                    4 | 5 if which < under_way.len() => {
                        let sequence = under_way.remove(which);
                        let fails = step == 5 && which == 1;
                        appends.finish(sequence, if fails { Err(broken()) } else { Ok(()) });
                        if fails { refused_from = refused_from.min(sequence) } else { landed.push(sequence) }
                    }
                    _ => {}
                }
                while let Some((sequence, result)) = appends.settle() {
                    prop_assert!(!under_way.contains(&sequence), "nobody is told of what is on its way");
                    prop_assert_eq!(result.is_ok(), sequence < refused_from);
                    let is_in_order = Sequence::FIRST.up_to(sequence).all(|before| landed.contains(&before));
                    prop_assert!(result.is_err() || is_in_order);
                    prop_assert!(told.insert(sequence, result.is_ok()).is_none(), "told once");
                }
                for sequence in Sequence::FIRST.up_to(appends.next_sequence().before()) {
                    let outcome = appends.outcome(sequence).map(|result| result.is_ok());
                    prop_assert_eq!(outcome, told.get(&sequence).copied());
                }
            }
            if under_way.is_empty() {
                prop_assert_eq!(told.len() as u64, appends.next_sequence().before().0, "all are told in the end");
            }
        }
    }
}
