//! A signal: an event that tasks wait for, as "room was made", "a frame came free", "stop".
//!
//! A signal is a counter. A task that may have to wait reads [`Signal::count`] first, then looks at
//! the state it is interested in, and only then awaits [`Signal::changed_since`] that count: so a
//! notification in between is never lost. A notification wakes all waiting tasks; each looks again.
//!
//! A notification without waiting tasks is two atomic operations: signals are in the path of every
//! request. A waiting task registers itself before it reads the count once more; a notifier counts
//! before it looks for waiting tasks. All of it is in one order (SeqCst), so one of the two sees
//! the other.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A counter that can be awaited. Clones are the same signal.
#[derive(Clone, Default)]
pub struct Signal {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    count: AtomicU64,
    /// Length of `waiting`; changed together with it.
    waiter_count: AtomicU64,
    /// Short sections that never await.
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    waiter_next: u64,
    /// In the order of registration, so that a run with one seed wakes them in one order.
    waiters: BTreeMap<u64, Waker>,
}

impl Signal {
    /// A signal that was never notified.
    pub fn new() -> Self {
        Self::default()
    }

    /// Count of notifications so far.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::SeqCst)
    }

    /// Counts a notification, and wakes all waiting tasks.
    pub fn notify(&self) {
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        if self.shared.waiter_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let waiters = {
            let mut waiting = self.lock();
            self.shared.waiter_count.store(0, Ordering::SeqCst);
            std::mem::take(&mut waiting.waiters)
        };
        waiters.into_values().for_each(Waker::wake);
    }

    /// Completes once the count differs from `count`.
    pub fn changed_since(&self, count: u64) -> Changed {
        Changed { signal: self.clone(), count, waiter: None }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future of [`Signal::changed_since`].
#[must_use = "nobody waits until it is polled"]
pub struct Changed {
    signal: Signal,
    count: u64,
    waiter: Option<u64>,
}

impl Future for Changed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.signal.count() != this.count {
            return Poll::Ready(());
        }
        let mut waiting = this.signal.lock();
        let waiter = *this.waiter.get_or_insert_with(|| {
            waiting.waiter_next += 1;
            waiting.waiter_next
        });
        waiting.waiters.insert(waiter, context.waker().clone());
        this.signal.shared.waiter_count.store(waiting.waiters.len() as u64, Ordering::SeqCst);
        // A notification may have come before the registration.
        if this.signal.count() != this.count { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            let mut waiting = self.signal.lock();
            waiting.waiters.remove(&waiter);
            self.signal.shared.waiter_count.store(waiting.waiters.len() as u64, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_notification_between_the_look_and_the_wait_is_not_lost() {
        let signal = Signal::new();
        let count = signal.count();
        signal.notify();
        Executor::in_order().block_on(signal.changed_since(count));
    }

    #[test]
    fn everybody_is_woken_and_the_dropped_are_forgotten() {
        let mut executor = Executor::new(3);
        let signal = Signal::new();
        let woken = Arc::new(AtomicU32::new(0));
        for _ in 0..3 {
            let (changed, woken) = (signal.changed_since(0), Arc::clone(&woken));
            executor.spawn(async move {
                changed.await;
                woken.fetch_add(1, Ordering::Relaxed);
            });
        }
        executor.run_until_stalled();
        assert_eq!(signal.lock().waiters.len(), 3);
        let mut dropped = Box::pin(signal.changed_since(0));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(dropped);
        assert_eq!(signal.lock().waiters.len(), 3);
        signal.notify();
        executor.run_until_stalled();
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }
}
