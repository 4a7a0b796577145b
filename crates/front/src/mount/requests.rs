//! The kernel's requests for a mounted file system, and their answers.
//!
//! The kernel checks permissions (`default_permissions`), by the attributes that it gets.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use ext2::{
    Access, Blocks, Error, ErrorKind, InodeNumber, Metadata, MetadataChange, NewNode, Owner, RenameMode, SetMode,
};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

use super::attributes::{device_of, from_system, kind_of};
use super::tree::{ListedName, Tree};
use super::view::inode_of;
use crate::limits::{FUSE_BACKGROUND_MAX, STEP_BYTES};

/// The handler of the kernel's requests.
pub(super) struct Requests<B: Blocks> {
    pub(super) tree: Arc<Tree<B>>,
}

const TYPE_BITS: u32 = 0o17_0000;

impl<B: Blocks> Requests<B> {
    fn tree(&self) -> Arc<Tree<B>> {
        Arc::clone(&self.tree)
    }

    fn make(&self, parent: INodeNo, name: &OsStr, owner: Owner, node: OwnedNode, reply: ReplyEntry) {
        let (tree, above, name) = (self.tree(), inode_of(parent), name.as_bytes().to_vec());
        let told = self.tree();
        let work = async move { tree.create(above, &name, node.as_node(), owner).await };
        self.tree.carry_out_at(Access::Change, &[parent], work, move |made| answer_entry(reply, &told, made));
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, is_directory: bool, reply: ReplyEmpty) {
        let (tree, above, name) = (self.tree(), inode_of(parent), name.as_bytes().to_vec());
        let work = async move {
            match is_directory {
                true => tree.file_system.remove_directory(above, &name).await,
                false => tree.file_system.unlink(above, &name).await,
            }
        };
        self.tree.carry_out_at(Access::Change, &[parent], work, |removed| answer(reply, removed));
    }

    fn commit(&self, reply: ReplyEmpty) {
        let tree = self.tree();
        self.tree.carry_out(async move { tree.file_system.commit().await }, |done| answer(reply, done));
    }
}

/// A node that is to be made.
enum OwnedNode {
    Plain(NewNode<'static>),
    Link(Vec<u8>),
}

impl OwnedNode {
    fn as_node(&self) -> NewNode<'_> {
        match self {
            Self::Plain(node) => *node,
            Self::Link(target) => NewNode::SymbolicLink(target),
        }
    }
}

fn owner(request: &Request, mode: u32) -> Owner {
    Owner { uid: request.uid(), gid: request.gid(), permissions: (mode & 0o7777) as u16 }
}

