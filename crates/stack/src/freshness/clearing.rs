//! CLEAR, when a store is open that its LUN was assessed for; and again where others change the LUN meanwhile.
//!
//! Others may be what is left of a program that was killed: its last writes are on their way through the target when
//! the next attachment begins. A CLEAR that is refused because of them, and left at that, would have them told to the
//! next attach as if they had come after what is written here from now on, and be refused there as a conflict that is
//! none. So what is new is invalidated, as what was told before the open was, and CLEAR tried again.
//!
//! No application has written anything through the store by then: what is dirty in it is older than what others have
//! just written, which is a true conflict. A mark that cannot tell, as it was new or lost, says here what it said
//! before the open, and what that meant for dirty data was decided there.

use std::sync::Arc;
use std::time::Duration;

use base::range::ByteRange;
use block::Error;
use cache::Cache;
use futures_util::future::BoxFuture;
use initiator::RemoteLun;
use writelog::WriteLog;

use super::report::{everything, report_of};
use crate::limits::{CLEAR_PAUSE_MIN, CLEAR_TRIES_MAX};
use crate::remotes::MemberLun;

/// Of each attempt to clear a mark, the pause after it if others had changed the LUN meanwhile.
pub(crate) fn clear_pauses() -> impl Iterator<Item = Duration> {
    (0..CLEAR_TRIES_MAX).map(|attempt| CLEAR_PAUSE_MIN * 2_u32.pow(attempt))
}

/// A store that is open.
pub(crate) trait Invalidate {
    /// Others changed these bytes: clean copies go, durably, and dirty data in them is refused unless it
    /// `is_overwritten`.
    fn invalidate<'a>(&'a self, changed: &'a [ByteRange], is_overwritten: bool) -> BoxFuture<'a, Result<(), Error>>;

    /// Whether it has anything that the LUN lacks.
    fn has_dirty(&self) -> bool;

    /// Whether it may come to have.
    fn delays_writes(&self) -> bool;

    /// At most so many ranges that have all that is clean here, of a LUN that several hosts share.
    fn clean_ranges(&self, count_max: usize) -> Vec<ByteRange>;
}

impl Invalidate for Cache {
    fn invalidate<'a>(&'a self, changed: &'a [ByteRange], is_overwritten: bool) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.invalidate(changed, is_overwritten))
    }

    fn has_dirty(&self) -> bool {
        self.status().dirty_bytes > 0
    }

    fn delays_writes(&self) -> bool {
        self.mode().delays_writes()
    }

    fn clean_ranges(&self, count_max: usize) -> Vec<ByteRange> {
        self.clean_ranges(count_max)
    }
}

impl Invalidate for WriteLog {
    fn invalidate<'a>(&'a self, changed: &'a [ByteRange], is_overwritten: bool) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.invalidate(changed, is_overwritten))
    }

    fn has_dirty(&self) -> bool {
        self.status().dirty_bytes > 0
    }

    fn delays_writes(&self) -> bool {
        true
    }

    /// A log delays writes: nobody shares a LUN with one.
    fn clean_ranges(&self, _: usize) -> Vec<ByteRange> {
        Vec::new()
    }
}

/// A mark that is held.
pub(super) struct Taken {
    pub(super) member: MemberLun,
    /// What was reported by each path to its LUN, in order.
    pub(super) sequences: Vec<u64>,
    pub(super) id: [u8; 16],
    pub(super) token: u64,
}

/// Clears marks for one store.
pub(super) struct Clearing<'a> {
    pub(super) store: &'a dyn Invalidate,
    pub(super) is_overwritten: bool,
    /// What was invalidated that was not known before, in the whole device.
    pub(super) invalidated: Vec<ByteRange>,
}

impl Clearing<'_> {
    /// Whether the mark is empty now, by all paths. One that is not is told to the next attach.
    ///
    /// # Errors
    /// The store's: what others changed while it was opened conflicts with what is dirty in it, or it failed.
    pub(super) async fn clear(&mut self, taken: &Taken) -> Result<bool, Error> {
        let mut is_cleared = true;
        for (number, (lun, &sequence)) in taken.member.luns.iter().zip(&taken.sequences).enumerate() {
            // The target of an earlier path may be this one's, too.
            let is_empty = number > 0 && report_of(lun, taken.id).await.is_ok_and(|report| report.ranges.is_empty());
            is_cleared &= is_empty || self.clear_by(lun, taken, sequence).await?;
        }
        Ok(is_cleared)
    }

    async fn clear_by(&mut self, lun: &Arc<RemoteLun>, taken: &Taken, mut sequence: u64) -> Result<bool, Error> {
        for pause in clear_pauses() {
            match lun.clear_mark(taken.id, taken.token, sequence).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "a change mark cannot be cleared: the next attach is colder");
                    return Ok(false);
                }
            }
            let report = match report_of(lun, taken.id).await {
                Ok(report) => report,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "what others change during the attach is not known: the next attach is colder"
                    );
                    lun.invalidate(&everything());
                    return Ok(false);
                }
            };
            self.invalidate(lun, &taken.member, &report.ranges).await?;
            sequence = report.sequence;
            tokio::time::sleep(pause).await;
        }
        tracing::warn!("others write to the logical unit while it is being attached: the next attach is told of it");
        Ok(false)
    }

    pub(super) async fn invalidate(
        &mut self,
        lun: &RemoteLun,
        member: &MemberLun,
        ranges: &[ByteRange],
    ) -> Result<(), Error> {
        // The layers above have copies as well, and a store that was opened before this one.
        lun.invalidate(ranges);
        let changed: Vec<ByteRange> = ranges.iter().filter_map(|&range| member.in_whole(range)).collect();
        self.store.invalidate(&changed, self.is_overwritten).await?;
        self.invalidated.extend(changed);
        Ok(())
    }
}
