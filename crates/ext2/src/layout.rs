//! The layout of a file system: sizes and places, which never change.

use crate::blocks::{Block, Object};
use crate::descriptor::{DESCRIPTOR_BYTES, DescriptorRaw};
use crate::error::{Error, ErrorKind};
use crate::features::Features;
use crate::limits::GROUPS_MAX;
use crate::numbers::{BlockNumber, FileBlock, GroupNumber, InodeNumber};
use crate::superblock::{FLAG_UNSIGNED_HASH, SuperblockPlace, SuperblockRaw, place};

/// The layout of a file system, checked: no number in it leads outside the file system.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks of the file system.
    pub block_count: u32,
    /// The first block of group 0.
    pub first_data_block: u32,
    /// Blocks of every group but the last.
    pub blocks_per_group: u32,
    /// Inodes of every group.
    pub inodes_per_group: u32,
    /// Inodes of the file system.
    pub inode_count: u32,
    /// Bytes of an inode, as stored.
    pub inode_bytes: usize,
    /// Bytes that a new inode has beyond the first 128.
    pub extra_inode_bytes: u16,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// The features in the superblock.
    pub features: Features,
    /// Revision of the format: file systems of revision 0 are read-only.
    pub revision: u32,
    /// Seed of the hashes of names.
    pub hash_seed: [u32; 4],
    /// The hash function of new directories.
    pub hash_version: u8,
    /// Whether names are hashed as unsigned characters.
    pub is_hash_unsigned: bool,
    first_meta_bg: u32,
    reserved_gdt_blocks: u32,
    groups: Vec<GroupPlaces>,
}

/// The places of a group's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPlaces {
    /// The bitmap of its used blocks.
    pub block_bitmap: BlockNumber,
    /// The bitmap of its used inodes.
    pub inode_bitmap: BlockNumber,
    /// The first block of its inodes.
    pub inode_table: BlockNumber,
}

/// The place of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodePlace {
    /// Its group.
    pub group: GroupNumber,
    /// Its index in the group.
    pub index: u32,
    /// Its block.
    pub block: BlockNumber,
    /// Offset of its first byte in the block.
    pub offset: usize,
}

impl Layout {
    /// The layout in a superblock, without the places of the groups, which
    /// [`set_groups`](Self::set_groups) adds.
    ///
    /// # Errors
    /// `Corrupt` when it is impossible, `Unsupported` for features and sizes that are not supported.
    pub fn new(raw: &SuperblockRaw, device_blocks: u64) -> Result<Self, Error> {
        raw.check_magic()?;
        let features = raw.features();
        features.check_readable()?;
        let revision = raw.revision.get();
        if revision > 1 {
            return Err(Error::new(ErrorKind::Unsupported, format!("revision {revision} of ext2")));
        }
        let is_old = revision == 0;
        let layout = Self {
            block_bytes: raw.block_bytes()?,
            block_count: raw.blocks_count.get(),
            first_data_block: raw.first_data_block.get(),
            blocks_per_group: raw.blocks_per_group.get(),
            inodes_per_group: raw.inodes_per_group.get(),
            inode_count: raw.inodes_count.get(),
            inode_bytes: if is_old { 128 } else { usize::from(raw.inode_size.get()) },
            extra_inode_bytes: raw.extra_inode_bytes_wanted.get(),
            first_inode: if is_old { 11 } else { raw.first_inode.get() },
            features,
            revision,
            hash_seed: raw.hash_seed.map(|word| word.get()),
            hash_version: raw.default_hash_version,
            is_hash_unsigned: raw.flags.get() & FLAG_UNSIGNED_HASH != 0,
            first_meta_bg: raw.first_meta_bg.get(),
            reserved_gdt_blocks: u32::from(raw.reserved_gdt_blocks.get()),
            groups: Vec::new(),
        };
        layout.check(device_blocks)?;
        Ok(layout)
    }

    fn check(&self, device_blocks: u64) -> Result<(), Error> {
        let block_bytes = self.block_bytes;
        let bits = (block_bytes * 8) as u32;
        let place = place(block_bytes);
        let problem = if u64::from(self.block_count) > device_blocks {
            "has more blocks than the device"
        } else if self.first_data_block != place.block.0 || self.block_count <= self.first_data_block + 1 {
            "has no blocks"
        } else if !(1..=bits).contains(&self.blocks_per_group) || !(1..=bits).contains(&self.inodes_per_group) {
            "has groups of more than their bitmaps can tell, or of none"
        } else if !self.inode_bytes.is_power_of_two() || !(128..=block_bytes).contains(&self.inode_bytes) {
            "has inodes of an impossible size"
        } else if u64::from(self.group_count()) > GROUPS_MAX {
            "has more groups than are supported"
        } else if u64::from(self.group_count()) * u64::from(self.inodes_per_group) != u64::from(self.inode_count) {
            "has another number of inodes than its groups"
        } else if self.first_inode < 11 || self.first_inode > self.inode_count {
            "has no inodes"
        } else {
            return Ok(());
        };
        Err(Error::corrupt(format!("the superblock is damaged: the file system {problem}")))
    }

