//! The numbers of sectors, segments and slots, each a type of its own, so that none is taken for
//! another or for a count. They are bare numbers only on the device and in NVRAM
//! ([`crate::format`]).

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use zerocopy::little_endian::{U32, U64};

use crate::limits::UNIT_BYTES;

/// Number of a segment of the log, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u32);

impl SegmentNumber {
    /// Index into a table with one row a segment.
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

/// Number of a slot of RAM or NVRAM, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotNumber(pub(crate) u32);

impl SlotNumber {
    /// Index into a table with one row a slot.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a sector of 512 bytes of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sector(pub(crate) u64);

impl Sector {
    /// The first sector of the origin.
    pub(crate) const FIRST: Self = Self(0);
    /// Behind every sector, whatever a damaged log claims.
    pub(crate) const END: Self = Self(1 << 54);

    /// The sector that begins `bytes` behind the start of the origin.
    pub(crate) fn at(bytes: u64) -> Self {
        Self(bytes / UNIT_BYTES)
    }

    /// Its offset on the origin, in bytes.
    pub(crate) fn offset(self) -> u64 {
        self.0 * UNIT_BYTES
    }

    /// The first sector from here on that is a multiple of `sectors`.
    pub(crate) fn next_multiple_of(self, sectors: u64) -> Self {
        Self(self.0.next_multiple_of(sectors))
    }

    /// The last sector up to here that is a multiple of `sectors`.
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

    /// The sector that is `sectors` further.
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
