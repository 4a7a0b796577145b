//! What a store has from before of a LUN that several hosts share is registered, when the store is open that it was
//! assessed for.
//!
//! The report that the store was opened with is older than the registrations. So there is another behind them: a change
//! of blocks is executed, and recorded before that, before a registration of these blocks is answered, or else waits
//! for this host. What the second report has goes, too. Nobody reads before that.
//!
//! Where anything goes wrong the store begins cold: whether a change is told nobody knows then.

use block::{ByteRange, Error};
use futures_util::future::try_join_all;
use initiator::RemoteLun;

use super::clearing::{Clearing, Taken};
use super::report::{everything, report_of};
use crate::limits::{REGISTERED_AT_ONCE, REGISTERED_RANGES_MAX};

impl Clearing<'_> {
    /// Whether what is clean in the store counts now: all of it is registered, and was not changed until then.
    ///
    /// # Errors
    /// The store's: what others changed while it was opened conflicts with what is dirty in it, or it failed.
    pub(super) async fn register(&mut self, taken: &Taken) -> Result<bool, Error> {
        for lun in &taken.member.luns {
            let kept = self.store.clean_ranges(REGISTERED_RANGES_MAX);
            let asked = async {
                register_all(lun, &kept).await?;
                report_of(lun, taken.id).await
            };
            match asked.await {
                Ok(report) if report.ranges.is_empty() => {}
                Ok(report) => self.invalidate(lun, &taken.member, &report.ranges).await?,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "what is cached of the shared LUN is not registered there, and does not count"
                    );
                    // What is dirty must not go over what others may have written.
                    self.store.invalidate(&everything(), self.is_overwritten).await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Clearing<'_> {
    /// Whether others have written where something is dirty is looked at once more, now that this host holds that
    /// alone.
    ///
    /// # Errors
    /// The store's, where they have; the target's, which does not tell.
    pub(super) async fn look_again(&mut self, taken: &Taken) -> Result<(), Error> {
        for lun in &taken.member.luns {
            let report = report_of(lun, taken.id).await?;
            self.invalidate(lun, &taken.member, &report.ranges).await?;
        }
        Ok(())
    }
}

async fn register_all(lun: &RemoteLun, ranges: &[ByteRange]) -> Result<(), Error> {
    for ranges in ranges.chunks(REGISTERED_AT_ONCE) {
        try_join_all(ranges.iter().map(|&range| lun.register_copies(range))).await?;
    }
    Ok(())
}
