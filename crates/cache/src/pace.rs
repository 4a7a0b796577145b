//! How fast lines are cleaned while others use the devices (paper 002: cleaning that throttles itself).
//!
//! Cleaning goes in rounds of a tenth of a second, each with a quota of lines. The paper doubles what is sent in each round, and halves it when the
//! foreground's response time got worse:
//!
//! | the round before | the next one |
//! |---|---|
//! | no request of the foreground ended | twice as much, at once, several long writes at a time |
//! | they took on average up to twice as long as without cleaning | twice as much, when the round's time is over |
//! | they took longer | half as much, when the round's time is over |
//!
//! Beside a foreground one short write is sent at a time, so that a request finds one before it at most. The quota is sent in batches, each with
//! one flush of the origin; what a round does not get sent in its time is not counted on in the next.
//!
//! Never less than the minimum rate, so that cleaning ends under any load, and never more than the byte budget, if there is one; the budget goes
//! before the minimum. What a response takes without cleaning is a moving mean over the requests that ended while nothing was being cleaned.

use std::time::Duration;

use base::clock::Instant;
use serde::Serialize;

use crate::limits::{
    CLEAN_GENTLE_WRITE_BYTES_MAX, CLEAN_LINES_MAX, CLEAN_LINES_START, CLEAN_RATE_MIN_BYTES, CLEAN_ROUND_LINES_MAX,
    CLEAN_ROUND_MS, CLEAN_WRITE_BYTES_MAX, CLEAN_WRITES_IN_FLIGHT, LINE_BYTES,
};

/// Bounds of the rate of cleaning. They can be changed while the cache runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CleaningRate {
    /// Bytes per second below which cleaning does not throttle itself.
    #[serde(rename = "clean_min_bytes_per_second")]
    pub min_bytes: u64,
    /// Most bytes per second; `None` for no bound.
    #[serde(rename = "clean_max_bytes_per_second")]
    pub max_bytes: Option<u64>,
}

impl Default for CleaningRate {
    fn default() -> Self {
        Self { min_bytes: CLEAN_RATE_MIN_BYTES, max_bytes: None }
    }
}

/// How a batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    /// One short write at a time, so that a request of the foreground finds no more than that before it.
    Gentle,
    /// Several long ones at a time: nobody else is there, or somebody waits for this.
    Full,
}

impl Force {
    /// Writes at a time.
    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Gentle => 1,
            Self::Full => CLEAN_WRITES_IN_FLIGHT,
        }
    }

    /// Bytes of a write at most.
    pub(crate) fn write_bytes_max(self) -> u64 {
        match self {
            Self::Gentle => CLEAN_GENTLE_WRITE_BYTES_MAX,
            Self::Full => CLEAN_WRITE_BYTES_MAX,
        }
    }
}

/// The newest response counts as one of this many in the moving mean: some hundred responses after a change it is the new one.
const QUIET_SHARE: u64 = 16;

const ROUND: Duration = Duration::from_millis(CLEAN_ROUND_MS);

/// What cleaning knows about the foreground.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) rate: CleaningRate,
    /// Lines of this round.
    quota: u64,
    /// Lines of it that were sent, and when it began.
    sent: u64,
    start: Option<Instant>,
    /// Whether no request ended in the round before.
    is_alone: bool,
    /// Moving mean of response times while nothing is cleaned.
    quiet_ns: Option<u64>,
    /// Responses in this round.
    response_count: u64,
    response_ns: u64,
    /// Rounds after which less was sent.
    pub(crate) throttled_count: u64,
}

impl Pace {
    pub(crate) fn new(rate: CleaningRate) -> Self {
        Self {
            rate,
            quota: CLEAN_LINES_START,
            sent: 0,
            start: None,
            is_alone: false,
            quiet_ns: None,
            response_count: 0,
            response_ns: 0,
            throttled_count: 0,
        }
    }

    /// Lines of a round.
    pub(crate) fn quota(&self) -> u64 {
        self.quota.clamp(self.quota_min(), self.quota_max())
    }

    /// Lines of the next batch, which begins now.
    pub(crate) fn start_batch(&mut self, now: Instant) -> usize {
        self.start.get_or_insert(now);
        self.quota().saturating_sub(self.sent).clamp(1, CLEAN_LINES_MAX) as usize
    }

    /// How that is sent.
    pub(crate) fn force(&self) -> Force {
        if self.is_alone { Force::Full } else { Force::Gentle }
    }

    /// A request of the foreground took this long.
    pub(crate) fn note(&mut self, taken: Duration, is_cleaning: bool) {
        self.is_alone = false;
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        if is_cleaning {
            self.response_count += 1;
            self.response_ns = self.response_ns.saturating_add(taken_ns);
        } else {
            let quiet_ns = self.quiet_ns.unwrap_or(taken_ns);
            self.quiet_ns = Some(quiet_ns - quiet_ns / QUIET_SHARE + taken_ns / QUIET_SHARE);
        }
    }

    /// A batch of `lines` lines is sent. When the next one may begin.
    pub(crate) fn finish_batch(&mut self, now: Instant, lines: u64) -> Instant {
        let start = *self.start.get_or_insert(now);
        self.sent += lines;
        if self.sent < self.quota() && now - start < ROUND {
            return now;
        }
        self.finish_round(start)
    }

