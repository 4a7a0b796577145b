//! The clock of production: `CLOCK_BOOTTIME`, with waits exact to some microseconds.
//!
//! It goes on while the machine is suspended: leases end meanwhile, and what is cached under one is not used when the
//! machine wakes. `CLOCK_MONOTONIC` stands still then. Of a virtual machine that its host pauses neither tells.
//!
//! tokio's own timers tick once a millisecond, which is as long as a whole round trip of the links we model and many
//! times an I/O. So deadlines stand in one ordered map, a timerfd is armed for the earliest, and a task of the runtime
//! wakes who is due when it fires. A deadline that is not the earliest costs no system call.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use base::clock::{Clock, Instant, Sleep};
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The system's clock since its boot. Clones are the same clock; it ends with the last of them and the last sleep.
#[derive(Clone)]
pub struct SystemClock {
    shared: Arc<Shared>,
}

struct Shared {
    /// What `CLOCK_BOOTTIME` showed when this clock began, in nanoseconds.
    began_ns: u64,
    timer: OwnedFd,
    /// Short sections, never across an await.
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    /// Sleepers by deadline, then by the order in which they came.
    sleepers: BTreeMap<(Instant, u64), Waker>,
    sleeper_next: u64,
}

impl SystemClock {
    /// A clock that begins now and is driven by the current tokio runtime.
    ///
    /// # Errors
    /// When the system has no descriptor left for its timer.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?;
        let fired = fired(timer.try_clone()?)?;
        let shared = Arc::new(Shared { began_ns: boot_time_ns(), timer, timers: Mutex::default() });
        tokio::spawn(base::background::named("timer", drive(Arc::downgrade(&shared), fired)));
        Ok(Self { shared })
    }
}

#[expect(deprecated, reason = "the successor is unsafe, for descriptors that close early; an OwnedFd does not")]
fn fired(timer: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(timer, Interest::READABLE)
}

/// Wakes who is due whenever the timer fires, for as long as the clock is there.
async fn drive(clock: Weak<Shared>, fired: AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = fired.readable().await else { return };
        ready.clear_ready();
        // Reading resets the descriptor; that it was armed anew meanwhile is no error.
        let mut expirations = [0; 8];
        let _ = rustix::io::read(fired.get_ref(), &mut expirations);
        let Some(clock) = clock.upgrade() else { return };
        clock.wake_due();
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(boot_time_ns().saturating_sub(self.began_ns))
    }

    fn wake_due(&self) {
        let mut due = Vec::new();
        {
            let mut timers = self.lock();
            let now = self.now();
            while let Some(entry) = timers.sleepers.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                due.push(entry.remove());
            }
            if let Some((deadline, _)) = timers.sleepers.keys().next() {
                self.arm(*deadline);
            }
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// Lets the timer fire at `deadline`. Called with the map locked, so that the last call is for the earliest
    /// deadline.
    fn arm(&self, deadline: Instant) {
        let at_ns = self.began_ns.saturating_add(deadline.as_nanoseconds());
        let value = Timespec {
            tv_sec: i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (at_ns % 1_000_000_000) as _,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)
            .expect("the descriptor is a timer, and nanoseconds are below a second");
    }

    fn lock(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A moment long past: the driver wakes, and finds no clock.
        self.arm(Instant::START);
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        self.shared.now()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(SystemSleep { shared: Arc::clone(&self.shared), deadline, number: None })
    }
}

struct SystemSleep {
    shared: Arc<Shared>,
    deadline: Instant,
    number: Option<u64>,
}

impl Future for SystemSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.shared.now() >= this.deadline {
            return Poll::Ready(());
        }
        let mut timers = this.shared.lock();
        let number = *this.number.get_or_insert_with(|| {
            timers.sleeper_next += 1;
            timers.sleeper_next
        });
        let key = (this.deadline, number);
        let is_new = timers.sleepers.insert(key, context.waker().clone()).is_none();
        if is_new && timers.sleepers.keys().next() == Some(&key) {
            this.shared.arm(this.deadline);
        }
        Poll::Pending
    }
}

impl Drop for SystemSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // The timer stays armed: to fire for nobody is cheaper than to be set again.
            self.shared.lock().sleepers.remove(&(self.deadline, number));
        }
    }
}

fn boot_time_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
    }

    #[test]
    fn short_sleeps_are_neither_early_nor_rounded_to_a_millisecond() {
        runtime().block_on(async {
            let clock = SystemClock::new().expect("a descriptor is left");
            let mut shortest = Duration::MAX;
            for _ in 0..20 {
                let before = clock.now();
                clock.sleep(Duration::from_micros(200)).await;
                let slept = clock.now() - before;
                assert!(slept >= Duration::from_micros(200), "{slept:?} is early");
                shortest = shortest.min(slept);
            }
            assert!(shortest < Duration::from_micros(900), "{shortest:?} at best: a coarse timer");
        });
    }

    #[test]
    fn sleepers_wake_in_the_order_of_their_deadlines() {
        runtime().block_on(async {
            let clock = SystemClock::new().expect("a descriptor is left");
            let order = Arc::new(Mutex::new(Vec::new()));
            let start = clock.now();
            let tasks: Vec<_> = [3u64, 1, 2, 0]
                .into_iter()
                .map(|rank| {
                    let (clock, order) = (clock.clone(), Arc::clone(&order));
                    tokio::spawn(async move {
                        clock.sleep_until(start + Duration::from_millis(2 + 3 * rank)).await;
                        order.lock().unwrap().push(rank);
                    })
                })
                .collect();
            // One that gives up must not take the others' wake-up with it.
            drop(tokio::time::timeout(Duration::ZERO, clock.sleep(Duration::from_micros(100))).await);
            for task in tasks {
                task.await.expect("it only sleeps");
            }
            assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
        });
    }

    #[test]
    fn a_sleep_outlives_its_clock_and_the_past_is_now() {
        runtime().block_on(async {
            let clock = SystemClock::new().expect("a descriptor is left");
            let sleep = clock.sleep(Duration::from_millis(1));
            clock.sleep_until(Instant::START).await;
            drop(clock);
            sleep.await;
        });
    }
}
