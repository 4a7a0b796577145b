//! The content of a file: its bytes from 0 to its size, holes as zeroes.

use std::ops::Range;

use crate::allocation;
use crate::blocks::{Object, Operation};
use crate::error::{Error, ErrorKind};
use crate::inode::Inode;
use crate::limits::OPERATION_BLOCKS_MAX;
use crate::mapping::{self, Place};
use crate::numbers::{BlockNumber, FileBlock};
use crate::work::Work;

/// Reads the bytes of a file at `offset`: as many as `length` and the file's end allow, and at most
/// those that one operation may hold.
pub async fn read<O: Operation>(
    work: &mut Work<O>,
    inode: &Inode,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, Error> {
    let block_bytes = work.layout.block_bytes;
    let left = inode.size.saturating_sub(offset);
    let length = left.min(length as u64).min((OPERATION_BLOCKS_MAX as usize * block_bytes) as u64) as usize;
    if length == 0 {
        return Ok(Vec::new());
    }
    let (first, skipped) = work.layout.file_block(offset);
    let last = work.layout.file_block(offset + length as u64 - 1).0;
    let numbers = numbers_of(work, inode, first.0..=last.0).await?;
    read_ahead(work, inode, first, &numbers).await?;
    let mut bytes = Vec::with_capacity(numbers.len() * block_bytes);
    for (at, number) in (first.0..=last.0).zip(numbers) {
        match number {
            None => bytes.resize(bytes.len() + block_bytes, 0),
            Some(number) => {
                let object = Object::Data(inode.number, FileBlock(at));
                bytes.extend_from_slice(&work.operation.read(number, object).await?);
            }
        }
    }
    bytes.drain(..skipped);
    bytes.truncate(length);
    Ok(bytes)
}

async fn numbers_of<O: Operation>(
    work: &mut Work<O>,
    inode: &Inode,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Vec<Option<BlockNumber>>, Error> {
    let mut numbers = Vec::new();
    let (mut at, end) = (u64::from(*range.start()), u64::from(*range.end()) + 1);
    while at < end {
        match mapping::lookup(work, inode, at).await? {
            Place::Block(number) => {
                numbers.push(Some(number));
                at += 1;
            }
            Place::Hole(hole) => {
                let next = hole.end.min(end);
                numbers.resize(numbers.len() + (next - at) as usize, None);
                at = next;
            }
        }
    }
    Ok(numbers)
}

/// Announces the blocks that will be read next.
async fn read_ahead<O: Operation>(
    work: &mut Work<O>,
    inode: &Inode,
    first: FileBlock,
    numbers: &[Option<BlockNumber>],
) -> Result<(), Error> {
    let mut at = first.0;
    for run in numbers.chunk_by(|before, next| match (before, next) {
        (Some(before), Some(next)) => before.0.checked_add(1) == Some(next.0),
        _ => false,
    }) {
        if let [Some(number), _, ..] = run {
            let object = Object::Data(inode.number, FileBlock(at));
            work.operation.read_ahead(*number, run.len() as u32, object).await?;
        }
        at += run.len() as u32;
    }
    Ok(())
}

/// Writes bytes at `offset`; the file grows if needed. The caller stores the inode, and limits the
/// length to one operation.
///
/// # Errors
/// `NoSpace`, `TooLarge`.
pub async fn write<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Error> {
    let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= work.layout.file_bytes_max());
    let end = end.ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
    if offset > inode.size {
        zero_behind_end(work, inode).await?;
    }
    let (mut position, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (at, skipped) = work.layout.file_block(position);
        let (part, after) = rest.split_at(rest.len().min(work.layout.block_bytes - skipped));
        let (number, is_new) = mapping::lookup_or_allocate(work, inode, at).await?;
        let object = Object::Data(inode.number, at);
        let is_whole = part.len() == work.layout.block_bytes;
        let block = if is_new || is_whole {
            work.operation.replace(number, object).await?
        } else {
            work.operation.change(number, object).await?
        };
        block[skipped..skipped + part.len()].copy_from_slice(part);
        (position, rest) = (position + part.len() as u64, after);
    }
    if end > inode.size {
        set_size(work, inode, end).await?;
    }
    Ok(())
}

/// Makes zero what lies behind the file's end in its last block: it will be read when the file
/// grows.
pub async fn zero_behind_end<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<(), Error> {
    let (at, used) = work.layout.file_block(inode.size);
    if used == 0 {
        return Ok(());
    }
    if let Place::Block(number) = mapping::lookup(work, inode, u64::from(at.0)).await? {
        let object = Object::Data(inode.number, at);
        let block = work.operation.read(number, object).await?;
        if block[used..].iter().any(|byte| *byte != 0) {
            work.operation.change(number, object).await?[used..].fill(0);
        }
    }
    Ok(())
}

/// Sets the size of the file. The first file of 2 GiB is noted in the superblock.
pub async fn set_size<O: Operation>(work: &mut Work<O>, inode: &mut Inode, size: u64) -> Result<(), Error> {
    if size > work.layout.file_bytes_max() {
        return Err(ErrorKind::TooLarge.into());
    }
    inode.size = size;
    let is_large = size > i32::MAX as u64;
    if is_large && work.superblock().await?.features_read_only.get() & crate::features::RO_LARGE_FILE == 0 {
        let superblock = work.superblock_mut().await?;
        let features = superblock.features_read_only.get() | crate::features::RO_LARGE_FILE;
        superblock.features_read_only = features.into();
    }
    Ok(())
}

/// Makes a range of bytes a hole; parts of blocks at its ends become zeroes. The size stays.
pub async fn punch<O: Operation>(work: &mut Work<O>, inode: &mut Inode, range: Range<u64>) -> Result<(), Error> {
    let block_bytes = work.layout.block_bytes as u64;
    let end = range.end.min(inode.size);
    if range.start >= end {
        return Ok(());
    }
    // In the last block of the file the bytes behind its end go, too.
    let whole_end = if end == inode.size { end.div_ceil(block_bytes) } else { end / block_bytes };
    let whole = range.start.div_ceil(block_bytes)..whole_end;
    if whole.start > whole.end {
        return zero_within(work, inode, range.start..end).await;
    }
    zero_within(work, inode, range.start..(whole.start * block_bytes).min(end)).await?;
    if whole.end * block_bytes < end {
        zero_within(work, inode, whole.end * block_bytes..end).await?;
    }
    mapping::free_range(work, inode, whole).await
}

/// Zeroes bytes of one block.
async fn zero_within<O: Operation>(work: &mut Work<O>, inode: &Inode, range: Range<u64>) -> Result<(), Error> {
    if range.is_empty() {
        return Ok(());
    }
    let (at, first) = work.layout.file_block(range.start);
    let last = first + (range.end - range.start) as usize;
    if let Place::Block(number) = mapping::lookup(work, inode, u64::from(at.0)).await? {
        work.operation.change(number, Object::Data(inode.number, at)).await?[first..last].fill(0);
    }
    Ok(())
}

/// Makes a file shorter, from its end, or goes a step on the way: at most `blocks_max` blocks are
/// freed. Returns whether `size` is reached. The caller stores the inode.
pub async fn shorten<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    size: u64,
    blocks_max: u32,
) -> Result<bool, Error> {
    let block_bytes = work.layout.block_bytes as u64;
    let from = size.div_ceil(block_bytes);
    let left = mapping::free_tail(work, inode, from, blocks_max).await?;
    if left > from {
        inode.size = inode.size.min(left * block_bytes);
        return Ok(false);
    }
    inode.size = size;
    zero_behind_end(work, inode).await?;
    Ok(true)
}

