//! A count of the log messages that a user sees.

#![allow(dead_code)] // Each test file uses its part.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

/// A log layer that counts messages: warnings and errors.
#[derive(Clone, Default)]
pub struct Lines {
    count: Arc<AtomicUsize>,
    has_information: bool,
}

impl Lines {
    /// One that counts messages about what goes well, too.
    pub fn with_information() -> Self {
        Self { has_information: true, ..Self::default() }
    }

    /// Counts what this thread logs, until the guard is dropped.
    pub fn listen(&self) -> (DefaultGuard, Dispatch) {
        // Where there is only one subscriber, a message that another thread logs first is asked of that thread's, and
        // switched off for all when it has none.
        let second = Dispatch::new(self.clone());
        (tracing::subscriber::set_default(self.clone()), second)
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= if self.has_information { Level::INFO } else { Level::WARN }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
