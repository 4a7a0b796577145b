//! The stores between the fronts and the LUN: cache, write log and difference.

use serde::{Deserialize, Serialize};

/// The part of [`cache::Status`] that is shown to users.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CacheSummary {
    /// When writes are acknowledged.
    pub mode: String,
    /// Bytes that the LUN lacks.
    pub dirty_bytes: u64,
    /// Bytes of memory that its frames take.
    pub memory_bytes: u64,
    /// Reads.
    pub reads: cache::RequestStatus,
    /// Writes.
    pub writes: cache::RequestStatus,
    /// Totals, from which a reader computes the load between two moments.
    pub load: cache::LoadTotals,
}

/// The part of [`writelog::Status`] that is shown to users.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LogSummary {
    /// When writes count as acknowledged.
    pub durability: String,
    /// Bytes that the LUN lacks.
    pub dirty_bytes: u64,
    /// Share of the log that has no room for records now.
    pub share_used: f64,
}

/// The difference from a shared base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DifferenceStatus {
    /// The generation of the base's content; `None` when none was given.
    pub generation: Option<u64>,
    /// Bytes that are copied at once.
    pub chunk_bytes: u64,
    /// Bytes that there is room for.
    pub room_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
}

/// Whether the content of the stores is still that of the LUN; empty without stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FreshnessStatus {
    /// Of the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<StoreFreshness>,
    /// Of the write log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<StoreFreshness>,
    /// Of the base of the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<StoreFreshness>,
}

/// What other hosts did to the LUN while a store was not open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreFreshness {
    /// `kept`, `partly` or `cold`; of a base `kept`, `noted`, `changed` or `unknown`.
    pub state: String,
    /// Count of ranges that others changed.
    pub changed_ranges: usize,
    /// Bytes of these; `None` when that is not known.
    pub changed_by_others_bytes: Option<u64>,
    /// Bytes that the store had, and that were written over what others have, or may have, written, as the user wants
    /// it; `None` where there were none.
    pub overwritten_bytes: Option<u64>,
    /// The reason, in words.
    pub why: String,
}
