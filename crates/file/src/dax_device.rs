//! Device DAX: persistent memory as a character device, `/dev/dax0.0`.
//!
//! A mapping of it is the medium itself, without a file system and its promises in between, so it
//! takes no `MAP_SYNC`. It can be neither read nor written, nor asked for its size, which is in
//! sysfs, `/sys/dev/char/MAJOR:MINOR`. Any other character device is refused.

use std::fs::File;
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind};
use rustix::fs::{FileType, Mode, OFlags};

use crate::claim::lock_exclusively;
use crate::failure;

/// The device's folder in sysfs, if `path` is a character device.
pub(crate) fn character_device_at(path: &Path) -> Option<PathBuf> {
    let status = rustix::fs::stat(path).ok()?;
    let is_character_device = FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice;
    let (major, minor) = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    is_character_device.then(|| PathBuf::from(format!("/sys/dev/char/{major}:{minor}")))
}

/// Opens and locks the device, and returns its size in bytes.
///
/// # Errors
/// `Unsupported` when it is no persistent memory; those of opening a file.
pub(crate) fn open(path: &Path, folder: &Path) -> Result<(File, u64), Error> {
    let name = path.display();
    let size_bytes = size_of(folder).ok_or_else(|| {
        let context = format!(
            "{name} is a character device and not persistent memory: that would be /dev/daxN.M, or a file on a file \
             system mounted with -o dax"
        );
        Error::new(ErrorKind::Unsupported, context)
    })?;
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file = File::from(opened.map_err(|errno| failure::error(errno, format!("opening {name}")))?);
    lock_exclusively(&file, &name.to_string())?;
    Ok((file, size_bytes))
}

/// The size of a DAX device, by its folder in sysfs; `None` of any other.
fn size_of(folder: &Path) -> Option<u64> {
    let subsystem = std::fs::read_link(folder.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let size = std::fs::read_to_string(folder.join("size")).ok()?;
    size.trim().parse().ok().filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_size_is_what_sysfs_says_of_a_dax_device() {
        let sysfs = tempfile::tempdir().unwrap();
        let folder = |name: &str, subsystem: &str, size: &str| {
            let folder = sysfs.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            symlink(format!("../../../../bus/{subsystem}"), folder.join("subsystem")).unwrap();
            std::fs::write(folder.join("size"), size).unwrap();
            folder
        };
        assert_eq!(size_of(&folder("252:0", "dax", "4225761280\n")), Some(4_225_761_280));
        assert_eq!(size_of(&folder("252:1", "dax", "0\n")), None, "it is not configured");
        assert_eq!(size_of(&folder("1:3", "mem", "4096\n")), None, "it is another device");
        assert_eq!(size_of(&sysfs.path().join("9:9")), None);
    }

    #[test]
    fn other_character_devices_are_refused() {
        let path = Path::new("/dev/null");
        let folder = character_device_at(path).expect("it is a character device");
        assert_eq!(folder, Path::new("/sys/dev/char/1:3"));
        let error = open(path, &folder).expect_err("it is no memory");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("/dev/daxN.M"), "{error}");
        assert_eq!(character_device_at(Path::new("/")), None);
    }
}
