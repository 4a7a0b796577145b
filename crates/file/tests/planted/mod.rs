//! The work of the blocking engine that a panic is planted in.

/// That of every file.
pub const FILE_WORK: [&str; 3] = ["file-pool", "file-call", "file-workers"];

/// That of who waits for a part of a block device that another keeps.
pub const DEVICE_WORK: &str = "file-keeper";
