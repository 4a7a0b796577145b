//! Errors in words for people: what happened, to what, and what to do. One place maps every failure to a block error.

use std::io;

use block::{Error, ErrorKind};
use iscsi::initiator::{ConnectionError, LoginError};
use iscsi::pdu::LoginStatus;
use scsi::{Sense, SenseKey};

use crate::limits::OWED_MAX;
use crate::options::InitiatorOptions;

/// Data of the LUN that cannot be what it says.
pub(crate) fn malformed(error: scsi::Malformed) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the LUN sent {error} that make no sense"))
}

/// Why a session could not be opened, or was lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}")]
    Connect(io::Error),
    #[error("no connection within the time allowed")]
    ConnectTimedOut,
    #[error("the target closed the connection")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the target did not come to the end of its list of targets in time")]
    ListTimedOut,
    #[error("the target redirects in circles")]
    Redirections,
    #[error(
        "the target leads from portal group {from} to {to}, where it does not end what was under way; a write of the \
         lost session could still land, so nothing is written there before that is told to whoever waits for it"
    )]
    OtherGroup { from: u16, to: u16 },
    #[error("the target asked for a logout")]
    LogoutRequested,
    #[error(
        "the target breaks the protocol of shared LUNs: it asks this host for more than {OWED_MAX} things at once; \
         nothing that is cached of it is used"
    )]
    Flooded,
    #[error(
        "its target does not know this host as a client of the shared LUN, which another path reaches: the two targets \
         do not know of each other, and this path is not used"
    )]
    Stranger,
    #[error("the target answers pings and no commands; the session is made anew")]
    Deaf,
    #[error("the target reports changes without end; the session is made anew")]
    Unsettled,
    #[error("a lost connection could not be recovered: {0}")]
    NotRecovered(String),
    /// An error of the unit, whose text is complete.
    #[error("{0}")]
    Unit(Error),
    /// This host is fenced from the shared LUN. The text is complete.
    #[error("{0}")]
    Fenced(Error),
    /// Another device is in the LUN's place. The text is complete.
    #[error("{0}")]
    Replaced(Error),
}

impl LinkError {
    /// The error of a connect, which is not tried again.
    pub(crate) fn into_error(self, options: &InitiatorOptions) -> Error {
        let portal = &options.portal;
        match self {
            Self::Unit(error) | Self::Replaced(error) | Self::Fenced(error) => error,
            Self::Connect(source) => {
                let words =
                    format!("cannot connect to {portal}: {source}; is the target running, and is the port right?");
                Error::with_source(ErrorKind::Gone, words, source)
            }
            Self::ConnectTimedOut => {
                let seconds = options.connect_timeout.as_secs_f64();
                let words = format!(
                    "cannot connect to {portal}: no answer within {seconds} s; check the address and the network"
                );
                Error::new(ErrorKind::Gone, words)
            }
            Self::ListTimedOut => Error::new(ErrorKind::TimedOut, format!("{portal}: {}", Self::ListTimedOut)),
            Self::Connection(ConnectionError::LoginTimedOut) => {
                let seconds = options.login_timeout.as_secs_f64();
                let words = format!(
                    "{portal} accepts connections but did not complete a login within {seconds} s; is it an iSCSI \
                     target?"
                );
                Error::new(ErrorKind::TimedOut, words)
            }
            Self::Connection(ConnectionError::Login(LoginError::Refused(status))) => refused(status, options),
            Self::Connection(ConnectionError::Login(error @ (LoginError::Chap(_) | LoginError::Method(_)))) => {
                let words = format!("authentication with {} at {portal} failed: {error}", options.target);
                Error::new(ErrorKind::AccessDenied, words)
            }
            other => Error::new(ErrorKind::Gone, format!("no session with {} at {portal}: {other}", options.target)),
        }
    }
}

/// RFC 7143 11.13.5, in words that say what to do.
fn refused(status: LoginStatus, options: &InitiatorOptions) -> Error {
    let (portal, target, name) = (&options.portal, &options.target, &options.initiator_name);
    let (kind, words) = match status {
        LoginStatus::AUTHENTICATION_FAILURE if options.chap.is_none() => (
            ErrorKind::AccessDenied,
            format!("{target} at {portal} asks for CHAP: give credentials with --chap-file or FOREBAY_CHAP_PASSWORD"),
        ),
        LoginStatus::AUTHENTICATION_FAILURE => {
            (ErrorKind::AccessDenied, format!("{target} at {portal} refused the CHAP name or secret; check both"))
        }
        LoginStatus::AUTHORIZATION_FAILURE => {
            (ErrorKind::AccessDenied, format!("{target} at {portal} does not let {name} in; check its access list"))
        }
        LoginStatus::NOT_FOUND | LoginStatus::TARGET_REMOVED => (
            ErrorKind::NotFound,
            format!("there is no target {target} at {portal}; \"forebay discover {portal}\" lists those there are"),
        ),
        status if status.class() == 3 => {
            (ErrorKind::Busy, format!("{target} at {portal} cannot serve now: {}; try again later", status.name()))
        }
        status => (
            ErrorKind::Unsupported,
            format!("{target} at {portal} refused the login: {} ({:04x}h)", status.name(), status.0),
        ),
    };
    Error::new(kind, words)
}

/// What a CHECK CONDITION means to the caller of a block device.
pub(crate) fn sense_error(sense: &Sense, what: &str) -> Error {
    let kind = match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::DataProtect, 0x27, 0x07) => ErrorKind::NoSpace,
        (SenseKey::DataProtect, ..) => ErrorKind::ReadOnly,
        (SenseKey::IllegalRequest, 0x25, _) | (SenseKey::NotReady, 0x3a, _) => ErrorKind::Gone,
        (SenseKey::IllegalRequest, 0x21, _) => ErrorKind::InvalidRange,
        (SenseKey::IllegalRequest, 0x20, 0x02) => ErrorKind::AccessDenied,
        (SenseKey::IllegalRequest, ..) => ErrorKind::Unsupported,
        (SenseKey::NotReady, ..) => ErrorKind::Gone,
        _ => ErrorKind::Media,
    };
    Error::new(kind, format!("{what} failed: {sense}"))
}
