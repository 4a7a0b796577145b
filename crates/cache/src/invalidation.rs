//! Others changed the origin while the cache is open: what is clean here of these ranges goes, durably. See
//! [`freshness`](crate::freshness).

use base::range::ByteRange;
use block::Error;

use crate::changes::Changes;
use crate::core::Core;
use crate::journal::Extent;

impl Core {
    /// See [`Cache::invalidate`](crate::Cache::invalidate).
    pub(crate) async fn invalidate(&self, ranges: &[ByteRange], is_overwritten: bool) -> Result<(), Error> {
        // Whoever closes the cache waits, and does not store as clean what is about to go.
        let _guard = self.enter(self.ranges.exclusive(ByteRange { offset: 0, length: u64::MAX })).await?;
        let changes = Changes::new(ranges, self.origin.padding);
        changes.check_apart_from_dirty(&self.lines.state().frames, is_overwritten)?;
        for &range in &changes.ranges {
            self.lines.forget_clean(range);
            self.succession.tell(range, self.origin.padding).await;
            self.journal.unmap(range).await?;
        }
        // What was cleaned meanwhile is still dirty on the device: after a crash it would be sent again, over what
        // others wrote.
        self.journal.checkpoint(Extent::Dirty).await
    }
}
