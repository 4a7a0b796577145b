//! The batches of a log that are not acknowledged yet: which of them becomes a record when, and who is told what.
//!
//! ```text
//!   gathering ──(full, or its turn came)──► closed ──► writing ──► landed ──(all before it, too)──► acknowledged: leaves
//!                                              │          └──(error)──► refused, and all behind it
//!                                              └──(the log failed)────► refused
//! ```
//! - Records are written in order, at most [`RECORDS_IN_FLIGHT_MAX`] at a time, and acknowledged in order: one that landed waits for those before
//!   it.
//! - A batch becomes a record when nothing is on its way, or when it carries its share of all appends that wait: then the disk works on some
//!   while others gather.
//! - A batch is refused only once its record is not on its way any more, so that nothing lands later than its writers were told.
//!
//! Nothing here writes or wakes anybody: [`RecordLog`](crate::RecordLog) does, with what it is told here.

use std::collections::VecDeque;
use std::task::Waker;

use block::{Completion, Error};

use crate::limits::RECORDS_IN_FLIGHT_MAX;

/// Appends that share a record.
struct Batch {
    payload: Vec<u8>,
    /// Of each append whoever waits for it, as far as somebody does.
    waiters: Vec<Option<Waker>>,
    stage: Stage,
}

enum Stage {
    Gathering,
    /// Place of its record.
    Closed(u64),
    Writing(Writing),
    Landed,
    Refused,
}

struct Writing {
    /// Not there while somebody looks at it.
    completion: Option<Completion>,
    /// Whether it is to be looked at (again).
    is_awake: bool,
}

/// See the module.
pub(crate) struct Batches {
    /// Oldest first. Only the last one gathers.
    queue: VecDeque<Batch>,
    /// Sequence of the first in the queue, or of the next one to be made: all records before it are durable.
    first: u64,
    /// Sequence of the next one to become a record.
    next: u64,
    /// Appends in the queue.
    append_count: usize,
    /// What is refused, whether it landed or not: everything from this sequence on. And why.
    failure: Option<(u64, Error)>,
}

/// A batch that becomes a record now.
pub(crate) struct Starting {
    pub(crate) sequence: u64,
    pub(crate) place: u64,
    pub(crate) payload: Vec<u8>,
    /// Records before it that may not have landed.
    pub(crate) in_flight: u64,
}

impl Batches {
    /// None yet; the first is to have this sequence.
    pub(crate) fn new(first: u64) -> Self {
        Self { queue: VecDeque::new(), first, next: first, append_count: 0, failure: None }
    }

    /// All records before this sequence are durable.
    pub(crate) fn durable_end(&self) -> u64 {
        self.first
    }

    /// Payload bytes of the batch that gathers, if one does.
    pub(crate) fn gathered_bytes(&self) -> Option<usize> {
        self.queue.back().filter(|batch| matches!(batch.stage, Stage::Gathering)).map(|batch| batch.payload.len())
    }

    /// Adds to the batch that gathers, or to a new one. Its sequence, and the number of the append in it.
    pub(crate) fn add(&mut self, payload: &[u8]) -> (u64, usize) {
        if self.gathered_bytes().is_none() {
            self.queue.push_back(Batch { payload: Vec::new(), waiters: Vec::new(), stage: Stage::Gathering });
        }
        let sequence = self.first + self.queue.len() as u64 - 1;
        let batch = self.queue.back_mut().expect("there is one that gathers");
        batch.payload.extend_from_slice(payload);
        batch.waiters.push(None);
        self.append_count += 1;
        (sequence, batch.waiters.len() - 1)
    }

    /// Nobody adds any more to the batch that gathers; its record is to stand at `place`.
    pub(crate) fn close(&mut self, place: u64) {
        if let Some(batch) = self.queue.back_mut().filter(|batch| matches!(batch.stage, Stage::Gathering)) {
            batch.stage = Stage::Closed(place);
        }
    }

    /// Whether the next batch may become a record now.
    pub(crate) fn may_start(&self) -> bool {
        let in_flight = self.next - self.first;
        let Some(batch) = self.queue.get(in_flight as usize) else { return false };
        let is_alone = in_flight == 0;
        let is_worth_it = !matches!(batch.stage, Stage::Gathering)
            || batch.waiters.len() * RECORDS_IN_FLIGHT_MAX >= self.append_count;
        self.failure.is_none() && in_flight < RECORDS_IN_FLIGHT_MAX as u64 && (is_alone || is_worth_it)
    }

    /// Whether the next batch to become a record still gathers.
    pub(crate) fn is_next_gathering(&self) -> bool {
        let next = self.queue.get((self.next - self.first) as usize);
        next.is_some_and(|batch| matches!(batch.stage, Stage::Gathering))
    }

    /// Takes the next batch, which [may start](Self::may_start) and is closed. Its record is on its way from now on.
    pub(crate) fn start(&mut self) -> Starting {
        let (sequence, in_flight) = (self.next, self.next - self.first);
        let batch = self.queue.get_mut(in_flight as usize).expect("it may start, so it is there");
        let Stage::Closed(place) = batch.stage else { panic!("a batch is closed before it becomes a record") };
        batch.stage = Stage::Writing(Writing { completion: None, is_awake: false });
        self.next += 1;
        Starting { sequence, place, payload: std::mem::take(&mut batch.payload), in_flight }
    }

    /// The write of this record can go on, or is over.
    pub(crate) fn awaken(&mut self, sequence: u64) {
        if let Some(writing) = self.writing(sequence) {
            writing.is_awake = true;
        }
    }

