//! Ranges of the origin that other hosts changed, and how they are dropped from the frames: see
//! [`freshness`](crate::freshness).

use base::range::ByteRange;
use store::ConflictingChanges;

use crate::alignment::inside;
use crate::format::Line;
use crate::frames::Frames;
use crate::limits::SECTOR_BYTES;
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::sectors::Sectors;

/// Ranges of the origin that other hosts changed: ascending, disjoint, in whole sectors.
pub(crate) struct Changes {
    pub(crate) ranges: Vec<ByteRange>,
}

impl Changes {
    /// From ranges of the origin, for a cache with this padding.
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

    /// The range of everything that an origin can have.
    pub(crate) fn of_everything() -> Self {
        Self::new(&[ByteRange { offset: 0, length: u64::MAX }], 0)
    }

    /// Sectors of `block` that were changed.
    fn in_line(&self, line_size: LineSize, block: BlockNumber) -> Sectors {
        let line = line_size.line_range(block);
        let first = self.ranges.partition_point(|range| range.end() <= line.offset);
        let touching = self.ranges.iter().skip(first).take_while(|range| range.offset < line.end());
        touching.fold(Sectors::NONE, |all, &range| all | line_size.part_of(block, range).0)
    }

    /// The lines of which something was changed: frame, line, and the changed sectors.
    fn lines_in<'a>(&'a self, frames: &'a Frames) -> impl Iterator<Item = (FrameNumber, Line, Sectors)> + 'a {
        let line_size = frames.layout().line_size;
        let count = if self.ranges.is_empty() { 0 } else { frames.layout().frame_count() };
        FrameNumber::FIRST.up_to(FrameNumber(count)).filter_map(move |frame| {
            let changed = self.in_line(line_size, frames.block(frame)?);
            (!changed.is_empty()).then(|| (frame, frames.line(frame), changed))
        })
    }

    /// Refuses changes to dirty sectors, unless the dirty data `is_overwritten`.
    pub(crate) fn check_apart_from_dirty(
        &self,
        frames: &Frames,
        is_overwritten: bool,
    ) -> Result<(), ConflictingChanges> {
        if is_overwritten {
            return Ok(());
        }
        match self.lines_in(frames).map(|(_, line, changed)| (line.dirty & changed).bytes()).sum() {
            0 => Ok(()),
            bytes => Err(ConflictingChanges { bytes }),
        }
    }

    /// Drops the changed clean sectors from the frames; their pages are written with the next
    /// checkpoint. Returns how many lines it concerned.
    ///
    /// # Errors
    /// [`ConflictingChanges`] where something dirty was changed as well, unless that `is_overwritten`. Nothing has
    /// changed then.
    pub(crate) fn drop_from(&self, frames: &mut Frames, is_overwritten: bool) -> Result<u64, ConflictingChanges> {
        self.check_apart_from_dirty(frames, is_overwritten)?;
        let going = |(frame, line, changed): (FrameNumber, Line, Sectors)| (frame, line.valid & changed & !line.dirty);
        let stale: Vec<(FrameNumber, Sectors)> =
            self.lines_in(frames).map(going).filter(|(_, going)| !going.is_empty()).collect();
        for &(frame, going) in &stale {
            let line = frames.line(frame);
            // The table on the device still has them until the next checkpoint; the caller returns
            // only after that.
            frames.set_mapped(frame, false);
            frames.set_sectors(frame, line.valid & !going, line.dirty);
            if line.valid == going {
                frames.release(frame);
            }
        }
        Ok(stale.len() as u64)
    }
}

/// `range` widened to whole sectors.
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
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(0)), Sectors::from_bytes(&[0b111]));
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(1)), Sectors::from_bytes(&[0b10]));
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(2)), Sectors::from_bytes(&[0b10]));
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(3)), Sectors::NONE);
    }

    #[test]
    fn changes_lie_where_lines_begin() {
        let changes = Changes::new(&[range(0, 512)], 3584);
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(0)), Sectors::from_bytes(&[0x80]));
    }

    #[test]
    fn a_range_that_ends_behind_everything_is_one() {
        let changes = Changes::new(&[range(u64::MAX - 100, 100), range(4096, u64::MAX - 4096)], 512);
        assert_eq!(changes.ranges.len(), 1);
        assert_eq!(changes.in_line(LineSize::default(), BlockNumber(1)), Sectors::from_bytes(&[0b1111_1110]));
    }
}
