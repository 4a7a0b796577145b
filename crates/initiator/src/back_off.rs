//! How long to wait before the next attempt at a session: not at all, then a little, then twice as long each time. The
//! shortest wait and the longest are the user's: `reconnect_wait_min` and `reconnect_wait_max` of
//! [`InitiatorOptions`](crate::InitiatorOptions).
//!
//! It begins anew only after a session that was of use. A login that succeeds is none: a target that logs in and breaks
//! off at the first request would otherwise be asked again at once, thousands of times a second. Nor is the answer to
//! TEST UNIT READY, or a lease that is renewed, which a target may give that breaks off at the first request, too.

use std::time::Duration;

/// The wait before the next attempt, and how it grows.
pub(crate) struct BackOff {
    wait_min: Duration,
    wait_max: Duration,
    next: Duration,
}

impl BackOff {
    pub(crate) fn new(wait_min: Duration, wait_max: Duration) -> Self {
        Self { wait_min, wait_max: wait_max.max(wait_min), next: Duration::ZERO }
    }

    /// The wait before the attempt that is due.
    pub(crate) fn take(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).clamp(self.wait_min, self.wait_max);
        wait
    }

    /// Makes the next attempt immediate, and the waits after it start with the shortest.
    pub(crate) fn reset(&mut self) {
        self.next = Duration::ZERO;
    }

    /// Notes the end of a session of this length. It was of use if a command was carried out in it,
    /// or if it was long.
    pub(crate) fn note_session(&mut self, lasted: Duration, was_useful: bool) {
        if lasted >= self.wait_max || (was_useful && lasted >= self.wait_min) {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(2);

    fn waits(back_off: &mut BackOff) -> Vec<u128> {
        (0..7).map(|_| back_off.take().as_millis()).collect()
    }

    #[test]
    fn waits_double_until_a_session_is_of_use() {
        let mut back_off = BackOff::new(MIN, MAX);
        assert_eq!(waits(&mut back_off), [0, 100, 200, 400, 800, 1600, 2000]);
        back_off.note_session(MAX / 2, false);
        back_off.note_session(MIN / 2, true);
        assert_eq!(back_off.take(), MAX, "neither was of use");
        back_off.note_session(MIN, true);
        assert_eq!(waits(&mut back_off)[..2], [0, 100]);
        back_off.note_session(MAX, false);
        assert_eq!(waits(&mut back_off)[..2], [0, 100]);
    }
}
