//! The range lock: it keeps overlapping requests in order.
//!
//! A request for a range gets its place in line in the call. It is granted as soon as no earlier
//! request that still holds or waits has an overlapping range in a conflicting mode. This is the
//! whole rule: overlapping requests are granted in the order of the calls, none starves, and
//! requests that do not overlap never wait for each other.
//!
//! | earlier \ later | shared | exclusive |
//! |---|---|---|
//! | shared | both at once | later waits |
//! | exclusive | later waits | later waits |
//!
//! An empty range overlaps none. A guard releases its range when it is dropped; a waiter that is
//! dropped leaves the line.
//!
//! Holders and waiters are few (no more than there are requests in flight, which every caller bounds), so both are
//! plain vectors that are scanned: this is faster than a tree up to some hundreds, and once the vectors have grown
//! nothing is allocated.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::range::ByteRange;

/// A lock over ranges of bytes. Clones are the same lock.
#[derive(Clone, Default)]
pub struct RangeLock {
    shared: Arc<Mutex<State>>,
}

/// Guarded by `RangeLock::shared`; sections are short and never await.
#[derive(Default)]
struct State {
    place_next: u64,
    /// In no order.
    holders: Vec<Claim>,
    /// In the order of their places.
    waiters: VecDeque<Waiter>,
}

#[derive(Clone, Copy)]
struct Claim {
    /// Place in line: earlier calls have smaller ones, and no two are the same.
    place: u64,
    range: ByteRange,
    is_exclusive: bool,
}

struct Waiter {
    claim: Claim,
    waker: Option<Waker>,
}

impl Claim {
    fn conflicts(&self, other: &Self) -> bool {
        (self.is_exclusive || other.is_exclusive)
            && !self.range.is_empty()
            && !other.range.is_empty()
            && self.range.overlaps(&other.range)
    }
}

impl RangeLock {
    /// A lock without holders.
    pub fn new() -> Self {
        Self::default()
    }

    /// The range, exclusively; `None` when that would have to wait.
    pub fn try_exclusive(&self, range: ByteRange) -> Option<RangeGuard> {
        self.try_claim(range, true)
    }

    /// The range, shared; `None` when that would have to wait.
    pub fn try_shared(&self, range: ByteRange) -> Option<RangeGuard> {
        self.try_claim(range, false)
    }

    /// Waits for the range, exclusively. The place in line is taken by the call, not by the first
    /// poll.
    pub fn exclusive(&self, range: ByteRange) -> Acquire {
        self.claim(range, true)
    }

    /// Waits for the range, shared. The place in line is taken by the call.
    pub fn shared(&self, range: ByteRange) -> Acquire {
        self.claim(range, false)
    }

    /// Count of ranges held now.
    pub fn holder_count(&self) -> usize {
        self.lock().holders.len()
    }

    /// Count of callers in line.
    pub fn waiter_count(&self) -> usize {
        self.lock().waiters.len()
    }

    fn try_claim(&self, range: ByteRange, is_exclusive: bool) -> Option<RangeGuard> {
        let mut state = self.lock();
        let claim = state.next_claim(range, is_exclusive);
        if !state.is_free(&claim) {
            return None;
        }
        state.holders.push(claim);
        Some(self.guard(&claim))
    }

    fn claim(&self, range: ByteRange, is_exclusive: bool) -> Acquire {
        let mut state = self.lock();
        let claim = state.next_claim(range, is_exclusive);
        if state.is_free(&claim) {
            state.holders.push(claim);
            return Acquire(Place::Granted(Some(self.guard(&claim))));
        }
        state.waiters.push_back(Waiter { claim, waker: None });
        Acquire(Place::InLine { lock: self.clone(), claim })
    }

    fn guard(&self, claim: &Claim) -> RangeGuard {
        RangeGuard { lock: self.clone(), place: claim.place, range: claim.range }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, place: u64) {
        let mut state = self.lock();
        let index = state.holders.iter().position(|holder| holder.place == place);
        let gone = state.holders.swap_remove(index.expect("a guard releases what it holds, once"));
        let wakers = state.grant_after(&gone);
        drop(state);
        wakers.wake();
    }

