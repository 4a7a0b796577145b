//! Units of 512 bytes, counted from where the segments or the slots begin: two types, so that neither is taken for the
//! other.

use std::ops::{Add, Sub};

/// A unit of the segments, all of them in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogUnit(pub u64);

impl LogUnit {
    /// How many units lie before it and not before `start`.
    pub(crate) fn saturating_since(self, start: Self) -> u64 {
        self.0.saturating_sub(start.0)
    }
}

/// A unit of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotUnit(pub(crate) u64);

impl Add<u64> for LogUnit {
    type Output = Self;

    fn add(self, units: u64) -> Self {
        Self(self.0 + units)
    }
}

/// Count of units between two.
impl Sub for LogUnit {
    type Output = u64;

    fn sub(self, start: Self) -> u64 {
        self.0 - start.0
    }
}
