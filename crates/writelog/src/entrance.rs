//! Who may change something now, and who waits for his turn.
//!
//! | a change waits | until |
//! |---|---|
//! | while as much waits for a record as may | a record has taken some |
//! | while no slot is free, where it goes to slots | one is |
//! | while the log would soon be full | its turn at the pace at which room is made ([`crate::pace`]) |
//! | to slots, while these or the log are nearly full | a pause is over, the longer the fuller they are |
//! | during a round in the paper's profile | its end |
//!
//! Those who wait go in by turns of their submitters ([`block::fair_queue`]), so that one who sends much delays
//! himself.
//!
//! A change takes its place among overlapping requests when it goes in, not before. So reads of a block whose write
//! waits are answered, with what was there before: nobody was told of the write yet. Changes of one submitter go in in
//! the order in which they came.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::range_lock::{Acquire, RangeGuard};
use block::{Completion, Response, Submitter};
use futures_util::future::select;

use crate::core::{Core, State};
use crate::limits::{PAUSE_EXPONENT, QUEUE_BYTES_MAX, QUEUE_BYTES_WHEN_FULL, UNIT_BYTES};
use crate::line::{ChangeBytes, SharedPlace, Waiting};
use crate::options::Level2;
use crate::pace::log_cost;
use crate::stage::Stage;

/// A change that was submitted.
pub(crate) enum Entrance {
    /// It is in.
    Open(Acquire),
    /// It waits for its turn, and finds its place then.
    Later { turn: Completion, place: SharedPlace },
}

/// Why nobody goes in now.
enum Closed {
    /// Until something changes.
    UntilChanged,
    /// For this time, unless something changes.
    For(Duration),
}

impl Core {
    /// A change of `range` by writing `bytes`. Its place among those that overlap is taken here, if it may go in now.
    pub(crate) fn enter(self: &Arc<Self>, submitter: Submitter, range: ByteRange, bytes: u64) -> Entrance {
        let (entrance, is_first) = {
            let state = &mut *self.state();
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
            self.background.notify();
            let core = Arc::clone(self);
            self.workers.spawn(async move { core.serve_line().await });
        }
        entrance
    }

    fn bytes_needed(&self, state: &State, bytes: u64) -> ChangeBytes {
        let now = self.clock.now();
        match &state.contents.stage {
            Some(stage) if self.fits_stage(state, bytes) => {
                let slots = bytes.div_ceil(stage.slot_sectors() * UNIT_BYTES) * self.layout.slot_bytes;
                ChangeBytes { data: bytes, log: 0, slots, not_before: now + self.slot_pause(state, stage) }
            }
            _ => ChangeBytes { data: bytes, log: log_cost(bytes), slots: 0, not_before: now },
        }
    }

    /// How long a write to slots pauses: from nothing while there is room, in the log and in the slots, slowly and then
    /// steeply up to the longest when there is none. What of it will reach the log nobody knows, so that there is no
    /// rate to go by.
    fn slot_pause(&self, state: &State, stage: &Stage) -> Duration {
        let Level2 { share_slow, pause_max, .. } = self.level2();
        let over = |used: f64, slow: f64| ((used - slow) / (1.0 - slow)).clamp(0.0, 1.0);
        let log = over(state.share_used(&self.layout), share_slow);
        // A round begins at `share_start`; half of what is left then is for what comes while it runs.
        let slots = over(stage.share_used(), f64::midpoint(self.options.level1.share_start, 1.0));
        pause_max.mul_f64(log.max(slots).powi(PAUSE_EXPONENT))
    }

    /// Lets those in who wait, as they may. Ends when nobody does.
    async fn serve_line(self: Arc<Self>) {
        loop {
            let count = self.changed.count();
            match self.admit_due() {
                None => return,
                Some(Closed::UntilChanged) => self.changed.changed_since(count).await,
                Some(Closed::For(time)) => {
                    drop(select(self.clock.sleep(time), self.changed.changed_since(count)).await)
                }
            }
        }
    }

