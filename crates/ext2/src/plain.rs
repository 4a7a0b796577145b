//! Blocks of a device that one host has to itself.
//!
//! Operations that change blocks run one after the other; those that only read run beside each
//! other. Changes of ended operations are kept in memory until a commit.
//!
//! A power loss leaves this:
//!
//! | the power is lost | and the device has |
//! |---|---|
//! | between commits | exactly the state of the last commit: nothing is written in between |
//! | during a commit | a superblock that is *not clean*, or the state before it, or after it |
//!
//! A commit is three steps with a flush after each: the former superblock, marked not clean;
//! everything but the superblock; the superblock. So the next opening sees an interrupted commit,
//! and asks for `e2fsck`. To be whole in every case takes a commit in one atomic unit, which a
//! device alone does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::device::DeviceExt;
use block::range_lock::{RangeGuard, RangeLock};
use block::{ByteRange, SharedDevice};

use crate::blocks::{Access, Block, Blocks, Object, Operation};
use crate::error::{Error, ErrorKind};
use crate::limits::{CHANGED_BLOCKS_MAX, CLEAN_BLOCKS_MAX};
use crate::numbers::{BlockNumber, InodeNumber};
use crate::{superblock, transfer};

/// All operations have one lock.
const WHOLE: ByteRange = ByteRange { offset: 0, length: 1 };

/// The blocks of a device, for one host.
pub struct PlainBlocks {
    shared: Arc<Shared>,
}

struct Shared {
    device: SharedDevice,
    block_bytes: usize,
    block_count: u64,
    /// Held by operations: shared to read, exclusive to change and to commit.
    lock: RangeLock,
    state: Mutex<State>,
}

/// Short sections, never across an await.
#[derive(Default)]
struct State {
    /// Changed since the last commit.
    changed: BTreeMap<BlockNumber, Block>,
    /// Unchanged blocks, in two generations.
    young: BTreeMap<BlockNumber, Block>,
    old: BTreeMap<BlockNumber, Block>,
    /// Users of each inode that is open.
    open: BTreeMap<InodeNumber, u64>,
}

impl State {
    fn get(&mut self, number: BlockNumber) -> Option<Block> {
        if let Some(block) = self.changed.get(&number).or_else(|| self.young.get(&number)) {
            return Some(block.clone());
        }
        let block = self.old.remove(&number)?;
        self.keep(number, block.clone());
        Some(block)
    }

    fn keep(&mut self, number: BlockNumber, block: Block) {
        if self.young.len() >= CLEAN_BLOCKS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, block);
    }

    fn forget(&mut self, number: BlockNumber) {
        self.young.remove(&number);
        self.old.remove(&number);
    }
}

impl PlainBlocks {
    /// The blocks of the file system on `device`.
    ///
    /// # Errors
    /// `Corrupt` when there is no ext2 on it, `Unsupported` for blocks of an unsupported size, or
    /// smaller than the device's.
    pub async fn new(device: SharedDevice) -> Result<Self, Error> {
        let block_bytes = superblock::peek(&device).await?.block_bytes()?;
        let device_block = device.geometry().logical_block_bytes as usize;
        if block_bytes < device_block {
            let context = format!("blocks of {block_bytes} bytes on a device whose blocks have {device_block}");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(Self::with_block_bytes(device, block_bytes))
    }

    /// Takes the changes of ended operations since the last commit: the caller makes them durable.
    pub fn take_changes(&self) -> BTreeMap<BlockNumber, Block> {
        std::mem::take(&mut self.shared.lock().changed)
    }

    /// Blocks of `block_bytes` on a device, which may have no file system.
    pub(crate) fn with_block_bytes(device: SharedDevice, block_bytes: usize) -> Self {
        let block_count = device.geometry().size_bytes / block_bytes as u64;
        let (lock, state) = (RangeLock::new(), Mutex::default());
        Self { shared: Arc::new(Shared { device, block_bytes, block_count, lock, state }) }
    }
}

impl Blocks for PlainBlocks {
    type Operation = PlainOperation;
    type Hold = ();

