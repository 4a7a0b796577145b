//! Whether durable writes are carried out on the spot: as long as the medium is fast.
//!
//! ```text
//!   waiting ──(the average exceeds the limit)──► pausing for n writes ──► one write is tried ──(fast)──► waiting, n at its least
//!                                                    ▲                         │
//!                                                    └────────(slow: n doubles)┘
//! ```
//! The average forgets slowly enough that one late write among fast ones changes nothing. Races between threads only
//! shift a decision by a write or two, so there is no lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::limits::{WAIT_PAUSE_WRITES_MAX, WAIT_PAUSE_WRITES_MIN, WAIT_US_MAX};

/// Weight of the newest write in the average: one part in this many.
const WEIGHT: u32 = 16;

/// Most nanoseconds that one write counts for: a late one among fast ones adds a quarter of the
/// limit to the average.
const TAKEN_NS_MAX: u32 = WAIT_US_MAX * 1000 * 4;

/// The average time of durable writes, and how many go to the engine before the next is tried on
/// the spot.
pub(crate) struct Patience {
    /// In nanoseconds; 0 before the first write after a pause.
    average_ns: AtomicU32,
    /// Writes that still go to the engine.
    rest: AtomicU32,
    /// Length of the next pause, in writes.
    pause: AtomicU32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        let pause = AtomicU32::new(WAIT_PAUSE_WRITES_MIN);
        Self { average_ns: AtomicU32::new(0), rest: AtomicU32::new(0), pause }
    }

    /// Whether to carry the next write out on the spot.
    pub(crate) fn waits(&self) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
        }
        rest == 0
    }

    /// Notes the time of a write that was carried out on the spot.
    pub(crate) fn took(&self, time: Duration) {
        let taken_ns = u32::try_from(time.as_nanos()).unwrap_or(u32::MAX).min(TAKEN_NS_MAX);
        let average_ns = match self.average_ns.load(Ordering::Relaxed) {
            0 => taken_ns,
            average_ns => average_ns - average_ns / WEIGHT + taken_ns / WEIGHT,
        };
        if average_ns <= WAIT_US_MAX * 1000 {
            self.average_ns.store(average_ns.max(1), Ordering::Relaxed);
            self.pause.store(WAIT_PAUSE_WRITES_MIN, Ordering::Relaxed);
            return;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        self.average_ns.store(0, Ordering::Relaxed);
        self.rest.store(pause, Ordering::Relaxed);
        self.pause.store((pause * 2).min(WAIT_PAUSE_WRITES_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(40);
    const LATE: Duration = Duration::from_millis(8);

    /// Counts the writes that go to the engine before the next is tried on the spot.
    fn pause(patience: &Patience) -> u32 {
        (0..).take_while(|_| !patience.waits()).count() as u32
    }

    #[test]
    fn one_late_write_among_fast_ones_changes_nothing() {
        let patience = Patience::new();
        for round in 0..100 {
            assert!(patience.waits());
            patience.took(if round == 50 { LATE } else { FAST });
        }
    }

    #[test]
    fn a_slow_medium_is_asked_ever_less_often_and_a_fast_one_waited_for_again() {
        let patience = Patience::new();
        assert!(patience.waits());
        let mut expected = WAIT_PAUSE_WRITES_MIN;
        for _ in 0..20 {
            patience.took(LATE);
            assert_eq!(pause(&patience), expected);
            expected = (expected * 2).min(WAIT_PAUSE_WRITES_MAX);
        }
        patience.took(FAST);
        assert_eq!(pause(&patience), 0, "it became fast");
        while patience.waits() {
            patience.took(LATE);
        }
        assert_eq!(pause(&patience), WAIT_PAUSE_WRITES_MIN - 1, "one write has gone to the engine above");
    }
}
