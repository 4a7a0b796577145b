//! The names of the blocking engine's background work, in which a panic is planted.

/// Work of every file.
pub const FILE_WORK: [&str; 3] = ["file-pool", "file-call", "file-workers"];

/// Work of a holder of a part of a block device that waits to become its keeper.
pub const DEVICE_WORK: &str = "file-keeper";
