//! Inodes without their content: owner, permissions, times, attributes.

use super::{FileSystem, Metadata, metadata};
use crate::attributes::{self, SetMode};
use crate::blocks::{Blocks, Operation};
use crate::error::Error;
use crate::numbers::InodeNumber;
use crate::time::Timestamp;

/// Changes of an inode's metadata; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataChange {
    /// The twelve bits of permissions.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group of the owner.
    pub gid: Option<u32>,
    /// When it was read last.
    pub accessed: Option<Timestamp>,
    /// When its content changed last.
    pub modified: Option<Timestamp>,
}

impl<B: Blocks> FileSystem<B> {
    /// The metadata of an inode.
    ///
    /// # Errors
    /// `NotFound`
    pub async fn metadata(&self, inode: InodeNumber) -> Result<Metadata, Error> {
        Ok(metadata(&self.read().await?.inode(inode).await?))
    }

    /// Changes the metadata of an inode.
    ///
    /// # Errors
    /// `NotFound`
    pub async fn set_metadata(&self, inode: InodeNumber, change: &MetadataChange) -> Result<Metadata, Error> {
        let mut work = self.change().await?;
        let mut inode = work.inode(inode).await?;
        inode.permissions = change.permissions.map_or(inode.permissions, |permissions| permissions & 0o7777);
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.accessed = change.accessed.unwrap_or(inode.accessed);
        inode.modified = change.modified.unwrap_or(inode.modified);
        inode.changed = work.now;
        work.store(&inode).await?;
        work.operation.end().await?;
        Ok(metadata(&inode))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NotFound`, `NoAttribute`, `Unsupported` for kinds other than `user.`, `trusted.` and
    /// `security.`.
    pub async fn attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Error> {
        let mut work = self.read().await?;
        let inode = work.inode(inode).await?;
        attributes::get(&mut work, &inode, name).await
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// `NotFound`
    pub async fn attribute_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>, Error> {
        let mut work = self.read().await?;
        let inode = work.inode(inode).await?;
        attributes::list(&mut work, &inode).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `NotFound`, `Exists` and `NoAttribute` according to the mode, `NoSpace`, `Unsupported`
    pub async fn set_attribute(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<(), Error> {
        let mut work = self.change().await?;
        let mut inode = work.inode(inode).await?;
        attributes::set(&mut work, &mut inode, name, value, mode).await?;
        inode.changed = work.now;
        work.store(&inode).await?;
        work.operation.end().await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NotFound`, `NoAttribute`, `Unsupported`
    pub async fn remove_attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<(), Error> {
        let mut work = self.change().await?;
        let mut inode = work.inode(inode).await?;
        attributes::remove(&mut work, &mut inode, name).await?;
        inode.changed = work.now;
        work.store(&inode).await?;
        work.operation.end().await
    }
}
