//! The pace of writes: unlimited while there is room for long, else the rate at which room is made.
//!
//! Room is made in *lumps*: a batch of level 2 frees its segments all at once when the origin has
//! flushed it, a record of level 1 frees its slots. The size and the time of lumps are measured.
//! Some lumps' worth of room is a *reserve*, for what comes while the next lump is under way.
//!
//! ```text
//!   rate let in                                          time until only the reserve is left, at that rate
//!      │              ╱  free bytes beyond the reserve
//!      │            ╱    spread over the horizon           = the horizon
//!  out ┤  ╭─ ─ ─ ─╱
//!      │ ╱       :      a little less than is made free   = never
//!      └──────────┴────────────────► free bytes
//!              reserve
//! ```
//! So a load below the rate at which room is made never waits, however full the log is. A greater
//! load is slowed down once the free room would be used up within the horizon, along a curve
//! without a step, to that rate. The measure is the time until the log is full at the present
//! rates, not how full it is: the same free bytes are plenty for a small load and nothing for a
//! large one.
//!
//! Before the first lump, and when one takes longer than usual, the free room is spread over the
//! time that the work has taken so far. Before any work there is no measurement, and no write is
//! slowed down: the work begins long before all room is used up.
//!
//! Slots of level 1 have a pace of their own, which does not depend on that of the log. Over a full
//! log the records that empty slots take longer, and several end at once when level 2 has made
//! room; so for slots a lump is some records. A write that supersedes slots frees the room that it
//! takes, and so costs nothing ([`Pace::give_back`]).
//!
//! A state machine: `now` and the free bytes go in; whether the next write is admitted, and when to
//! ask again, come out.

use std::time::Duration;

use base::clock::Instant;

use crate::limits::{
    CHECKPOINT_BYTES_PER_EXTENT, LUMPS_RESERVED, PAUSE_LEAST, SHARE_FOR_RESERVE, SHARE_OF_RESERVE_LEFT, UNIT_BYTES,
};

/// Bytes of the log that a write of `bytes` takes: its data, its part of a record's header, and
/// room in the checkpoint.
pub(crate) fn log_cost(bytes: u64) -> u64 {
    (bytes + UNIT_BYTES).max(CHECKPOINT_BYTES_PER_EXTENT)
}

/// Room that came free at once.
#[derive(Clone, Copy)]
struct Lump {
    bytes: f64,
    /// Seconds of work for it.
    seconds: f64,
}

/// Measures the rate at which room is made, and computes how long the next write waits.
pub(crate) struct Pace {
    /// Zero: writes are never slowed down.
    horizon: Duration,
    /// Largest reserve, in bytes.
    reserve_max: f64,
    /// Least bytes of a lump: smaller amounts that come free are added up.
    lump_bytes_min: u64,
    /// Bytes that came free and do not make a lump yet.
    gathered_bytes: u64,
    /// Moving average of the lumps; `None` before the first.
    lump: Option<Lump>,
    /// Whether work for room has ever begun.
    has_worked: bool,
    /// Since when work for room is under way.
    working_since: Option<Instant>,
    /// Time of earlier work since the last lump.
    worked: Duration,
    /// Bytes admitted that the allowed rate has not paid for yet.
    debt: f64,
    /// Time up to which the debt is paid.
    paid_until: Instant,
}

impl Pace {
    pub(crate) fn new(horizon: Duration, reserve_max: u64, lump_bytes_min: u64) -> Self {
        Self {
            horizon,
            reserve_max: reserve_max as f64,
            lump_bytes_min,
            gathered_bytes: 0,
            lump: None,
            has_worked: false,
            working_since: None,
            worked: Duration::ZERO,
            debt: 0.0,
            paid_until: Instant::START,
        }
    }

    /// Changes horizon and largest reserve, from the next write on.
    pub(crate) fn set_limits(&mut self, horizon: Duration, reserve_max: u64) {
        (self.horizon, self.reserve_max) = (horizon, reserve_max as f64);
    }

