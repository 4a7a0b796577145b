//! The appends of a record log, grouped by the record that they share; their wakers; and the writes
//! that are to be polled.
//!
//! A batch gathers appends until it becomes a record, or until it is *closed* because the next
//! append does not fit. [`Appends`] decides which batch may start, and how it ends. Nothing here
//! writes or wakes: [`RecordLog`](crate::RecordLog) does, with the wakers it takes from here.

use std::task::Waker;

use block::{Completion, Error};

use crate::appends::{Appends, Weighed};
use crate::gathering::Gathering;
use crate::sequence::Sequence;

/// Appends that share a record.
struct Batch {
    payload: Vec<u8>,
    waiters: Waiters,
    /// Place of its record, once it is closed.
    place: Option<u64>,
}

/// One waker for each append of the batch; `None` where its caller does not wait.
type Waiters = Vec<Option<Waker>>;

impl Weighed for Batch {
    fn weight(&self) -> u64 {
        self.waiters.len() as u64
    }

    fn is_full(&self) -> bool {
        self.place.is_some()
    }
}

/// What is kept of a batch whose record is on its way.
struct Writing {
    waiters: Waiters,
    /// `None` while a poller has taken it out, and once the write has ended.
    completion: Option<Completion>,
    /// Whether the completion is to be polled (again).
    is_ready: bool,
}

impl Writing {
    fn needs_poll(&self) -> bool {
        self.is_ready && self.completion.is_some()
    }
}

/// The batches of one record log: waiting, and on their way.
pub(crate) struct Batches {
    /// Only the last one that waits gathers.
    appends: Appends<Batch, Writing>,
    /// The empty buffer of an earlier payload, kept for the next batch.
    spare: Vec<u8>,
}

/// A batch that becomes a record now.
pub(crate) struct Starting {
    pub(crate) sequence: Sequence,
    pub(crate) place: u64,
    pub(crate) payload: Vec<u8>,
    /// Records before it that may not have landed.
    pub(crate) in_flight: u64,
}

impl Batches {
    /// No batch yet; the first one gets the sequence `first`.
    pub(crate) fn new(rule: Gathering, first: Sequence) -> Self {
        Self { appends: Appends::new(rule, first), spare: Vec::new() }
    }

    /// All records before this sequence are durable.
    pub(crate) fn durable_end(&self) -> Sequence {
        self.appends.durable_end()
    }

    /// Payload bytes of the batch that gathers, if one does.
    pub(crate) fn gathered_bytes(&self) -> Option<usize> {
        self.appends.waiting().next_back().filter(|batch| !batch.is_full()).map(|batch| batch.payload.len())
    }

    /// Adds to the batch that gathers, or to a new one. Returns its sequence, and the number of the
    /// append in it.
    pub(crate) fn add(&mut self, payload: &[u8]) -> (Sequence, usize) {
        if self.gathered_bytes().is_none() {
            self.appends.push(Batch { payload: std::mem::take(&mut self.spare), waiters: Vec::new(), place: None });
        }
        let index = self.appends.waiting().len() - 1;
        let number = self.appends.change(index, |batch| {
            batch.payload.extend_from_slice(payload);
            batch.waiters.push(None);
            batch.waiters.len() - 1
        });
        (self.appends.next_sequence() + index as u64, number.expect("there is one that gathers"))
    }

    /// Closes the batch that gathers to further appends; its record is to stand at `place`.
    pub(crate) fn close(&mut self, place: u64) {
        let index = self.appends.waiting().len().saturating_sub(1);
        self.appends.change(index, |batch| batch.place.get_or_insert(place).to_owned());
    }

    /// Whether the next batch may become a record now.
    pub(crate) fn may_start(&self) -> bool {
        self.appends.may_start()
    }

    /// Whether the next batch to become a record still gathers.
    pub(crate) fn is_next_gathering(&self) -> bool {
        self.appends.waiting().next().is_some_and(|batch| !batch.is_full())
    }

    /// Takes the next batch, which [may start](Self::may_start) and is closed. Its record is on its way from now on.
    pub(crate) fn start(&mut self) -> Starting {
        let (sequence, in_flight) = (self.appends.next_sequence(), self.appends.in_flight() as u64);
        let batch = self.appends.pop().expect("it may start, so it is there");
        let place = batch.place.expect("a batch is closed before it becomes a record");
        let weight = batch.weight();
        self.appends.start(Writing { waiters: batch.waiters, completion: None, is_ready: false }, weight);
        Starting { sequence, place, payload: batch.payload, in_flight }
    }

