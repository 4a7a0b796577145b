//! What happened in a process.

use serde::{Deserialize, Serialize};

/// What happened to an attachment, a mount, a target or the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its number in its process, from 1 on.
    pub number: u64,
    /// When it was noted, in milliseconds since 1970.
    pub at_ms: u64,
    /// The attachment, mount or target that it is of.
    pub name: String,
    /// What it is, in a word.
    pub event: String,
    /// The same in words.
    pub words: String,
}

/// The events of a process after one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Events {
    /// The name of the process.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// The events, in their order.
    pub events: Vec<Event>,
    /// How many more there were, which are forgotten.
    pub forgotten: u64,
}
