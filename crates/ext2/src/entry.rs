//! Entries of a directory in one of its blocks.
//!
//! Records fill the block, each with its length. A record with inode 0 is free, and one that is
//! longer than its name has room behind it. The index of a directory lies in such room, so that a
//! reader that does not know it sees only free records.

use crate::error::Error;
use crate::inode::FileType;
use crate::numbers::InodeNumber;

/// Bytes of a record without its name.
pub const HEAD_BYTES: usize = 8;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset of its first byte in the block.
    pub offset: usize,
    pub record_bytes: usize,
    /// The inode; `None` in a free record.
    pub inode: Option<InodeNumber>,
    pub name: &'a [u8],
    /// The type in the record, where directories hold types.
    pub file_type: Option<FileType>,
}

impl Record<'_> {
    /// Bytes that its name needs.
    fn needed(&self) -> usize {
        if self.inode.is_none() { 0 } else { needed_bytes(self.name.len()) }
    }
}

/// Bytes of a record with a name of this length.
pub fn needed_bytes(name_bytes: usize) -> usize {
    (HEAD_BYTES + name_bytes).next_multiple_of(4)
}

/// The records of a block, in their order. After an error there are no more.
pub fn records(block: &[u8]) -> impl Iterator<Item = Result<Record<'_>, Error>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset >= block.len() {
            return None;
        }
        let record = record_at(block, offset);
        offset = record.as_ref().map_or(block.len(), |record| record.offset + record.record_bytes);
        Some(record)
    })
}

fn record_at(block: &[u8], offset: usize) -> Result<Record<'_>, Error> {
    let damaged = || Error::corrupt(format!("a directory has an impossible entry at byte {offset} of a block"));
    let head: &[u8; HEAD_BYTES] = block.get(offset..).and_then(<[u8]>::first_chunk).ok_or_else(damaged)?;
    let [i0, i1, i2, i3, r0, r1, name_bytes, type_byte] = *head;
    let record_bytes = usize::from(u16::from_le_bytes([r0, r1]));
    let number = u32::from_le_bytes([i0, i1, i2, i3]);
    let name_bytes = usize::from(name_bytes);
    let end = offset + record_bytes;
    let is_possible = record_bytes >= HEAD_BYTES && record_bytes.is_multiple_of(4) && end <= block.len();
    if !is_possible || (number != 0 && (needed_bytes(name_bytes) > record_bytes || name_bytes == 0)) {
        return Err(damaged());
    }
    let name = if number == 0 { &[] } else { &block[offset + HEAD_BYTES..offset + HEAD_BYTES + name_bytes] };
    let inode = (number != 0).then_some(InodeNumber(number));
    Ok(Record { offset, record_bytes, inode, name, file_type: FileType::of_entry(type_byte) })
}