    /// Removes a waiter from the line, or releases a range that it was granted and never took.
    fn cancel(&self, claim: &Claim) {
        let mut state = self.lock();
        match state.waiter_index(claim.place) {
            Some(index) => {
                state.waiters.remove(index);
                let wakers = state.grant_after(claim);
                drop(state);
                wakers.wake();
            }
            None => {
                drop(state);
                self.release(claim.place);
            }
        }
    }
}

impl State {
    fn next_claim(&mut self, range: ByteRange, is_exclusive: bool) -> Claim {
        self.place_next += 1;
        Claim { place: self.place_next, range, is_exclusive }
    }

    /// Whether no earlier claim conflicts with `claim`.
    fn is_free(&self, claim: &Claim) -> bool {
        !self.holders.iter().any(|holder| holder.conflicts(claim))
            && !self
                .waiters
                .iter()
                .take_while(|waiter| waiter.claim.place < claim.place)
                .any(|waiter| waiter.claim.conflicts(claim))
    }

    fn waiter_index(&self, place: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&place, |waiter| waiter.claim.place).ok()
    }

    /// Grants the waiters that waited only for `gone`, which left. No other waiter can have become
    /// free: one that is granted still conflicts with those behind it.
    fn grant_after(&mut self, gone: &Claim) -> Wakers {
        let mut wakers = Wakers::default();
        let mut index = 0;
        while let Some(waiter) = self.waiters.get(index) {
            let claim = waiter.claim;
            if claim.place > gone.place && claim.conflicts(gone) && self.is_free(&claim) {
                let waiter = self.waiters.remove(index).expect("it was there two lines ago");
                self.holders.push(claim);
                wakers.push(waiter.waker);
            } else {
                index += 1;
            }
        }
        wakers
    }
}

/// Wakers to be woken after the lock is released. Nearly always there is at most one, which costs
/// no allocation.
#[derive(Default)]
struct Wakers {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakers {
    fn push(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_none() => self.first = Some(waker),
            Some(waker) => self.others.push(waker),
            None => {}
        }
    }

    fn wake(self) {
        if let Some(first) = self.first {
            first.wake();
            self.others.into_iter().for_each(Waker::wake);
        }
    }
}

/// A range held. Dropping it releases the range.
#[must_use = "the range is released when the guard is dropped"]
pub struct RangeGuard {
    lock: RangeLock,
    place: u64,
    range: ByteRange,
}

impl RangeGuard {
    /// Which bytes.
    pub fn range(&self) -> ByteRange {
        self.range
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.release(self.place);
    }
}

/// The future of [`RangeLock::exclusive`] and [`RangeLock::shared`]. Dropping it leaves the line.
#[must_use = "the place in line is given up when this is dropped"]
pub struct Acquire(Place);

enum Place {
    Granted(Option<RangeGuard>),
    InLine { lock: RangeLock, claim: Claim },
}

impl Acquire {
    /// The guard, if the range was granted by now and the guard was not taken before.
    pub fn try_take(&mut self) -> Option<RangeGuard> {
        self.take_or_wait(None)
    }

    fn take_or_wait(&mut self, context: Option<&mut Context<'_>>) -> Option<RangeGuard> {
        let guard = match &mut self.0 {
            Place::Granted(guard) => return guard.take(),
            Place::InLine { lock, claim } => {
                let mut state = lock.lock();
                if let Some(index) = state.waiter_index(claim.place) {
                    if let (Some(context), Some(waiter)) = (context, state.waiters.get_mut(index)) {
                        waiter.waker = Some(context.waker().clone());
                    }
                    return None;
                }
                drop(state);
                lock.guard(claim)
            }
        };
        // From here on the guard holds the claim, and dropping this future releases nothing.
        self.0 = Place::Granted(None);
        Some(guard)
    }
}

