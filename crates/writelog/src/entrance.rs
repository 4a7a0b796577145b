//! Who may change something now, and who waits for his turn.
//!
//! | a change waits | until |
//! |---|---|
//! | while as much waits for a record as may | a record has taken some |
//! | while no slot is free, where it goes to slots | one is |
//! | while the log would soon be full | its turn at the pace at which room is made ([`crate::pace`]) |
//! | to slots, while these would soon be full | likewise, at the pace at which slots come free |
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
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_BYTES_WHEN_FULL, UNIT_BYTES};
use crate::line::{ChangeBytes, SharedPlace, Waiting};
use crate::pace::log_cost;

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
        match &state.contents.stage {
            Some(stage) if self.fits_stage(state, bytes) => {
                let slots = bytes.div_ceil(stage.slot_sectors() * UNIT_BYTES) * self.layout.slot_bytes;
                ChangeBytes { data: bytes, log: 0, slots }
            }
            _ => ChangeBytes { data: bytes, log: log_cost(bytes), slots: 0 },
        }
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
        let now = self.clock.now();
        match bytes_needed.slots {
            0 => state.pace.admit(now, bytes_needed.log, self.free_bytes(state)),
            slots => state.slot_pace.admit(now, slots, self.free_slot_bytes(state)),
        }
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

    /// Bytes of the log that nothing is on its way to.
    fn free_bytes(&self, state: &State) -> u64 {
        state.free_bytes(&self.layout).saturating_sub(state.appender.queue_bytes())
    }

    /// Bytes of slots that nothing is on its way to.
    fn free_slot_bytes(&self, state: &State) -> u64 {
        let free_count = state.contents.stage.as_ref().map_or(0, |stage| stage.slot_count() - stage.used_count());
        (free_count as u64 * self.layout.slot_bytes).saturating_sub(self.entering_bytes.load(Ordering::Relaxed))
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