    fn finish_round(&mut self, start: Instant) -> Instant {
        let (count, sum_ns) = (std::mem::take(&mut self.response_count), std::mem::take(&mut self.response_ns));
        let sent = std::mem::take(&mut self.sent);
        self.start = None;
        let mean_ns = sum_ns.checked_div(count);
        let is_worse = mean_ns.is_some_and(|mean_ns| self.is_worse(mean_ns));
        self.throttled_count += u64::from(is_worse);
        self.quota = if is_worse { sent / 2 } else { sent.saturating_mul(2) };
        self.quota = self.quota();
        self.is_alone = count == 0;
        let round = if self.is_alone { Duration::ZERO } else { ROUND };
        let budget = match self.rate.max_bytes {
            Some(max_bytes) => Duration::from_secs_f64((sent * LINE_BYTES) as f64 / max_bytes.max(1) as f64),
            None => Duration::ZERO,
        };
        start + round.max(budget)
    }

    /// Whether a mean response time is one that cleaning has made.
    fn is_worse(&mut self, mean_ns: u64) -> bool {
        // Where cleaning has never paused, the first round is what there is to compare with.
        mean_ns / 2 > *self.quiet_ns.get_or_insert(mean_ns)
    }

    fn quota_min(&self) -> u64 {
        (self.rate.min_bytes / LINE_BYTES * CLEAN_ROUND_MS / 1000).clamp(1, self.quota_max())
    }

    fn quota_max(&self) -> u64 {
        let budget = self.rate.max_bytes.map_or(u64::MAX, |max_bytes| max_bytes / LINE_BYTES * CLEAN_ROUND_MS / 1000);
        budget.clamp(1, CLEAN_ROUND_LINES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::START;

    /// A round in which everything is sent at once.
    fn round(pace: &mut Pace, responses: u64, micros: u64) -> Instant {
        (0..responses).for_each(|_| pace.note(Duration::from_micros(micros), true));
        let mut left = pace.quota();
        loop {
            let lines = pace.start_batch(START) as u64;
            let next = pace.finish_batch(START, lines);
            left -= lines;
            if left == 0 {
                return next;
            }
            assert_eq!(next, START, "within a round batches follow each other");
        }
    }

    #[test]
    fn it_doubles_until_the_foreground_suffers_and_then_halves() {
        let mut pace = Pace::new(CleaningRate::default());
        (0..100).for_each(|_| pace.note(Duration::from_micros(200), false));
        assert_eq!((pace.quota(), pace.force()), (CLEAN_LINES_START, Force::Gentle));
        assert_eq!(round(&mut pace, 10, 380), START + ROUND);
        assert_eq!(pace.quota(), 2 * CLEAN_LINES_START);
        assert_eq!(round(&mut pace, 10, 500), START + ROUND);
        assert_eq!((pace.quota(), pace.throttled_count), (CLEAN_LINES_START, 1));
        (0..20).for_each(|_| assert_eq!(round(&mut pace, 10, 5000), START + ROUND));
        let bytes_per_second = pace.quota() * LINE_BYTES * 1000 / CLEAN_ROUND_MS;
        assert!(bytes_per_second.abs_diff(CLEAN_RATE_MIN_BYTES) < 10 * LINE_BYTES, "{bytes_per_second}");
    }

    #[test]
    fn without_a_foreground_it_goes_as_fast_as_it_can() {
        let mut pace = Pace::new(CleaningRate::default());
        for _ in 0..20 {
            assert_eq!(round(&mut pace, 0, 0), START);
            assert_eq!(pace.force(), Force::Full);
        }
        assert_eq!(pace.quota(), CLEAN_ROUND_LINES_MAX);
        pace.note(Duration::from_micros(200), false);
        assert_eq!(pace.force(), Force::Gentle, "somebody is back");
    }

    #[test]
    fn a_round_that_the_devices_bound_ends_in_time() {
        let mut pace = Pace::new(CleaningRate::default());
        for _ in 0..10 {
            round(&mut pace, 10, 200);
        }
        assert_eq!(pace.quota(), CLEAN_ROUND_LINES_MAX);
        assert_eq!(pace.start_batch(START) as u64, CLEAN_LINES_MAX);
        (0..10).for_each(|_| pace.note(Duration::from_micros(300), true));
        let end = START + 2 * ROUND;
        assert!(pace.finish_batch(end, 100) <= end, "the next one begins at once");
        assert_eq!(pace.quota(), 200, "twice what was sent");
    }

    #[test]
    fn a_byte_budget_is_kept_also_without_a_foreground() {
        let mut pace = Pace::new(CleaningRate { min_bytes: 1 << 30, max_bytes: Some(8 << 20) });
        let lines = (8 << 20) / LINE_BYTES * CLEAN_ROUND_MS / 1000;
        assert_eq!(pace.quota(), lines, "the budget goes before the minimum");
        for _ in 0..10 {
            let next = round(&mut pace, 0, 0);
            let rate = (lines * LINE_BYTES) as f64 / (next - START).as_secs_f64();
            assert!((rate - (8 << 20) as f64).abs() < 10.0, "{rate}");
        }
        assert_eq!(pace.quota(), lines);
    }
}
