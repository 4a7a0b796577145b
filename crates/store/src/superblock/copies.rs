//! The two copies: where they lie, and how each of them is.

use std::fmt;

use block::{Error, ErrorKind};
use serde::Serialize;

use crate::limits::SUPERBLOCK_BYTES;

/// Offsets of the first and the last copy.
///
/// # Errors
/// `NoSpace` when they would overlap.
pub fn places(device_bytes: u64) -> Result<[u64; 2], Error> {
    let unit = SUPERBLOCK_BYTES as u64;
    let last = (device_bytes / unit).checked_sub(1).filter(|&index| index > 0).map(|index| index * unit);
    last.map(|last| [0, last]).ok_or_else(|| {
        Error::new(ErrorKind::NoSpace, format!("a device of {device_bytes} bytes has no room for two superblocks"))
    })
}

/// State of one of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyState {
    /// Whole, and as new as the other one or newer.
    Newest,
    /// Whole. The program stopped before it had written this one, too: no damage.
    Older,
    /// All zero: erased.
    Empty,
    /// Not a copy of a store, of another store, or not what was written.
    Damaged,
    /// Reading it failed.
    Unreadable,
}

impl CopyState {
    fn is_whole(self) -> bool {
        matches!(self, Self::Newest | Self::Older)
    }
}

impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newest => "whole",
            Self::Older => "whole, and older",
            Self::Empty => "all zero",
            Self::Damaged => "damaged",
            Self::Unreadable => "unreadable",
        })
    }
}

/// State of both copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The one in the first 4 KiB.
    pub first: CopyState,
    /// The one in the last 4 KiB.
    pub last: CopyState,
}

impl Copies {
    /// After a write.
    pub(super) const ALIKE: Self = Self { first: CopyState::Newest, last: CopyState::Newest };

    /// Whether only one copy is whole. The next write mends that.
    pub fn is_one_damaged(self) -> bool {
        !(self.first.is_whole() && self.last.is_whole())
    }
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "first copy {}, last copy {}", self.first, self.last)
    }
}
