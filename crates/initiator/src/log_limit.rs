//! A limit on log lines about the same kind of thing: so many in a while, with a count of those left out. Kinds that
//! take turns, as failures of reads and of writes, have a limit each.

use base::clock::Instant;
use block::ErrorKind;

use crate::limits::FAILURE_LOG_INTERVAL;

/// The limit for one subject.
#[derive(Debug)]
pub(crate) struct LogLimit<K = ErrorKind> {
    /// Lines of a kind in a while.
    lines_max: u32,
    kinds: Vec<Lines<K>>,
}

/// The lines of one kind.
#[derive(Debug)]
struct Lines<K> {
    kind: K,
    /// When the while began.
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self::with_lines(1)
    }
}

impl<K> LogLimit<K> {
    /// A limit that admits so many lines of a kind in a while.
    pub(crate) fn with_lines(lines_max: u32) -> Self {
        Self { lines_max, kinds: Vec::new() }
    }
}

impl<K: PartialEq> LogLimit<K> {
    /// Whether a line of this kind is logged now. If so, returns how many of it were left out since
    /// the last logged one.
    pub(crate) fn admit(&mut self, kind: K, now: Instant) -> Option<u64> {
        let Some(lines) = self.kinds.iter_mut().find(|lines| lines.kind == kind) else {
            self.kinds.push(Lines { kind, since: now, logged: 1, left_out: 0 });
            return Some(0);
        };
        if now.since(lines.since) >= FAILURE_LOG_INTERVAL {
            (lines.since, lines.logged) = (now, 0);
        }
        if lines.logged >= self.lines_max {
            lines.left_out += 1;
            return None;
        }
        lines.logged += 1;
        Some(std::mem::take(&mut lines.left_out))
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

    #[test]
    fn some_lines_of_a_kind_may_follow_each_other() {
        let mut limit = LogLimit::with_lines(2);
        let mut now = Instant::START;
        let thrice = |limit: &mut LogLimit, now: Instant| [(); 3].map(|()| limit.admit(ErrorKind::Media, now));
        assert_eq!(thrice(&mut limit, now), [Some(0), Some(0), None]);
        now = now + FAILURE_LOG_INTERVAL;
        assert_eq!(thrice(&mut limit, now), [Some(1), Some(0), None]);
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