impl<B: Blocks> Filesystem for Requests<B> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Optional: an older kernel lacks some of these and works without.
        let _ = config.set_max_write(STEP_BYTES as u32);
        let _ = config.set_max_readahead(STEP_BYTES as u32);
        let _ = config.set_max_background(FUSE_BACKGROUND_MAX);
        for wish in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ] {
            let _ = config.add_capabilities(wish);
        }
        if !self.tree.view.is_shared {
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (tree, above, name) = (self.tree(), inode_of(parent), name.as_bytes().to_vec());
        let told = self.tree();
        let work = async move { tree.lookup(above, &name).await };
        self.tree.carry_out_at(Access::Read, &[parent], work, move |found| answer_entry(reply, &told, found));
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        let tree = self.tree();
        if self.tree.references.remove(node, count) {
            let work = async move {
                tree.close_file(node).await;
                Ok(())
            };
            self.tree.carry_out_at(Access::Read, &[], work, drop);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let told = self.tree();
        let work = async move { tree.file_system.metadata(inode).await };
        self.tree.carry_out_at(Access::Read, &[node], work, move |found| answer_attributes(reply, &told, found));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let time = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => from_system(time),
            TimeOrNow::Now => from_system(SystemTime::now()),
        };
        let change = MetadataChange {
            permissions: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            accessed: accessed.map(time),
            modified: modified.map(time),
        };
        let told = self.tree();
        let work = async move {
            if let Some(size) = size {
                tree.file_system.set_size(inode, size).await?;
            }
            match change == MetadataChange::default() && size.is_some() {
                true => tree.file_system.metadata(inode).await,
                false => tree.file_system.set_metadata(inode, &change).await,
            }
        };
        self.tree.carry_out_at(Access::Change, &[node], work, move |changed| answer_attributes(reply, &told, changed));
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move { tree.file_system.read_link(inode).await };
        self.tree.carry_out_at(Access::Read, &[node], work, |target| answer_data(reply, target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (major, minor) = device_of(device);
        let node = match mode & TYPE_BITS {
            0o02_0000 => NewNode::CharacterDevice(major, minor),
            0o06_0000 => NewNode::BlockDevice(major, minor),
            0o01_0000 => NewNode::Fifo,
            0o14_0000 => NewNode::Socket,
            0o10_0000 | 0 => NewNode::File,
            _ => return reply.error(Errno::EINVAL),
        };
        self.make(parent, name, owner(request, mode), OwnedNode::Plain(node), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        self.make(parent, name, owner(request, mode), OwnedNode::Plain(NewNode::Directory), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let node = OwnedNode::Link(target.as_os_str().as_bytes().to_vec());
        self.make(parent, name, owner(request, 0o777), node, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, false, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, true, reply);
    }

    fn rename(
        &self,
        _: &Request,
        from: INodeNo,
        from_name: &OsStr,
        to: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::Keep
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (tree, old, new) = (self.tree(), inode_of(from), inode_of(to));
        let (from_name, to_name) = (from_name.as_bytes().to_vec(), to_name.as_bytes().to_vec());
        let work = async move { tree.file_system.rename((old, &from_name), (new, &to_name), mode).await };
        self.tree.carry_out_at(Access::Change, &[from, to], work, |renamed| answer(reply, renamed));
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (tree, inode, above) = (self.tree(), inode_of(node), inode_of(parent));
        let (told, name) = (self.tree(), name.as_bytes().to_vec());
        let work = async move { tree.link(inode, above, &name).await };
        self.tree.carry_out_at(Access::Change, &[node, parent], work, move |linked| answer_entry(reply, &told, linked));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The kernel knows the inode as long as it is open.
        reply.opened(FileHandle(0), self.tree.view.opened());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (tree, above, name) = (self.tree(), inode_of(parent), name.as_bytes().to_vec());
        let (owner, view) = (owner(request, mode), tree.view);
        let may_exist = flags & OFlags::EXCL.bits().cast_signed() == 0;
        let work = async move { tree.create(above, &name, NewNode::File, owner).await };
        self.tree.carry_out_at(Access::Change, &[parent], work, move |made| match made {
            Ok(made) => {
                let (time, generation) = (view.name_time(), Generation(u64::from(made.generation)));
                reply.created(&time, &view.attributes(&made), generation, FileHandle(0), view.opened());
            }
            // Another host has made it since the kernel looked: it looks again, and opens it.
            Err(errno) if view.is_shared && may_exist && errno.code() == Errno::EEXIST.code() => {
                reply.error(Errno::ESTALE);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move { tree.read(inode, offset, size as usize).await };
        self.tree.carry_out_at(Access::Read, &[node], work, |bytes| answer_data(reply, bytes));
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (tree, inode, bytes) = (self.tree(), inode_of(node), data.to_vec());
        let length = data.len() as u32;
        // O_SYNC includes the bit of O_DSYNC.
        let is_durable = flags.0 & OFlags::DSYNC.bits().cast_signed() != 0;
        let is_appended = flags.0 & OFlags::APPEND.bits().cast_signed() != 0;
        let work = async move {
            tree.write(inode, offset, &bytes, is_appended).await?;
            if is_durable { tree.file_system.commit().await } else { Ok(()) }
        };
        self.tree.carry_out_at(Access::Change, &[node], work, move |written| match written {
            Ok(()) => reply.written(length),
            Err(errno) => reply.error(errno),
        });
    }

    /// A descriptor is closed: that makes nothing durable (close(2)).
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.commit(reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.commit(reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(self.tree.listings.open(), FopenFlags::empty());
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.tree.listings.close(handle);
        reply.ok();
    }

    fn readdir(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move { tree.names(handle, inode, offset).await };
        self.tree.carry_out_at(Access::Read, &[node], work, move |names| match names {
            Ok(names) => {
                for ListedName { name, file_type, node, next } in names {
                    if reply.add(node, next, kind_of(file_type), OsStr::from_bytes(&name)) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move {
            let mut listing = DirectoryReply { reply, told: Vec::new() };
            match listing.fill(&tree, handle, inode, offset).await {
                Ok(()) => listing.reply.ok(),
                Err(error) => {
                    listing.take_back(&tree).await;
                    listing.reply.error(super::errors::to_errno(&error));
                }
            }
            Ok(())
        };
        self.tree.carry_out_at(Access::Read, &[node], work, |_| ());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let tree = self.tree();
        let work = async move { tree.file_system.statistics().await };
        self.tree.carry_out_at(Access::Read, &[], work, |found| match found {
            Ok(found) => {
                let [blocks, free, available, inodes, free_inodes] = [
                    found.block_count,
                    found.free_blocks,
                    found.available_blocks,
                    found.inode_count,
                    found.free_inodes,
                ]
                .map(u64::from);
                let (block_bytes, name_bytes) = (found.block_bytes as u32, found.name_bytes_max as u32);
                reply.statfs(blocks, free, available, inodes, free_inodes, block_bytes, name_bytes, block_bytes);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn setxattr(&self, _: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let mode = if flags.contains(XattrFlags::CREATE) {
            SetMode::Create
        } else if flags.contains(XattrFlags::REPLACE) {
            SetMode::Replace
        } else {
            SetMode::Any
        };
        let work = async move { tree.file_system.set_attribute(inode, &name, &value, mode).await };
        self.tree.carry_out_at(Access::Change, &[node], work, |done| answer(reply, done));
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (tree, inode, name) = (self.tree(), inode_of(node), name.as_bytes().to_vec());
        let work = async move { tree.file_system.attribute(inode, &name).await };
        self.tree.carry_out_at(Access::Read, &[node], work, move |value| answer_attribute(reply, size, value));
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move {
            let names = tree.file_system.attribute_names(inode).await?;
            Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
        };
        self.tree.carry_out_at(Access::Read, &[node], work, move |names| answer_attribute(reply, size, names));
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (tree, inode, name) = (self.tree(), inode_of(node), name.as_bytes().to_vec());
        let work = async move { tree.file_system.remove_attribute(inode, &name).await };
        self.tree.carry_out_at(Access::Change, &[node], work, |done| answer(reply, done));
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        // An ext2 has no allocated blocks that were never written: programs write zeroes instead.
        if mode != FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (tree, inode) = (self.tree(), inode_of(node));
        let range = offset..offset.saturating_add(length);
        let work = async move { tree.file_system.punch_hole(inode, range).await };
        self.tree.carry_out_at(Access::Change, &[node], work, |done| answer(reply, done));
    }

    fn lseek(&self, _: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let (SEEK_DATA | SEEK_HOLE) = whence else { return reply.error(Errno::EINVAL) };
        // There is no data before offset 0 (lseek(2)).
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let (tree, inode) = (self.tree(), inode_of(node));
        let work = async move { tree.file_system.seek(inode, offset, whence == SEEK_HOLE).await };
        self.tree.carry_out_at(Access::Read, &[node], work, |found| match found {
            Ok(Some(found)) => reply.offset(found.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        });
    }
}

/// Entries with attributes, as many as fit in the answer. Each but "." and ".." counts as returned
/// to the kernel.
struct DirectoryReply {
    reply: ReplyDirectoryPlus,
    told: Vec<INodeNo>,
}

impl DirectoryReply {
    async fn fill<B: Blocks>(
        &mut self,
        tree: &Arc<Tree<B>>,
        handle: FileHandle,
        directory: InodeNumber,
        offset: u64,
    ) -> Result<(), Error> {
        for (next, entry) in tree.listing(handle, directory, offset).await?.from(offset) {
            tree.rest_at(next).await;
            let is_own = entry.name == b"." || entry.name == b"..";
            let found = if is_own {
                tree.file_system.metadata(entry.inode).await
            } else {
                tree.lookup(directory, entry.name).await
            };
            let metadata = match found {
                // It was removed meanwhile. An answer without any name would be the end.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => found?,
            };
            let (view, generation) = (tree.view, Generation(u64::from(metadata.generation)));
            let (attributes, time) = (view.attributes(&metadata), view.name_time());
            let name = OsStr::from_bytes(entry.name);
            if self.reply.add(attributes.ino, next, name, &time, &attributes, generation) {
                if !is_own {
                    forget(tree, attributes.ino).await;
                }
                return Ok(());
            }
            if !is_own {
                self.told.push(attributes.ino);
            }
        }
        Ok(())
    }

    /// Takes the counts back when the answer did not reach the kernel.
    async fn take_back<B: Blocks>(&mut self, tree: &Arc<Tree<B>>) {
        for node in std::mem::take(&mut self.told) {
            forget(tree, node).await;
        }
    }
}

async fn forget<B: Blocks>(tree: &Arc<Tree<B>>, node: INodeNo) {
    if tree.references.remove(node, 1) {
        tree.close_file(node).await;
    }
}

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_entry<B: Blocks>(reply: ReplyEntry, tree: &Tree<B>, outcome: Result<Metadata, Errno>) {
    match outcome {
        Ok(found) => {
            let attributes = tree.view.attributes(&found);
            let (time, name_time) = (tree.attribute_time(attributes.ino), tree.view.name_time());
            reply.entry_with_ttls(&time, &name_time, &attributes, Generation(u64::from(found.generation)));
            tree.confirm_attributes(attributes.ino, time);
        }
        Err(errno) => reply.error(errno),
    }
}

fn answer_attributes<B: Blocks>(reply: ReplyAttr, tree: &Tree<B>, outcome: Result<Metadata, Errno>) {
    match outcome {
        Ok(found) => {
            let attributes = tree.view.attributes(&found);
            let time = tree.attribute_time(attributes.ino);
            reply.attr(&time, &attributes);
            tree.confirm_attributes(attributes.ino, time);
        }
        Err(errno) => reply.error(errno),
    }
}

fn answer_data(reply: ReplyData, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(errno),
    }
}

/// Answers with a value, or with its length where that is asked for.
fn answer_attribute(reply: ReplyXattr, size: u32, outcome: Result<Vec<u8>, Errno>) {
    match outcome {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}
