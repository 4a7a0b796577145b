//! One alarm on any clock.

use std::task::{Context, Poll};

use base::clock::{Clock, Instant, Sleep};

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
