//! What a process leaves at its end, for a daemon that is not its parent, and for the next one:
//! a file `NAME.end` in the folder `daemon` of the run-time directory.
//!
//! A process that was killed leaves none. A note of an attachment that was detached stays until
//! that is started again, so that a daemon that begins anew does not attach what its user detached.
//! Notes of before a restart of the system do not count.
//!
//! Before the daemon itself tells a process to detach, it notes that in `NAME.asked`: should the
//! daemon be killed meanwhile, that end is not taken for one that a user wanted.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stack::paths::Paths;
use stack::{Error, Result};
use tempfile::NamedTempFile;

/// The environment variable by which the daemon tells a process where to leave its note.
pub const VARIABLE: &str = "FOREBAY_END_NOTE";

/// The version of the notes.
const VERSION: u32 = 1;

/// A note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndNote {
    version: u32,
    /// Which run of the system it is of.
    boot_id: String,
    /// The process.
    pub pid: u32,
    /// Its exit code.
    pub code: u8,
    /// Its error, in words; empty for none.
    pub why: String,
}

impl EndNote {
    /// The note of the process `pid`.
    pub fn new(pid: u32, code: u8, why: &str) -> Self {
        Self { version: VERSION, boot_id: boot_id(), pid, code, why: why.to_owned() }
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }
}

/// Leaves the note of this process, which ends with `result`, where the daemon that started it
/// looks for it. Does nothing in a process that no daemon started.
pub fn leave(result: &Result<()>) {
    let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) else { return };
    let (code, why) = match result {
        Ok(()) => (0, String::new()),
        Err(error) => (error.failure().exit_code(), error.to_string()),
    };
    if let Err(error) = EndNote::new(std::process::id(), code, &why).write(&path) {
        // A daemon that is not the parent takes the end for that of a process of somebody else.
        tracing::warn!(%error, path = %path.display(), "the daemon could not be told of the end");
    }
}

/// The notes of all attachments.
#[derive(Debug)]
pub struct EndNotes {
    directory: PathBuf,
}

impl EndNotes {
    /// The folder of notes, made if it is missing.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(paths: &Paths) -> Result<Self> {
        let directory = paths.supervision();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| Error::io(format!("cannot use {}", directory.display()), &error))?;
        Ok(Self { directory })
    }

    /// The file of the note of `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.end"))
    }

    /// The note of `name` of this run of the system. One that cannot be read counts as none.
    pub fn read(&self, name: &str) -> Option<EndNote> {
        read(&self.path(name))
    }

    /// Whether `name` was detached, not by a daemon, and not started since.
    pub fn is_held(&self, name: &str) -> bool {
        self.read(name).is_some_and(|note| note.code == 0 && !self.is_asked(name, note.pid))
    }

    /// Notes that a daemon tells the process `pid` of `name` to detach.
    pub fn note_asked(&self, name: &str, pid: u32) {
        if let Err(error) = EndNote::new(pid, 0, "").write(&self.asked(name)) {
            tracing::warn!(%error, attachment = name, "a next daemon takes its end for a user's");
        }
    }

    /// Whether a daemon told the process `pid` of `name` to detach.
    pub fn is_asked(&self, name: &str, pid: u32) -> bool {
        read(&self.asked(name)).is_some_and(|note| note.pid == pid)
    }

    /// Forgets that: it could not, and goes on.
    pub fn forget_asked(&self, name: &str) {
        let _ = fs::remove_file(self.asked(name));
    }

    /// Removes the notes of processes before `pid`, which runs as `name`.
    pub fn keep_those_of(&self, name: &str, pid: u32) {
        if self.read(name).is_some_and(|note| note.pid != pid) {
            let _ = fs::remove_file(self.path(name));
        }
        if !self.is_asked(name, pid) {
            self.forget_asked(name);
        }
    }

    /// Notes that `name` is detached, and not to be started by itself.
    pub fn hold(&self, name: &str) {
        if !self.is_held(name)
            && let Err(error) = EndNote::new(0, 0, "").write(&self.path(name))
        {
            tracing::warn!(%error, attachment = name, "the next daemon will start it again, for this cannot be noted");
        }
    }

    /// Removes the notes of `name`. That there are none is no error.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        self.forget_asked(name);
    }

    fn asked(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.asked"))
    }
}

/// The note in the file, of this run of the system.
fn read(path: &Path) -> Option<EndNote> {
    let note: EndNote = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (note.version == VERSION && note.boot_id == boot_id()).then_some(note)
}

/// Which run of the system this is; the same for all where that is not known.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes() -> (tempfile::TempDir, Paths) {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        (directory, paths)
    }

    #[test]
    fn who_was_detached_stays_so_for_the_next_daemon_and_not_after_a_restart_of_the_system() {
        let (_directory, paths) = notes();
        let notes = EndNotes::open(&paths).unwrap();
        assert!(!notes.is_held("disk"));
        notes.hold("disk");
        EndNote::new(7, 3, "away").write(&notes.path("web")).unwrap();
        let next = EndNotes::open(&paths).unwrap();
        assert!(next.is_held("disk") && !next.is_held("web"));
        assert_eq!(next.read("web").unwrap().why, "away");
        let of_before = EndNote { boot_id: "another".into(), ..next.read("disk").unwrap() };
        of_before.write(&next.path("disk")).unwrap();
        assert!(!next.is_held("disk"));
        fs::write(next.path("web"), "{").unwrap();
        assert_eq!(next.read("web"), None);
        next.remove("web");
        next.remove("web");
    }

    #[test]
    fn ends_that_a_killed_daemon_had_asked_for_are_not_taken_for_a_users() {
        let (_directory, paths) = notes();
        let notes = EndNotes::open(&paths).unwrap();
        notes.note_asked("disk", 7);
        notes.hold("web");
        EndNote::new(7, 0, "").write(&notes.path("disk")).unwrap();
        let next = EndNotes::open(&paths).unwrap();
        assert!(next.is_asked("disk", 7) && !next.is_held("disk") && next.is_held("web"));
        // A later process, which its user detached.
        EndNote::new(8, 0, "").write(&next.path("disk")).unwrap();
        assert!(next.is_held("disk") && !next.is_asked("disk", 8));
        // The process could not detach, and its user did that later.
        EndNote::new(7, 0, "").write(&next.path("disk")).unwrap();
        next.forget_asked("disk");
        assert!(next.is_held("disk"));
        next.note_asked("disk", 7);
        next.keep_those_of("disk", 7);
        assert!(next.is_asked("disk", 7) && next.read("disk").is_some());
        next.keep_those_of("disk", 9);
        assert!(!next.is_asked("disk", 7) && next.read("disk").is_none());
    }
}
