//! Whether what the cache holds is still what the origin has, after a time in which nobody looked on.
//!
//! | the origin | clean sectors | dirty sectors |
//! |---|---|---|
//! | is unchanged | stay | stay |
//! | was changed in some ranges | go, in these ranges | in these ranges: both were changed, and open fails unless told otherwise |
//! | may have changed anywhere | go | stay: nobody says that others wrote there |
//!
//! What goes is gone *durably* before an open returns: from then on the caller may forget what has changed. Until then it says it again.

use base::range::ByteRange;
use store::ConflictingChanges;

use crate::alignment::inside;
use crate::frames::Frames;
use crate::limits::SECTOR_BYTES;
use crate::line_size::LineSize;
use crate::sectors::Sectors;

/// What others did to the origin since the cache was open last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Nothing: it is used by this host alone.
    #[default]
    Unchanged,
    /// They changed these bytes at most; in any order, they may overlap and lie beyond the end.
    Changed(Vec<ByteRange>),
    /// Nobody can tell.
    Unknown,
}

/// Ranges of the origin that others changed: ascending, apart, in whole sectors.
pub(crate) struct Changes {
    ranges: Vec<ByteRange>,
}

impl Changes {
    /// Ranges as the origin's users name them, for a cache with this padding.
    pub(crate) fn new(ranges: &[ByteRange], padding: u64) -> Self {
        let mut ranges: Vec<ByteRange> = ranges
            .iter()
            .filter(|range| !range.is_empty())
            .map(|&range| whole_sectors(inside(range, padding)))
            .collect();
        ranges.sort_unstable();
        let mut merged: Vec<ByteRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.offset <= last.end() => last.length = last.length.max(range.end() - last.offset),
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    /// All that an origin can have.
    pub(crate) fn of_everything() -> Self {
        Self::new(&[ByteRange { offset: 0, length: u64::MAX }], 0)
    }

    /// Sectors of `block` that were changed.
    fn in_line(&self, line_size: LineSize, block: u64) -> Sectors {
        let line = line_size.line_range(block);
        let first = self.ranges.partition_point(|range| range.end() <= line.offset);
        let touching = self.ranges.iter().skip(first).take_while(|range| range.offset < line.end());
        touching.fold(Sectors::NONE, |all, &range| all | line_size.part_of(block, range).0)
    }

    /// Takes what is clean and was changed out of the frames, and has its pages written with the next checkpoint; how many lines it concerned.
    ///
    /// # Errors
    /// [`ConflictingChanges`] where something dirty was changed as well, unless that `is_overwritten`. Nothing has changed then.
    pub(crate) fn drop_from(&self, frames: &mut Frames, is_overwritten: bool) -> Result<u64, ConflictingChanges> {
        let line_size = frames.layout().line_size;
        let mut stale: Vec<(u32, Sectors)> = Vec::new();
        let mut conflict = ConflictingChanges { bytes: 0 };
        if self.ranges.is_empty() {
            return Ok(0);
        }
        for frame in 0..frames.layout().frame_count() {
            let Some(block) = frames.block(frame) else { continue };
            let changed = self.in_line(line_size, block);
            if changed.is_empty() {
                continue;
            }
            let line = frames.line(frame);
            conflict.bytes += (line.dirty & changed).bytes();
            let going = line.valid & changed & !line.dirty;
            if !going.is_empty() {
                stale.push((frame, going));
            }
        }
        if conflict.bytes > 0 && !is_overwritten {
            return Err(conflict);
        }
        for &(frame, going) in &stale {
            let line = frames.line(frame);
            // The device says otherwise until the next checkpoint, and nobody is answered before that.
            frames.set_mapped(frame, false);
            frames.set_sectors(frame, line.valid & !going, line.dirty);
            if line.valid == going {
                frames.release(frame);
            }
        }
        Ok(stale.len() as u64)
    }
}

/// `range` and the rest of the sectors it touches.
fn whole_sectors(range: ByteRange) -> ByteRange {
    let offset = range.offset - range.offset % SECTOR_BYTES;
    let end = range.offset.saturating_add(range.length);
    let end = end.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX - u64::MAX % SECTOR_BYTES);
    ByteRange { offset, length: end.saturating_sub(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn changes_are_whole_sectors_ascending_and_apart() {
        let changes =
            Changes::new(&[range(5000, 1), range(0, 0), range(100, 500), range(512, 600), range(9000, 100)], 0);
        assert_eq!(changes.ranges, [range(0, 1536), range(4608, 512), range(8704, 512)]);
        assert_eq!(changes.in_line(LineSize::default(), 0), Sectors::from_bytes(&[0b111]));
        assert_eq!(changes.in_line(LineSize::default(), 1), Sectors::from_bytes(&[0b10]));
        assert_eq!(changes.in_line(LineSize::default(), 2), Sectors::from_bytes(&[0b10]));
        assert_eq!(changes.in_line(LineSize::default(), 3), Sectors::NONE);
    }

    #[test]
    fn changes_lie_where_lines_begin() {
        let changes = Changes::new(&[range(0, 512)], 3584);
        assert_eq!(changes.in_line(LineSize::default(), 0), Sectors::from_bytes(&[0x80]));
    }

    #[test]
    fn a_range_that_ends_behind_everything_is_one() {
        let changes = Changes::new(&[range(u64::MAX - 100, 100), range(4096, u64::MAX - 4096)], 512);
        assert_eq!(changes.ranges.len(), 1);
        assert_eq!(changes.in_line(LineSize::default(), 1), Sectors::from_bytes(&[0b1111_1110]));
    }
}
