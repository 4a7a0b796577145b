//! Level 1 destage: from slots to the log.
//!
//! A *round* moves the older half of the slots in use (all of them where the order is kept, for a flush and when idle)
//! in records of the log, two on their way at most. Slots come free record by record, so a write that waits for one
//! waits for one record, not for the round. In the paper's profile a round goes on until the RAM is empty, and requests
//! wait until then: its peaks.
//!
//! A round begins when many slots are in use or one has been for long, in an idle moment, and when
//! a flush or a request needs the slots empty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::clock::Clock;
use block::{Completion, Error};
use futures_util::lock::Mutex;
use store::Life;

use crate::activity::Activity;
use crate::append::RecordSender;
use crate::counters::Counters;
use crate::entry::Content;
use crate::limits::{AGE_SHARES, DESTAGE_RETRY_MS, RECORDS_IN_FLIGHT_MAX, SEGMENT_BYTES_PAPER};
use crate::log_state::{LogState, State};
use crate::settings::Settings;

/// Bytes of slots that, with their table, fill a record in the smallest segment.
const ROUND_RECORD_BYTES: u64 = SEGMENT_BYTES_PAPER as u64 / 8 * 7;

/// Share of the slots in use that a round under load moves.
const SHARE_MOVED: f64 = 0.5;

/// Moves slots to the log: level 1.
pub(crate) struct SlotMover {
    pub(crate) log: Arc<LogState>,
    pub(crate) records: Arc<RecordSender>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) life: Arc<Life>,
    /// Held during a round.
    pub(crate) moving: Arc<Mutex<()>>,
}

impl SlotMover {
    /// Moves the older `share` of the slots in use to the log, durably.
    pub(crate) async fn move_round(&self, share: f64) -> Result<(), Error> {
        let _round = self.moving.lock().await;
        {
            let state = &mut *self.log.state();
            let Some(stage) = &mut state.contents.stage else { return Ok(()) };
            stage.begin_round(share);
            state.slot_pace.work_began(self.clock.now());
            state.is_gated = self.settings.level1.is_exclusive;
        }
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        let result = self.move_slots().await;
        {
            let state = &mut *self.log.state();
            if let Some(stage) = &mut state.contents.stage {
                stage.end_round();
            }
            state.slot_pace.work_stopped(self.clock.now());
            state.is_gated = false;
        }
        self.log.changed.notify();
        result
    }

    async fn move_slots(&self) -> Result<(), Error> {
        let mut on_their_way: VecDeque<Completion> = VecDeque::new();
        let mut result = Ok(());
        loop {
            let entries: Vec<_> = {
                let state = &mut *self.log.state();
                let Some(stage) = &mut state.contents.stage else { return Ok(()) };
                let slots = if result.is_ok() { stage.take_moving(ROUND_RECORD_BYTES) } else { Vec::new() };
                let entry = |slot| {
                    let found = stage.slot(slot);
                    (found.sector, u64::from(found.sectors), Content::Slot(slot))
                };
                slots.into_iter().map(entry).collect()
            };
            if !entries.is_empty() {
                on_their_way.push_back(self.records.append(entries));
                if on_their_way.len() < RECORDS_IN_FLIGHT_MAX {
                    continue;
                }
            }
            match on_their_way.pop_front() {
                // All records are awaited: a slot that is still moving must not be taken by the
                // next round, nor passed over by a flush.
                Some(oldest) => result = result.and(oldest.await.result),
                None => return result,
            }
        }
    }

    /// Whether enough slots are in use for a round.
    pub(crate) fn is_round_due(&self, state: &State) -> bool {
        let Some(stage) = &state.contents.stage else { return false };
        let level1 = &self.settings.level1;
        let is_eager = level1.is_eager && state.appender.is_idle();
        let least = if is_eager { ROUND_RECORD_BYTES / self.log.layout.slot_bytes } else { u64::MAX };
        let [share, ..] = AGE_SHARES;
        let is_old = stage
            .oldest_at()
            .is_some_and(|at| self.settings.level2().share_of_age(self.clock.now().since(at)) >= share);
        is_old || stage.share_used() >= level1.share_start || stage.used_count() as u64 >= least
    }

