//! The error kind of an errno, for callers of a block device. Decided in this one place.

use std::fmt::Display;

use block::{Error, ErrorKind};
use rustix::io::Errno;

/// Errnos that are not listed are medium errors: the bytes could not be stored or returned. These
/// include EIO, and ENODATA, EREMOTEIO and EILSEQ, which the block layer uses for medium, target
/// and protection errors (`blk_errors` in Linux's `block/blk-core.c`).
const KINDS: [(Errno, ErrorKind); 22] = [
    (Errno::NOSPC, ErrorKind::NoSpace),
    (Errno::DQUOT, ErrorKind::NoSpace),
    // The file would be larger than the file system or RLIMIT_FSIZE allows.
    (Errno::FBIG, ErrorKind::NoSpace),
    (Errno::ACCESS, ErrorKind::AccessDenied),
    (Errno::PERM, ErrorKind::AccessDenied),
    (Errno::ROFS, ErrorKind::ReadOnly),
    // EBADF: the descriptor is not open for what was asked.
    (Errno::BADF, ErrorKind::ReadOnly),
    (Errno::NOENT, ErrorKind::NotFound),
    (Errno::NOTDIR, ErrorKind::NotFound),
    (Errno::NODEV, ErrorKind::Gone),
    (Errno::NXIO, ErrorKind::Gone),
    (Errno::NOMEDIUM, ErrorKind::Gone),
    (Errno::SHUTDOWN, ErrorKind::Gone),
    // The way to the disk failed.
    (Errno::NOLINK, ErrorKind::Gone),
    (Errno::BADE, ErrorKind::ReservationConflict),
    (Errno::BUSY, ErrorKind::Busy),
    (Errno::TXTBSY, ErrorKind::Busy),
    (Errno::AGAIN, ErrorKind::Busy),
    (Errno::NOMEM, ErrorKind::Busy),
    (Errno::OPNOTSUPP, ErrorKind::Unsupported),
    (Errno::TIMEDOUT, ErrorKind::OutcomeUnknown),
    // A duration limit: the command was aborted.
    (Errno::TIME, ErrorKind::OutcomeUnknown),
];

/// The kind that callers match.
pub(crate) fn kind_of(errno: Errno) -> ErrorKind {
    KINDS.iter().find(|(known, _)| *known == errno).map_or(ErrorKind::Media, |(_, kind)| *kind)
}

/// The error of `action`, in words like `write of bytes 0..512 of /path: No space left on device`.
pub(crate) fn error(errno: Errno, action: impl Display) -> Error {
    let source = std::io::Error::from_raw_os_error(errno.raw_os_error());
    Error::with_source(kind_of(errno), format!("{action}: {source}"), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_becomes_a_kind_and_words() {
        let full = error(Errno::NOSPC, "write of bytes 0..512 of /tmp/disk");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().starts_with("write of bytes 0..512 of /tmp/disk: No space left"), "{full}");
        for (errno, kind) in [
            (Errno::IO, ErrorKind::Media),
            (Errno::NODATA, ErrorKind::Media),
            (Errno::SHUTDOWN, ErrorKind::Gone),
            (Errno::NODEV, ErrorKind::Gone),
            (Errno::NOLINK, ErrorKind::Gone),
            (Errno::BADE, ErrorKind::ReservationConflict),
            (Errno::ROFS, ErrorKind::ReadOnly),
            (Errno::TIMEDOUT, ErrorKind::OutcomeUnknown),
        ] {
            assert_eq!(kind_of(errno), kind, "{errno:?}");
        }
    }
}
