//! A record of the redo area: the changes of one transaction.
//!
//! ```text
//!   head     header, then the number of each block           (whole blocks)
//!   content  the blocks, in that order
//! ```
//! By checksums over both a record that was written whole is recognised.

use base::checksum::{Crc32c, crc32c};
use ext2::mount_state::Stamp;
use ext2::{Block, BlockNumber};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::commit::Changes;

/// The first bytes of every record, behind its checksum.
const MAGIC: [u8; 8] = *b"fb-redo\0";
/// The version of these bytes.
const VERSION: u32 = 1;
/// `flags`: the transaction makes the area itself.
const FLAG_MAKES_AREA: u32 = 1;

/// The header of a record as it is stored.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderRaw {
    checksum: U32,         //  0  crc32c of all that follows in the head
    version: U32,          //  4
    magic: [u8; 8],        //  8
    uuid: [u8; 16],        // 16  of the file system
    sequence: U64,         // 32  grows by one with each record
    mount_time: U32,       // 40  the stamp of the mount, as in the superblock
    write_time: U32,       // 44
    check_time: U32,       // 48
    mount_count: U16,      // 52
    reserved: U16,         // 54  zero
    flags: U32,            // 56
    block_count: U32,      // 60
    content_checksum: U32, // 64  crc32c of the content
    reserved_2: [u8; 60],  // 68  zero
}
const HEADER_BYTES: usize = 128;
const _: () = assert!(size_of::<HeaderRaw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, sequence) == 32);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, content_checksum) == 64);

/// Blocks of the head of a record of `block_count` blocks.
fn head_blocks(block_count: usize, block_bytes: usize) -> usize {
    (HEADER_BYTES + 4 * block_count).div_ceil(block_bytes)
}

/// Most blocks in a record that takes `area_blocks` blocks.
pub fn content_blocks_max(area_blocks: usize, block_bytes: usize) -> usize {
    let fits = |count: usize| head_blocks(count, block_bytes) + count <= area_blocks;
    let guess = area_blocks.saturating_sub(head_blocks(area_blocks, block_bytes));
    (guess..=area_blocks).take_while(|count| fits(*count)).last().unwrap_or(0)
}

/// One transaction in the redo area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Identifier of the file system.
    pub uuid: Uuid,
    /// Stamp of the mount.
    pub stamp: Stamp,
    /// Sequence number of the record.
    pub sequence: u64,
    /// Whether it makes the area itself.
    pub makes_area: bool,
    /// The changed blocks.
    pub changes: Changes,
}

