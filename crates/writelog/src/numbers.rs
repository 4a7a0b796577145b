//! Which sector of the origin, which segment of the log, which slot: each is a type of its own, so that none is taken
//! for another, nor for a count of them. They are bare numbers only on the device and in NVRAM ([`crate::format`]).

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use zerocopy::little_endian::{U32, U64};

use crate::limits::UNIT_BYTES;

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

/// Which sector of 512 bytes of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sector(pub(crate) u64);

impl Sector {
    /// The origin begins with it.
    pub(crate) const FIRST: Self = Self(0);
    /// None is so far behind, whatever a damaged log says.
    pub(crate) const END: Self = Self(1 << 54);

    /// The one that begins `bytes` behind the start of the origin.
    pub(crate) fn at(bytes: u64) -> Self {
        Self(bytes / UNIT_BYTES)
    }

    /// Where it begins on the origin, in bytes.
    pub(crate) fn offset(self) -> u64 {
        self.0 * UNIT_BYTES
    }

    /// The first one from here on that is a multiple of `sectors`.
    pub(crate) fn next_multiple_of(self, sectors: u64) -> Self {
        Self(self.0.next_multiple_of(sectors))
    }

    /// The last one up to here that is a multiple of `sectors`.
    pub(crate) fn last_multiple_of(self, sectors: u64) -> Self {
        Self(self.0 / sectors * sectors)
    }

    /// All from here up to `end`, which is not among them.
    pub(crate) fn up_to(self, end: Self) -> impl Iterator<Item = Self> {
        (self.0..end.0).map(Self)
    }
}

impl Add<u64> for Sector {
    type Output = Self;

    /// So many sectors on.
    fn add(self, sectors: u64) -> Self {
        Self(self.0 + sectors)
    }
}

impl AddAssign<u64> for Sector {
    fn add_assign(&mut self, sectors: u64) {
        self.0 += sectors;
    }
}

/// Count of sectors between two.
impl Sub for Sector {
    type Output = u64;

    fn sub(self, start: Self) -> u64 {
        self.0 - start.0
    }
}

impl From<U64> for Sector {
    fn from(raw: U64) -> Self {
        Self(raw.get())
    }
}

impl From<Sector> for U64 {
    fn from(sector: Sector) -> Self {
        sector.0.into()
    }
}
