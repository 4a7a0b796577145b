//! A group descriptor: where a block group keeps its bitmaps and inodes, and how much of it is free.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Error;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 32;

/// A group descriptor as it is stored.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DescriptorRaw {
    pub block_bitmap: U32,      //  0  block number
    pub inode_bitmap: U32,      //  4  block number
    pub inode_table: U32,       //  8  block number of its first block
    pub free_blocks_count: U16, // 12
    pub free_inodes_count: U16, // 14
    pub directories_count: U16, // 16
    pub flags: U16,             // 18  ext4's, as all that follows
    pub exclude_bitmap: U32,    // 20
    pub checksums: [U16; 2],    // 24
    pub unused_inodes: U16,     // 28
    pub checksum: U16,          // 30
}
const _: () = assert!(size_of::<DescriptorRaw>() == DESCRIPTOR_BYTES);

impl DescriptorRaw {
    /// The descriptor at `offset` of its block.
    pub fn at(block: &[u8], offset: usize) -> Result<&Self, Error> {
        let bytes = block.get(offset..offset + DESCRIPTOR_BYTES);
        bytes.and_then(|bytes| Self::ref_from_bytes(bytes).ok()).ok_or_else(outside)
    }

    /// As [`at`](Self::at), to be changed.
    pub fn at_mut(block: &mut [u8], offset: usize) -> Result<&mut Self, Error> {
        let bytes = block.get_mut(offset..offset + DESCRIPTOR_BYTES);
        bytes.and_then(|bytes| Self::mut_from_bytes(bytes).ok()).ok_or_else(outside)
    }
}

fn outside() -> Error {
    Error::corrupt("a group descriptor is outside its block")
}
