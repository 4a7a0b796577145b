//! The initiator's state machine: bytes and the time in; bytes, completed commands, events and deadlines out.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | [`Command`] and its outcome |
//! | [`session`] | [`Session`]: CmdSN, the target's window, tags, tasks; shared by the connections of a session |
//! | [`connection`] | [`Connection`]: one TCP connection's framing, login, StatSN, keepalive, logout |
//! | [`login`] | the login phase |
//! | `outgoing` | what a connection sends: its queue, its numbers, commands and their data |
//! | `received` | the bytes of a read that have arrived |
//! | [`discovery`] | SendTargets |
//! | [`recovery`] | the tasks of a connection that is lost while others live |
//! | [`task_management`] | escalation for a command that does not end: abort, reset, dropping the connection |
//!
//! A driver repeats:
//!
//! ```text
//! session.submit(command)                    queue work
//! connection.handle_received(now, &mut session, n)   after reading n bytes into connection.receive_space()
//! connection.handle_timeout(now, &mut session)       when connection.poll_timeout(&session) has come
//! connection.send_next(&mut session)                 as long as it takes_commands(); then write connection.io_slices(), report handle_transmitted(n)
//! session.poll_completed(), connection.poll_event()  until None
//! ```
//!
//! Every error that ends a connection is a [`ConnectionError`]. Where there are other connections
//! and ErrorRecoveryLevel is 1 or 2, its tasks go on or end as in [`recovery`]; else the session is
//! lost with it, and its tasks are taken back with [`Session::take_all`] and issued again on a new
//! session.
//!
//! | | |
//! |---|---|
//! | several connections per session (MC/S) | one [`Connection`] each, the same [`Session`] with all of them; who gets the next command is the driver's choice, by [`Session::load`] |
//! | split connections (`docs/protocol/split-connections.md`) | a second login with `answers_for`, then [`Connection::take_response_half`] |
//! | ErrorRecoveryLevel 1 and 2 | lost connections; acknowledgement of data. A wrong digest is a lost connection: nothing is asked for again by SNACK |
//! | bidirectional commands | not |
//! | text negotiation after login | only SendTargets |

pub mod command;
pub mod connection;
pub mod discovery;
pub mod login;
mod outgoing;
mod pending_function;
mod received;
pub mod recovery;
pub mod removed;
pub mod session;
pub mod task_management;

pub use command::{Command, Completed, Data, Outcome};
pub use connection::{Connection, ConnectionError, Event, Timing};
pub use discovery::DiscoveredTarget;
pub use login::{ChapLogin, LoggedIn, Login, LoginConfig, LoginError, LoginStep};
pub use removed::{CONNECTION_RECOVERY_LEVEL_MIN, Removed};
pub use session::{Load, Session};

#[cfg(test)]
mod tests;
