//! The rounds in which a unit that has reported something is asked what it is now.
//!
//! A round settles it unless the unit reports something again meanwhile; then the next one follows. One may follow at
//! once, as reports may come one after the other; for the others there are waits. A session whose rounds settle nothing
//! fails: so requests have their time at a target that reports changes without end.

use std::time::Duration;

use crate::back_off::BackOff;
use crate::limits::{BUSY_WAIT_MAX, BUSY_WAIT_MIN, ROUNDS_MAX};

/// The rounds of a session that have settled nothing, one after the other.
pub(crate) struct Rounds {
    back_off: BackOff,
    count: u32,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        Self { back_off: BackOff::new(BUSY_WAIT_MIN, BUSY_WAIT_MAX), count: 0 }
    }

    /// Notes a round that settled everything.
    pub(crate) fn note_settled(&mut self) {
        *self = Self::new();
    }

    /// Notes one that did not. Returns the wait before the next; `None` when there have been so many that the session
    /// fails.
    pub(crate) fn note_unsettled(&mut self) -> Option<Duration> {
        self.count += 1;
        (self.count < ROUNDS_MAX).then(|| self.back_off.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_settle_nothing_wait_longer_and_longer_and_are_so_many() {
        let mut rounds = Rounds::new();
        let mut wait = || rounds.note_unsettled();
        assert_eq!([wait(), wait(), wait()], [Some(Duration::ZERO), Some(BUSY_WAIT_MIN), Some(2 * BUSY_WAIT_MIN)]);
        let waits: Vec<Duration> = std::iter::from_fn(wait).collect();
        assert_eq!((waits.len() as u32, waits.last()), (ROUNDS_MAX - 4, Some(&BUSY_WAIT_MAX)));
        rounds.note_settled();
        assert_eq!(rounds.note_unsettled(), Some(Duration::ZERO));
    }
}
