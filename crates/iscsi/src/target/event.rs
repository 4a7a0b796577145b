//! What a connection tells its driver, and what the driver says back.

use base::buffer::Buffer;

use crate::framing::FramingError;
use crate::negotiation::{Negotiated, SessionType};
use crate::pdu::{InitiatorTaskTag, Isid, LoginStatus, TaskAttribute, TaskManagementFunction};

/// Names a task of a connection for as long as the driver has it; never used twice.
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

/// What happened to a connection that logs in.
#[derive(Debug)]
pub enum LoginEvent {
    /// The initiator is authenticated and its parameters are negotiated. The driver answers with
    /// [`Session::begin`](super::Session::begin), [`Session::join`](super::Session::join) or
    /// [`Connection::refuse_session`](super::Connection::refuse_session).
    SessionRequested(SessionRequest),
    /// Nothing more will be received. What is queued must still be sent, then the transport closed.
    Closed(CloseReason),
}

/// What happened in a session.
#[derive(Debug)]
pub enum Event {
    /// Execute this, then call [`Session::handle_completion`](super::Session::handle_completion).
    Command(Command),
    /// Call [`Session::ask_for_data`](super::Session::ask_for_data) when the data of this command may come.
    DataHeld(HeldData),
    /// Do this, then call [`Session::handle_task_management`](super::Session::handle_task_management).
    TaskManagement(TaskManagement),
    /// Commands of these LUN fields were ended with their connection, and the session goes on: each logical unit owes
    /// this nexus a unit attention (RFC 7143 11.14.5, 47h/7Fh).
    CommandsCleared(Vec<u64>),
    /// The initiator ends the session. Nothing new comes; [`Closed`](Self::Closed) follows when the tasks under way
    /// have ended, whose outcomes nobody waits for.
    Logout,
    /// Nothing more will be received on this connection. What is queued must still be sent, then the transport closed.
    /// The session goes on.
    LinkClosed(LinkId, CloseReason),
    /// The session is over, and so are all its connections, of which the queued bytes must still be sent.
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
    /// What the session is for.
    pub session_type: SessionType,
    /// The CHAP name that was proved, if any.
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

/// A CDB: its first 16 bytes, and the rest of a longer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    /// The first 16 bytes, zero after the end.
    pub head: [u8; 16],
    /// What follows them, mostly nothing.
    pub extension: Vec<u8>,
}

/// A SCSI command with all its data.
#[derive(Debug)]
pub struct Command {
    /// Names it.
    pub task: TaskId,
    /// LUN field as on the wire, its eight bytes as a big-endian number.
    pub lun: u64,
    /// The CDB.
    pub cdb: Cdb,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// What the initiator sent, at most as much as the CDB asks for.
    pub data_out: Buffer,
    /// Bytes the initiator is ready to receive.
    pub data_in_bytes_max: u32,
}

/// A command whose data is not asked for yet.
#[derive(Debug)]
pub struct HeldData {
    /// Names it.
    pub task: TaskId,
    /// LUN field as on the wire, its eight bytes as a big-endian number.
    pub lun: u64,
    /// The CDB.
    pub cdb: Cdb,
}

/// What came of a command.
#[derive(Debug, Default)]
pub struct Outcome {
    /// SCSI status code.
    pub status: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// What the device server has to send; more than the initiator takes is cut off here.
    pub data_in: Buffer,
    /// Bytes of data-in that the device server would have had behind these; they count for the residual.
    pub data_in_bytes_cut: u64,
    /// The command was aborted at its initiator's wish: nothing is sent for it.
    pub is_silent: bool,
}

/// A task management function to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Names it.
    pub id: TaskManagementId,
    /// What to do. ABORT TASK comes here only for a task that the driver has.
    pub function: TaskManagementFunction,
    /// LUN field as on the wire; means nothing for target resets.
    pub lun: u64,
    /// The task to be aborted.
    pub task: Option<TaskId>,
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both ends agreed.
    #[error("the initiator logged out")]
    Logout,
    /// The login ended with this status.
    #[error("the login was refused: {status}: {detail}")]
    LoginRefused {
        /// What the initiator was told.
        status: LoginStatus,
        /// What the log should know.
        detail: String,
    },
    /// The login did not come to its end in time.
    #[error("the login took too long")]
    LoginTimeout,
    /// Framing is lost.
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
    /// The driver asked for it.
    #[error("closed by this end")]
    Local,
    /// Another connection took its place (RFC 7143 6.3.4).
    #[error("the initiator reinstated the connection")]
    Reinstated,
    /// It was logged out from another connection.
    #[error("the initiator logged the connection out from another one")]
    LoggedOut,
    /// It does not take what it asked for, and others wait for the buffers.
    #[error("the initiator does not take what it asked for")]
    Unread,
    /// It never acknowledges responses, which have to be kept for it.
    #[error("too many responses are not acknowledged")]
    Unacknowledged,
}
