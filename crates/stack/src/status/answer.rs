//! Answers to requests, and progress reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::daemon::{FilesRead, KeptStatus};
use super::events::Events;
use super::process::ProcessStatus;
use super::sought::SoughtStatus;

/// The answer to a request.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// The status of the process.
    Status(Box<ProcessStatus>),
    /// The status of a process that waits for its target.
    Sought(Box<SoughtStatus>),
    /// The dirty data that an end, or a cleaning, left.
    Left(Left),
    /// Where all that was acknowledged is durable.
    Flushed(Flushed),
    /// What happened in the process.
    Events(Box<Events>),
    /// A setting that was changed, and its value.
    Set(BTreeMap<String, String>),
    /// What changed with the configuration file.
    Reloaded(Reloaded),
    /// What changed with the files of all attachments.
    FilesRead(Box<FilesRead>),
    /// An attachment of the daemon that was started, or is held.
    Kept(Box<KeptStatus>),
}

impl Answer {
    /// The answer that the setting `key` has this value now.
    pub(crate) fn set(key: &str, value: &str) -> Self {
        Self::Set(BTreeMap::from([(key.to_owned(), value.to_owned())]))
    }

    /// The answer of the process `name` that it ends, and has no dirty data.
    pub(crate) fn ends(name: &str) -> Self {
        Self::Left(Left { name: Some(name.to_owned()), ..Left::default() })
    }
}

/// The dirty data that an end, or a cleaning, left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Left {
    /// The name of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes that only this host has; `None` for a process without stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// Whether the session was closed without a logout, because the target does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_target_silent: Option<bool>,
    /// The fronts that applications still used when an end began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_use: Vec<FrontInUse>,
}

/// Where all that was acknowledged before a flush is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flushed {
    /// The name of the process.
    pub name: String,
    /// `difference`, `log`, `cache`, `logical-unit`, or `file` of a mount of one.
    pub durable_in: String,
    /// Bytes that only this host has.
    pub dirty_bytes: u64,
}

/// A front that applications still used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontInUse {
    /// Its kind.
    pub kind: String,
    /// Its place, in the form of `--as` without the kind.
    pub place: String,
    /// How many users it had: openers of a file, connected clients; 1 for a disk of the kernel.
    pub users: u64,
}

/// The changes made by a reload of a target's configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// The name of the process.
    pub name: String,
    /// LUNs that are new.
    pub luns_added: usize,
    /// LUNs that are gone.
    pub luns_removed: usize,
    /// LUNs that have another size.
    pub luns_resized: usize,
    /// Portals that are new.
    pub portals_added: usize,
    /// Portals that are gone.
    pub portals_removed: usize,
    /// Sessions that were asked to end.
    pub sessions_ended: usize,
}

/// The progress of the work on a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Report {
    /// So much of a cache is written back.
    Cleaned {
        /// Lines.
        lines_done: u64,
        /// All lines that were dirty when it began.
        lines_total: u64,
    },
    /// So much of a write log is written to the LUN.
    Destaged {
        /// Bytes that the LUN lacked, and has now.
        bytes_done: u64,
        /// All that it lacked when the work began.
        bytes_total: u64,
    },
    /// It cannot go on before somebody is back.
    Waits {
        /// The target, and its state.
        waits_for: String,
        /// Bytes that are dirty.
        dirty_bytes: u64,
        /// Whether the file that they are in was removed: they cannot stay there.
        #[serde(default)]
        is_file_gone: bool,
        /// The process that a signal ends at once, where nothing but its memory has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
}
