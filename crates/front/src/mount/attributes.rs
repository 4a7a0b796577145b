//! The attributes of an inode in the kernel's form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ext2::{Metadata, Timestamp};
use fuser::{FileAttr, FileType, INodeNo};

/// Preferred size of reads and writes.
const BLOCK_BYTES: u32 = 4096;

pub(super) fn kind_of(file_type: ext2::FileType) -> FileType {
    match file_type {
        ext2::FileType::Regular => FileType::RegularFile,
        ext2::FileType::Directory => FileType::Directory,
        ext2::FileType::SymbolicLink => FileType::Symlink,
        ext2::FileType::CharacterDevice => FileType::CharDevice,
        ext2::FileType::BlockDevice => FileType::BlockDevice,
        ext2::FileType::Fifo => FileType::NamedPipe,
        ext2::FileType::Socket => FileType::Socket,
    }
}

pub(super) fn attributes(node: INodeNo, metadata: &Metadata) -> FileAttr {
    let (major, minor) = metadata.device.unwrap_or_default();
    FileAttr {
        ino: node,
        size: metadata.size_bytes,
        blocks: u64::from(metadata.sectors),
        atime: to_system(metadata.accessed),
        mtime: to_system(metadata.modified),
        ctime: to_system(metadata.changed),
        crtime: metadata.created.map_or(UNIX_EPOCH, to_system),
        kind: kind_of(metadata.file_type),
        perm: metadata.permissions,
        nlink: u32::from(metadata.links_count),
        uid: metadata.uid,
        gid: metadata.gid,
        rdev: device_number(major, minor),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// A device number in the kernel's 32 bits (`new_encode_dev`).
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Major and minor number of a device number in that form.
pub(super) fn device_of(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00)
}

fn to_system(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH - seconds } else { UNIX_EPOCH + seconds };
    whole + Duration::from_nanos(u64::from(time.nanoseconds))
}

pub(super) fn from_system(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let (seconds, nanoseconds) = (-before.as_secs().cast_signed(), before.subsec_nanos());
            match nanoseconds {
                0 => Timestamp { seconds, nanoseconds },
                _ => Timestamp { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_are_the_same_on_the_way_back() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-5, 1), (1 << 33, 3)] {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(from_system(to_system(time)), time);
        }
    }

    #[test]
    fn device_numbers_are_the_same_on_the_way_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            assert_eq!(device_of(device_number(major, minor)), (major, minor));
        }
        assert_eq!(device_number(8, 1), 0x801);
    }
}
