//! The numbers of frames, sets, tags, blocks and pages of the table, each a type of its own, so that none is taken for
//! another or for a count. They are bare numbers only on the device ([`crate::format`]).

use std::fmt;
use std::ops::{Add, Range, Sub};

use zerocopy::little_endian::{U32, U64};

/// Number of a frame of the cache device, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNumber(pub u32);
const _: () = assert!(size_of::<FrameNumber>() == 4, "the index and the lists of large sets have one for each frame");

impl FrameNumber {
    /// The first frame.
    pub const FIRST: Self = Self(0);

    /// Index into a table with one row a frame.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame behind it.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// All from here up to `end`, which is not among them.
    pub fn up_to(self, end: Self) -> impl Iterator<Item = Self> {
        (self.0..end.0).map(Self)
    }

    /// The set of this frame, in a cache with sets of `ways` frames.
    pub(crate) fn set(self, ways: u32) -> SetNumber {
        SetNumber(self.0 / ways)
    }

    /// Its place in that set.
    pub(crate) fn way(self, ways: u32) -> u32 {
        self.0 % ways
    }
}

impl Add<u32> for FrameNumber {
    type Output = Self;

    /// The frame that is `frames` further.
    fn add(self, frames: u32) -> Self {
        Self(self.0 + frames)
    }
}

/// Count of frames between two.
impl Sub for FrameNumber {
    type Output = u32;

    fn sub(self, start: Self) -> u32 {
        self.0 - start.0
    }
}

impl fmt::Display for FrameNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<U32> for FrameNumber {
    fn from(raw: U32) -> Self {
        Self(raw.get())
    }
}

impl From<FrameNumber> for U32 {
    fn from(frame: FrameNumber) -> Self {
        frame.0.into()
    }
}

/// Number of a set of frames, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetNumber(pub u32);
const _: () = assert!(size_of::<SetNumber>() == 4);

impl SetNumber {
    /// The first set.
    pub const FIRST: Self = Self(0);

    /// Index into a table with one row a set.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame at place `way` of this set, in a cache with sets of `ways` frames.
    pub(crate) fn frame(self, way: u32, ways: u32) -> FrameNumber {
        FrameNumber(self.0 * ways + way)
    }
}

/// Distinguishes a block of the origin from the others of its set
/// ([`Layout::tag_of`](crate::layout::Layout::tag_of)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);
const _: () = assert!(size_of::<Tag>() == 8);

impl Tag {
    /// The tag of no block.
    pub(crate) const NONE: Self = Self(u64::MAX);
}

/// Number of a block of the origin, counted from 0; a block has as many bytes as a line
/// ([`LineSize`](crate::line_size::LineSize)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(pub u64);
const _: () = assert!(size_of::<BlockNumber>() == 8);

impl BlockNumber {
    /// The first block of the origin.
    pub const FIRST: Self = Self(0);
    /// Behind every block, whatever number a damaged cache claims.
    pub const END: Self = Self(u64::MAX);

    /// The block that is `blocks` before this one; `None` before the first.
    pub(crate) fn checked_sub(self, blocks: u64) -> Option<Self> {
        self.0.checked_sub(blocks).map(Self)
    }

    /// The last one up to here that is a multiple of `blocks`.
    pub(crate) fn last_multiple_of(self, blocks: u64) -> Self {
        Self(self.0 / blocks * blocks)
    }

    /// Count of blocks from here up to `end`, which is not among them; 0 where that is not behind this one.
    pub(crate) fn count_up_to(self, end: Self) -> u64 {
        end.0.saturating_sub(self.0)
    }
}

/// All blocks of a range, ascending.
pub(crate) fn each_of(blocks: Range<BlockNumber>) -> impl Iterator<Item = BlockNumber> {
    (blocks.start.0..blocks.end.0).map(BlockNumber)
}

impl Add<u64> for BlockNumber {
    type Output = Self;

    /// The block that is `blocks` further.
    fn add(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

impl Sub<u64> for BlockNumber {
    type Output = Self;

    /// The block that is `blocks` before this one.
    fn sub(self, blocks: u64) -> Self {
        Self(self.0 - blocks)
    }
}

impl From<U64> for BlockNumber {
    fn from(raw: U64) -> Self {
        Self(raw.get())
    }
}

impl From<BlockNumber> for U64 {
    fn from(block: BlockNumber) -> Self {
        block.0.into()
    }
}

/// Number of a page of the table, counted from 0; each has two slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);
const _: () = assert!(size_of::<PageNumber>() == 8);

impl PageNumber {
    /// The first page.
    pub const FIRST: Self = Self(0);

    /// Index into a table with one row a page.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// The page behind it.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for PageNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sequence of the table: grows with each checkpoint, and each page says of which one it is. A type of its own, since a
/// record of the log ([`store::Sequence`]) is counted otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableSequence(pub u64);
const _: () = assert!(size_of::<TableSequence>() == 8);

impl TableSequence {
    /// That of a page that was never written.
    pub const NONE: Self = Self(0);

    /// The one behind it.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for TableSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<U64> for TableSequence {
    fn from(raw: U64) -> Self {
        Self(raw.get())
    }
}

impl From<TableSequence> for U64 {
    fn from(sequence: TableSequence) -> Self {
        sequence.0.into()
    }
}

/// A number of which a set has one bit each ([`PageSet`](crate::page_set::PageSet)).
pub(crate) trait Member: Copy {
    fn bit(self) -> u64;
    fn of_bit(bit: u64) -> Self;
}

impl Member for PageNumber {
    fn bit(self) -> u64 {
        self.0
    }

    fn of_bit(bit: u64) -> Self {
        Self(bit)
    }
}

impl Member for FrameNumber {
    fn bit(self) -> u64 {
        self.0.into()
    }

    fn of_bit(bit: u64) -> Self {
        Self(bit as u32)
    }
}
