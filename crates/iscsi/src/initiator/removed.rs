//! A lost connection that the target has removed from its session (RFC 7143 11.14).

use base::serial::Serial32;

use crate::pdu::LogoutOutcome;

/// The lowest level at which a session outlives one of its connections.
pub const CONNECTION_RECOVERY_LEVEL_MIN: u8 = 1;

/// The target's answer about a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its CID.
    pub cid: u16,
    /// The outcome of the logout.
    pub outcome: LogoutOutcome,
    /// The first command that the target has not received.
    pub exp_cmd_sn: Serial32,
    /// Seconds before tasks may be reassigned (Time2Wait).
    pub wait_seconds: u16,
}
