//! What a cache has dirty from before of a LUN that hosts share: its ranges are this host's alone again before anybody
//! looks for the last time whether others wrote there, and before any of it is written.

use std::time::Duration;

use block::{Device, SharedDevice};
use cache::Cache;

use crate::error::{Error, Failure, Result};
use crate::place::Place;

/// How long others have to give up what they hold: longer than the longest time that the target gives them.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(90);

/// Gets the ranges of all that is dirty.
///
/// # Errors
/// `InUse` when others do not give them up, `Usage` when the target has no such ranges.
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
    let all = async {
        dirty.iter().for_each(|range| grants.want(*range));
        for range in &dirty {
            grants.acquire(*range).await;
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
