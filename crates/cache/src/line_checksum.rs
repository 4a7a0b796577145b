//! The checksum of a whole line.

use std::num::NonZeroU32;

use base::checksum::crc32c;

/// crc32c of a whole line's data, or unknown: damage of such data is not noticed.
///
/// Four bytes, in memory and on the device. 0 means unknown; a line whose crc32c is 0 gets 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineChecksum(Option<NonZeroU32>);
const _: () = assert!(size_of::<LineChecksum>() == 4);

impl LineChecksum {
    /// No checksum is known.
    pub const UNKNOWN: Self = Self(None);

    /// That of a line with this data.
    pub fn of(data: &[u8]) -> Self {
        Self(Some(NonZeroU32::new(crc32c(data)).unwrap_or(NonZeroU32::MIN)))
    }

    /// From its form on the device.
    pub fn from_raw(raw: u32) -> Self {
        Self(NonZeroU32::new(raw))
    }

    /// Its form on the device.
    pub fn to_raw(self) -> u32 {
        self.0.map_or(0, NonZeroU32::get)
    }

    /// Whether there is anything to compare data with.
    pub fn is_known(self) -> bool {
        self.0.is_some()
    }

    /// Whether this may be the data of the line: an unknown checksum matches any data.
    pub fn matches(self, data: &[u8]) -> bool {
        !self.is_known() || self == Self::of(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_line_fits_its_data_alone() {
        let checksum = LineChecksum::of(&[7; 4096]);
        assert!(checksum.is_known() && checksum.matches(&[7; 4096]) && !checksum.matches(&[8; 4096]));
        assert_eq!(LineChecksum::from_raw(checksum.to_raw()), checksum);
    }

    #[test]
    fn what_is_not_known_fits_all_and_is_zero_on_the_device() {
        assert!(LineChecksum::UNKNOWN.matches(&[7; 4096]));
        assert_eq!((LineChecksum::from_raw(0), LineChecksum::UNKNOWN.to_raw()), (LineChecksum::UNKNOWN, 0));
    }

    #[test]
    fn a_line_whose_crc32c_is_zero_is_known_all_the_same() {
        let data = [0xab, 0x9b, 0xe0, 0x9b];
        assert_eq!(crc32c(&data), 0);
        let checksum = LineChecksum::of(&data);
        assert!(checksum.is_known() && LineChecksum::from_raw(checksum.to_raw()).matches(&data));
    }
}
