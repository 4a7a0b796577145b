//! The file system operations for the kernel's requests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use ext2::{
    Access, Blocks, DirectoryEntry, Error, ErrorKind, FileSystem, FileType, InodeNumber, Metadata, NewNode, Owner,
};
use fuser::{Errno, FileHandle, INodeNo};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::errors::to_errno;
use super::kept_attributes::KeptAttributes;
use super::listings::{Listing, Listings};
use super::references::References;
use super::view::{View, inode_of, plain_node_of};
use crate::limits::{DIRECTORY_ENTRIES_MAX, LISTING_BYTES_MAX, VOLUME_CACHE_TIME, VOLUME_REQUESTS_MAX};

/// A mounted file system, and the requests under way in it.
pub(super) struct Tree<B: Blocks> {
    pub(super) file_system: Arc<FileSystem<B>>,
    pub(super) references: References,
    pub(super) listings: Listings,
    pub(super) view: View,
    /// What the kernel keeps where hosts share it.
    pub(super) kept: Option<Arc<KeptAttributes>>,
    handle: Handle,
    /// One for each request under way.
    room: Arc<Semaphore>,
    is_closed: AtomicBool,
    pub(super) requests: AtomicU64,
}

/// A name for an answer of `readdir`.
pub(super) struct ListedName {
    pub(super) name: Vec<u8>,
    pub(super) file_type: FileType,
    pub(super) node: INodeNo,
    /// The position of the next.
    pub(super) next: u64,
}

/// The set-group-ID bit: new files in such a directory get its group.
const SET_GROUP: u16 = 0o2000;

