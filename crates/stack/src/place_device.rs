//! The file or block device of a store, or the part of one: how it is opened.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use base::range::ByteRange;
use block::layer::small_blocks::{BLOCK_BYTES, SmallBlockLayer};
use block::layer::window::WindowLayer;
use block::{Identity, SharedDevice};
use file::{CutNote, FileDevice, FileOptions};

use crate::error::{Error, Failure, Result};
use crate::limits::ZERO_WRITTEN_BYTES_MAX;
use crate::place::{PLACE_UNIT_BYTES, check_keeps};

/// The kind of store in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    Cache,
    Difference,
    Log,
}

impl PlaceKind {
    /// Its name, in messages and as the prefix of its options.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Difference => "difference",
            Self::Log => "log",
        }
    }

    /// Whether applications wait for each of its durable writes: then these are not passed between
    /// threads while the disk is fast.
    fn waits_for_fast_writes(self) -> bool {
        self == Self::Log
    }
}

/// The part of a file or block device that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Space {
    Whole,
    /// A new file of this many bytes.
    New(u64),
    Part(ByteRange),
}

impl Space {
    pub(crate) fn range(self) -> ByteRange {
        match self {
            Self::Part(range) => range,
            Self::Whole | Self::New(_) => ByteRange { offset: 0, length: u64::MAX },
        }
    }
}

/// The size of a new store's file: the next smaller possible one. A part is exactly as long as it
/// was configured, or is not made.
///
/// # Errors
/// `Usage` for a size that is too small.
pub(crate) fn fitting_size(kind: PlaceKind, size_bytes: u64) -> Result<u64> {
    match size_bytes - size_bytes % PLACE_UNIT_BYTES {
        0 => Err(Error::new(Failure::Usage, too_small(kind, size_bytes))),
        fitting => Ok(fitting),
    }
}

/// The message for a size that is too small for a store of this kind, with the smallest possible
/// one.
fn too_small(kind: PlaceKind, size_bytes: u64) -> String {
    let refused = match kind {
        PlaceKind::Cache => cache::layout::Layout::new(size_bytes, &cache::FormatOptions::default()).err(),
        PlaceKind::Log => writelog::layout::Layout::new(size_bytes, &writelog::FormatOptions::default()).err(),
        // The smallest size depends on the base.
        PlaceKind::Difference => None,
    };
    refused.map_or_else(
        || format!("a {} of {size_bytes} bytes cannot be made: it has some MiB, sensibly", kind.name()),
        |error| error.to_string(),
    )
}

/// Whether `path`, or its directory, lies on a file system in memory.
pub fn is_in_memory(path: &Path) -> bool {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of statfs(2).
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A device node lies on a file system in memory, and its data elsewhere.
    let is_device = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    // A path that cannot be examined fails when it is opened, with a better message.
    let status = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(folder));
    !is_device && status.is_ok_and(|status| IN_MEMORY.contains(&(status.f_type as u32)))
}

/// Refuses a file system in memory for a store that must outlive a power loss, and a device that
/// keeps no data.
pub(crate) fn check_lasts(kind: PlaceKind, path: &Path) -> Result<()> {
    check_keeps(path)?;
    if !is_in_memory(path) {
        return Ok(());
    }
    if kind == PlaceKind::Difference {
        // Some differences are temporary on purpose.
        tracing::warn!(place = %path.display(), "a difference on a file system in memory does not outlive the power");
        return Ok(());
    }
    let message = format!(
        "{} lies on a file system in memory (tmpfs), where a {} does not outlive the power: choose a place on a disk",
        path.display(),
        kind.name()
    );
    Err(Error::new(Failure::Usage, message))
}

/// Stores use units of 512 bytes, also on a disk of larger blocks.
fn in_small_blocks(device: SharedDevice) -> SharedDevice {
    if device.geometry().logical_block_bytes == BLOCK_BYTES {
        return device;
    }
    let layer = SmallBlockLayer::new(device);
    tokio::spawn(base::background::named("small-blocks", layer.run()));
    Arc::new(layer)
}

/// What is made of the file of a store when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All of its space is reserved.
    Reserving,
    /// It is written in the space that it has, or gets.
    AsItIs,
    /// It is only read: it may lie where nothing can be written.
    ToRead,
}

/// Opens an existing store, and reserves its space where that is not reserved yet. It may hold the
/// LUN's newest data, so a full disk does not prevent opening it. `note` for when its file is cut.
pub(crate) fn open_made(kind: PlaceKind, path: &Path, space: Space, note: Option<CutNote>) -> Result<SharedDevice> {
    match open_as(kind, path, space, note.clone()) {
        Err(error) if error.failure() == Failure::NoSpace => {
            tracing::warn!(%error, "the {} is opened without all of its space, and may run out of it", kind.name());
            open_with(kind, path, path, space, Access::AsItIs, note)
        }
        opened => opened,
    }
}

pub(crate) fn open_as(kind: PlaceKind, path: &Path, space: Space, note: Option<CutNote>) -> Result<SharedDevice> {
    open_with(kind, path, path, space, Access::Reserving, note)
}

/// Opens an existing store that is only looked at.
pub(crate) fn open_to_read(kind: PlaceKind, path: &Path, space: Space) -> Result<SharedDevice> {
    open_with(kind, path, path, space, Access::ToRead, None)
}

pub(crate) fn open_with(
    kind: PlaceKind,
    path: &Path,
    name: &Path,
    space: Space,
    access: Access,
    cut_note: Option<CutNote>,
) -> Result<SharedDevice> {
    check_lasts(kind, path)?;
    let name = name.display().to_string();
    let identity = Identity { target: "file".into(), unit: name.clone(), serial: String::new() };
    let (size, part) = match space {
        Space::Whole => (None, None),
        Space::New(size_bytes) => (Some(size_bytes), None),
        Space::Part(range) => (None, Some(range)),
    };
    let options = FileOptions {
        size,
        part,
        preallocate: access == Access::Reserving,
        read_only: access == Access::ToRead,
        // A log writes itself when it is made.
        zero_written: kind != PlaceKind::Log && size.is_some_and(|size_bytes| size_bytes <= ZERO_WRITTEN_BYTES_MAX),
        direct: true,
        exclusive: true,
        identity,
        name: Some(name),
        is_write_cache_volatile: true,
        waits_for_fast_writes: kind.waits_for_fast_writes(),
        notices_cuts: true,
        // What is in a cache or log may still be written back.
        notices_removal: kind == PlaceKind::Difference,
        cut_note,
        ..FileOptions::default()
    };
    let device: SharedDevice = match FileDevice::open(path, options.clone()) {
        // Some network and container file systems cannot bypass the page cache.
        Err(error) if error.kind() == block::ErrorKind::Unsupported => {
            FileDevice::open(path, FileOptions { direct: false, ..options })?
        }
        opened => opened?,
    };
    let device = in_small_blocks(device);
    Ok(match part {
        None => device,
        Some(range) => Arc::new(WindowLayer::new(device, range)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev` is a file system in memory, but that is not the error to report.
    #[test]
    fn what_keeps_nothing_is_refused_for_what_it_is() {
        let error = check_lasts(PlaceKind::Cache, Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.failure(), Failure::Usage);
        assert_eq!(error.to_string(), "/dev/null is neither a file nor a block device: nothing can be kept there");
    }
}
