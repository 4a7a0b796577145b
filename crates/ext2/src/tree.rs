//! The blocks of a directory with an index: lookup of a name's block, and splitting of full blocks.

use crate::blocks::{Block, Object, Operation};
use crate::entry::{self, NewEntry};
use crate::error::{Error, ErrorKind};
use crate::index::{self, DOT_DOT_OFFSET, Kind, Root};
use crate::inode::{FLAG_INDEX, Inode};
use crate::mapping::{self, Place};
use crate::numbers::{BlockNumber, FileBlock, InodeNumber};
use crate::work::Work;

/// The path from the root to the block of a hash.
pub struct Probe {
    root: Root,
    hash: u32,
    nodes: Vec<Node>,
}

/// A node on the path, and the entry that was followed.
struct Node {
    number: BlockNumber,
    kind: Kind,
    entries: Vec<(u32, FileBlock)>,
    index: usize,
}

impl Probe {
    /// The leaf block for this hash.
    pub fn leaf(&self) -> FileBlock {
        let last = self.nodes.last().expect("there is the root at least");
        last.entries[last.index].1
    }
}

/// The path to the block of a name; `None` when the directory has no index, or an unsupported one.
pub async fn probe<O: Operation>(work: &mut Work<O>, directory: &Inode, name: &[u8]) -> Result<Option<Probe>, Error> {
    if !directory.has_index() || !work.layout.features.has_dir_index() {
        return Ok(None);
    }
    let Some((number, block)) = block_at(work, directory, FileBlock(0)).await? else { return Ok(None) };
    let Some(root) = index::root(&block, &work.layout) else { return Ok(None) };
    let hash = root.hasher.hash(name);
    let mut probe = Probe { root, hash, nodes: Vec::new() };
    let Some(node) = parse_node(&block, number, Kind::Root, hash) else { return Ok(None) };
    probe.nodes.push(node);
    if root.levels == 1 {
        let Some((number, block)) = block_at(work, directory, probe.leaf()).await? else { return Ok(None) };
        let Some(node) = parse_node(&block, number, Kind::Inner, hash) else { return Ok(None) };
        probe.nodes.push(node);
    }
    Ok(Some(probe))
}

fn parse_node(block: &Block, number: BlockNumber, kind: Kind, hash: u32) -> Option<Node> {
    let entries = index::entries(block, kind)?;
    Some(Node { number, kind, index: index::search(&entries, hash), entries })
}

/// Goes on to the next block if it may have names of the same hash. Returns whether it does. The
/// count of entries bounds how often it can.
pub async fn advance<O: Operation>(work: &mut Work<O>, directory: &Inode, probe: &mut Probe) -> Result<bool, Error> {
    let Some(level) = probe.nodes.iter().rposition(|node| node.index + 1 < node.entries.len()) else {
        return Ok(false);
    };
    let node_above = &mut probe.nodes[level];
    let (hash, at) = node_above.entries[node_above.index + 1];
    if hash & !1 != probe.hash || hash & 1 == 0 {
        return Ok(false);
    }
    node_above.index += 1;
    if level + 1 < probe.nodes.len() {
        let Some((number, block)) = block_at(work, directory, at).await? else { return Ok(false) };
        let Some(mut first) = parse_node(&block, number, Kind::Inner, 0) else { return Ok(false) };
        first.index = 0;
        probe.nodes[level + 1] = first;
    }
    Ok(true)
}

/// Adds a name to a directory with an index; `false`, without any change, when there is no index,
/// or no room in it. The caller stores the directory.
pub async fn insert<O: Operation>(
    work: &mut Work<O>,
    directory: &mut Inode,
    entry: &NewEntry<'_>,
) -> Result<bool, Error> {
    let Some(mut probe) = probe(work, directory, entry.name).await? else { return Ok(false) };
    let Some((number, leaf)) = block_at(work, directory, probe.leaf()).await? else { return Ok(false) };
    if let Some(room) = entry::room(&leaf, entry.name.len())? {
        let block = work.operation.change(number, Object::Directory(directory.number)).await?;
        entry::insert(block, room, entry);
        return Ok(true);
    }
    if !make_room_above(work, directory, &mut probe).await? {
        return Ok(false);
    }
    split_leaf(work, directory, &mut probe, number, &leaf, entry).await?;
    Ok(true)
}