    fn block_bytes(&self) -> usize {
        self.shared.block_bytes
    }

    fn block_count(&self) -> u64 {
        self.shared.block_count
    }

    fn is_read_only(&self) -> bool {
        self.shared.device.geometry().is_read_only
    }

    async fn hold(&self, _: Access) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&self, access: Access) -> Result<PlainOperation, Error> {
        let shared = Arc::clone(&self.shared);
        let guard = match access {
            Access::Read => shared.lock.shared(WHOLE).await,
            Access::Change => shared.lock.exclusive(WHOLE).await,
        };
        if access == Access::Change && shared.lock().changed.len() > CHANGED_BLOCKS_MAX {
            shared.commit().await?;
        }
        Ok(PlainOperation { shared, access, changed: BTreeMap::new(), released: BTreeSet::new(), _guard: guard })
    }

    async fn commit(&self) -> Result<(), Error> {
        let _guard = self.shared.lock.exclusive(WHOLE).await;
        self.shared.commit().await
    }

    async fn open(&self, inode: InodeNumber) -> Result<bool, Error> {
        let mut state = self.shared.lock();
        let users = state.open.entry(inode).or_insert(0);
        *users += 1;
        Ok(*users == 1)
    }

    async fn close(&self, inode: InodeNumber) -> Result<bool, Error> {
        let mut state = self.shared.lock();
        let Some(users) = state.open.get_mut(&inode) else {
            return Err(Error::new(ErrorKind::Invalid, format!("{inode} is closed more often than it was opened")));
        };
        *users -= 1;
        let is_last = *users == 0;
        if is_last {
            state.open.remove(&inode);
        }
        Ok(is_last)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// `Corrupt` when the device has no such block.
    fn check(&self, block: BlockNumber) -> Result<(), Error> {
        if u64::from(block.0) < self.block_count {
            return Ok(());
        }
        Err(Error::corrupt(format!("{block} is beyond the end of the device, which has {}", self.block_count)))
    }

    async fn read(&self, block: BlockNumber) -> Result<Block, Error> {
        self.check(block)?;
        if let Some(block) = self.lock().get(block) {
            return Ok(block);
        }
        let bytes = transfer::read_run(&self.device, self.block_bytes, block, 1).await?;
        let content = Block::copy_of(&bytes);
        self.lock().keep(block, content.clone());
        Ok(content)
    }

    /// Reads neighbouring blocks that are not in memory, in one request.
    async fn read_ahead(&self, first: BlockNumber, count: u32) -> Result<(), Error> {
        let numbers = transfer::read_ahead_run(first, count, (self.block_bytes, self.block_count));
        let wanted: Vec<BlockNumber> = {
            let mut state = self.lock();
            numbers.skip_while(|&number| state.get(number).is_some()).collect()
        };
        let Some(&from) = wanted.first() else { return Ok(()) };
        let bytes = transfer::read_run(&self.device, self.block_bytes, from, wanted.len()).await?;
        let mut state = self.lock();
        for (number, content) in wanted.into_iter().zip(bytes.chunks_exact(self.block_bytes)) {
            if state.get(number).is_none() {
                state.keep(number, Block::copy_of(content));
            }
        }
        Ok(())
    }

    /// The caller has the lock, exclusively. Blocks that could not be written stay changed.
    async fn commit(&self) -> Result<(), Error> {
        let changed = self.lock().changed.clone();
        if changed.is_empty() {
            return Ok(());
        }
        let place = superblock::place(self.block_bytes);
        self.mark_not_clean(place.block).await?;
        let others = changed.iter().filter(|(number, _)| **number != place.block);
        let others = others.map(|(number, block)| (*number, block.clone()));
        transfer::write_all(&self.device, self.block_bytes, others).await?;
        self.device.flush().await?;
        let last = match changed.get(&place.block) {
            Some(block) => block.clone(),
            None => self.read(place.block).await?,
        };
        self.write(place.block, &last).await?;
        self.device.flush().await?;
        let mut state = self.lock();
        for (number, block) in std::mem::take(&mut state.changed) {
            state.keep(number, block);
        }
        Ok(())
    }

    /// Writes the device's present superblock back, marked not clean.
    async fn mark_not_clean(&self, number: BlockNumber) -> Result<(), Error> {
        let bytes = transfer::read_run(&self.device, self.block_bytes, number, 1).await?;
        let mut block = Block::copy_of(&bytes);
        superblock::clear_clean(block.to_mut());
        self.write(number, &block).await?;
        Ok(self.device.flush().await?)
    }

    async fn write(&self, number: BlockNumber, block: &Block) -> Result<(), Error> {
        transfer::write_all(&self.device, self.block_bytes, [(number, block.clone())]).await
    }
}

/// An operation on a device that one host has to itself.
pub struct PlainOperation {
    shared: Arc<Shared>,
    access: Access,
    changed: BTreeMap<BlockNumber, Block>,
    /// Blocks freed and not changed since.
    released: BTreeSet<BlockNumber>,
    _guard: RangeGuard,
}

impl PlainOperation {
    fn may_change(&self, block: BlockNumber) -> Result<(), Error> {
        assert_eq!(self.access, Access::Change, "an operation that only reads changes {block}");
        self.shared.check(block)
    }
}

impl Operation for PlainOperation {
    async fn read(&mut self, block: BlockNumber, _object: Object) -> Result<Block, Error> {
        match self.changed.get(&block) {
            Some(content) => Ok(content.clone()),
            None => self.shared.read(block).await,
        }
    }

