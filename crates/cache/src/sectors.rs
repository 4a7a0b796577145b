//! Lines and the 512-byte sectors in them, as bits: bit 0 is the first sector of the line.

use base::range::ByteRange;

use crate::limits::{LINE_BYTES, SECTOR_BYTES};

/// All sectors of a line.
pub const ALL_SECTORS: u8 = 0xff;

/// Sectors `first..first + count` of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRun {
    /// First sector.
    pub first: u32,
    /// Count of sectors.
    pub count: u32,
}

impl SectorRun {
    /// Bytes from the start of the line.
    pub fn offset(&self) -> u64 {
        u64::from(self.first) * SECTOR_BYTES
    }

    /// Bytes of the run.
    pub fn length(&self) -> u64 {
        u64::from(self.count) * SECTOR_BYTES
    }

    /// The bytes of the run in a line's buffer.
    pub fn bytes(&self) -> std::ops::Range<usize> {
        self.offset() as usize..(self.offset() + self.length()) as usize
    }
}

/// The blocks that `range` touches.
pub fn blocks_of(range: ByteRange) -> std::ops::Range<u64> {
    range.offset / LINE_BYTES..range.end().div_ceil(LINE_BYTES)
}

/// `range` widened to whole lines.
pub fn whole_lines(range: ByteRange) -> ByteRange {
    let blocks = blocks_of(range);
    let offset = blocks.start * LINE_BYTES;
    // The last line of the largest device would end past what fits; it ends where the range does.
    let length = (blocks.end - blocks.start).saturating_mul(LINE_BYTES).min(u64::MAX - offset);
    ByteRange { offset, length }
}

/// The bytes of a block's line.
pub fn line_range(block: u64) -> ByteRange {
    ByteRange { offset: block * LINE_BYTES, length: LINE_BYTES }
}

/// The part of `block` that `range` touches: (sectors, offset of the first byte in the range).
pub fn part_of(block: u64, range: ByteRange) -> (u8, usize) {
    let line = line_range(block);
    let Some(part) = line.intersection(&range) else { return (0, 0) };
    let first = (part.offset - line.offset) / SECTOR_BYTES;
    let count = part.length / SECTOR_BYTES;
    let mask = ((1u32 << count) - 1) << first;
    (mask as u8, (part.offset - range.offset) as usize)
}

/// The runs of set bits, ascending.
pub fn runs(mask: u8) -> impl Iterator<Item = SectorRun> {
    let mut rest = u32::from(mask);
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let count = (rest >> first).trailing_ones();
        rest &= !(((1u32 << count) - 1) << first);
        Some(SectorRun { first, count })
    })
}

/// The shortest run with all set bits, or `None` without any.
pub fn hull(mask: u8) -> Option<SectorRun> {
    (mask != 0).then(|| {
        let first = mask.trailing_zeros();
        SectorRun { first, count: u8::BITS - mask.leading_zeros() - first }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_hulls_cover_their_mask() {
        for mask in 0..=255u8 {
            let covered = runs(mask).fold(0, |sum, run| sum | (((1u32 << run.count) - 1) << run.first));
            assert_eq!(covered, u32::from(mask));
            let ends = hull(mask).map(|hull| (hull.first, hull.first + hull.count));
            let naive = (0..8).find(|bit| mask >> bit & 1 == 1).zip((0..8).rev().find(|bit| mask >> bit & 1 == 1));
            assert_eq!(ends, naive.map(|(first, last)| (first, last + 1)));
        }
    }

    #[test]
    fn parts_of_a_range_are_its_sectors() {
        let range = ByteRange { offset: 4096 - 512, length: 512 + 4096 + 1024 };
        assert_eq!(blocks_of(range), 0..3);
        assert_eq!(part_of(0, range), (0x80, 0));
        assert_eq!(part_of(1, range), (0xff, 512));
        assert_eq!(part_of(2, range), (0x03, 512 + 4096));
        assert_eq!(part_of(3, range), (0, 0));
        assert_eq!(whole_lines(range), ByteRange { offset: 0, length: 3 * 4096 });
    }
}
