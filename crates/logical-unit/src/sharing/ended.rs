//! The lives of clients that have ended: fenced, with a lease that is over, or left.
//!
//! After a start of the target a client may reclaim what a life before held. One that was fenced
//! may not know it: it was frozen, or cut off. What it held passed on, others wrote, and it would
//! write over that. So the end of a life is durable before what it held passes on.
//!
//! Registrations are counted, and most of them end: lives that follow one another are one span, so
//! that there are few more spans than clients that live.

use std::ops::RangeInclusive;

use locks::identity::{BootEpoch, ClientId};

use crate::limits::ENDED_SPANS_MAX;

/// A set of lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedLives {
    /// In order; between two of them there is a life that has not ended.
    spans: Vec<RangeInclusive<u64>>,
}

impl EndedLives {
    /// The lives whose ids have bits in these spans.
    pub fn from_spans(spans: impl IntoIterator<Item = RangeInclusive<u64>>) -> Self {
        let mut all = Self::default();
        spans.into_iter().for_each(|span| all.insert(span));
        all
    }

    /// The bits of the ids of these lives, first to last of each span.
    pub fn spans(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.spans.iter().cloned()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether a life has ended.
    pub fn contains(&self, life: ClientId) -> bool {
        self.spans.iter().any(|span| span.contains(&life.bits()))
    }

    /// Adds a life. Without room for it all lives until the end of its start count as ended: a
    /// client too many that reclaims nothing loses what only it has, one too few what others wrote.
    /// Returns whether there was room.
    pub(super) fn add(&mut self, life: ClientId) -> bool {
        self.insert(life.bits()..=life.bits());
        let has_room = self.spans.len() <= ENDED_SPANS_MAX;
        if !has_room {
            self.insert(0..=ClientId::new(life.boot_epoch(), u32::MAX).bits());
        }
        has_room
    }

    /// Removes the lives of earlier starts than this one, which reclaim nothing any more.
    pub(super) fn forget_before(&mut self, start: BootEpoch) {
        let first = ClientId::new(start, 0).bits();
        self.spans.retain(|span| *span.end() >= first);
    }

    fn insert(&mut self, new: RangeInclusive<u64>) {
        let touches = |span: &RangeInclusive<u64>| {
            *span.start() <= new.end().saturating_add(1) && *new.start() <= span.end().saturating_add(1)
        };
        let (mut first, mut last) = (*new.start(), *new.end());
        for span in self.spans.extract_if(.., |span| touches(span)) {
            (first, last) = (first.min(*span.start()), last.max(*span.end()));
        }
        let at = self.spans.partition_point(|span| *span.end() < first);
        self.spans.insert(at, first..=last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(start: u32, registration: u32) -> ClientId {
        ClientId::new(BootEpoch(start), registration)
    }

    fn span(start: u32, first: u32, last: u32) -> RangeInclusive<u64> {
        life(start, first).bits()..=life(start, last).bits()
    }

    #[test]
    fn lives_that_follow_one_another_are_one_span() {
        let mut ended = EndedLives::default();
        for registration in [5, 1, 3, 2, 9] {
            assert!(ended.add(life(1, registration)));
        }
        let spans: Vec<_> = ended.spans().collect();
        assert_eq!(spans, [span(1, 1, 3), span(1, 5, 5), span(1, 9, 9)]);
        assert_eq!(EndedLives::from_spans(spans), ended);
        assert!(ended.contains(life(1, 2)) && !ended.contains(life(1, 4)) && !ended.contains(life(2, 2)));
        ended.add(life(2, 1));
        ended.forget_before(BootEpoch(2));
        assert_eq!(ended.spans().collect::<Vec<_>>(), [span(2, 1, 1)]);
    }

    #[test]
    fn without_room_every_life_until_then_has_ended() {
        let mut ended = EndedLives::default();
        let all = u32::try_from(ENDED_SPANS_MAX).unwrap();
        assert!((0..all).all(|index| ended.add(life(3, 2 * index))));
        assert!(!ended.contains(life(3, 1)) && !ended.contains(life(2, 1)));
        assert!(!ended.add(life(3, 2 * all)));
        assert!(ended.contains(life(3, 1)) && ended.contains(life(2, 1)) && ended.contains(life(3, 2 * all + 9)));
        assert!(!ended.contains(life(4, 1)), "of the next start");
        assert_eq!(ended.spans().count(), 1);
        ended.forget_before(BootEpoch(4));
        assert!(ended.is_empty());
    }
}
