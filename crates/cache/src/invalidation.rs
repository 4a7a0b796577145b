//! Other hosts changed the origin while the cache is open: clean content of these ranges is
//! dropped, durably. See [`freshness`](crate::freshness).

use base::range::ByteRange;
use block::Error;

use crate::changes::Changes;
use crate::core::Core;
use crate::journal::Extent;

impl Core {
    /// See [`Cache::check_changes`](crate::Cache::check_changes).
    pub(crate) fn check_changes(&self, ranges: &[ByteRange]) -> Result<(), Error> {
        let changes = Changes::new(ranges, self.origin.padding);
        Ok(changes.check_apart_from_dirty(&self.lines.state().frames, false)?)
    }

    /// Drops clean content that others changed: see
    /// [`Cache::invalidate`](crate::Cache::invalidate).
    pub(crate) async fn invalidate(&self, ranges: &[ByteRange], is_overwritten: bool) -> Result<(), Error> {
        // A close waits meanwhile, so it does not store as clean what is about to be dropped.
        let _guard = self.enter(self.ranges.exclusive(ByteRange { offset: 0, length: u64::MAX })).await?;
        let changes = Changes::new(ranges, self.origin.padding);
        changes.check_apart_from_dirty(&self.lines.state().frames, is_overwritten)?;
        for &range in &changes.ranges {
            self.lines.forget_clean(range);
            self.succession.tell(range, self.origin.padding).await;
            self.journal.unmap(range).await?;
        }
        // Lines cleaned meanwhile may still be dirty on the device: after a crash they would be
        // sent again, over the data of other hosts.
        self.journal.checkpoint(Extent::Dirty).await
    }
}
