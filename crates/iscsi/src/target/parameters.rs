//! What the driver configures of the target's side. A connection takes one snapshot when it begins.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::BufferPool;

use super::access::AccessList;
use crate::chap::Credentials;
use crate::limits::{
    COMMAND_WINDOW, LOGIN_IDLE_TIMEOUT, LOGIN_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, SESSION_CONNECTIONS_MAX,
};
use crate::negotiation::Offer;

/// How many bytes of data-out a CDB for a LUN field asks for. The transport solicits no more, and reports the difference
/// to what the initiator expected as a residual.
pub type DataOutBytes = Arc<dyn Fn(u64, &[u8]) -> u64 + Send + Sync>;

/// Who may come in.
#[derive(Clone, Debug, Default)]
pub struct Authentication {
    /// CHAP accounts; without any, nobody has to prove anything.
    pub accounts: Vec<Credentials>,
    /// Who this target is to an initiator that asks for proof.
    pub own: Option<Credentials>,
}

impl Authentication {
    /// Whether initiators must prove who they are.
    pub fn is_required(&self) -> bool {
        !self.accounts.is_empty()
    }
}

/// An address of a portal group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPortal {
    /// Where it listens.
    pub address: SocketAddr,
    /// Tag of its portal group.
    pub group: u16,
}

/// One target.
#[derive(Clone)]
pub struct TargetDescription {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias, for people.
    pub alias: Option<String>,
    /// Where it can be reached. An unspecified address stands for the one the initiator connected to.
    pub portals: Vec<TargetPortal>,
    /// Portal groups it can be reached in; `None` for all.
    pub portal_groups: Option<Vec<u16>>,
    /// Who may log in.
    pub access: AccessList,
    /// Who this target is to an initiator that asks for proof.
    pub own: Option<Credentials>,
    /// What CDBs ask for.
    pub data_out_bytes: DataOutBytes,
}

impl TargetDescription {
    /// Whether it can be reached in a portal group.
    pub fn is_in_group(&self, tag: u16) -> bool {
        self.portal_groups.as_ref().is_none_or(|groups| groups.contains(&tag))
    }
}

impl fmt::Debug for TargetDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetDescription").field("name", &self.name).field("portals", &self.portals).finish()
    }
}

/// All a connection needs to know about this end.
#[derive(Clone)]
pub struct TargetParameters {
    /// The targets behind this portal.
    pub targets: Vec<TargetDescription>,
    /// Portal group of the connection.
    pub portal_group_tag: u16,
    /// Who may run discovery sessions.
    pub discovery_authentication: Authentication,
    /// What this end wishes in negotiation.
    pub offer: Offer,
    /// Commands of a session under way at once, at most [`COMMAND_WINDOW`].
    pub command_window: u32,
    /// Time from the connection to the full feature phase.
    pub login_timeout: Duration,
    /// Silence inside a login, from one whole Login Request to the next.
    pub login_idle_timeout: Duration,
    /// Silence after which the target pings.
    pub ping_interval: Duration,
    /// Time for the answer to a ping.
    pub ping_timeout: Duration,
    /// Where data-out buffers come from.
    pub pool: BufferPool,
}

impl TargetParameters {
    /// Standard parameters for `targets`: as many connections per session and as much error recovery as the initiator wishes.
    pub fn new(targets: Vec<TargetDescription>, pool: BufferPool) -> Self {
        Self {
            targets,
            portal_group_tag: 1,
            discovery_authentication: Authentication::default(),
            offer: Offer { max_connections: SESSION_CONNECTIONS_MAX, error_recovery_level: 2, ..Offer::target() },
            command_window: COMMAND_WINDOW,
            login_timeout: LOGIN_TIMEOUT,
            login_idle_timeout: LOGIN_IDLE_TIMEOUT,
            ping_interval: PING_INTERVAL,
            ping_timeout: PING_TIMEOUT,
            pool,
        }
    }

    /// The target of a name. iSCSI names are compared without regard to case (RFC 7143 4.2.7.2: they are normalised).
    pub fn find(&self, name: &str) -> Option<&TargetDescription> {
        self.targets.iter().find(|target| target.name.eq_ignore_ascii_case(name))
    }
}
