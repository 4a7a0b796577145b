//! What the driver configures of the target's side. A connection takes one snapshot when it begins.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::buffer::BufferPool;

use super::access::AccessList;
use crate::chap::Credentials;
use crate::limits::{
    COMMAND_WINDOW, LOGIN_IDLE_TIMEOUT, LOGIN_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, REQUEST_DATA_POOL_BYTES,
    RETAINED_ALWAYS_BYTES, RETAINED_TOTAL_BYTES_MAX, SESSION_CONNECTIONS_MAX, SESSION_DATA_OUT_BYTES,
};
use crate::negotiation::Offer;

/// The data-out that a CDB asks for. The transport solicits no more, and reports the difference to what the initiator
/// expected as a residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedDataOut {
    /// Bytes.
    pub bytes: u64,
    /// The device server refuses another length itself: it is given all that the initiator announced.
    pub is_exact: bool,
    /// It is asked for, and has a buffer, only when the driver says so: [`Event::DataHeld`](super::Event::DataHeld).
    pub is_held: bool,
}

/// Tells for a LUN field and a CDB what the latter asks for.
pub type DataOutOf = Arc<dyn Fn(u64, &[u8]) -> AskedDataOut + Send + Sync>;

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
    pub data_out_of: DataOutOf,
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
    /// Where the data of requests that are no commands goes: pings, texts. When it has lent all it may, they have
    /// memory of their own.
    pub request_data: BufferPool,
    /// Bytes of data-out buffers that one session may have; one command it may always have.
    pub session_data_out_bytes: usize,
    /// What answered tasks of all sessions keep for recovery.
    pub retained: Arc<RetainedData>,
}

/// Data-in of answered tasks, of all sessions, that is kept until it is acknowledged (error recovery levels above 0).
#[derive(Debug)]
pub struct RetainedData {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl RetainedData {
    /// Nothing yet, and at most so much.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Bytes kept, as far as sessions have told.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a session that has told of `told` bytes may keep `bytes`.
    pub(super) fn has_room_for(&self, bytes: usize, told: usize) -> bool {
        bytes <= RETAINED_ALWAYS_BYTES || self.bytes().saturating_sub(told) + bytes <= self.bytes_max
    }

    /// A session that had told of `told` bytes keeps `bytes` now.
    pub(super) fn tell(&self, told: usize, bytes: usize) {
        if bytes > told {
            self.bytes.fetch_add(bytes - told, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(told - bytes, Ordering::Relaxed);
        }
    }
}

impl Default for RetainedData {
    fn default() -> Self {
        Self::new(RETAINED_TOTAL_BYTES_MAX)
    }
}

impl TargetParameters {
    /// Standard parameters for `targets`: as many connections per session and as much error recovery as the initiator
    /// wishes.
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
            request_data: BufferPool::new(REQUEST_DATA_POOL_BYTES),
            session_data_out_bytes: SESSION_DATA_OUT_BYTES,
            retained: Arc::default(),
        }
    }

    /// The target of a name. iSCSI names are compared without regard to case (RFC 7143 4.2.7.2: they are normalised).
    pub fn find(&self, name: &str) -> Option<&TargetDescription> {
        self.targets.iter().find(|target| target.name.eq_ignore_ascii_case(name))
    }
}
