//! The context of the file system's functions: an operation, the layout, and the time.

use std::sync::Arc;

use crate::bitmap;
use crate::blocks::{Object, Operation};
use crate::descriptor::DescriptorRaw;
use crate::error::{Error, ErrorKind};
use crate::inode::Inode;
use crate::layout::Layout;
use crate::numbers::{GroupNumber, InodeNumber};
use crate::superblock::SuperblockRaw;
use crate::time::Timestamp;

/// An operation under way.
pub struct Work<O> {
    pub operation: O,
    pub layout: Arc<Layout>,
    /// When it began.
    pub now: Timestamp,
    /// Most blocks of content that it may write or free.
    pub blocks_max: u32,
    /// Whether it may allocate reserved blocks.
    pub may_use_reserved: bool,
}

impl<O: Operation> Work<O> {
    /// An inode, as stored; `None` when there is none of this number.
    pub async fn inode_if_any(&mut self, number: InodeNumber) -> Result<Option<Inode>, Error> {
        let place = self.layout.inode_place(number)?;
        let block = self.operation.read(place.block, self.layout.table_object(&place)).await?;
        let bytes = block.get(place.offset..place.offset + self.layout.inode_bytes);
        let inode =
            Inode::parse(number, bytes.ok_or_else(|| Error::corrupt(format!("{number} is outside its block")))?)?;
        // Blocks of files are counted in 32 bits.
        let bytes_max = u64::from(u32::MAX) * self.layout.block_bytes as u64;
        if let Some(inode) = inode.as_ref().filter(|inode| inode.size > bytes_max) {
            return Err(Error::corrupt(format!("{number} has an impossible size of {} bytes", inode.size)));
        }
        Ok(inode)
    }

    /// An inode in use, also one without a name that is still open.
    ///
    /// # Errors
    /// `NotFound` when it is free.
    pub async fn inode(&mut self, number: InodeNumber) -> Result<Inode, Error> {
        let not_found = || Error::new(ErrorKind::NotFound, format!("{number} is not in use"));
        let inode = self.inode_if_any(number).await?.ok_or_else(not_found)?;
        if inode.links_count == 0 && !self.is_allocated(number).await? {
            return Err(not_found());
        }
        Ok(inode)
    }

    async fn is_allocated(&mut self, number: InodeNumber) -> Result<bool, Error> {
        let place = self.layout.inode_place(number)?;
        let bitmap = self.layout.group(place.group)?.inode_bitmap;
        let bits = self.operation.read(bitmap, Object::InodeBitmap(place.group)).await?;
        Ok(bitmap::is_set(&bits, place.index))
    }

    /// An inode that a directory names.
    ///
    /// # Errors
    /// `Corrupt` when it is free: a name must lead to an inode in use.
    pub async fn named_inode(&mut self, number: InodeNumber) -> Result<Inode, Error> {
        if number.0 == 0 || number.0 > self.layout.inode_count {
            return Err(Error::corrupt(format!("a name leads to {number}, which does not exist")));
        }
        let inode = self.inode_if_any(number).await?.filter(|inode| inode.links_count > 0);
        inode.ok_or_else(|| Error::corrupt(format!("a name leads to {number}, which is not in use")))
    }

    /// Stores an inode.
    pub async fn store(&mut self, inode: &Inode) -> Result<(), Error> {
        inode.emit(self.inode_bytes_mut(inode.number).await?)
    }

    /// The bytes of an inode, to be changed.
    pub async fn inode_bytes_mut(&mut self, number: InodeNumber) -> Result<&mut [u8], Error> {
        let place = self.layout.inode_place(number)?;
        let length = self.layout.inode_bytes;
        let block = self.operation.change(place.block, self.layout.table_object(&place)).await?;
        let bytes = block.get_mut(place.offset..place.offset + length);
        bytes.ok_or_else(|| Error::corrupt(format!("{number} is outside its block")))
    }

    /// A copy of the superblock as it is now.
    pub async fn superblock(&mut self) -> Result<SuperblockRaw, Error> {
        let place = self.layout.superblock_place();
        let block = self.operation.read(place.block, Object::Superblock).await?;
        SuperblockRaw::in_block(&block).cloned()
    }

    /// The superblock, to be changed.
    pub async fn superblock_mut(&mut self) -> Result<&mut SuperblockRaw, Error> {
        let place = self.layout.superblock_place();
        SuperblockRaw::in_block_mut(self.operation.change(place.block, Object::Superblock).await?)
    }

    /// A copy of the descriptor of a group as it is now.
    pub async fn descriptor(&mut self, group: GroupNumber) -> Result<DescriptorRaw, Error> {
        let (block, offset) = self.layout.descriptor_place(group);
        let block = self.operation.read(block, Object::GroupDescriptors).await?;
        DescriptorRaw::at(&block, offset).copied()
    }

    /// The descriptor of a group, to be changed.
    pub async fn descriptor_mut(&mut self, group: GroupNumber) -> Result<&mut DescriptorRaw, Error> {
        let (block, offset) = self.layout.descriptor_place(group);
        DescriptorRaw::at_mut(self.operation.change(block, Object::GroupDescriptors).await?, offset)
    }

    /// 512-byte sectors of a block.
    pub fn sectors_per_block(&self) -> u32 {
        (self.layout.block_bytes / 512) as u32
    }
}