    async fn change(&mut self, block: BlockNumber, object: Object) -> Result<&mut [u8], Error> {
        self.may_change(block)?;
        let content = self.read(block, object).await?;
        self.released.remove(&block);
        Ok(self.changed.entry(block).or_insert(content).to_mut())
    }

    async fn replace(&mut self, block: BlockNumber, _object: Object) -> Result<&mut [u8], Error> {
        self.may_change(block)?;
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
        Ok(self.shared.lock().open.contains_key(&inode))
    }

    async fn end(self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        for block in self.released {
            state.changed.remove(&block);
            state.forget(block);
        }
        for (number, block) in self.changed {
            state.forget(number);
            state.changed.insert(number, block);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use block::memory::MemoryDevice;
    use block::{Completion, Device, Geometry, Identity, Request};
    use futures_util::FutureExt;

    use super::*;

    /// A device that counts its requests.
    struct Counted {
        below: SharedDevice,
        requests: AtomicU64,
    }

    impl Device for Counted {
        fn geometry(&self) -> Geometry {
            self.below.geometry()
        }

        fn identity(&self) -> Identity {
            self.below.identity()
        }

        fn submit(&self, request: Request) -> Completion {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.below.submit(request)
        }
    }

    #[test]
    fn a_block_that_was_read_long_ago_is_read_again_and_one_of_the_younger_generation_is_not() {
        const GENERATION: u32 = 4096;
        const BLOCK_BYTES: usize = 1024;
        let below = Arc::new(MemoryDevice::new(u64::from(4 * GENERATION) << 10, Identity::default()));
        let device = Arc::new(Counted { below, requests: AtomicU64::new(0) });
        let blocks = PlainBlocks::with_block_bytes(Arc::clone(&device) as SharedDevice, BLOCK_BYTES);
        let asks = |number: u32| {
            let before = device.requests.load(Ordering::Relaxed);
            blocks.shared.read(BlockNumber(number)).now_or_never().expect("memory lets nobody wait").unwrap();
            device.requests.load(Ordering::Relaxed) > before
        };
        assert!((0..4 * GENERATION).all(asks), "nothing is in memory at first");
        assert!(!(3 * GENERATION..4 * GENERATION).any(asks), "the younger generation stays");
        assert!(asks(2 * GENERATION - 1), "two generations stay, and nothing from before them");
    }
}
