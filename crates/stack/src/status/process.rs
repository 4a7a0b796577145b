//! The status of a process of any kind.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attachment::AttachmentStatus;
use super::daemon::DaemonStatus;
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
    /// The daemon that keeps attachments.
    Daemon(Box<DaemonStatus>),
}

/// The status of a process in the form for readers.
pub type Shown = ProcessStatus<CacheSummary, LogSummary>;

/// The status of an attachment in the form for readers.
pub type ShownAttachment = AttachmentStatus<CacheSummary, LogSummary>;

impl Shown {
    /// The status of an attachment; `None` for another kind.
    pub fn attachment(self) -> Option<ShownAttachment> {
        match self {
            Self::Attachment(status) => Some(*status),
            Self::Mount(_) | Self::Target(_) | Self::Daemon(_) => None,
        }
    }
}

/// Parses the status of a process as one of this kind.
///
/// # Errors
/// `Other` when it is of another kind.
pub fn read<T: DeserializeOwned>(said: &Value) -> Result<T> {
    T::deserialize(said).map_err(|error| {
        Error::new(Failure::Other, format!("the process answers with what is not understood: {error}"))
    })
}
