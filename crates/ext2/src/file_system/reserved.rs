//! The reserved file, without a name: the boot loader's inode, which every ext2 has, and which the
//! kernel and `e2fsck` do not touch.
//!
//! A mount keeps its own data there, such as a redo area. The blocks count as used like those of
//! any file, and never move.

use super::FileSystem;
use crate::blocks::{Blocks, Object, Operation};
use crate::error::{Error, ErrorKind};
use crate::inode::{FileType, Inode};
use crate::mapping::{self, Place};
use crate::numbers::{BlockNumber, FileBlock, InodeNumber};
use crate::work::Work;
use crate::{bitmap, content};

/// The boot loader's inode (`EXT2_BOOT_LOADER_INO`).
const NUMBER: InodeNumber = InodeNumber(5);

/// The blocks of the reserved file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedFile {
    /// The block of its inode.
    pub inode_block: BlockNumber,
    /// Its content, in order.
    pub content: Vec<BlockNumber>,
    /// Indirect blocks of its content.
    pub tables: Vec<BlockNumber>,
}

impl<B: Blocks> FileSystem<B> {
    /// The reserved file, if there is one with content.
    ///
    /// # Errors
    /// `Corrupt` when it has holes, or the inode is of another type.
    pub async fn reserved_file(&self) -> Result<Option<ReservedFile>, Error> {
        let mut work = self.read().await?;
        match work.inode_if_any(NUMBER).await? {
            Some(inode) if inode.size > 0 => Ok(Some(places(&mut work, &inode).await?)),
            _ => Ok(None),
        }
    }

    /// Makes the reserved file, of `block_count` blocks; their content is not changed.
    ///
    /// # Errors
    /// `NoSpace`; `Exists` when the file system has one.
    pub async fn make_reserved_file(&self, block_count: u32) -> Result<ReservedFile, Error> {
        let mut work = self.change().await?;
        let before = work.inode_if_any(NUMBER).await?;
        if before.is_some_and(|inode| inode.size > 0 || inode.sectors > 0) {
            return Err(ErrorKind::Exists.into());
        }
        let bytes = work.inode_bytes_mut(NUMBER).await?;
        bytes.fill(0);
        let has_extra = crate::inode::set_extra_bytes(bytes, self.layout.extra_inode_bytes);
        let mut inode = Inode { permissions: 0o600, ..Inode::new(NUMBER, FileType::Regular, work.now, has_extra) };
        for at in 0..block_count {
            mapping::lookup_or_allocate(&mut work, &mut inode, FileBlock(at)).await?;
        }
        content::set_size(&mut work, &mut inode, u64::from(block_count) * self.layout.block_bytes as u64).await?;
        work.store(&inode).await?;
        let file = places(&mut work, &inode).await?;
        work.operation.end().await?;
        Ok(file)
    }

    /// Whether the bitmaps have all blocks of the reserved file in use.
    pub async fn has_all_of(&self, file: &ReservedFile) -> Result<bool, Error> {
        let mut work = self.read().await?;
        for &block in file.content.iter().chain(&file.tables) {
            let (group, index) = self.layout.group_of_block(block);
            let number = self.layout.group(group)?.block_bitmap;
            let bits = work.operation.read(number, Object::BlockBitmap(group)).await?;
            if !bitmap::is_set(&bits, index) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

async fn places<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<ReservedFile, Error> {
    let damaged = || Error::corrupt(format!("{} is no file that is kept here", inode.number));
    let block_count = inode.size / work.layout.block_bytes as u64;
    if inode.file_type != FileType::Regular || block_count > u64::from(work.layout.block_count) {
        return Err(damaged());
    }
    let (mut content, mut tables) = (Vec::new(), Vec::new());
    for at in 0..block_count {
        match mapping::lookup(work, inode, at).await? {
            Place::Block(number) => content.push(number),
            Place::Hole(_) => return Err(damaged()),
        }
        for table in mapping::tables_to(work, inode, at).await? {
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
    }
    Ok(ReservedFile { inode_block: work.layout.inode_place(inode.number)?.block, content, tables })
}