    /// Sets the places of the groups from their descriptors, in order.
    ///
    /// # Errors
    /// `Corrupt` when one leads outside the file system.
    pub fn set_groups(&mut self, descriptors: &[DescriptorRaw]) -> Result<(), Error> {
        let table_blocks = u64::from(self.inode_table_blocks());
        let is_inside = |first: u32, count: u64| {
            first > self.superblock_place().block.0 && u64::from(first) + count <= u64::from(self.block_count)
        };
        let mut groups = Vec::with_capacity(descriptors.len());
        for (number, raw) in descriptors.iter().enumerate() {
            let places = GroupPlaces {
                block_bitmap: BlockNumber(raw.block_bitmap.get()),
                inode_bitmap: BlockNumber(raw.inode_bitmap.get()),
                inode_table: BlockNumber(raw.inode_table.get()),
            };
            let are_inside = is_inside(places.block_bitmap.0, 1)
                && is_inside(places.inode_bitmap.0, 1)
                && is_inside(places.inode_table.0, table_blocks);
            if !are_inside {
                return Err(Error::corrupt(format!("the descriptor of block group {number} leads outside")));
            }
            groups.push(places);
        }
        if groups.len() != self.group_count() as usize {
            return Err(Error::corrupt("there are too few group descriptors"));
        }
        self.groups = groups;
        Ok(())
    }

    /// The place of the superblock.
    pub fn superblock_place(&self) -> SuperblockPlace {
        place(self.block_bytes)
    }

