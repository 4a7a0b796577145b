//! Other content of a file or block device in which a store is to be made: file systems, partition
//! tables, members of arrays and pools.
//!
//! Many of them leave their first bytes zero, or surround a free part, so a place that looks blank
//! may still hold data.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use store::superblock;

use crate::caches::Caches;
use crate::content::{end_of, head_at};
use crate::error::{Error, Failure, Result};
use crate::place::Place;

/// Signatures at fixed offsets: those of libblkid that are found on disks of hosts.
const SIGNATURES: [(&str, u64, &[u8]); 24] = [
    ("a GPT partition table", 512, b"EFI PART"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an ext file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a FAT file system", 0x52, b"FAT32"),
    ("an f2fs file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a squashfs file system", 0, b"hsqs"),
    ("a VMFS volume", 0x10_0000, b"\x0d\xd0\x01\xc0"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    (MD, 0, MD_MAGIC),
    (MD, 4096, MD_MAGIC),
    ("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("a bcachefs file system", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("a Ceph OSD", 0, b"bluestore block device"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    // Last: boot sectors of file systems have it, too.
    ("a partition table", 510, b"\x55\xaa"),
];

const MD: &str = "a member of an md array";
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";

/// The uberblocks of the first label of a ZFS pool's member, one of each KiB or more.
const ZFS_UBERBLOCKS: Range<u64> = 128 << 10..256 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Refuses to make a store, called `what`, at `place` where its file or block device as a whole is
/// something else. Bytes within a store, one of `caches` or one at the device's beginning, belong
/// to that store.
///
/// # Errors
/// `WouldLoseData`, with what was found; errors of reading.
pub(crate) fn check(what: &str, place: &Place, caches: &Caches) -> Result<()> {
    let context = |error: io::Error| Error::io(place.path.display(), &error);
    if superblock::device_bytes(&head_at(&place.path, 0).map_err(context)?).is_some() {
        return Ok(());
    }
    let mut stores = Vec::new();
    for record in caches.stores()? {
        let (other, length) = (record.place(), record.length);
        if other != *place && other.shares_file_with(place) {
            let start = other.offset.unwrap_or(0);
            stores.push(start..start.saturating_add(length.unwrap_or(u64::MAX)));
        }
    }
    let found = found_in(place, &stores).map_err(context)?;
    let Some(found) = found else { return Ok(()) };
    let path = place.path.display();
    let message = format!(
        "{path} is or has {found}, which a {what} would overwrite: choose another place or, if nothing there is needed \
         any more, `wipefs --all {path}`"
    );
    Err(Error::new(Failure::WouldLoseData, message))
}

/// What the file or block device of `place` is, by bytes outside `stores`.
fn found_in(place: &Place, stores: &[Range<u64>]) -> io::Result<Option<&'static str>> {
    let end = end_of(&place.path)?;
    let file = File::open(&place.path)?;
    let is_at = |offset: u64, magic: &[u8]| {
        let is_of_store = stores.iter().any(|store| store.contains(&offset));
        if is_of_store { Ok(false) } else { is_at(&file, offset, magic) }
    };
    for (name, offset, magic) in SIGNATURES {
        if is_at(offset, magic)? {
            return Ok(Some(name));
        }
    }
    for offset in md_at_end(end) {
        if is_at(offset, MD_MAGIC)? {
            return Ok(Some(MD));
        }
    }
    for offset in ZFS_UBERBLOCKS.step_by(1024) {
        if is_at(offset, &ZFS_MAGIC.to_le_bytes())? || is_at(offset, &ZFS_MAGIC.to_be_bytes())? {
            return Ok(Some("a member of a ZFS pool"));
        }
    }
    Ok(None)
}

/// Where md keeps its superblocks of versions 1.0 and 0.90 in a device of `end` bytes.
fn md_at_end(end: u64) -> impl Iterator<Item = u64> {
    let version_1_0 = (end & !511).checked_sub(8 << 10).map(|offset| offset & !4095);
    let version_0_90 = (end & !0xffff).checked_sub(64 << 10);
    version_1_0.into_iter().chain(version_0_90)
}

fn is_at(file: &File, offset: u64, magic: &[u8]) -> io::Result<bool> {
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..magic.len()];
    match file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(bytes == magic),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::paths::Paths;
    use crate::place_device::PlaceKind;
    use crate::store_file::{open_device, open_or_make};

    const END: u64 = (8 << 20) + 512;
    const PLACE: u64 = 2 << 20;

    fn caches_in(directory: &Path) -> Caches {
        Caches::open(&Paths::new(directory.join("run"), directory.join("state")).unwrap()).unwrap()
    }

    /// The result of the check for a disk with `bytes` at `offset` and zeroes elsewhere.
    fn checked(offset: u64, bytes: &[u8]) -> Result<()> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let file = File::create(&path).unwrap();
        file.set_len(END).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        check("cache", &Place::new(&path, Some(PLACE)).unwrap(), &caches_in(directory.path()))
    }

    #[test]
    fn what_is_something_else_is_refused_by_its_name() {
        let ends = [(MD, END - 512 - 8192, MD_MAGIC), (MD, END - 512 - 65536, MD_MAGIC)];
        let zfs = [("a member of a ZFS pool", (128 << 10) + 5 * 1024, &b"\x0c\xb1\xba\0\0\0\0\0"[..])];
        for (name, offset, magic) in SIGNATURES.into_iter().chain(ends).chain(zfs) {
            let error = checked(offset, magic).unwrap_err();
            assert_eq!(error.failure(), Failure::WouldLoseData);
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn what_is_nothing_known_is_not_refused() {
        checked(0, &[]).unwrap();
        checked(4096, &[0xa5; 1 << 20]).unwrap();
    }

    #[test]
    fn what_lies_in_a_store_says_nothing_of_the_disk_around_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mut content = vec![0; 1 << 20];
        content[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
        fs::write(&path, &content).unwrap();
        let place = Place::new(&path, None).unwrap();
        let around = 4096..128 << 10;
        assert_eq!(found_in(&place, &[around]).unwrap(), None);
        assert_eq!(found_in(&place, &[]).unwrap(), Some("a btrfs file system"));
    }

    #[tokio::test]
    async fn no_store_is_made_in_a_free_part_of_a_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mut content = vec![0; 8 << 20];
        content[0x438..0x43a].copy_from_slice(b"\x53\xef");
        fs::write(&path, &content).unwrap();
        let caches =
            Caches::open(&Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap()).unwrap();
        let place = Place::new(&path, Some(4 << 20)).unwrap();
        let format = async |_: &block::SharedDevice| panic!("there is a file system");
        let made = open_or_make(PlaceKind::Log, &place, &caches, Some(4 << 20), format).await;
        assert_eq!(made.err().unwrap().failure(), Failure::WouldLoseData);
        assert!(fs::read(&path).unwrap() == content);
        let empty = open_device(&place, &caches).err().unwrap();
        assert_eq!(empty.failure(), Failure::NotFound);
        assert!(!empty.to_string().contains("--cache-size"), "{empty}");
    }
}
