//! Grants: ranges of a shared device that this host holds alone, and in which it may delay its
//! writes; or that it holds together with other hosts that only read.
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
//! hosts mount is changed by whoever holds that, and read by all who hold it to read.
//!
//! | held | another host wants to read | to change | this host wants to change |
//! |---|---|---|---|
//! | to read | nothing happens | it is given up | the device is asked for that as well, and reading goes on |
//! | to change | it is cleaned, and is held to read | it is cleaned and given up | nothing happens |
//!
//! Of two hosts that read and both want to change, one is called back: what it has read is dropped,
//! and it asks anew. None of them waits with a use, so they never wait for each other.
//!
//! The device decides what is held. It gives a range up only after all uses of it have ended and
//! the layer that delays writes has cleaned it ([`Copies::release`](crate::Copies::release)). If a
//! held range is lost, its dirty data conflicts with what other hosts may have written since.

use std::collections::BTreeMap;
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

/// What a range is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To read it: other hosts may hold it likewise.
    Read,
    /// To change it: no other host holds it.
    Change,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    standing: Standing,
    /// What it is held for, or asked for.
    right: Right,
    /// It is held to read, and asked for to change as well.
    is_raised: bool,
    uses: u32,
    /// The number of the request by which it is held.
    tenure: u64,
}

#[derive(Default)]
struct State {
    parts: BTreeMap<u64, Part>,
    /// Parts that are wanted and not requested yet.
    wanted: BTreeMap<u64, Right>,
    /// Parts that were called back, and the time before which they are not requested again.
    resting: BTreeMap<u64, Instant>,
    /// Count of requests: the next tenure.
    requested: u64,
    /// Count of parts that were claimed back and are held again.
    reclaimed: u64,
    device: Option<Waker>,
}

impl State {
    /// A part that is requested now.
    fn request(&mut self, part: u64, right: Right) {
        self.requested += 1;
        let tenure = self.requested;
        self.parts.insert(part, Part { standing: Standing::Asked, right, is_raised: false, uses: 0, tenure });
    }
}

impl Part {
    /// Whether asking for this right may bring more than is held.
    fn lacks(&self, right: Right) -> bool {
        self.standing == Standing::Held && self.right < right && !self.is_raised
    }

    fn may_go_on(&self, right: Right) -> bool {
        self.right >= right && matches!(self.standing, Standing::Held | Standing::Leaving)
    }
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

