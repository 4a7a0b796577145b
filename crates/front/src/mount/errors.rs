//! Error numbers for errors of a file system.

use ext2::{Error, ErrorKind};
use fuser::Errno;

use crate::fuse::to_errno as device_errno;

/// The error number for programs.
pub(super) fn to_errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::NotDirectory => Errno::ENOTDIR,
        ErrorKind::IsDirectory => Errno::EISDIR,
        ErrorKind::NotEmpty => Errno::ENOTEMPTY,
        ErrorKind::NameTooLong => Errno::ENAMETOOLONG,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::TooManyLinks => Errno::EMLINK,
        ErrorKind::TooLarge => Errno::EFBIG,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::NoAttribute => Errno::ENODATA,
        ErrorKind::Stale => Errno::ESTALE,
        ErrorKind::Conflict => Errno::EAGAIN,
        ErrorKind::NoMemory => Errno::ENOMEM,
        ErrorKind::Corrupt | ErrorKind::NotClean => Errno::EIO,
        ErrorKind::Device(kind) => device_errno(kind),
    }
}
