//! The file system operations for the kernel's requests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use ext2::{
    Access, Blocks, DirectoryEntry, Error, ErrorKind, FileSystem, FileType, InodeNumber, Metadata, NewNode, Owner,
};
use fuser::{Errno, INodeNo};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::errors::to_errno;
use super::kept_attributes::KeptAttributes;
use super::references::References;
use super::view::{View, inode_of, plain_node_of};
use crate::limits::{VOLUME_CACHE_TIME, VOLUME_REQUESTS_MAX};

/// A mounted file system, and the requests under way in it.
pub(super) struct Tree<B: Blocks> {
    pub(super) file_system: Arc<FileSystem<B>>,
    pub(super) references: References,
    pub(super) view: View,
    /// What the kernel keeps where hosts share it.
    pub(super) kept: Option<Arc<KeptAttributes>>,
    handle: Handle,
    /// One for each request under way.
    room: Arc<Semaphore>,
    is_closed: AtomicBool,
    pub(super) requests: AtomicU64,
}

/// The set-group-ID bit: new files in such a directory get its group.
const SET_GROUP: u16 = 0o2000;

impl<B: Blocks> Tree<B> {
    pub(super) fn new(file_system: Arc<FileSystem<B>>, view: View, kept: Option<Arc<KeptAttributes>>) -> Self {
        Self {
            file_system,
            references: References::default(),
            view,
            kept,
            handle: Handle::current(),
            room: Arc::new(Semaphore::new(VOLUME_REQUESTS_MAX as usize)),
            is_closed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        }
    }

