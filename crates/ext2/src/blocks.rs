//! Where the file system's blocks come from, and how changes of them belong together.
//!
//! Everything that the file system does is an [`Operation`]: a set of blocks that are read and changed together. An
//! operation that ends is whole; one that is dropped changed nothing. So whatever fails in the middle (no space, a
//! damaged block, another host in the way) leaves the file system as it was.
//!
//! What several operations changed becomes durable together, by [`Blocks::commit`], or when whoever implements it finds
//! that it is time. The order of operations is kept: whoever finds a later one durable finds all earlier ones, too.
//!
//! | who | implements it for |
//! |---|---|
//! | [`PlainBlocks`](crate::PlainBlocks) | one host and a device of its own |
//! | a mount that hosts share | locks, a cache of its own and commits at the target |
//!
//! Whoever implements it sees of every block which number it has and what it holds ([`Object`]): that is the unit of
//! locking and caching where hosts share.
//!
//! Between operations nothing of what they read may be trusted, unless it is part of the file system's layout, which
//! never changes.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::Error;
use crate::limits::OPERATION_BLOCKS_MAX;
use crate::numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};

/// What a block holds, as far as locking, caching and the order of writes distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// The superblock that counts (not its copies, which only `mkfs` writes).
    Superblock,
    /// A block of group descriptors.
    GroupDescriptors,
    /// Which blocks of a group are in use.
    BlockBitmap(GroupNumber),
    /// Which inodes of a group are in use.
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
    /// A block of a file's content, and which one: files are locked as a whole, or in groups of neighbouring blocks.
    Data(InodeNumber, FileBlock),
}

impl Object {
    /// Whether it is content of a file rather than structure of the file system.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::Data(..))
    }
}

/// The content of a block. It stays as it is for as long as it is held, whatever is changed meanwhile.
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

    /// The bytes, to be changed: a copy of them if the block is held elsewhere, too.
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
    /// How they are read and changed.
    type Operation: Operation;

    /// Bytes of a block: those that the superblock says.
    fn block_bytes(&self) -> usize;

    /// Whole blocks that there are.
    fn block_count(&self) -> u64;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// Blocks of content that one operation may write or free: what is longer takes several.
    fn operation_blocks_max(&self) -> u32 {
        OPERATION_BLOCKS_MAX
    }

    /// Whether what a crash left is whole again: then a superblock that says *not clean* only says that it is in use.
    fn is_recovered(&self) -> bool {
        false
    }

    /// Begins an operation. It waits where others are in the way, and where so much is changed and not durable yet that
    /// a commit has to come first.
    fn begin(&self, access: Access) -> impl Future<Output = Result<Self::Operation, Error>> + Send;

    /// Makes every operation durable that has ended.
    fn commit(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// One user of an inode more; whether it is the first that this host has. An inode without a name stays for as long
    /// as a host has it open.
    fn open(&self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;

    /// One user of an inode less; whether it was the last of all hosts.
    fn close(&self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Blocks that are read and changed together. To drop it is to change nothing.
///
/// It reads what it changed itself, and else what operations that ended before it left. No other operation's changes
/// come between its reads.
pub trait Operation: Send + 'static {
    /// A block as it is now, pinned: held in memory, and unchanged, for as long as the caller keeps it.
    fn read(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<Block, Error>> + Send;

    /// The bytes of a block, to be changed. Callers look at what is there first, and change it only if they go on.
    fn change(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<&mut [u8], Error>> + Send;

    /// A block that begins as zeroes: one that was just allocated, or whose whole content is replaced. Nothing is read.
    fn replace(&mut self, block: BlockNumber, object: Object) -> impl Future<Output = Result<&mut [u8], Error>> + Send;

    /// Nobody will read the content of this block any more: it is free. What was changed in it need not be written.
    fn release(&mut self, block: BlockNumber);

    /// Neighbouring blocks will be read next, the first of them being `object`. Only a hint: it may bring them in one
    /// request.
    fn read_ahead(
        &mut self,
        first: BlockNumber,
        count: u32,
        object: Object,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether any host has this inode open.
    fn is_open(&mut self, inode: InodeNumber) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The group to look at as the `nth` (from 0) when something is to be allocated near `wanted`; each of
    /// `group_count` comes up exactly once. A host that shares names groups first that it has to itself.
    fn group_to_try(&mut self, wanted: GroupNumber, nth: u32, group_count: u32) -> GroupNumber {
        GroupNumber(((u64::from(wanted.0) + u64::from(nth)) % u64::from(group_count.max(1))) as u32)
    }

    /// The operation is whole. Later operations see what it changed.
    fn end(self) -> impl Future<Output = Result<(), Error>> + Send;
}