    /// Groups of the file system.
    pub fn group_count(&self) -> u32 {
        (self.block_count - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// Blocks of a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        (self.inodes_per_group as usize * self.inode_bytes).div_ceil(self.block_bytes) as u32
    }

    /// Blocks of this group.
    pub fn blocks_of_group(&self, group: GroupNumber) -> u32 {
        let before = u64::from(group.0) * u64::from(self.blocks_per_group);
        let all = u64::from(self.block_count - self.first_data_block);
        all.saturating_sub(before).min(u64::from(self.blocks_per_group)) as u32
    }

    /// The first block of this group.
    pub fn first_block(&self, group: GroupNumber) -> BlockNumber {
        BlockNumber(self.first_data_block + group.0 * self.blocks_per_group)
    }

    /// The group of a block, and the block's index in it.
    pub fn group_of_block(&self, block: BlockNumber) -> (GroupNumber, u32) {
        let index = block.0.saturating_sub(self.first_data_block);
        (GroupNumber(index / self.blocks_per_group), index % self.blocks_per_group)
    }

    /// The places of a group's structures.
    pub fn group(&self, group: GroupNumber) -> Result<GroupPlaces, Error> {
        let places = self.groups.get(group.0 as usize);
        places.copied().ok_or_else(|| Error::corrupt(format!("there is no {group}")))
    }

    /// The place of an inode.
    ///
    /// # Errors
    /// `NotFound` when there is no such inode.
    pub fn inode_place(&self, inode: InodeNumber) -> Result<InodePlace, Error> {
        if inode.0 == 0 || inode.0 > self.inode_count {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no {inode}")));
        }
        let (group, index) = ((inode.0 - 1) / self.inodes_per_group, (inode.0 - 1) % self.inodes_per_group);
        let byte = index as usize * self.inode_bytes;
        let table = self.group(GroupNumber(group))?.inode_table;
        Ok(InodePlace {
            group: GroupNumber(group),
            index,
            block: BlockNumber(table.0 + (byte / self.block_bytes) as u32),
            offset: byte % self.block_bytes,
        })
    }

    /// Descriptors in one block.
    pub fn descriptors_per_block(&self) -> u32 {
        (self.block_bytes / DESCRIPTOR_BYTES) as u32
    }

    /// Blocks of descriptors.
    pub fn descriptor_block_count(&self) -> u32 {
        self.group_count().div_ceil(self.descriptors_per_block())
    }

    /// The block of a group's descriptor, and the descriptor's offset there.
    pub fn descriptor_place(&self, group: GroupNumber) -> (BlockNumber, usize) {
        let index = group.0 / self.descriptors_per_block();
        let offset = (group.0 % self.descriptors_per_block()) as usize * DESCRIPTOR_BYTES;
        if !self.features.has_meta_bg() || index < self.first_meta_bg {
            return (BlockNumber(self.first_data_block + 1 + index), offset);
        }
        let first = GroupNumber(index * self.descriptors_per_block());
        let skipped = u32::from(self.has_superblock(first));
        (BlockNumber(self.first_block(first).0 + skipped), offset)
    }

    /// Whether a group begins with a copy of the superblock.
    pub fn has_superblock(&self, group: GroupNumber) -> bool {
        let is_power_of = |base: u32| {
            let mut power = base;
            while power < group.0 && power <= u32::MAX / base {
                power *= base;
            }
            power == group.0
        };
        !self.features.has_sparse_super() || group.0 <= 1 || [3, 5, 7].into_iter().any(is_power_of)
    }

    /// Blocks at the beginning of a group that hold copies of the superblock and the descriptors,
    /// with room for more descriptors.
    pub fn head_blocks(&self, group: GroupNumber) -> u32 {
        if !self.has_superblock(group) && !self.features.has_meta_bg() {
            return 0;
        }
        if !self.features.has_meta_bg() {
            return 1 + self.descriptor_block_count() + self.reserved_gdt_blocks;
        }
        let in_meta = group.0 % self.descriptors_per_block();
        let has_descriptors = in_meta <= 1 || in_meta == self.descriptors_per_block() - 1;
        u32::from(self.has_superblock(group)) + u32::from(has_descriptors)
    }

    /// Whether a block holds bitmaps, inodes or descriptors of its group, so that no file can have
    /// it.
    pub fn is_structure(&self, block: BlockNumber) -> bool {
        if block.0 <= self.superblock_place().block.0 || block.0 >= self.block_count {
            return true;
        }
        let (group, index) = self.group_of_block(block);
        let Ok(places) = self.group(group) else { return true };
        let table = places.inode_table.0..places.inode_table.0 + self.inode_table_blocks();
        index < u32::from(self.has_superblock(group)) + self.descriptors_in_head(group)
            || block == places.block_bitmap
            || block == places.inode_bitmap
            || table.contains(&block.0)
    }

    fn descriptors_in_head(&self, group: GroupNumber) -> u32 {
        if self.features.has_meta_bg() || !self.has_superblock(group) { 0 } else { self.descriptor_block_count() }
    }

    /// # Errors
    /// `Corrupt` when a file cannot have this block.
    pub fn check_content(&self, block: BlockNumber, inode: InodeNumber) -> Result<(), Error> {
        if self.is_structure(block) {
            return Err(Error::corrupt(format!("{inode} claims {block}, which no file can have")));
        }
        Ok(())
    }

    /// Block numbers in a block.
    pub fn numbers_per_block(&self) -> u32 {
        (self.block_bytes / 4) as u32
    }

    /// The largest file, in bytes: the reach of three levels of block numbers, within a count of
    /// 512-byte sectors of 32 bits.
    pub fn file_bytes_max(&self) -> u64 {
        let (block, per) = (self.block_bytes as u64, u64::from(self.numbers_per_block()));
        let by_map = 12 + per + per * per + per * per * per;
        // Sectors of the content and of the indirect blocks stay below 2^32.
        let sectors = (1u64 << 32) - 1;
        let by_count = sectors / (block / 512);
        let by_count = by_count - by_count.div_ceil(per) - by_count.div_ceil(per * per) - 3;
        by_map.min(by_count) * block
    }

    /// The block of a file with its byte at `offset`, and the offset in that block.
    pub fn file_block(&self, offset: u64) -> (FileBlock, usize) {
        let block_bytes = self.block_bytes as u64;
        (FileBlock((offset / block_bytes) as u32), (offset % block_bytes) as usize)
    }

    /// The kind of the inode table's block at a place.
    pub fn table_object(&self, place: &InodePlace) -> Object {
        Object::InodeTable(place.group)
    }
}

/// The descriptors in a block.
pub fn descriptors_in(block: &Block) -> impl Iterator<Item = DescriptorRaw> + '_ {
    (0..block.len() / DESCRIPTOR_BYTES)
        .filter_map(|index| DescriptorRaw::at(block, index * DESCRIPTOR_BYTES).ok().copied())
}
