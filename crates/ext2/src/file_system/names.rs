//! Names: creating, removing and renaming.

use std::ops::ControlFlow;

use super::{FileSystem, Metadata, metadata};
use crate::blocks::{Blocks, Operation};
use crate::directory::{self, DirectoryEntry, Found};
use crate::error::{Error, ErrorKind};
use crate::inode::{FileType, Inode};
use crate::limits::{LINKS_MAX, NAME_BYTES_MAX};
use crate::numbers::InodeNumber;
use crate::work::Work;
use crate::{content, device_number, inodes};

/// The kind of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    SymbolicLink(&'a [u8]),
    /// A character device: major and minor number.
    CharacterDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Owner and permissions of a new inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Owner.
    pub uid: u32,
    /// Group of the owner.
    pub gid: u32,
    /// The twelve bits of permissions.
    pub permissions: u16,
}

/// What happens to an inode that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced, in the same operation.
    Replace,
    /// The rename fails.
    Keep,
    /// It gets the old name; it must exist.
    Exchange,
}

impl NewNode<'_> {
    fn file_type(&self) -> FileType {
        match self {
            Self::File => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::SymbolicLink(_) => FileType::SymbolicLink,
            Self::CharacterDevice(..) => FileType::CharacterDevice,
            Self::BlockDevice(..) => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl<B: Blocks> FileSystem<B> {
    /// Looks a name up.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`
    pub async fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        check_length(name)?;
        let mut work = self.read().await?;
        let parent = work.inode(parent).await?;
        let found = if name == b".." {
            Some(directory::parent(&mut work, &parent).await?)
        } else {
            directory::find(&mut work, &parent, name).await?
        };
        let found = if name == b"." { parent.number } else { found.ok_or(ErrorKind::NotFound)?.inode };
        Ok(metadata(&work.named_inode(found).await?))
    }

    /// Passes all entries of a directory to `take`, until that fails: those of one moment, since new
    /// names move others to other places.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, and those of `take`
    pub async fn list(
        &self,
        inode: InodeNumber,
        mut take: impl FnMut(DirectoryEntry<'_>) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let mut work = self.read().await?;
        let inode = work.inode(inode).await?;
        let visited = directory::visit(&mut work, &inode, |entry| match take(entry) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        match visited.await? {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    /// Creates an inode with a new name.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `NotDirectory`, `NotFound`, `NameTooLong`, `TooManyLinks`, `Invalid`
    pub async fn create(
        &self,
        parent: InodeNumber,
        name: &[u8],
        node: NewNode<'_>,
        owner: Owner,
    ) -> Result<Metadata, Error> {
        check_name(name)?;
        let mut work = self.change().await?;
        let mut parent = live_directory(&mut work, parent).await?;
        check_absent(&mut work, &parent, name).await?;
        let mut inode = new_inode(&mut work, &parent, &node, owner).await?;
        match node {
            NewNode::Directory => {
                add_link(&mut parent)?;
                directory::begin(&mut work, &mut inode, parent.number).await?;
            }
            NewNode::SymbolicLink(target) => content::set_link_target(&mut work, &mut inode, target).await?,
            NewNode::CharacterDevice(major, minor) | NewNode::BlockDevice(major, minor) => {
                let words = device_number::emit(major, minor).ok_or(ErrorKind::Invalid)?;
                (inode.blocks[0], inode.blocks[1]) = words;
            }
            NewNode::File | NewNode::Fifo | NewNode::Socket => {}
        }
        work.store(&inode).await?;
        insert(&mut work, &mut parent, name, &inode).await?;
        work.operation.end().await?;
        Ok(metadata(&inode))
    }

    /// Adds a name to an inode that is not a directory.
    ///
    /// # Errors
    /// `Exists`, `IsDirectory`, `TooManyLinks`, `NotFound`, `NoSpace`
    pub async fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Metadata, Error> {
        check_name(name)?;
        let mut work = self.change().await?;
        let mut parent = live_directory(&mut work, parent).await?;
        let mut inode = work.inode(inode).await?;
        if inode.file_type == FileType::Directory {
            return Err(ErrorKind::IsDirectory.into());
        }
        if inode.links_count == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        check_absent(&mut work, &parent, name).await?;
        add_link(&mut inode)?;
        inode.changed = work.now;
        work.store(&inode).await?;
        insert(&mut work, &mut parent, name, &inode).await?;
        work.operation.end().await?;
        Ok(metadata(&inode))
    }

    /// Removes a name of an inode that is not a directory; without names and users the inode is
    /// freed.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`
    pub async fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<(), Error> {
        check_name(name)?;
        let mut work = self.change().await?;
        let parent = live_directory(&mut work, parent).await?;
        let found = directory::find(&mut work, &parent, name).await?.ok_or(ErrorKind::NotFound)?;
        let inode = work.named_inode(found.inode).await?;
        if inode.file_type == FileType::Directory {
            return Err(ErrorKind::IsDirectory.into());
        }
        remove_name(&mut work, parent, &found).await?;
        self.end_of_name(work, inode).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`
    pub async fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<(), Error> {
        check_name(name)?;
        let mut work = self.change().await?;
        let mut parent = live_directory(&mut work, parent).await?;
        let found = directory::find(&mut work, &parent, name).await?.ok_or(ErrorKind::NotFound)?;
        let inode = work.named_inode(found.inode).await?;
        check_removable(&mut work, &parent, &inode).await?;
        parent.links_count = parent.links_count.saturating_sub(1);
        remove_name(&mut work, parent, &found).await?;
        self.end_of_name(work, inode).await
    }

    /// Renames an inode, also into another directory. An inode with the new name is removed in the
    /// same operation, or treated as the mode says.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `TooManyLinks`, `NoSpace`; `Invalid` when a
    /// directory would be below itself.
    pub async fn rename(
        &self,
        (from, from_name): (InodeNumber, &[u8]),
        (to, to_name): (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Error> {
        check_name(from_name)?;
        check_name(to_name)?;
        let mut work = self.change().await?;
        let (from, to) = (live_directory(&mut work, from).await?, live_directory(&mut work, to).await?);
        let old = directory::find(&mut work, &from, from_name).await?.ok_or(ErrorKind::NotFound)?;
        let new = directory::find(&mut work, &to, to_name).await?;
        let moved = work.named_inode(old.inode).await?;
        let across = from.number != to.number;
        if across && moved.file_type == FileType::Directory {
            check_not_below(&mut work, &to, moved.number).await?;
        }
        match (new, mode) {
            (Some(_), RenameMode::Keep) => Err(ErrorKind::Exists.into()),
            (None, RenameMode::Exchange) => Err(ErrorKind::NotFound.into()),
            (Some(new), _) if new.inode == old.inode => Ok(()),
            (Some(new), RenameMode::Exchange) => {
                let other = work.named_inode(new.inode).await?;
                if across && other.file_type == FileType::Directory {
                    check_not_below(&mut work, &from, other.number).await?;
                }
                exchange(&mut work, (&from, &old, moved), (&to, &new, other)).await?;
                work.operation.end().await
            }
            (Some(new), RenameMode::Replace) => {
                let victim = work.named_inode(new.inode).await?;
                check_replaceable(&mut work, &to, &moved, &victim).await?;
                directory::redirect(&mut work, &to, &new, moved.number, moved.file_type).await?;
                touch(&mut work, to.number).await?;
                if victim.file_type == FileType::Directory {
                    change_links(&mut work, to.number, -1).await?;
                }
                finish_move(&mut work, (from.number, from_name), to.number, moved).await?;
                self.end_of_name(work, victim).await
            }
            (None, _) => {
                let mut to = to;
                insert(&mut work, &mut to, to_name, &moved).await?;
                finish_move(&mut work, (from.number, from_name), to.number, moved).await?;
                work.operation.end().await
            }
        }
    }
}

fn check_length(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_BYTES_MAX { Err(ErrorKind::NameTooLong.into()) } else { Ok(()) }
}

/// # Errors
/// For an impossible name.
fn check_name(name: &[u8]) -> Result<(), Error> {
    check_length(name)?;
    let is_name = !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0);
    if is_name { Ok(()) } else { Err(ErrorKind::Invalid.into()) }
}

/// A directory that still has a name: a removed one gets no new entries.
async fn live_directory<O: Operation>(work: &mut Work<O>, number: InodeNumber) -> Result<Inode, Error> {
    let directory = work.inode(number).await?;
    if directory.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    if directory.links_count == 0 { Err(ErrorKind::NotFound.into()) } else { Ok(directory) }
}

async fn check_absent<O: Operation>(work: &mut Work<O>, parent: &Inode, name: &[u8]) -> Result<(), Error> {
    let found = directory::find(work, parent, name).await?;
    if found.is_some() { Err(ErrorKind::Exists.into()) } else { Ok(()) }
}

fn add_link(inode: &mut Inode) -> Result<(), Error> {
    if inode.links_count >= LINKS_MAX {
        return Err(ErrorKind::TooManyLinks.into());
    }
    inode.links_count += 1;
    Ok(())
}

/// A new inode, allocated already. The caller stores it when it is complete.
async fn new_inode<O: Operation>(
    work: &mut Work<O>,
    parent: &Inode,
    node: &NewNode<'_>,
    owner: Owner,
) -> Result<Inode, Error> {
    let file_type = node.file_type();
    let is_directory = file_type == FileType::Directory;
    let number = inodes::allocate(work, parent.number, is_directory).await?;
    let extra_bytes = work.layout.extra_inode_bytes;
    let place = work.layout.inode_place(number)?;
    let before = work.operation.read(place.block, work.layout.table_object(&place)).await?;
    let generation = crate::inode::generation_in(&before[place.offset..]).wrapping_add(1);
    let bytes = work.inode_bytes_mut(number).await?;
    bytes.fill(0);
    let has_extra = crate::inode::set_extra_bytes(bytes, extra_bytes);
    let inode = Inode::new(number, file_type, work.now, has_extra);
    Ok(Inode { permissions: owner.permissions & 0o7777, uid: owner.uid, gid: owner.gid, generation, ..inode })
}

/// Adds a name to a directory, and stores the directory.
async fn insert<O: Operation>(work: &mut Work<O>, parent: &mut Inode, name: &[u8], inode: &Inode) -> Result<(), Error> {
    directory::insert(work, parent, name, inode.number, inode.file_type).await?;
    (parent.modified, parent.changed) = (work.now, work.now);
    work.store(parent).await
}

/// Removes a name from a directory, and stores the directory.
async fn remove_name<O: Operation>(work: &mut Work<O>, mut parent: Inode, found: &Found) -> Result<(), Error> {
    directory::remove(work, &parent, found).await?;
    (parent.modified, parent.changed) = (work.now, work.now);
    work.store(&parent).await
}

/// # Errors
/// When a directory cannot be removed from `parent`.
async fn check_removable<O: Operation>(work: &mut Work<O>, parent: &Inode, inode: &Inode) -> Result<(), Error> {
    if inode.file_type != FileType::Directory {
        return Err(ErrorKind::NotDirectory.into());
    }
    if directory::parent(work, inode).await?.inode != parent.number {
        return Err(Error::corrupt(format!("the directory {} is below two others", inode.number)));
    }
    if directory::is_empty(work, inode).await? { Ok(()) } else { Err(ErrorKind::NotEmpty.into()) }
}

/// # Errors
/// When `moved` cannot take the place of `victim`.
async fn check_replaceable<O: Operation>(
    work: &mut Work<O>,
    parent: &Inode,
    moved: &Inode,
    victim: &Inode,
) -> Result<(), Error> {
    match (moved.file_type, victim.file_type) {
        (FileType::Directory, _) => check_removable(work, parent, victim).await,
        (_, FileType::Directory) => Err(ErrorKind::IsDirectory.into()),
        _ => Ok(()),
    }
}

/// # Errors
/// `Invalid` when `directory` is `above`, or lies below it.
async fn check_not_below<O: Operation>(work: &mut Work<O>, directory: &Inode, above: InodeNumber) -> Result<(), Error> {
    let mut at = directory.clone();
    // If ".." is circular, the count of inodes ends the walk.
    for _ in 0..work.layout.inode_count {
        if at.number == above {
            return Err(Error::new(ErrorKind::Invalid, "a directory cannot be moved below itself"));
        }
        if at.number == InodeNumber::ROOT {
            return Ok(());
        }
        let parent = directory::parent(work, &at).await?.inode;
        at = work.named_inode(parent).await?;
    }
    Err(Error::corrupt(format!("no way leads from {} to the root", directory.number)))
}

async fn touch<O: Operation>(work: &mut Work<O>, number: InodeNumber) -> Result<(), Error> {
    let mut inode = work.inode(number).await?;
    (inode.modified, inode.changed) = (work.now, work.now);
    work.store(&inode).await
}

async fn change_links<O: Operation>(work: &mut Work<O>, number: InodeNumber, by: i16) -> Result<(), Error> {
    let mut inode = work.inode(number).await?;
    if by > 0 {
        add_link(&mut inode)?;
    } else {
        inode.links_count = inode.links_count.saturating_sub(1);
    }
    work.store(&inode).await
}

/// The new name exists: removes the old one, and updates ".." of a moved directory.
async fn finish_move<O: Operation>(
    work: &mut Work<O>,
    (from, from_name): (InodeNumber, &[u8]),
    to: InodeNumber,
    moved: Inode,
) -> Result<(), Error> {
    let mut from = work.inode(from).await?;
    // The new name may have moved the old one within the block.
    let old = directory::find(work, &from, from_name).await?.ok_or(ErrorKind::NotFound)?;
    let is_directory_moved = moved.file_type == FileType::Directory && from.number != to;
    if is_directory_moved {
        from.links_count = from.links_count.saturating_sub(1);
    }
    remove_name(work, from, &old).await?;
    if is_directory_moved {
        change_links(work, to, 1).await?;
        set_parent(work, &moved, to).await?;
    }
    changed(work, moved).await
}

async fn set_parent<O: Operation>(work: &mut Work<O>, inode: &Inode, parent: InodeNumber) -> Result<(), Error> {
    let found = directory::parent(work, inode).await?;
    directory::redirect(work, inode, &found, parent, FileType::Directory).await
}

async fn changed<O: Operation>(work: &mut Work<O>, mut inode: Inode) -> Result<(), Error> {
    inode.changed = work.now;
    work.store(&inode).await
}

/// Exchanges the inodes of two names.
async fn exchange<O: Operation>(
    work: &mut Work<O>,
    (from, old, moved): (&Inode, &Found, Inode),
    (to, new, other): (&Inode, &Found, Inode),
) -> Result<(), Error> {
    directory::redirect(work, from, old, other.number, other.file_type).await?;
    directory::redirect(work, to, new, moved.number, moved.file_type).await?;
    touch(work, from.number).await?;
    touch(work, to.number).await?;
    if from.number != to.number {
        for (inode, left, entered) in [(&moved, from, to), (&other, to, from)] {
            if inode.file_type == FileType::Directory {
                change_links(work, left.number, -1).await?;
                change_links(work, entered.number, 1).await?;
                set_parent(work, inode, entered.number).await?;
            }
        }
    }
    changed(work, moved).await?;
    changed(work, other).await
}