    /// Runs rounds as they become due. Ends when the log closes.
    pub(crate) async fn run(&self) {
        let mut failures = 0;
        loop {
            let count = self.log.background.count();
            if self.life.is_stopped() {
                return;
            }
            let (is_due, is_used, has_failed) = {
                let state = self.log.state();
                let is_used = state.contents.stage.as_ref().is_some_and(|stage| !stage.is_empty());
                (self.is_round_due(&state), is_used, state.failure.has_come())
            };
            let idle_left = self.settings.level2().idle.saturating_sub(self.activity.idle_for());
            if has_failed || !is_used {
                self.log.background.changed_since(count).await;
            } else if is_due || idle_left.is_zero() {
                let is_whole = !is_due || self.settings.level1.is_exclusive;
                let share = if is_whole { 1.0 } else { SHARE_MOVED };
                match self.move_round(share).await {
                    Ok(_) => failures = 0,
                    Err(error) => {
                        failures += 1;
                        warn_of_failure(&error, failures, "level 1 destage failed; it is tried again");
                        self.clock.sleep(Duration::from_millis(DESTAGE_RETRY_MS)).await;
                    }
                }
            } else {
                self.log.wait_for_work(self.clock.as_ref(), count, idle_left).await;
            }
        }
    }
}

/// Says that background work failed as often as `failures`, one after the other: a line for each doubling, since it is
/// tried each second for as long as a LUN refuses it.
pub(crate) fn warn_of_failure(error: &Error, failures: u32, what: &str) {
    if failures.is_power_of_two() {
        tracing::warn!(%error, failures, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;
    use crate::map::Piece;
    use crate::numbers::Sector;
    use crate::options::{DestageOrder, Durability};
    use crate::tests::Parts;

    fn staged() -> Parts {
        Parts::new(|options| {
            options.order = DestageOrder::Lba;
            options.durability = Durability::UnsafeVolatile;
        })
    }

    #[test]
    fn a_round_moves_the_older_half_of_the_slots() {
        let mut parts = staged();
        let records = Arc::new(parts.assembly.records());
        let mover = Arc::new(parts.assembly.mover(&records));
        for index in 0..4 {
            parts.put_in_slot(16 * index, 2, 1);
        }
        let moving = Arc::clone(&mover);
        parts.executor.block_on(async move { moving.move_round(SHARE_MOVED).await }).expect("nothing fails");
        let state = mover.log.state();
        let logged: Vec<Sector> = state
            .contents
            .map
            .dirty_from(Sector::FIRST)
            .filter(Piece::is_in_segment)
            .map(|piece| piece.sector)
            .collect();
        assert_eq!(logged, [0, 16].map(Sector));
        assert_eq!(state.contents.stage.as_ref().map(|stage| stage.used_count()), Some(2));
    }

    #[test]
    fn slots_that_the_log_does_not_take_stay() {
        let mut parts = staged();
        let records = Arc::new(parts.assembly.records());
        let mover = Arc::new(parts.assembly.mover(&records));
        let piece = parts.put_in_slot(0, 2, 1);
        parts.device.fail_writes_from(parts.device.writes_seen(), ErrorKind::Media);
        let moving = Arc::clone(&mover);
        let moved = parts.executor.block_on(async move { moving.move_round(1.0).await });
        assert_eq!(moved.map_err(|error| error.kind()), Err(ErrorKind::Media));
        let state = mover.log.state();
        assert_eq!(state.contents.map.dirty_from(Sector::FIRST).collect::<Vec<_>>(), [piece]);
        assert!(!state.is_gated && state.contents.stage.as_ref().is_some_and(|stage| !stage.is_at_cut()));
    }
}
