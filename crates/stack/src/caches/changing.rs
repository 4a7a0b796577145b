//! The lock under which records are changed.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::{Error, Failure, Result};
use crate::limits::CHANGE_TIME_MAX;
use crate::registry::lock_within;

/// Name of the file that is locked while a record is changed.
const LOCK: &str = "lock";

/// While this lives no other process of this host changes a record.
pub(super) struct Changing {
    _file: File,
}

impl Changing {
    /// Waits until no other process changes a record in `directory`. A change takes no longer than some writes of
    /// a small file: a process that holds the lock for longer was stopped, and is not waited for.
    ///
    /// # Errors
    /// `InUse`, naming the file; those of the file system.
    pub(super) fn begin(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let context = |error: &std::io::Error| Error::io(format!("cannot lock {}", path.display()), error);
        let file =
            File::options().write(true).create(true).truncate(false).open(&path).map_err(|error| context(&error))?;
        if !lock_within(&file, FlockOperation::NonBlockingLockExclusive, CHANGE_TIME_MAX) {
            let (path, seconds) = (path.display(), CHANGE_TIME_MAX.as_secs());
            let message = format!(
                "{path} has been locked for {seconds} s: a process of this user that changes the records of its caches \
                 does not go on; find it with \"fuser {path}\""
            );
            return Err(Error::new(Failure::InUse, message));
        }
        Ok(Self { _file: file })
    }
}
