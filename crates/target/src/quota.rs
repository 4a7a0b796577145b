//! The resources that a server's peers may use, and the answer beyond them.
//!
//! | bound | beyond it |
//! |---|---|
//! | connections | closed at once, without an answer |
//! | connections of one address that have not logged in | the oldest of them is closed, without an answer |
//! | sessions; connections of one initiator | login status 0302h, out of resources |
//! | connections of one session | MaxConnections is the limit; beyond, login status 0206h |
//! | time to log in, silence while logging in | closed |
//! | data-in that a session, or all, have queued or under way | new commands wait; a small one can always run |
//! | data-out buffers of a session, or of all | R2Ts wait; unsolicited data is answered with BUSY |
//! | sessions that have lost their last connection | the oldest of them ends |
//! | commands of a session | the command window (MaxCmdSN) does not open |

use std::time::Duration;

use iscsi::limits::{
    COMMAND_WINDOW, LOGIN_IDLE_TIMEOUT, LOGIN_TIMEOUT, SESSION_CONNECTIONS_MAX, SESSION_DATA_OUT_BYTES,
};

use crate::limits::{
    CONNECTIONS_MAX, DATA_IN_TOTAL_BYTES_MAX, DATA_OUT_POOL_BYTES, INITIATOR_CONNECTIONS_MAX,
    SESSION_DATA_IN_BYTES_MAX, SESSIONS_MAX, UNAUTHENTICATED_MAX,
};

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Sessions at once, at most [`SESSIONS_MAX`].
    pub sessions: usize,
    /// Connections at once, those still logging in included.
    pub connections: usize,
    /// Connections of a session, at most [`SESSION_CONNECTIONS_MAX`].
    pub connections_per_session: u16,
    /// Connections of one initiator name.
    pub connections_per_initiator: usize,
    /// Connections of one address that have not logged in yet.
    pub unauthenticated_per_address: usize,
    /// Bytes of data-in that one session may have queued or under way.
    pub session_data_in_bytes: usize,
    /// Bytes of data-in that all sessions may have queued or under way.
    pub data_in_bytes: usize,
    /// Bytes of data-out buffers of one session; it may always have those of one command.
    pub session_data_out_bytes: usize,
    /// Bytes of data-out buffers of all sessions.
    pub data_out_bytes: usize,
    /// Commands of a session at once, at most [`COMMAND_WINDOW`].
    pub session_commands: u32,
    /// Time from the connection to the full feature phase.
    pub login_time: Duration,
    /// Silence inside a login.
    pub login_idle: Duration,
}

impl Quota {
    /// The same, with at most [`SESSIONS_MAX`] sessions.
    pub(crate) fn bounded(self) -> Self {
        Self { sessions: self.sessions.min(SESSIONS_MAX), ..self }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sessions: SESSIONS_MAX,
            connections: CONNECTIONS_MAX,
            connections_per_session: SESSION_CONNECTIONS_MAX,
            connections_per_initiator: INITIATOR_CONNECTIONS_MAX,
            unauthenticated_per_address: UNAUTHENTICATED_MAX,
            session_data_in_bytes: SESSION_DATA_IN_BYTES_MAX,
            data_in_bytes: DATA_IN_TOTAL_BYTES_MAX,
            session_data_out_bytes: SESSION_DATA_OUT_BYTES,
            data_out_bytes: DATA_OUT_POOL_BYTES,
            session_commands: COMMAND_WINDOW,
            login_time: LOGIN_TIMEOUT,
            login_idle: LOGIN_IDLE_TIMEOUT,
        }
    }
}
