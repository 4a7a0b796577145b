//! The path of a FUSE file, and the file below the mount.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

/// The device through which FUSE requests are read and answered.
const FUSE_DEVICE: &str = "/dev/fuse";

/// The mode of a file that was made for a front. The sticky bit, which has no meaning on a file,
/// marks it so that it is recognised after its process was killed: a file that stays behind would
/// take what programs write, as if it were the device.
const MADE_MODE: u32 = 0o1600;

/// An empty file, locked against other mounts while this lives.
#[derive(Debug)]
pub struct Mountpoint {
    path: PathBuf,
    /// The file below, locked.
    file: File,
    /// Whether it was made for this front, and is removed with it.
    is_made: bool,
}

impl Mountpoint {
    /// Takes `path`: makes an empty file there, or uses an existing empty one. A mount that a
    /// killed process left is unmounted first, and the file that it made counts as made by this
    /// one.
    ///
    /// # Errors
    /// `AlreadyExists` for anything but an empty file; `AddrInUse` where another process has it;
    /// `Unsupported` on a kernel without FUSE; errors of making the file.
    pub fn claim(path: &Path) -> io::Result<Self> {
        check_kernel()?;
        if is_left_behind(path) {
            detach(path)?;
        }
        let (file, is_made) = open_empty(path)?;
        let in_use = || io::Error::new(io::ErrorKind::AddrInUse, "another process offers a device there");
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| in_use())?;
        Ok(Self { path: path.to_owned(), file, is_made })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        let is_same = |found: fs::Metadata, own: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        let is_there = fs::symlink_metadata(&self.path).ok().zip(self.file.metadata().ok());
        if self.is_made && is_there.is_some_and(|(found, own)| is_same(found, own)) {
            // If it stays, it is an empty file, which the next front takes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether this process may mount FUSE files.
///
/// # Errors
/// `Unsupported` on a kernel without FUSE; `PermissionDenied` for a user that may not open its
/// device; `NotFound` for a user other than root where `fusermount3` is missing.
pub fn check_fuse() -> io::Result<()> {
    check_kernel()?;
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let helper = Command::new("fusermount3").arg("--version").stdin(Stdio::null()).output();
    helper.map(drop).map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))
}

pub(crate) fn check_kernel() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(FUSE_DEVICE).map(drop).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => io::ErrorKind::Unsupported,
            kind => kind,
        };
        io::Error::new(kind, format!("{FUSE_DEVICE}: {error} (the kernel's module is called fuse)"))
    })
}

/// Whether the process of the mount there has ended.
pub(crate) fn is_left_behind(path: &Path) -> bool {
    let is_gone = fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotConnected);
    // Attributes in the kernel's cache outlive the process; statfs(2) has to ask it.
    is_gone || rustix::fs::statvfs(path).is_err_and(|errno| errno == rustix::io::Errno::NOTCONN)
}

fn open_empty(path: &Path) -> io::Result<(File, bool)> {
    match OpenOptions::new().write(true).create_new(true).mode(MADE_MODE).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return Ok((made?, true)),
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.len() > 0 {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is no empty file"));
    }
    let is_made = found.mode() & 0o7777 == MADE_MODE && found.uid() == rustix::process::geteuid().as_raw();
    Ok((File::open(path)?, is_made))
}

/// Unmounts what is mounted at `path`, even while programs have it open.
pub(crate) fn detach(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // A user other than root unmounts their own mounts by a helper of the system.
        Err(rustix::io::Errno::PERM) => detach_as_user(path),
        done => Ok(done?),
    }
}

fn detach_as_user(path: &Path) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    let helper = helper.args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    match helper.stderr(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "fusermount3 does not unmount it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_once_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let taken = Mountpoint::claim(&path).unwrap();
        assert_eq!(Mountpoint::claim(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(taken);
        assert!(!path.exists(), "it was made for this");
        fs::write(&path, "").unwrap();
        drop(Mountpoint::claim(&path).unwrap());
        assert!(path.exists(), "it was there");
    }

    /// As after a kill: the file stays behind, and no process removes it.
    #[test]
    fn a_file_that_a_killed_process_made_goes_with_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let Mountpoint { file, .. } = &*std::mem::ManuallyDrop::new(Mountpoint::claim(&path).unwrap());
        flock(file, FlockOperation::Unlock).unwrap();
        let next = Mountpoint::claim(&path).unwrap();
        assert!(path.exists());
        drop(next);
        assert!(!path.exists(), "programs would write into it");
    }

    #[test]
    fn what_is_no_empty_file_stays_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "notes").unwrap();
        for path in [&path, &directory.path().to_owned()] {
            assert_eq!(Mountpoint::claim(path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
        let nowhere = Mountpoint::claim(&directory.path().join("a/b")).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
    }
}
