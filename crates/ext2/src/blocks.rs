//! The interface below the file system: reading and changing its blocks in operations.
//!
//! Everything that the file system does is an [`Operation`]: a set of blocks that are read and
//! changed together. An operation that ends is complete; one that is dropped changed nothing. So a
//! failure in the middle (no space, a damaged block, a conflict with another host) leaves the file
//! system as it was.
//!
//! The changes of several operations become durable together, by [`Blocks::commit`], or when the
//! implementation decides to commit. The order of operations is kept: if a later one is durable,
//! all earlier ones are, too.
//!
//! | implementation | uses |
//! |---|---|
//! | [`PlainBlocks`](crate::PlainBlocks) | a device that one host has to itself |
//! | a mount shared by hosts | locks, a cache of its own and commits at the target |
//!
//! The implementation sees the number of every block and what it holds ([`Object`]): that is the
//! unit of locking and caching where hosts share.
//!
//! Between operations nothing that they read may be trusted, except the file system's layout, which
//! never changes.

use std::future::{Future, ready};
use std::ops::Deref;
use std::sync::Arc;

use crate::error::Error;
use crate::limits::OPERATION_BLOCKS_MAX;
use crate::numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};

/// What a block holds, as far as locks, the cache and the order of writes need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// The superblock that counts (not its copies, which only `mkfs` writes).
    Superblock,
    /// A block of group descriptors.
    GroupDescriptors,
    /// The bitmap of used blocks of a group.
    BlockBitmap(GroupNumber),
    /// The bitmap of used inodes of a group.
    InodeBitmap(GroupNumber),
    /// A block of the inode table of a group. It is locked as a block, whichever inodes it holds.
    InodeTable(GroupNumber),
    /// A block of a directory: entries or index.
    Directory(InodeNumber),
    /// A block of block numbers, of a file or directory, at any level.
    Indirect(InodeNumber),
    /// Attributes of an inode, or of several that have the same ones.
    Attributes,
    /// The target of a long symbolic link.
    SymbolicLink(InodeNumber),
    /// A block of a file's content, with its number in the file: files are locked as a whole, or in
    /// groups of neighbouring blocks.
    Data(InodeNumber, FileBlock),
}

/// The content of a block. It does not change as long as it is held, whatever operations change
/// meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block(Arc<[u8]>);

impl Block {
    /// A block of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// A block of zeroes.
    pub fn zeroed(block_bytes: usize) -> Self {
        Self(std::iter::repeat_n(0, block_bytes).collect())
    }

    /// The bytes, to be changed; copied first if the block is also held elsewhere.
    pub fn to_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0)
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// What an operation may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Read and change.
    Change,
}

/// The blocks of one file system.
pub trait Blocks: Send + Sync + 'static {
    /// The operations on these blocks.
    type Operation: Operation;

    /// As long as it lives no other host changes anything, or even reads, by what it was asked for.
    type Hold: Send + 'static;

    /// Bytes of a block, as in the superblock.
    fn block_bytes(&self) -> usize;

    /// Count of whole blocks of the device.
    fn block_count(&self) -> u64;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// Most blocks of content that one operation may write or free; longer work takes several
    /// operations.
    fn operation_blocks_max(&self) -> u32 {
        OPERATION_BLOCKS_MAX
    }

    /// Whether recovery after a crash was done: a superblock that is *not clean* then only means
    /// that it is in use.
    fn is_recovered(&self) -> bool {
        false
    }

    /// Keeps other hosts from changing anything between the operations of a request; for one that
    /// changes something, also from reading. Where several hosts share the file system, operations
    /// begin only while there is one for them. A request never waits for one while it has another.
    fn hold(&self, access: Access) -> impl Future<Output = Result<Self::Hold, Error>> + Send;

    /// Whether other hosts may have inodes open that have no name.
    fn has_other_hosts(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        ready(Ok(false))
    }

    /// Why nothing is read or written any more, for good: others may have what is not durable here.
    fn loss(&self) -> Option<Error> {
        None
    }

    /// Begins an operation. Waits for conflicting operations, and for a commit when too many
    /// changes are not durable yet.
    fn begin(&self, access: Access) -> impl Future<Output = Result<Self::Operation, Error>> + Send;

    /// Makes every ended operation durable.
    fn commit(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Adds a user of an inode. Returns whether it is the first on this host. An inode without a
    /// name stays as long as any host has it open.
    fn open(&self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Removes a user of an inode. Returns whether it was the last of all hosts.
    fn close(&self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Blocks that are read and changed together. If it is dropped, nothing is changed.
///
/// It reads its own changes, and else those of operations that ended before. Between its reads no
/// changes of other operations become visible.
pub trait Operation: Send + 'static {
    /// A block as it is now, pinned: it stays in memory, unchanged, as long as the caller holds it.
    fn read(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<Block, Error>> + Send;

    /// The bytes of a block, to be changed. Callers read and check them first, and change them only
    /// if they go on.
    fn change(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<&mut [u8], Error>> + Send;

    /// A block that begins as zeroes: one just allocated, or one whose whole content is replaced.
    /// Nothing is read.
    fn replace(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<&mut [u8], Error>> + Send;

    /// Notes that the block is free: its content is not needed any more, and changes of it need not
    /// be written.
    fn release(&mut self, block: BlockNumber);

    /// Announces that neighbouring blocks will be read next, the first of them being `object`. Only
    /// a hint: they may be read in one request.
    fn read_ahead(
        &mut self,
        first: BlockNumber,
        count: u32,
        object: Object,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether any host has this inode open.
    fn is_open(&mut self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The group to try as the `nth` (from 0) for an allocation near `wanted`; each of
    /// `group_count` comes exactly once. On a shared file system groups that only this host uses
    /// come first.
    fn group_to_try(&mut self, wanted: GroupNumber, nth: u32, group_count: u32) -> GroupNumber {
        GroupNumber(((u64::from(wanted.0) + u64::from(nth)) % u64::from(group_count.max(1))) as u32)
    }

    /// Ends the operation. Later operations see its changes.
    fn end(self) -> impl Future<Output = Result<(), Error>> + Send;
}
