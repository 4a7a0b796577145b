//! Whether a name leads to an open file yet. Without one it is read and written as before, and goes
//! when it is closed: nothing that is written to it lasts.
//!
//! Not noticed: a file that was moved, which has a name; one that a network file system keeps under a
//! name of its own as long as it is open (NFS).

use std::fs::File;

use block::{Error, ErrorKind};
use rustix::fs::{AtFlags, StatxFlags};

use crate::loss::FileLoss;

/// Whether `file` has a name; `None` where that cannot be found out. Of its times nothing is asked: see
/// `wholeness`.
pub(crate) fn has_name(file: &File) -> Option<bool> {
    if let Ok(status) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK) {
        return Some(status.stx_nlink > 0);
    }
    // Kernels, and sandboxes, without statx.
    Some(rustix::fs::fstat(file).ok()?.st_nlink > 0)
}

/// # Errors
/// `Media` when `file` has no name any more.
pub(crate) fn check_named(file: &File, path: &str) -> Result<(), Error> {
    if has_name(file) != Some(false) {
        return Ok(());
    }
    let context = format!("{path} was removed while it is in use: nothing that is written to it lasts");
    Err(Error::with_source(ErrorKind::Media, context, FileLoss::Removed))
}
