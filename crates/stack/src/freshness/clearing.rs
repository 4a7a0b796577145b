//! CLEAR after a store was opened for its LUN; repeated while other hosts change the LUN.
//!
//! The "other host" may be a program of this one that was killed: its last writes are on their way
//! through the target when the next attachment begins. They make a CLEAR fail. Without another
//! attempt they would be reported to the next attach as if they came after what is written from now
//! on, and be refused there as a false conflict. So new changes are invalidated, like those
//! reported before the opening, and CLEAR is tried again.
//!
//! No application has written through the store by then: its dirty data is older than what others
//! have just written, which is a true conflict. A mark without a usable report, because it is new
//! or lost, reports here what it reported before the opening; what that meant for dirty data was
//! decided there.

use std::sync::Arc;
use std::time::Duration;

use base::range::ByteRange;
use block::Error;
use cache::Cache;
use futures_util::future::BoxFuture;
use initiator::RemoteLun;
use writelog::WriteLog;

use super::report::{everything, report_of};
use super::silence::{is_silence, silent};
use crate::limits::{CLEAR_PAUSE_MIN, CLEAR_TRIES_MAX, CLEARS_UNEXPLAINED_MAX};
use crate::remotes::MemberLun;

/// The pauses between attempts to clear a mark while other hosts change the LUN.
pub(crate) fn clear_pauses() -> impl Iterator<Item = Duration> {
    (0..CLEAR_TRIES_MAX).map(|attempt| CLEAR_PAUSE_MIN * 2_u32.pow(attempt))
}

/// An open store.
pub(crate) trait Invalidate {
    /// Notes that others changed these bytes: clean copies are dropped, durably. Dirty data there
    /// is an error, unless it `is_overwritten`.
    fn invalidate<'a>(&'a self, changed: &'a [ByteRange], is_overwritten: bool) -> BoxFuture<'a, Result<(), Error>>;

    /// Refuses changes by others where it has dirty data; changes nothing.
    fn check_changes(&self, changed: &[ByteRange]) -> Result<(), Error>;

    /// Writes nothing back any more in the background, where it can be told so.
    fn stop_writing_back(&self);

    /// Whether it has data that the LUN lacks.
    fn has_dirty(&self) -> bool;

    /// Whether it may get such data.
    fn delays_writes(&self) -> bool;

    /// At most this many ranges that contain all clean lines, for a LUN that several hosts share.
    fn clean_ranges(&self, count_max: usize) -> Vec<ByteRange>;
}

impl Invalidate for Cache {
    fn invalidate<'a>(&'a self, changed: &'a [ByteRange], is_overwritten: bool) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.invalidate(changed, is_overwritten))
    }

    fn check_changes(&self, changed: &[ByteRange]) -> Result<(), Error> {
        self.check_changes(changed)
    }

    fn stop_writing_back(&self) {
        self.hold_cleaning();
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

    fn check_changes(&self, changed: &[ByteRange]) -> Result<(), Error> {
        self.check_changes(changed)
    }

    /// It tries again from time to time, and is refused.
    fn stop_writing_back(&self) {}

    fn has_dirty(&self) -> bool {
        self.status().dirty_bytes > 0
    }

    fn delays_writes(&self) -> bool {
        true
    }

    /// A log delays writes, and is not used on a shared LUN.
    fn clean_ranges(&self, _: usize) -> Vec<ByteRange> {
        Vec::new()
    }
}

/// A held mark.
pub(super) struct Taken {
    pub(super) member: MemberLun,
    /// The sequence that each path to its LUN reported, in order.
    pub(super) sequences: Vec<u64>,
    pub(super) id: [u8; 16],
    pub(super) token: u64,
}

/// Clears the marks of one store.
pub(super) struct Clearing<'a> {
    pub(super) store: &'a dyn Invalidate,
    pub(super) is_overwritten: bool,
    /// Ranges of the whole device that were invalidated here for the first time.
    pub(super) invalidated: Vec<ByteRange>,
}

impl Clearing<'_> {
    /// Clears a mark. Returns whether it is empty now, on all paths; otherwise the next attach gets
    /// its report.
    ///
    /// # Errors
    /// The store's: a change by others during the opening where it is dirty, or a failure. The
    /// target's, if it says nothing now.
    pub(super) async fn clear(&mut self, taken: &Taken) -> Result<bool, Error> {
        let mut is_cleared = true;
        for (number, (lun, &sequence)) in taken.member.luns.iter().zip(&taken.sequences).enumerate() {
            // An earlier path may lead to the same target.
            let is_empty = number > 0 && report_of(lun, taken.id).await.is_ok_and(|report| report.ranges.is_empty());
            is_cleared &= is_empty || self.clear_by(lun, taken, sequence).await?;
        }
        Ok(is_cleared)
    }

    async fn clear_by(&mut self, lun: &Arc<RemoteLun>, taken: &Taken, mut sequence: u64) -> Result<bool, Error> {
        let mut unexplained = 0;
        for pause in clear_pauses() {
            match lun.clear_mark(taken.id, taken.token, sequence).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if is_silence(&error) => return Err(silent(&error)),
                Err(error) => {
                    tracing::warn!(%error, "a change mark cannot be cleared: the next attach is colder");
                    return Ok(false);
                }
            }
            let report = match report_of(lun, taken.id).await {
                Ok(report) => report,
                Err(error) if is_silence(&error) => return Err(silent(&error)),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "what others change during the attach is not known: the next attach is colder"
                    );
                    lun.invalidate(&everything());
                    return Ok(false);
                }
            };
            unexplained = if report.sequence == sequence { unexplained + 1 } else { 0 };
            if unexplained == CLEARS_UNEXPLAINED_MAX {
                tracing::warn!("the target clears no change mark though nothing changed: the next attach is colder");
                return Ok(false);
            }
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
        // The layers above have copies as well, and so has a store that was opened before this one.
        lun.invalidate(ranges);
        let changed: Vec<ByteRange> = ranges.iter().filter_map(|&range| member.in_whole(range)).collect();
        self.store.invalidate(&changed, self.is_overwritten).await?;
        self.invalidated.extend(changed);
        Ok(())
    }
}
