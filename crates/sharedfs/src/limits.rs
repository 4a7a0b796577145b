//! The bounds of this crate, with their reasons.

/// Blocks of the redo area, at least: room for an operation that writes a few blocks, twice. A file system without so
/// many free blocks is not mounted for changes.
pub const AREA_BLOCKS_MIN: u32 = 256;

/// Blocks of a file system that is mounted for changes, at least: the redo area would be most of it.
pub const FILE_SYSTEM_BLOCKS_MIN: u32 = 1024;

/// Bytes of the redo area, at most: two transactions of 32 MiB. A larger transaction is committed earlier.
pub const AREA_BYTES_MAX: u64 = 64 << 20;

/// The share of the file system that the redo area takes between the two: 1/16.
pub const AREA_SHARE: u32 = 16;

/// Blocks of structure that one operation changes beyond one bitmap for each block that it writes or frees: tables of a
/// file, directories, inodes, the superblock.
pub const OPERATION_STRUCTURE_BLOCKS: usize = 48;

/// Blocks that are kept at least, whatever the quota says: one operation's worth.
pub const CACHE_BLOCKS_MIN: usize = 64;

const _: () = assert!(AREA_BLOCKS_MIN as usize / 2 > 2 * OPERATION_STRUCTURE_BLOCKS);
const _: () = assert!(FILE_SYSTEM_BLOCKS_MIN >= 4 * AREA_BLOCKS_MIN);
