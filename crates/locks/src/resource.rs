//! The resources that can be locked: metadata blocks, files, and block groups of files.

use std::fmt;
use std::num::NonZeroU64;

use crate::blocks::BlockRange;
use crate::mode::Mode;

/// The number of a file: its inode in an ext2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

impl FileId {
    /// The logical unit as a whole, whose block groups are ranges of its blocks: how a raw LUN is shared. An ext2 has
    /// no inode 0.
    pub const LOGICAL_UNIT: Self = Self(0);
}

/// The number of a block group of a file, counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupIndex(pub u64);

/// How many blocks are locked together as one block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupSize(NonZeroU64);

impl GroupSize {
    /// Groups of `blocks`; `None` for zero.
    pub fn of_blocks(blocks: u64) -> Option<Self> {
        NonZeroU64::new(blocks).map(Self)
    }

    /// The group that a block of a file is in.
    pub fn group_of(self, block: u64) -> GroupIndex {
        GroupIndex(block / self.0)
    }

    /// The blocks of a group; `None` where there can be no such group.
    pub fn blocks_of(self, group: GroupIndex) -> Option<BlockRange> {
        group.0.checked_mul(self.0.get()).and_then(|first| BlockRange::new(first, self.0.get()))
    }

    /// Count of the groups that make up a logical unit.
    pub fn group_count(self, block_count: u64) -> u64 {
        block_count.div_ceil(self.0.get())
    }
}

/// Something that can be locked. Files are roots, their block groups the leaves below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A block of metadata: a leaf without a root.
    Metadata(u64),
    /// A whole file.
    File(FileId),
    /// A block group of a file.
    Group(FileId, GroupIndex),
}

impl Resource {
    /// The file that a block group is in.
    pub fn root(self) -> Option<Self> {
        match self {
            Self::Group(file, _) => Some(Self::File(file)),
            Self::Metadata(_) | Self::File(_) => None,
        }
    }

    /// Whether it has block groups below it.
    pub fn is_root(self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Whether this can be locked in such a mode.
    pub fn takes(self, mode: Mode) -> bool {
        matches!(
            (self, mode),
            (Self::Metadata(_), Mode::Metadata(_)) | (Self::File(_) | Self::Group(..), Mode::Data(_))
        )
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(block) => write!(f, "metadata block {block}"),
            Self::File(FileId::LOGICAL_UNIT) => write!(f, "the logical unit"),
            Self::File(file) => write!(f, "file {}", file.0),
            Self::Group(FileId::LOGICAL_UNIT, group) => write!(f, "group {} of the logical unit", group.0),
            Self::Group(file, group) => write!(f, "group {} of file {}", group.0, file.0),
        }
    }
}
