//! The newest and the most used records in RAM: what they hold is read and destaged without the log device.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;

use crate::limits::UNIT_BYTES;

struct Record {
    bytes: Arc<Buffer>,
    /// Key in `by_use`.
    used: u64,
}

/// Records by place, the least recently used dropped first (paper 000, 2).
pub(crate) struct RecordCache {
    bytes_max: usize,
    bytes: usize,
    by_place: BTreeMap<u32, Record>,
    /// Places by when they were used.
    by_use: BTreeMap<u64, u32>,
    uses: u64,
}

impl RecordCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, by_place: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Keeps a record that begins at `place`.
    pub(crate) fn insert(&mut self, place: u32, record: Buffer) {
        if record.is_empty() || record.capacity() > self.bytes_max {
            return;
        }
        self.drop_record(place);
        self.bytes += record.capacity();
        self.uses += 1;
        self.by_place.insert(place, Record { bytes: Arc::new(record), used: self.uses });
        self.by_use.insert(self.uses, place);
        while self.bytes > self.bytes_max {
            let Some((_, &oldest)) = self.by_use.first_key_value() else { return };
            self.drop_record(oldest);
        }
    }

    fn drop_record(&mut self, place: u32) {
        if let Some(record) = self.by_place.remove(&place) {
            self.bytes -= record.bytes.capacity();
            self.by_use.remove(&record.used);
        }
    }

    /// Forgets the records of `units` from `place` on: their segment is used again.
    pub(crate) fn forget(&mut self, place: u32, units: u64) {
        let end = u64::from(place) + units;
        while let Some((&first, _)) = self.by_place.range(place..).next().filter(|(first, _)| u64::from(**first) < end)
        {
            self.drop_record(first);
        }
    }

    /// The `length` bytes at `place`, if they are here.
    pub(crate) fn get(&self, place: u32, length: usize) -> Option<&[u8]> {
        let (&start, record) = self.by_place.range(..=place).next_back()?;
        let at = (u64::from(place - start) * UNIT_BYTES) as usize;
        record.bytes.get(at..at.checked_add(length)?)
    }

    /// The record with the `length` bytes at `place`, and where it begins, if it is here.
    pub(crate) fn record_of(&self, place: u32, length: usize) -> Option<(u32, Arc<Buffer>)> {
        self.get(place, length)?;
        let (&start, record) = self.by_place.range(..=place).next_back()?;
        Some((start, Arc::clone(&record.bytes)))
    }

    /// The records that begin among the `units` from `place` on, ascending.
    pub(crate) fn records_in(&self, place: u32, units: u64) -> impl Iterator<Item = (u32, &Arc<Buffer>)> + '_ {
        let end = u64::from(place) + units;
        let from = self.by_place.range(place..);
        from.take_while(move |(start, _)| u64::from(**start) < end).map(|(&start, record)| (start, &record.bytes))
    }

    /// [`RecordCache::get`] for a reader: the record is dropped later.
    pub(crate) fn get_used(&mut self, place: u32, length: usize) -> Option<&[u8]> {
        let (&start, record) = self.by_place.range_mut(..=place).next_back()?;
        let at = (u64::from(place - start) * UNIT_BYTES) as usize;
        let bytes = record.bytes.get(at..at.checked_add(length)?)?;
        if record.used != self.uses {
            self.uses += 1;
            self.by_use.remove(&record.used);
            self.by_use.insert(self.uses, start);
            record.used = self.uses;
        }
        Some(bytes)
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

    #[test]
    fn what_readers_use_stays_and_what_they_miss_does_not() {
        let record = |byte| Buffer::copy_of(&[byte; 1024]);
        let mut cache = RecordCache::new(2 * record(0).capacity());
        cache.insert(0, record(1));
        cache.insert(2, record(2));
        assert_eq!(cache.get_used(1, 512), Some(&[1; 512][..]));
        assert_eq!(cache.get_used(1, 1024), None, "it ends in another record");
        cache.insert(4, record(3));
        assert!(cache.get(0, 512).is_some() && cache.get(2, 512).is_none(), "the other one was used longer ago");
        // A miss behind a record is no use of it.
        assert_eq!(cache.get_used(100, 512), None);
        cache.insert(6, record(4));
        assert!(cache.get(0, 512).is_none() && cache.get(4, 512).is_some());
    }
}
