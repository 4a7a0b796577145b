//! The status of what waits for its target: as that of what it will be, as far as it is known.

use std::path::PathBuf;

use serde::Serialize;

use super::fronts::FrontsStatus;

/// Of what waits for its target. What is `()` is not known yet, and said to be `null`.
#[derive(Debug, Serialize)]
pub struct SoughtStatus {
    /// `attachment` or `mount`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Where it will be reached.
    #[serde(flatten)]
    pub reached: Reached,
    /// Who the LUN is.
    pub lun: (),
    /// Its size.
    pub size_bytes: (),
    /// The search.
    pub remote: SoughtRemote,
    /// There is none yet.
    pub cache: (),
    /// Likewise.
    pub log: (),
}

/// Where what is sought for will be reached.
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

/// A target that is not there yet, under the keys of one that is.
#[derive(Debug, Serialize)]
pub struct SoughtRemote {
    /// `reconnecting` or `failing`.
    pub state: &'static str,
    /// Where it is looked for.
    pub portal: String,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// None.
    pub sessions: u64,
    /// None.
    pub connections: u64,
    /// Attempts so far.
    pub reconnect_attempts: u32,
    /// Milliseconds before the next; `None` before the first one failed.
    pub reconnect_wait_ms: Option<u64>,
}
