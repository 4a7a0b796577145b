//! What is counted: segments and slots. Each has a type of its own, so that none is taken for another. They are bare
//! numbers only on the device and in NVRAM ([`crate::format`]), and in a status.

use std::fmt;

use zerocopy::little_endian::U32;

/// Which segment of the log, counted from the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u32);

impl SegmentNumber {
    /// In a table with one row a segment.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<U32> for SegmentNumber {
    fn from(raw: U32) -> Self {
        Self(raw.get())
    }
}

impl From<SegmentNumber> for U32 {
    fn from(segment: SegmentNumber) -> Self {
        segment.0.into()
    }
}

/// Which slot of RAM or NVRAM, counted from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotNumber(pub(crate) u32);

impl SlotNumber {
    /// In a table with one row a slot.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
