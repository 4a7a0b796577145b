//! The replay: retained writes that are written again after a unit lost its cache. Which are still
//! to be sent, and when.
//!
//! A few are under way at a time, in the order in which they were made. A replay that is
//! interrupted because the unit loses its cache once more starts again from the beginning, after
//! longer and longer waits. It is given up when it has not ended within the replacement timeout.

use std::collections::VecDeque;
use std::time::Duration;

use base::clock::Instant;
use block::ByteRange;

use crate::limits::{BUSY_WAIT_MAX, BUSY_WAIT_MIN, REPLAY_DEPTH};
use crate::retained::Content;

/// When a replay that was interrupted may begin again.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// When the first attempt began.
    since: Instant,
    from: Instant,
    /// The wait before it begins the next time.
    wait: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Replay {
    waiting: VecDeque<(ByteRange, Content)>,
    under_way: usize,
    /// `None` while there is no replay.
    pace: Option<Pace>,
}

impl Replay {
    /// Starts the replay of all of `retained`, or starts it again if it was interrupted. Returns
    /// `false`, and writes nothing, when the attempts have gone on for `time_max`.
    pub(crate) fn start(&mut self, retained: Vec<(ByteRange, Content)>, now: Instant, time_max: Duration) -> bool {
        self.waiting = retained.into();
        let Some(pace) = self.pace.as_mut().filter(|_| !self.waiting.is_empty()) else {
            self.pace = None;
            if !self.waiting.is_empty() {
                tracing::info!(count = self.waiting.len(), "writing again what was not durable");
                self.pace = Some(Pace { since: now, from: now, wait: BUSY_WAIT_MIN });
            }
            return true;
        };
        if now.since(pace.since) < time_max {
            pace.from = now + pace.wait;
            pace.wait = (pace.wait * 2).min(BUSY_WAIT_MAX);
            return true;
        }
        self.waiting.clear();
        self.pace = None;
        false
    }

    /// The next write that may be sent now; it then counts as under way.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(ByteRange, Content)> {
        if self.under_way >= REPLAY_DEPTH || self.pace.is_some_and(|pace| pace.from > now) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// Notes that a replayed write has ended.
    pub(crate) fn end_one(&mut self) {
        self.give_up_one();
        if !self.is_under_way() {
            self.pace = None;
        }
    }

    /// Forgets one write under way: the replay is about to start again.
    pub(crate) fn give_up_one(&mut self) {
        self.under_way -= 1;
    }

    /// Whether a write is still to be sent again, or under way.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.waiting.is_empty() || self.under_way > 0
    }

    /// When the next write may be sent, where that is later than `now`.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.pace.map(|pace| pace.from).filter(|from| *from > now)
    }

    /// Ends the replay: the session is lost, and the next session starts another with all that is
    /// retained.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME_MAX: Duration = Duration::from_secs(30);

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanoseconds(1_000_000 * (1_000_000 + milliseconds))
    }

    fn retained(count: u64) -> Vec<(ByteRange, Content)> {
        (0..count).map(|at| (ByteRange { offset: at * 512, length: 512 }, Content::Discarded)).collect()
    }

    #[test]
    fn a_few_are_under_way_and_the_next_leaves_when_one_is_over() {
        let mut replay = Replay::default();
        assert!(replay.start(retained(REPLAY_DEPTH as u64 + 1), at(0), TIME_MAX));
        for index in 0..REPLAY_DEPTH as u64 {
            assert_eq!(replay.next(at(0)).expect("it has room").0.offset, index * 512);
        }
        assert!(replay.next(at(0)).is_none(), "too many");
        replay.end_one();
        assert!(replay.next(at(0)).is_some());
        (0..REPLAY_DEPTH).for_each(|_| replay.end_one());
        assert!(!replay.is_under_way());
    }

    #[test]
    fn an_interrupted_one_begins_again_later_and_later_and_is_given_up() {
        let mut replay = Replay::default();
        assert!(replay.start(retained(1), at(0), TIME_MAX));
        let mut pauses = Vec::new();
        for _ in 0..2 {
            assert!(replay.next(replay.next_deadline(at(0)).unwrap_or(at(0))).is_some());
            replay.give_up_one();
            assert!(replay.start(retained(1), at(0), TIME_MAX));
            assert!(replay.next(at(0)).is_none(), "it begins later");
            pauses.extend(replay.next_deadline(at(0)).map(|from| from.since(at(0))));
        }
        assert_eq!(pauses, [BUSY_WAIT_MIN, BUSY_WAIT_MIN * 2]);
        assert!(!replay.start(retained(1), at(30_000), TIME_MAX), "it went on for too long");
        assert!(!replay.is_under_way());
    }

    #[test]
    fn one_that_came_to_its_end_has_all_its_time_again() {
        let mut replay = Replay::default();
        assert!(replay.start(retained(1), at(0), TIME_MAX));
        assert!(replay.next(at(0)).is_some());
        replay.end_one();
        assert!(replay.start(retained(1), at(40_000), TIME_MAX));
        assert!(replay.next(at(40_000)).is_some(), "at once");
    }
}