impl Record {
    /// The blocks to write, from the first of the area's half on.
    pub fn emit(&self, block_bytes: usize) -> Vec<Block> {
        let mut content_checksum = Crc32c::new();
        for block in self.changes.values() {
            content_checksum.update(block);
        }
        let mut head = vec![0; head_blocks(self.changes.len(), block_bytes) * block_bytes];
        let raw = HeaderRaw {
            checksum: U32::ZERO,
            version: VERSION.into(),
            magic: MAGIC,
            uuid: *self.uuid.as_bytes(),
            sequence: self.sequence.into(),
            mount_time: self.stamp.mount_time.into(),
            write_time: self.stamp.write_time.into(),
            check_time: self.stamp.check_time.into(),
            mount_count: self.stamp.mount_count.into(),
            reserved: U16::ZERO,
            flags: if self.makes_area { FLAG_MAKES_AREA } else { 0 }.into(),
            block_count: (self.changes.len() as u32).into(),
            content_checksum: content_checksum.finish().into(),
            reserved_2: [0; 60],
        };
        head[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        for (place, number) in head[HEADER_BYTES..].chunks_exact_mut(4).zip(self.changes.keys()) {
            place.copy_from_slice(&number.0.to_le_bytes());
        }
        let checksum = crc32c(&head[4..]);
        head[..4].copy_from_slice(&checksum.to_le_bytes());
        head.chunks_exact(block_bytes).map(Block::copy_of).chain(self.changes.values().cloned()).collect()
    }

    /// Count of blocks of the record that begins with this block; `None` when there is none.
    pub fn blocks_of(first: &[u8], area_blocks: usize) -> Option<usize> {
        let (raw, _) = HeaderRaw::ref_from_prefix(first).ok()?;
        let count = raw.block_count.get() as usize;
        let is_record = raw.magic == MAGIC && raw.version.get() == VERSION && count <= area_blocks;
        let all = head_blocks(count.min(area_blocks), first.len()) + count;
        (is_record && all <= area_blocks).then_some(all)
    }

    /// The sequence number of the record that begins with this block, whole or not; `None` when
    /// there is none.
    pub fn sequence_of(first: &[u8]) -> Option<u64> {
        let (raw, _) = HeaderRaw::ref_from_prefix(first).ok()?;
        (raw.magic == MAGIC && raw.version.get() == VERSION).then(|| raw.sequence.get())
    }

    /// The record in these bytes; `None` when it is not whole.
    pub fn parse(bytes: &[u8], block_bytes: usize) -> Option<Self> {
        let (raw, _) = HeaderRaw::ref_from_prefix(bytes).ok()?;
        let count = raw.block_count.get() as usize;
        let head_bytes = head_blocks(count.min(bytes.len()), block_bytes) * block_bytes;
        let (head, content) = bytes.split_at_checked(head_bytes)?;
        let is_whole = raw.checksum.get() == crc32c(&head[4..])
            && content.len() == count * block_bytes
            && raw.content_checksum.get() == crc32c(content);
        if !is_whole {
            return None;
        }
        let numbers = head[HEADER_BYTES..].as_chunks::<4>().0.iter().map(|word| BlockNumber(u32::from_le_bytes(*word)));
        Some(Self {
            uuid: Uuid::from_bytes(raw.uuid),
            stamp: Stamp {
                mount_time: raw.mount_time.get(),
                write_time: raw.write_time.get(),
                check_time: raw.check_time.get(),
                mount_count: raw.mount_count.get(),
            },
            sequence: raw.sequence.get(),
            makes_area: raw.flags.get() & FLAG_MAKES_AREA != 0,
            changes: numbers.zip(content.chunks_exact(block_bytes).map(Block::copy_of)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(count: u32) -> Record {
        let stamp = Stamp { mount_time: 1, write_time: 2, check_time: 3, mount_count: 4 };
        let changes = (0..count).map(|at| (BlockNumber(7 + 3 * at), Block::copy_of(&[at as u8; 1024]))).collect();
        Record { uuid: Uuid::from_u128(5), stamp, sequence: 6, makes_area: count == 0, changes }
    }

    fn bytes(record: &Record) -> Vec<u8> {
        record.emit(1024).iter().flat_map(|block| block.to_vec()).collect()
    }

    #[test]
    fn the_header_is_what_the_format_says() {
        let head = bytes(&record(2));
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&head[4..32]), "0100000066622d7265646f0000000000000000000000000000000005");
        assert_eq!(hex(&head[32..64]), "0600000000000000010000000200000003000000040000000000000002000000");
        assert_eq!(hex(&head[128..140]), "070000000a00000000000000");
    }

    #[test]
    fn a_record_is_read_back_and_one_that_is_not_whole_is_none() {
        for count in [0, 1, 223, 224, 225, 1000] {
            let record = record(count);
            let mut bytes = bytes(&record);
            assert_eq!(Record::blocks_of(&bytes[..1024], 2000), Some(bytes.len() / 1024));
            assert_eq!(Record::blocks_of(&bytes[..1024], count as usize), None, "it does not fit there");
            assert_eq!(Record::parse(&bytes, 1024).as_ref(), Some(&record));
            for sector in (0..bytes.len()).step_by(512).rev().step_by(7).chain([0]) {
                bytes[sector + 70] ^= 1;
                assert_eq!(Record::parse(&bytes, 1024), None, "sector {}", sector / 512);
                bytes[sector + 70] ^= 1;
            }
            assert_eq!(Record::parse(&bytes[..bytes.len() - 1024], 1024), None);
        }
        assert_eq!((Record::blocks_of(&[0; 1024], 9), Record::parse(&[0; 1024], 1024)), (None, None));
    }

    #[test]
    fn a_half_is_used_as_far_as_it_goes() {
        for area in 0..3000 {
            let most = content_blocks_max(area, 1024);
            assert!(most == 0 || head_blocks(most, 1024) + most <= area);
            assert!(head_blocks(most + 1, 1024) + most + 1 > area);
        }
    }
}
