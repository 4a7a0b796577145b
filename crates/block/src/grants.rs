//! Grants: ranges of a shared device that this host holds alone, and in which it may delay its
//! writes.
//!
//! ```text
//!  nothing ──want──► Asked ──granted──► Held ──called back──► Leaving: unused, clean, forgotten ──► nothing for now
//!                                        │                      │
//!                                        ├─ the device's other end began anew ─► Claimed: held again, or lost
//!                                        └─ the lease is over ─► Lost
//! ```
//! A layer above that delays writes
//! - makes data dirty only with a [`Use`] of its range, and asks afterwards whether that was still
//!   valid;
//! - sends dirty data to the device only with a use from [`Grants::use_to_clean`];
//! - writes through where it has no use. It never waits for one: [`Grants::want`] only asks.
//!
//! A device may also have one part only, the whole of it ([`WHOLE_DEVICE`]): a file system that several
//! hosts mount is changed by whoever holds that.
//!
//! The device decides what is held. It gives a range up only after all uses of it have ended and
//! the layer that delays writes has cleaned it ([`Copies::release`](crate::Copies::release)). If a
//! held range is lost, its dirty data conflicts with what other hosts may have written since.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use base::clock::{Clock, Instant};
use base::range::ByteRange;
use base::signal::Signal;
use futures_util::future::select;

use crate::limits::{GRANT_REST_TIME, GRANTS_MAX};

/// Bytes of a part where the only one is the whole device.
pub const WHOLE_DEVICE: u64 = u64::MAX;

/// The state of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is requested.
    Asked,
    /// It is held, and may be used.
    Held,
    /// It is called back: it is cleaned, and there are no new uses.
    Leaving,
    /// It was held, and is claimed back. Nothing is sent there meanwhile.
    Claimed,
    /// It was held when the lease ended.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    standing: Standing,
    uses: u32,
    /// The number of the request by which it is held.
    tenure: u64,
}

#[derive(Default)]
struct State {
    parts: BTreeMap<u64, Part>,
    /// Parts that are wanted and not requested yet.
    wanted: BTreeSet<u64>,
    /// Parts that were called back, and the time before which they are not requested again.
    resting: BTreeMap<u64, Instant>,
    /// Count of requests.
    requested: u64,
    device: Option<Waker>,
}

/// The ranges of one device, in parts of one size.
#[derive(Clone)]
pub struct Grants(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    part_bytes: u64,
    state: Mutex<State>,
    /// Notified when a part becomes held, stops being held, or loses its last use.
    changed: Signal,
    /// Count of cleaned pieces in ranges that are called back.
    progress: AtomicU64,
}

/// A use of a range, which is not given up as long as this lives.
pub struct Use {
    grants: Grants,
    parts: Range<u64>,
    /// The last of the requests by which they are held.
    tenure: u64,
}

