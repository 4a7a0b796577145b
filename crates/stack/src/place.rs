//! The place of a store: a whole file or block device, or a part of one that begins at an offset.
//!
//! A place has one name, whatever links lead to the directory of its path: it is the key in the
//! registry and the list of caches. A part is as long as its store was made.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::units::ByteSize;

use crate::error::{Error, Failure, Result};

/// Parts begin, and stores are made, at whole pages, so that any disk can take them past the page cache.
pub(crate) const PLACE_UNIT_BYTES: u64 = 4096;

/// The place of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Absolute path of the file or block device, its directory free of links.
    pub path: PathBuf,
    /// First byte of a part of it; `None` for all of it.
    pub offset: Option<u64>,
}

impl Place {
    /// All of the file or block device at `path`, or what begins at `offset` of it.
    ///
    /// # Errors
    /// When the directory of its path does not exist; `Usage` for an offset that is no multiple of
    /// 4 KiB.
    pub fn new(path: &Path, offset: Option<u64>) -> Result<Self> {
        if let Some(offset) = offset.filter(|offset| !offset.is_multiple_of(PLACE_UNIT_BYTES)) {
            let message = format!("an offset of {offset} bytes in {}: it is a multiple of 4 KiB", path.display());
            return Err(Error::new(Failure::Usage, message));
        }
        let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), &error))?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(Error::new(Failure::Usage, format!("{} cannot be a cache or write log", path.display())));
        };
        let parent =
            parent.canonicalize().map_err(|error| Error::io(format!("the directory {}", parent.display()), &error))?;
        Ok(Self { path: parent.join(name), offset })
    }

    /// The place that a user names by `path`, which may be a directory, and `offset`: in a
    /// directory it is the file `name`.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Usage` for an offset in a directory, and for what keeps nothing.
    pub(crate) fn of_store(path: &Path, offset: Option<u64>, name: &str) -> Result<Self> {
        check_keeps(path)?;
        match (path.is_dir(), offset) {
            (false, _) => Self::new(path, offset),
            (true, None) => Self::new(&path.join(name), None),
            (true, Some(_)) => {
                let message = format!("{} is a directory: an offset is in a file or block device", path.display());
                Err(Error::new(Failure::Usage, message))
            }
        }
    }

    /// The place as an argument of the commands about a store of the kind `what` (`cache`).
    pub fn argument(&self, what: &str) -> String {
        let path = self.path.display();
        self.offset.map_or_else(|| path.to_string(), |offset| format!("{path} --{what}-offset {}", ByteSize(offset)))
    }

    /// `device_bytes`, where that size does not change and the file system does not store it: for
    /// all but a file of its own.
    pub(crate) fn fixed_bytes(&self, device_bytes: u64) -> Option<u64> {
        (self.offset.is_some() || !self.path.is_file()).then_some(device_bytes)
    }

    /// Whether both are in one file or block device, whatever its names.
    pub(crate) fn shares_file_with(&self, other: &Self) -> bool {
        self.path == other.path
            || matches!((file_of(&self.path), file_of(&other.path)), (Some(one), Some(other)) if one == other)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            None => write!(f, "{}", self.path.display()),
            Some(offset) => write!(f, "{} at {}", self.path.display(), ByteSize(offset)),
        }
    }
}

/// The kernel's identity of a file: that of a block device is its number.
fn file_of(path: &Path) -> Option<(bool, u64, u64)> {
    let status = fs::metadata(path).ok()?;
    let is_device = status.file_type().is_block_device();
    Some(if is_device { (true, status.rdev(), 0) } else { (false, status.dev(), status.ino()) })
}

/// Refuses pipes, sockets and character devices, before they are opened: opening a pipe waits for its other end.
///
/// # Errors
/// `Usage`.
pub(crate) fn check_keeps(path: &Path) -> Result<()> {
    let keeps_nothing = |found: &fs::FileType| found.is_char_device() || found.is_fifo() || found.is_socket();
    if fs::metadata(path).is_ok_and(|found| keeps_nothing(&found.file_type())) {
        let message = format!("{} is neither a file nor a block device: nothing can be kept there", path.display());
        return Err(Error::new(Failure::Usage, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_nothing_is_refused_before_it_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [pipe, directory.path().join("socket"), PathBuf::from("/dev/null")] {
            let error = Place::of_store(&path, None, "x.cache").unwrap_err();
            assert_eq!(error.failure(), Failure::Usage);
            assert!(error.to_string().ends_with("is neither a file nor a block device: nothing can be kept there"));
        }
    }

    #[test]
    fn a_place_has_one_name_and_says_how_to_call_it() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let place = Place::new(&real.join("link/disk"), Some(64 << 20)).unwrap();
        assert_eq!(place, Place { path: real.join("disk"), offset: Some(64 << 20) });
        assert_eq!(place.to_string(), format!("{}/disk at 64MiB", real.display()));
        assert_eq!(place.argument("cache"), format!("{}/disk --cache-offset 64MiB", real.display()));
        assert_eq!(Place::new(&real, Some(512)).unwrap_err().failure(), Failure::Usage);
        fs::write(real.join("disk"), "x").unwrap();
        fs::hard_link(real.join("disk"), real.join("same")).unwrap();
        let whole = |name: &str| Place::new(&real.join(name), None).unwrap();
        assert!(place.shares_file_with(&whole("same")) && !place.shares_file_with(&whole("other")));
    }
}
