//! Detects that a poll of a session wakes it during that very poll: it could continue at once, and
//! must yield first.
//!
//! Such a wake-up is not passed on. The session waits for its next turn instead; the runtime would
//! poll it again before it looks at any socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// The waker for the futures that a session polls.
pub(crate) struct OwnWakes {
    shared: Arc<Shared>,
    waker: Waker,
}

#[derive(Default)]
struct Shared {
    session: AtomicWaker,
    is_polled: AtomicBool,
    was_woken: AtomicBool,
}

impl OwnWakes {
    pub(crate) fn new() -> Self {
        let shared = Arc::<Shared>::default();
        Self { waker: Waker::from(Arc::clone(&shared)), shared }
    }

    /// Starts a poll. The returned waker wakes `session`, but only notes wake-ups until the poll
    /// ends.
    pub(crate) fn begin(&self, session: &Waker) -> Waker {
        self.shared.session.register(session);
        self.shared.is_polled.store(true, Ordering::SeqCst);
        self.waker.clone()
    }

    /// Ends the poll. Returns whether the session was woken during it.
    pub(crate) fn end(&self) -> bool {
        self.shared.is_polled.store(false, Ordering::SeqCst);
        self.shared.was_woken.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_polled.load(Ordering::SeqCst) {
            self.was_woken.store(true, Ordering::SeqCst);
            // The poll may have ended meanwhile, on another thread: the note would then not be
            // read.
            if self.is_polled.load(Ordering::SeqCst) {
                return;
            }
        }
        self.session.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wake_up_inside_of_a_poll_is_told_and_not_passed_on() {
        let count = Arc::<Count>::default();
        let wakes = OwnWakes::new();
        let waker = wakes.begin(&Waker::from(Arc::clone(&count)));
        waker.wake_by_ref();
        assert!(wakes.end());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "later ones are passed on");
        wakes.begin(&Waker::from(Arc::clone(&count)));
        assert!(!wakes.end());
    }
}