/// The record of a name.
pub fn find<'a>(block: &'a [u8], name: &[u8]) -> Result<Option<Record<'a>>, Error> {
    for record in records(block) {
        let record = record?;
        if record.inode.is_some() && record.name == name {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// The content of a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry<'a> {
    pub name: &'a [u8],
    pub inode: InodeNumber,
    /// Zero where directories have no types.
    pub type_byte: u8,
}

/// Writes a record.
pub fn put(block: &mut [u8], offset: usize, record_bytes: usize, entry: &NewEntry<'_>) {
    block[offset..offset + 4].copy_from_slice(&entry.inode.0.to_le_bytes());
    set_record_bytes(block, offset, record_bytes);
    block[offset + 6] = entry.name.len() as u8;
    block[offset + 7] = entry.type_byte;
    block[offset + HEAD_BYTES..offset + HEAD_BYTES + entry.name.len()].copy_from_slice(entry.name);
}

/// Writes a free record.
pub fn put_free(block: &mut [u8], offset: usize, record_bytes: usize) {
    block[offset..offset + HEAD_BYTES].fill(0);
    set_record_bytes(block, offset, record_bytes);
}

fn set_record_bytes(block: &mut [u8], offset: usize, record_bytes: usize) {
    block[offset + 4..offset + 6].copy_from_slice(&(record_bytes as u16).to_le_bytes());
}

/// Room for an entry with a name of this length: offset of a record, the bytes that it needs
/// itself, and its length.
pub fn room(block: &[u8], name_bytes: usize) -> Result<Option<(usize, usize, usize)>, Error> {
    let wanted = needed_bytes(name_bytes);
    for record in records(block) {
        let record = record?;
        if record.record_bytes - record.needed() >= wanted {
            return Ok(Some((record.offset, record.needed(), record.record_bytes)));
        }
    }
    Ok(None)
}

/// Puts an entry into room that [`room`] found.
pub fn insert(block: &mut [u8], (offset, needed, record_bytes): (usize, usize, usize), entry: &NewEntry<'_>) {
    if needed > 0 {
        set_record_bytes(block, offset, needed);
    }
    put(block, offset + needed, record_bytes - needed, entry);
}

/// Removes the record at `offset`: the record before it gets its bytes; the first one of a block
/// becomes free.
pub fn remove(block: &mut [u8], offset: usize) -> Result<(), Error> {
    let mut before = None;
    let mut found = None;
    for record in records(block) {
        let record = record?;
        if record.offset == offset {
            found = Some(record.record_bytes);
            break;
        }
        before = Some((record.offset, record.record_bytes));
    }
    let Some(record_bytes) = found else {
        return Err(Error::corrupt("a directory changed while an entry was removed"));
    };
    match before {
        None => put_free(block, offset, record_bytes),
        Some((first, first_bytes)) => {
            block[offset..offset + HEAD_BYTES].fill(0);
            set_record_bytes(block, first, first_bytes + record_bytes);
        }
    }
    Ok(())
}

/// Makes the record at `offset` lead to another inode.
pub fn redirect(block: &mut [u8], offset: usize, inode: InodeNumber, type_byte: u8) {
    block[offset..offset + 4].copy_from_slice(&inode.0.to_le_bytes());
    block[offset + 7] = type_byte;
}

/// Fills a block with these entries; the last one gets the rest.
///
/// # Panics
/// When they need more than the block has.
pub fn fill(block: &mut [u8], entries: &[NewEntry<'_>]) {
    block.fill(0);
    let mut offset = 0;
    for (index, entry) in entries.iter().enumerate() {
        let is_last = index + 1 == entries.len();
        let bytes = if is_last { block.len() - offset } else { needed_bytes(entry.name.len()) };
        put(block, offset, bytes, entry);
        offset += bytes;
    }
    if entries.is_empty() {
        put_free(block, 0, block.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(name: &[u8]) -> NewEntry<'_> {
        NewEntry { name, inode: InodeNumber(name.len() as u32 + 20), type_byte: 1 }
    }

    fn names(block: &[u8]) -> Vec<Vec<u8>> {
        records(block)
            .map(Result::unwrap)
            .filter(|record| record.inode.is_some())
            .map(|record| record.name.to_vec())
            .collect()
    }

    #[test]
    fn a_block_of_entries_is_what_the_format_says() {
        let mut block = [0xa5; 32];
        fill(&mut block, &[NewEntry { name: b"ab", inode: InodeNumber(0x0102), type_byte: 2 }, entry(b"xyz.c")]);
        assert_eq!(block[..12], [2, 1, 0, 0, 12, 0, 2, 2, b'a', b'b', 0, 0]);
        assert_eq!(block[12..], [25, 0, 0, 0, 20, 0, 5, 1, b'x', b'y', b'z', b'.', b'c', 0, 0, 0, 0, 0, 0, 0]);
        remove(&mut block, 12).unwrap();
        assert_eq!(block[..12], [2, 1, 0, 0, 32, 0, 2, 2, b'a', b'b', 0, 0]);
        remove(&mut block, 0).unwrap();
        assert_eq!(block[..8], [0, 0, 0, 0, 32, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(block in proptest::collection::vec(any::<u8>(), 64), offset in 0usize..64) {
            let mut block = block;
            let _ = (records(&block).count(), find(&block, b"a").is_ok(), room(&block, 3).is_ok());
            let _ = remove(&mut block, offset & !3);
        }

        #[test]
        fn entries_come_and_go_as_in_a_list(steps in proptest::collection::vec((any::<bool>(), 1usize..40), 1..60)) {
            let mut block = vec![0; 512];
            put_free(&mut block, 0, 512);
            let mut model: Vec<Vec<u8>> = Vec::new();
            for (is_insert, length) in steps {
                let name = vec![b'a' + (length % 26) as u8; length];
                match find(&block, &name).unwrap().map(|record| record.offset) {
                    Some(offset) if !is_insert => {
                        remove(&mut block, offset).unwrap();
                        model.retain(|other| *other != name);
                    }
                    None if is_insert => if let Some(place) = room(&block, length).unwrap() {
                        insert(&mut block, place, &entry(&name));
                        model.push(name);
                    },
                    _ => {}
                }
                let mut found = names(&block);
                found.sort();
                model.sort();
                prop_assert_eq!(&found, &model);
                prop_assert_eq!(records(&block).map(|record| record.unwrap().record_bytes).sum::<usize>(), 512);
            }
        }
    }
}
