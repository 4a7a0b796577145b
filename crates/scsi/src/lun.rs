//! The eight bytes of a LUN (SAM-5 4.7).
//!
//! A single-level LUN has its number in the first two bytes, by one of two methods, and zeroes after them:
//!
//! ```text
//! peripheral  00bbbbbb nnnnnnnn   bus identifier zero, numbers 0..=255       (SAM-5 4.7.7.2)
//! flat space  01nnnnnn nnnnnnnn   numbers 0..=16383                          (SAM-5 4.7.7.3)
//! ```
//!
//! We emit the peripheral method where it fits, because every initiator reads it. Well-known, extended and multi-level
//! LUNs are not ours.

use crate::error::Malformed;
use crate::limits::LUN_MAX;

/// The number in a single-level LUN.
///
/// # Errors
/// [`Malformed`] for every other addressing method: no such logical unit can exist here.
pub fn decode(bytes: [u8; 8]) -> Result<u64, Malformed> {
    let [first, second, rest @ ..] = bytes;
    let is_single_level = rest == [0; 6];
    match first >> 6 {
        0 if is_single_level && first == 0 => Ok(u64::from(second)),
        1 if is_single_level => Ok(u64::from(first & 0x3f) << 8 | u64::from(second)),
        _ => Err(Malformed("LUN")),
    }
}

/// Whether two LUN fields name the same unit, by whichever method. Those that name none are alike: for them there is no
/// unit.
pub fn is_same(one: u64, other: u64) -> bool {
    let number = |field: u64| decode(field.to_be_bytes()).ok();
    number(one) == number(other)
}

/// The bytes of LUN `number`.
///
/// # Errors
/// [`Malformed`] above [`LUN_MAX`].
pub fn encode(number: u64) -> Result<[u8; 8], Malformed> {
    if number > LUN_MAX {
        return Err(Malformed("LUN"));
    }
    let [.., high, low] = number.to_be_bytes();
    let method = if number > 0xff { 0x40 } else { 0 };
    Ok([method | high, low, 0, 0, 0, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(encode(0), Ok([0; 8]));
        assert_eq!(encode(255), Ok([0, 255, 0, 0, 0, 0, 0, 0]));
        assert_eq!(encode(256), Ok([0x41, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(encode(LUN_MAX), Ok([0x7f, 0xff, 0, 0, 0, 0, 0, 0]));
        assert!(encode(LUN_MAX + 1).is_err());
    }

    #[test]
    fn every_number_is_read_back() {
        for number in 0..=LUN_MAX {
            assert_eq!(encode(number).and_then(decode), Ok(number));
        }
    }

    #[test]
    fn both_methods_name_the_same_unit_and_others_name_none() {
        assert_eq!(decode([0x40, 7, 0, 0, 0, 0, 0, 0]), Ok(7));
        for bytes in [[1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0], [0xc1, 1, 0, 0, 0, 0, 0, 0], [0x80; 8]] {
            assert!(decode(bytes).is_err(), "{bytes:x?}");
        }
        let (peripheral, flat) = (1 << 48, 0x4001 << 48);
        assert!(is_same(peripheral, flat) && !is_same(peripheral, 0));
        assert!(is_same(1, 2) && !is_same(1, 0), "neither is a unit");
    }
}
