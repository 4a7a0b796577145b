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
    /// URL or path of what is mounted; empty before that was found.
    pub source: String,
    /// Its size; `None` before it was found.
    pub size_bytes: Option<u64>,
    /// Whether nothing is changed.
    pub is_read_only: bool,
    /// The session; `None` of a file.
    pub remote: Option<RemoteStatus>,
    /// What the file system does.
    pub mount: MountCounts,
}

/// What a mounted file system does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountCounts {
    /// Requests of the kernel so far.
    pub requests: u64,
    /// Inodes that it knows now.
    pub known_inodes: usize,
    /// Transactions that became durable.
    pub commits: u64,
    /// Blocks that are changed and not durable yet.
    pub changed_blocks: usize,
    /// Unchanged blocks in memory.
    pub cached_blocks: usize,
    /// Reads of blocks that were there.
    pub block_hits: u64,
    /// Reads of blocks that came from the device.
    pub block_misses: u64,
}
