//! The target's side of iSCSI, without I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | [`Connection`]: a connection until the end of its login |
//! | [`session`] | [`Session`]: all connections of a session, bytes to events and back |
//! | `link` | one of these connections: framing, the numbering of responses (StatSN), pings |
//! | `task_set` | what they share: the command window (CmdSN) and the tasks |
//! | `answer` | what a task was answered with, as long as it may be asked for again |
//! | `data_in` | what a command reads, cut into PDUs |
//! | `command_window` | CmdSN, ExpCmdSN and MaxCmdSN; commands held until it is their turn |
//! | `task` | one SCSI task and the collection of its data-out: immediate, unsolicited, by R2T |
//! | `pace` | how much of what is no command is looked at in a time |
//! | `login` | the login phase: stages, CHAP, negotiation |
//! | `discovery` | SendTargets |
//! | `full_feature`, `granted_logout`, `text_exchange` | what a session goes by; a logout, and a text request, on their way |
//! | `placing` | where the data segment of a PDU goes |
//! | [`access`] | who may log in to a target |
//! | [`event`] | what the driver is told, and what it says back |
//! | [`parameters`] | what the driver configures |
//!
//! ```text
//! Connection::new ──► login ──► SessionRequested ──► Session::begin or join ──► full feature phase ──► Closed
//!           │             └── refuse_session ──► Closed          ├─ logout, both ways
//!           └── any error: Login Response with a status, Closed  └─ error, ping without answer
//! ```
//!
//! What it keeps true:
//! - commands become events in CmdSN order and with all their data, each exactly once;
//! - after the response to a task management function, no response of a task it covered is sent (RFC 7143 11.5.1);
//! - what a peer can make this side hold is bounded (`limits`);
//! - whatever bytes come, the answer is a Reject, a Login status or the end of the connection.
//!
//! A session is one value and has no locks: whoever drives it drives all its connections. What level of error recovery
//! adds is `session/recovery.rs`: SNACK, data that came wrong asked for again, connections lost without their tasks,
//! reassignment.

pub mod access;
mod answer;
mod command_window;
pub mod connection;
mod data_in;
mod discovery;
pub mod event;
mod full_feature;
mod granted_logout;
mod link;
mod login;
mod pace;
pub mod parameters;
mod placing;
pub mod session;
mod task;
mod task_set;
mod text_exchange;

#[cfg(test)]
mod tests;

pub use access::{AccessList, AccessRule, NamePattern};
pub use connection::Connection;
pub use event::{
    Cdb, CloseReason, Command, Event, HeldData, LinkId, LoginEvent, Outcome, SessionRequest, TaskId, TaskManagement,
    TaskManagementId,
};
pub use link::LinkReport;
pub use parameters::{
    AskedDataOut, Authentication, DataOutOf, RetainedData, TargetDescription, TargetParameters, TargetPortal,
};
pub use session::Session;
