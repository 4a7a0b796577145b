//! The times of something that is done again when it has failed: at once, then a little later, then twice as long each
//! time. Where it has failed last long ago, it begins anew.

use std::time::Duration;

use base::clock::Instant;

use crate::limits::SHARING_WAIT_MIN;

/// When the next time is.
pub(super) struct Spacing {
    wait_max: Duration,
    /// The wait behind the last time.
    wait: Duration,
    /// The next time is no sooner.
    from: Instant,
}

impl Spacing {
    /// No wait is longer than `wait_max`.
    pub(super) fn new(wait_max: Duration) -> Self {
        Self { wait_max, wait: Duration::ZERO, from: Instant::START }
    }

    /// When it is done again that has failed at `now`.
    pub(super) fn after_failure(&mut self, now: Instant) -> Instant {
        if self.from + self.wait_max <= now {
            self.wait = Duration::ZERO;
        }
        let at = now.max(self.from);
        self.wait = (self.wait * 2).clamp(SHARING_WAIT_MIN, self.wait_max);
        self.from = at + self.wait;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_done_later_and_later_and_after_a_while_at_once() {
        let mut spacing = Spacing::new(SHARING_WAIT_MIN * 5);
        let start = Instant::START + SHARING_WAIT_MIN * 100;
        let mut now = start;
        let mut times = Vec::new();
        for _ in 0..6 {
            now = spacing.after_failure(now);
            times.push(now.since(start).as_millis() / SHARING_WAIT_MIN.as_millis());
        }
        assert_eq!(times, [0, 1, 3, 7, 12, 17]);
        now = now + SHARING_WAIT_MIN * 10;
        assert_eq!(spacing.after_failure(now), now);
        assert_eq!(spacing.after_failure(now), now + SHARING_WAIT_MIN);
    }
}
