//! The status of an attachment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::fronts::FrontsStatus;
use super::lun_name::LunName;
use super::members::{MultipathStatus, StripeStatus};
use super::remote::RemoteStatus;
use super::start::StartStatus;
use super::stores::{DifferenceStatus, FreshnessStatus};

/// The status of an attachment. `C` and `L` are the status of its cache and its write log: complete
/// in the process, a summary in a reader.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachmentStatus<C, L> {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// The fronts for applications.
    #[serde(flatten)]
    pub fronts: FrontsStatus,
    /// The identity of the LUN; `None` before it was found.
    pub lun: Option<LunName>,
    /// Size of the device for applications; `None` before the LUN was found.
    pub size_bytes: Option<u64>,
    /// Bytes of a logical block.
    pub logical_block_bytes: u32,
    /// Whether it refuses writes.
    pub is_read_only: bool,
    /// While it is being detached.
    pub detaching: Option<Detaching>,
    /// Problems that need attention, in words.
    pub troubles: Vec<String>,
    /// The session; of several the one in the worst state.
    pub remote: Option<RemoteStatus>,
    /// The members of a stripe.
    pub stripe: Option<StripeStatus>,
    /// The paths to a LUN with several.
    pub multipath: Option<MultipathStatus>,
    /// File or block device of the cache.
    pub cache_path: Option<PathBuf>,
    /// The cache's offset there; `None` where it takes all of it.
    pub cache_offset: Option<u64>,
    /// The cache's size in bytes.
    pub cache_bytes: Option<u64>,
    /// The cache's UUID.
    pub cache_uuid: Option<String>,
    /// The cache.
    pub cache: Option<C>,
    /// The difference from a shared base.
    pub difference: Option<DifferenceStatus>,
    /// File or block device of the write log.
    pub log_path: Option<PathBuf>,
    /// The log's offset there; `None` where it takes all of it.
    pub log_offset: Option<u64>,
    /// The write log.
    pub log: Option<L>,
    /// Whether the content of the stores is still that of the LUN.
    pub freshness: FreshnessStatus,
    /// What it was started with.
    pub start: StartStatus,
    /// The settings in effect by their keys.
    pub settings: BTreeMap<String, String>,
}

/// An attachment that is being detached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detaching {
    /// The target for which dirty data waits, when it is away, and its state.
    pub waits_for: Option<String>,
}
