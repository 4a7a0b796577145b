//! Half-open ranges of bytes.

use std::fmt;

/// Bytes `offset..offset + length` of a device. `offset + length` never overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub length: u64,
}

impl ByteRange {
    /// The range, or `None` when its end does not fit in 64 bits.
    pub fn new(offset: u64, length: u64) -> Option<Self> {
        offset.checked_add(length).map(|_| Self { offset, length })
    }

    /// First byte after the range.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// The bytes both hold, or `None` when they share none.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let offset = self.offset.max(other.offset);
        let end = self.end().min(other.end());
        (offset < end).then(|| Self { offset, length: end - offset })
    }

    /// Whether every byte of `other` is in here.
    pub fn contains(&self, other: &Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.offset, self.end())
    }
}
