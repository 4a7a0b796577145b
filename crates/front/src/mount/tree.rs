//! The file system operations for the kernel's requests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use ext2::{Blocks, DirectoryEntry, Error, FileSystem, FileType, InodeNumber, Metadata, NewNode, Owner};
use fuser::Errno;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::errors::to_errno;
use super::references::References;
use crate::limits::VOLUME_REQUESTS_MAX;

/// A mounted file system, and the requests under way in it.
pub(super) struct Tree<B: Blocks> {
    pub(super) file_system: Arc<FileSystem<B>>,
    pub(super) references: References,
    handle: Handle,
    /// One for each request under way.
    room: Arc<Semaphore>,
    is_closed: AtomicBool,
    pub(super) requests: AtomicU64,
}

/// The set-group-ID bit: new files in such a directory get its group.
const SET_GROUP: u16 = 0o2000;

impl<B: Blocks> Tree<B> {
    pub(super) fn new(file_system: Arc<FileSystem<B>>) -> Self {
        Self {
            file_system,
            references: References::default(),
            handle: Handle::current(),
            room: Arc::new(Semaphore::new(VOLUME_REQUESTS_MAX as usize)),
            is_closed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        }
    }

    /// Carries out `work` and passes its outcome to `answer`: here if it does not wait, otherwise
    /// on the runtime.
    pub(super) fn carry_out<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let permit = match Arc::clone(&self.room).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => self.handle.block_on(Arc::clone(&self.room).acquire_owned()).ok(),
        };
        if self.is_closed.load(Ordering::Relaxed) {
            return answer(Err(Errno::EIO));
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut carried_out = Box::pin(async move {
            let outcome = work.await;
            if let Err(error) = &outcome {
                tracing::debug!(%error, "a request of a mount failed");
            }
            answer(outcome.map_err(|error| to_errno(&error)));
            drop(permit);
        });
        let _runtime = self.handle.enter();
        if carried_out.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.handle.spawn(base::background::named("mount-requests", carried_out));
        }
    }

    /// Begins no more requests, waits for those under way, for at most `time_max`, and closes the
    /// inodes that the kernel knows.
    pub(super) async fn close(&self, time_max: Duration) {
        self.is_closed.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(time_max, self.room.acquire_many(VOLUME_REQUESTS_MAX)).await;
        for inode in self.references.take_all() {
            self.close_file(inode).await;
        }
    }

    /// Closes an inode that the kernel does not know any more.
    pub(super) async fn close_file(&self, inode: InodeNumber) {
        if let Err(error) = self.file_system.close_file(inode).await {
            // It is in the list of inodes without names, and the next mount frees it.
            tracing::warn!(%error, "{inode} could not be closed");
        }
    }

    /// Finds a name. The result counts as returned to the kernel.
    pub(super) async fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        loop {
            let found = self.file_system.lookup(parent, name).await?;
            // Another file has its number now: then the name leads elsewhere, too.
            if let Some(metadata) = self.references.add(&self.file_system, found).await? {
                return Ok(metadata);
            }
        }
    }

    /// Makes a node. It counts as returned to the kernel.
    pub(super) async fn create(
        &self,
        parent: InodeNumber,
        name: &[u8],
        node: NewNode<'_>,
        owner: Owner,
    ) -> Result<Metadata, Error> {
        let above = self.file_system.metadata(parent).await?;
        let owner = inherited(&above, &node, owner);
        let made = self.file_system.create(parent, name, node, owner).await?;
        match self.references.add(&self.file_system, made).await? {
            Some(metadata) => Ok(metadata),
            None => Err(ext2::ErrorKind::NotFound.into()),
        }
    }

    /// Makes one more name. The inode counts as returned to the kernel.
    pub(super) async fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        let linked = self.file_system.link(inode, parent, name).await?;
        match self.references.add(&self.file_system, linked).await? {
            Some(metadata) => Ok(metadata),
            None => Err(ext2::ErrorKind::NotFound.into()),
        }
    }

    /// Reads a range, up to the end of the file, in several operations where it is too long for
    /// one.
    pub(super) async fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = self.file_system.read_file(inode, offset, length).await?;
        while bytes.len() < length {
            let at = offset.saturating_add(bytes.len() as u64);
            let more = self.file_system.read_file(inode, at, length - bytes.len()).await?;
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        Ok(bytes)
    }

    /// Names of a directory, each with its type.
    pub(super) async fn list(
        &self,
        directory: InodeNumber,
        position: u64,
        entries_max: usize,
    ) -> Result<Vec<(DirectoryEntry, FileType)>, Error> {
        let entries = self.file_system.list(directory, position, entries_max).await?;
        let mut typed = Vec::with_capacity(entries.len());
        for entry in entries {
            let file_type = match entry.file_type {
                Some(file_type) => file_type,
                None => self.file_system.metadata(entry.inode).await?.file_type,
            };
            typed.push((entry, file_type));
        }
        Ok(typed)
    }
}

/// Owner and permissions of a new node, where the directory determines them.
fn inherited(above: &Metadata, node: &NewNode<'_>, owner: Owner) -> Owner {
    if above.permissions & SET_GROUP == 0 {
        return owner;
    }
    let is_directory = matches!(node, NewNode::Directory);
    let permissions = owner.permissions | if is_directory { SET_GROUP } else { 0 };
    Owner { gid: above.gid, permissions, ..owner }
}
