//! Registers a store's lines of a LUN that several hosts share, after the store was opened.
//!
//! The report with which the store was opened is older than the registrations. So a second report
//! is read after them: a change of blocks is recorded and executed before a registration of these
//! blocks is answered, or else waits for this host. The changes of the second report are dropped,
//! too. No application reads before that.
//!
//! After a failure the store starts cold: it is not known then whether all changes are reported. A
//! target that says nothing now ends the attach, before anything is dropped.

use block::{ByteRange, Error};
use futures_util::future::try_join_all;
use initiator::RemoteLun;

use super::clearing::{Clearing, Taken};
use super::report::{everything, report_of};
use super::silence::{is_silence, silent};
use crate::limits::{REGISTERED_AT_ONCE, REGISTERED_RANGES_MAX};

impl Clearing<'_> {
    /// Registers a store's clean lines. Returns whether they may be used: all are registered, and
    /// unchanged until then.
    ///
    /// # Errors
    /// The store's: a change by others during the opening where it is dirty, or a failure. The
    /// target's, if it says nothing now.
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
                Err(error) if is_silence(&error) => return Err(silent(&error)),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "what is cached of the shared LUN is not registered there, and does not count"
                    );
                    // Dirty data must not overwrite what others may have written.
                    self.store.invalidate(&everything(), self.is_overwritten).await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Clearing<'_> {
    /// Checks once more whether others have written where data is dirty, now that this host holds
    /// these ranges alone.
    ///
    /// # Errors
    /// The store's, where they have; the target's, if it does not answer.
    pub(super) async fn look_again(&mut self, taken: &Taken) -> Result<(), Error> {
        for lun in &taken.member.luns {
            let asked = report_of(lun, taken.id).await;
            let report = asked.map_err(|error| if is_silence(&error) { silent(&error) } else { error })?;
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
