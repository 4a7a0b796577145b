//! Delayed writes to an origin that several hosts share: a write is delayed, and sent later, only
//! under a grant of its range. See [`block::grants`].
//!
//! | what is written | happens |
//! |---|---|
//! | under a grant | it is delayed; it is acknowledged if grant and lease were still valid at its end |
//! | elsewhere | it goes to the origin, and the cache asks for a grant of the range without waiting for it |
//!
//! A range that is called back is cleaned, flushed and forgotten before it is given up. Cleaning
//! must never wait for a request that itself waits for another host. So a request that goes through
//! to the origin has no dirty data below it. Reads of the origin are cut at the bounds of granted
//! ranges: a read that waits for another host's range does not keep this host from sending what
//! lies in its own.

use std::sync::Arc;
use std::time::Duration;

use base::range::ByteRange;
use block::grants::Use;
use block::{Error, ErrorKind, Response};
use futures_util::future::select;

use crate::alignment::outside;
use crate::core::Core;
use crate::limits::{CLEAN_BATCH_BYTES, GRANT_PAUSE_MS};
use crate::numbers::BlockNumber;
use crate::pace::Force;

/// Whether a write may be delayed, or dirty data be sent.
pub(crate) enum Right {
    /// Only this host uses the origin.
    Unshared,
    Granted(Use),
    Lacking,
}

/// What is left to clean of a range.
enum Rest {
    Nothing,
    /// Dirty blocks that may be picked now.
    Blocks(Vec<BlockNumber>),
    /// All that is dirty is being cleaned.
    OnItsWay,
}

impl Core {
    /// Whether a write of `range` may be delayed. If not, asks for a grant of the range.
    pub(crate) fn right_to_delay(&self, range: ByteRange) -> Right {
        let Some(copies) = self.revocations.copies() else { return Right::Unshared };
        let Some(grants) = copies.grants().filter(|_| copies.may_use()) else { return Right::Lacking };
        let range = outside(range, self.origin.padding);
        match grants.use_to_write(range) {
            Some(used) => Right::Granted(used),
            None => {
                grants.want(range);
                Right::Lacking
            }
        }
    }

    /// Whether what is dirty in `range` may be sent to the origin.
    pub(crate) fn right_to_send(&self, range: ByteRange) -> Right {
        let Some(copies) = self.revocations.copies() else { return Right::Unshared };
        let used = copies.grants().and_then(|grants| grants.use_to_clean(outside(range, self.origin.padding)));
        used.map_or(Right::Lacking, Right::Granted)
    }

    /// The final response of a delayed write. One that ended when the lease was over is not
    /// acknowledged: another host may have the range.
    pub(crate) fn confirm(&self, response: Response, used: &Use) -> Response {
        let is_good = used.is_good() && self.revocations.may_use_copies();
        match response.result.is_ok() && !is_good {
            true => Response::failed(lease_over(), response.buffer),
            false => response,
        }
    }

    /// Waits while the lease is in doubt: another host may have what is dirty in `range`.
    ///
    /// # Errors
    /// `Gone` when this host was fenced from the origin, or the cache is closed.
    pub(crate) async fn wait_for_lease(&self, range: ByteRange) -> Result<(), Error> {
        while !self.revocations.may_use_copies() && self.lines.has_dirty(range) {
            if self.origin.reports.is_refused() {
                return Err(lease_over());
            }
            if !self.life.is_open() {
                return Err(self.life.closed());
            }
            self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
        }
        Ok(())
    }

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

fn lease_over() -> Error {
    let words = "several hosts share the disk, and the lease under which this host held the range alone is over: what \
                 was written there and has not reached the disk stays in the cache";
    Error::new(ErrorKind::Gone, words)
}
