//! Storing clean lines without hurry, in crash modes in which they count after a crash.

use std::sync::Arc;

use crate::core::Core;
use crate::journal::Extent;

impl Core {
    /// Stores clean lines without hurry, where they count after a crash. Ends when the cache
    /// closes.
    pub(crate) async fn store_lazily(self: Arc<Self>) {
        loop {
            let count = self.lines.background.count();
            if self.life.is_stopped() {
                return;
            }
            self.lines.set_lazy_idle(true);
            let is_needed = {
                let state = self.lines.state();
                state.failure.is_none() && state.frames.mappings.is_kept && state.frames.has_changed_pages()
            };
            if !is_needed {
                self.lines.background.changed_since(count).await;
                continue;
            }
            self.lines.set_lazy_idle(false);
            self.clock.sleep(self.lazy_interval).await;
            if self.life.is_stopped() {
                return;
            }
            let is_flushed = self.settle_origin().await;
            if self.journal.checkpoint(Extent::Lazy).await.is_err() || !is_flushed {
                // The pages wait until the origin takes a flush; the next attempt comes when there
                // is more to store.
                self.lines.set_lazy_idle(true);
                self.lines.background.changed_since(count).await;
            }
        }
    }

    /// Flushes the origin, so that clean lines that it could still lose can be stored. Returns
    /// whether the flush succeeded.
    async fn settle_origin(&self) -> bool {
        let has_unflushed = self.lines.state().frames.mappings.has_unflushed();
        if has_unflushed && let Err(error) = self.origin.flush().await {
            tracing::debug!(%error, "the origin does not flush; what it has not flushed is not kept over a crash");
            return false;
        }
        true
    }
}
