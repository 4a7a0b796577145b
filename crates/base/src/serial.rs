//! Serial numbers that wrap (RFC 1982, as RFC 7143 4.2.2 uses them): `a` is before `b` when it is less than 2^31 steps
//! behind.

use std::cmp::Ordering;
use std::fmt;

/// A 32-bit serial number. It has no `Ord`: comparison is only partial, and two numbers exactly 2^31 apart have no
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Serial32(pub u32);

impl Serial32 {
    /// The number `steps` later.
    #[must_use]
    pub fn plus(self, steps: u32) -> Self {
        Self(self.0.wrapping_add(steps))
    }

    /// The number `steps` earlier.
    #[must_use]
    pub fn minus(self, steps: u32) -> Self {
        Self(self.0.wrapping_sub(steps))
    }

    /// The next number.
    #[must_use]
    pub fn next(self) -> Self {
        self.plus(1)
    }

    /// Steps from `earlier` to here, wrapping.
    pub fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`.
    pub fn is_before(self, other: Self) -> bool {
        self.partial_cmp(&other) == Some(Ordering::Less)
    }

    /// Whether this number comes after `other`.
    pub fn is_after(self, other: Self) -> bool {
        other.is_before(self)
    }
}

impl PartialOrd for Serial32 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match other.0.wrapping_sub(self.0) {
            0 => Some(Ordering::Equal),
            0x8000_0000 => None,
            steps if steps < 0x8000_0000 => Some(Ordering::Less),
            _ => Some(Ordering::Greater),
        }
    }
}

impl fmt::Display for Serial32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_wraps() {
        assert!(Serial32(u32::MAX).is_before(Serial32(0)));
        assert!(Serial32(0).is_after(Serial32(u32::MAX)));
        assert!(!Serial32(5).is_before(Serial32(5)));
        assert_eq!(Serial32(0).partial_cmp(&Serial32(0x8000_0000)), None);
        assert_eq!(Serial32(2).distance_from(Serial32(u32::MAX)), 3);
    }
}
