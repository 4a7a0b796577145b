//! One deadline that wakes a task, on any clock.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};

/// One timer, replaced only by an earlier one: deadlines mostly move away, and waking up too early costs less than a
/// new timer each time.
#[derive(Default)]
pub(crate) struct Alarm {
    armed: Option<(Instant, Sleep)>,
}

impl Alarm {
    /// Whether `deadline` has come at `now`, a moment ago. If not, the task is woken at it, or before.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        clock: &dyn Clock,
        mut now: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let Some(deadline) = deadline else { return false };
        loop {
            if deadline <= now {
                return true;
            }
            let is_armed_in_time = self.armed.as_ref().is_some_and(|(at, _)| *at <= deadline);
            if !is_armed_in_time {
                self.armed = Some((deadline, clock.sleep_until(deadline)));
            }
            let Some((_, sleep)) = &mut self.armed else { return false };
            match sleep.as_mut().poll(context) {
                Poll::Pending => return false,
                Poll::Ready(()) => (self.armed, now) = (None, clock.now()),
            }
        }
    }
}

/// `future`'s output, or `None` when it does not come within `limit`.
pub(crate) async fn within<T>(clock: &Arc<dyn Clock>, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let deadline = clock.now() + limit;
    let mut alarm = Alarm::default();
    let mut future = std::pin::pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if alarm.poll(context, &**clock, clock.now(), Some(deadline)) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
