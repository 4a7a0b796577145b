//! Checksums of the data in segments, entry by entry.
//!
//! A record has one checksum over all of it. Destaging in order of LBA takes single pieces out of
//! records, and would have to read whole records to check a piece. So in that order the checksum of
//! each entry is kept in RAM from when its record is made, 8 bytes an entry. Those of segments that
//! the opening found are *learned* with the first piece of one: the segment is read as a whole, and
//! its records are checked.

use base::checksum::crc32c;

use crate::found::Found;
use crate::images::Images;
use crate::limits::{SEGMENT_BYTES_MAX, UNIT_BYTES};
use crate::map::Piece;
use crate::numbers::SegmentNumber;
use crate::unit::LogUnit;

/// The checksum of an entry of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    /// First unit of the entry, within the segment.
    unit: u16,
    sectors: u16,
    checksum: u32,
}
const _: () = assert!(size_of::<Sum>() == 8);
const _: () = assert!(SEGMENT_BYTES_MAX as u64 / UNIT_BYTES <= u16::MAX as u64);

/// First unit of an entry, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) unit: LogUnit,
    pub(crate) sectors: u64,
    pub(crate) checksum: u32,
}

impl Entry {
    pub(crate) fn end(&self) -> LogUnit {
        self.unit + self.sectors
    }
}

/// Checksums of the entries of each segment, where they are known.
pub(crate) struct Sums {
    /// Entries of each segment, ascending; `None` where they are not known.
    by_segment: Vec<Option<Vec<Sum>>>,
    is_kept: bool,
}

impl Sums {
    /// Checksums of `segment_count` segments. Unless they are `kept`, only learned ones are known.
    pub(crate) fn new(segment_count: u32, is_kept: bool) -> Self {
        Self { by_segment: vec![None; segment_count as usize], is_kept }
    }

    /// Whether entries are noted when their record is made.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Begins a segment that is used again.
    pub(crate) fn begin(&mut self, segment: SegmentNumber) {
        self.by_segment[segment.index()] = self.is_kept.then(Vec::new);
    }

    /// Forgets a segment: nothing in it is sent any more.
    pub(crate) fn forget(&mut self, segment: SegmentNumber) {
        self.by_segment[segment.index()] = None;
    }

    /// Notes an entry of the segment that begins at `first`, behind all others.
    pub(crate) fn add(&mut self, segment: SegmentNumber, first: LogUnit, unit: LogUnit, bytes: &[u8]) {
        if let Some(sums) = &mut self.by_segment[segment.index()] {
            sums.push(sum(first, unit, bytes));
        }
    }

    /// Notes all entries of a segment that begins at `first`, from its bytes and its whole records.
    pub(crate) fn learn(&mut self, segment: SegmentNumber, first: LogUnit, images: &Images, records: &[Found]) {
        let pieces = records.iter().flat_map(|record| &record.pieces).filter(|piece| piece.is_in_segment());
        let sum_of = |piece: &Piece| {
            let bytes = images.get(piece.unit(), (piece.sectors * UNIT_BYTES) as usize)?;
            Some(sum(first, piece.unit(), bytes))
        };
        self.by_segment[segment.index()] = Some(pieces.filter_map(sum_of).collect());
    }

    /// The entries in which the `sectors` from `unit` on lie, of the segment that begins at `first`; `None` when not
    /// all are known.
    pub(crate) fn entries(
        &self,
        segment: SegmentNumber,
        first: LogUnit,
        unit: LogUnit,
        sectors: u64,
    ) -> Option<Vec<Entry>> {
        let sums = self.by_segment.get(segment.index())?.as_ref()?;
        let end = unit + sectors;
        let from = sums.partition_point(|sum| entry(first, sum).end() <= unit);
        let entries = sums[from..].iter().map(|sum| entry(first, sum));
        let found: Vec<Entry> = entries.take_while(|entry| entry.unit < end).collect();
        let is_whole = found.first().is_some_and(|entry| entry.unit <= unit)
            && found.last().is_some_and(|entry| entry.end() >= end)
            && found.windows(2).all(|pair| pair[0].end() == pair[1].unit);
        is_whole.then_some(found)
    }
}

fn sum(first: LogUnit, unit: LogUnit, bytes: &[u8]) -> Sum {
    let sectors = bytes.len() as u64 / UNIT_BYTES;
    Sum { unit: (unit - first) as u16, sectors: sectors as u16, checksum: crc32c(bytes) }
}

fn entry(first: LogUnit, sum: &Sum) -> Entry {
    Entry { unit: first + u64::from(sum.unit), sectors: u64::from(sum.sectors), checksum: sum.checksum }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentNumber = SegmentNumber(1);

    #[test]
    fn a_piece_is_covered_by_its_entries_or_not_known() {
        let mut sums = Sums::new(2, true);
        assert_eq!(
            sums.entries(SEGMENT, LogUnit(100), LogUnit(101), 1),
            None,
            "nothing is known of a segment that was not begun"
        );
        sums.begin(SEGMENT);
        let (one, other) = ([1; 1024], [2; 512]);
        sums.add(SEGMENT, LogUnit(100), LogUnit(101), &one);
        sums.add(SEGMENT, LogUnit(100), LogUnit(103), &other);
        // Behind the header of the next record.
        sums.add(SEGMENT, LogUnit(100), LogUnit(105), &other);
        let entry = |unit, bytes: &[u8]| Entry {
            unit: LogUnit(unit),
            sectors: bytes.len() as u64 / 512,
            checksum: crc32c(bytes),
        };
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(102), 1), Some(vec![entry(101, &one)]));
        assert_eq!(
            sums.entries(SEGMENT, LogUnit(100), LogUnit(101), 3),
            Some(vec![entry(101, &one), entry(103, &other)])
        );
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(103), 3), None, "a header lies between");
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(105), 2), None, "it ends behind the last");
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(100), 1), None, "it begins before the first");
        sums.forget(SEGMENT);
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(102), 1), None);
        let mut sums = Sums::new(2, false);
        sums.begin(SEGMENT);
        sums.add(SEGMENT, LogUnit(100), LogUnit(101), &one);
        assert_eq!(sums.entries(SEGMENT, LogUnit(100), LogUnit(101), 1), None, "not kept");
    }
}