    /// Carries out the work of a request for these nodes. Where hosts share the file system none of
    /// the others changes it meanwhile, or reads it, if this one changes it; a node that one of them
    /// has removed is refused.
    pub(super) fn carry_out_at<T: Send + 'static>(
        self: &Arc<Self>,
        access: Access,
        nodes: &[INodeNo],
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let (tree, nodes) = (Arc::clone(self), nodes.to_vec());
        let within = async move {
            if tree.kept.is_some() {
                tree.references.note_asked(&nodes);
            }
            match tree.file_system.hold(access).await {
                Ok(hold) => (tree.carry_out_within(nodes, work).await, Some(hold)),
                Err(error) => (Err(error), None),
            }
        };
        self.carry_out_holding(within, answer);
    }

    async fn carry_out_within<T>(
        &self,
        nodes: Vec<INodeNo>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        for node in nodes {
            if self.is_stale(node).await? {
                return Err(ErrorKind::Stale.into());
            }
        }
        work.await
    }

    /// How long the kernel may keep the attributes of an inode. The answer is given while the lock is held, and
    /// confirmed.
    pub(super) fn attribute_time(&self, node: INodeNo) -> Duration {
        match &self.kept {
            Some(kept) if self.references.was_asked(node) => kept.time(node),
            None if !self.view.is_shared => VOLUME_CACHE_TIME,
            _ => Duration::ZERO,
        }
    }

    /// Notes that the kernel has been told to keep the attributes of an inode for this time.
    pub(super) fn confirm_attributes(&self, node: INodeNo, time: Duration) {
        if let Some(kept) = self.kept.as_ref().filter(|_| !time.is_zero()) {
            kept.confirm(node, time);
        }
    }

    /// Whether another host has removed what the kernel knows as `node`.
    async fn is_stale(&self, node: INodeNo) -> Result<bool, Error> {
        if !self.view.is_shared {
            return Ok(false);
        }
        match self.file_system.metadata(inode_of(node)).await {
            Ok(found) => Ok(!self.view.is_of(node, &found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Carries out `work` and passes its outcome to `answer`: here if it does not wait, otherwise
    /// on the runtime.
    pub(super) fn carry_out<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        self.carry_out_holding(async { (work.await, ()) }, answer);
    }

    /// Likewise for work that also returns what it holds: that is given up when the answer was given.
    fn carry_out_holding<T: Send + 'static, H: Send + 'static>(
        &self,
        work: impl Future<Output = (Result<T, Error>, H)> + Send + 'static,
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
            let (outcome, hold) = work.await;
            if let Err(error) = &outcome {
                tracing::debug!(%error, "a request of a mount failed");
            }
            answer(outcome.map_err(|error| to_errno(&error)));
            drop((hold, permit));
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
        let Ok(_hold) = self.file_system.hold(Access::Change).await else { return };
        for node in self.references.take_all() {
            let inode = inode_of(node);
            match self.end_use(node).await {
                Ok(true) => warn_of(inode, self.file_system.free_unused(inode).await),
                closed => warn_of(inode, closed.map(drop)),
            }
        }
    }

    /// Closes an inode that the kernel does not know any more. Many that are forgotten change
    /// nothing: where hosts share the file system, those that do wait for their turn.
    pub(super) async fn close_file(self: &Arc<Self>, node: INodeNo) {
        let inode = inode_of(node);
        if let Some(kept) = &self.kept {
            kept.remove(node);
        }
        match self.end_use(node).await {
            Ok(true) if !self.view.is_shared => warn_of(inode, self.file_system.free_unused(inode).await),
            Ok(true) => {
                let tree = Arc::clone(self);
                let free = async move { warn_of(inode, tree.free_later(inode).await) };
                self.handle.spawn(base::background::named("mount-requests", free));
            }
            closed => warn_of(inode, closed.map(drop)),
        }
    }

    /// Returns whether the inode is to be freed.
    async fn end_use(&self, node: INodeNo) -> Result<bool, Error> {
        match self.is_stale(node).await? {
            // Another host has freed it.
            true => self.file_system.blocks().close(inode_of(node)).await.map(|_| false),
            false => self.file_system.end_use(inode_of(node)).await,
        }
    }

    async fn free_later(&self, inode: InodeNumber) -> Result<(), Error> {
        let _permit = self.room.acquire().await;
        let _hold = self.file_system.hold(Access::Change).await?;
        self.file_system.free_unused(inode).await
    }

    /// Finds a name. The result counts as returned to the kernel.
    pub(super) async fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        loop {
            let found = self.file_system.lookup(parent, name).await?;
            // Another file has its number now: then the name leads elsewhere, too.
            if let Some(metadata) = self.references.add(&self.file_system, self.view, found).await? {
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
        match self.references.add(&self.file_system, self.view, made).await? {
            Some(metadata) => Ok(metadata),
            None => Err(ext2::ErrorKind::NotFound.into()),
        }
    }

    /// Makes one more name. The inode counts as returned to the kernel.
    pub(super) async fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        let linked = self.file_system.link(inode, parent, name).await?;
        match self.references.add(&self.file_system, self.view, linked).await? {
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

    /// Writes a range; with `is_appended` behind the end of the file, wherever the kernel believes
    /// that to be: another host may have moved it.
    pub(super) async fn write(
        &self,
        inode: InodeNumber,
        offset: u64,
        bytes: &[u8],
        is_appended: bool,
    ) -> Result<(), Error> {
        let offset = match is_appended && self.view.is_shared {
            true => self.file_system.metadata(inode).await?.size_bytes,
            false => offset,
        };
        self.file_system.write_file(inode, offset, bytes).await
    }

    /// Names of a directory, each with its type and the kernel's number of its inode.
    pub(super) async fn list(
        &self,
        directory: InodeNumber,
        position: u64,
        entries_max: usize,
    ) -> Result<Vec<(DirectoryEntry, FileType, INodeNo)>, Error> {
        let entries = self.file_system.list(directory, position, entries_max).await?;
        let mut typed = Vec::with_capacity(entries.len());
        for entry in entries {
            let (file_type, node) = match entry.file_type.filter(|_| !self.view.is_shared) {
                Some(file_type) => (file_type, plain_node_of(entry.inode)),
                None => {
                    let found = self.file_system.metadata(entry.inode).await?;
                    (found.file_type, self.view.node_of(&found))
                }
            };
            typed.push((entry, file_type, node));
        }
        Ok(typed)
    }
}

/// An inode that could not be freed is in the list of inodes without names: the next mount frees it.
fn warn_of(inode: InodeNumber, closed: Result<(), Error>) {
    if let Err(error) = closed {
        tracing::warn!(%error, "{inode} could not be closed");
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
