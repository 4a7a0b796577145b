//! Allocation of blocks for files, and their release.
//!
//! The search for a free block begins at its goal, then goes on behind it in the same group (eight
//! free ones in a row before single ones), then in the other groups. Counts in descriptor and
//! superblock change in the same operation.

use crate::bitmap;
use crate::blocks::{Object, Operation};
use crate::error::{Error, ErrorKind};
use crate::numbers::{BlockNumber, GroupNumber, InodeNumber};
use crate::work::Work;

/// Blocks behind the goal among which a single free one is as good as eight in a row.
const NEAR_BLOCKS: u32 = 32;

/// Allocates the nearest free block behind `goal`.
///
/// # Errors
/// `NoSpace` when there is none, or only reserved ones.
pub async fn allocate<O: Operation>(work: &mut Work<O>, goal: BlockNumber) -> Result<BlockNumber, Error> {
    check_reserve(work).await?;
    let goal = if work.layout.is_structure(goal) { BlockNumber(work.layout.first_data_block + 1) } else { goal };
    let (home, index) = work.layout.group_of_block(goal);
    let group_count = work.layout.group_count();
    for nth in 0..group_count {
        let group = work.operation.group_to_try(home, nth, group_count);
        let from = if group == home { index } else { 0 };
        if let Some(block) = allocate_in(work, group, from).await? {
            return Ok(block);
        }
    }
    Err(Error::new(ErrorKind::NoSpace, "no block of the file system is free"))
}

async fn check_reserve<O: Operation>(work: &mut Work<O>) -> Result<(), Error> {
    let superblock = work.superblock().await?;
    let reserved = if work.may_use_reserved { 0 } else { superblock.reserved_blocks_count.get() };
    if superblock.free_blocks_count.get() > reserved {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NoSpace, "no block of the file system is free, but for those that are reserved"))
}

/// Allocates a free block of this group, from `index` on if there is one.
async fn allocate_in<O: Operation>(
    work: &mut Work<O>,
    group: GroupNumber,
    index: u32,
) -> Result<Option<BlockNumber>, Error> {
    if work.descriptor(group).await?.free_blocks_count.get() == 0 {
        return Ok(None);
    }
    let number = work.layout.group(group)?.block_bitmap;
    let bits = work.operation.read(number, Object::BlockBitmap(group)).await?;
    let Some(found) = find(&bits, index, work.layout.blocks_of_group(group)) else {
        return Err(Error::corrupt(format!("{group} has fewer free blocks than its descriptor says")));
    };
    let block = BlockNumber(work.layout.first_block(group).0 + found);
    if work.layout.is_structure(block) {
        return Err(Error::corrupt(format!("the bitmap of {group} says that {block} is free, which no file can have")));
    }
    bitmap::set(work.operation.change(number, Object::BlockBitmap(group)).await?, found);
    let descriptor = work.descriptor_mut(group).await?;
    descriptor.free_blocks_count = (descriptor.free_blocks_count.get() - 1).into();
    let superblock = work.superblock_mut().await?;
    superblock.free_blocks_count = superblock.free_blocks_count.get().saturating_sub(1).into();
    Ok(Some(block))
}

/// The index of the free block to take, from `index` on if there is one.
fn find(bits: &[u8], index: u32, count: u32) -> Option<u32> {
    let near = (index + NEAR_BLOCKS).min(count);
    bitmap::first_clear(bits, index..near)
        .or_else(|| bitmap::first_clear_byte(bits, near..count))
        .or_else(|| bitmap::first_clear(bits, near..count))
        .or_else(|| bitmap::first_clear(bits, 0..index.min(count)))
}

/// Frees a block of an inode.
///
/// # Errors
/// `Corrupt` when it is free already, or cannot belong to a file.
pub async fn free<O: Operation>(work: &mut Work<O>, block: BlockNumber, inode: InodeNumber) -> Result<(), Error> {
    work.layout.check_content(block, inode)?;
    let (group, index) = work.layout.group_of_block(block);
    let number = work.layout.group(group)?.block_bitmap;
    let bits = work.operation.change(number, Object::BlockBitmap(group)).await?;
    if !bitmap::is_set(bits, index) {
        return Err(Error::corrupt(format!("{inode} has {block}, which is free")));
    }
    bitmap::clear(bits, index);
    let too_many = || Error::corrupt(format!("{group} has more free blocks than it has blocks"));
    let descriptor = work.descriptor_mut(group).await?;
    let count = descriptor.free_blocks_count.get().checked_add(1).ok_or_else(too_many)?;
    descriptor.free_blocks_count = count.into();
    let superblock = work.superblock_mut().await?;
    superblock.free_blocks_count = superblock.free_blocks_count.get().saturating_add(1).into();
    work.operation.release(block);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_block_is_taken_at_the_goal_else_where_the_file_can_grow_else_anywhere() {
        let mut bits = [0xff; 16];
        assert_eq!(find(&bits, 5, 128), None);
        bitmap::clear(&mut bits, 3);
        assert_eq!(find(&bits, 5, 128), Some(3), "before the goal, when nothing else is free");
        bitmap::clear(&mut bits, 60);
        assert_eq!(find(&bits, 5, 128), Some(60));
        bits[10] = 0;
        assert_eq!(find(&bits, 5, 128), Some(80), "eight in a row are better than one");
        bitmap::clear(&mut bits, 20);
        assert_eq!(find(&bits, 5, 128), Some(20), "unless that is near");
        assert_eq!(find(&bits, 20, 128), Some(20));
        assert_eq!(find(&bits, 81, 81), Some(3), "nothing beyond the last block of the group");
    }
}