impl Future for Acquire {
    type Output = RangeGuard;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let was_taken = matches!(&self.0, Place::Granted(None));
        assert!(!was_taken, "a range is granted once");
        self.take_or_wait(Some(context)).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Place::InLine { lock, claim } = &self.0 {
            lock.cancel(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;
    use base::executor::{Executor, block_on};
    use base::random::Random;
    use proptest::prelude::*;
    use std::time::Duration;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn shared_ranges_share_and_exclusive_ones_do_not() {
        let lock = RangeLock::new();
        let first = lock.try_shared(range(0, 8)).expect("nobody is there");
        let second = lock.try_shared(range(4, 8)).expect("sharing is free");
        assert!(lock.try_exclusive(range(7, 1)).is_none());
        drop(first);
        assert!(lock.try_exclusive(range(7, 1)).is_none());
        assert!(lock.try_exclusive(range(0, 4)).is_some());
        drop(second);
        assert_eq!(lock.try_exclusive(range(7, 1)).map(|guard| guard.range()), Some(range(7, 1)));
        assert_eq!(lock.holder_count(), 0);
    }

    #[test]
    fn nobody_passes_a_waiter_it_conflicts_with() {
        let lock = RangeLock::new();
        let reader = lock.try_shared(range(0, 8)).expect("nobody is there");
        let mut writer = lock.exclusive(range(0, 16));
        assert!(writer.try_take().is_none());
        assert!(lock.try_shared(range(0, 4)).is_none(), "a reader does not starve the writer in line");
        assert!(lock.try_shared(range(16, 4)).is_some(), "who meets nobody does not wait");
        drop(reader);
        assert!(writer.try_take().is_some());
        assert!(writer.try_take().is_none());
        assert_eq!((lock.holder_count(), lock.waiter_count()), (0, 0));
    }

    #[test]
    fn a_waiter_that_leaves_lets_others_pass() {
        let lock = RangeLock::new();
        let reader = lock.try_shared(range(0, 8)).expect("nobody is there");
        let writer = lock.exclusive(range(0, 8));
        let mut late_reader = lock.shared(range(0, 8));
        assert!(late_reader.try_take().is_none());
        drop(writer);
        assert!(late_reader.try_take().is_some());
        drop(reader);
    }

    #[test]
    fn a_grant_nobody_took_is_released() {
        let lock = RangeLock::new();
        let held = lock.try_exclusive(range(0, 8)).expect("nobody is there");
        let waiting = lock.exclusive(range(0, 8));
        drop(held);
        assert_eq!(lock.holder_count(), 1);
        drop(waiting);
        assert_eq!(lock.holder_count(), 0);
    }

    #[test]
    fn empty_ranges_meet_nobody() {
        let lock = RangeLock::new();
        let _held = lock.try_exclusive(range(0, 8)).expect("nobody is there");
        assert!(lock.try_exclusive(range(4, 0)).is_some());
    }

    #[test]
    fn guards_cross_threads() {
        let lock = RangeLock::new();
        let held = lock.try_exclusive(range(0, 8)).expect("nobody is there");
        std::thread::spawn(move || drop(held)).join().expect("the thread only drops a guard");
        let _guard = block_on(lock.exclusive(range(0, 8)));
    }

    /// The naive model: all claims in the order of the calls; those granted follow from the rule.
    #[derive(Default)]
    struct Twin {
        claims: Vec<Claim>,
    }

    impl Twin {
        fn is_granted(&self, index: usize) -> bool {
            let claim = &self.claims[index];
            !self.claims[..index].iter().any(|earlier| earlier.conflicts(claim))
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim { offset: u64, length: u64, is_exclusive: bool },
        Try { offset: u64, length: u64, is_exclusive: bool },
        Leave { which: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..24u64, 0..12u64, any::<bool>())
                .prop_map(|(offset, length, is_exclusive)| Step::Claim { offset, length, is_exclusive }),
            1 => (0..24u64, 0..12u64, any::<bool>())
                .prop_map(|(offset, length, is_exclusive)| Step::Try { offset, length, is_exclusive }),
            3 => any::<usize>().prop_map(|which| Step::Leave { which }),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// After each step the same callers hold their ranges here and in the naive twin.
        #[test]
        fn grants_equal_the_naive_twin(steps in steps()) {
            let lock = RangeLock::new();
            let mut twin = Twin::default();
            let mut places: Vec<(Acquire, Option<RangeGuard>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Claim { offset, length, is_exclusive } => {
                        twin.claims.push(Claim { place: 0, range: range(offset, length), is_exclusive });
                        places.push((lock.claim(range(offset, length), is_exclusive), None));
                    }
                    Step::Try { offset, length, is_exclusive } => {
                        twin.claims.push(Claim { place: 0, range: range(offset, length), is_exclusive });
                        let is_granted = twin.is_granted(twin.claims.len() - 1);
                        twin.claims.pop();
                        prop_assert_eq!(lock.try_claim(range(offset, length), is_exclusive).is_some(), is_granted);
                    }
                    Step::Leave { which } if !places.is_empty() => {
                        let index = which % places.len();
                        twin.claims.remove(index);
                        drop(places.remove(index));
                    }
                    Step::Leave { .. } => {}
                }
                for (index, (acquire, guard)) in places.iter_mut().enumerate() {
                    if guard.is_none() {
                        *guard = acquire.try_take();
                    }
                    prop_assert_eq!(guard.is_some(), twin.is_granted(index));
                }
            }
            drop(places);
            prop_assert_eq!((lock.holder_count(), lock.waiter_count()), (0, 0));
        }
    }

    /// Counts of readers and writers that hold each byte: the promise of the lock, checked at every
    /// moment.
    type Census = Arc<Mutex<[(u32, u32); 32]>>;

    fn enter(census: &Census, range: ByteRange, is_exclusive: bool) {
        let mut census = census.lock().unwrap();
        for (readers, writers) in &mut census[range.offset as usize..range.end() as usize] {
            let count = if is_exclusive { &mut *writers } else { &mut *readers };
            *count += 1;
            assert!(*writers == 0 || (*writers == 1 && *readers == 0), "{readers} readers, {writers} writers");
        }
    }

    fn leave(census: &Census, range: ByteRange, is_exclusive: bool) {
        for (readers, writers) in &mut census.lock().unwrap()[range.offset as usize..range.end() as usize] {
            *if is_exclusive { writers } else { readers } -= 1;
        }
    }

    /// Tasks come, wait, hold, and sometimes give up waiting, in interleavings drawn from seeds; all of them end.
    #[test]
    fn seeded_interleavings_exclude_and_end() {
        let test = crate::crash_test!();
        for seed in test.seeds(0, 40, 1) {
            let _printed = test.on_panic(seed, None);
            let mut executor = Executor::new(seed);
            let lock = RangeLock::new();
            let census = Census::default();
            let ended = Arc::new(Mutex::new(0));
            for task in 0..24 {
                let (lock, census, ended, clock) =
                    (lock.clone(), Arc::clone(&census), Arc::clone(&ended), executor.clock());
                let mut random = Random::new(seed * 1000 + task);
                executor.spawn(async move {
                    for _ in 0..6 {
                        clock.sleep(Duration::from_micros(random.below(4))).await;
                        let offset = random.below(28);
                        let range = range(offset, 1 + random.below(32 - offset));
                        let is_exclusive = random.chance(0.5);
                        let acquire = lock.claim(range, is_exclusive);
                        let guard = if random.chance(0.2) {
                            let patience = clock.sleep(Duration::from_micros(random.below(20)));
                            match futures_util::future::select(acquire, patience).await {
                                futures_util::future::Either::Left((guard, _)) => guard,
                                futures_util::future::Either::Right(_) => continue,
                            }
                        } else {
                            acquire.await
                        };
                        enter(&census, range, is_exclusive);
                        clock.sleep(Duration::from_micros(random.below(8))).await;
                        leave(&census, range, is_exclusive);
                        drop(guard);
                    }
                    *ended.lock().unwrap() += 1;
                });
            }
            executor.run();
            assert_eq!(*ended.lock().unwrap(), 24, "seed {seed}");
            assert_eq!((lock.holder_count(), lock.waiter_count()), (0, 0), "seed {seed}");
        }
    }
}
