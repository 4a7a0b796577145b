//! The lock on the name of a process that runs.
//!
//! A process has its sessions at targets by its name, so that a start after a crash takes over the
//! session of the process before it. A second process under the name of one that runs has to be
//! refused before it logs in, also where the control socket of the first was removed. So the lock
//! lies in the state directory, like those on logical units.
//!
//! The names that fronts show to other machines have locks, too.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::checksum::crc32c;
use rustix::fs::FlockOperation;

use crate::error::{Error, Failure, Result};
use crate::limits::ENDING_TIME_MAX;
use crate::paths::Paths;
use crate::registry::{lock_within, make_directory};

/// Held while a process runs under a name, or has a front of it; it ends with the process.
#[derive(Debug)]
pub(crate) struct NameLock {
    _file: File,
}

impl NameLock {
    /// Locks `name`, after the time that a process which was just killed takes to end.
    ///
    /// # Errors
    /// `InUse` when a process runs under that name.
    pub(crate) fn take(paths: &Paths, name: &str) -> Result<Self> {
        make_directory(&paths.name_locks())?;
        Self::lock(&path_of(paths, name), |process| {
            format!(
                "\"{name}\" is running already (process {process}), and its control socket {} is gone: choose another \
                 --name, or end that process with SIGTERM first",
                paths.control_socket(name).display()
            )
        })
    }

    /// Locks the name that a front shows to others, in the folder of these names; as
    /// [`take`](Self::take). `refusal` makes a message of the id of the process that holds the lock.
    ///
    /// # Errors
    /// `InUse` when another process has it.
    pub(crate) fn take_in(folder: &Path, name: &str, refusal: impl FnOnce(&str) -> String) -> Result<Self> {
        make_directory(folder)?;
        Self::lock(&folder.join(format!("{name}.lock")), refusal)
    }

    /// `refusal` makes a message of the id of the process that holds the lock.
    fn lock(path: &Path, refusal: impl FnOnce(&str) -> String) -> Result<Self> {
        let context = |error: &std::io::Error| Error::io(format!("cannot lock {}", path.display()), error);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = options.map_err(|error| context(&error))?;
        if !lock_within(&file, FlockOperation::NonBlockingLockExclusive, ENDING_TIME_MAX) {
            let process = std::fs::read_to_string(path).unwrap_or_default();
            return Err(Error::new(Failure::InUse, refusal(process.trim())));
        }
        let process = std::process::id().to_string();
        file.set_len(0).and_then(|()| file.write_all(process.as_bytes())).map_err(|error| context(&error))?;
        Ok(Self { _file: file })
    }
}

/// Processes with the same name that have other run-time directories are strangers to each other.
fn path_of(paths: &Paths, name: &str) -> PathBuf {
    let place = crc32c(paths.control_socket(name).as_os_str().as_bytes());
    paths.name_locks().join(format!("{name}.{place:08x}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_process_at_a_time_in_a_run_time_directory() {
        let directory = tempfile::tempdir().unwrap();
        let paths = |runtime: &str| Paths::new(directory.path().join(runtime), directory.path().join("state")).unwrap();
        let first = NameLock::take(&paths("a"), "disk").unwrap();
        let refused = NameLock::take(&paths("a"), "disk").err().unwrap();
        assert_eq!(refused.failure(), Failure::InUse);
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        NameLock::take(&paths("a"), "other").unwrap();
        NameLock::take(&paths("b"), "disk").unwrap();
        drop(first);
        NameLock::take(&paths("a"), "disk").unwrap();
    }
}
