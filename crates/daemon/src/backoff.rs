//! The wait before another start: doubled each time, and short again after a process ran for a while.

use std::time::Duration;

use crate::limits::{RESTART_WAIT_MAX, RESTART_WAIT_MIN, STEADY_TIME};

/// The waits of one attachment.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: RESTART_WAIT_MIN }
    }
}

impl Backoff {
    /// The wait after a process that served for `served`; `None` for one that never did.
    pub fn wait_after(&mut self, served: Option<Duration>) -> Duration {
        if served.is_some_and(|served| served >= STEADY_TIME) {
            *self = Self::default();
        }
        let wait = self.next;
        self.next = (wait * 2).min(RESTART_WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_begin_anew_after_a_process_that_ran_for_a_while() {
        let mut backoff = Backoff::default();
        let mut seconds = |served: Option<u64>| backoff.wait_after(served.map(Duration::from_secs)).as_secs();
        assert_eq!([(); 8].map(|()| seconds(None)), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds(Some(59)), 60);
        assert_eq!([seconds(Some(60)), seconds(Some(3))], [1, 2]);
    }
}
