//! The index of a directory: a tree over its blocks, sorted by the hashes of names.
//!
//! ```text
//!   block 0, root   "." and ".."; which hash, how many levels; hash → block of entries, or of an inner node
//!   inner node      looks like one free record; hash → block of entries             (at most one level of them)
//!   leaf            a block of entries like any other, in no order
//! ```
//! An entry of the index has the smallest hash of its block; the first one stands for zero. Its
//! lowest bit means that names with this same hash are in the block before, too.
//!
//! An invalid index is ignored: a lookup then searches all blocks, and an insertion clears the
//! directory's flag first, which the format allows at any time.

use crate::hash::{HashVersion, Hasher};
use crate::layout::Layout;
use crate::numbers::FileBlock;

/// Offset of the root's entries; the header of the index begins eight bytes before.
const ROOT_ENTRIES: usize = 32;
/// Offset of an inner node's entries.
const NODE_ENTRIES: usize = 8;
const ENTRY_BYTES: usize = 8;
/// Block numbers in an index; the rest of the word is reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// The header of the index, from its root.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    pub hasher: Hasher,
    /// Levels of inner nodes: 0 or 1.
    pub levels: u8,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Root,
    Inner,
}

impl Kind {
    fn start(self) -> usize {
        match self {
            Self::Root => ROOT_ENTRIES,
            Self::Inner => NODE_ENTRIES,
        }
    }

    /// Most entries of a node in a block of this many bytes.
    fn limit(self, block_bytes: usize) -> usize {
        (block_bytes - self.start()) / ENTRY_BYTES
    }
}

/// The root in block 0 of a directory; `None` when it is invalid or not supported.
pub fn root(block: &[u8], layout: &Layout) -> Option<Root> {
    let info: &[u8; 8] = block.get(ROOT_ENTRIES - 8..)?.first_chunk()?;
    let [0, 0, 0, 0, version, 8, levels @ 0..=1, flags] = *info else { return None };
    if flags & 1 != 0 {
        return None;
    }
    Some(Root { hasher: hasher(version, layout)?, levels })
}

/// The hash function of an index of this version.
pub fn hasher(version: u8, layout: &Layout) -> Option<Hasher> {
    let version = HashVersion::of(version)?;
    Some(Hasher { version, is_unsigned: layout.is_hash_unsigned, seed: layout.hash_seed })
}

/// Entries of a node: hash (the first one's is zero) and block; `None` when it is not a node of
/// this kind.
pub fn entries(block: &[u8], kind: Kind) -> Option<Vec<(u32, FileBlock)>> {
    let bytes = block.get(kind.start()..)?;
    let (limit, count) = (word16(bytes, 0)?, word16(bytes, 2)?);
    if limit != kind.limit(block.len()) || count == 0 || count > limit {
        return None;
    }
    let entry = |index: usize| {
        let hash = if index == 0 { 0 } else { word(bytes, index * ENTRY_BYTES)? };
        Some((hash, FileBlock(word(bytes, index * ENTRY_BYTES + 4)? & BLOCK_MASK)))
    };
    let entries = (0..count).map(entry).collect::<Option<Vec<_>>>()?;
    entries.is_sorted_by_key(|(hash, _)| hash & !1).then_some(entries)
}

fn word16(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The index of the entry whose block has the names of this hash: the last that does not begin
/// behind it.
pub fn search(entries: &[(u32, FileBlock)], hash: u32) -> usize {
    entries.partition_point(|(first, _)| *first <= hash).saturating_sub(1)
}

/// Whether one more entry has room.
pub fn has_room(entries: &[(u32, FileBlock)], kind: Kind, block_bytes: usize) -> bool {
    entries.len() < kind.limit(block_bytes)
}

/// Writes the entries of a node.
///
/// # Panics
/// When there are none, or more than it has room for.
pub fn set_entries(block: &mut [u8], kind: Kind, entries: &[(u32, FileBlock)]) {
    let limit = kind.limit(block.len());
    assert!((1..=limit).contains(&entries.len()), "{} entries of {limit}", entries.len());
    let bytes = &mut block[kind.start()..];
    for (place, (hash, number)) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        place[..4].copy_from_slice(&hash.to_le_bytes());
        place[4..].copy_from_slice(&number.0.to_le_bytes());
    }
    bytes[..2].copy_from_slice(&(limit as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(entries.len() as u16).to_le_bytes());
}

/// Writes the header of the index, behind "." and "..", which are there already.
pub fn set_root(block: &mut [u8], version: u8, levels: u8) {
    block[ROOT_ENTRIES - 8..ROOT_ENTRIES].copy_from_slice(&[0, 0, 0, 0, version, 8, levels, 0]);
}

/// Offset of ".." in the root: its record contains the index.
pub const DOT_DOT_OFFSET: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_what_the_format_says() {
        let mut block = [0; 64];
        let all = [(0, FileBlock(1)), (0x10, FileBlock(0x0203)), (0x21, FileBlock(4))];
        set_entries(&mut block, Kind::Root, &all);
        set_root(&mut block, 1, 0);
        assert_eq!(block[24..32], [0, 0, 0, 0, 1, 8, 0, 0]);
        assert_eq!(block[32..56], [4, 0, 3, 0, 1, 0, 0, 0, 16, 0, 0, 0, 3, 2, 0, 0, 33, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(entries(&block, Kind::Root).unwrap(), all);
        let place = |hash| search(&all, hash);
        assert_eq!([place(0), place(0xe), place(0x10), place(0x20), place(0x22)], [0, 0, 1, 1, 2]);
        assert!(has_room(&all, Kind::Root, 64) && !has_room(&all, Kind::Root, 56));
    }

    #[test]
    fn what_is_no_node_is_none() {
        let mut block = [0; 64];
        assert_eq!(entries(&block, Kind::Inner), None);
        set_entries(&mut block, Kind::Inner, &[(0, FileBlock(1)), (8, FileBlock(2)), (6, FileBlock(3))]);
        assert_eq!(entries(&block, Kind::Inner), None, "hashes fall");
        set_entries(&mut block, Kind::Inner, &[(0, FileBlock(1)), (6, FileBlock(2))]);
        assert!(entries(&block, Kind::Inner).is_some());
        block[8] = 9;
        assert_eq!(entries(&block, Kind::Inner), None, "another limit");
        assert_eq!(entries(&[0; 4], Kind::Inner), None);
    }
}
