//! The identity of a LUN in the status.

use block::Identity;
use serde::{Deserialize, Serialize};

/// The identity of a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunName {
    /// Target name.
    pub target: String,
    /// Designator of the unit.
    pub unit: String,
    /// Serial number.
    pub serial: String,
}

impl From<&Identity> for LunName {
    fn from(Identity { target, unit, serial }: &Identity) -> Self {
        Self { target: target.clone(), unit: unit.clone(), serial: serial.clone() }
    }
}
