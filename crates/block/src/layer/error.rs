//! A layer that fails chosen requests: the n-th, those of a range, or some by chance, with a chosen
//! kind of error.
//!
//! Rules are tried in the order of their addition, and the first that strikes decides. They can be
//! changed at any time. A failed request is not passed down, unless its rule carries it out and
//! only loses the answer.

use std::sync::{Mutex, PoisonError};

use base::random::Random;
use base::range::ByteRange;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::limits::ERROR_RULES_MAX;
use crate::request::{OperationKind, Request, Response};

/// Which requests fail, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorRule {
    /// Kinds of operation it applies to; empty for all.
    pub operations: Vec<OperationKind>,
    /// Bytes that a request must touch for the rule to apply; `None` for all requests, flushes
    /// included.
    pub range: Option<ByteRange>,
    /// Which of these requests fail.
    pub trigger: Trigger,
    /// The kind of error.
    pub kind: ErrorKind,
    /// Whether the request is carried out below before it fails: an answer that was lost.
    pub is_carried_out: bool,
}

/// Which of the requests that a rule applies to fail. Counts start at 0 when the rule is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// Every one.
    Always,
    /// Only this one.
    Nth(u64),
    /// This one and all later ones.
    From(u64),
    /// Each with this probability, by the layer's seed.
    Probability(f64),
}

impl ErrorRule {
    /// A rule for all operations on all bytes.
    pub fn new(trigger: Trigger, kind: ErrorKind) -> Self {
        Self { operations: Vec::new(), range: None, trigger, kind, is_carried_out: false }
    }

    /// Restricts it to `operations`.
    #[must_use]
    pub fn on(mut self, operations: &[OperationKind]) -> Self {
        self.operations = operations.to_vec();
        self
    }

    /// Restricts it to requests that touch `range`.
    #[must_use]
    pub fn within(mut self, range: ByteRange) -> Self {
        self.range = Some(range);
        self
    }

    /// Carries the request out, and answers with the error.
    #[must_use]
    pub fn after_carrying_out(mut self) -> Self {
        self.is_carried_out = true;
        self
    }

    fn is_about(&self, request: &Request) -> bool {
        let is_kind = self.operations.is_empty() || self.operations.contains(&request.operation.kind());
        is_kind
            && match (self.range, request.range()) {
                (None, _) => true,
                (Some(bytes), Some(touched)) => bytes.overlaps(&touched),
                (Some(_), None) => false,
            }
    }
}

/// A device that fails on demand.
pub struct ErrorLayer {
    inner: SharedDevice,
    workers: Workers,
    /// Short sections, never across an await.
    state: Mutex<State>,
}

struct State {
    /// Each with the count of requests it applied to.
    rules: Vec<(ErrorRule, u64)>,
    random: Random,
    failed_count: u64,
}

/// The decision of a rule about one request.
struct Strike {
    error: Error,
    is_carried_out: bool,
}

impl ErrorLayer {
    /// A layer without rules, which fails nothing; `seed` draws for [`Trigger::Probability`].
    pub fn new(inner: SharedDevice, workers: &Workers, seed: u64) -> Self {
        let state = State { rules: Vec::new(), random: Random::new(seed), failed_count: 0 };
        Self { inner, workers: workers.clone(), state: Mutex::new(state) }
    }

    /// Adds a rule behind the others.
    ///
    /// # Panics
    /// With more than [`ERROR_RULES_MAX`] rules.
    pub fn add(&self, rule: ErrorRule) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(state.rules.len() < ERROR_RULES_MAX, "an error layer holds {ERROR_RULES_MAX} rules");
        state.rules.push((rule, 0));
    }

    /// Removes all rules: from now on nothing fails here.
    pub fn clear(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).rules.clear();
    }

    /// Count of requests failed so far.
    pub fn failed_count(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).failed_count
    }

    fn judge(&self, request: &Request) -> Option<Strike> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { rules, random, failed_count } = &mut *state;
        for (rule, seen) in rules.iter_mut().filter(|(rule, _)| rule.is_about(request)) {
            let ordinal = *seen;
            *seen += 1;
            let strikes = match rule.trigger {
                Trigger::Always => true,
                Trigger::Nth(nth) => ordinal == nth,
                Trigger::From(first) => ordinal >= first,
                Trigger::Probability(probability) => random.chance(probability),
            };
            if strikes {
                *failed_count += 1;
                let context = format!("{} failed on demand: {}", request.operation.kind().as_str(), rule.kind.as_str());
                return Some(Strike { error: Error::new(rule.kind, context), is_carried_out: rule.is_carried_out });
            }
        }
        None
    }
}

