//! Ranges of bytes as sectors of the log and as blocks of the origin.

use base::range::ByteRange;

use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::numbers::Sector;

/// The sectors of a range of whole sectors.
pub(crate) fn sectors_of(range: ByteRange) -> (Sector, u64) {
    (Sector::at(range.offset), range.length / UNIT_BYTES)
}

/// The first of the sectors that `range` touches, and how many they are.
pub(crate) fn whole_sectors(range: ByteRange) -> (Sector, u64) {
    let (first, end) = (Sector::at(range.offset), range.end().div_ceil(UNIT_BYTES));
    (first, end.saturating_sub(first.0))
}

/// The bytes that a piece has.
pub(crate) fn range_of(piece: &Piece) -> ByteRange {
    ByteRange { offset: piece.sector.offset(), length: piece.sectors * UNIT_BYTES }
}

/// The blocks of the origin that `range` touches.
pub(crate) fn whole_blocks(range: ByteRange, block_bytes: u64) -> ByteRange {
    let (start, end) = (range.offset / block_bytes * block_bytes, range.end().next_multiple_of(block_bytes));
    ByteRange { offset: start, length: end - start }
}
