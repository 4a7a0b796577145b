//! What a process says of itself and of its work, as `forebay status --json` prints it: the same types for who says it
//! and who reads it.
//!
//! | module | holds |
//! |---|---|
//! | [`answer`] | what requests are answered with, and how far the work on them has come |
//! | [`process`] | the status of a process, whatever it is |
//! | [`attachment`] | of an attachment |
//! | [`sought`] | of what waits for its target |
//! | [`mount`] | of a mount |
//! | [`target`] | of a target |
//! | [`fronts`] | how applications reach an attachment |
//! | [`remote`] | a session with a remote LUN |
//! | [`members`] | several LUNs that are one device |
//! | [`lun_name`] | who a LUN is |
//! | [`stores`] | what is below the fronts: cache, write log, difference |
//!
//! The reference (`docs/reference/status.md`) says what each key means. Who reads may be of another version than who
//! says it: a key that is missing has its default, and one that is not known is left out. What prints JSON prints what
//! was said, and does not go through these types.

pub mod answer;
pub mod attachment;
pub mod fronts;
pub mod lun_name;
pub mod members;
pub mod mount;
pub mod process;
pub mod remote;
pub mod sought;
pub mod stores;
pub mod target;

pub use answer::{Answer, Left, Reloaded, Report};
pub use process::{ProcessStatus, Shown, ShownAttachment, read};
