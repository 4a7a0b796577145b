//! The lock on logical units in use.
//!
//! Two attachments of one LUN on one host, by whatever target name, are excluded by a lock file for
//! each LUN, held as long as the process lives.

use std::collections::{BTreeMap, btree_map};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block::Identity;
use rustix::fs::{FlockOperation, flock};

use super::make_directory;
use super::stem::lock_stem;
use crate::error::{Error, Failure, Result};
use crate::limits::ENDING_TIME_MAX;
use crate::paths::Paths;

/// Locks `file`, waiting for up to `time_max`: a holder that was just killed is still ending.
pub(crate) fn lock_within(file: &File, operation: FlockOperation, time_max: Duration) -> bool {
    const LOOK_INTERVAL: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + time_max;
    loop {
        if flock(file, operation).is_ok() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Extension of the files that name the processes which share a lock.
const SHARER: &str = "sharer";

/// Held while this process uses a device and its LUNs; the locks end with the process. A LUN is the
/// same one under any target name, by its designator and serial number.
pub struct UnitLock {
    _files: Vec<File>,
    /// Files beside shared locks that name this process.
    notes: Vec<PathBuf>,
}

impl UnitLock {
    /// Takes the locks for this process alone, for writing.
    ///
    /// # Errors
    /// `InUse` when another process of this host has one of them.
    pub fn acquire(paths: &Paths, identities: &[Identity], name: &str) -> Result<Self> {
        Self::lock_all(paths, identities, name, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes the locks for a base that is only read, together with other processes.
    ///
    /// # Errors
    /// `InUse` when another process of this host has one of them for writing.
    pub fn share(paths: &Paths, identities: &[Identity], name: &str) -> Result<Self> {
        Self::lock_all(paths, identities, name, FlockOperation::NonBlockingLockShared)
    }

    fn lock_all(paths: &Paths, identities: &[Identity], name: &str, operation: FlockOperation) -> Result<Self> {
        let directory = paths.unit_locks();
        make_directory(&directory)?;
        let mut locked = BTreeMap::new();
        let (mut note_files, mut notes) = (Vec::new(), Vec::new());
        for identity in identities {
            // Paths to one LUN may have different target names.
            if let btree_map::Entry::Vacant(vacant) = locked.entry(lock_stem(identity)) {
                let path = directory.join(format!("{}.lock", vacant.key()));
                vacant.insert(Self::lock(&path, identity, name, operation)?);
                if matches!(operation, FlockOperation::NonBlockingLockShared) {
                    // For messages only: without the file this process is not named there.
                    let note = path.with_extension(format!("{name}.{SHARER}"));
                    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&note);
                    let file = file.ok().filter(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok());
                    notes.extend(file.is_some().then_some(note));
                    note_files.extend(file);
                }
            }
        }
        Ok(Self { _files: locked.into_values().chain(note_files).collect(), notes })
    }

    /// The names of the holders of the lock at `path`, as far as they are known.
    fn holders(path: &Path) -> String {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let entries = path.parent().and_then(|directory| fs::read_dir(directory).ok());
        let mut sharers: Vec<String> = entries
            .into_iter()
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let name = name.strip_prefix(&format!("{stem}."))?.strip_suffix(&format!(".{SHARER}"))?;
                // A file that is not locked was left by a killed process.
                let is_held = flock(&File::open(entry.path()).ok()?, FlockOperation::NonBlockingLockShared).is_err();
                is_held.then(|| name.to_owned())
            })
            .collect();
        sharers.sort();
        match sharers.is_empty() {
            true => fs::read_to_string(path).unwrap_or_default().trim().to_owned(),
            false => sharers.join("\", \""),
        }
    }

    fn lock(path: &Path, identity: &Identity, name: &str, operation: FlockOperation) -> Result<File> {
        let context = |error: &std::io::Error| Error::io(format!("cannot lock {}", path.display()), error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| context(&error))?;
        if !lock_within(&file, operation, ENDING_TIME_MAX) {
            let holder = Self::holders(path);
            let message = format!(
                "{identity} is attached on this host already, under this target name or another, as \"{}\": detach it \
                 first, or use that attachment, which may have several fronts (--as)",
                holder
            );
            return Err(Error::new(Failure::InUse, message));
        }
        if matches!(operation, FlockOperation::NonBlockingLockShared) {
            return Ok(file);
        }
        file.set_len(0).and_then(|()| file.write_all(name.as_bytes())).map_err(|error| context(&error))?;
        Ok(file)
    }
}

impl Drop for UnitLock {
    fn drop(&mut self) {
        // A file that stays is not locked, and is ignored.
        self.notes.iter().for_each(|note| drop(fs::remove_file(note)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(serial: &str) -> Identity {
        Identity { target: "iqn.2026-01.lab:disk".into(), unit: "naa.3".into(), serial: serial.into() }
    }

    fn paths(directory: &tempfile::TempDir) -> Paths {
        Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap()
    }

    #[test]
    fn one_lun_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(&directory);
        let [first, second] = [[identity("1")], [identity("2")]];
        let held = UnitLock::acquire(&paths, &first, "first").unwrap();
        let error = UnitLock::acquire(&paths, &first, "second").err().expect("it is taken");
        assert_eq!(error.failure(), Failure::InUse);
        assert!(error.to_string().contains("\"first\""), "{error}");
        assert!(UnitLock::acquire(&paths, &second, "second").is_ok());
        drop(held);
        let shared = [0, 1].map(|_| UnitLock::share(&paths, &first, "reader").unwrap());
        let refused = UnitLock::share(&paths, &first, "another").unwrap();
        drop(refused);
        let error = UnitLock::acquire(&paths, &first, "writer").err().expect("it is read");
        assert!(error.to_string().contains("as \"reader\": detach"), "who came later is gone: {error}");
        // A killed process leaves its file.
        let killed = paths.unit_locks().join(format!("{}.killed.{SHARER}", lock_stem(&identity("1"))));
        fs::write(killed, "").unwrap();
        let other = UnitLock::share(&paths, &first, "other").unwrap();
        let error = UnitLock::acquire(&paths, &first, "writer").err().expect("it is read");
        assert!(error.to_string().contains("as \"other\", \"reader\": detach"), "{error}");
        drop((shared, other));
        assert!(UnitLock::acquire(&paths, &first, "second").is_ok());
    }

    #[test]
    fn a_lun_behind_two_target_names_is_one_lun_and_one_attachment_may_have_both() {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(&directory);
        let both = [identity("1"), Identity { target: "iqn.2026-01.lab:other".into(), ..identity("1") }];
        let held = UnitLock::acquire(&paths, &both, "paths").expect("they are paths to one LUN");
        for one in &both {
            let error = UnitLock::acquire(&paths, std::slice::from_ref(one), "second").err().expect("it is taken");
            assert_eq!(error.failure(), Failure::InUse, "{one}");
        }
        drop(held);
        let nameless = both.map(|identity| Identity { unit: "lun 0".into(), ..identity });
        let held = nameless.map(|one| UnitLock::acquire(&paths, &[one], "first").map(drop));
        assert!(held.iter().all(Result::is_ok), "nothing says that they are one");
    }
}
