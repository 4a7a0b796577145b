//! An operation of a mounted file system.

use std::collections::BTreeSet;
use std::sync::Arc;

use block::grants::Use;
use ext2::{Block, BlockNumber, Error, InodeNumber, Object, Operation};

use crate::commit::{Changes, Commit};
use crate::pins::{Pin, Pins, SingleHost};
use crate::shared::Shared;

/// Blocks that are read and changed together.
pub struct SharedOperation<C: Commit, P: Pins = SingleHost> {
    shared: Arc<Shared<C, P>>,
    held: P::Held,
    /// The host's lock; `None` where one host has the file system for itself.
    used: Option<Use>,
    changed: Changes,
    /// Blocks freed and not changed since.
    released: BTreeSet<BlockNumber>,
}

impl<C: Commit, P: Pins> SharedOperation<C, P> {
    pub(crate) fn new(shared: Arc<Shared<C, P>>, held: P::Held, used: Option<Use>) -> Self {
        Self { shared, held, used, changed: Changes::new(), released: BTreeSet::new() }
    }
}

impl<C: Commit, P: Pins> Operation for SharedOperation<C, P> {
    async fn read(&mut self, block: BlockNumber, object: Object) -> Result<Block, Error> {
        if let Some(content) = self.changed.get(&block) {
            return Ok(content.clone());
        }
        self.shared.pins.pin(&mut self.held, block, object, Pin::Shared).await?;
        self.shared.read(block).await
    }

    async fn change(&mut self, block: BlockNumber, object: Object) -> Result<&mut [u8], Error> {
        self.shared.pins.pin(&mut self.held, block, object, Pin::Exclusive).await?;
        let content = match self.changed.remove(&block) {
            Some(content) => content,
            None => self.shared.read(block).await?,
        };
        self.released.remove(&block);
        Ok(self.changed.entry(block).or_insert(content).to_mut())
    }

    async fn replace(&mut self, block: BlockNumber, object: Object) -> Result<&mut [u8], Error> {
        self.shared.pins.pin(&mut self.held, block, object, Pin::Exclusive).await?;
        self.shared.check(block)?;
        self.released.remove(&block);
        self.changed.insert(block, Block::zeroed(self.shared.block_bytes));
        Ok(self.changed.get_mut(&block).expect("it was put there just now").to_mut())
    }

    fn release(&mut self, block: BlockNumber) {
        self.changed.remove(&block);
        self.released.insert(block);
    }

    async fn read_ahead(&mut self, first: BlockNumber, count: u32, _object: Object) -> Result<(), Error> {
        self.shared.read_ahead(first, count).await
    }

    async fn is_open(&mut self, inode: InodeNumber) -> Result<bool, Error> {
        Ok(self.shared.is_open(inode))
    }

    async fn end(self) -> Result<(), Error> {
        // The pins are released after it has joined.
        let Self { shared, held: _held, used, changed, released } = self;
        if let Some((lock, used)) = shared.lock_of_hosts().zip(used.as_ref()) {
            lock.confirm(used).await?;
        }
        shared.join(changed, released.into_iter().collect()).await
    }
}
