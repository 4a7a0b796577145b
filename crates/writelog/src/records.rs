//! The cache of the newest and most used records in RAM: they are read and destaged without the log
//! device.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;

use crate::limits::UNIT_BYTES;
use crate::unit::LogUnit;

struct Record {
    bytes: Arc<Buffer>,
    /// Key in `by_use`.
    used: u64,
}

/// Records by the unit of the first byte, the least recently used dropped first (paper 000, 2).
pub(crate) struct RecordCache {
    bytes_max: usize,
    bytes: usize,
    by_unit: BTreeMap<LogUnit, Record>,
    /// Units of records by their last use.
    by_use: BTreeMap<u64, LogUnit>,
    uses: u64,
}

impl RecordCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, by_unit: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Keeps a record that begins at `unit`.
    pub(crate) fn insert(&mut self, unit: LogUnit, record: Buffer) {
        if record.is_empty() || record.capacity() > self.bytes_max {
            return;
        }
        self.drop_record(unit);
        self.bytes += record.capacity();
        self.uses += 1;
        self.by_unit.insert(unit, Record { bytes: Arc::new(record), used: self.uses });
        self.by_use.insert(self.uses, unit);
        while self.bytes > self.bytes_max {
            let Some((_, &oldest)) = self.by_use.first_key_value() else { return };
            self.drop_record(oldest);
        }
    }

    fn drop_record(&mut self, unit: LogUnit) {
        if let Some(record) = self.by_unit.remove(&unit) {
            self.bytes -= record.bytes.capacity();
            self.by_use.remove(&record.used);
        }
    }

    /// Forgets the records of `units` from `unit` on: their segment is used again.
    pub(crate) fn forget(&mut self, unit: LogUnit, units: u64) {
        let end = unit + units;
        while let Some((&first, _)) = self.by_unit.range(unit..).next().filter(|(first, _)| **first < end) {
            self.drop_record(first);
        }
    }

    /// The `length` bytes at `unit`, if they are here.
    pub(crate) fn get(&self, unit: LogUnit, length: usize) -> Option<&[u8]> {
        let (&start, record) = self.by_unit.range(..=unit).next_back()?;
        let at = ((unit - start) * UNIT_BYTES) as usize;
        record.bytes.get(at..at.checked_add(length)?)
    }

    /// The record with the `length` bytes at `unit`, and where it begins, if it is here.
    pub(crate) fn record_of(&self, unit: LogUnit, length: usize) -> Option<(LogUnit, Arc<Buffer>)> {
        self.get(unit, length)?;
        let (&start, record) = self.by_unit.range(..=unit).next_back()?;
        Some((start, Arc::clone(&record.bytes)))
    }

    /// The records that begin among the `units` from `unit` on, ascending.
    pub(crate) fn records_in(&self, unit: LogUnit, units: u64) -> impl Iterator<Item = (LogUnit, &Arc<Buffer>)> + '_ {
        let end = unit + units;
        let from = self.by_unit.range(unit..);
        from.take_while(move |(start, _)| **start < end).map(|(&start, record)| (start, &record.bytes))
    }

    /// [`RecordCache::get`] for a reader: the record is dropped later.
    pub(crate) fn get_used(&mut self, unit: LogUnit, length: usize) -> Option<&[u8]> {
        let (&start, record) = self.by_unit.range_mut(..=unit).next_back()?;
        let at = ((unit - start) * UNIT_BYTES) as usize;
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
        // The bound is on memory, in whole pages.
        let mut cache = RecordCache::new(8192);
        cache.insert(LogUnit(0), Buffer::copy_of(&[1; 1024]));
        cache.insert(LogUnit(2), Buffer::copy_of(&[2; 1024]));
        assert_eq!(cache.get(LogUnit(1), 512), Some(&[1; 512][..]));
        assert_eq!(cache.get(LogUnit(1), 1024), None, "a record does not go on in the next");
        cache.insert(LogUnit(4), Buffer::copy_of(&[3; 512]));
        assert_eq!((cache.get(LogUnit(0), 512), cache.bytes()), (None, 8192));
        cache.forget(LogUnit(2), 2);
        assert_eq!(
            (cache.get(LogUnit(2), 512), cache.get(LogUnit(4), 512), cache.bytes()),
            (None, Some(&[3; 512][..]), 4096)
        );
    }

    #[test]
    fn what_readers_use_stays_and_what_they_miss_does_not() {
        let record = |byte| Buffer::copy_of(&[byte; 1024]);
        let mut cache = RecordCache::new(2 * record(0).capacity());
        cache.insert(LogUnit(0), record(1));
        cache.insert(LogUnit(2), record(2));
        assert_eq!(cache.get_used(LogUnit(1), 512), Some(&[1; 512][..]));
        assert_eq!(cache.get_used(LogUnit(1), 1024), None, "it ends in another record");
        cache.insert(LogUnit(4), record(3));
        assert!(
            cache.get(LogUnit(0), 512).is_some() && cache.get(LogUnit(2), 512).is_none(),
            "the other one was used longer ago"
        );
        // A miss behind a record does not count as its use.
        assert_eq!(cache.get_used(LogUnit(100), 512), None);
        cache.insert(LogUnit(6), record(4));
        assert!(cache.get(LogUnit(0), 512).is_none() && cache.get(LogUnit(4), 512).is_some());
    }
}
