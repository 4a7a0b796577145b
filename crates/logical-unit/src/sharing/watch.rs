//! Notices that the target itself was not run for a while: its process was stopped, or its machine stood still.
//!
//! Renewals and answers of clients wait in its sockets then, and by the clock all are late. So while anything has a
//! deadline somebody looks at the clock in intervals that are short beside a lease; where nobody has looked for two of
//! them, the time since is a pause.

use std::time::Duration;

use base::clock::Instant;

/// When somebody looked at the clock last.
pub(super) struct Watch {
    seen: Instant,
    interval: Duration,
}

impl Watch {
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        Self { seen: now, interval }
    }

    /// When to look at the clock again at the latest.
    pub(super) fn look_by(&self, now: Instant) -> Instant {
        now + self.interval
    }

    /// Somebody looks at the clock. Gives the pause that is over with this, if there was one.
    pub(super) fn note(&mut self, now: Instant) -> Option<Duration> {
        let time = now.since(self.seen);
        self.seen = self.seen.max(now);
        Some(time).filter(|time| *time > self.interval * 2)
    }
}
