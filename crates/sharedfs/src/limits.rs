//! The bounds of this crate, with their reasons.

use std::time::Duration;

/// Least blocks of the redo area: room for an operation that writes a few blocks, twice. A file
/// system without so many free blocks is not mounted for changes.
pub const AREA_BLOCKS_MIN: u32 = 256;

/// Least blocks of a file system that is mounted for changes: in a smaller one most would be the
/// redo area.
pub const FILE_SYSTEM_BLOCKS_MIN: u32 = 1024;

/// Most bytes of the redo area: two transactions of 32 MiB. A larger transaction is committed
/// earlier.
pub const AREA_BYTES_MAX: u64 = 64 << 20;

/// Between these bounds the redo area is one part of this many of the file system.
pub const AREA_SHARE: u32 = 16;

/// Blocks of structure that one operation changes besides one bitmap for each block that it writes
/// or frees: indirect blocks, directories, inodes, the superblock.
pub const OPERATION_STRUCTURE_BLOCKS: usize = 48;

/// Least blocks that are cached, whatever the quota is: those of one operation.
pub const CACHE_BLOCKS_MIN: usize = 64;

/// How long a request waits for other hosts before it asks whether the device still answers.
pub const HOLD_PROBE_TIME: Duration = Duration::from_secs(2);

/// Pause before something is tried again that only time helps: a lease in doubt, or a device that
/// fails while another host waits.
pub const LEASE_PAUSE: Duration = Duration::from_millis(100);

const _: () = assert!(AREA_BLOCKS_MIN as usize / 2 > 2 * OPERATION_STRUCTURE_BLOCKS);
const _: () = assert!(FILE_SYSTEM_BLOCKS_MIN >= 4 * AREA_BLOCKS_MIN);
