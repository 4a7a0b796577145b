//! The events of a connection for its driver, and the driver's answers.

use base::buffer::Buffer;
use scsi::{Cdb, CdbError};

use crate::framing::FramingError;
use crate::negotiation::{Negotiated, SessionType};
use crate::pdu::{InitiatorTaskTag, Isid, LoginStatus, TaskAttribute, TaskManagementFunction};

/// Names a task of a connection while the driver has it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    /// The initiator's name for it.
    pub initiator_task_tag: InitiatorTaskTag,
    pub(super) generation: u64,
}

/// Names a connection of a session; never used twice in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(super) u64);

/// Names a task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskManagementId(pub(super) u64);

/// An event of a connection that logs in.
#[derive(Debug)]
pub enum LoginEvent {
    /// The initiator is authenticated and its parameters are negotiated. The driver answers with
    /// [`Session::begin`](super::Session::begin), [`Session::join`](super::Session::join) or
    /// [`Connection::refuse_session`](super::Connection::refuse_session).
    SessionRequested(SessionRequest),
    /// Nothing more will be received. What is queued must still be sent, then the transport closed.
    Closed(CloseReason),
}

/// An event of a session.
#[derive(Debug)]
pub enum Event {
    /// Execute this, then call [`Session::handle_completion`](super::Session::handle_completion).
    Command(Command),
    /// Call [`Session::ask_for_data`](super::Session::ask_for_data) when the data of this command may come.
    DataHeld(HeldData),
    /// Do this, then call [`Session::handle_task_management`](super::Session::handle_task_management); where that takes
    /// time, [`Session::handle_carrying_out`](super::Session::handle_carrying_out) before.
    TaskManagement(TaskManagement),
    /// Commands of these LUN fields ended with their connection, and the session goes on: each
    /// logical unit must establish a unit attention for this nexus (RFC 7143 11.14.5, 47h/7Fh).
    CommandsCleared(Vec<u64>),
    /// The initiator ends the session. No new requests come; [`Closed`](Self::Closed) follows when
    /// the tasks under way have ended, whose outcomes are not sent.
    Logout,
    /// Nothing more will be received on this connection. What is queued must still be sent, then the transport closed.
    /// The session goes on.
    LinkClosed(LinkId, CloseReason),
    /// The session has ended with all its connections, whose queued bytes must still be sent.
    Closed(CloseReason),
}

/// A login that wants to become a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// InitiatorName.
    pub initiator_name: String,
    /// The initiator port's part of the session's name.
    pub isid: Isid,
    /// Zero for a new session, or the session this connection wants to join.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
    /// TargetName; `None` in a discovery session.
    pub target_name: Option<String>,
    /// Portal group of its connections.
    pub portal_group_tag: u16,
    /// The purpose of the session.
    pub session_type: SessionType,
    /// The authenticated CHAP name, if any.
    pub authenticated_name: Option<String>,
    /// The values in force.
    pub negotiated: Negotiated,
    /// Whether connections of the session may be split (`docs/protocol/split-connections.md`).
    pub may_split: bool,
    /// Whether commands and messages of shared units are used (`docs/protocol/sharing.md`).
    pub may_share: bool,
    /// CID of the connection whose responses this one will carry.
    pub answers_for: Option<u16>,
}

/// A SCSI command with all its data.
#[derive(Debug)]
pub struct Command {
    /// Names it.
    pub task: TaskId,
    /// LUN field as on the wire, its eight bytes as a big-endian number.
    pub lun: u64,
    /// Its parsed CDB, or the reason why it was not parsed.
    pub cdb: Result<Cdb, CdbError>,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// The initiator's data, at most as much as the CDB asks for.
    pub data_out: Buffer,
    /// Bytes the initiator is ready to receive.
    pub data_in_bytes_max: u32,
}

/// A command whose data is not requested yet.
#[derive(Debug)]
pub struct HeldData {
    /// Names it.
    pub task: TaskId,
    /// LUN field as on the wire, its eight bytes as a big-endian number.
    pub lun: u64,
    /// Its CDB.
    pub cdb: Cdb,
}

/// The outcome of a command.
#[derive(Debug, Default)]
pub struct Outcome {
    /// SCSI status code.
    pub status: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// The device server's data; what exceeds the initiator's limit is cut off here.
    pub data_in: Buffer,
    /// Bytes of data-in that the device server left out after these; they count for the residual.
    pub data_in_bytes_cut: u64,
    /// Whether its initiator aborted it: no response is sent.
    pub is_silent: bool,
    /// News that the response brings, as the driver numbers them; commands sent before the initiator had them are told
    /// apart by [`Session::knows`](super::Session::knows).
    pub news: Vec<u64>,
}

/// A task management function to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Names it.
    pub id: TaskManagementId,
    /// The function. ABORT TASK comes here only for a task that the driver has.
    pub function: TaskManagementFunction,
    /// LUN field as on the wire; no meaning for target resets.
    pub lun: u64,
    /// The task to be aborted.
    pub task: Option<TaskId>,
}

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both ends agreed.
    #[error("the initiator logged out")]
    Logout,
    /// The login ended with this status.
    #[error("the login was refused: {status}: {detail}")]
    LoginRefused {
        /// The status sent to the initiator.
        status: LoginStatus,
        /// The details for the log.
        detail: String,
    },
    /// The login did not end in time.
    #[error("the login took too long")]
    LoginTimeout,
    /// The bytes cannot be parsed any more.
    #[error("{0}")]
    Framing(#[from] FramingError),
    /// The peer broke the protocol in a way that error recovery level 0 ends the session for (RFC 7143 7.13).
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The initiator did not answer a ping.
    #[error("the initiator does not answer")]
    PingTimeout,
    /// The transport failed or the peer closed it.
    #[error("the connection was lost")]
    TransportLost,
    /// The driver ended it.
    #[error("closed by this end")]
    Local,
    /// Another connection replaced it (RFC 7143 6.3.4).
    #[error("the initiator reinstated the connection")]
    Reinstated,
    /// It was logged out from another connection.
    #[error("the initiator logged the connection out from another one")]
    LoggedOut,
    /// It does not read its answers, and others wait for the buffers.
    #[error("the initiator does not take what it asked for")]
    Unread,
    /// It never acknowledges responses, which have to be kept for it.
    #[error("too many responses are not acknowledged")]
    Unacknowledged,
}
