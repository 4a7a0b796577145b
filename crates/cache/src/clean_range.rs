//! A range of an origin that several hosts share is cleaned: because another host asks it back, or because a request is
//! about to change it at the origin.
//!
//! A range that is called back is cleaned, flushed and forgotten before it is given up. Cleaning
//! must never wait for a request that itself waits for another host. So a request that goes through
//! to the origin has no dirty data below it. Reads of the origin are cut at the bounds of granted
//! ranges: a read that waits for another host's range does not keep this host from sending what
//! lies in its own.

use std::sync::Arc;
use std::time::Duration;

use base::range::ByteRange;
use block::Error;
use futures_util::future::select;

use crate::core::Core;
use crate::limits::{CLEAN_BATCH_BYTES, GRANT_PAUSE_MS};
use crate::numbers::BlockNumber;
use crate::pace::Force;

/// What is left to clean of a range.
enum Rest {
    Nothing,
    /// Dirty blocks that may be picked now.
    Blocks(Vec<BlockNumber>),
    /// All that is dirty is being cleaned.
    OnItsWay,
}

impl Core {
    /// Cleans the whole lines of a range that a request is about to change at the origin. The
    /// caller holds the lines.
    ///
    /// # Errors
    /// `Gone` when nothing is cleaned any more.
    pub(crate) async fn clean_before_change(self: &Arc<Self>, range: ByteRange) -> Result<(), Error> {
        if self.revocations.is_shared() && !self.lines.has_failed() {
            self.clean_range(self.line_size().whole_lines(range), || {}).await?;
        }
        Ok(())
    }

    /// Cleans all that is dirty in `range`, in as many attempts as it takes. The caller keeps new
    /// dirty data out.
    ///
    /// # Errors
    /// When nothing can be cleaned any more: the origin is another disk or this host is fenced, or
    /// the cache is closed.
    pub(crate) async fn clean_range(
        self: &Arc<Self>,
        range: ByteRange,
        mut progress: impl FnMut(),
    ) -> Result<(), Error> {
        loop {
            let count = self.lines.changed.count();
            let candidates = match self.rest_of(range) {
                Rest::Nothing => return Ok(()),
                Rest::Blocks(blocks) => blocks,
                Rest::OnItsWay => Vec::new(),
            };
            let batch = self.pick(&candidates)?;
            if batch.picks.is_empty() {
                let pause = self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS));
                select(self.lines.changed.changed_since(count), pause).await;
                continue;
            }
            match self.clean_batch(batch, Force::Full).await {
                Ok(None) => progress(),
                Ok(Some(error)) | Err(error) => {
                    tracing::warn!(%error, "what has to leave the cache cannot be cleaned; it is tried again");
                    self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
                }
            }
        }
    }

    fn rest_of(&self, range: ByteRange) -> Rest {
        let (end, line_size) = (self.origin.end(), self.line_size());
        let blocks =
            line_size.blocks_of(ByteRange { length: range.length.min(end.saturating_sub(range.offset)), ..range });
        let lines_max = (CLEAN_BATCH_BYTES / line_size.bytes()) as usize;
        let state = self.lines.state();
        let is_left = |block: &BlockNumber| {
            let found = state.frames.find(*block);
            found.is_some_and(|(_, line)| line.is_lost || !self.sendable(*block, &line, end).is_empty())
        };
        let mut left = state.frames.dirty_in(blocks.clone());
        left.retain(is_left);
        left.truncate(lines_max);
        match left.is_empty() {
            true if state.cleaning.range(blocks).next().is_some() => Rest::OnItsWay,
            true => Rest::Nothing,
            false => Rest::Blocks(left),
        }
    }
}
