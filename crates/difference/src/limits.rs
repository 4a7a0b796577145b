//! The bounds of this crate, with their reasons.

use block::limits::{PATHS_MAX, STRIPE_MEMBERS_MAX};

/// Bytes of a chunk that is copied at once: a page of memory at least, and no more than any device takes in one
/// request.
pub const CHUNK_BYTES_MIN: u32 = 4096;
/// Largest chunk in bytes; see [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_MAX: u32 = 1 << 20;

/// Default bytes of a chunk: few enough that a small write copies little, enough that the map of a
/// large base is small.
pub const CHUNK_BYTES_DEFAULT: u32 = 64 << 10;

/// Chunks of a base: the largest numbers of slots have a meaning of their own. 256 TiB in chunks of 64 KiB.
pub const CHUNKS_MAX: u64 = u32::MAX as u64 - 1;

/// Bytes of the map read at once when a difference is opened.
pub const MAP_READ_BYTES: usize = 1 << 20;

/// Sectors of the map in flight when it is stored.
pub const MAP_WRITES_IN_FLIGHT: usize = 16;

/// Ids of the base's content that a difference notes: one for each LUN of a stripe, or for each path to one LUN, which
/// are all that there can be.
pub const CONTENTS_MAX: usize = STRIPE_MEMBERS_MAX;
const _: () = assert!(PATHS_MAX <= CONTENTS_MAX);