    /// Whether a write is to be looked at and nobody does.
    pub(crate) fn is_any_awake(&self) -> bool {
        let in_flight = self.queue.iter().take((self.next - self.first) as usize);
        in_flight
            .into_iter()
            .any(|batch| matches!(&batch.stage, Stage::Writing(Writing { completion: Some(_), is_awake: true })))
    }

    /// A write to be looked at, and its sequence. It comes back by [`Batches::put_back`] or ends in [`Batches::finish`].
    pub(crate) fn take_awake(&mut self) -> Option<(u64, Completion)> {
        let (first, in_flight) = (self.first, (self.next - self.first) as usize);
        self.queue.iter_mut().take(in_flight).enumerate().find_map(|(index, batch)| match &mut batch.stage {
            Stage::Writing(writing) if writing.is_awake && writing.completion.is_some() => {
                writing.is_awake = false;
                writing.completion.take().map(|completion| (first + index as u64, completion))
            }
            _ => None,
        })
    }

    /// A write goes on.
    pub(crate) fn put_back(&mut self, sequence: u64, completion: Completion) {
        if let Some(writing) = self.writing(sequence) {
            writing.completion = Some(completion);
        }
    }

    /// A write is over.
    pub(crate) fn finish(&mut self, sequence: u64, result: Result<(), Error>) {
        let batch = self.batch(sequence).expect("a batch leaves when it has landed");
        match result {
            Ok(()) => batch.stage = Stage::Landed,
            Err(error) => {
                batch.stage = Stage::Refused;
                self.fail_from(sequence, error);
            }
        }
    }

    /// Refuses what is not on its way yet.
    pub(crate) fn fail(&mut self, error: Error) {
        self.fail_from(self.next, error);
    }

    fn fail_from(&mut self, sequence: u64, error: Error) {
        match &mut self.failure {
            Some((from, _)) => *from = (*from).min(sequence),
            None => self.failure = Some((sequence, error)),
        }
    }

    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().map(|(_, error)| error)
    }

    /// Lets go what is acknowledged or refused by now: whoever is to be told.
    pub(crate) fn settle(&mut self, told: &mut Vec<Waker>) {
        while self.queue.front().is_some_and(|batch| matches!(batch.stage, Stage::Landed)) {
            let batch = self.queue.pop_front().expect("it was there a line ago");
            self.append_count -= batch.waiters.len();
            self.first += 1;
            told.extend(batch.waiters.into_iter().flatten());
        }
        let Some((from, _)) = &self.failure else { return };
        let refused = self.queue.iter_mut().skip(from.saturating_sub(self.first) as usize);
        for batch in refused.filter(|batch| !matches!(batch.stage, Stage::Writing(_))) {
            batch.stage = Stage::Refused;
            told.extend(batch.waiters.iter_mut().filter_map(Option::take));
        }
    }

    /// What became of an append; `None` as long as that is open.
    pub(crate) fn outcome(&self, sequence: u64) -> Option<Result<(), Error>> {
        let Some(index) = sequence.checked_sub(self.first) else { return Some(Ok(())) };
        match (self.queue.get(index as usize).map(|batch| &batch.stage), &self.failure) {
            (Some(Stage::Refused), Some((_, error))) => Some(Err(error.clone())),
            _ => None,
        }
    }

    /// `waker` waits for an append.
    pub(crate) fn wait(&mut self, sequence: u64, append: usize, waker: &Waker) {
        let batch = self.batch(sequence);
        let Some(waiter) = batch.and_then(|batch| batch.waiters.get_mut(append)) else { return };
        match waiter {
            Some(waiting) => waiting.clone_from(waker),
            None => *waiter = Some(waker.clone()),
        }
    }

    /// Nobody waits for an append any more.
    pub(crate) fn forget(&mut self, sequence: u64, append: usize) {
        if let Some(waiter) = self.batch(sequence).and_then(|batch| batch.waiters.get_mut(append)) {
            *waiter = None;
        }
    }

    /// Somebody who waits: for the record `sequence` if anybody does.
    pub(crate) fn somebody(&self, sequence: u64) -> Option<Waker> {
        let own = sequence.checked_sub(self.first).and_then(|index| self.queue.get(index as usize));
        let mut waiters = own.into_iter().chain(&self.queue).flat_map(|batch| batch.waiters.iter().flatten());
        waiters.next().cloned()
    }

    fn batch(&mut self, sequence: u64) -> Option<&mut Batch> {
        let index = sequence.checked_sub(self.first)?;
        self.queue.get_mut(index as usize)
    }

    fn writing(&mut self, sequence: u64) -> Option<&mut Writing> {
        match &mut self.batch(sequence)?.stage {
            Stage::Writing(writing) => Some(writing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    #[test]
    fn a_record_on_its_way_behind_one_that_failed_is_refused_only_when_it_has_ended() {
        let mut batches = Batches::new(1);
        for place in [0, 512] {
            batches.add(&[1; 8]);
            batches.close(place);
            batches.start();
        }
        let mut told = Vec::new();
        batches.finish(1, Err(Error::new(ErrorKind::Media, "it failed")));
        batches.settle(&mut told);
        assert!(matches!(batches.outcome(1), Some(Err(_))));
        assert!(batches.outcome(2).is_none(), "it may land yet, and then over what came after the refusal");
        batches.finish(2, Ok(()));
        batches.settle(&mut told);
        assert!(matches!(batches.outcome(2), Some(Err(_))), "nothing behind a hole counts");
    }
}
