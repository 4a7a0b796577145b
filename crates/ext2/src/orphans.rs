//! Orphans: inodes without names that are not free yet, because they are open, or so large that
//! freeing them takes several operations.
//!
//! They form a list, from the superblock through the time of deletion of each inode, so that the
//! next opening after a crash finds them.

use crate::blocks::Operation;
use crate::error::Error;
use crate::inode::Inode;
use crate::numbers::InodeNumber;
use crate::work::Work;

/// The first inode of the list.
pub async fn first<O: Operation>(work: &mut Work<O>) -> Result<Option<InodeNumber>, Error> {
    let head = work.superblock().await?.last_orphan.get();
    Ok((head != 0).then_some(InodeNumber(head)))
}

/// Adds an inode at the head of the list. The caller stores the inode.
pub async fn add<O: Operation>(work: &mut Work<O>, inode: &mut Inode) -> Result<(), Error> {
    let superblock = work.superblock_mut().await?;
    inode.deleted = superblock.last_orphan.get();
    superblock.last_orphan = inode.number.0.into();
    Ok(())
}

/// Removes an inode from the list.
///
/// # Errors
/// `Corrupt` when it is not in the list, or the list is damaged.
pub async fn remove<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<(), Error> {
    let damaged = || Error::corrupt(format!("{} is not in the list of inodes without names", inode.number));
    let head = first(work).await?.ok_or_else(damaged)?;
    if head == inode.number {
        work.superblock_mut().await?.last_orphan = inode.deleted.into();
        return Ok(());
    }
    let mut at = head;
    for _ in 0..work.layout.inode_count {
        let mut before = work.inode_if_any(at).await?.ok_or_else(damaged)?;
        if before.deleted == inode.number.0 {
            before.deleted = inode.deleted;
            return work.store(&before).await;
        }
        if before.deleted == 0 {
            return Err(damaged());
        }
        at = InodeNumber(before.deleted);
    }
    Err(damaged())
}