    fn use_where(&self, range: ByteRange, may: impl Fn(&Part) -> bool) -> Option<Use> {
        let parts = self.parts_of(range);
        let state = &mut *self.state();
        let are_held = parts.clone().all(|part| state.parts.get(&part).is_some_and(&may));
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

    /// The right to begin something in `range`; `None` unless all of it is held for that and not
    /// called back.
    pub fn begin_use(&self, range: ByteRange, right: Right) -> Option<Use> {
        self.use_where(range, |held| held.standing == Standing::Held && held.right >= right)
    }

    /// The right to go on with something that has begun.
    pub fn go_on(&self, range: ByteRange, right: Right) -> Option<Use> {
        self.use_where(range, |held| held.may_go_on(right))
    }

    /// The right to make data in `range` dirty; `None` unless all of it is held alone and not called
    /// back.
    pub fn use_to_write(&self, range: ByteRange) -> Option<Use> {
        self.begin_use(range, Right::Change)
    }

    /// The right to send dirty data of `range` to the device.
    pub fn use_to_clean(&self, range: ByteRange) -> Option<Use> {
        self.go_on(range, Right::Change)
    }

    /// Asks for the parts of `range` that are not held alone. Parts that were called back a moment
    /// ago are left to other hosts for a while.
    pub fn want(&self, range: ByteRange) {
        self.want_for(range, Right::Change);
    }

    /// Likewise for those that are not held for this.
    pub fn want_for(&self, range: ByteRange, right: Right) {
        let now = self.0.clock.now();
        let state = &mut *self.state();
        for part in self.parts_of(range) {
            let is_resting = state.resting.get(&part).is_some_and(|until| now < *until);
            let is_lacking = match state.parts.get(&part) {
                Some(held) => !is_resting && held.lacks(right),
                None => !is_resting && state.parts.len() + state.wanted.len() < GRANTS_MAX,
            };
            if is_lacking {
                state.resting.remove(&part);
                let wanted = state.wanted.entry(part).or_insert(right);
                *wanted = right.max(*wanted);
            }
        }
        if !state.wanted.is_empty()
            && let Some(device) = state.device.take()
        {
            device.wake();
        }
    }

    /// Returns when all of `range` is held for this; asks for it until then. The caller bounds the
    /// time.
    pub async fn acquire(&self, range: ByteRange, right: Right) {
        loop {
            let count = self.0.changed.count();
            if self.begin_use(range, right).is_some() {
                return;
            }
            self.want_for(range, right);
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
            && let Some((part, right)) = state.wanted.pop_first()
        {
            match state.parts.get_mut(&part) {
                Some(held) if held.lacks(right) => held.is_raised = true,
                // It has changed since it was wanted: whoever still wants it does so again.
                Some(_) => continue,
                None => state.request(part, right),
            }
            taken.push(part);
        }
        state.device = Some(waker.clone());
        taken
    }

    /// For the device: what a part is held for.
    pub fn right(&self, part: u64) -> Option<Right> {
        self.state().parts.get(&part).map(|held| held.right)
    }

    /// For the device: what a part that was taken as wanted is asked for.
    pub fn asked_right(&self, part: u64) -> Right {
        let is_to_read = |held: &Part| held.right == Right::Read && !held.is_raised;
        match self.state().parts.get(&part).is_some_and(is_to_read) {
            true => Right::Read,
            false => Right::Change,
        }
    }

    /// For the device: a part that is held to read is held alone now.
    pub fn raise(&self, part: u64) {
        self.change_part(part, |held| (held.right, held.is_raised) = (Right::Change, false));
    }

    /// For the device: a part is not asked for any more; it is held as before, or not at all. One that
    /// `rests` is not requested again at once.
    pub fn refuse(&self, part: u64, rests: bool) {
        if self.standing(part) == Some(Standing::Asked) {
            return self.remove(part, rests);
        }
        if rests {
            let until = self.0.clock.now() + GRANT_REST_TIME;
            self.state().resting.insert(part, until);
        }
        self.change_part(part, |held| held.is_raised = false);
    }

    /// For the device: a part that was called back, and is clean, is still held to read.
    pub fn lower(&self, part: u64) {
        self.change_part(part, |held| (held.standing, held.right) = (Standing::Held, Right::Read));
    }

    fn change_part(&self, part: u64, change: impl FnOnce(&mut Part)) {
        if let Some(held) = self.state().parts.get_mut(&part) {
            change(held);
        }
        self.0.changed.notify();
    }

    /// For the device: the state of a part.
    pub fn standing(&self, part: u64) -> Option<Standing> {
        self.state().parts.get(&part).map(|held| held.standing)
    }

    /// For the device: changes the state of a part; a part without one stays without.
    pub fn set(&self, part: u64, standing: Standing) {
        let state = &mut *self.state();
        if let Some(held) = state.parts.get_mut(&part) {
            state.reclaimed += u64::from((held.standing, standing) == (Standing::Claimed, Standing::Held));
            held.standing = standing;
        }
        self.0.changed.notify();
    }

    /// Count of parts that were claimed back from the device's other end, which began anew, and are
    /// held again. No other host had them between, but what is there may be something else.
    pub fn reclaimed(&self) -> u64 {
        self.state().reclaimed
    }

    /// For the device: changes the state of all parts in one of the states `from` to `to`; `None`
    /// removes them. What is held to read is not asked for to change any more.
    pub fn turn(&self, from: &[Standing], to: Option<Standing>) {
        let state = &mut *self.state();
        match to {
            Some(to) => {
                let held = state.parts.values_mut().filter(|held| from.contains(&held.standing));
                held.for_each(|held| (held.standing, held.is_raised) = (to, false));
            }
            None => state.parts.retain(|_, held| !from.contains(&held.standing)),
        }
        self.0.changed.notify();
    }

    /// For the device: removes the state of a part; one that is also asked for to change is still
    /// asked for. One that `rests` is not requested again at once.
    pub fn remove(&self, part: u64, rests: bool) {
        let now = self.0.clock.now();
        let state = &mut *self.state();
        if state.parts.remove(&part).is_some_and(|held| held.is_raised) {
            state.request(part, Right::Change);
        }
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
            held.is_some_and(|held| held.may_go_on(Right::Read))
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
        assert_eq!(grants.reclaimed(), 0);
        grants.set(0, Standing::Held);
        assert!(grants.claimed(range(0, 512)).now_or_never().is_some());
        assert_eq!(grants.reclaimed(), 1);
        grants.set(0, Standing::Leaving);
        assert_eq!(grants.reclaimed(), 1);
    }

    #[test]
    fn what_is_held_to_read_is_read_while_it_is_asked_for_to_change() {
        let grants = Grants::new(Arc::new(VirtualClock::new()), WHOLE_DEVICE);
        let all = range(0, 1);
        grants.want_for(all, Right::Read);
        assert_eq!((taken(&grants), grants.asked_right(0)), (vec![0], Right::Read));
        grants.set(0, Standing::Held);
        let reading = grants.begin_use(all, Right::Read).unwrap();
        assert!(grants.use_to_write(all).is_none() && grants.use_to_clean(all).is_none());
        grants.want_for(all, Right::Read);
        assert_eq!(taken(&grants), [], "it is held");
        grants.want(all);
        assert_eq!((taken(&grants), grants.asked_right(0)), (vec![0], Right::Change));
        grants.want(all);
        assert_eq!(taken(&grants), [], "it is asked for");
        assert!(grants.begin_use(all, Right::Read).is_some());
        grants.raise(0);
        let used = grants.use_to_write(all).unwrap();
        assert!(reading.is_good() && used.tenure() == reading.tenure(), "nobody had it between");
        drop((used, reading));
        grants.set(0, Standing::Leaving);
        assert!(grants.begin_use(all, Right::Read).is_none());
        grants.lower(0);
        assert!(grants.begin_use(all, Right::Read).is_some() && grants.use_to_write(all).is_none());
    }

    #[test]
    fn what_is_called_back_while_it_is_asked_for_to_change_is_another_tenure() {
        let clock = VirtualClock::new();
        let grants = Grants::new(Arc::new(clock.clone()), WHOLE_DEVICE);
        let all = range(0, 1);
        grants.want_for(all, Right::Read);
        taken(&grants);
        grants.set(0, Standing::Held);
        let before = grants.begin_use(all, Right::Read).unwrap().tenure();
        grants.want(all);
        taken(&grants);
        grants.set(0, Standing::Leaving);
        grants.remove(0, false);
        assert_eq!((grants.standing(0), grants.asked_right(0)), (Some(Standing::Asked), Right::Change));
        grants.set(0, Standing::Held);
        assert!(grants.use_to_write(all).unwrap().tenure() > before);
        grants.remove(0, false);
        assert_eq!(grants.standing(0), None);
        // One that is refused is held as before.
        grants.want_for(all, Right::Read);
        taken(&grants);
        grants.set(0, Standing::Held);
        grants.want(all);
        taken(&grants);
        grants.refuse(0, false);
        assert!(grants.begin_use(all, Right::Read).is_some());
        grants.want(all);
        assert_eq!(taken(&grants), [0], "it may be asked for again");
        grants.refuse(0, true);
        grants.want(all);
        assert_eq!(taken(&grants), [], "not at once");
        clock.advance(GRANT_REST_TIME);
        grants.want(all);
        assert_eq!(taken(&grants), [0]);
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
