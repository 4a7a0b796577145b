//! The status of a mount.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::remote::RemoteStatus;

/// The status of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MountStatus {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// The directory.
    pub address: PathBuf,
    /// URL or path of the device; empty before that was found.
    pub source: String,
    /// Its size; `None` before it was found.
    pub size_bytes: Option<u64>,
    /// Whether it is read only.
    pub is_read_only: bool,
    /// Problems that need attention, in words.
    pub troubles: Vec<String>,
    /// The session; `None` for a file.
    pub remote: Option<RemoteStatus>,
    /// The counters of the file system.
    pub mount: MountCounts,
}

/// The counters of a mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountCounts {
    /// Requests of the kernel.
    pub requests: u64,
    /// Inodes that the kernel knows now.
    pub known_inodes: usize,
    /// Transactions that became durable.
    pub commits: u64,
    /// Blocks that are changed and not durable yet.
    pub changed_blocks: usize,
    /// Unchanged blocks in memory.
    pub cached_blocks: usize,
    /// Reads of blocks that were cached.
    pub block_hits: u64,
    /// Reads of blocks that came from the device.
    pub block_misses: u64,
}
