//! The status of a target.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The status of a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetStatus {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its portals, separated by spaces.
    pub address: String,
    /// The served targets.
    pub targets: Vec<ServedTarget>,
    /// What somebody should look at although it serves, in words.
    pub troubles: Vec<String>,
    /// What can be changed while it runs, by key.
    pub settings: BTreeMap<String, String>,
    /// Sessions, connections and logical units, with their counters.
    #[serde(flatten)]
    pub server: ::target::Status,
}

/// A target that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedTarget {
    /// Its name.
    pub name: String,
    /// Its LUNs.
    pub luns: Vec<u64>,
}
