//! The configuration of a daemon.

use std::ffi::OsString;
use std::path::PathBuf;

/// What a daemon is told at its start.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The directory of the files of attachments.
    pub directory: PathBuf,
    /// Whether a signal detaches all attachments before the daemon ends.
    pub stops_attachments: bool,
    /// The `forebay` program.
    pub program: PathBuf,
    /// Arguments before `attach`, of every process.
    pub arguments: Vec<OsString>,
}
