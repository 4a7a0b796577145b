//! Several LUNs that are one device, or several paths to one LUN.

use serde::{Deserialize, Serialize};

use super::lun_name::LunName;
use super::remote::RemoteStatus;

/// The paths to a LUN with several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MultipathStatus {
    /// How a path is chosen.
    pub policy: String,
    /// The paths, one for each session.
    pub paths: Vec<PathStatus>,
}

/// One path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PathStatus {
    /// The portal that took its last connection.
    pub portal: String,
    /// Whether it answers.
    pub is_online: bool,
    /// How its port reaches the LUN.
    pub access: String,
    /// Requests given to it.
    pub requests: u64,
    /// Changes whose outcome it does not know.
    pub changes_in_doubt: usize,
    /// Its session.
    pub remote: RemoteStatus,
}

/// The members of a stripe.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StripeStatus {
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// The members in their order.
    pub members: Vec<MemberStatus>,
}

/// One member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// Who it is.
    pub lun: LunName,
    /// Its size.
    pub size_bytes: u64,
    /// What it has beyond what the smallest allows.
    pub unused_bytes: u64,
    /// Whether it answers.
    pub is_online: bool,
    /// Its session.
    pub remote: RemoteStatus,
}
