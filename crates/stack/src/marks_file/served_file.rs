//! The file that a LUN serves, and how it is known again: what tells it from another in its place, and whether it has
//! changed since.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Size and change time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size_bytes: u64,
    pub(super) changed_seconds: u64,
    pub(super) changed_nanoseconds: u32,
}

impl Stamp {
    /// That of the file at `path`; `None` where there is none, or a block device.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let status = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            size_bytes: status.len(),
            changed_seconds: status.ctime().cast_unsigned(),
            changed_nanoseconds: u32::try_from(status.ctime_nsec()).unwrap_or(0),
        })
    }
}

/// What tells a file from another one in its place. What is not told is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileBirth {
    /// Its inode; zero where there is no file, or a block device.
    pub(super) inode: u64,
    /// When it was made, since 1970.
    pub(super) born_seconds: u64,
    pub(super) born_nanoseconds: u32,
    /// Id of its file system.
    pub(super) file_system: u64,
}

impl FileBirth {
    /// That of the file at `path`.
    pub(super) fn of(path: &Path) -> Self {
        let Some(status) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else { return Self::default() };
        let born = status.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Self {
            inode: status.ino(),
            born_seconds: born.as_secs(),
            born_nanoseconds: born.subsec_nanos(),
            file_system: rustix::fs::statvfs(path).map_or(0, |file_system| file_system.f_fsid),
        }
    }

    /// Whether nothing that this tells is another in `found`.
    pub(super) fn may_be(&self, found: &Self) -> bool {
        let is_same = |was: u64, is: u64| was == 0 || was == is;
        let born = |birth: &Self| (birth.born_seconds, birth.born_nanoseconds);
        is_same(self.inode, found.inode)
            && (born(self) == (0, 0) || born(self) == born(found))
            && is_same(self.file_system, found.file_system)
    }
}

/// The file of a LUN as it was found, before it was opened to be served: opening may change its size and time.
pub struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) birth: FileBirth,
    /// `None` where none was, or for a block device, which does not tell when it was changed.
    pub(super) stamp: Option<Stamp>,
}

impl FoundFile {
    /// Reads the file at `path`.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), birth: FileBirth::of(path), stamp: Stamp::of(path) }
    }
}
