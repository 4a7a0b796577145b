//! Verifiable content: each 512-byte unit names the write that made it, and its place.
//!
//! | offset | bytes | field |
//! |---:|---:|---|
//! | 0 | 8 | magic `fb-unit1` |
//! | 8 | 8 | seed of the run, little-endian |
//! | 16 | 8 | unit index (byte offset / 512), little-endian |
//! | 24 | 8 | version: the number of the write, little-endian |
//! | 32 | 480 | body: words that follow from seed, unit, version and place |
//!
//! The body follows from the header, so one look identifies a fault. A unit whose body fits its
//! header is *whole*: it was written by this run or another, for this place or another, now or
//! earlier. One whose body does not fit is *torn*; one without the magic is something else.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::UNIT_BYTES;
use crate::permutation::mix;

const MAGIC: [u8; 8] = *b"fb-unit1";
const BODY_WORDS: usize = 60;

/// A unit as it is stored.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UnitRaw {
    magic: [u8; 8],
    seed: U64,
    unit: U64,
    version: U64,
    body: [U64; BODY_WORDS],
}
const _: () = assert!(size_of::<UnitRaw>() == UNIT_BYTES);
const _: () = assert!(std::mem::offset_of!(UnitRaw, body) == 32);

/// The write that made a unit, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Seed of the run.
    pub seed: u64,
    /// Byte offset / 512.
    pub unit: u64,
    /// Number of the write.
    pub version: u64,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Header and body fit together.
    Whole(Stamp),
    /// A header whose body is wrong from `first_wrong_byte` on.
    Torn {
        /// The stamp in the header.
        stamp: Stamp,
        /// Offset of the first wrong byte, 32..512.
        first_wrong_byte: usize,
    },
    /// All zero.
    Zero,
    /// Anything else.
    Garbage,
}

/// Fills `bytes` (whole units) with the content of write `version` from `unit_first` on.
///
/// # Panics
/// When `bytes` are not whole units.
pub fn fill(seed: u64, unit_first: u64, version: u64, bytes: &mut [u8]) {
    assert!(bytes.len().is_multiple_of(UNIT_BYTES), "content is made in whole units");
    for (index, unit_bytes) in bytes.chunks_exact_mut(UNIT_BYTES).enumerate() {
        let stamp = Stamp { seed, unit: unit_first + index as u64, version };
        let raw = UnitRaw::mut_from_bytes(unit_bytes).expect("a unit has this size and no alignment");
        raw.magic = MAGIC;
        raw.seed.set(stamp.seed);
        raw.unit.set(stamp.unit);
        raw.version.set(stamp.version);
        raw.body.iter_mut().zip(body(stamp)).for_each(|(word, value)| word.set(value));
    }
}

/// Whether `bytes` are exactly the content of `stamp`. The fast path of a check, without an
/// explanation.
pub fn is_exactly(stamp: Stamp, bytes: &[u8]) -> bool {
    UnitRaw::ref_from_bytes(bytes).is_ok_and(|raw| {
        raw.magic == MAGIC
            && raw.stamp() == stamp
            && raw.body.iter().zip(body(stamp)).all(|(word, value)| *word == value)
    })
}

/// The state of the unit in `bytes`; [`Unit::Garbage`] when they are not one unit long.
pub fn identify(bytes: &[u8]) -> Unit {
    let Ok(raw) = UnitRaw::ref_from_bytes(bytes) else { return Unit::Garbage };
    if raw.magic != MAGIC {
        return if bytes.iter().all(|&byte| byte == 0) { Unit::Zero } else { Unit::Garbage };
    }
    let stamp = raw.stamp();
    match raw.body.iter().zip(body(stamp)).position(|(word, value)| *word != value) {
        None => Unit::Whole(stamp),
        Some(word) => Unit::Torn { stamp, first_wrong_byte: std::mem::offset_of!(UnitRaw, body) + word * 8 },
    }
}

impl UnitRaw {
    fn stamp(&self) -> Stamp {
        Stamp { seed: self.seed.get(), unit: self.unit.get(), version: self.version.get() }
    }
}

/// The words of the body: a counter through a mixer, with a start of its own for each stamp.
fn body(stamp: Stamp) -> impl Iterator<Item = u64> {
    let start = mix(stamp.seed ^ mix(stamp.unit ^ mix(stamp.version.wrapping_add(0x9e37_79b9_7f4a_7c15))));
    (0..BODY_WORDS as u64).map(move |word| mix(start.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} for byte {} (seed {})", self.version, u128::from(self.unit) * UNIT_BYTES as u128, self.seed)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(stamp) => write!(f, "the whole of {stamp}"),
            Self::Torn { stamp, first_wrong_byte } => {
                write!(f, "torn: it begins as {stamp} but is something else from its byte {first_wrong_byte} on")
            }
            Self::Zero => f.write_str("zeroes"),
            Self::Garbage => f.write_str("garbage: nothing any run of this program writes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unit(seed: u64, index: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0xa5; UNIT_BYTES];
        fill(seed, index, version, &mut bytes);
        bytes
    }

    /// Fixed for ever: a run may be checked by a later build.
    #[test]
    fn golden_bytes() {
        let bytes = unit(0x0102_0304_0506_0708, 9, 10);
        let header = [
            0x66, 0x62, 0x2d, 0x75, 0x6e, 0x69, 0x74, 0x31, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0,
            0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[..32], header);
        // Computed once by another program from the table above.
        assert_eq!(base::checksum::crc32c(&bytes), 0x650d_4fd1);
    }

    #[test]
    fn every_kind_is_told_apart() {
        let stamp = Stamp { seed: 1, unit: 7, version: 3 };
        let whole = unit(1, 7, 3);
        assert_eq!(identify(&whole), Unit::Whole(stamp));
        assert!(is_exactly(stamp, &whole));
        assert!(!is_exactly(Stamp { version: 4, ..stamp }, &whole));
        let mut torn = whole.clone();
        torn[256..].copy_from_slice(&unit(1, 7, 2)[256..]);
        assert_eq!(identify(&torn), Unit::Torn { stamp, first_wrong_byte: 256 });
        assert!(!is_exactly(stamp, &torn));
        assert_eq!(identify(&[0; UNIT_BYTES]), Unit::Zero);
        assert_eq!(identify(&[1; UNIT_BYTES]), Unit::Garbage);
        assert_eq!(identify(&whole[..100]), Unit::Garbage);
    }

    proptest! {
        #[test]
        fn what_is_filled_is_identified(seed in any::<u64>(), index in 0..u64::MAX / 2, version in any::<u64>()) {
            let mut bytes = vec![0xa5; 3 * UNIT_BYTES];
            fill(seed, index, version, &mut bytes);
            for (at, unit_bytes) in bytes.chunks(UNIT_BYTES).enumerate() {
                let stamp = Stamp { seed, unit: index + at as u64, version };
                prop_assert_eq!(identify(unit_bytes), Unit::Whole(stamp));
            }
        }

        #[test]
        fn one_changed_byte_is_seen(at in 0..UNIT_BYTES, change in 1u8..) {
            let mut bytes = unit(1, 2, 3);
            bytes[at] ^= change;
            prop_assert_ne!(identify(&bytes), Unit::Whole(Stamp { seed: 1, unit: 2, version: 3 }));
        }
    }
}
