//! A limit on log lines about the same kind of failure: one in a while, with a count of those left
//! out.

use base::clock::Instant;
use block::ErrorKind;

use crate::limits::FAILURE_LOG_INTERVAL;

/// The limit for one subject.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<(ErrorKind, Instant)>,
    left_out: u64,
}

impl LogLimit {
    /// Whether a failure of this kind is logged now. If so, returns how many were left out since
    /// the last logged one.
    pub(crate) fn admit(&mut self, kind: ErrorKind, now: Instant) -> Option<u64> {
        let is_old = |(last, at): &(ErrorKind, Instant)| *last == kind && now.since(*at) < FAILURE_LOG_INTERVAL;
        if self.last.as_ref().is_some_and(is_old) {
            self.left_out += 1;
            return None;
        }
        self.last = Some((kind, now));
        Some(std::mem::take(&mut self.left_out))
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
        assert_eq!(limit.admit(ErrorKind::NoSpace, now), Some(2), "something else is news");
        now = now + FAILURE_LOG_INTERVAL;
        assert_eq!(limit.admit(ErrorKind::NoSpace, now), Some(0));
    }
}
