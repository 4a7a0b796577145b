//! Time for the driver: the operating system's, and one alarm on any clock.

use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};

/// The clock of the operating system, through tokio's timers. It begins when it is made.
pub struct TokioClock {
    start: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows zero now.
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
        Instant::START + self.start.elapsed()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(tokio::time::sleep_until(self.start + Duration::from_nanos(deadline.as_nanoseconds())))
    }
}

/// One sleeper that is made anew only when it must wake earlier than it would: deadlines mostly move away.
#[derive(Default)]
pub(crate) struct Alarm {
    armed: Option<(Instant, Sleep)>,
}

impl Alarm {
    /// Whether `deadline` has come. If not, the task is woken at it, or before.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, clock: &dyn Clock, deadline: Option<Instant>) -> bool {
        let Some(deadline) = deadline else { return false };
        loop {
            if deadline <= clock.now() {
                return true;
            }
            let is_armed_in_time = self.armed.as_ref().is_some_and(|(at, _)| *at <= deadline);
            if !is_armed_in_time {
                self.armed = Some((deadline, clock.sleep_until(deadline)));
            }
            let Some((_, sleep)) = &mut self.armed else { return false };
            match sleep.as_mut().poll(context) {
                Poll::Pending => return false,
                Poll::Ready(()) => self.armed = None,
            }
        }
    }
}
