//! What lies between the fronts and the LUN: cache, write log and difference.

use serde::{Deserialize, Serialize};

/// What people are told of a cache: some of [`cache::Status`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CacheSummary {
    /// When writes are acknowledged.
    pub mode: String,
    /// Bytes that the LUN does not have.
    pub dirty_bytes: u64,
    /// Bytes of memory that its frames take.
    pub memory_bytes: u64,
    /// Reads.
    pub reads: cache::RequestStatus,
    /// Writes.
    pub writes: cache::RequestStatus,
    /// Totals from which a load is computed between two moments.
    pub load: cache::LoadTotals,
}

/// What people are told of a write log: some of [`writelog::Status`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LogSummary {
    /// When writes count as acknowledged.
    pub durability: String,
    /// Bytes that the LUN does not have.
    pub dirty_bytes: u64,
    /// Share of the log that takes no records now.
    pub share_used: f64,
}

/// The difference from a shared base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DifferenceStatus {
    /// Of the base's content; `None` when nobody said.
    pub generation: Option<u64>,
    /// Bytes that are copied at once.
    pub chunk_bytes: u64,
    /// Bytes that it can hold.
    pub room_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
}

/// Whether what the stores hold is still what the LUN has. Without a store nothing is said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freshness {
    /// Of the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<StoreFreshness>,
    /// Of the write log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<StoreFreshness>,
}

/// What others did to the LUN while a store was away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreFreshness {
    /// `kept`, `partly` or `cold`.
    pub state: String,
    /// Ranges that others changed.
    pub changed_ranges: usize,
    /// Bytes in these; `None` when that is not known.
    pub changed_by_others_bytes: Option<u64>,
    /// The reason, in words.
    pub why: String,
}
