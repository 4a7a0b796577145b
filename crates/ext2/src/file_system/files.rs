//! Open files and their content: reading, writing, changes of size.

use std::ops::Range;

use super::FileSystem;
use crate::blocks::{Blocks, Operation};
use crate::error::{Error, ErrorKind};
use crate::inode::{FileType, Inode};
use crate::mapping::{self, Place};
use crate::numbers::InodeNumber;
use crate::{content, removal};

impl<B: Blocks> FileSystem<B> {
    /// Opens an inode: if it loses its names it stays until its last user closes it.
    ///
    /// # Errors
    /// `NotFound`
    pub async fn open_file(&self, inode: InodeNumber) -> Result<(), Error> {
        self.blocks.open(inode).await?;
        let found = match self.read().await {
            Ok(mut work) => work.inode(inode).await.map(|_| ()),
            Err(error) => Err(error),
        };
        if found.is_err() {
            self.blocks.close(inode).await?;
        }
        found
    }

    /// Ends one [`open_file`](Self::open_file). With the last one an inode without names is freed.
    pub async fn close_file(&self, inode: InodeNumber) -> Result<(), Error> {
        if self.end_use(inode).await? { self.reclaim(inode).await } else { Ok(()) }
    }

    /// Likewise, but frees nothing: returns whether that is left to be done, by
    /// [`free_unused`](Self::free_unused). Until then the inode is one that a crash left.
    pub async fn end_use(&self, inode: InodeNumber) -> Result<bool, Error> {
        let is_last = self.blocks.close(inode).await?;
        Ok(is_last && !self.options.is_read_only && self.read().await?.inode(inode).await?.links_count == 0)
    }

    /// Frees an inode that has no name and no user.
    ///
    /// # Errors
    /// `NotFound` when it is free already.
    pub async fn free_unused(&self, inode: InodeNumber) -> Result<(), Error> {
        let mut work = self.read().await?;
        let is_unused = work.inode(inode).await?.links_count == 0 && !work.operation.is_open(inode).await?;
        drop(work);
        if is_unused { self.reclaim(inode).await } else { Ok(()) }
    }

    /// Reads bytes of a file from `offset` on: fewer than `length` at its end, or when one
    /// operation may not hold more.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Invalid` for an inode without content.
    pub async fn read_file(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut work = self.read().await?;
        let inode = regular(work.inode(inode).await?)?;
        content::read(&mut work, &inode, offset, length).await
    }

    /// Writes bytes at `offset`: all, or up to an error. Holes in the range are filled; a gap
    /// behind the end of the file stays a hole.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NoSpace`, `TooLarge`
    pub async fn write_file(&self, inode: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let part_max = self.blocks.operation_blocks_max() as usize * self.layout.block_bytes;
        let (mut position, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            // Operations begin at blocks, so that no block is written by two.
            let aligned_max = part_max - (position % self.layout.block_bytes as u64) as usize;
            let (part, after) = rest.split_at(rest.len().min(aligned_max));
            let mut work = self.change().await?;
            let mut inode = regular(work.inode(inode).await?)?;
            content::write(&mut work, &mut inode, position, part).await?;
            (inode.modified, inode.changed) = (work.now, work.now);
            work.store(&inode).await?;
            work.operation.end().await?;
            (position, rest) = (position.saturating_add(part.len() as u64), after);
        }
        Ok(())
    }

    /// Makes a file shorter or longer; the added part is a hole.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `TooLarge`
    pub async fn set_size(&self, inode: InodeNumber, size_bytes: u64) -> Result<(), Error> {
        loop {
            let mut work = self.change().await?;
            let mut inode = regular(work.inode(inode).await?)?;
            let (mut is_done, blocks_max) = (true, work.blocks_max);
            if size_bytes < inode.size {
                is_done = content::shorten(&mut work, &mut inode, size_bytes, blocks_max).await?;
            } else {
                content::zero_behind_end(&mut work, &inode).await?;
                content::set_size(&mut work, &mut inode, size_bytes).await?;
            }
            (inode.modified, inode.changed) = (work.now, work.now);
            work.store(&inode).await?;
            work.operation.end().await?;
            if is_done {
                return Ok(());
            }
        }
    }

