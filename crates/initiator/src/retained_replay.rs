//! The replay: retained writes that are written again after a unit lost its cache. Which are still
//! to be sent, and when.
//!
//! A few are under way at a time, in the order in which they were made. A replay that is
//! interrupted because the unit loses its cache once more starts again from the beginning, after
//! longer and longer waits.
//!
//! Losses that follow each other are one *trouble*, also where a replay came to its end between
//! them: what it wrote is lost again. A trouble is over when a flush has ended well, or when no
//! loss was reported for [`WELL_TIME`] after the end of a replay. One that lasts for longer than
//! the replacement timeout ends the replay: what is retained is lost.

use std::collections::VecDeque;
use std::time::Duration;

use base::clock::Instant;
use block::ByteRange;

use crate::limits::{BUSY_WAIT_MAX, BUSY_WAIT_MIN, REPLAY_DEPTH, WELL_TIME};
use crate::retained::Content;

/// When a replay may begin again.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// When the first replay began.
    since: Instant,
    /// When the present one may begin.
    from: Instant,
    /// The wait before it begins the next time.
    wait: Duration,
    /// When the last one ended; `None` while one is under way.
    quiet_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Replay {
    waiting: VecDeque<(ByteRange, Content)>,
    under_way: usize,
    trouble: Option<Trouble>,
}

impl Replay {
    /// Starts the replay of all of `retained` after a loss, or starts it again if it was
    /// interrupted. Returns `false`, and writes nothing, when the trouble has lasted for `time_max`.
    pub(crate) fn start(&mut self, retained: Vec<(ByteRange, Content)>, now: Instant, time_max: Duration) -> bool {
        self.waiting = retained.into();
        let quiet_since = self.trouble.and_then(|trouble| trouble.quiet_since);
        if quiet_since.is_some_and(|quiet| now.since(quiet) >= WELL_TIME) {
            self.trouble = None;
        }
        let is_empty = self.waiting.is_empty();
        let Some(trouble) = &mut self.trouble else {
            if !is_empty {
                tracing::info!(count = self.waiting.len(), "writing again what was not durable");
                self.trouble = Some(Trouble { since: now, from: now, wait: BUSY_WAIT_MIN, quiet_since: None });
            }
            return true;
        };
        let has_time = now.since(trouble.since) < time_max;
        trouble.quiet_since = (is_empty || !has_time).then_some(now);
        if has_time {
            trouble.from = now + trouble.wait;
            trouble.wait = (trouble.wait * 2).min(BUSY_WAIT_MAX);
        } else {
            self.waiting.clear();
        }
        has_time || is_empty
    }

    /// The next write that may be sent now; it then counts as under way.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(ByteRange, Content)> {
        if self.under_way >= REPLAY_DEPTH || self.trouble.is_some_and(|trouble| trouble.from > now) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// Notes that a replayed write has ended.
    pub(crate) fn end_one(&mut self, now: Instant) {
        self.give_up_one();
        let is_over = !self.is_under_way();
        if let Some(trouble) = self.trouble.as_mut().filter(|_| is_over) {
            trouble.quiet_since = Some(now);
        }
    }

    /// Notes that a flush has ended well: what was written again is lost no more.
    pub(crate) fn end_trouble(&mut self) {
        self.trouble = None;
    }

    /// When the trouble began for which writes are written again now.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.trouble.filter(|_| self.is_under_way()).map(|trouble| trouble.since)
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
        self.trouble.filter(|_| self.is_under_way()).map(|trouble| trouble.from).filter(|from| *from > now)
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
        replay.end_one(at(0));
        assert!(replay.next(at(0)).is_some());
        (0..REPLAY_DEPTH).for_each(|_| replay.end_one(at(0)));
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

    /// What came to its end and is lost again at once is no nearer to being durable.
    #[test]
    fn replays_that_follow_each_other_share_one_time_until_the_unit_is_well() {
        let well = WELL_TIME.as_millis() as u64;
        let run = |replay: &mut Replay, from: u64| {
            assert!(replay.start(retained(1), at(from), TIME_MAX), "at {from}");
            let begins = replay.next_deadline(at(from)).unwrap_or(at(from));
            assert!(replay.next(begins).is_some());
            replay.end_one(at(from + 1));
            begins.since(at(from))
        };
        let mut replay = Replay::default();
        let waits: Vec<Duration> = (0..4).map(|number| run(&mut replay, number * well)).collect();
        assert_eq!(waits, [Duration::ZERO, BUSY_WAIT_MIN, 2 * BUSY_WAIT_MIN, 4 * BUSY_WAIT_MIN]);
        for number in 4..30_000 / well {
            assert!(run(&mut replay, number * well) <= BUSY_WAIT_MAX);
        }
        assert!(!replay.start(retained(1), at(30_000), TIME_MAX), "they went on for too long");
        assert!(!replay.start(retained(1), at(30_000 + well - 1), TIME_MAX), "and go on");
        assert!(replay.start(Vec::new(), at(30_000 + 2 * well - 2), TIME_MAX), "nothing is lost");
        assert!(!replay.start(retained(1), at(30_000 + 3 * well - 3), TIME_MAX));
        assert_eq!(run(&mut replay, 30_000 + 4 * well - 3), Duration::ZERO, "it was well for a while");
        run(&mut replay, 30_000 + 5 * well - 3);
        replay.end_trouble();
        assert_eq!(run(&mut replay, 30_000 + 5 * well), Duration::ZERO, "a flush has made it durable");
    }
}