    /// Lets in who may go in now. Says why others may not; `None` when nobody waits any more.
    fn admit_due(&self) -> Option<Closed> {
        let mut entered = Vec::new();
        let closed = {
            let state = &mut *self.state();
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
            // Closing waits for it.
            self.changed.notify();
        }
        closed
    }

    fn admit(&self, state: &mut State, range: ByteRange, bytes_needed: ChangeBytes) -> Acquire {
        let (now, free_bytes) = (self.clock.now(), self.free_bytes(state));
        state.pace.admit(now, bytes_needed.log, free_bytes);
        self.entering_bytes.fetch_add(bytes_needed.data, Ordering::Relaxed);
        // Here, so that nobody who comes later is before it.
        self.ranges.exclusive(range)
    }

    /// Why a change may not go in now.
    fn closed(&self, state: &mut State, bytes_needed: ChangeBytes) -> Option<Closed> {
        if state.failure.has_come() || state.room.stuck().is_some() {
            // It goes elsewhere, or learns why it cannot.
            return None;
        }
        let entering = self.entering_bytes.load(Ordering::Relaxed);
        let queue_max = if state.room.is_wanted() { QUEUE_BYTES_WHEN_FULL } else { QUEUE_BYTES_MAX };
        // Slots have room of their own, whatever level 1 waits for.
        let is_queue_full = bytes_needed.slots == 0 && state.appender.queue_bytes() + entering > queue_max;
        let has_slot = bytes_needed.slots == 0 || self.free_slot_bytes(state) > entering;
        if state.is_gated || is_queue_full || !has_slot {
            return Some(Closed::UntilChanged);
        }
        let (now, free_bytes) = (self.clock.now(), self.free_bytes(state));
        let wait = match bytes_needed.slots {
            0 => state.pace.poll_wait(now, free_bytes),
            _ => bytes_needed.not_before.since(now),
        };
        (!wait.is_zero()).then_some(Closed::For(wait))
    }

    /// Bytes of the log that nothing is on its way to.
    fn free_bytes(&self, state: &State) -> u64 {
        state.free_bytes(&self.layout).saturating_sub(state.appender.queue_bytes())
    }

    fn free_slot_bytes(&self, state: &State) -> u64 {
        let free_count = state.contents.stage.as_ref().map_or(0, |stage| stage.slot_count() - stage.used_count());
        free_count as u64 * self.layout.slot_bytes
    }

    /// Waits until nobody is at work, and keeps everybody out until the guards are dropped. Whoever waits for his turn
    /// goes on waiting: while applications write more than the log takes in there is always one.
    pub(crate) async fn exclude_requests(&self) -> (RangeGuard, RangeGuard) {
        let everything = ByteRange { offset: 0, length: u64::MAX };
        let requests = self.ranges.exclusive(everything).await;
        (requests, self.below.exclusive(everything).await)
    }

    /// Waits until nobody waits for his turn. Whoever comes later is for the caller to keep out.
    pub(crate) async fn line_emptied(&self) {
        loop {
            let count = self.changed.count();
            if self.state().line.waiting.is_empty() {
                return;
            }
            self.changed.changed_since(count).await;
        }
    }
}

impl Entrance {
    /// Goes in: waits for its turn, and then for requests before it that overlap. `bytes` is what it entered with.
    pub(crate) async fn pass(self, core: &Core, bytes: u64) -> RangeGuard {
        let place = match self {
            Self::Open(place) => place,
            Self::Later { turn, place } => {
                turn.await;
                let place = place.lock().unwrap_or_else(PoisonError::into_inner).take();
                place.expect("who lets one in gives it a place first, and the line lives as long as the log")
            }
        };
        let guard = place.await;
        core.entering_bytes.fetch_sub(bytes, Ordering::Relaxed);
        guard
    }
}
