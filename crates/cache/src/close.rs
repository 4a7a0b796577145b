//! Closing: waits for all requests, writes the whole table and marks the store *closed*; the next
//! open then finds everything warm.

use std::sync::Arc;

use block::Error;

use crate::core::Core;
use crate::journal::Extent;

impl Core {
    /// Cleans or keeps what is dirty, and closes: see [`Cache::close`](crate::Cache::close).
    pub(crate) async fn close(self: &Arc<Self>, keep_dirty: bool) -> Result<(), Error> {
        self.life.begin_close();
        if self.life.is_stopped() {
            // Another is closing it, or has, or it was replaced.
            return self.stop_and_end().await;
        }
        drop(self.exclude_requests().await);
        let prepared = async {
            if !keep_dirty {
                self.clean_all(|_| {}).await?;
            }
            match self.origin.reports.is_refused() {
                true => Ok(()),
                false => self.origin.flush().await,
            }
        };
        if let Err(error) = prepared.await {
            // Nothing is lost: the cache goes on, and can be closed with `keep_dirty`.
            self.life.give_up_close();
            return Err(error);
        }
        self.stop_and_end().await
    }

    /// Ends what goes on in the background, then all. Whoever comes second waits for the first.
    async fn stop_and_end(self: &Arc<Self>) -> Result<(), Error> {
        let closing = async {
            self.life.stop();
            self.lines.wake_all();
            self.cleaner.wait_for_batches().await;
            let result = self.end().await;
            self.workers.stop();
            // No client flushes any more: a loss that none was told is returned to whoever closes.
            result.and_then(|()| self.origin.flushes.failures.tell_closer())
        };
        self.life.close_once(closing).await
    }

    /// Stores the whole table as that of a closed cache. No request is taken any more, and nothing
    /// cleaned.
    async fn end(self: &Arc<Self>) -> Result<(), Error> {
        self.handle_origin_events();
        loop {
            // After the tasks that handle events of the origin.
            let _guard = self.exclude_requests().await;
            if self.life.has_ended() {
                // Another cache has taken its place, or who closed it was dropped after that.
                return Ok(());
            }
            let taken_count = self.origin.reports.taken_count();
            let result = match self.journal.failure() {
                Some(error) => Err(error),
                None => self.journal.checkpoint(Extent::Complete).await,
            };
            self.handle_origin_events();
            if result.is_ok() && self.origin.reports.taken_count() != taken_count {
                // An event, whoever took it, may have made part of what was just stored void.
                continue;
            }
            self.life.end();
            self.journal.end(self.life.closed()).await;
            return result;
        }
    }
}