    /// Makes a range of a file a hole, up to the end of the file.
    pub async fn punch_hole(&self, inode: InodeNumber, range: Range<u64>) -> Result<(), Error> {
        let step = u64::from(self.blocks.operation_blocks_max()) * self.layout.block_bytes as u64;
        let mut start = range.start;
        loop {
            let mut work = self.change().await?;
            let mut inode = regular(work.inode(inode).await?)?;
            let end = range.end.min(inode.size);
            if start >= end {
                return Ok(());
            }
            let next = self.next_data(&mut work, &inode, start).await?.unwrap_or(end);
            let part = next..(next / step + 1).saturating_mul(step).min(end);
            content::punch(&mut work, &mut inode, part.clone()).await?;
            (inode.modified, inode.changed) = (work.now, work.now);
            work.store(&inode).await?;
            work.operation.end().await?;
            start = part.end.max(next);
        }
    }

    /// The start of the next hole, or of the next content, from `offset` on; `None` if the file has
    /// none there. The end of a file counts as a hole.
    pub async fn seek(&self, inode: InodeNumber, offset: u64, is_hole_wanted: bool) -> Result<Option<u64>, Error> {
        let mut work = self.read().await?;
        let inode = regular(work.inode(inode).await?)?;
        if offset >= inode.size {
            return Ok(None);
        }
        if !is_hole_wanted {
            return self.next_data(&mut work, &inode, offset).await;
        }
        let block_bytes = self.layout.block_bytes as u64;
        let first = offset / block_bytes;
        // No file has more blocks than the file system, unless its block numbers repeat.
        for at in first..=first + u64::from(self.layout.block_count) {
            if at * block_bytes >= inode.size {
                return Ok(Some(inode.size));
            }
            if let Place::Hole(_) = mapping::lookup(&mut work, &inode, at).await? {
                return Ok(Some((at * block_bytes).max(offset)));
            }
        }
        Err(Error::corrupt(format!("{} has more blocks than the file system", inode.number)))
    }

    async fn next_data(
        &self,
        work: &mut crate::work::Work<B::Operation>,
        inode: &Inode,
        offset: u64,
    ) -> Result<Option<u64>, Error> {
        let block_bytes = self.layout.block_bytes as u64;
        let mut at = offset / block_bytes;
        while at * block_bytes < inode.size {
            match mapping::lookup(work, inode, at).await? {
                Place::Block(_) => return Ok(Some((at * block_bytes).max(offset))),
                Place::Hole(hole) => at = hole.end,
            }
        }
        Ok(None)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other inodes.
    pub async fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>, Error> {
        let mut work = self.read().await?;
        let inode = work.inode(inode).await?;
        if inode.file_type != FileType::SymbolicLink {
            return Err(ErrorKind::Invalid.into());
        }
        content::link_target(&mut work, &inode).await
    }

    /// Ends the operation that removed a name, and frees the inode if no name or user is left.
    pub(super) async fn end_of_name(
        &self,
        mut work: crate::work::Work<B::Operation>,
        inode: Inode,
    ) -> Result<(), Error> {
        let number = inode.number;
        let must_go_on = removal::unlink(&mut work, inode).await?;
        work.operation.end().await?;
        if must_go_on { self.reclaim(number).await } else { Ok(()) }
    }
}

fn regular(inode: Inode) -> Result<Inode, Error> {
    match inode.file_type {
        FileType::Regular => Ok(inode),
        FileType::Directory => Err(ErrorKind::IsDirectory.into()),
        _ => Err(ErrorKind::Invalid.into()),
    }
}
