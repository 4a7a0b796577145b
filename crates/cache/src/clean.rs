//! Cleaning: dirty lines are written to the origin and then are clean.
//!
//! ```text
//!   pick lines ─► read them from the cache device ─► write to the origin ─► flush the origin ─► log record ─► clean
//!        └ a later write takes its sectors out of `cleaning`: they stay dirty, whatever was sent ┘
//! ```
//! - A line is clean only when the origin's *flush* has returned, and no event in between reported
//!   that the origin lost unflushed writes. Until the record is durable its frame is not given to
//!   another block.
//! - Lines are sent in ascending order and adjacent ones as one write, whichever sets they are in:
//!   [`dirty_runs`](crate::dirty_runs) chooses the lines of a write,
//!   [`origin_write`](crate::origin_write) sends the writes. A round goes on where the last one
//!   ended (an elevator).
//! - Lines that the origin refuses stay dirty and are tried again later; those sent beside them become clean.
//! - Cleaning takes no range lock, so reads and writes of the same lines go on meanwhile; see the table in `core`.
//! - Rounds are as large and as frequent as the foreground bears: see [`pace`](crate::pace). A write that waits for
//!   room cleans at once.
//! - Lines whose dirty sectors are lost are left alone: nothing is written to the origin that was not read. So is what
//!   lies beyond its end: see [`stranded`](crate::stranded).

use std::sync::Arc;
use std::time::Duration;

use block::{Error, ErrorKind};
use futures_util::future::select;

use crate::cleaner::CleanProgress;
use crate::core::Core;
use crate::dirty_runs::batch_length;
use crate::limits::{CLEAN_RETRY_MS, GRANT_PAUSE_MS};
use crate::numbers::BlockNumber;

/// The progress of a cleaning whose caller waits, shown in the status until this is dropped.
struct ProgressShown<'a>(&'a Core);

impl Drop for ProgressShown<'_> {
    fn drop(&mut self) {
        self.0.cleaner.set_progress(None);
    }
}

impl Core {
    /// Cleans all lines that are dirty now. `progress` is called after each batch.
    pub(crate) async fn clean_all(self: &Arc<Self>, progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        let _over = ProgressShown(self);
        self.clean_all_lines(progress).await
    }

    async fn clean_all_lines(self: &Arc<Self>, progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        let sent = self.send_all_lines(progress).await;
        self.cleaner.note_result(&sent);
        sent?;
        let lost_count = self.lines.state().frames.lost_count();
        if lost_count == 0 {
            return self.check_nothing_stranded();
        }
        let context = format!("{lost_count} dirty lines cannot be read back from the cache device; they stay dirty");
        Err(Error::new(ErrorKind::Media, context))
    }

    async fn send_all_lines(self: &Arc<Self>, mut progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        let mut rest = self.lines.state().frames.dirty_in(BlockNumber::FIRST..BlockNumber::END);
        let lines_total = rest.len() as u64;
        let mut first_refusal = None;
        while !rest.is_empty() {
            let count = self.lines.changed.count();
            let batch_lines = self.cleaner.pace().start_batch(self.clock.now());
            let batch_lines = batch_length(&rest, batch_lines, self.run_lines_max());
            let candidates: Vec<BlockNumber> = rest.drain(..batch_lines).collect();
            let batch = self.pick(&candidates)?;
            let picked: Vec<BlockNumber> = batch.picks.iter().map(|pick| pick.block).collect();
            if picked.is_empty() && batch.lacks_right {
                self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
            } else if picked.is_empty() && batch.has_deferred {
                self.lines.changed.changed_since(count).await;
            }
            let force = self.cleaner.pace().force();
            // A place that the origin refuses does not keep lines elsewhere from being cleaned.
            let refusal = match self.clean_batch(batch, force).await {
                Err(error) if error.kind() == ErrorKind::Media => Some(error),
                refusal => refusal?,
            };
            first_refusal = first_refusal.or(refusal);
            let end = self.origin.end();
            let is_dirty = |block: BlockNumber| {
                let found = self.lines.state().frames.find(block);
                found.is_some_and(|(_, line)| !self.sendable(block, &line, end).is_empty())
            };
            // A line that was sent counts as done even when a write has made it dirty again.
            let mut passed_over: Vec<BlockNumber> = candidates
                .iter()
                .copied()
                .filter(|&block| picked.binary_search(&block).is_err() && is_dirty(block))
                .collect();
            rest.append(&mut passed_over);
            let now = CleanProgress { lines_total, lines_done: lines_total - rest.len() as u64 };
            self.cleaner.set_progress(Some(now));
            progress(now);
            if !rest.is_empty() {
                self.wait_for_next(picked.len()).await;
            }
        }
        first_refusal.map_or(Ok(()), Err)
    }

    /// Cleans in the background while too much is dirty. Ends when the cache closes.
    pub(crate) async fn clean_in_background(self: Arc<Self>) {
        loop {
            let (count, changed_count) = (self.lines.background.count(), self.lines.changed.count());
            if self.life.is_stopped() {
                return;
            }
            let (is_needed, has_failed) = {
                let state = self.lines.state();
                let must_wait = self.check_may_clean().is_err() || self.cleaner.is_held();
                (state.is_much_dirty(), state.failure.is_some() || must_wait)
            };
            if !is_needed || has_failed {
                self.lines.background.changed_since(count).await;
                continue;
            }
            let batch_lines = self.cleaner.pace().start_batch(self.clock.now());
            let candidates = self.next_dirty_blocks(batch_lines);
            let result = match self.pick(&candidates) {
                Ok(batch) if batch.picks.is_empty() && batch.lacks_right => {
                    self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
                    Ok(())
                }
                Ok(batch) if batch.picks.is_empty() => {
                    // Requests or another batch use these lines; when they are done there is more
                    // to pick.
                    self.lines.changed.changed_since(changed_count).await;
                    Ok(())
                }
                Ok(batch) => {
                    let line_count = batch.picks.len();
                    let force = self.cleaner.pace().force();
                    let result = self.clean_batch(batch, force).await;
                    self.wait_for_next(line_count).await;
                    result.and_then(|refusal| refusal.map_or(Ok(()), Err))
                }
                Err(error) => Err(error),
            };
            if result.is_err() && self.life.is_stopped() {
                // The cache was closed while this picked, which is no failure.
                return;
            }
            self.cleaner.note_result(&result);
            if let Err(error) = result {
                tracing::warn!(%error, "cleaning failed; it is tried again");
                self.clock.sleep(Duration::from_millis(CLEAN_RETRY_MS)).await;
            }
        }
    }

    /// Waits until the next batch may begin, or the cache closes.
    async fn wait_for_next(&self, line_count: usize) {
        let now = self.clock.now();
        let next = self.cleaner.pace().finish_batch(now, line_count as u64);
        while next > self.clock.now() {
            let count = self.lines.background.count();
            if self.life.is_stopped() {
                return;
            }
            select(self.clock.sleep_until(next), self.lines.background.changed_since(count)).await;
        }
    }
}
