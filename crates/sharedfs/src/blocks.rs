//! The blocks of a mounted file system, for crate `ext2`.

use std::sync::Arc;

use ext2::limits::OPERATION_BLOCKS_MAX;
use ext2::{Access, Blocks, Error, InodeNumber};

use crate::commit::Commit;
use crate::hosts::Hold;
use crate::keeping::Keeping;
use crate::limits::OPERATION_STRUCTURE_BLOCKS;
use crate::operation::SharedOperation;
use crate::pins::{Pins, SingleHost};
use crate::shared::{Counters, Shared};

/// The blocks of a mounted file system.
pub struct SharedBlocks<C, P = SingleHost> {
    pub(crate) shared: Arc<Shared<C, P>>,
    /// `None` where one host has the file system for itself.
    _keeping: Option<Arc<Keeping<C, P>>>,
}

impl<C: Commit, P: Pins> SharedBlocks<C, P> {
    /// The blocks of a mount.
    pub(crate) fn new(shared: Shared<C, P>) -> Self {
        let shared = Arc::new(shared);
        Self { _keeping: Keeping::begin(&shared), shared }
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }
}

impl<C: Commit, P: Pins> Blocks for SharedBlocks<C, P> {
    type Operation = SharedOperation<C, P>;
    type Hold = Hold;

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

    async fn hold(&self, access: Access) -> Result<Hold, Error> {
        self.shared.hold(access).await
    }

    fn loss(&self) -> Option<Error> {
        self.shared.lock_of_hosts()?.check().err()
    }

    async fn has_other_hosts(&self) -> Result<bool, Error> {
        match self.shared.lock_of_hosts() {
            Some(lock) => lock.has_others().await,
            None => Ok(false),
        }
    }

    async fn begin(&self, access: Access) -> Result<SharedOperation<C, P>, Error> {
        self.shared.check_open()?;
        if access == Access::Change {
            self.shared.make_room().await?;
        }
        self.shared.compare().await?;
        let held = self.shared.pins.begin(access).await?;
        let used = match self.shared.lock_of_hosts() {
            Some(lock) => Some(lock.enter(access).await?),
            None => None,
        };
        Ok(SharedOperation::new(Arc::clone(&self.shared), held, used))
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
