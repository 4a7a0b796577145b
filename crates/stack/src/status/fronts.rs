//! How applications reach an attachment.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The fronts of an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontsStatus {
    /// Where applications reach them, as they take it, separated by spaces.
    pub address: String,
    /// Where the first one listens.
    pub front: Option<String>,
    /// Each.
    pub fronts: Vec<FrontStatus>,
    /// What the fronts of each kind counted together, under the name of the kind: only the kind knows its counters.
    #[serde(flatten, skip_deserializing)]
    pub counters: Map<String, Value>,
}

/// One front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontStatus {
    /// Its kind.
    pub kind: String,
    /// Where it listens, in the form of `--as` without the kind.
    pub place: String,
    /// Where applications reach it.
    pub address: String,
    /// Applications that it has.
    pub clients: u64,
    /// Of these, who know another size than the device has.
    pub clients_outdated: u64,
}
