//! A file system, with the requests of a mount as methods.
//!
//! Every method is one operation ([`crate::blocks`]): complete, or without effect. Those that
//! change more than one operation may hold (writing and shortening large files) are several; after
//! each of them `e2fsck` finds nothing wrong.
//!
//! Access control is the caller's: permissions are stored here, and not checked.

mod files;
mod names;
mod nodes;
mod reserved;

pub use names::{NewNode, Owner, RenameMode};
pub use nodes::MetadataChange;
pub use reserved::ReservedFile;

use std::sync::Arc;

use crate::blocks::{Access, Blocks, Object, Operation};
use crate::descriptor::DescriptorRaw;
use crate::error::{Error, ErrorKind};
use crate::inode::{FileType, Inode};
use crate::layout::{Layout, descriptors_in};
use crate::limits::NAME_BYTES_MAX;
use crate::numbers::InodeNumber;
use crate::removal;
use crate::superblock::{SuperblockRaw, place};
use crate::time::Timestamp;
use crate::work::Work;
use crate::{numbers::GroupNumber, orphans};

/// The present time: this crate has no clock.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options of opening.
#[derive(Clone)]
pub struct OpenOptions {
    /// Refuses changes.
    pub is_read_only: bool,
    /// Whether it may use blocks that are reserved for the super-user.
    pub may_use_reserved: bool,
    /// The present time.
    pub wall_clock: WallClock,
}

/// An ext2 file system.
pub struct FileSystem<B> {
    blocks: B,
    layout: Arc<Layout>,
    options: OpenOptions,
}

/// The metadata of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its number.
    pub inode: InodeNumber,
    /// Its type.
    pub file_type: FileType,
    /// The twelve bits of permissions.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
    /// Bytes of its content; of a symbolic link, of its target.
    pub size_bytes: u64,
    /// 512-byte sectors that it takes.
    pub sectors: u32,
    /// Names that it has.
    pub links_count: u16,
    /// When it was read last, if callers note that.
    pub accessed: Timestamp,
    /// When anything of it was changed last.
    pub changed: Timestamp,
    /// When its content was changed last.
    pub modified: Timestamp,
    /// When it was created, where inodes have room for that.
    pub created: Option<Timestamp>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Distinguishes successive files with the same inode number.
    pub generation: u32,
}

/// The use of a file system's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks, without those of the file system's own structure.
    pub block_count: u32,
    /// Free blocks.
    pub free_blocks: u32,
    /// Free blocks without those that are reserved.
    pub available_blocks: u32,
    /// Inodes.
    pub inode_count: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Most bytes of a name.
    pub name_bytes_max: usize,
}

impl<B: Blocks> FileSystem<B> {
    /// Opens a file system. To be changed it has to be clean; inodes that a crash left without a
    /// name are freed then.
    ///
    /// # Errors
    /// `Corrupt` when the device has none or it is damaged, `Unsupported` and `ReadOnly` with the
    /// names of features, `NotClean`.
    pub async fn open(blocks: B, options: OpenOptions) -> Result<Self, Error> {
        let mut operation = blocks.begin(Access::Read).await?;
        let number = place(blocks.block_bytes()).block;
        let block = operation.read(number, Object::Superblock).await?;
        let raw = SuperblockRaw::in_block(&block)?;
        let mut layout = Layout::new(raw, blocks.block_count())?;
        if layout.block_bytes != blocks.block_bytes() {
            return Err(Error::corrupt("the size of blocks changed while the file system was opened"));
        }
        if !options.is_read_only {
            check_changeable(&layout, blocks.is_read_only())?;
            if !blocks.is_recovered() {
                check_clean(raw)?;
            }
        }
        let descriptors = read_descriptors(&mut operation, &layout).await?;
        layout.set_groups(&descriptors)?;
        drop(operation);
        let file_system = Self { blocks, layout: Arc::new(layout), options };
        file_system.check_root().await?;
        if !file_system.options.is_read_only {
            file_system.reclaim_unused().await?;
        }
        Ok(file_system)
    }

    /// Frees inodes without names that no host has open: those of crashes, unless another host may
    /// have opened them. Returns whether none is left.
    pub async fn reclaim_unused(&self) -> Result<bool, Error> {
        if self.blocks.has_other_hosts().await? {
            return Ok(orphans::first(&mut self.read().await?).await?.is_none());
        }
        self.reclaim_all().await?;
        Ok(true)
    }

    async fn check_root(&self) -> Result<(), Error> {
        let root = self.read().await?.named_inode(InodeNumber::ROOT).await?;
        if root.file_type != FileType::Directory {
            return Err(Error::corrupt("the root of the file system is no directory"));
        }
        Ok(())
    }

