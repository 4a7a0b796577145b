//! The newest records in RAM: what they hold is read and destaged without the log device.

use std::collections::{BTreeMap, VecDeque};

use base::buffer::Buffer;

use crate::limits::UNIT_BYTES;

/// Records by place, the oldest dropped first.
pub(crate) struct RecordCache {
    bytes_max: usize,
    bytes: usize,
    by_place: BTreeMap<u32, Buffer>,
    by_age: VecDeque<u32>,
}

impl RecordCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, by_place: BTreeMap::new(), by_age: VecDeque::new() }
    }

    /// Keeps a record that begins at `place`.
    pub(crate) fn insert(&mut self, place: u32, record: Buffer) {
        if record.is_empty() || record.capacity() > self.bytes_max {
            return;
        }
        self.bytes += record.capacity();
        if let Some(old) = self.by_place.insert(place, record) {
            self.bytes -= old.capacity();
        } else {
            self.by_age.push_back(place);
        }
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.by_age.pop_front() else { return };
            self.bytes -= self.by_place.remove(&oldest).map_or(0, |record| record.capacity());
        }
    }

    /// Forgets the records of `units` from `place` on: their segment is used again.
    pub(crate) fn forget(&mut self, place: u32, units: u64) {
        let end = u64::from(place) + units;
        while let Some((&first, _)) = self.by_place.range(place..).next().filter(|(first, _)| u64::from(**first) < end)
        {
            self.bytes -= self.by_place.remove(&first).map_or(0, |record| record.capacity());
        }
        self.by_age.retain(|&other| u64::from(other) < u64::from(place) || u64::from(other) >= end);
    }

    /// The `length` bytes at `place`, if they are here.
    pub(crate) fn get(&self, place: u32, length: usize) -> Option<&[u8]> {
        let (&start, record) = self.by_place.range(..=place).next_back()?;
        let at = (u64::from(place - start) * UNIT_BYTES) as usize;
        record.get(at..at.checked_add(length)?)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_a_segment_used_again_is_forgotten() {
        // What counts is the memory, in pages.
        let mut cache = RecordCache::new(8192);
        cache.insert(0, Buffer::copy_of(&[1; 1024]));
        cache.insert(2, Buffer::copy_of(&[2; 1024]));
        assert_eq!(cache.get(1, 512), Some(&[1; 512][..]));
        assert_eq!(cache.get(1, 1024), None, "a record does not go on in the next");
        cache.insert(4, Buffer::copy_of(&[3; 512]));
        assert_eq!((cache.get(0, 512), cache.bytes()), (None, 8192));
        cache.forget(2, 2);
        assert_eq!((cache.get(2, 512), cache.get(4, 512), cache.bytes()), (None, Some(&[3; 512][..]), 4096));
    }
}
