//! Properties of a block device from sysfs: block sizes, preferred sizes, and whether it can
//! discard.
//!
//! `/sys/dev/block/MAJOR:MINOR` is the device itself; a partition has no queue of its own, its disk
//! beside it has. A missing attribute counts as not known: sysfs may not be mounted, and every
//! kernel has a few more attributes than the one before.

use std::path::{Path, PathBuf};

use block::Hints;

/// How a block device discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discard {
    /// By zeroing with permission to unmap (`fallocate` punching a hole), which the device does by
    /// itself: reads as zeroes.
    Punch,
    /// By `BLKDISCARD`, after which the content is not defined.
    Ioctl,
}

/// The properties of one block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) is_write_protected: bool,
    pub(crate) discard: Option<Discard>,
    /// Zero where not known.
    pub(crate) discard_granularity_bytes: u32,
    /// Whether a durable write is a write and a flush of the whole device: it has a volatile cache, and no way past it
    /// for one write (FUA).
    pub(crate) flushes_for_each: bool,
    pub(crate) hints: Hints,
}

impl Topology {
    /// The properties of the device with this number.
    pub(crate) fn of(number: u64) -> Self {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Self::read(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
    }

    fn read(device: &Path) -> Self {
        let queue = if device.join("queue").exists() { device.join("queue") } else { device.join("../queue") };
        let of_device = |name: &str| attribute(&device.join(name));
        let of_queue = |name: &str| attribute(&queue.join(name));
        let bytes = |value: u64| u32::try_from(value).unwrap_or(0);
        // A device that does not zero by itself would end a punched hole as a slow write of zeroes.
        let discard = match (of_queue("write_zeroes_max_bytes"), of_queue("discard_max_bytes")) {
            (1.., _) => Some(Discard::Punch),
            (0, 1..) => Some(Discard::Ioctl),
            (0, 0) => None,
        };
        Self {
            is_write_protected: of_device("ro") == 1,
            discard,
            discard_granularity_bytes: bytes(of_queue("discard_granularity")),
            flushes_for_each: of_queue("fua") == 0 && text(&queue.join("write_cache")) == "write back",
            hints: Hints {
                io_bytes_min: bytes(of_queue("minimum_io_size")),
                io_bytes_optimal: bytes(of_queue("optimal_io_size")),
                physical_alignment_bytes: bytes(of_device("alignment_offset")),
                discard_alignment_bytes: bytes(of_device("discard_alignment")),
                is_rotational: of_queue("rotational") == 1,
            },
        }
    }
}

/// A number, or zero: some alignments are `-1` where the kernel does not know.
fn attribute(path: &Path) -> u64 {
    text(path).parse().unwrap_or(0)
}

/// The text of an attribute; empty where it is missing.
fn text(path: &Path) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, values: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).unwrap();
        for (name, value) in values {
            std::fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
    }

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        write(
            &disk.join("queue"),
            &[("write_zeroes_max_bytes", "0"), ("discard_max_bytes", "4096"), ("discard_granularity", "4096")],
        );
        write(&disk.join("queue"), &[("minimum_io_size", "4096"), ("optimal_io_size", "1048576"), ("rotational", "0")]);
        write(&disk.join("sda1"), &[("ro", "1"), ("alignment_offset", "-1"), ("discard_alignment", "2048")]);
        let topology = Topology::read(&disk.join("sda1"));
        assert!(topology.is_write_protected);
        assert_eq!((topology.discard, topology.discard_granularity_bytes), (Some(Discard::Ioctl), 4096));
        let hints = Hints {
            io_bytes_min: 4096,
            io_bytes_optimal: 1 << 20,
            physical_alignment_bytes: 0,
            discard_alignment_bytes: 2048,
            is_rotational: false,
        };
        assert_eq!(topology.hints, hints);
    }

    #[test]
    fn only_a_volatile_cache_without_fua_is_flushed_for_each_write() {
        let folder = tempfile::tempdir().unwrap();
        for (cache, fua, flushes_for_each) in
            [("write back", "0", true), ("write back", "1", false), ("write through", "0", false)]
        {
            write(&folder.path().join("queue"), &[("write_cache", cache), ("fua", fua)]);
            assert_eq!(Topology::read(folder.path()).flushes_for_each, flushes_for_each, "{cache}, fua {fua}");
        }
    }

    #[test]
    fn where_nothing_is_told_nothing_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology::read(&folder.path().join("absent"));
        assert!(!topology.is_write_protected && !topology.flushes_for_each);
        assert_eq!((topology.discard, topology.discard_granularity_bytes), (None, 0));
        assert_eq!(topology.hints, Hints::default());
    }
}
