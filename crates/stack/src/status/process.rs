//! The status of a process, whatever it is.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attachment::AttachmentStatus;
use super::mount::MountStatus;
use super::stores::{CacheSummary, LogSummary};
use super::target::TargetStatus;
use crate::error::{Error, Failure, Result};

/// The status of a process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[serde(bound(deserialize = "C: Deserialize<'de> + Default, L: Deserialize<'de> + Default"))]
pub enum ProcessStatus<C = cache::Status, L = writelog::Status> {
    /// An attachment.
    Attachment(Box<AttachmentStatus<C, L>>),
    /// A mount.
    Mount(Box<MountStatus>),
    /// A target.
    Target(Box<TargetStatus>),
}

/// The status of a process as who reads it needs it.
pub type Shown = ProcessStatus<CacheSummary, LogSummary>;

/// That of an attachment.
pub type ShownAttachment = AttachmentStatus<CacheSummary, LogSummary>;

impl Shown {
    /// That of an attachment, if it is one.
    pub fn attachment(self) -> Option<ShownAttachment> {
        match self {
            Self::Attachment(status) => Some(*status),
            Self::Mount(_) | Self::Target(_) => None,
        }
    }
}

/// What a process said, as what it is.
///
/// # Errors
/// `Other` when it is something else.
pub fn read<T: DeserializeOwned>(said: &Value) -> Result<T> {
    T::deserialize(said).map_err(|error| {
        Error::new(Failure::Other, format!("the process answers with what is not understood: {error}"))
    })
}
