//! Admission of changes: which may start now, and which wait for their turn.
//!
//! | a change waits | until |
//! |---|---|
//! | while the queue for records is full | a record has taken some of it |
//! | while no slot is free, where it goes to slots | one is |
//! | while the log would soon be full | its turn, at the pace at which room is made ([`crate::pace`]) |
//! | to slots, while these would soon be full | likewise, at the pace at which slots come free |
//! | during a round in the paper's profile | its end |
//!
//! Waiting changes are admitted by turns of their submitters ([`block::fair_queue`]), so that a
//! submitter of many changes delays only its own.
//!
//! A change takes its place among overlapping requests at its admission, not before. So a read of a
//! block whose write still waits is answered with the old content: that write is not acknowledged
//! yet. Changes of one submitter are admitted in their order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::range::ByteRange;
use block::completion::Workers;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use block::{Completion, Response, Submitter};
use futures_util::future::select;

use crate::counters::Counters;
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_BYTES_WHEN_FULL, UNIT_BYTES};
use crate::line::{ChangeBytes, SharedPlace, Waiting};
use crate::log_state::{LogState, State};
use crate::pace::log_cost;
use crate::settings::Settings;

/// A submitted change: admitted, or waiting for admission.
pub(crate) enum Entrance {
    /// It is admitted.
    Open(Acquire),
    /// It waits for its turn, and finds its place among overlapping requests then.
    Later { turn: Completion, place: SharedPlace },
}

/// Why no change is admitted now.
enum Closed {
    /// Until something changes.
    UntilChanged,
    /// For this time, unless something changes.
    For(Duration),
}

/// Admits changes.
pub(crate) struct Admission {
    pub(crate) log: Arc<LogState>,
    pub(crate) settings: Arc<Settings>,
    /// The order of overlapping requests.
    pub(crate) ranges: RangeLock,
    pub(crate) workers: Workers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<Counters>,
    /// Bytes of writes that were admitted and are not in the queue or the slots yet.
    pub(crate) entering_bytes: AtomicU64,
}

impl Admission {
    /// Submits a change of `range` that writes `bytes`. If it may be admitted now, it takes its
    /// place among overlapping requests here.
    pub(crate) fn enter(self: &Arc<Self>, submitter: Submitter, range: ByteRange, bytes: u64) -> Entrance {
        let (entrance, is_first) = {
            let state = &mut *self.log.state();
            let bytes_needed = self.bytes_needed(state, bytes);
            if state.line.waiting.is_empty() && self.closed(state, bytes_needed).is_none() {
                return Entrance::Open(self.admit(state, range, bytes_needed));
            }
            let (turn, sender) = Completion::slot();
            let place = SharedPlace::default();
            let waiting = Waiting { range, bytes_needed, turn: sender, place: Arc::clone(&place) };
            state.line.waiting.push(submitter, log_cost(bytes), waiting);
            (Entrance::Later { turn, place }, !std::mem::replace(&mut state.line.is_served, true))
        };
        self.counters.writes_slowed.fetch_add(1, Ordering::Relaxed);
        if is_first {
            self.log.background.notify();
            let admission = Arc::clone(self);
            self.workers.spawn(async move { admission.serve_line().await });
        }
        entrance
    }

    fn bytes_needed(&self, state: &State, bytes: u64) -> ChangeBytes {
        match &state.contents.stage {
            Some(stage) if state.fits_stage(&self.settings, bytes) => {
                let slots = bytes.div_ceil(stage.slot_sectors() * UNIT_BYTES) * self.log.layout.slot_bytes;
                ChangeBytes { data: bytes, log: 0, slots }
            }
            _ => ChangeBytes { data: bytes, log: log_cost(bytes), slots: 0 },
        }
    }

    /// Admits waiting changes as they may be. Ends when none waits.
    async fn serve_line(self: Arc<Self>) {
        loop {
            let count = self.log.changed.count();
            match self.admit_due() {
                None => return,
                Some(Closed::UntilChanged) => self.log.changed.changed_since(count).await,
                Some(Closed::For(time)) => {
                    drop(select(self.clock.sleep(time), self.log.changed.changed_since(count)).await)
                }
            }
        }
    }

    /// Admits the waiting changes that may be admitted now. Returns why the next one may not;
    /// `None` when none waits any more.
    fn admit_due(&self) -> Option<Closed> {
        let mut entered = Vec::new();
        let closed = {
            let state = &mut *self.log.state();
            loop {
                let Some(Waiting { bytes_needed, .. }) = state.line.waiting.peek() else {
                    state.line.is_served = false;
                    break None;
                };
                let bytes_needed = *bytes_needed;
                if let Some(closed) = self.closed(state, bytes_needed) {
                    break Some(closed);
                }
                let Some(next) = state.line.waiting.pop() else { continue };
                let place = self.admit(state, next.range, bytes_needed);
                *next.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
                entered.push(next.turn);
            }
        };
        let is_over = closed.is_none();
        entered.into_iter().for_each(|turn| turn.complete(Response::done(Buffer::empty())));
        if is_over {
            // A close waits until none waits.
            self.log.changed.notify();
        }
        closed
    }

