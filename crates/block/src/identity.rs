//! The identity of a device.

use std::fmt;

/// The identity of a device: three names that together never name two different contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its source: the iSCSI target name, or `file` / `memory` for local devices.
    pub target: String,
    /// The logical unit's designator (VPD 83h), or a path.
    pub unit: String,
    /// Its serial number (VPD 80h); a device that comes back with other data has another.
    pub serial: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit {} serial {}", self.target, self.unit, self.serial)
    }
}