    /// The write of this record can make progress, or has ended.
    pub(crate) fn mark_ready(&mut self, sequence: Sequence) {
        if let Some(writing) = self.appends.record_mut(sequence) {
            writing.is_ready = true;
        }
    }

    /// Whether a write is to be polled, and no poller has taken it.
    pub(crate) fn is_any_ready(&self) -> bool {
        self.appends.records().any(Writing::needs_poll)
    }

    /// Keeps the buffer of a payload that [became a record](Self::start) for a later batch.
    pub(crate) fn use_again(&mut self, mut payload: Vec<u8>) {
        payload.clear();
        self.spare = payload;
    }

    /// Takes a write that is to be polled, with its sequence. The poller returns it by
    /// [`Batches::put_back`], or reports its end to [`Batches::finish`].
    pub(crate) fn take_ready(&mut self) -> Option<(Sequence, Completion)> {
        let (sequence, writing) = self.appends.records_mut().find(|(_, writing)| writing.needs_poll())?;
        writing.is_ready = false;
        writing.completion.take().map(|completion| (sequence, completion))
    }

    /// Puts back a write that is still under way.
    pub(crate) fn put_back(&mut self, sequence: Sequence, completion: Completion) {
        if let Some(writing) = self.appends.record_mut(sequence) {
            writing.completion = Some(completion);
        }
    }

    /// The write of a record has ended.
    pub(crate) fn finish(&mut self, sequence: Sequence, result: Result<(), Error>) {
        self.appends.finish(sequence, result);
    }

    /// Refuses the batches whose records have not started.
    pub(crate) fn fail(&mut self, error: Error) {
        self.appends.refuse_from(self.appends.next_sequence(), error);
    }

    pub(crate) fn failure(&self) -> Option<&Error> {
        self.appends.failure()
    }

    /// Removes the records that are settled or refused by now, and adds the wakers of their appends
    /// to `told`.
    pub(crate) fn settle(&mut self, told: &mut Vec<Waker>) {
        while let Some((record, _)) = self.appends.settle() {
            told.extend(record.waiters.into_iter().flatten());
        }
        if self.appends.failure().is_some() {
            told.extend(self.appends.drain().into_iter().flat_map(|batch| batch.waiters).flatten());
        }
    }

    /// The outcome of an append; `None` while it is not known.
    pub(crate) fn outcome(&self, sequence: Sequence) -> Option<Result<(), Error>> {
        self.appends.outcome(sequence)
    }

    /// Registers `waker` for an append.
    pub(crate) fn wait(&mut self, sequence: Sequence, append: usize, waker: &Waker) {
        self.change_waiter(sequence, append, |waiter| match waiter {
            Some(waiting) => waiting.clone_from(waker),
            None => *waiter = Some(waker.clone()),
        });
    }

    /// Removes the waker of an append whose caller has stopped waiting.
    pub(crate) fn forget(&mut self, sequence: Sequence, append: usize) {
        self.change_waiter(sequence, append, |waiter| *waiter = None);
    }

    fn change_waiter(&mut self, sequence: Sequence, append: usize, change: impl FnOnce(&mut Option<Waker>)) {
        let change = |waiters: &mut Waiters| waiters.get_mut(append).map(change);
        match sequence.checked_since(self.appends.next_sequence()) {
            None => self.appends.record_mut(sequence).and_then(|writing| change(&mut writing.waiters)),
            Some(index) => self.appends.change(index as usize, |batch| change(&mut batch.waiters)).flatten(),
        };
    }

    /// The waker of one waiting append: of the record `sequence` if it has one, else of any other.
    pub(crate) fn waker_of(&mut self, sequence: Sequence) -> Option<Waker> {
        let own =
            self.appends.record_mut(sequence).and_then(|writing| writing.waiters.iter().flatten().next().cloned());
        let others = self.appends.records().map(|writing| &writing.waiters);
        let mut all = others.chain(self.appends.waiting().map(|batch| &batch.waiters)).flatten().flatten();
        own.or_else(|| all.next().cloned())
    }
}
