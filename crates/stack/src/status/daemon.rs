//! The status of the daemon that keeps this host's attachments, and its answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The status of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The directory of the files of its attachments.
    pub directory: PathBuf,
    /// Its attachments, by name.
    pub attachments: Vec<KeptStatus>,
    /// Files with a mistake.
    pub files_refused: Vec<FileRefused>,
}

/// An attachment that the daemon keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptStatus {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// `starting`, `running`, `waiting` for its next start, `failed` for good, `detached`, `detaching`, or `taken`: an
    /// attachment of another LUN runs under its name.
    pub state: String,
    /// Why it is not running, in words; of one that runs, how it ended last.
    pub why: Option<String>,
    /// The exit code of its process that ended last; `None` of one that was killed, and before one ended.
    pub exit_code: Option<u8>,
    /// Milliseconds until its next start, or the next attempt to detach it.
    pub wait_ms: Option<u64>,
    /// Its process.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// Since when it is in this state, in seconds since 1970.
    pub since: u64,
    /// Settings of its file, changed since its start, that count at its next one.
    pub needs_start: Vec<String>,
    /// Settings of its file that its process refused so far, as `KEY=VALUE: WHY`; they are set again.
    pub not_set: Vec<String>,
}

/// A file with a mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRefused {
    /// The file.
    pub file: PathBuf,
    /// The mistake, in words, with line and key where it has them.
    pub why: String,
}

/// What was found when the files of all attachments were read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesRead {
    /// The directory.
    pub directory: PathBuf,
    /// Names of attachments whose files are new.
    pub added: Vec<String>,
    /// Names of attachments whose files are gone, and which are being detached.
    pub removed: Vec<String>,
    /// Attachments whose files changed.
    pub changed: Vec<FileChange>,
    /// Files with a mistake. An attachment that runs goes on as it is.
    pub files_refused: Vec<FileRefused>,
}

/// A changed file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileChange {
    /// The name of the attachment.
    pub name: String,
    /// Settings that were set in the attachment that runs, as `KEY=VALUE`.
    pub set: Vec<String>,
    /// Settings that count at its next start.
    pub needs_start: Vec<String>,
    /// Settings that it refused, each with its reason.
    pub refused: Vec<String>,
}