    /// Notes that work for room has begun.
    pub(crate) fn work_began(&mut self, now: Instant) {
        self.has_worked = true;
        self.working_since.get_or_insert(now);
    }

    /// Notes that the work has stopped: the time until it begins again is not part of the lump's
    /// time.
    pub(crate) fn work_stopped(&mut self, now: Instant) {
        if let Some(since) = self.working_since.take() {
            self.worked += now.since(since);
        }
    }

    /// Notes that the work has made `bytes` free.
    pub(crate) fn room_made(&mut self, now: Instant, bytes: u64) {
        self.gathered_bytes += bytes;
        if self.gathered_bytes < self.lump_bytes_min {
            return;
        }
        let bytes = std::mem::take(&mut self.gathered_bytes);
        let since = self.working_since.replace(now).unwrap_or(now);
        let seconds = (std::mem::take(&mut self.worked) + now.since(since)).as_secs_f64();
        let new = Lump { bytes: bytes as f64, seconds };
        // Half the weight for the newest: a change of the rate is followed within some lumps.
        self.lump = Some(self.lump.map_or(new, |old| Lump {
            bytes: f64::midpoint(old.bytes, new.bytes),
            seconds: f64::midpoint(old.seconds, new.seconds),
        }));
    }

    /// Forgets the measurement: at present no room is made.
    pub(crate) fn room_failed(&mut self) {
        self.lump = None;
        self.gathered_bytes = 0;
        self.worked = Duration::ZERO;
    }

    /// Admits a write that takes `cost` of the free bytes.
    pub(crate) fn admit(&mut self, now: Instant, cost: u64, free_bytes: u64) {
        self.pay(now, free_bytes);
        self.debt += cost as f64;
    }

