//! The driver's configuration of the target's side. A connection takes one snapshot when it begins.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::buffer::BufferPool;
use scsi::Cdb;

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
    /// Whether the device server itself refuses another length: it gets all data that the initiator
    /// announced.
    pub is_exact: bool,
    /// Whether it is requested, and gets a buffer, only after the driver's consent:
    /// [`Event::DataHeld`](super::Event::DataHeld).
    pub is_held: bool,
}

/// Returns the data-out that a CDB for a LUN field asks for.
pub type DataOutOf = Arc<dyn Fn(u64, &Cdb) -> AskedDataOut + Send + Sync>;

/// The accounts for logins, and the target's own.
#[derive(Clone, Debug, Default)]
pub struct Authentication {
    /// CHAP accounts; without any, initiators need not prove anything.
    pub accounts: Vec<Credentials>,
    /// The credentials by which this target proves itself to an initiator that asks for that.
    pub own: Option<Credentials>,
}

impl Authentication {
    /// Whether initiators must authenticate.
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
    /// Its addresses. An unspecified address stands for the one that the initiator connected to.
    pub portals: Vec<TargetPortal>,
    /// Portal groups in which it can be reached; `None` for all.
    pub portal_groups: Option<Vec<u16>>,
    /// The initiators that may log in.
    pub access: AccessList,
    /// The credentials by which this target proves itself to an initiator that asks for that.
    pub own: Option<Credentials>,
    /// The data-out that CDBs ask for.
    pub data_out_of: DataOutOf,
}

impl TargetDescription {
    /// Whether it can be reached in this portal group.
    pub fn is_in_group(&self, tag: u16) -> bool {
        self.portal_groups.as_ref().is_none_or(|groups| groups.contains(&tag))
    }
}

impl fmt::Debug for TargetDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetDescription").field("name", &self.name).field("portals", &self.portals).finish()
    }
}

/// The parameters of this end for a connection.
#[derive(Clone)]
pub struct TargetParameters {
    /// The targets behind this portal.
    pub targets: Vec<TargetDescription>,
    /// Portal group of the connection.
    pub portal_group_tag: u16,
    /// Authentication of discovery sessions.
    pub discovery_authentication: Authentication,
    /// This end's proposals.
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
    /// The pool of data-out buffers.
    pub pool: BufferPool,
    /// The pool of buffers for data of requests that are no commands: pings, texts. When it is
    /// exhausted, such data gets memory of its own.
    pub request_data: BufferPool,
    /// Bytes of data-out buffers that one session may have; it may always have those of one
    /// command.
    pub session_data_out_bytes: usize,
    /// What all sessions keep for recovery.
    pub retained: Arc<RetainedData>,
}

/// What all sessions keep until it is acknowledged (error recovery levels above 0): answers of tasks with their data,
/// and responses with what they carry, as large as they are in memory.
#[derive(Debug)]
pub struct RetainedData {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl RetainedData {
    /// An empty account with this limit.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Bytes kept, as far as sessions have reported them.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a session that has reported `told` bytes may keep `bytes`.
    pub(super) fn has_room_for(&self, bytes: usize, told: usize) -> bool {
        bytes <= RETAINED_ALWAYS_BYTES || self.bytes().saturating_sub(told) + bytes <= self.bytes_max
    }

    /// Notes that a session which had reported `told` bytes keeps `bytes` now.
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
    /// Standard parameters for `targets`: as many connections per session and as much error
    /// recovery as the initiator proposes.
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
