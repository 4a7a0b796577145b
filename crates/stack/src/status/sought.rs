//! The status of an attachment or mount that waits for its target, in the form of its later status
//! as far as that is known.

use std::path::PathBuf;

use serde::Serialize;

use super::fronts::FrontsStatus;
use super::start::StartStatus;

/// The status of a process that waits for its target. Fields of type `()` are not known yet, and
/// are `null`.
#[derive(Debug, Serialize)]
pub struct SoughtStatus {
    /// `attachment` or `mount`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its fronts or directory.
    #[serde(flatten)]
    pub reached: Reached,
    /// The identity of the LUN.
    pub lun: (),
    /// Its size.
    pub size_bytes: (),
    /// The search.
    pub remote: SoughtRemote,
    /// What an attachment was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartStatus>,
    /// Its cache, which is not open yet.
    pub cache: (),
    /// Its write log, which is not open yet.
    pub log: (),
}

/// Where the attachment or mount will be reached.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Reached {
    /// By applications, at these fronts.
    Fronts(Box<FrontsStatus>),
    /// In a directory.
    Directory {
        /// The directory.
        address: PathBuf,
    },
}

/// The status of a target that was not found yet, with the keys of one that was.
#[derive(Debug, Serialize)]
pub struct SoughtRemote {
    /// `reconnecting` or `failing`.
    pub state: &'static str,
    /// The portal that is tried.
    pub portal: String,
    /// The last error.
    pub last_error: Option<String>,
    /// Zero.
    pub sessions: u64,
    /// Zero.
    pub connections: u64,
    /// Attempts so far.
    pub reconnect_attempts: u32,
    /// Milliseconds until the next attempt; `None` before the first one failed.
    pub reconnect_wait_ms: Option<u64>,
}