    fn admit(&self, state: &mut State, range: ByteRange, bytes_needed: ChangeBytes) -> Acquire {
        let now = self.clock.now();
        match bytes_needed.slots {
            0 => state.pace.admit(now, bytes_needed.log, self.free_bytes(state)),
            slots => state.slot_pace.admit(now, slots, self.free_slot_bytes(state)),
        }
        self.entering_bytes.fetch_add(bytes_needed.data, Ordering::Relaxed);
        // Taken here, so that no later change comes before it.
        self.ranges.exclusive(range)
    }

    /// Why a change may not be admitted now.
    fn closed(&self, state: &mut State, bytes_needed: ChangeBytes) -> Option<Closed> {
        if state.failure.has_come() || state.room.stuck().is_some() {
            // It goes past the log, or fails and returns the reason.
            return None;
        }
        let entering = self.entering_bytes.load(Ordering::Relaxed);
        let queue_max = if state.room.is_wanted() { QUEUE_BYTES_WHEN_FULL } else { QUEUE_BYTES_MAX };
        // Slots have room of their own, even while level 1 waits for room.
        let is_queue_full = bytes_needed.slots == 0 && state.appender.queue_bytes() + entering > queue_max;
        let has_slot = bytes_needed.slots == 0 || self.free_slot_bytes(state) > 0;
        if state.is_gated || is_queue_full || !has_slot {
            return Some(Closed::UntilChanged);
        }
        let now = self.clock.now();
        let wait = match bytes_needed.slots {
            0 => state.pace.poll_wait(now, self.free_bytes(state)),
            _ => state.slot_pace.poll_wait(now, self.free_slot_bytes(state)),
        };
        (!wait.is_zero()).then_some(Closed::For(wait))
    }

    /// Free bytes of the log, without those for queued entries.
    fn free_bytes(&self, state: &State) -> u64 {
        state.free_bytes().saturating_sub(state.appender.queue_bytes())
    }

    /// Free bytes of slots, without those for admitted writes.
    fn free_slot_bytes(&self, state: &State) -> u64 {
        let free_count = state.contents.stage.as_ref().map_or(0, |stage| stage.slot_count() - stage.used_count());
        (free_count as u64 * self.log.layout.slot_bytes).saturating_sub(self.entering_bytes.load(Ordering::Relaxed))
    }

    /// Waits until no change waits for admission. The caller keeps new ones out.
    pub(crate) async fn line_emptied(&self) {
        loop {
            let count = self.log.changed.count();
            if self.log.state().line.waiting.is_empty() {
                return;
            }
            self.log.changed.changed_since(count).await;
        }
    }
}

impl Entrance {
    /// Waits for its turn, and then for overlapping requests before it. `bytes` is the same as in
    /// `enter`.
    pub(crate) async fn pass(self, admission: &Admission, bytes: u64) -> RangeGuard {
        let place = match self {
            Self::Open(place) => place,
            Self::Later { turn, place } => {
                turn.await;
                let place = place.lock().unwrap_or_else(PoisonError::into_inner).take();
                place.expect("who lets one in gives it a place first, and the line lives as long as the log")
            }
        };
        let guard = place.await;
        admission.entering_bytes.fetch_sub(bytes, Ordering::Relaxed);
        guard
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::tests::Parts;

    const RANGE: ByteRange = ByteRange { offset: 0, length: 4096 };

    #[test]
    fn a_change_waits_while_too_much_is_on_its_way_into_records() {
        let mut parts = Parts::new(|_| {});
        let admission = Arc::new(parts.assembly.admission());
        let first = admission.enter(Submitter::default(), RANGE, QUEUE_BYTES_MAX + 1);
        assert!(matches!(first, Entrance::Open(_)));
        let mut second = Box::pin(admission.enter(Submitter::default(), RANGE, 4096).pass(&admission, 4096));
        parts.executor.run_until_stalled();
        assert!(second.as_mut().now_or_never().is_none(), "the first is not in the queue yet");
        let guard = first.pass(&admission, QUEUE_BYTES_MAX + 1).now_or_never();
        admission.log.changed.notify();
        parts.executor.run_until_stalled();
        assert!(second.as_mut().now_or_never().is_none(), "it has its place behind the first");
        drop(guard);
        assert!(second.now_or_never().is_some());
    }
}
