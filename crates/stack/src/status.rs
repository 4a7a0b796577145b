//! The status of a process, as `forebay status --json` prints it: the same types for the process
//! and for the reader.
//!
//! | module | holds |
//! |---|---|
//! | [`answer`] | answers to requests, and progress reports |
//! | [`process`] | the status of a process of any kind |
//! | [`attachment`] | of an attachment |
//! | [`start`] | what it was started with |
//! | [`sought`] | of an attachment or mount that waits for its target |
//! | [`mount`] | of a mount |
//! | [`target`] | of a target |
//! | [`daemon`] | of the daemon, and its answers |
//! | [`events`] | what happened in a process |
//! | [`fronts`] | how applications reach an attachment |
//! | [`remote`] | a session with a remote LUN |
//! | [`members`] | several LUNs that are one device |
//! | [`lun_name`] | the identity of a LUN |
//! | [`stores`] | the stores below the fronts: cache, write log, difference |
//!
//! The reference (`docs/reference/status.md`) describes each key. Reader and process may be of
//! different versions: a missing key has its default, and an unknown one is ignored. `--json`
//! prints the process's text as it is, not through these types.

pub mod answer;
pub mod attachment;
pub mod daemon;
pub mod events;
pub mod fronts;
pub mod lun_name;
pub mod members;
pub mod mount;
pub mod process;
pub mod remote;
pub mod sought;
pub mod start;
pub mod stores;
pub mod target;

pub use answer::{Answer, Flushed, FrontInUse, Left, Reloaded, Report};
pub use events::{Event, Events};
pub use process::{ProcessStatus, Shown, ShownAttachment, read};
