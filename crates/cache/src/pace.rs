//! How fast lines are cleaned while others use the devices (paper 002: cleaning that throttles itself).
//!
//! Cleaning goes in rounds of a tenth of a second, each with a quota of lines. The paper doubles what is sent in each
//! round, and halves it when the foreground's response time got worse:
//!
//! | the round before | the next one |
//! |---|---|
//! | no request of the foreground ended | twice as much, at once, several writes at a time |
//! | of 200 requests at most one was slow | twice as much, when the round's time is over |
//! | more of them were | half as much, when the round's time is over |
//!
//! Beside a foreground one write is sent at a time, so that a request finds at most one before it.
//! These writes are not made shorter: that would make more of them than the application's, and a
//! round is measured by the cost of all. The quota is sent in batches, each with one flush of the
//! origin. What a round could not send in its time is not added to the next. A batch ends with a
//! run of neighbours, so it may exceed its quota by one write; the next round is then later by as
//! much.
//!
//! Never less than the minimum rate, so that cleaning ends under any load, and never more than the byte budget, if
//! there is one; the budget goes before the minimum.
//!
//! A request is *slow* when it takes longer than twice what 99 of 100 take without cleaning: so the 99th percentile at
//! most doubles, which is what people notice, and not the mean. That of reads and that of writes are kept apart, since
//! a write that waits for a disk says nothing about reads; each is a moving estimate over the requests that ended while
//! nothing was being cleaned.

use std::time::Duration;

use base::clock::Instant;
use serde::Serialize;

use crate::counters::RequestKind;
use crate::limits::{
    CLEAN_BATCH_BYTES_MAX, CLEAN_RATE_MIN_BYTES, CLEAN_ROUND_BYTES_MAX, CLEAN_ROUND_BYTES_START, CLEAN_ROUND_MS,
    CLEAN_WRITES_IN_FLIGHT,
};
use crate::line_size::LineSize;

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
    /// One write at a time, so that a request of the foreground finds no more than that before it.
    Gentle,
    /// Several at a time: no client sends requests, or a caller waits for this cleaning.
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
}

/// A response above the estimate of the 99th percentile raises it by one part in this many, and 99 below lower it by as
/// much: some dozens of slower responses after a change, or some hundreds of faster ones, it is the new one.
const QUIET_STEP: u64 = 8;

/// One response of this many is slower than the estimate.
const QUIET_ONE_OF: u64 = 100;

/// Of this many responses one may be slow. Half of what the 99th percentile leaves, since after each good round a
/// larger one is tried.
const SLOW_ONE_OF: u64 = 200;

/// What 99 of 100 responses take, as a moving estimate.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    p99_ns: Option<u64>,
}

impl Quiet {
    fn note(&mut self, taken_ns: u64) {
        let p99_ns = self.p99_ns.unwrap_or(taken_ns);
        let step_ns = p99_ns / QUIET_STEP;
        self.p99_ns = Some(match taken_ns > p99_ns {
            // At most to what was seen, so that one response does not carry it beyond all of them.
            true => p99_ns.saturating_add(step_ns.max(1)).min(taken_ns),
            false => p99_ns - step_ns / (QUIET_ONE_OF - 1),
        });
    }

    /// Whether cleaning has made this response slow. Before there is an estimate, because cleaning
    /// never paused, the first response becomes it.
    fn is_slow(&mut self, taken_ns: u64) -> bool {
        let p99_ns = *self.p99_ns.get_or_insert(taken_ns);
        taken_ns / 2 > p99_ns
    }
}

const ROUND: Duration = Duration::from_millis(CLEAN_ROUND_MS);

/// The measurements of the foreground that set the pace of cleaning.
#[derive(Debug)]
pub(crate) struct Pace {
    line_size: LineSize,
    pub(crate) rate: CleaningRate,
    /// Lines of this round.
    quota: u64,
    /// Lines of it that were sent, and when it began.
    sent: u64,
    start: Option<Instant>,
    /// Whether no request ended in the round before.
    is_alone: bool,
    /// Responses while nothing is cleaned.
    quiet_reads: Quiet,
    quiet_writes: Quiet,
    /// Responses in this round, and how many of them were slow.
    response_count: u64,
    slow_count: u64,
    /// Rounds after which less was sent.
    pub(crate) throttled_count: u64,
}

