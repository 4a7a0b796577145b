//! The size of a cache's lines, and the lines that a range of bytes touches.
//!
//! A line is the unit in which frames are assigned and looked up. Larger lines take less memory for
//! the same bytes; smaller ones waste less of the cache device on unused data. Valid and dirty are
//! known by sectors of 512 bytes, whatever the size of a line.

use std::ops::Range;
use std::str::FromStr;

use base::range::ByteRange;
use base::units::ByteSize;

use crate::limits::{LINE_BYTES_DEFAULT, LINE_BYTES_MAX, LINE_BYTES_MIN, SECTOR_BYTES};
use crate::numbers::BlockNumber;
use crate::sectors::{SectorRun, Sectors};

/// Bytes of a line: a power of two between [`LINE_BYTES_MIN`] and [`LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSize {
    shift: u32,
}

impl Default for LineSize {
    fn default() -> Self {
        Self { shift: LINE_BYTES_DEFAULT.ilog2() }
    }
}

impl LineSize {
    /// Lines of `bytes`; `None` where no line has that size.
    pub fn new(bytes: u64) -> Option<Self> {
        let is_possible = bytes.is_power_of_two() && (LINE_BYTES_MIN..=LINE_BYTES_MAX).contains(&bytes);
        is_possible.then(|| Self { shift: bytes.ilog2() })
    }

    /// Bytes of a line.
    pub fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// Sectors of a line.
    pub fn sector_count(self) -> u32 {
        (self.bytes() / SECTOR_BYTES) as u32
    }

    /// Bytes of a bitmap with one bit a sector.
    pub fn bitmap_bytes(self) -> usize {
        self.sector_count() as usize / 8
    }

    /// All sectors of a line.
    pub fn all_sectors(self) -> Sectors {
        Sectors::of(SectorRun { first: 0, count: self.sector_count() })
    }

    /// The block that has this byte.
    pub fn block_at(self, offset: u64) -> BlockNumber {
        BlockNumber(offset >> self.shift)
    }

    /// The blocks that `range` touches.
    pub fn blocks_of(self, range: ByteRange) -> Range<BlockNumber> {
        self.block_at(range.offset)..BlockNumber(range.end().div_ceil(self.bytes()))
    }

    /// `range` widened to whole lines.
    pub fn whole_lines(self, range: ByteRange) -> ByteRange {
        let blocks = self.blocks_of(range);
        let offset = self.start_of(blocks.start);
        // The last line of the largest device would end past what fits; it ends where the range does.
        let length = blocks.start.count_up_to(blocks.end).saturating_mul(self.bytes()).min(u64::MAX - offset);
        ByteRange { offset, length }
    }

    /// Offset of a block that is within an origin.
    fn start_of(self, block: BlockNumber) -> u64 {
        block.0 * self.bytes()
    }

    /// Offset of a block number from the device, which may be beyond the end; `None` where it does
    /// not fit into 64 bits.
    pub(crate) fn checked_start_of(self, block: BlockNumber) -> Option<u64> {
        block.0.checked_mul(self.bytes())
    }

    /// The bytes of a block's line.
    pub fn line_range(self, block: BlockNumber) -> ByteRange {
        ByteRange { offset: self.start_of(block), length: self.bytes() }
    }

    /// The part of `block` that `range` touches: (sectors, offset of the first byte in the range).
    pub fn part_of(self, block: BlockNumber, range: ByteRange) -> (Sectors, usize) {
        let line = self.line_range(block);
        let Some(part) = line.intersection(&range) else { return (Sectors::NONE, 0) };
        let first = ((part.offset - line.offset) / SECTOR_BYTES) as u32;
        let count = (part.length / SECTOR_BYTES) as u32;
        (Sectors::of(SectorRun { first, count }), (part.offset - range.offset) as usize)
    }
}

impl FromStr for LineSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = text.parse::<ByteSize>().ok().and_then(|size| Self::new(size.0));
        size.ok_or_else(|| {
            let [min, max] = [LINE_BYTES_MIN, LINE_BYTES_MAX].map(ByteSize);
            format!("\"{text}\" is no size of a line: a power of two from {min} to {max}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_some_sizes_and_no_others() {
        for bytes in [4096, 8192, 65536, 262_144] {
            let size = LineSize::new(bytes).unwrap();
            assert_eq!((size.bytes(), u64::from(size.sector_count()) * 512), (bytes, bytes));
            assert_eq!(size.all_sectors().count(), size.sector_count());
        }
        for bytes in [0, 512, 2048, 4097, 12288, 524_288, u64::MAX] {
            assert_eq!(LineSize::new(bytes), None, "{bytes}");
        }
        assert_eq!(LineSize::default().bytes(), 4096);
        assert_eq!("64KiB".parse(), Ok(LineSize::new(65536).unwrap()));
        for text in ["2KiB", "512KiB", "12KiB", "large"] {
            assert!(text.parse::<LineSize>().unwrap_err().contains("4KiB to 256KiB"), "{text}");
        }
    }

    #[test]
    fn parts_of_a_range_are_its_sectors() {
        let size = LineSize::default();
        let range = ByteRange { offset: 4096 - 512, length: 512 + 4096 + 1024 };
        assert_eq!(size.blocks_of(range), BlockNumber(0)..BlockNumber(3));
        assert_eq!(size.part_of(BlockNumber(0), range), (Sectors::from_bytes(&[0x80]), 0));
        assert_eq!(size.part_of(BlockNumber(1), range), (Sectors::from_bytes(&[0xff]), 512));
        assert_eq!(size.part_of(BlockNumber(2), range), (Sectors::from_bytes(&[0x03]), 512 + 4096));
        assert_eq!(size.part_of(BlockNumber(3), range), (Sectors::NONE, 0));
        assert_eq!(size.whole_lines(range), ByteRange { offset: 0, length: 3 * 4096 });
        let size = LineSize::new(65536).unwrap();
        assert_eq!(size.blocks_of(range), BlockNumber(0)..BlockNumber(1));
        assert_eq!(size.part_of(BlockNumber(0), range), (Sectors::of(SectorRun { first: 7, count: 11 }), 0));
    }
}
