//! The target's side of iSCSI, without I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | [`Connection`]: a connection until the end of its login |
//! | [`session`] | [`Session`]: all connections of a session, bytes to events and back |
//! | `task_set` | what the connections share: the command window (CmdSN) and the tasks |
//! | `answers` | the answers of tasks, sent and kept |
//! | `nexus` | the connections, what was agreed on, the time, the events |
//! | `link` | one connection: framing, the numbering of responses (StatSN), pings |
//! | `answer` | the answer of a task, kept while it may be requested again |
//! | `kept_responses` | the responses of a connection, kept likewise |
//! | `retained_share` | the bytes of both that a session keeps, its share of those of all |
//! | `data_in` | the data of a command that reads, cut into PDUs |
//! | `knowledge` | what the initiator knew of news in responses when it sent a command |
//! | `command_window` | CmdSN, ExpCmdSN and MaxCmdSN; commands held until it is their turn |
//! | `task` | one SCSI task and the collection of its data-out: immediate, unsolicited, by R2T |
//! | `pace` | limits the work on PDUs that are no commands |
//! | `login` | the login phase: stages, CHAP, negotiation |
//! | `discovery` | SendTargets |
//! | `full_feature`, `granted_logout`, `pending_management`, `text_exchange` | parameters of a session; a logout, a task management request and a text under way |
//! | `arrived_command` | a command whose header has come: its parsed CDB, and how its data-out will be collected |
//! | `placing` | the buffers for data segments |
//! | [`access`] | access rules of a target |
//! | [`event`] | events for the driver, and its answers |
//! | [`parameters`] | the driver's configuration |
//!
//! ```text
//! Connection::new ──► login ──► SessionRequested ──► Session::begin or join ──► full feature phase ──► Closed
//!           │             └── refuse_session ──► Closed          ├─ logout, both ways
//!           └── any error: Login Response with a status, Closed  └─ error, ping without answer
//! ```
//!
//! What it keeps true:
//! - commands become events in CmdSN order and with all their data, each exactly once;
//! - after the response to a task management function that was carried out, no response of a task it covered is sent
//!   (RFC 7143 11.5.1); one that was refused leaves them to be answered;
//! - a CDB is parsed once, when the header of its PDU is there (`arrived_command`); from then on it is a value;
//! - a limited amount is held for a peer (`limits`);
//! - any bytes of a peer lead to an answer: a Reject, a Login status or the end of the connection.
//!
//! A session is one value without locks: its driver drives all its connections. The higher levels
//! of error recovery are in `answers` and `session/lost.rs`: SNACK, requests for damaged data, connections
//! lost without their tasks, reassignment.

pub mod access;
mod answer;
mod answers;
mod arrived_command;
mod barrier;
mod command_window;
pub mod connection;
mod data_in;
mod discovery;
pub mod event;
mod fences;
mod full_feature;
mod granted_logout;
mod kept_responses;
mod knowledge;
mod link;
mod login;
mod nexus;
mod pace;
pub mod parameters;
mod pending_management;
mod placing;
mod retained_share;
pub mod session;
mod task;
mod task_set;
mod text_exchange;

#[cfg(test)]
mod tests;

pub use access::{AccessList, AccessRule, NamePattern};
pub use connection::Connection;
pub use event::{
    CloseReason, Command, Event, HeldData, LinkId, LoginEvent, Outcome, SessionRequest, TaskId, TaskManagement,
    TaskManagementId,
};
pub use link::LinkReport;
pub use parameters::{
    AskedDataOut, Authentication, DataOutOf, RetainedData, TargetDescription, TargetParameters, TargetPortal,
};
pub use session::Session;
