//! What an attachment was started with, where that counts until its next start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an attachment was started with. A process of a version before this says nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartStatus {
    /// The URLs of its logical units, each with its port and without a user.
    pub urls: Vec<String>,
    /// Its settings that cannot be changed while it runs, by their keys, with paths from the root on.
    pub settings: BTreeMap<String, String>,
}
