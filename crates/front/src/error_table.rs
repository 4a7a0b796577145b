//! Conversion between block errors and NBD errors.

use block::{Error, ErrorKind};
use nbd::{ErrorCode, Failure};

/// The NBD error for each kind. `ENOTSUP` and `EOVERFLOW` have special meanings ("Error values"),
/// and `ESHUTDOWN` makes a client leave at once, so none of them is used for an ordinary error.
const CODES: [(ErrorKind, ErrorCode); 13] = [
    (ErrorKind::Media, ErrorCode::InputOutput),
    (ErrorKind::NoSpace, ErrorCode::NoSpace),
    (ErrorKind::ReservationConflict, ErrorCode::NotPermitted),
    (ErrorKind::Gone, ErrorCode::InputOutput),
    (ErrorKind::NoAccess, ErrorCode::InputOutput),
    (ErrorKind::TimedOut, ErrorCode::InputOutput),
    (ErrorKind::OutcomeUnknown, ErrorCode::InputOutput),
    (ErrorKind::InvalidRange, ErrorCode::Invalid),
    (ErrorKind::Unsupported, ErrorCode::Invalid),
    (ErrorKind::ReadOnly, ErrorCode::NotPermitted),
    (ErrorKind::AccessDenied, ErrorCode::NotPermitted),
    (ErrorKind::Busy, ErrorCode::InputOutput),
    (ErrorKind::Corrupt, ErrorCode::InputOutput),
];

/// The NBD error for a device's error.
pub(crate) fn to_failure(error: &Error) -> Failure {
    let row = CODES.iter().find(|(kind, _)| *kind == error.kind());
    Failure { code: row.map_or(ErrorCode::InputOutput, |(_, code)| *code), message: error.to_string() }
}

/// The block error for a server's error.
const KINDS: [(ErrorCode, ErrorKind); 8] = [
    (ErrorCode::NotPermitted, ErrorKind::AccessDenied),
    (ErrorCode::InputOutput, ErrorKind::Media),
    (ErrorCode::NoMemory, ErrorKind::Busy),
    (ErrorCode::Invalid, ErrorKind::InvalidRange),
    (ErrorCode::NoSpace, ErrorKind::NoSpace),
    (ErrorCode::Overflow, ErrorKind::InvalidRange),
    (ErrorCode::NotSupported, ErrorKind::Unsupported),
    (ErrorCode::Shutdown, ErrorKind::Gone),
];

/// The error of a request that an NBD server failed.
pub(crate) fn to_error(failure: &Failure) -> Error {
    let row = KINDS.iter().find(|(code, _)| *code == failure.code);
    let kind = row.map_or(ErrorKind::Media, |(_, kind)| *kind);
    Error::new(kind, format!("the NBD server answers: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_kind_has_its_row() {
        for code in ErrorCode::ALL {
            assert_eq!(KINDS.iter().filter(|(row, _)| *row == code).count(), 1, "{code:?}");
        }
        for (index, (kind, _)) in CODES.iter().enumerate() {
            assert!(CODES[..index].iter().all(|(earlier, _)| earlier != kind), "{kind:?} has two rows");
        }
    }

    #[test]
    fn what_crosses_both_tables_keeps_its_meaning() {
        for (kind, back) in [
            (ErrorKind::NoSpace, ErrorKind::NoSpace),
            (ErrorKind::ReadOnly, ErrorKind::AccessDenied),
            (ErrorKind::InvalidRange, ErrorKind::InvalidRange),
            (ErrorKind::Corrupt, ErrorKind::Media),
        ] {
            let failure = to_failure(&Error::new(kind, "block 7"));
            assert_eq!(to_error(&failure).kind(), back);
            assert!(to_error(&failure).to_string().contains("block 7"));
        }
    }
}
