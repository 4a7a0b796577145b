//! A bitmap of blocks or inodes in use: bit 0 is the lowest of the first byte.

use std::ops::Range;

/// Whether bit `index` is set. An index beyond the bitmap counts as set.
pub fn is_set(bits: &[u8], index: u32) -> bool {
    bits.get(index as usize / 8).is_none_or(|byte| byte >> (index % 8) & 1 == 1)
}

/// Sets bit `index`.
pub fn set(bits: &mut [u8], index: u32) {
    bits[index as usize / 8] |= 1 << (index % 8);
}

/// Clears bit `index`.
pub fn clear(bits: &mut [u8], index: u32) {
    bits[index as usize / 8] &= !(1 << (index % 8));
}

/// The first bit of the range that is not set.
pub fn first_clear(bits: &[u8], range: Range<u32>) -> Option<u32> {
    let mut index = range.start;
    while index < range.end {
        if index.is_multiple_of(8) && bits.get(index as usize / 8) == Some(&0xff) {
            index += 8;
        } else if is_set(bits, index) {
            index += 1;
        } else {
            return Some(index);
        }
    }
    None
}

/// The first eight bits of one byte within the range of which none is set: where a file can grow.
pub fn first_clear_byte(bits: &[u8], range: Range<u32>) -> Option<u32> {
    let bytes = range.start.div_ceil(8)..range.end / 8;
    bytes.into_iter().find(|byte| bits.get(*byte as usize) == Some(&0)).map(|byte| byte * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_found_is_what_a_look_at_every_bit_finds(
            bits in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 1..20),
            start in 0u32..170,
            end in 0u32..170,
        ) {
            let range = start..end.min(bits.len() as u32 * 8);
            let slow = range.clone().find(|index| bits[*index as usize / 8] & (1 << (index % 8)) == 0);
            prop_assert_eq!(first_clear(&bits, range.clone()), slow);
            let is_free_byte =
                |index: &u32| index.is_multiple_of(8) && index + 8 <= range.end && bits[*index as usize / 8] == 0;
            let slow = range.clone().find(is_free_byte);
            prop_assert_eq!(first_clear_byte(&bits, range), slow);
        }

        #[test]
        fn a_bit_is_set_and_cleared_alone(mut bits in proptest::collection::vec(any::<u8>(), 4), index in 0u32..32) {
            let before = bits.clone();
            set(&mut bits, index);
            prop_assert!(is_set(&bits, index));
            clear(&mut bits, index);
            prop_assert!(!is_set(&bits, index));
            prop_assert!((0..32).all(|other| other == index || is_set(&bits, other) == is_set(&before, other)));
        }
    }
}
