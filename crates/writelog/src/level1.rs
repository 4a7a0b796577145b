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

use block::{Completion, Error};
use futures_util::future::{Either, select};

use crate::core::{Core, State};
use crate::entry::Content;
use crate::limits::{AGE_SHARES, DESTAGE_RETRY_MS, RECORDS_IN_FLIGHT_MAX, SEGMENT_BYTES_PAPER};

/// Bytes of slots that, with their table, fill a record in the smallest segment.
const ROUND_RECORD_BYTES: u64 = SEGMENT_BYTES_PAPER as u64 / 8 * 7;

/// Share of the slots in use that a round under load moves.
const SHARE_MOVED: f64 = 0.5;

impl Core {
    /// Moves the older `share` of the slots in use to the log, durably.
    pub(crate) async fn move_round(self: &Arc<Self>, share: f64) -> Result<(), Error> {
        let _round = self.moving.lock().await;
        {
            let state = &mut *self.state();
            let Some(stage) = &mut state.contents.stage else { return Ok(()) };
            stage.begin_round(share);
            state.slot_pace.work_began(self.clock.now());
            state.is_gated = self.options.level1.is_exclusive;
        }
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        let result = self.move_slots().await;
        {
            let state = &mut *self.state();
            if let Some(stage) = &mut state.contents.stage {
                stage.end_round();
            }
            state.slot_pace.work_stopped(self.clock.now());
            state.is_gated = false;
        }
        self.changed.notify();
        result
    }

    async fn move_slots(self: &Arc<Self>) -> Result<(), Error> {
        let mut on_their_way: VecDeque<Completion> = VecDeque::new();
        let mut result = Ok(());
        loop {
            let entries: Vec<_> = {
                let state = &mut *self.state();
                let Some(stage) = &mut state.contents.stage else { return Ok(()) };
                let slots = if result.is_ok() { stage.take_moving(ROUND_RECORD_BYTES) } else { Vec::new() };
                let entry = |slot| {
                    let found = stage.slot(slot);
                    (found.sector, u64::from(found.sectors), Content::Slot(slot))
                };
                slots.into_iter().map(entry).collect()
            };
            if !entries.is_empty() {
                on_their_way.push_back(self.append(entries));
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
        let level1 = &self.options.level1;
        let is_eager = level1.is_eager && state.appender.is_idle();
        let least = if is_eager { ROUND_RECORD_BYTES / self.layout.slot_bytes } else { u64::MAX };
        let [share, ..] = AGE_SHARES;
        let is_old = stage.oldest_at().is_some_and(|at| self.share_of_age(at) >= share);
        is_old || stage.share_used() >= level1.share_start || stage.used_count() as u64 >= least
    }

    /// Runs rounds as they become due. Ends when the log closes.
    pub(crate) async fn move_in_background(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            let count = self.background.count();
            if self.life.is_stopped() {
                return;
            }
            let (is_due, is_used, has_failed) = {
                let state = self.state();
                let is_used = state.contents.stage.as_ref().is_some_and(|stage| !stage.is_empty());
                (self.is_round_due(&state), is_used, state.failure.has_come())
            };
            let idle_left = self.level2().idle.saturating_sub(self.idle_for());
            if has_failed || !is_used {
                self.background.changed_since(count).await;
            } else if is_due || idle_left.is_zero() {
                let is_whole = !is_due || self.options.level1.is_exclusive;
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
                select(self.clock.sleep(idle_left), self.background.changed_since(count)).await;
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

/// Waits for a notification of background work, at most for the time `most`.
pub(crate) async fn wait_for(core: &Core, count: u64, most: Duration) {
    match select(core.clock.sleep(most), core.background.changed_since(count)).await {
        Either::Left(_) | Either::Right(_) => {}
    }
}
