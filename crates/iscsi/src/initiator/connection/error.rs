//! Why a connection has failed.

use super::super::login::LoginError;
use crate::framing::FramingError;
use crate::pdu::{HeaderError, RejectReason};
use crate::text::TextError;

/// Why a connection has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The login failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// Malformed bytes, or a damaged header.
    #[error("framing: {0}")]
    Framing(#[from] FramingError),
    /// A malformed header.
    #[error("the target sent {0}")]
    Header(#[from] HeaderError),
    /// A malformed text.
    #[error("text: {0}")]
    Text(#[from] TextError),
    /// Data that came damaged (RFC 7143 7.8; recovery within the connection is not supported).
    #[error("a data digest does not match")]
    DataDigest,
    /// The target violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The target refused a PDU without which the session cannot go on.
    #[error("the target rejected a request: {0}")]
    Rejected(RejectReason),
    /// The target said that it drops the connection.
    #[error("the target drops the connection; it may be tried again after {wait_seconds} s")]
    Dropped {
        /// Time2Wait.
        wait_seconds: u16,
    },
    /// The login took too long.
    #[error("the target did not complete the login in time")]
    LoginTimedOut,
    /// No answer to a ping.
    #[error("the target does not answer pings")]
    Silent,
    /// Neither ABORT TASK nor LOGICAL UNIT RESET ended a command.
    #[error("a command does not end, and neither aborting it nor resetting the logical unit helped")]
    Unresponsive,
}
