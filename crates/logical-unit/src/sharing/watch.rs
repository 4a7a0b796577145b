//! Notices that the target itself was not run for a while: its process was stopped, or its machine stood still.
//!
//! Renewals and answers of clients wait in its sockets then, and by the clock all are late. So
//! while there is a deadline, the driver looks at the clock in intervals that are short beside a
//! lease. If two intervals passed without a look, the time since the last look counts as a pause.

use std::time::Duration;

use base::clock::Instant;

/// The time of the last look at the clock.
pub(super) struct Watch {
    seen: Instant,
    interval: Duration,
}

impl Watch {
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        Self { seen: now, interval }
    }

    /// When the next look at the clock is due.
    pub(super) fn look_by(&self, now: Instant) -> Instant {
        now + self.interval
    }

    /// Notes a look at the clock. Returns the length of the pause that it ends, if there was one.
    pub(super) fn note(&mut self, now: Instant) -> Option<Duration> {
        let time = now.since(self.seen);
        self.seen = self.seen.max(now);
        Some(time).filter(|time| *time > self.interval * 2)
    }
}
