//! The blocks of a mounted file system, for crate `ext2`.

use std::sync::Arc;

use block::SharedDevice;
use ext2::limits::OPERATION_BLOCKS_MAX;
use ext2::{Access, Blocks, Error, InodeNumber};

use crate::commit::Commit;
use crate::limits::OPERATION_STRUCTURE_BLOCKS;
use crate::operation::SharedOperation;
use crate::pins::{Pins, SingleHost};
use crate::shared::{Counters, Shared};

/// The blocks of a mounted file system.
pub struct SharedBlocks<C, P = SingleHost> {
    pub(crate) shared: Arc<Shared<C, P>>,
}

impl<C: Commit, P: Pins> SharedBlocks<C, P> {
    /// The blocks of a device; at most `cache_bytes` stay in memory, besides changed ones.
    pub(crate) fn new(device: SharedDevice, block_bytes: usize, commit: C, pins: P, cache_bytes: u64) -> Self {
        Self { shared: Arc::new(Shared::new(device, block_bytes, commit, pins, cache_bytes)) }
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }
}

impl<C: Commit, P: Pins> Blocks for SharedBlocks<C, P> {
    type Operation = SharedOperation<C, P>;

    fn block_bytes(&self) -> usize {
        self.shared.block_bytes
    }

    fn block_count(&self) -> u64 {
        self.shared.block_count
    }

    fn is_read_only(&self) -> bool {
        self.shared.is_read_only()
    }

    fn operation_blocks_max(&self) -> u32 {
        let content = self.shared.commit.blocks_max().saturating_sub(OPERATION_STRUCTURE_BLOCKS) / 2;
        u32::try_from(content).unwrap_or(u32::MAX).clamp(1, OPERATION_BLOCKS_MAX)
    }

    /// True: [`open`](crate::open()) has replayed what a crash left.
    fn is_recovered(&self) -> bool {
        true
    }

    async fn begin(&self, access: Access) -> Result<SharedOperation<C, P>, Error> {
        self.shared.check_open()?;
        if access == Access::Change {
            self.shared.make_room().await?;
        }
        let held = self.shared.pins.begin(access).await?;
        Ok(SharedOperation::new(Arc::clone(&self.shared), held))
    }

    async fn commit(&self) -> Result<(), Error> {
        self.shared.commit_all().await
    }

    async fn open(&self, inode: InodeNumber) -> Result<bool, Error> {
        Ok(self.shared.open(inode))
    }

    async fn close(&self, inode: InodeNumber) -> Result<bool, Error> {
        self.shared.close(inode)
    }
}
