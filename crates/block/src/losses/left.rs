//! What the clients that left know of the losses.

use std::collections::VecDeque;

use base::clock::Instant;

use crate::limits::{LEFT_CLIENTS_MAX, LEFT_TIME};

/// Of how many losses those know that left, while they may come back. Nobody can tell one client from
/// another, so only the one that knows least counts.
///
/// Later entries know more: what an entry says is said as well by a later one that knows no more.
#[derive(Default)]
pub(super) struct Left(VecDeque<Entry>);

struct Entry {
    told: u64,
    until: Instant,
}

impl Left {
    /// One that was told of the first `told` losses leaves.
    pub(super) fn add(&mut self, told: u64, now: Instant) {
        self.expire(now);
        while self.0.back().is_some_and(|entry| entry.told >= told) {
            self.0.pop_back();
        }
        if self.0.len() == LEFT_CLIENTS_MAX
            && let Some(oldest) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            next.told = oldest.told;
        }
        self.0.push_back(Entry { told, until: now + LEFT_TIME });
    }

    /// Of how many losses the one knows that knows least of those that may still come back.
    pub(super) fn told_least(&mut self, now: Instant) -> Option<u64> {
        self.expire(now);
        self.0.front().map(|entry| entry.told)
    }

    fn expire(&mut self, now: Instant) {
        while self.0.front().is_some_and(|entry| entry.until <= now) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_knows_least_counts_until_it_does_not_come_back() {
        let (mut left, start) = (Left::default(), Instant::START);
        assert_eq!(left.told_least(start), None);
        left.add(3, start);
        left.add(1, start + SECOND);
        left.add(2, start + SECOND * 2);
        left.add(2, start + SECOND * 3);
        assert_eq!(left.0.len(), 2, "who left before and knows as much says nothing new");
        let least = [1, 301, 302, 303].map(|second| left.told_least(start + SECOND * second));
        assert_eq!(least, [Some(1), Some(2), Some(2), None]);
    }

    #[test]
    fn entries_are_bounded_and_none_of_what_is_not_known_is_forgotten() {
        let (mut left, start) = (Left::default(), Instant::START);
        let count = LEFT_CLIENTS_MAX as u64 + 10;
        (0..count).for_each(|told| left.add(told, start + SECOND * told as u32));
        assert_eq!(left.0.len(), LEFT_CLIENTS_MAX);
        // The first ten are one with the eleventh, which left ten seconds later.
        assert_eq!(left.told_least(start + LEFT_TIME + SECOND * 9), Some(0));
        assert_eq!(left.told_least(start + LEFT_TIME + SECOND * 10), Some(11));
    }
}
