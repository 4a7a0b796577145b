//! A limit on log lines about the same kind of failure: one in a while, with a count of those left
//! out. Kinds that take turns, as those of reads and of writes, have a limit each.

use base::clock::Instant;
use block::ErrorKind;

use crate::limits::FAILURE_LOG_INTERVAL;

/// The limit for one subject.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    /// When each kind was logged last, and how many were left out since.
    kinds: Vec<(ErrorKind, Instant, u64)>,
}

impl LogLimit {
    /// Whether a failure of this kind is logged now. If so, returns how many of it were left out since
    /// the last logged one.
    pub(crate) fn admit(&mut self, kind: ErrorKind, now: Instant) -> Option<u64> {
        let Some((_, last, left_out)) = self.kinds.iter_mut().find(|(known, ..)| *known == kind) else {
            self.kinds.push((kind, now, 0));
            return Some(0);
        };
        if now.since(*last) < FAILURE_LOG_INTERVAL {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_said_once_in_a_while_and_counted() {
        let mut limit = LogLimit::default();
        let mut now = Instant::START;
        assert_eq!(limit.admit(ErrorKind::Media, now), Some(0));
        assert_eq!([limit.admit(ErrorKind::Media, now), limit.admit(ErrorKind::Media, now)], [None, None]);
        assert_eq!(limit.admit(ErrorKind::NoSpace, now), Some(0), "something else is news");
        now = now + FAILURE_LOG_INTERVAL;
        assert_eq!(limit.admit(ErrorKind::NoSpace, now), Some(0));
        assert_eq!(limit.admit(ErrorKind::Media, now), Some(2));
    }

    /// Reads that time out, and writes whose outcome is unknown.
    #[test]
    fn kinds_that_take_turns_are_each_said_once_in_a_while() {
        let mut limit = LogLimit::default();
        let mut now = Instant::START;
        let turns = |limit: &mut LogLimit, now: Instant| {
            let kinds = [ErrorKind::TimedOut, ErrorKind::OutcomeUnknown].into_iter().cycle().take(2000);
            kinds.filter_map(|kind| limit.admit(kind, now)).collect::<Vec<_>>()
        };
        assert_eq!(turns(&mut limit, now), [0, 0]);
        now = now + FAILURE_LOG_INTERVAL;
        assert_eq!(turns(&mut limit, now), [999, 999]);
    }
}