impl<B: Blocks> Tree<B> {
    pub(super) fn new(file_system: Arc<FileSystem<B>>, view: View, kept: Option<Arc<KeptAttributes>>) -> Self {
        Self {
            file_system,
            references: References::default(),
            listings: Listings::new(LISTING_BYTES_MAX),
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

    /// The names of an open directory: for position 0 those of now, otherwise those of when it was read from its
    /// beginning.
    pub(super) async fn listing(
        &self,
        handle: FileHandle,
        directory: InodeNumber,
        position: u64,
    ) -> Result<Arc<Listing>, Error> {
        if position > 0
            && let Some(listing) = self.listings.get(handle)
        {
            return Ok(listing);
        }
        self.listings.forget(handle);
        let mut listing = Listing::default();
        self.file_system.list(directory, |entry| self.listings.add(&mut listing, entry)).await?;
        Ok(self.listings.keep(handle, listing))
    }

    /// The names of an open directory from `position` on, as many as an answer may have.
    pub(super) async fn names(
        &self,
        handle: FileHandle,
        directory: InodeNumber,
        position: u64,
    ) -> Result<Vec<ListedName>, Error> {
        let mut names = Vec::new();
        for (next, entry) in self.listing(handle, directory, position).await?.from(position) {
            self.rest_at(next).await;
            let Some((file_type, node)) = self.type_and_node(directory, &entry).await? else { continue };
            names.push(ListedName { name: entry.name.to_vec(), file_type, node, next });
            if names.len() == DIRECTORY_ENTRIES_MAX {
                break;
            }
        }
        Ok(names)
    }

    /// Lets others have their turn after so many names.
    pub(super) async fn rest_at(&self, position: u64) {
        if position.is_multiple_of(DIRECTORY_ENTRIES_MAX as u64) {
            tokio::task::yield_now().await;
        }
    }

    /// The type of a listed name, and the kernel's number of its inode. `None` where that takes looking it up, and it
    /// is gone.
    async fn type_and_node(
        &self,
        directory: InodeNumber,
        entry: &DirectoryEntry<'_>,
    ) -> Result<Option<(FileType, INodeNo)>, Error> {
        if let Some(file_type) = entry.file_type.filter(|_| !self.view.is_shared) {
            return Ok(Some((file_type, plain_node_of(entry.inode))));
        }
        // By its name: it may lead to another inode by now.
        match self.file_system.lookup(directory, entry.name).await {
            Ok(found) => Ok(Some((found.file_type, self.view.node_of(&found)))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use block::memory::MemoryDevice;
    use block::{Identity, SharedDevice};
    use ext2::{MakeOptions, OpenOptions, PlainBlocks, RenameMode, Timestamp};
    use uuid::Uuid;

    use super::*;

    async fn tree(is_shared: bool) -> Tree<PlainBlocks> {
        let device: SharedDevice = Arc::new(MemoryDevice::new(32 << 20, Identity::default()));
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        ext2::make(&device, &MakeOptions::new(Uuid::nil(), Uuid::nil(), time)).await.unwrap();
        let options = OpenOptions { is_read_only: false, may_use_reserved: true, wall_clock: Arc::new(move || time) };
        let file_system = FileSystem::open(PlainBlocks::new(device).await.unwrap(), options).await.unwrap();
        Tree::new(Arc::new(file_system), View { is_shared }, None)
    }

    async fn make(tree: &Tree<PlainBlocks>, directory: InodeNumber, prefix: &str, count: usize) -> BTreeSet<Vec<u8>> {
        let mut made = BTreeSet::new();
        for number in 0..count {
            let name = format!("{prefix}{number:05}").into_bytes();
            tree.file_system.create(directory, &name, NewNode::File, Owner::default()).await.unwrap();
            made.insert(name);
        }
        made
    }

    async fn directory_of(tree: &Tree<PlainBlocks>, name: &str) -> InodeNumber {
        let made = tree.file_system.create(InodeNumber::ROOT, name.as_bytes(), NewNode::Directory, Owner::default());
        made.await.unwrap().inode
    }

    /// The names from a position to the end.
    async fn rest(
        tree: &Tree<PlainBlocks>,
        handle: FileHandle,
        directory: InodeNumber,
        mut position: u64,
    ) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let names = tree.names(handle, directory, position).await.unwrap();
            let Some(last) = names.last() else { return all };
            position = last.next;
            all.extend(names.into_iter().map(|found| found.name));
        }
    }

    #[tokio::test]
    async fn names_made_between_two_answers_move_none_out_of_a_listing() {
        for is_shared in [false, true] {
            let tree = tree(is_shared).await;
            for count in [60, 300, 700] {
                for told in [1, count / 2, count - 10] {
                    let directory = directory_of(&tree, &format!("{count}-{told}")).await;
                    let stay = make(&tree, directory, "stay", count).await;
                    let handle = tree.listings.open();
                    let (mut listed, mut position) = (Vec::new(), 0);
                    while listed.len() < told {
                        let names = tree.names(handle, directory, position).await.unwrap();
                        let few = names.into_iter().take(told - listed.len());
                        listed.extend(few.map(|found| {
                            position = found.next;
                            found.name
                        }));
                    }
                    // More than a leaf has room for: those that are full are split.
                    make(&tree, directory, "made", count).await;
                    listed.extend(rest(&tree, handle, directory, position).await);
                    tree.listings.close(handle);
                    let of_those: Vec<_> = listed.into_iter().filter(|name| stay.contains(name)).collect();
                    assert_eq!(of_those.len(), count, "{count} names, {told} told before");
                    assert!(BTreeSet::from_iter(of_those) == stay);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_directory_that_is_read_from_its_beginning_again_has_the_names_of_now() {
        let tree = tree(false).await;
        let directory = directory_of(&tree, "directory").await;
        make(&tree, directory, "old", 300).await;
        let handle = tree.listings.open();
        let before = rest(&tree, handle, directory, 0).await;
        make(&tree, directory, "new", 300).await;
        tree.file_system.unlink(directory, b"old00007").await.unwrap();
        assert!(rest(&tree, handle, directory, 1).await == before[1..]);
        let after = rest(&tree, handle, directory, 0).await;
        assert_eq!((before.len(), after.len()), (302, 601));
        assert!(!after.contains(&b"old00007".to_vec()));
    }

    /// More of them in a row than an answer has, whose end would be the end of the listing.
    #[tokio::test]
    async fn names_that_went_end_no_listing_and_one_that_leads_elsewhere_by_now_is_told() {
        let tree = tree(true).await;
        let directory = directory_of(&tree, "directory").await;
        make(&tree, directory, "name", 600).await;
        let handle = tree.listings.open();
        let all: Vec<_> =
            tree.listing(handle, directory, 0).await.unwrap().from(0).map(|(_, e)| e.name.to_vec()).collect();
        for name in &all[10..500] {
            tree.file_system.unlink(directory, name).await.unwrap();
        }
        let other = tree.file_system.create(directory, b"other", NewNode::File, Owner::default()).await.unwrap();
        let replaced = (directory, all[550].as_slice());
        tree.file_system.rename((directory, b"other"), replaced, RenameMode::Replace).await.unwrap();
        assert!(rest(&tree, handle, directory, 10).await == all[500..]);
        let found = tree.names(handle, directory, 550).await.unwrap().swap_remove(0);
        assert_eq!((&found.name, found.node), (&all[550], tree.view.node_of(&other)));
    }

    #[tokio::test]
    async fn a_directory_that_finds_no_room_in_memory_is_not_listed_until_another_one_is_closed() {
        let mut tree = tree(false).await;
        tree.listings = Listings::new(10_000);
        let directory = directory_of(&tree, "directory").await;
        make(&tree, directory, "name", 300).await;
        let [first, second] = [tree.listings.open(), tree.listings.open()];
        assert_eq!(rest(&tree, first, directory, 0).await.len(), 302);
        let refused = tree.names(second, directory, 0).await.err().unwrap();
        assert_eq!(to_errno(&refused).code(), Errno::ENOMEM.code());
        assert_eq!(rest(&tree, first, directory, 0).await.len(), 302, "it takes its own room again");
        tree.listings.close(first);
        assert_eq!(rest(&tree, second, directory, 0).await.len(), 302);
    }
}
