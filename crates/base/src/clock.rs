//! Time as a value.
//!
//! State machines take [`Instant`]s as arguments. Code that waits takes a [`Clock`]: in production
//! one over the operating system's timers; in tests and experiments a [`VirtualClock`], which the
//! [`Executor`](crate::executor::Executor) advances to the next deadline when no task can run.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A point in time: nanoseconds since its clock began. Instants of different clocks must not be
/// compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    nanoseconds: u64,
}

impl Instant {
    /// The moment the clock began.
    pub const START: Self = Self { nanoseconds: 0 };

    /// `nanoseconds` after the clock began.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { nanoseconds }
    }

    /// Nanoseconds since the clock began.
    pub const fn as_nanoseconds(self) -> u64 {
        self.nanoseconds
    }

    /// Time since `earlier`, or zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanoseconds.saturating_sub(earlier.nanoseconds))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        let added = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanoseconds: self.nanoseconds.saturating_add(added) }
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// The future of [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time that can wait.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Instant;

    /// Completes at `deadline` or as soon after it as the clock can.
    fn sleep_until(&self, deadline: Instant) -> Sleep;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }
}

/// A clock that is advanced by hand. Clones show the same time.
#[derive(Clone, Default)]
pub struct VirtualClock {
    state: Arc<Mutex<VirtualState>>,
}

#[derive(Default)]
struct VirtualState {
    now: Instant,
    /// Sleepers by deadline, then by the order in which they came.
    sleepers: BTreeMap<(Instant, u64), Waker>,
    sleeper_next: u64,
}

impl VirtualClock {
    /// A clock at [`Instant::START`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The earliest deadline of a sleeper.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.lock().sleepers.keys().next().map(|(deadline, _)| *deadline)
    }

    /// Advances to `instant` (never backwards), and wakes, in order, the sleepers with deadlines up
    /// to then.
    pub fn advance_to(&self, instant: Instant) {
        let mut due = Vec::new();
        {
            let mut state = self.lock();
            state.now = state.now.max(instant);
            let now = state.now;
            while let Some(entry) = state.sleepers.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                due.push(entry.remove());
            }
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// Advances by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.now() + duration);
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.lock().now
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(VirtualSleep { clock: self.clone(), deadline, key: None })
    }
}

struct VirtualSleep {
    clock: VirtualClock,
    deadline: Instant,
    key: Option<u64>,
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.clock.lock();
        if state.now >= this.deadline {
            if let Some(key) = this.key.take() {
                state.sleepers.remove(&(this.deadline, key));
            }
            return Poll::Ready(());
        }
        let key = *this.key.get_or_insert_with(|| {
            state.sleeper_next += 1;
            state.sleeper_next
        });
        state.sleepers.insert((this.deadline, key), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.clock.lock().sleepers.remove(&(self.deadline, key));
        }
    }
}
