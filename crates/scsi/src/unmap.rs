//! UNMAP parameter lists (SBC-3 5.28.2).
//!
//! ```text
//!  0  UNMAP data length (bytes after this field)     2  block descriptor data length     4  reserved
//!  8  descriptors: LBA (8), count (4), reserved (4)
//! ```

use crate::error::Malformed;
use crate::field::{u16_at, u32_at, u64_at};

/// Bytes before the descriptors.
pub const HEADER_BYTES: usize = 8;
/// Bytes of one descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Most descriptors one list can hold: its length field has 16 bits.
pub const DESCRIPTORS_MAX: usize = (u16::MAX as usize - 6) / DESCRIPTOR_BYTES;

/// Blocks to unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// First block.
    pub lba: u64,
    /// Count of blocks; zero is no error.
    pub block_count: u32,
}

/// The bytes of a list.
///
/// # Panics
/// Above [`DESCRIPTORS_MAX`]: callers split before.
pub fn emit(descriptors: &[Descriptor]) -> Vec<u8> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors are too many", descriptors.len());
    let descriptor_bytes = (descriptors.len() * DESCRIPTOR_BYTES) as u16;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + usize::from(descriptor_bytes));
    bytes.extend((descriptor_bytes + 6).to_be_bytes());
    bytes.extend(descriptor_bytes.to_be_bytes());
    bytes.extend([0; 4]);
    for descriptor in descriptors {
        bytes.extend(descriptor.lba.to_be_bytes());
        bytes.extend(descriptor.block_count.to_be_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

/// The descriptors of a list; lengths that reach past the bytes received are cut there, a broken last descriptor is
/// left out (SBC-3 5.28.2: it shall be ignored).
///
/// # Errors
/// [`Malformed`] when the header is not there.
pub fn parse(bytes: &[u8]) -> Result<impl Iterator<Item = Descriptor> + Clone + use<'_>, Malformed> {
    let malformed = Malformed("UNMAP parameter list");
    let length = usize::from(u16_at(bytes, 2).ok_or(malformed)?);
    let list = bytes.get(HEADER_BYTES..).ok_or(malformed)?;
    let list = list.get(..length).unwrap_or(list);
    Ok(list
        .as_chunks::<DESCRIPTOR_BYTES>()
        .0
        .iter()
        .filter_map(|entry| Some(Descriptor { lba: u64_at(entry, 0)?, block_count: u32_at(entry, 8)? })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let bytes = emit(&[Descriptor { lba: 0x0102, block_count: 3 }]);
        let expected = [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn lists_are_read_back_and_broken_tails_left_out() {
        let list = [Descriptor { lba: 1, block_count: 2 }, Descriptor { lba: u64::MAX, block_count: u32::MAX }];
        let bytes = emit(&list);
        let read = |bytes: &[u8]| parse(bytes).map(|list| list.collect::<Vec<_>>());
        assert_eq!(read(&bytes), Ok(list.to_vec()));
        assert_eq!(read(&bytes[..39]), Ok(list[..1].to_vec()));
        assert_eq!(read(&bytes[..8]), Ok(vec![]));
        assert!(read(&bytes[..7]).is_err());
    }
}
