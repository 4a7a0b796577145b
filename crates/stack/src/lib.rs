//! Builds a running stack from a configuration: the one place that knows all parts.
//!
//! | module | holds |
//! |---|---|
//! | [`control`] | the control socket every long-running process answers on |
//! | [`error`] | errors as a person meets them, and the exit codes |
//! | [`paths`] | run-time and state directories |
//! | [`registry`] | which LUNs have their newest data in a cache of this host; which are in use |
//! | [`sidecar`] | the serial number that stays with a file LUN |

#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod limits;
pub mod paths;
pub mod registry;
pub mod sidecar;

pub use error::{Error, Failure, Result};
