//! The bounds of this crate, with their reasons.

/// Smallest block in bytes: the format has no smaller one.
pub const BLOCK_BYTES_MIN: usize = 1024;
/// Largest block in bytes: a page, as with the kernel on most machines.
pub const BLOCK_BYTES_MAX: usize = 4096;

/// Most block groups: 2^32 blocks of 1 KiB in groups of 8192. Checked before memory is taken for
/// the count on disk (12 bytes a group).
pub const GROUPS_MAX: u64 = 1 << 19;

/// Most bytes of a name in a directory: its length is one byte.
pub const NAME_BYTES_MAX: usize = 255;

/// Most links of an inode, as in the kernel: a count of 16 bits, with room for operations under
/// way.
pub const LINKS_MAX: u16 = 32_000;

/// Changed blocks that the plain adapter keeps in memory (64 MiB in blocks of 4 KiB). Beyond that
/// the next operation commits first.
pub const CHANGED_BLOCKS_MAX: usize = 16 << 10;

/// Unchanged blocks that the plain adapter keeps in each of two generations (32 MiB together in
/// blocks of 4 KiB); the older generation is dropped when the younger is full.
pub const CLEAN_BLOCKS_MAX: usize = 4 << 10;

/// Most bytes of one read or write of the plain adapter: neighbouring blocks go together.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// Writes of the plain adapter in flight during a commit.
pub const WRITES_IN_FLIGHT: usize = 16;

/// Blocks of content that one operation writes or frees; longer work takes several operations. An
/// operation's blocks are in memory until it ends.
pub const OPERATION_BLOCKS_MAX: u32 = 1 << 10;