impl Device for ErrorLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        match self.judge(&request) {
            None => self.inner.submit(request),
            Some(Strike { error, is_carried_out: false }) => Completion::ready(request.fail(error)),
            Some(Strike { error, is_carried_out: true }) => {
                let completion = self.inner.submit(request);
                Completion::task(&self.workers, async move { Response::failed(error, completion.await.buffer) })
            }
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceExt;
    use crate::memory::MemoryDevice;
    use base::buffer::Buffer;
    use base::executor::block_on;
    use std::sync::Arc;

    fn layer() -> ErrorLayer {
        ErrorLayer::new(Arc::new(MemoryDevice::new(1 << 20, Identity::default())), &Workers::new(), 7)
    }

    fn read(device: &ErrorLayer, offset: u64) -> Result<(), ErrorKind> {
        block_on(device.read(offset, Buffer::zeroed(512))).map(drop).map_err(|error| error.kind())
    }

    #[test]
    fn the_nth_fails_once_and_from_the_nth_all_do() {
        let device = layer();
        device.add(ErrorRule::new(Trigger::Nth(1), ErrorKind::Media).on(&[OperationKind::Read]));
        block_on(device.flush()).expect("the rule is about reads");
        assert_eq!([0; 3].map(|offset| read(&device, offset)), [Ok(()), Err(ErrorKind::Media), Ok(())]);
        device.clear();
        device.add(ErrorRule::new(Trigger::From(1), ErrorKind::TimedOut));
        let timed_out = Err(ErrorKind::TimedOut);
        assert_eq!([0; 3].map(|offset| read(&device, offset)), [Ok(()), timed_out, timed_out]);
        device.clear();
        assert_eq!(read(&device, 0), Ok(()));
        assert_eq!(device.failed_count(), 3);
    }

    #[test]
    fn a_range_fails_where_it_is_touched() {
        let device = layer();
        let bad = ByteRange { offset: 4096, length: 512 };
        device.add(ErrorRule::new(Trigger::Always, ErrorKind::Media).within(bad));
        assert_eq!(read(&device, 4096), Err(ErrorKind::Media));
        assert_eq!(read(&device, 3584), Ok(()));
        assert_eq!(read(&device, 4608), Ok(()));
        block_on(device.flush()).expect("a flush touches no bytes");
    }

    #[test]
    fn chance_repeats_by_seed() {
        let failures = || {
            let device = layer();
            device.add(ErrorRule::new(Trigger::Probability(0.25), ErrorKind::Busy));
            (0..400).map(|_| read(&device, 0).is_err()).collect::<Vec<_>>()
        };
        assert_eq!(failures(), failures());
        let count = failures().iter().filter(|&&is_failed| is_failed).count();
        assert!((60..140).contains(&count), "{count} of 400 at one in four");
    }

    #[test]
    fn a_lost_answer_was_carried_out() {
        let device = layer();
        let rule = ErrorRule::new(Trigger::Nth(0), ErrorKind::OutcomeUnknown).after_carrying_out();
        device.add(rule.on(&[OperationKind::Write]));
        let error = block_on(device.write(0, Buffer::copy_of(&[7; 512]), false)).expect_err("its answer is lost");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(block_on(device.read(0, Buffer::zeroed(512))).expect("RAM does not fail")[..], [7; 512]);
    }
}