impl Pace {
    pub(crate) fn new(line_size: LineSize, rate: CleaningRate) -> Self {
        Self {
            line_size,
            rate,
            quota: CLEAN_ROUND_BYTES_START / line_size.bytes(),
            sent: 0,
            start: None,
            is_alone: false,
            quiet_reads: Quiet::default(),
            quiet_writes: Quiet::default(),
            response_count: 0,
            slow_count: 0,
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
        let lines_max = CLEAN_BATCH_BYTES_MAX / self.line_size.bytes();
        self.quota().saturating_sub(self.sent).clamp(1, lines_max) as usize
    }

    /// How the next batch is sent.
    pub(crate) fn force(&self) -> Force {
        if self.is_alone { Force::Full } else { Force::Gentle }
    }

    /// Notes a response of the foreground, which took `taken`.
    pub(crate) fn note(&mut self, kind: RequestKind, taken: Duration, is_cleaning: bool) {
        self.is_alone = false;
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        let quiet = match kind {
            RequestKind::Read | RequestKind::Ahead => &mut self.quiet_reads,
            RequestKind::Write => &mut self.quiet_writes,
        };
        if is_cleaning {
            self.response_count += 1;
            self.slow_count += u64::from(quiet.is_slow(taken_ns));
        } else {
            quiet.note(taken_ns);
        }
    }

    /// Notes that a batch of `lines` lines was sent. Returns when the next one may begin.
    pub(crate) fn finish_batch(&mut self, now: Instant, lines: u64) -> Instant {
        let start = *self.start.get_or_insert(now);
        self.sent += lines;
        if self.sent < self.quota() && now - start < ROUND {
            return now;
        }
        self.finish_round(start)
    }

    fn finish_round(&mut self, start: Instant) -> Instant {
        let (count, slow_count) = (std::mem::take(&mut self.response_count), std::mem::take(&mut self.slow_count));
        let sent = std::mem::take(&mut self.sent);
        self.start = None;
        let is_worse = slow_count * SLOW_ONE_OF > count;
        self.throttled_count += u64::from(is_worse);
        let quota = self.quota();
        let within = sent.min(quota);
        self.quota = if is_worse { within / 2 } else { within.saturating_mul(2) };
        self.quota = self.quota();
        self.is_alone = count == 0;
        // Neighbours that were sent beyond the quota: the next round is later by their share.
        let excess = (sent as f64 / quota as f64).max(1.0);
        let round = if self.is_alone { Duration::ZERO } else { ROUND.mul_f64(excess) };
        let budget = match self.rate.max_bytes {
            Some(max_bytes) => {
                Duration::from_secs_f64((sent * self.line_size.bytes()) as f64 / max_bytes.max(1) as f64)
            }
            None => Duration::ZERO,
        };
        start + round.max(budget)
    }

    fn quota_min(&self) -> u64 {
        self.lines_a_round(self.rate.min_bytes).clamp(1, self.quota_max())
    }

    fn quota_max(&self) -> u64 {
        let budget = self.rate.max_bytes.map_or(u64::MAX, |max_bytes| self.lines_a_round(max_bytes));
        budget.clamp(1, CLEAN_ROUND_BYTES_MAX / self.line_size.bytes())
    }

    /// Lines that a rate in bytes per second sends in a round.
    fn lines_a_round(&self, bytes: u64) -> u64 {
        bytes / self.line_size.bytes() * CLEAN_ROUND_MS / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::START;
    const LINE_BYTES: u64 = 4096;
    const LINES_START: u64 = CLEAN_ROUND_BYTES_START / LINE_BYTES;

    fn pace(rate: CleaningRate) -> Pace {
        Pace::new(LineSize::default(), rate)
    }

    /// A round in which everything is sent at once.
    fn round(pace: &mut Pace, responses: u64, micros: u64) -> Instant {
        (0..responses).for_each(|_| pace.note(RequestKind::Read, Duration::from_micros(micros), true));
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
    fn a_batch_above_its_quota_is_paid_for_with_time() {
        let mut pace = pace(CleaningRate::default());
        pace.note(RequestKind::Read, Duration::from_micros(200), true);
        pace.start_batch(START);
        assert_eq!(pace.finish_batch(START, 4 * LINES_START), START + 4 * ROUND);
        assert_eq!(pace.quota(), 2 * LINES_START, "what came along says nothing about what may be sent");
    }

    #[test]
    fn it_doubles_until_the_foreground_suffers_and_then_halves() {
        let mut pace = pace(CleaningRate::default());
        (0..100).for_each(|_| pace.note(RequestKind::Read, Duration::from_micros(200), false));
        assert_eq!((pace.quota(), pace.force()), (LINES_START, Force::Gentle));
        assert_eq!(round(&mut pace, 10, 380), START + ROUND);
        assert_eq!(pace.quota(), 2 * LINES_START);
        assert_eq!(round(&mut pace, 10, 500), START + ROUND);
        assert_eq!((pace.quota(), pace.throttled_count), (LINES_START, 1));
        (0..20).for_each(|_| assert_eq!(round(&mut pace, 10, 5000), START + ROUND));
        let bytes_per_second = pace.quota() * LINE_BYTES * 1000 / CLEAN_ROUND_MS;
        assert!(bytes_per_second.abs_diff(CLEAN_RATE_MIN_BYTES) < 10 * LINE_BYTES, "{bytes_per_second}");
    }

    #[test]
    fn one_slow_response_of_two_hundred_is_as_it_was_and_writes_say_nothing_of_reads() {
        let mut pace = pace(CleaningRate::default());
        (0..1000).for_each(|_| pace.note(RequestKind::Read, Duration::from_micros(200), false));
        (0..1000).for_each(|_| pace.note(RequestKind::Write, Duration::from_millis(20), false));
        pace.note(RequestKind::Read, Duration::from_millis(5), true);
        assert_eq!(round(&mut pace, 199, 250), START + ROUND);
        assert_eq!(pace.throttled_count, 0);
        (0..2).for_each(|_| pace.note(RequestKind::Read, Duration::from_millis(5), true));
        round(&mut pace, 198, 250);
        assert_eq!(pace.throttled_count, 1);
        (0..200).for_each(|_| pace.note(RequestKind::Write, Duration::from_millis(25), true));
        round(&mut pace, 0, 0);
        assert_eq!(pace.throttled_count, 1);
    }

    #[test]
    fn the_estimate_is_near_the_99th_percentile_and_follows_it() {
        let mut quiet = Quiet::default();
        let mut random = base::random::Random::new(1);
        for scale in [1000, 20, 300] {
            // Uniform up to `scale` microseconds.
            (0..20_000).for_each(|_| quiet.note(random.below(scale * 1000)));
            let estimate = quiet.p99_ns.unwrap();
            assert!((scale * 850..scale * 1000).contains(&estimate), "{estimate} of {scale} us");
        }
    }

    #[test]
    fn without_a_foreground_it_goes_as_fast_as_it_can() {
        let mut pace = pace(CleaningRate::default());
        for _ in 0..20 {
            assert_eq!(round(&mut pace, 0, 0), START);
            assert_eq!(pace.force(), Force::Full);
        }
        assert_eq!(pace.quota(), CLEAN_ROUND_BYTES_MAX / LINE_BYTES);
        pace.note(RequestKind::Read, Duration::from_micros(200), false);
        assert_eq!(pace.force(), Force::Gentle, "somebody is back");
    }

    #[test]
    fn a_round_that_the_devices_bound_ends_in_time() {
        let mut pace = pace(CleaningRate::default());
        for _ in 0..10 {
            round(&mut pace, 10, 200);
        }
        assert_eq!(pace.quota(), CLEAN_ROUND_BYTES_MAX / LINE_BYTES);
        assert_eq!(pace.start_batch(START) as u64, CLEAN_BATCH_BYTES_MAX / LINE_BYTES);
        (0..10).for_each(|_| pace.note(RequestKind::Read, Duration::from_micros(300), true));
        let end = START + 2 * ROUND;
        assert!(pace.finish_batch(end, 100) <= end, "the next one begins at once");
        assert_eq!(pace.quota(), 200, "twice what was sent");
    }

    #[test]
    fn a_byte_budget_is_kept_also_without_a_foreground() {
        let mut pace = pace(CleaningRate { min_bytes: 1 << 30, max_bytes: Some(8 << 20) });
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
