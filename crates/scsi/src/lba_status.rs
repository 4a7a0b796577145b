//! GET LBA STATUS data (SBC-3 5.5.2): a length, four reserved bytes, 16 bytes per run of blocks.

use crate::error::Malformed;
use crate::field::{u8_at, u32_at, u64_at};

/// Bytes before the descriptors.
pub const HEADER_BYTES: usize = 8;
/// Bytes of one descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// How blocks are provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioning {
    /// Space is allocated, or nothing is known about it.
    Mapped,
    /// No space is allocated.
    Deallocated,
    /// Space is reserved, nothing is stored.
    Anchored,
}

/// A run of blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// First block.
    pub lba: u64,
    /// Count of blocks.
    pub block_count: u32,
    /// Their kind.
    pub provisioning: Provisioning,
}

/// The bytes.
pub fn emit(descriptors: &[Descriptor]) -> Vec<u8> {
    let length = (descriptors.len() * DESCRIPTOR_BYTES + 4) as u32;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + descriptors.len() * DESCRIPTOR_BYTES);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0; 4]);
    for descriptor in descriptors {
        bytes.extend(descriptor.lba.to_be_bytes());
        bytes.extend(descriptor.block_count.to_be_bytes());
        bytes.extend([descriptor.provisioning as u8, 0, 0, 0]);
    }
    bytes
}

/// The runs in data from a target; data cut at the allocation length ends early.
///
/// # Errors
/// [`Malformed`] without a header, or for a kind the standard does not have.
pub fn parse(bytes: &[u8]) -> Result<Vec<Descriptor>, Malformed> {
    let malformed = Malformed("GET LBA STATUS data");
    let length = (u32_at(bytes, 0).ok_or(malformed)? as usize).saturating_sub(4);
    let list = bytes.get(HEADER_BYTES..).ok_or(malformed)?;
    let list = list.get(..length).unwrap_or(list);
    let entries = list.as_chunks::<DESCRIPTOR_BYTES>().0;
    entries.iter().map(|entry| parse_entry(entry).ok_or(malformed)).collect()
}

fn parse_entry(entry: &[u8]) -> Option<Descriptor> {
    let provisioning = match u8_at(entry, 12)? & 0x0f {
        0 => Provisioning::Mapped,
        1 => Provisioning::Deallocated,
        2 => Provisioning::Anchored,
        _ => return None,
    };
    Some(Descriptor { lba: u64_at(entry, 0)?, block_count: u32_at(entry, 8)?, provisioning })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let runs = [Descriptor { lba: 8, block_count: 0x0100, provisioning: Provisioning::Deallocated }];
        let expected = [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 1, 0, 1, 0, 0, 0];
        assert_eq!(emit(&runs), expected);
        assert_eq!(parse(&expected), Ok(runs.to_vec()));
        assert_eq!(parse(&expected[..20]), Ok(vec![]));
        assert!(parse(&expected[..4]).is_err());
    }
}