/// Makes room for one more entry in the node above the leaves; `false` when the index has its
/// largest size.
async fn make_room_above<O: Operation>(
    work: &mut Work<O>,
    directory: &mut Inode,
    probe: &mut Probe,
) -> Result<bool, Error> {
    let block_bytes = work.layout.block_bytes;
    let has_room = |node: &Node| index::has_room(&node.entries, node.kind, block_bytes);
    match probe.nodes.as_slice() {
        [.., last] if has_room(last) => Ok(true),
        [_] => {
            add_level(work, directory, probe).await?;
            Ok(true)
        }
        [root, _] if has_room(root) => {
            split_inner(work, directory, probe).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Moves the root's entries to a new inner node.
async fn add_level<O: Operation>(work: &mut Work<O>, directory: &mut Inode, probe: &mut Probe) -> Result<(), Error> {
    let (at, number) = append_block(work, directory).await?;
    let root = &mut probe.nodes[0];
    let entries = std::mem::replace(&mut root.entries, vec![(0, at)]);
    let inner = Node { number, kind: Kind::Inner, entries, index: std::mem::take(&mut root.index) };
    let block = work.operation.change(root.number, Object::Directory(directory.number)).await?;
    index::set_entries(block, Kind::Root, &root.entries);
    let version = block[DOT_DOT_OFFSET + 16];
    index::set_root(block, version, 1);
    store_inner(work, directory, &inner).await?;
    probe.root.levels = 1;
    probe.nodes.push(inner);
    Ok(())
}

/// Moves half of the inner node's entries to a new one; the path continues in the one that has the
/// hash.
async fn split_inner<O: Operation>(work: &mut Work<O>, directory: &mut Inode, probe: &mut Probe) -> Result<(), Error> {
    let (at, number) = append_block(work, directory).await?;
    let [root, inner] = probe.nodes.as_mut_slice() else { return Err(Error::corrupt("an index without inner nodes")) };
    let middle = inner.entries.len() / 2;
    let upper = inner.entries.split_off(middle);
    root.entries.insert(root.index + 1, (upper[0].0, at));
    let mut new = Node { number, kind: Kind::Inner, index: 0, entries: upper };
    let block = work.operation.change(root.number, Object::Directory(directory.number)).await?;
    index::set_entries(block, Kind::Root, &root.entries);
    store_inner(work, directory, inner).await?;
    store_inner(work, directory, &new).await?;
    if let Some(index) = inner.index.checked_sub(middle) {
        (new.index, root.index) = (index, root.index + 1);
        *inner = new;
    }
    Ok(())
}

async fn store_inner<O: Operation>(work: &mut Work<O>, directory: &Inode, node: &Node) -> Result<(), Error> {
    let block = work.operation.replace(node.number, Object::Directory(directory.number)).await?;
    let block_bytes = block.len();
    entry::put_free(block, 0, block_bytes);
    index::set_entries(block, Kind::Inner, &node.entries);
    Ok(())
}

/// Splits the names of a full leaf, and one more, into two leaves: by hash, half of the bytes in
/// each, so that both have room.
async fn split_leaf<O: Operation>(
    work: &mut Work<O>,
    directory: &mut Inode,
    probe: &mut Probe,
    number: BlockNumber,
    leaf: &Block,
    entry: &NewEntry<'_>,
) -> Result<(), Error> {
    let mut entries = vec![(probe.root.hasher.hash(entry.name), *entry)];
    for record in entry::records(leaf) {
        let record = record?;
        let Some(inode) = record.inode else { continue };
        let type_byte = record.file_type.map_or(0, |file_type| file_type.entry_byte());
        entries.push((probe.root.hasher.hash(record.name), NewEntry { name: record.name, inode, type_byte }));
    }
    entries.sort_by_key(|(hash, _)| *hash);
    let split = split_point(&entries);
    let hash = entries[split].0;
    let is_continued = entries[split - 1].0 == hash;
    let all: Vec<NewEntry<'_>> = entries.into_iter().map(|(_, entry)| entry).collect();
    let (at, new) = append_block(work, directory).await?;
    let object = Object::Directory(directory.number);
    entry::fill(work.operation.change(number, object).await?, &all[..split]);
    entry::fill(work.operation.change(new, object).await?, &all[split..]);
    let above = probe.nodes.last_mut().expect("there is the root at least");
    above.entries.insert(above.index + 1, (hash | u32::from(is_continued), at));
    index::set_entries(work.operation.change(above.number, object).await?, above.kind, &above.entries);
    Ok(())
}

/// The index of the first entry of the second half; neither half is empty.
fn split_point(entries: &[(u32, NewEntry<'_>)]) -> usize {
    let bytes = |entry: &NewEntry<'_>| entry::needed_bytes(entry.name.len());
    let all: usize = entries.iter().map(|(_, entry)| bytes(entry)).sum();
    let mut before = 0;
    let middle = entries.iter().position(|(_, entry)| {
        before += bytes(entry);
        before * 2 > all
    });
    middle.unwrap_or(1).clamp(1, entries.len().saturating_sub(1).max(1))
}

/// Gives a directory of one block an index: its names move to a second block. `false`, without any
/// change, when it may have none. The caller stores the directory.
pub async fn make<O: Operation>(work: &mut Work<O>, directory: &mut Inode) -> Result<bool, Error> {
    let version = work.layout.hash_version;
    if !work.layout.features.has_dir_index() || index::hasher(version, &work.layout).is_none() {
        return Ok(false);
    }
    let Some((number, block)) = block_at(work, directory, FileBlock(0)).await? else { return Ok(false) };
    let mut names = Vec::new();
    for record in entry::records(&block) {
        let record = record?;
        let Some(inode) = record.inode else { continue };
        let type_byte = record.file_type.map_or(0, |file_type| file_type.entry_byte());
        names.push((record.offset, NewEntry { name: record.name, inode, type_byte }));
    }
    let [(0, own), (DOT_DOT_OFFSET, parent), ..] = *names.as_slice() else { return Ok(false) };
    if own.name != b"." || parent.name != b".." {
        return Ok(false);
    }
    let others: Vec<NewEntry<'_>> = names[2..].iter().map(|(_, entry)| *entry).collect();
    let (at, leaf) = append_block(work, directory).await?;
    let object = Object::Directory(directory.number);
    entry::fill(work.operation.change(leaf, object).await?, &others);
    let root = work.operation.change(number, object).await?;
    entry::fill(root, &[own, parent]);
    index::set_root(root, version, 0);
    index::set_entries(root, Kind::Root, &[(0, at)]);
    directory.flags |= FLAG_INDEX;
    Ok(true)
}

/// Adds a block of zeroes at the end of a directory. The caller fills it, and stores the directory.
pub async fn append_block<O: Operation>(
    work: &mut Work<O>,
    directory: &mut Inode,
) -> Result<(FileBlock, BlockNumber), Error> {
    let at = FileBlock(block_count(work, directory)?);
    let size = directory.size + work.layout.block_bytes as u64;
    if size > i32::MAX as u64 {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!("the directory {} is as large as it can be", directory.number),
        ));
    }
    let (number, _) = mapping::lookup_or_allocate(work, directory, at).await?;
    work.operation.replace(number, Object::Directory(directory.number)).await?;
    directory.size = size;
    Ok((at, number))
}

/// Blocks of a directory.
///
/// # Errors
/// `Corrupt` when its size is impossible: directories have no holes, so none has more blocks than
/// the file system.
pub fn block_count<O>(work: &Work<O>, directory: &Inode) -> Result<u32, Error> {
    let block_bytes = work.layout.block_bytes as u64;
    let count = directory.size / block_bytes;
    if !directory.size.is_multiple_of(block_bytes) || count > u64::from(work.layout.block_count) {
        let InodeNumber(number) = directory.number;
        return Err(Error::corrupt(format!("the directory inode {number} has {} bytes", directory.size)));
    }
    Ok(count as u32)
}

async fn block_at<O: Operation>(
    work: &mut Work<O>,
    directory: &Inode,
    at: FileBlock,
) -> Result<Option<(BlockNumber, Block)>, Error> {
    if at.0 >= block_count(work, directory)? {
        return Ok(None);
    }
    match mapping::lookup(work, directory, u64::from(at.0)).await? {
        Place::Hole(_) => Ok(None),
        Place::Block(number) => {
            Ok(Some((number, work.operation.read(number, Object::Directory(directory.number)).await?)))
        }
    }
}
