//! Removal of a name: the fate of its inode.

use crate::blocks::Operation;
use crate::error::Error;
use crate::inode::{FileType, Inode};
use crate::numbers::InodeNumber;
use crate::work::Work;
use crate::{attributes, content, inodes, orphans};

/// Removes one link, or all of a directory, and stores the inode. Without links it is freed, unless
/// it is open or too large for this operation: then it becomes an orphan. Returns whether the
/// caller has to go on freeing it ([`reclaim_step`]).
pub async fn unlink<O: Operation>(work: &mut Work<O>, mut inode: Inode) -> Result<bool, Error> {
    let is_directory = inode.file_type == FileType::Directory;
    let links = if is_directory { Some(0) } else { inode.links_count.checked_sub(1) };
    inode.links_count = links.ok_or_else(|| Error::corrupt(format!("{} has more names than links", inode.number)))?;
    inode.changed = work.now;
    if inode.links_count > 0 {
        work.store(&inode).await?;
        return Ok(false);
    }
    if work.operation.is_open(inode.number).await? {
        orphans::add(work, &mut inode).await?;
        work.store(&inode).await?;
        return Ok(false);
    }
    let blocks_max = work.blocks_max;
    if content::free_all(work, &mut inode, blocks_max).await? {
        attributes::release(work, &mut inode).await?;
        inodes::free(work, inode).await?;
        return Ok(false);
    }
    orphans::add(work, &mut inode).await?;
    work.store(&inode).await?;
    Ok(true)
}

/// Goes a step towards freeing an orphan. Returns whether it was the last step.
pub async fn reclaim_step<O: Operation>(work: &mut Work<O>, number: InodeNumber) -> Result<bool, Error> {
    let Some(mut inode) = work.inode_if_any(number).await? else {
        return Err(Error::corrupt(format!("the list of inodes without names leads to {number}, which is none")));
    };
    if inode.links_count > 0 {
        // The kernel lists files that it is about to shorten, too. Their inodes themselves say how
        // far that got.
        orphans::remove(work, &inode).await?;
        inode.deleted = 0;
        work.store(&inode).await?;
        return Ok(true);
    }
    let blocks_max = work.blocks_max;
    if !content::free_all(work, &mut inode, blocks_max).await? {
        work.store(&inode).await?;
        return Ok(false);
    }
    attributes::release(work, &mut inode).await?;
    orphans::remove(work, &inode).await?;
    inodes::free(work, inode).await?;
    Ok(true)
}
