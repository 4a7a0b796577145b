//! Allocation and release of inodes.
//!
//! A file's inode is looked for in its directory's group, so that both are near each other. Directories below the root
//! are spread over the groups, into the emptiest of them, so that each has room for its files; others stay near their
//! parent unless its group is fuller than the average.

use crate::bitmap;
use crate::blocks::{Object, Operation};
use crate::descriptor::DescriptorRaw;
use crate::error::{Error, ErrorKind};
use crate::inode::Inode;
use crate::numbers::{GroupNumber, InodeNumber};
use crate::work::Work;

/// Allocates an inode, for a directory or another type below `parent`.
///
/// # Errors
/// `NoSpace` when there is none.
pub async fn allocate<O: Operation>(
    work: &mut Work<O>,
    parent: InodeNumber,
    is_directory: bool,
) -> Result<InodeNumber, Error> {
    let home = work.layout.inode_place(parent)?.group;
    let wanted = if is_directory { group_for_directory(work, parent, home).await? } else { home };
    let group_count = work.layout.group_count();
    let mut fallback = None;
    for nth in 0..group_count {
        let group = work.operation.group_to_try(wanted, nth, group_count);
        let descriptor = work.descriptor(group).await?;
        if descriptor.free_inodes_count.get() == 0 {
            continue;
        }
        if descriptor.free_blocks_count.get() > 0 {
            return take(work, group, is_directory).await;
        }
        fallback = fallback.or(Some(group));
    }
    match fallback {
        Some(group) => take(work, group, is_directory).await,
        None => Err(Error::new(ErrorKind::NoSpace, "no inode of the file system is free")),
    }
}

/// The group of a new directory.
async fn group_for_directory<O: Operation>(
    work: &mut Work<O>,
    parent: InodeNumber,
    home: GroupNumber,
) -> Result<GroupNumber, Error> {
    let superblock = work.superblock().await?;
    let group_count = work.layout.group_count();
    let inodes_average = superblock.free_inodes_count.get() / group_count;
    let blocks_average = superblock.free_blocks_count.get() / group_count;
    let has_room = |descriptor: &DescriptorRaw| {
        descriptor.free_inodes_count.get() > 0
            && u32::from(descriptor.free_inodes_count.get()) >= inodes_average
            && u32::from(descriptor.free_blocks_count.get()) >= blocks_average
    };
    if parent != InodeNumber::ROOT && has_room(&work.descriptor(home).await?) {
        return Ok(home);
    }
    let mut best: Option<(u16, GroupNumber)> = None;
    for nth in 0..group_count {
        let group = work.operation.group_to_try(home, nth, group_count);
        let descriptor = work.descriptor(group).await?;
        let directories = descriptor.directories_count.get();
        if has_room(&descriptor) && best.is_none_or(|(fewest, _)| directories < fewest) {
            best = Some((directories, group));
        }
    }
    Ok(best.map_or(home, |(_, group)| group))
}

/// Allocates the first free inode of a group, if it has one.
pub async fn take<O: Operation>(
    work: &mut Work<O>,
    group: GroupNumber,
    is_directory: bool,
) -> Result<InodeNumber, Error> {
    let number = work.layout.group(group)?.inode_bitmap;
    let per_group = work.layout.inodes_per_group;
    let from = if group.0 == 0 { work.layout.first_inode - 1 } else { 0 };
    let bits = work.operation.read(number, Object::InodeBitmap(group)).await?;
    let Some(index) = bitmap::first_clear(&bits, from..per_group) else {
        return Err(Error::corrupt(format!("{group} has fewer free inodes than its descriptor says")));
    };
    bitmap::set(work.operation.change(number, Object::InodeBitmap(group)).await?, index);
    let descriptor = work.descriptor_mut(group).await?;
    descriptor.free_inodes_count = (descriptor.free_inodes_count.get() - 1).into();
    if is_directory {
        descriptor.directories_count = descriptor.directories_count.get().saturating_add(1).into();
    }
    let superblock = work.superblock_mut().await?;
    superblock.free_inodes_count = superblock.free_inodes_count.get().saturating_sub(1).into();
    Ok(InodeNumber(group.0 * per_group + index + 1))
}

/// Frees an inode whose blocks are free already. Its bytes keep the time of deletion.
///
/// # Errors
/// `Corrupt` when it is free already.
pub async fn free<O: Operation>(work: &mut Work<O>, mut inode: Inode) -> Result<(), Error> {
    let place = work.layout.inode_place(inode.number)?;
    if inode.number.0 < work.layout.first_inode {
        return Err(Error::corrupt(format!("{} is reserved, and a name led to it", inode.number)));
    }
    let number = work.layout.group(place.group)?.inode_bitmap;
    let bits = work.operation.change(number, Object::InodeBitmap(place.group)).await?;
    if !bitmap::is_set(bits, place.index) {
        return Err(Error::corrupt(format!("{} is free already", inode.number)));
    }
    bitmap::clear(bits, place.index);
    let is_directory = inode.file_type == crate::inode::FileType::Directory;
    let descriptor = work.descriptor_mut(place.group).await?;
    descriptor.free_inodes_count = descriptor.free_inodes_count.get().saturating_add(1).into();
    if is_directory {
        descriptor.directories_count = descriptor.directories_count.get().saturating_sub(1).into();
    }
    let superblock = work.superblock_mut().await?;
    superblock.free_inodes_count = superblock.free_inodes_count.get().saturating_add(1).into();
    inode.links_count = 0;
    inode.size = 0;
    // Zero would mean that it was never deleted.
    inode.deleted = work.now.to_low().max(1);
    work.store(&inode).await
}