    /// Frees all inodes without names: their users are gone.
    async fn reclaim_all(&self) -> Result<(), Error> {
        // Each leaves the list first, so this ends even if the list is circular.
        for _ in 0..self.layout.inode_count {
            let first = orphans::first(&mut self.read().await?).await?;
            match first {
                None => return Ok(()),
                Some(number) => self.reclaim(number).await?,
            }
        }
        Ok(())
    }

    /// Frees an inode without a name, in as many operations as that takes.
    async fn reclaim(&self, number: InodeNumber) -> Result<(), Error> {
        loop {
            let mut work = self.change().await?;
            let is_last = removal::reclaim_step(&mut work, number).await?;
            work.operation.end().await?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Keeps other hosts from changing anything as long as the result lives, and for a request that
    /// changes something also from reading.
    pub async fn hold(&self, access: Access) -> Result<B::Hold, Error> {
        self.blocks.hold(access).await
    }

    /// Makes all ended operations durable.
    pub async fn commit(&self) -> Result<(), Error> {
        self.blocks.commit().await
    }

    /// Checks that its features allow changes, clean or not.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub fn check_changeable(&self) -> Result<(), Error> {
        check_changeable(&self.layout, self.blocks.is_read_only())
    }

    /// The blocks below it.
    pub fn blocks(&self) -> &B {
        &self.blocks
    }

    /// The use of its space.
    pub async fn statistics(&self) -> Result<Statistics, Error> {
        let superblock = self.read().await?.superblock().await?;
        let layout = &self.layout;
        let own = |group| layout.head_blocks(group) + 2 + layout.inode_table_blocks();
        let overhead: u64 = (0..layout.group_count()).map(|group| u64::from(own(GroupNumber(group)))).sum();
        let overhead = overhead.min(u64::from(layout.block_count)) as u32;
        let free_blocks = superblock.free_blocks_count.get();
        Ok(Statistics {
            block_bytes: layout.block_bytes,
            block_count: layout.block_count.saturating_sub(overhead).saturating_sub(layout.first_data_block),
            free_blocks,
            available_blocks: free_blocks.saturating_sub(superblock.reserved_blocks_count.get()),
            inode_count: layout.inode_count,
            free_inodes: superblock.free_inodes_count.get(),
            name_bytes_max: NAME_BYTES_MAX,
        })
    }

    async fn read(&self) -> Result<Work<B::Operation>, Error> {
        let operation = self.blocks.begin(Access::Read).await?;
        Ok(self.work(operation))
    }

    async fn change(&self) -> Result<Work<B::Operation>, Error> {
        if self.options.is_read_only {
            return Err(ErrorKind::ReadOnly.into());
        }
        let operation = self.blocks.begin(Access::Change).await?;
        Ok(self.work(operation))
    }

    fn work(&self, operation: B::Operation) -> Work<B::Operation> {
        Work {
            operation,
            layout: Arc::clone(&self.layout),
            now: (self.options.wall_clock)(),
            blocks_max: self.blocks.operation_blocks_max(),
            may_use_reserved: self.options.may_use_reserved,
        }
    }
}

fn check_changeable(layout: &Layout, is_device_read_only: bool) -> Result<(), Error> {
    layout.features.check_changeable()?;
    if is_device_read_only {
        return Err(Error::new(ErrorKind::ReadOnly, "the device is read-only"));
    }
    if layout.revision == 0 {
        return Err(Error::new(ErrorKind::ReadOnly, "a file system of revision 0 can only be read"));
    }
    Ok(())
}

fn check_clean(raw: &SuperblockRaw) -> Result<(), Error> {
    if !raw.is_clean() {
        return Err(Error::new(ErrorKind::NotClean, "the file system was not unmounted cleanly: run e2fsck first"));
    }
    Ok(())
}

async fn read_descriptors<O: Operation>(operation: &mut O, layout: &Layout) -> Result<Vec<DescriptorRaw>, Error> {
    let per_block = layout.descriptors_per_block();
    let mut descriptors = Vec::new();
    for index in 0..layout.descriptor_block_count() {
        let (number, _) = layout.descriptor_place(GroupNumber(index * per_block));
        let block = operation.read(number, Object::GroupDescriptors).await?;
        descriptors.extend(descriptors_in(&block));
    }
    descriptors.truncate(layout.group_count() as usize);
    Ok(descriptors)
}

fn metadata(inode: &Inode) -> Metadata {
    let is_device = matches!(inode.file_type, FileType::CharacterDevice | FileType::BlockDevice);
    Metadata {
        inode: inode.number,
        file_type: inode.file_type,
        permissions: inode.permissions,
        uid: inode.uid,
        gid: inode.gid,
        size_bytes: inode.size,
        sectors: inode.sectors,
        links_count: inode.links_count,
        accessed: inode.accessed,
        changed: inode.changed,
        modified: inode.modified,
        created: inode.created,
        device: is_device.then(|| crate::device_number::parse(inode.blocks[0], inode.blocks[1])),
        generation: inode.generation,
    }
}
