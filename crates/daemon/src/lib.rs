//! Keeps this host's attachments: one `forebay attach` process for each file of a directory.
//!
//! A process of its own for each, and none of them a part of this one: a crash of the daemon touches
//! no attachment, and the next daemon finds those that run by their control sockets, adopts them,
//! and watches them without being their parent.
//!
//! | module | holds |
//! |---|---|
//! | [`limits`] | the bounds |
//! | [`end`] | how a process ended, and whether another start may end otherwise |
//! | [`end_note`] | what a process leaves at its end, for a daemon that is not its parent |
//! | [`file`] | the file of one attachment |
//! | [`files`] | those of a directory |
//! | `reading` | reads them beside everything else |
//! | [`sameness`] | whether what runs under the name of a file is what the file says |
//! | [`order`] | what stands on what |
//! | [`change`] | what another text of a file changes while the attachment runs |
//! | [`backoff`] | the wait before another start |
//! | [`kept`] | the state of one attachment |
//! | [`supervisor`] | the states of all, from files, ends and the clock; no I/O |
//! | `processes` | finds, starts, watches and signals processes |
//! | [`config`] | the configuration of a daemon |
//! | `keeper` | does what the supervisor asks for, and tells it what happened |
//! | `requests` | the control requests to the daemon |
//! | [`daemon`] | a daemon from its beginning to its end |
//! | [`persist`] | writes and removes the file of an attachment |

#![forbid(unsafe_code)]

pub mod backoff;
pub mod change;
pub mod config;
pub mod daemon;
pub mod end;
pub mod end_note;
pub mod file;
pub mod files;
mod keeper;
pub mod kept;
pub mod limits;
pub mod order;
pub mod persist;
mod processes;
mod reading;
mod requests;
pub mod sameness;
pub mod supervisor;

/// The name of the daemon, for its control socket and for `forebay status`. No attachment may have it.
pub const NAME: &str = "daemon";
