//! tokio's time as a clock.

use base::clock::{Clock, Instant, Sleep};

/// The monotonic clock of the runtime. Its instants begin when it was made.
#[derive(Clone, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        let elapsed = self.start.elapsed().as_nanos();
        Instant::from_nanoseconds(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        let until = self.start + std::time::Duration::from_nanos(deadline.as_nanoseconds());
        Box::pin(tokio::time::sleep_until(until))
    }
}
