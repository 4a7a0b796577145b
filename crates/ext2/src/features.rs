//! The features in a superblock, and what an unknown one of each set means for opening.
//!
//! | set | an unknown feature |
//! |---|---|
//! | compatible | is ignored |
//! | read-only compatible | allows reading only |
//! | incompatible | is refused |

use crate::error::{Error, ErrorKind};

/// Compatible: attributes in blocks of their own.
pub const COMPAT_EXT_ATTR: u32 = 0x8;
/// Compatible: directories may have an index.
pub const COMPAT_DIR_INDEX: u32 = 0x20;
/// Read-only compatible: copies of the superblock only in groups 0, 1 and powers of 3, 5 and 7.
pub const RO_SPARSE_SUPER: u32 = 0x1;
/// Read-only compatible: there is a file of 2 GiB or more.
pub const RO_LARGE_FILE: u32 = 0x2;
/// Incompatible: directory entries hold the type of their inode.
pub const INCOMPAT_FILETYPE: u32 = 0x2;
/// Incompatible: group descriptors are spread over the device.
pub const INCOMPAT_META_BG: u32 = 0x10;

/// Features with which changes are allowed.
const RO_KNOWN: u32 = RO_SPARSE_SUPER | RO_LARGE_FILE;
const INCOMPAT_KNOWN: u32 = INCOMPAT_FILETYPE | INCOMPAT_META_BG;

/// Names of features, as `dumpe2fs` prints them.
const RO_NAMES: &[(u32, &str)] = &[
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "has_snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];

/// Features of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Compatible ones.
    pub compatible: u32,
    /// Incompatible ones.
    pub incompatible: u32,
    /// Read-only compatible ones.
    pub read_only: u32,
}

impl Features {
    /// Whether directories may have an index.
    pub fn has_dir_index(self) -> bool {
        self.compatible & COMPAT_DIR_INDEX != 0
    }

    /// Whether directory entries name types.
    pub fn has_filetype(self) -> bool {
        self.incompatible & INCOMPAT_FILETYPE != 0
    }

    /// Whether group descriptors are spread over the device.
    pub fn has_meta_bg(self) -> bool {
        self.incompatible & INCOMPAT_META_BG != 0
    }

    /// Whether few groups have a copy of the superblock.
    pub fn has_sparse_super(self) -> bool {
        self.read_only & RO_SPARSE_SUPER != 0
    }

    /// # Errors
    /// `Unsupported` with the names of features that forbid even reading.
    pub fn check_readable(self) -> Result<(), Error> {
        let unknown = self.incompatible & !INCOMPAT_KNOWN;
        if unknown == 0 {
            return Ok(());
        }
        let context =
            format!("the file system has features that are not supported: {}", names(unknown, INCOMPAT_NAMES));
        Err(Error::new(ErrorKind::Unsupported, context))
    }

    /// # Errors
    /// `ReadOnly` with the names of features that forbid changes.
    pub fn check_changeable(self) -> Result<(), Error> {
        let unknown = self.read_only & !RO_KNOWN;
        if unknown == 0 {
            return Ok(());
        }
        let names = names(unknown, RO_NAMES);
        Err(Error::new(ErrorKind::ReadOnly, format!("the file system has features that allow reading only: {names}")))
    }
}

fn names(bits: u32, known: &[(u32, &str)]) -> String {
    let name = |bit: u32| match known.iter().find(|(known, _)| *known == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{bit:#x}"),
    };
    let set = (0..32).map(|shift| 1 << shift).filter(|bit| bits & bit != 0);
    set.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_are_not_known_are_named() {
        let features = Features { compatible: u32::MAX, incompatible: 0x2 | 0x40 | 0x8000_0000, read_only: 0x401 };
        let error = features.check_readable().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().ends_with(": extent, 0x80000000"), "{error}");
        let error = features.check_changeable().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert!(error.to_string().ends_with(": metadata_csum"), "{error}");
        let features = Features { compatible: u32::MAX, incompatible: 0x12, read_only: 0x3 };
        assert!(features.check_readable().is_ok() && features.check_changeable().is_ok());
    }
}
