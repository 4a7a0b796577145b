//! Whether requests come: how many did, and how long ago the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::{Clock, Instant};

/// The count of requests, and the time of the last one.
pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    /// Grows with each request: an interruptible batch stops when it does.
    request_count: AtomicU64,
    /// When the last request came, in nanoseconds of the clock.
    last_request_ns: AtomicU64,
}

impl Activity {
    /// No request yet.
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { clock: Arc::clone(clock), request_count: AtomicU64::new(0), last_request_ns: AtomicU64::new(0) }
    }

    /// Notes a request that comes now.
    pub(crate) fn note_request(&self) {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.last_request_ns.store(self.clock.now().as_nanoseconds(), Ordering::Relaxed);
    }

    /// Count of requests so far.
    pub(crate) fn count(&self) -> u64 {
        self.request_count.load(Ordering::Relaxed)
    }

    /// Time since the last request.
    pub(crate) fn idle_for(&self) -> Duration {
        self.clock.now().since(Instant::from_nanoseconds(self.last_request_ns.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;

    use super::*;

    #[test]
    fn a_log_is_idle_since_the_last_request() {
        let mut executor = Executor::in_order();
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let activity = Arc::new(Activity::new(&clock));
        let asked = Arc::clone(&activity);
        let idle = executor.block_on(async move {
            clock.sleep(Duration::from_millis(30)).await;
            let before = asked.idle_for();
            asked.note_request();
            clock.sleep(Duration::from_millis(10)).await;
            [before, asked.idle_for()]
        });
        assert_eq!(idle, [30, 10].map(Duration::from_millis));
        assert_eq!(activity.count(), 1);
    }
}