/// Stores the target of a symbolic link: in the inode if it is short, else in a block. The caller
/// stores the inode.
pub async fn set_link_target<O: Operation>(work: &mut Work<O>, inode: &mut Inode, target: &[u8]) -> Result<(), Error> {
    inode.size = target.len() as u64;
    if target.len() < crate::inode::POINTER_BYTES {
        inode.set_pointer_bytes(target);
        return Ok(());
    }
    if target.len() >= work.layout.block_bytes {
        return Err(Error::new(ErrorKind::NameTooLong, "the target of the symbolic link is longer than a block"));
    }
    let (number, _) = mapping::lookup_or_allocate(work, inode, FileBlock(0)).await?;
    let block = work.operation.replace(number, Object::SymbolicLink(inode.number)).await?;
    block[..target.len()].copy_from_slice(target);
    Ok(())
}

/// The target of a symbolic link.
///
/// # Errors
/// `Corrupt` when it is longer than a block.
pub async fn link_target<O: Operation>(work: &mut Work<O>, inode: &Inode) -> Result<Vec<u8>, Error> {
    if inode.is_short_link(work.layout.block_bytes) {
        return Ok(inode.pointer_bytes()[..inode.size as usize].to_vec());
    }
    let Place::Block(number) = mapping::lookup(work, inode, 0).await? else {
        return Err(Error::corrupt(format!("the target of the symbolic link, {}, is missing", inode.number)));
    };
    let block = work.operation.read(number, Object::SymbolicLink(inode.number)).await?;
    let target = usize::try_from(inode.size).ok().and_then(|size| block.get(..size));
    target.map(<[u8]>::to_vec).ok_or_else(|| Error::corrupt(format!("{} is longer than a block", inode.number)))
}

/// Frees everything that a file without names holds, or goes a step on the way. Returns whether
/// nothing is left. The caller stores the inode.
pub async fn free_all<O: Operation>(work: &mut Work<O>, inode: &mut Inode, blocks_max: u32) -> Result<bool, Error> {
    if !inode.has_blocks(work.layout.block_bytes) {
        return Ok(true);
    }
    shorten(work, inode, 0, blocks_max).await
}

/// Frees a block that an inode has besides its content.
pub async fn free_outside<O: Operation>(
    work: &mut Work<O>,
    inode: &mut Inode,
    number: BlockNumber,
) -> Result<(), Error> {
    allocation::free(work, number, inode.number).await?;
    inode.sectors = inode.sectors.saturating_sub(work.sectors_per_block());
    Ok(())
}
