//! Copies of completed writes that the logical unit may still lose.
//!
//! A unit with a volatile write cache (WCE=1) may lose everything since its last flush when it loses power, and a new
//! session cannot tell whether it did. So each completed mutation is kept here, in its newest version only, until a
//! flush that was sent after it has completed; after a reconnect or a power-on unit attention all of it is written
//! again.
//!
//! Entries never overlap: a newer one cuts what it covers out of the older ones. The copies come from a pool, so
//! memory is bounded; a write that finds the pool exhausted waits for a flush.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use block::{Buffer, BufferPool, ByteRange};

use crate::limits::RETAINED_ENTRIES_MAX;

/// The content of a retained write, for writing it again.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Write these bytes.
    Bytes(Arc<Buffer>, Range<usize>),
    /// Make zeroes; whether the space may be given back.
    Zeroes { may_discard: bool },
    /// No content in particular: the bytes were discarded.
    Discarded,
}

impl Content {
    /// The content of `part`, where this is the content of `whole`.
    fn slice(&self, whole: ByteRange, part: ByteRange) -> Self {
        match self {
            Self::Bytes(buffer, range) => {
                let start = range.start + (part.offset - whole.offset) as usize;
                Self::Bytes(Arc::clone(buffer), start..start + part.length as usize)
            }
            other => other.clone(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    length: u64,
    /// Its place in the order of completion; a flush covers entries before its mark.
    sequence: u64,
    content: Content,
}

/// The changes since the last flush.
pub(crate) struct Retained {
    pool: BufferPool,
    bytes_max: usize,
    /// By offset.
    entries: BTreeMap<u64, Entry>,
    sequence_next: u64,
}

impl Retained {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { pool: BufferPool::new(bytes_max), bytes_max, entries: BTreeMap::new(), sequence_next: 0 }
    }

    /// Reserves room for a copy; `None` when there is no room before a flush.
    pub(crate) fn reserve(&self, length: usize) -> Option<Buffer> {
        self.pool.try_acquire(length)
    }

    /// Memory taken, reservations included.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.bytes_out()
    }

    /// Whether it is time to flush.
    pub(crate) fn is_near_bound(&self) -> bool {
        self.pool.bytes_out() > self.bytes_max / 2 || self.entries.len() > RETAINED_ENTRIES_MAX
    }

    /// Whether no change may be added before a flush has ended. Copies have a bound of their own.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= 2 * RETAINED_ENTRIES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Count of retained changes.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether any byte of `range` is retained.
    pub(crate) fn overlaps(&self, range: ByteRange) -> bool {
        let before = self.entries.range(..range.offset).next_back();
        let inside = self.entries.range(range.offset..range.end().max(range.offset)).next();
        before.into_iter().chain(inside).any(|(offset, entry)| overlaps(*offset, entry, range))
    }

    /// Retains a completed mutation that is not durable.
    pub(crate) fn insert(&mut self, range: ByteRange, content: Content) {
        self.supersede(range);
        if !range.is_empty() {
            let entry = Entry { length: range.length, sequence: self.sequence_next, content };
            self.entries.insert(range.offset, entry);
        }
        self.sequence_next += 1;
    }

    /// Removes these bytes: they were made durable otherwise, or are about to be inserted anew.
    pub(crate) fn supersede(&mut self, range: ByteRange) {
        let first = self.entries.range(..range.offset).next_back().map(|(offset, _)| *offset);
        let overlapping: Vec<u64> = first
            .into_iter()
            .chain(self.entries.range(range.offset..range.end()).map(|(offset, _)| *offset))
            .filter(|offset| self.entries.get(offset).is_some_and(|entry| overlaps(*offset, entry, range)))
            .collect();
        for offset in overlapping {
            let Some(entry) = self.entries.remove(&offset) else { continue };
            let whole = ByteRange { offset, length: entry.length };
            let before = ByteRange { offset, length: range.offset.saturating_sub(offset) };
            let after_offset = range.end().min(whole.end()).max(offset);
            let after = ByteRange { offset: after_offset, length: whole.end() - after_offset };
            for part in [before, after].into_iter().filter(|part| !part.is_empty()) {
                let content = entry.content.slice(whole, part);
                self.entries.insert(part.offset, Entry { length: part.length, sequence: entry.sequence, content });
            }
        }
    }

    /// Removes what lies in these ranges. Returns whether there was anything.
    pub(crate) fn remove_all_in(&mut self, ranges: &[ByteRange]) -> bool {
        let overlapping: Vec<&ByteRange> = ranges.iter().filter(|range| self.overlaps(**range)).collect();
        overlapping.iter().for_each(|range| self.supersede(**range));
        !overlapping.is_empty()
    }

    /// A flush sent now will cover everything up to this mark.
    pub(crate) fn mark(&self) -> u64 {
        self.sequence_next
    }

    /// Releases what a completed flush covers, which was sent at `mark`.
    pub(crate) fn release(&mut self, mark: u64) {
        self.entries.retain(|_, entry| entry.sequence >= mark);
    }

    /// Everything, in order of offset.
    pub(crate) fn all(&self) -> Vec<(ByteRange, Content)> {
        let entries = self.entries.iter();
        entries.map(|(&offset, entry)| (ByteRange { offset, length: entry.length }, entry.content.clone())).collect()
    }
}

fn overlaps(offset: u64, entry: &Entry, range: ByteRange) -> bool {
    ByteRange { offset, length: entry.length }.overlaps(&range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::random::Random;

    const SIZE: usize = 256;

    /// A content whose bytes show which write they are of, and their position in it.
    fn bytes(fill: u8, length: usize) -> Content {
        Content::Bytes(Arc::new(Buffer::copy_of(&written(fill, length))), 0..length)
    }

    fn written(fill: u8, length: usize) -> Vec<u8> {
        (0..length).map(|at| fill.wrapping_add(3 * at as u8)).collect()
    }

    /// The content of a device of zeroes after every retained write is replayed. Discarded bytes
    /// read as 0xdd.
    fn replayed(retained: &Retained) -> [u8; SIZE] {
        let mut device = [0; SIZE];
        for (range, content) in retained.all() {
            let place = &mut device[range.offset as usize..range.end() as usize];
            match content {
                Content::Bytes(buffer, part) => place.copy_from_slice(&buffer[part]),
                Content::Zeroes { .. } => place.fill(0xee),
                Content::Discarded => place.fill(0xdd),
            }
        }
        device
    }

    /// The newest version of every byte is kept, whatever was cut by what, and a flush drops what is older than its
    /// mark.
    #[test]
    fn the_newest_version_of_every_byte_is_kept() {
        let mut random = Random::new(11);
        for _ in 0..200 {
            let mut retained = Retained::new(1 << 20);
            let mut model = [(0u8, 0u64); SIZE];
            let mut mark = 0;
            for step in 1..60u64 {
                let offset = random.below(SIZE as u64 - 1);
                let length = 1 + random.below((SIZE as u64 - offset).min(80));
                let range = ByteRange { offset, length };
                let fill = step as u8;
                let count = length as usize;
                let (content, values) = match random.below(5) {
                    0 => (Content::Zeroes { may_discard: true }, vec![0xee; count]),
                    1 => (Content::Discarded, vec![0xdd; count]),
                    _ => (bytes(fill, count), written(fill, count)),
                };
                retained.insert(range, content);
                let held = &mut model[range.offset as usize..range.end() as usize];
                held.iter_mut().zip(values).for_each(|(held, value)| *held = (value, step));
                if random.chance(0.1) {
                    mark = step;
                    assert_eq!(retained.mark(), step);
                }
            }
            assert_eq!(replayed(&retained), model.map(|(value, _)| value));
            for offset in 0..SIZE as u64 - 8 {
                let is_any = model[offset as usize..offset as usize + 8].iter().any(|(_, step)| *step != 0);
                assert_eq!(retained.overlaps(ByteRange { offset, length: 8 }), is_any);
            }
            retained.release(mark);
            assert_eq!(replayed(&retained), model.map(|(value, step)| if step > mark { value } else { 0 }));
        }
    }

    #[test]
    fn memory_is_bounded_and_comes_back_with_a_flush() {
        let mut retained = Retained::new(16 << 10);
        for index in 0..4u64 {
            let copy = retained.reserve(4096).expect("there is room");
            retained.insert(ByteRange { offset: index * 4096, length: 4096 }, Content::Bytes(Arc::new(copy), 0..4096));
        }
        assert!(retained.is_near_bound());
        assert!(retained.reserve(512).is_none());
        retained.release(retained.mark());
        assert!(retained.is_empty());
        assert_eq!(retained.bytes(), 0);
    }

    /// Zeroes take no copies: what bounds them is how many there are.
    #[test]
    fn so_many_changes_without_copies_ask_for_a_flush_and_twice_as_many_wait_for_it() {
        let mut retained = Retained::new(16 << 10);
        let mut fill_to = |count: usize| {
            for index in retained.count()..count {
                let range = ByteRange { offset: 1024 * index as u64, length: 512 };
                retained.insert(range, Content::Zeroes { may_discard: false });
            }
            (retained.is_near_bound(), retained.is_full())
        };
        assert_eq!(fill_to(RETAINED_ENTRIES_MAX), (false, false));
        assert_eq!(fill_to(RETAINED_ENTRIES_MAX + 1), (true, false));
        assert_eq!(fill_to(2 * RETAINED_ENTRIES_MAX - 1), (true, false));
        assert_eq!(fill_to(2 * RETAINED_ENTRIES_MAX), (true, true));
    }

    #[test]
    fn overwriting_one_block_takes_no_more_memory() {
        let mut retained = Retained::new(16 << 10);
        for _ in 0..100 {
            let copy = retained.reserve(4096).expect("the older copy is dropped");
            retained.insert(ByteRange { offset: 0, length: 4096 }, Content::Bytes(Arc::new(copy), 0..4096));
        }
        assert_eq!(retained.bytes(), 4096);
    }
}