impl Grants {
    /// No range is held. `part_bytes`: bytes of a part.
    pub fn new(clock: Arc<dyn Clock>, part_bytes: u64) -> Self {
        let (state, changed, progress) = (Mutex::default(), Signal::new(), AtomicU64::new(0));
        Self(Arc::new(Shared { clock, part_bytes: part_bytes.max(1), state, changed, progress }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts_of(&self, range: ByteRange) -> Range<u64> {
        let end = range.offset.saturating_add(range.length);
        range.offset / self.0.part_bytes..end.div_ceil(self.0.part_bytes)
    }

    /// Bytes of a part.
    pub fn part_bytes(&self) -> u64 {
        self.0.part_bytes
    }

    /// Whether the only part is the whole device.
    pub fn is_whole(&self) -> bool {
        self.0.part_bytes == WHOLE_DEVICE
    }

    /// The bytes of a part.
    pub fn range_of(&self, part: u64) -> ByteRange {
        ByteRange { offset: part.saturating_mul(self.0.part_bytes), length: self.0.part_bytes }
    }

    fn use_where(&self, range: ByteRange, may: impl Fn(Standing) -> bool) -> Option<Use> {
        let parts = self.parts_of(range);
        let state = &mut *self.state();
        let are_held = parts.clone().all(|part| state.parts.get(&part).is_some_and(|held| may(held.standing)));
        if !are_held {
            return None;
        }
        let mut tenure = 0;
        for (_, held) in state.parts.range_mut(parts.clone()) {
            held.uses += 1;
            tenure = tenure.max(held.tenure);
        }
        Some(Use { grants: self.clone(), parts, tenure })
    }

    /// The right to make data in `range` dirty; `None` unless all of it is held and not called
    /// back.
    pub fn use_to_write(&self, range: ByteRange) -> Option<Use> {
        self.use_where(range, |standing| standing == Standing::Held)
    }

    /// The right to send dirty data of `range` to the device.
    pub fn use_to_clean(&self, range: ByteRange) -> Option<Use> {
        self.use_where(range, |standing| matches!(standing, Standing::Held | Standing::Leaving))
    }

    /// Asks for the parts of `range` that are not held. Parts that were called back a moment ago
    /// are left to other hosts for a while.
    pub fn want(&self, range: ByteRange) {
        let now = self.0.clock.now();
        let state = &mut *self.state();
        for part in self.parts_of(range) {
            let is_resting = state.resting.get(&part).is_some_and(|until| now < *until);
            if !is_resting && state.parts.len() + state.wanted.len() < GRANTS_MAX && !state.parts.contains_key(&part) {
                state.resting.remove(&part);
                state.wanted.insert(part);
            }
        }
        if !state.wanted.is_empty()
            && let Some(device) = state.device.take()
        {
            device.wake();
        }
    }

    /// Returns when all of `range` is held; asks for it until then. The caller bounds the time.
    pub async fn acquire(&self, range: ByteRange) {
        loop {
            let count = self.0.changed.count();
            if self.use_to_write(range).is_some() {
                return;
            }
            self.want(range);
            // Parts that rest now are asked for after that time.
            select(self.0.changed.changed_since(count), self.0.clock.sleep(GRANT_REST_TIME)).await;
        }
    }

    /// Returns when nothing of `range` is claimed back any more: it is held again, or lost.
    pub async fn claimed(&self, range: ByteRange) {
        loop {
            let count = self.0.changed.count();
            if self.obstacle(range) != Some(Standing::Claimed) {
                return;
            }
            self.0.changed.changed_since(count).await;
        }
    }

    /// Returns when no part of `range` has a use.
    pub async fn unused(&self, range: ByteRange) {
        loop {
            let count = self.0.changed.count();
            let is_used = self.state().parts.range(self.parts_of(range)).any(|(_, held)| held.uses > 0);
            if !is_used {
                return;
            }
            self.0.changed.changed_since(count).await;
        }
    }

    /// Notes that something in a range that is called back was cleaned.
    pub fn note_progress(&self) {
        self.0.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Count of such notes.
    pub fn progress(&self) -> u64 {
        self.0.progress.load(Ordering::Relaxed)
    }

    /// For the device: takes at most `count_max` wanted parts, which count as requested. `waker` is
    /// woken when more are wanted.
    pub fn take_wanted(&self, count_max: usize, waker: &Waker) -> Vec<u64> {
        let state = &mut *self.state();
        let mut taken = Vec::new();
        while taken.len() < count_max
            && let Some(part) = state.wanted.pop_first()
        {
            state.requested += 1;
            state.parts.insert(part, Part { standing: Standing::Asked, uses: 0, tenure: state.requested });
            taken.push(part);
        }
        state.device = Some(waker.clone());
        taken
    }

    /// For the device: the state of a part.
    pub fn standing(&self, part: u64) -> Option<Standing> {
        self.state().parts.get(&part).map(|held| held.standing)
    }

    /// For the device: changes the state of a part; a part without one stays without.
    pub fn set(&self, part: u64, standing: Standing) {
        if let Some(held) = self.state().parts.get_mut(&part) {
            held.standing = standing;
        }
        self.0.changed.notify();
    }

    /// For the device: changes the state of all parts in one of the states `from` to `to`; `None`
    /// removes them.
    pub fn turn(&self, from: &[Standing], to: Option<Standing>) {
        let state = &mut *self.state();
        match to {
            Some(to) => {
                let held = state.parts.values_mut().filter(|held| from.contains(&held.standing));
                held.for_each(|held| held.standing = to);
            }
            None => state.parts.retain(|_, held| !from.contains(&held.standing)),
        }
        self.0.changed.notify();
    }

    /// For the device: removes the state of a part. One that `rests` is not requested again at
    /// once.
    pub fn remove(&self, part: u64, rests: bool) {
        let now = self.0.clock.now();
        let state = &mut *self.state();
        state.parts.remove(&part);
        state.resting.retain(|_, until| now < *until);
        if rests {
            state.resting.insert(part, now + GRANT_REST_TIME);
        }
        self.0.changed.notify();
    }

    /// The parts in one of these states.
    pub fn all(&self, standings: &[Standing]) -> Vec<u64> {
        let state = self.state();
        state.parts.iter().filter(|(_, held)| standings.contains(&held.standing)).map(|(part, _)| *part).collect()
    }

    /// Whether all of `range` is held: data sent there precedes all that other hosts request.
    pub fn is_held(&self, range: ByteRange) -> bool {
        let state = self.state();
        self.parts_of(range).all(|part| {
            let standing = state.parts.get(&part).map(|held| held.standing);
            matches!(standing, Some(Standing::Held | Standing::Leaving))
        })
    }

    /// The number of the request by which the whole device is held, also while it is claimed back or
    /// lost; `None` where it is not, or in parts.
    pub fn whole_tenure(&self) -> Option<u64> {
        let state = self.state();
        let whole = state.parts.get(&0).filter(|held| self.is_whole() && held.standing != Standing::Asked);
        whole.map(|held| held.tenure)
    }

    /// The state that keeps data from being sent to `range`: some of it is lost, or else claimed
    /// back.
    pub fn obstacle(&self, range: ByteRange) -> Option<Standing> {
        let state = self.state();
        let parts = state.parts.range(self.parts_of(range)).map(|(_, held)| held.standing);
        let standings: Vec<Standing> = parts.collect();
        [Standing::Lost, Standing::Claimed].into_iter().find(|obstacle| standings.contains(obstacle))
    }
}

impl Use {
    /// Whether the range was held all the time, so that what was done under this use counts.
    pub fn is_good(&self) -> bool {
        let state = self.grants.state();
        self.parts.clone().all(|part| {
            let held = state.parts.get(&part).filter(|held| held.tenure <= self.tenure);
            held.is_some_and(|held| matches!(held.standing, Standing::Held | Standing::Leaving))
        })
    }

    /// The number of the request by which the range is held. Between two uses with the same number
    /// no other host held it.
    pub fn tenure(&self) -> u64 {
        self.tenure
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut state = self.grants.state();
        let parts = state.parts.range_mut(self.parts.clone()).filter(|(_, held)| held.tenure <= self.tenure);
        parts.for_each(|(_, held)| held.uses = held.uses.saturating_sub(1));
        drop(state);
        self.grants.0.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use base::clock::VirtualClock;
    use futures_util::FutureExt as _;

    use super::*;

    const PART: u64 = 1 << 20;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    fn asked(clock: &VirtualClock, wanted: ByteRange) -> Grants {
        let grants = Grants::new(Arc::new(clock.clone()), PART);
        grants.want(wanted);
        grants
    }

    fn taken(grants: &Grants) -> Vec<u64> {
        grants.take_wanted(8, Waker::noop())
    }

    #[test]
    fn a_range_is_used_where_all_of_it_is_held() {
        let grants = asked(&VirtualClock::new(), range(PART - 512, 1024));
        assert_eq!(taken(&grants), [0, 1]);
        assert_eq!(taken(&grants), []);
        grants.set(0, Standing::Held);
        assert!(grants.use_to_write(range(0, PART)).is_some());
        assert!(grants.use_to_write(range(PART - 512, 1024)).is_none());
        grants.set(1, Standing::Leaving);
        assert!(grants.use_to_write(range(PART, 512)).is_none());
        assert!(grants.use_to_clean(range(PART - 512, 1024)).is_some());
    }

    #[test]
    fn what_is_used_is_waited_for() {
        let grants = asked(&VirtualClock::new(), range(0, 512));
        taken(&grants);
        grants.set(0, Standing::Held);
        let used = grants.use_to_write(range(0, 512)).unwrap();
        grants.set(0, Standing::Leaving);
        assert!(grants.unused(range(0, PART)).now_or_never().is_none());
        assert!(used.is_good());
        grants.turn(&[Standing::Held, Standing::Leaving], Some(Standing::Lost));
        assert!(!used.is_good());
        assert_eq!(grants.obstacle(range(512, 512)), Some(Standing::Lost));
        drop(used);
        assert!(grants.unused(range(0, PART)).now_or_never().is_some());
    }

    /// What was done before counts for nothing: another host may have had the range between.
    #[test]
    fn a_use_does_not_count_under_a_grant_that_came_after_it() {
        let clock = VirtualClock::new();
        let all = range(0, 1);
        let grants = Grants::new(Arc::new(clock.clone()), WHOLE_DEVICE);
        assert!(grants.is_whole());
        grants.want(range(PART, 7 * PART));
        assert_eq!(taken(&grants), [0]);
        grants.set(0, Standing::Held);
        let used = grants.use_to_write(all).unwrap();
        assert!(used.is_good());
        grants.remove(0, false);
        grants.want(all);
        taken(&grants);
        grants.set(0, Standing::Held);
        let again = grants.use_to_write(all).unwrap();
        assert!(!used.is_good() && again.is_good() && again.tenure() > used.tenure());
        drop(used);
        assert!(grants.unused(all).now_or_never().is_none(), "the other use goes on");
        drop(again);
        assert!(grants.unused(all).now_or_never().is_some());
    }

    #[test]
    fn what_is_claimed_back_is_waited_for_until_it_is_held_or_lost() {
        let grants = asked(&VirtualClock::new(), range(0, 512));
        taken(&grants);
        grants.set(0, Standing::Claimed);
        assert!(grants.claimed(range(0, 512)).now_or_never().is_none());
        grants.set(0, Standing::Held);
        assert!(grants.claimed(range(0, 512)).now_or_never().is_some());
    }

    /// Whoever wants more writes through there.
    #[test]
    fn so_many_ranges_are_held_or_asked_for_and_no_more() {
        let clock = VirtualClock::new();
        let grants = asked(&clock, range(0, 2 * GRANTS_MAX as u64 * PART));
        while !taken(&grants).is_empty() {}
        let parts = grants.all(&[Standing::Asked]);
        assert_eq!(parts.len(), GRANTS_MAX);
        parts.iter().for_each(|part| grants.set(*part, Standing::Held));
        let beyond = 3 * GRANTS_MAX as u64;
        let wanted = range(beyond * PART, 512);
        grants.want(wanted);
        assert_eq!(taken(&grants), [], "there is no room");
        grants.remove(0, false);
        grants.want(wanted);
        assert_eq!(taken(&grants), [beyond]);
    }

    #[test]
    fn what_was_called_back_is_left_to_others_for_a_while() {
        let clock = VirtualClock::new();
        let grants = asked(&clock, range(0, 512));
        taken(&grants);
        grants.remove(0, true);
        grants.want(range(0, 512));
        assert_eq!(taken(&grants), []);
        clock.advance(GRANT_REST_TIME);
        grants.want(range(0, 512));
        assert_eq!(taken(&grants), [0]);
    }
}
