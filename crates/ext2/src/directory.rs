//! A directory: names and their inodes, in blocks, with or without an index.

use std::ops::ControlFlow;

use crate::blocks::{Block, Object, Operation};
use crate::entry::{self, NewEntry};
use crate::error::{Error, ErrorKind};
use crate::inode::{FLAG_INDEX, FileType, Inode};
use crate::mapping::{self, Place};
use crate::numbers::{BlockNumber, FileBlock, InodeNumber};
use crate::tree;
use crate::work::Work;

/// The place of a name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub inode: InodeNumber,
    pub block: BlockNumber,
    /// Offset of its record in the block.
    pub offset: usize,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The name: any bytes but `/` and zero, if nothing is damaged.
    pub name: &'a [u8],
    /// Its inode.
    pub inode: InodeNumber,
    /// The type of the inode, where directories hold types.
    pub file_type: Option<FileType>,
}

/// Looks a name up.
pub async fn find<O: Operation>(work: &mut Work<O>, directory: &Inode, name: &[u8]) -> Result<Option<Found>, Error> {
    let count = block_count(work, directory)?;
    if let Some(mut probe) = tree::probe(work, directory, name).await? {
        loop {
            let Some((number, block)) = block_at(work, directory, probe.leaf()).await? else { return Ok(None) };
            if let Some(found) = found_in(&block, number, name)? {
                return Ok(Some(found));
            }
            if !tree::advance(work, directory, &mut probe).await? {
                return Ok(None);
            }
        }
    }
    for at in 0..count {
        if let Some((number, block)) = block_at(work, directory, FileBlock(at)).await?
            && let Some(found) = found_in(&block, number, name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn found_in(block: &Block, number: BlockNumber, name: &[u8]) -> Result<Option<Found>, Error> {
    let record = entry::find(block, name)?;
    Ok(record.and_then(|record| Some(Found { inode: record.inode?, block: number, offset: record.offset })))
}

/// Passes all entries to `take`, until it breaks off.
pub async fn visit<O: Operation, B>(
    work: &mut Work<O>,
    directory: &Inode,
    mut take: impl FnMut(DirectoryEntry<'_>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, Error> {
    for at in 0..block_count(work, directory)? {
        let Some((_, block)) = block_at(work, directory, FileBlock(at)).await? else { continue };
        for record in entry::records(&block) {
            let record = record?;
            let Some(inode) = record.inode else { continue };
            let taken = take(DirectoryEntry { name: record.name, inode, file_type: record.file_type });
            if taken.is_break() {
                return Ok(taken);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether it has only "." and "..".
pub async fn is_empty<O: Operation>(work: &mut Work<O>, directory: &Inode) -> Result<bool, Error> {
    let is_own = |entry: DirectoryEntry<'_>| match entry.name {
        b"." | b".." => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    Ok(visit(work, directory, is_own).await?.is_continue())
}

/// Adds a name that the directory does not have. The caller stores the directory.
pub async fn insert<O: Operation>(
    work: &mut Work<O>,
    directory: &mut Inode,
    name: &[u8],
    inode: InodeNumber,
    file_type: FileType,
) -> Result<(), Error> {
    let entry = NewEntry { name, inode, type_byte: type_byte(work, file_type) };
    if tree::insert(work, directory, &entry).await? {
        return Ok(());
    }
    // The index's place is overwritten from here on.
    directory.flags &= !FLAG_INDEX;
    let count = block_count(work, directory)?;
    for at in 0..count {
        let Some((number, block)) = block_at(work, directory, FileBlock(at)).await? else { continue };
        if let Some(room) = entry::room(&block, name.len())? {
            let block = work.operation.change(number, Object::Directory(directory.number)).await?;
            entry::insert(block, room, &entry);
            return Ok(());
        }
    }
    if count == 1 && tree::make(work, directory).await? {
        return tree::insert(work, directory, &entry).await?.then_some(()).ok_or_else(|| ErrorKind::NoSpace.into());
    }
    let (_, block) = tree::append_block(work, directory).await?;
    entry::fill(work.operation.change(block, Object::Directory(directory.number)).await?, &[entry]);
    Ok(())
}

/// The byte of a file type in entries.
pub fn type_byte<O>(work: &Work<O>, file_type: FileType) -> u8 {
    if work.layout.features.has_filetype() { file_type.entry_byte() } else { 0 }
}

/// Removes a name.
pub async fn remove<O: Operation>(work: &mut Work<O>, directory: &Inode, found: &Found) -> Result<(), Error> {
    let block = work.operation.change(found.block, Object::Directory(directory.number)).await?;
    entry::remove(block, found.offset)
}

/// Makes a name lead to another inode.
pub async fn redirect<O: Operation>(
    work: &mut Work<O>,
    directory: &Inode,
    found: &Found,
    inode: InodeNumber,
    file_type: FileType,
) -> Result<(), Error> {
    let byte = type_byte(work, file_type);
    let block = work.operation.change(found.block, Object::Directory(directory.number)).await?;
    entry::redirect(block, found.offset, inode, byte);
    Ok(())
}

/// Makes the first block of a new directory. The caller stores the directory.
pub async fn begin<O: Operation>(work: &mut Work<O>, directory: &mut Inode, parent: InodeNumber) -> Result<(), Error> {
    let type_byte = type_byte(work, FileType::Directory);
    let (_, number) = tree::append_block(work, directory).await?;
    let block = work.operation.change(number, Object::Directory(directory.number)).await?;
    let own = NewEntry { name: b".", inode: directory.number, type_byte };
    entry::fill(block, &[own, NewEntry { name: b"..", inode: parent, type_byte }]);
    Ok(())
}

/// The entry "..".
///
/// # Errors
/// `Corrupt` when it is missing.
pub async fn parent<O: Operation>(work: &mut Work<O>, directory: &Inode) -> Result<Found, Error> {
    let first = block_at(work, directory, FileBlock(0)).await?;
    let found = match first {
        Some((number, block)) => found_in(&block, number, b"..")?,
        None => None,
    };
    found.ok_or_else(|| Error::corrupt(format!("the directory {} has no \"..\"", directory.number)))
}

/// Blocks of a directory.
///
/// # Errors
/// `NotDirectory`; `Corrupt` when its size is impossible.
fn block_count<O>(work: &Work<O>, directory: &Inode) -> Result<u32, Error> {
    if directory.file_type != FileType::Directory {
        return Err(Error::new(ErrorKind::NotDirectory, format!("{} is not a directory", directory.number)));
    }
    tree::block_count(work, directory)
}

async fn block_at<O: Operation>(
    work: &mut Work<O>,
    directory: &Inode,
    at: FileBlock,
) -> Result<Option<(BlockNumber, Block)>, Error> {
    match mapping::lookup(work, directory, u64::from(at.0)).await? {
        Place::Hole(_) => Ok(None),
        Place::Block(number) => {
            Ok(Some((number, work.operation.read(number, Object::Directory(directory.number)).await?)))
        }
    }
}
