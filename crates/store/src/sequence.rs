//! The number of a record.

use std::fmt;
use std::ops::Add;

use zerocopy::little_endian::U64;

use crate::limits::SEQUENCE_MAX;

/// Number of a record of a log: grows by one from record to record, across openings. A type of its own, since the
/// superblock's sequence, a table's and a checkpoint's are numbers of other things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// No record: less than the number of any.
    pub const NONE: Self = Self(0);
    /// The first record of a log.
    pub const FIRST: Self = Self(1);
    /// Largest that a log may say a record has.
    pub const MAX: Self = Self(SEQUENCE_MAX);

    /// The record behind it.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The record before it; [`Sequence::NONE`] before the first.
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// How many records are in `first..self`; `None` where it is before `first`.
    pub fn checked_since(self, first: Self) -> Option<u64> {
        self.0.checked_sub(first.0)
    }

    /// All from this one on.
    pub fn onwards(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    /// All from this one up to `last`, which is among them.
    pub fn up_to(self, last: Self) -> impl Iterator<Item = Self> {
        (self.0..=last.0).map(Self)
    }
}

impl Add<u64> for Sequence {
    type Output = Self;

    /// So many records on.
    fn add(self, records: u64) -> Self {
        Self(self.0 + records)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<U64> for Sequence {
    fn from(raw: U64) -> Self {
        Self(raw.get())
    }
}

impl From<Sequence> for U64 {
    fn from(sequence: Sequence) -> Self {
        sequence.0.into()
    }
}
