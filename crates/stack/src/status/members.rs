//! Several LUNs that form one device, or several paths to one LUN.

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
    /// Whether its session is up.
    pub is_online: bool,
    /// The access state of its port.
    pub access: String,
    /// Count of requests sent by it.
    pub requests: u64,
    /// Changes with an unknown outcome.
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
    /// Its identity.
    pub lun: LunName,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes beyond those that the smallest member allows to use.
    pub unused_bytes: u64,
    /// Whether its session is up.
    pub is_online: bool,
    /// Its session.
    pub remote: RemoteStatus,
}
