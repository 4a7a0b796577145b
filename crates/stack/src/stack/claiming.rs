//! Old dirty data in a cache of a shared LUN: this host gets the grants of its ranges before it
//! checks for the last time whether other hosts wrote there, and before any of it is written.

use block::grants::{Grants, Right};
use block::{ByteRange, Device, SharedDevice};
use cache::Cache;

use crate::error::{Error, Failure, Result};
use crate::limits::CLAIM_TIME_MAX;
use crate::place::Place;

/// Gets the grants for all dirty ranges.
///
/// # Errors
/// `InUse` when others do not give them up, `Usage` when the target has no such grants.
pub(super) async fn claim_dirty(cache: &Cache, lun: &SharedDevice, place: &Place) -> Result<()> {
    let (dirty, copies) = (cache.dirty_ranges(), lun.copies());
    let Some(copies) = copies.filter(|_| !dirty.is_empty()) else { return Ok(()) };
    let Some(grants) = copies.grants() else {
        let message = format!(
            "the cache {place} has data that is not on the logical unit, and its target does not keep other hosts from \
             it: attach it without --shared while nobody else uses it, and detach it"
        );
        return Err(Error::new(Failure::Usage, message));
    };
    claim(grants, &dirty, place).await
}

/// Waits until others have given up `ranges`, up to the longest time that this may take.
async fn claim(grants: &Grants, ranges: &[ByteRange], place: &Place) -> Result<()> {
    let all = async {
        ranges.iter().for_each(|range| grants.want(*range));
        for range in ranges {
            grants.acquire(*range, Right::Change).await;
        }
    };
    tokio::time::timeout(CLAIM_TIME_MAX, all).await.map_err(|_| {
        let message = format!(
            "the cache {place} has data that is not on the logical unit, and other hosts do not give up the ranges \
             that it is of: \"forebay locks\" shows who has them"
        );
        Error::new(Failure::InUse, message)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use base::clock::VirtualClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hosts_that_give_up_nothing_are_waited_for_for_a_bounded_time() {
        let grants = Grants::new(Arc::new(VirtualClock::new()), 1 << 20);
        let place = Place::new(Path::new("/disk.cache"), None).expect("the root is there");
        let began = tokio::time::Instant::now();
        let claimed = claim(&grants, &[ByteRange { offset: 0, length: 4096 }], &place).await;
        assert_eq!(claimed.expect_err("nobody grants it").failure(), Failure::InUse);
        let (took, bound) = (began.elapsed(), Duration::from_secs(90));
        assert!((bound..bound * 3 / 2).contains(&took), "{took:?}");
    }
}
