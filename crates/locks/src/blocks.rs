//! Ranges of blocks of the shared logical unit.

use std::fmt;

/// Blocks `first..first + count`. The end never overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    first: u64,
    count: u64,
}

impl BlockRange {
    /// The range; `None` when it holds no block or its end does not fit in 64 bits.
    pub fn new(first: u64, count: u64) -> Option<Self> {
        first.checked_add(count).filter(|_| count > 0).map(|_| Self { first, count })
    }

    /// The blocks `first..end`; `None` when that is empty.
    pub fn between(first: u64, end: u64) -> Option<Self> {
        end.checked_sub(first).and_then(|count| Self::new(first, count))
    }

    /// The first block.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many blocks there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first block after it.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Whether the two share a block.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.first, self.end())
    }
}
