//! Residuals: the difference between the bytes that a command transferred and those that its
//! initiator expected (RFC 7143 11.4.5).

/// A residual. Overflow and underflow exclude each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// As many bytes were transferred as expected.
    #[default]
    None,
    /// This many bytes were not transferred because the initiator expected too few.
    Overflow(u32),
    /// This many of the bytes expected were not transferred.
    Underflow(u32),
}

impl Residual {
    /// The residual of a device server that presents `presented_bytes` for a command that expects `expected_bytes`.
    pub fn of(expected_bytes: u32, presented_bytes: u64) -> Self {
        match presented_bytes.checked_sub(u64::from(expected_bytes)) {
            Some(0) => Self::None,
            Some(over) => Self::Overflow(u32::try_from(over).unwrap_or(u32::MAX)),
            None => Self::Underflow(expected_bytes - presented_bytes as u32),
        }
    }

    /// From its two bits and its count; `None` when both bits are set.
    pub(crate) fn from_wire(overflow: bool, underflow: bool, count: u32) -> Option<Self> {
        match (overflow, underflow) {
            (false, false) => Some(Self::None),
            (true, false) => Some(Self::Overflow(count)),
            (false, true) => Some(Self::Underflow(count)),
            (true, true) => None,
        }
    }

    /// Its bits, at the given positions, and its count.
    pub(crate) fn to_wire(self, overflow: u8, underflow: u8) -> (u8, u32) {
        match self {
            Self::None => (0, 0),
            Self::Overflow(count) => (overflow, count),
            Self::Underflow(count) => (underflow, count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_compare_presented_with_expected() {
        assert_eq!(Residual::of(512, 512), Residual::None);
        assert_eq!(Residual::of(512, 36), Residual::Underflow(476));
        assert_eq!(Residual::of(512, 4096), Residual::Overflow(3584));
        assert_eq!(Residual::of(0, u64::MAX), Residual::Overflow(u32::MAX));
    }
}
