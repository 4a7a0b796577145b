//! How much heavy connections may have in a device beside a light one.
//!
//! A light request waits for what is in the device before it, besides its own time. Over a long
//! link much can be under way before anything waits; in memory hardly anything can. So the room
//! begins small, where the time of a piece is about its time without waiting. While pieces take
//! hardly longer than that, the room is doubled; once they do, it is halved, and stays. After each
//! [`ROOM_INTERVAL`] it begins anew.
//!
//! ```text
//!            pieces take as long as at first: twice as much
//! small ───────────────────────────────────────────────────► larger ── longer: half as much ──► settled
//!   ▲                                                                                              │
//!   └──────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The mean time of pieces decides: some may come from a cache.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{BESIDE_LIGHT_COST, ROOM_INTERVAL, ROOM_SAMPLES, SHARED_COST};

pub(crate) struct Room {
    cost: u64,
    /// When it was last set to its least.
    since: Option<Instant>,
    /// Whether the requests from before that have left the device.
    is_clear: bool,
    /// The mean time of a piece at that size.
    at_first: Option<Duration>,
    is_settled: bool,
    /// Count of pieces since the last change, and the sum of their times.
    count: u32,
    sum: Duration,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            cost: BESIDE_LIGHT_COST,
            since: None,
            is_clear: false,
            at_first: None,
            is_settled: false,
            count: 0,
            sum: Duration::ZERO,
        }
    }
}

impl Room {
    /// The cost that may be in the device.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Notes the end of a piece that was begun at `begun`.
    pub(crate) fn learn(&mut self, begun: Instant, now: Instant) {
        if self.since.is_none_or(|since| now >= since + ROOM_INTERVAL) {
            *self = Self { since: Some(now), ..Self::default() };
        }
        if self.since.is_some_and(|since| begun < since) {
            return;
        }
        self.count += 1;
        self.sum += now - begun;
        if self.count == ROOM_SAMPLES {
            let mean = self.sum / ROOM_SAMPLES;
            (self.count, self.sum) = (0, Duration::ZERO);
            self.judge(mean);
        }
    }

    /// Notes a piece that the device answered at once: the thread is what others wait for.
    pub(crate) fn learn_immediate(&mut self) {
        self.cost = (self.cost / 2).max(BESIDE_LIGHT_COST);
    }

    fn judge(&mut self, mean: Duration) {
        if !std::mem::replace(&mut self.is_clear, true) {
            return;
        }
        let at_first = *self.at_first.get_or_insert(mean);
        if mean * 4 > at_first * 5 {
            self.cost = (self.cost / 2).max(BESIDE_LIGHT_COST);
            self.is_settled = true;
        } else if mean * 8 <= at_first * 9 && !self.is_settled {
            self.cost = (self.cost * 2).min(SHARED_COST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Notes `count` pieces, one after the other, that take `took` each.
    fn pieces(room: &mut Room, now: &mut Instant, count: u32, took: Duration) {
        for _ in 0..count {
            let begun = *now;
            *now += took;
            room.learn(begun, *now);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_grows_while_pieces_take_no_longer() {
        let (mut room, mut now) = (Room::default(), Instant::now());
        assert_eq!(room.cost(), BESIDE_LIGHT_COST);
        pieces(&mut room, &mut now, ROOM_SAMPLES, 9 * MILLISECOND);
        pieces(&mut room, &mut now, 1 + 2 * ROOM_SAMPLES, MILLISECOND);
        assert_eq!(room.cost(), 4 * BESIDE_LIGHT_COST);
        pieces(&mut room, &mut now, ROOM_SAMPLES, 2 * MILLISECOND);
        assert_eq!(room.cost(), 2 * BESIDE_LIGHT_COST);
        pieces(&mut room, &mut now, 4 * ROOM_SAMPLES, MILLISECOND);
        assert_eq!(room.cost(), 2 * BESIDE_LIGHT_COST, "it has settled");
        now += ROOM_INTERVAL;
        pieces(&mut room, &mut now, 1, MILLISECOND);
        assert_eq!(room.cost(), BESIDE_LIGHT_COST, "anew");
        pieces(&mut room, &mut now, 20 * ROOM_SAMPLES, MILLISECOND);
        assert_eq!(room.cost(), SHARED_COST);
        (0..64).for_each(|_| room.learn_immediate());
        assert_eq!(room.cost(), BESIDE_LIGHT_COST);
    }
}
