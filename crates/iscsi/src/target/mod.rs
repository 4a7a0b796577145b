//! The target's side of iSCSI, without I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | [`Connection`]: bytes to events and back; the numbering of responses (StatSN) |
//! | `session` | what connections of one session share: the command window (CmdSN) and the tasks |
//! | `command_window` | CmdSN, ExpCmdSN and MaxCmdSN; commands held until it is their turn |
//! | `task` | one SCSI task and the collection of its data-out: immediate, unsolicited, by R2T |
//! | `login` | the login phase: stages, CHAP, negotiation |
//! | `discovery` | SendTargets |
//! | [`event`] | what the driver is told, and what it says back |
//! | [`parameters`] | what the driver configures |
//!
//! ```text
//! new ──► login ──► SessionRequested ──accept_session──► full feature phase ──► Closed
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
//! One connection per session and error recovery level 0 are offered. Session and connection are apart so that more
//! connections and levels are additions.

mod command_window;
pub mod connection;
mod discovery;
pub mod event;
mod login;
pub mod parameters;
mod session;
mod task;

#[cfg(test)]
mod tests;

pub use connection::Connection;
pub use event::{Cdb, CloseReason, Command, Event, Outcome, SessionRequest, TaskId, TaskManagement, TaskManagementId};
pub use parameters::{Authentication, DataOutBytes, TargetDescription, TargetParameters};