    /// Notes that an admitted write has freed `bytes` itself.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.debt = (self.debt - bytes as f64).max(0.0);
    }

    /// Time until the next write may be admitted; zero for now. Ask again then: the rate depends on
    /// the free bytes.
    pub(crate) fn poll_wait(&mut self, now: Instant, free_bytes: u64) -> Duration {
        self.pay(now, free_bytes);
        let seconds = self.debt / self.rate(free_bytes);
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        if wait < PAUSE_LEAST { Duration::ZERO } else { wait.min(self.horizon) }
    }

    fn pay(&mut self, now: Instant, free_bytes: u64) {
        if now == self.paid_until {
            return;
        }
        let passed = now.since(self.paid_until).as_secs_f64();
        self.debt = (self.debt - self.rate(free_bytes) * passed).max(0.0);
        self.paid_until = now;
    }

    /// Bytes a second made free while work is under way; `None` before the first measurement.
    pub(crate) fn freed_per_second(&self) -> Option<f64> {
        self.lump.map(|lump| lump.bytes / lump.seconds.max(f64::MIN_POSITIVE))
    }

    /// Bytes a second that may be admitted. Not bounded when nothing is free: a write then waits
    /// for the room itself.
    fn rate(&self, free_bytes: u64) -> f64 {
        let horizon = self.horizon.as_secs_f64();
        if free_bytes == 0 || horizon == 0.0 {
            return f64::INFINITY;
        }
        let free = free_bytes as f64;
        // The lump under way takes at least the time that it has taken already.
        let so_far = self.worked + self.working_since.map_or(Duration::ZERO, |since| self.paid_until.since(since));
        let Some(lump) = self.lump.filter(|lump| lump.bytes > 0.0) else {
            if !self.has_worked {
                return f64::INFINITY;
            }
            return free / so_far.max(self.horizon).as_secs_f64();
        };
        let freed = lump.bytes / lump.seconds.max(so_far.as_secs_f64()).max(f64::MIN_POSITIVE);
        let reserve = (lump.bytes * LUMPS_RESERVED).min(self.reserve_max);
        let share = free / reserve;
        if share < 1.0 {
            freed * (1.0 - SHARE_FOR_RESERVE * (1.0 - share)) * (share / SHARE_OF_RESERVE_LEFT).min(1.0)
        } else {
            freed + (free - reserve) / horizon
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Duration = Duration::from_millis(40);
    const MIB: u64 = 1 << 20;
    const LOG_BYTES: u64 = 64 * MIB;

    /// A log, the lumps in which it is emptied, and a load, by a clock that advances in steps of a
    /// tenth of a millisecond.
    struct Model {
        pace: Pace,
        now: Instant,
        free: u64,
        lump_bytes: u64,
        lump_time: Duration,
        lump_at: Instant,
        /// Bytes admitted so far.
        admit: u64,
    }

    const TICK: Duration = Duration::from_micros(100);
    const WRITE: u64 = 4096;

    impl Model {
        /// A log that makes `out` bytes free a second, in lumps of `lump_bytes`.
        fn new(free: u64, out: u64, lump_bytes: u64) -> Self {
            let lump_time = Duration::from_secs_f64(lump_bytes as f64 / out as f64);
            let now = Instant::START;
            let mut pace = Pace::new(HORIZON, LOG_BYTES / 4, 0);
            pace.work_began(now);
            Self { pace, now, free, lump_bytes, lump_time, lump_at: now + lump_time, admit: 0 }
        }

        /// Passes `time` with a load of `wanted` bytes a second; writes that must wait come later.
        /// Returns the bytes that were admitted, and those left.
        fn pass(&mut self, time: Duration, wanted: f64, mut left: f64) -> (u64, f64) {
            let (end, before) = (self.now + time, self.admit);
            while self.now < end {
                self.now = self.now + TICK;
                left += wanted * TICK.as_secs_f64();
                if self.now >= self.lump_at {
                    let room = self.lump_bytes.min(LOG_BYTES - self.free);
                    self.free += room;
                    self.pace.room_made(self.now, self.lump_bytes);
                    self.lump_at = self.lump_at + self.lump_time;
                }
                let cost = log_cost(WRITE);
                while left >= cost as f64 && self.free >= cost && self.pace.poll_wait(self.now, self.free).is_zero() {
                    self.pace.admit(self.now, cost, self.free);
                    self.free -= cost;
                    self.admit += cost;
                    left -= cost as f64;
                }
            }
            (self.admit - before, left)
        }
    }

    /// The log may be however full: it does not get fuller.
    #[test]
    fn nobody_waits_in_a_full_log_that_empties_faster_than_it_fills() {
        for out in [4 * MIB, 100 * MIB] {
            // Opened full; two lumps were made free so far.
            let mut model = Model::new(0, out, MIB);
            let warm_up = model.lump_time * 3;
            model.pass(warm_up, 0.0, 0.0);
            let mut left = 0.0;
            for _ in 0..200 {
                (_, left) = model.pass(Duration::from_millis(10), out as f64 * 0.5, left);
                assert!(left < 3.0 * log_cost(WRITE) as f64, "{left} bytes wait at {} free", model.free);
            }
        }
    }

    #[test]
    fn nobody_waits_while_the_log_would_be_full_only_beyond_the_horizon() {
        let (out, lump) = (10 * MIB, MIB);
        let mut model = Model::new(LOG_BYTES, out, lump);
        let wanted = 200 * MIB;
        // Bytes that the load uses up until only the reserve and a horizon's worth are left.
        let fast = (LOG_BYTES as f64 - LUMPS_RESERVED * lump as f64) / wanted as f64 - HORIZON.as_secs_f64();
        let (_, left) = model.pass(Duration::from_secs_f64(fast), wanted as f64, 0.0);
        assert!(left < 32.0 * 1024.0, "{left} bytes wait at {} free", model.free);
        let (_, left) = model.pass(HORIZON, wanted as f64, left);
        assert!(left > 512.0 * 1024.0, "it goes on as if the log had no end");
    }

    #[test]
    fn a_flood_is_slowed_evenly_to_the_rate_at_which_room_is_made() {
        for (out, lump) in [(10 * MIB, MIB), (100 * MIB, 4 * MIB), (MIB, MIB / 2)] {
            let mut model = Model::new(LOG_BYTES, out, lump);
            let (mut left, mut rates) = (0.0, Vec::new());
            let window = Duration::from_millis(20);
            for _ in 0..500 {
                let (came, rest) = model.pass(window, 400e6, left);
                left = rest;
                assert!(model.free >= log_cost(WRITE), "it is full: {rates:?}");
                rates.push(came as f64 / window.as_secs_f64());
            }
            // The rate falls in steps, none of them to less than 0.3 of the last, not at once.
            let steps = rates.windows(2).filter(|pair| pair[0] > 1.2 * out as f64).map(|pair| pair[1] / pair[0]);
            let steepest = steps.fold(1.0, f64::min);
            assert!(steepest > 0.3, "{steepest}: {rates:?}");
            let settled = &rates[250..];
            let mean = settled.iter().sum::<f64>() / settled.len() as f64;
            assert!((mean / out as f64 - 1.0).abs() < 0.1, "{mean} of {out}");
        }
    }

    /// The time in which level 2 has nothing to do, or is interrupted, is not part of a lump's
    /// time.
    #[test]
    fn only_the_time_of_work_counts() {
        let at = |ms| Instant::START + Duration::from_millis(ms);
        let mut pace = Pace::new(HORIZON, LOG_BYTES, 0);
        pace.work_began(at(0));
        pace.work_began(at(50));
        pace.work_stopped(at(100));
        pace.work_began(at(10_000));
        pace.room_made(at(10_100), MIB);
        pace.work_stopped(at(10_100));
        let lump = pace.lump.expect("one came");
        assert!((lump.seconds - 0.2).abs() < 1e-9, "{}", lump.seconds);
        pace.work_began(at(20_000));
        pace.room_made(at(20_100), 3 * MIB);
        let lump = pace.lump.expect("two came");
        assert!((lump.seconds - 0.15).abs() < 1e-9 && (lump.bytes - 2.0 * MIB as f64).abs() < 1.0);
        pace.room_failed();
        assert!(pace.lump.is_none());
    }

    /// Level 1 over a full log frees nothing for long, then several records at once.
    #[test]
    fn what_comes_in_bursts_is_measured_with_the_time_between_them() {
        let mut pace = Pace::new(HORIZON, LOG_BYTES, MIB);
        pace.work_began(Instant::START);
        let mut now = Instant::START;
        for _ in 0..8 {
            now = now + Duration::from_secs(1);
            (0..16).for_each(|_| pace.room_made(now, MIB / 16));
        }
        let freed = pace.freed_per_second().expect("some came");
        assert!((freed / MIB as f64 - 1.0).abs() < 0.01, "{freed}");
    }

    #[test]
    fn nobody_waits_before_anybody_has_worked_for_room() {
        let mut pace = Pace::new(HORIZON, LOG_BYTES, 0);
        (0..1000).for_each(|_| pace.admit(Instant::START, MIB, MIB));
        assert_eq!(pace.poll_wait(Instant::START, MIB), Duration::ZERO);
        pace.work_began(Instant::START);
        assert_eq!(pace.poll_wait(Instant::START, MIB), HORIZON);
    }

    /// Writes that supersede data in slots free as much as they take.
    #[test]
    fn who_makes_as_much_free_as_he_takes_never_waits() {
        let mut pace = Pace::new(HORIZON, LOG_BYTES, 0);
        pace.work_began(Instant::START);
        pace.room_made(Instant::START + HORIZON, MIB);
        for _ in 0..1000 {
            assert_eq!(pace.poll_wait(Instant::START + HORIZON, MIB), Duration::ZERO);
            pace.admit(Instant::START + HORIZON, MIB, MIB);
            pace.give_back(MIB);
        }
    }

    #[test]
    fn nobody_is_kept_out_of_what_is_full_or_of_what_never_slows() {
        for (horizon, free) in [(HORIZON, 0), (Duration::ZERO, MIB)] {
            let mut pace = Pace::new(horizon, LOG_BYTES, 0);
            pace.work_began(Instant::START);
            (0..1000).for_each(|_| pace.admit(Instant::START, MIB, free));
            assert_eq!(pace.poll_wait(Instant::START, free), Duration::ZERO);
        }
    }
}
