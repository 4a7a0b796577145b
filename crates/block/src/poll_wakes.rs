//! Wake-ups of a task by the futures that it polls, while it polls them.
//!
//! A wake-up that comes during a poll is noted for its end and not passed on: the task looks anyway. It can look
//! again, or let others go first, without a run of its own for that. Later wake-ups go to the task.
//!
//! | state | a wake-up |
//! |---|---|
//! | waiting | goes to the task |
//! | polling | is noted |
//! | woken | was noted already |

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// The waker for futures that a task polls.
pub struct PollWakes {
    shared: Arc<Shared>,
    /// Wakes `shared`.
    waker: Waker,
}

/// The task waits for a wake-up.
const WAITING: u8 = 0;
/// The task polls the futures now.
const POLLING: u8 = 1;
/// One of them can go on since then.
const WOKEN: u8 = 2;

struct Shared {
    task: AtomicWaker,
    state: AtomicU8,
}

impl Default for PollWakes {
    fn default() -> Self {
        let shared = Arc::new(Shared { task: AtomicWaker::new(), state: AtomicU8::new(WAITING) });
        Self { waker: Waker::from(Arc::clone(&shared)), shared }
    }
}

impl PollWakes {
    /// Wake-ups outside of polls are for `task` from now on.
    pub fn register(&self, task: &Waker) {
        self.shared.task.register(task);
    }

    /// The waker for the futures.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// A poll begins: wake-ups are noted until it ends.
    pub fn begin(&self) {
        self.shared.state.store(POLLING, Ordering::SeqCst);
    }

    /// The poll ends. Returns whether there was a wake-up during it.
    pub fn end(&self) -> bool {
        self.shared.state.swap(WAITING, Ordering::SeqCst) == WOKEN
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(POLLING, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if noted == Err(WAITING) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wake_up_inside_of_a_poll_is_noted_and_not_passed_on() {
        let count = Arc::<Count>::default();
        let wakes = PollWakes::default();
        wakes.register(&Waker::from(Arc::clone(&count)));
        wakes.begin();
        wakes.waker().wake_by_ref();
        wakes.waker().wake_by_ref();
        assert!(wakes.end());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        wakes.waker().wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "later ones are passed on");
        wakes.begin();
        assert!(!wakes.end(), "and are none of the next poll");
    }
}
