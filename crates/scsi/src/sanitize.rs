//! The parameter list of SANITIZE OVERWRITE (SBC-3 5.20.2).
//!
//! ```text
//!  0  INVERT in bit 7, TEST in bits 6 and 5, OVERWRITE COUNT in bits 4 to 0
//!  1  reserved      2  length of the pattern      4  the pattern
//! ```

use crate::error::Malformed;
use crate::field::{u8_at, u16_at};

/// Bytes before the pattern.
pub const HEADER_BYTES: usize = 4;

/// Service actions of SANITIZE.
pub mod action {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const OVERWRITE: u8 = 0x01;
    pub const BLOCK_ERASE: u8 = 0x02;
    pub const EXIT_FAILURE_MODE: u8 = 0x1f;
}

/// The parameters of an overwrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// INVERT: every other pass writes the complement.
    pub is_inverting: bool,
    /// Passes, 1 to 31.
    pub count: u8,
    /// The pattern that fills every block, repeated; 1 byte up to a whole block.
    pub pattern: Vec<u8>,
}

impl Overwrite {
    /// The list.
    ///
    /// # Panics
    /// When the pattern is longer than its length field says: the caller chose it.
    pub fn emit(&self) -> Vec<u8> {
        let length = u16::try_from(self.pattern.len()).expect("a pattern is no longer than a block");
        let mut bytes = vec![if self.is_inverting { 0x80 } else { 0 } | self.count & 0x1f, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(&self.pattern);
        bytes
    }

    /// From a list.
    ///
    /// # Errors
    /// [`Malformed`] when it is cut short, no pass or no pattern is asked for, or the pattern is longer than a block.
    pub fn parse(bytes: &[u8], block_bytes: usize) -> Result<Self, Malformed> {
        let malformed = Malformed("SANITIZE OVERWRITE parameter list");
        let flags = u8_at(bytes, 0).ok_or(malformed)?;
        let length = usize::from(u16_at(bytes, 2).ok_or(malformed)?);
        let pattern = bytes.get(HEADER_BYTES..HEADER_BYTES + length).ok_or(malformed)?;
        let count = flags & 0x1f;
        if count == 0 || pattern.is_empty() || pattern.len() > block_bytes {
            return Err(malformed);
        }
        Ok(Self { is_inverting: flags & 0x80 != 0, count, pattern: pattern.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_list() {
        let overwrite = Overwrite { is_inverting: true, count: 3, pattern: vec![0xaa, 0x55] };
        let bytes = [0x83, 0, 0, 2, 0xaa, 0x55];
        assert_eq!(overwrite.emit(), bytes);
        assert_eq!(Overwrite::parse(&bytes, 512), Ok(overwrite));
    }

    /// libiscsi Sanitize.Overwrite.
    #[test]
    fn what_asks_for_nothing_or_too_much_is_malformed() {
        for bytes in [&[1, 0, 0, 2, 0xaa][..], &[0, 0, 0, 1, 0xaa], &[1, 0, 0, 0], &[1, 0, 0, 3, 1, 2, 3], &[1, 0], &[]]
        {
            assert!(Overwrite::parse(bytes, 2).is_err(), "{bytes:?}");
        }
    }
}
