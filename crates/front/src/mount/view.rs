//! What the kernel is told of inodes, and for how long it may keep that.
//!
//! | the file system is | the kernel's number of an inode | names, attributes, pages |
//! |---|---|---|
//! | this host's alone | that of the inode | are kept: nobody else changes them |
//! | shared by hosts | also its generation | names and pages are asked for each time; of attributes see `kept_attributes` |
//!
//! With the generation a file that another host removed is not taken for the next one of its number.

use std::time::Duration;

use ext2::{InodeNumber, Metadata};
use fuser::{FileAttr, FopenFlags, INodeNo};

use super::attributes::attributes;
use crate::limits::VOLUME_CACHE_TIME;

/// Bits of the inode's number in the kernel's.
const NUMBER_BITS: u32 = 32;

/// The kernel's view of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) is_shared: bool,
}

/// The inode of a kernel's number. An invalid number finds no inode.
pub(super) fn inode_of(node: INodeNo) -> InodeNumber {
    if node == INodeNo::ROOT { InodeNumber::ROOT } else { InodeNumber(node.0 as u32) }
}

/// The kernel's number of an inode without a generation: it calls the root 1, to which no name of
/// an ext2 leads.
pub(super) fn plain_node_of(inode: InodeNumber) -> INodeNo {
    if inode == InodeNumber::ROOT { INodeNo::ROOT } else { INodeNo(u64::from(inode.0)) }
}

impl View {
    /// The kernel's number of an inode.
    pub(super) fn node_of(self, found: &Metadata) -> INodeNo {
        let plain = plain_node_of(found.inode);
        match self.is_shared && plain != INodeNo::ROOT {
            true => INodeNo(u64::from(found.generation) << NUMBER_BITS | plain.0),
            false => plain,
        }
    }

    /// Whether `node` is the kernel's number of what was found under its inode's number.
    pub(super) fn is_of(self, node: INodeNo, found: &Metadata) -> bool {
        self.node_of(found) == node
    }

    /// The attributes in the kernel's form.
    pub(super) fn attributes(self, found: &Metadata) -> FileAttr {
        attributes(self.node_of(found), found)
    }

    /// How long the kernel may keep names.
    pub(super) fn name_time(self) -> Duration {
        if self.is_shared { Duration::ZERO } else { VOLUME_CACHE_TIME }
    }

    /// How an open file is read and written: by the kernel's pages, which stay for the next opening,
    /// or past them.
    pub(super) fn opened(self) -> FopenFlags {
        if self.is_shared { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE }
    }
}

#[cfg(test)]
mod tests {
    use ext2::{FileType, Timestamp};

    use super::*;

    fn found(inode: InodeNumber, generation: u32) -> Metadata {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Metadata {
            inode,
            file_type: FileType::Regular,
            permissions: 0,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            sectors: 0,
            links_count: 1,
            accessed: time,
            changed: time,
            modified: time,
            created: None,
            device: None,
            generation,
        }
    }

    #[test]
    fn the_root_has_the_kernels_number_and_no_other_has_it() {
        for is_shared in [false, true] {
            let view = View { is_shared };
            assert_eq!(view.node_of(&found(InodeNumber::ROOT, 3)), INodeNo::ROOT);
            assert_eq!(inode_of(INodeNo(1)), InodeNumber::ROOT);
            assert_eq!(inode_of(view.node_of(&found(InodeNumber(12), 3))), InodeNumber(12));
        }
    }

    #[test]
    fn where_hosts_share_the_next_file_of_a_number_is_another_one_for_the_kernel() {
        let (shared, alone) = (View { is_shared: true }, View { is_shared: false });
        let (before, after) = (found(InodeNumber(12), 3), found(InodeNumber(12), 4));
        assert!(!shared.is_of(shared.node_of(&before), &after));
        assert!(alone.is_of(alone.node_of(&before), &after));
    }
}
