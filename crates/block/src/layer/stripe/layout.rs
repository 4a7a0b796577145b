//! The arithmetic of a stripe: which byte lies on which member.
//!
//! ```text
//! unit of the stripe   0   1   2   3   4   5   6 ...
//! member               0   1   2   0   1   2   0
//! unit on the member   0   0   0   1   1   1   2
//! ```
//!
//! What follows from it, and is used everywhere: a contiguous range of the stripe is at most one contiguous range of
//! each member, because units that follow each other on a member have the units of all other members between them.

use base::range::ByteRange;

/// Unit and members of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes that lie on one member before the next member's turn; a power of two.
    pub unit_bytes: u64,
    /// Members, at least one.
    pub member_count: u64,
}

/// A part of a range that lies within one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the member.
    pub member: usize,
    /// Offset on the member, in bytes.
    pub member_offset: u64,
    /// Offset within the range, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Layout {
    /// Bytes of a row: a unit of each member.
    pub fn row_bytes(&self) -> u64 {
        self.unit_bytes * self.member_count
    }

    /// Bytes of the first `offset` bytes of the stripe that lie on `member`.
    fn bytes_on(&self, member: usize, offset: u64) -> u64 {
        let (rows, rest) = (offset / self.row_bytes(), offset % self.row_bytes());
        let first_of_member = member as u64 * self.unit_bytes;
        rows * self.unit_bytes + rest.saturating_sub(first_of_member).min(self.unit_bytes)
    }

    /// The range of `member` on which `range` lies; empty when none of it does.
    pub fn on_member(&self, member: usize, range: ByteRange) -> ByteRange {
        let offset = self.bytes_on(member, range.offset);
        ByteRange { offset, length: self.bytes_on(member, range.end()) - offset }
    }

    /// Whether `range` lies within one unit.
    pub fn is_in_one_unit(&self, range: ByteRange) -> bool {
        range.offset % self.unit_bytes + range.length <= self.unit_bytes
    }

    /// The member of the byte at `offset`, and its offset there.
    pub fn place(&self, offset: u64) -> (usize, u64) {
        let unit = offset / self.unit_bytes;
        let member = (unit % self.member_count) as usize;
        (member, unit / self.member_count * self.unit_bytes + offset % self.unit_bytes)
    }

    /// Cuts `range` at units, in order.
    pub fn pieces(self, range: ByteRange) -> impl Iterator<Item = Piece> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let left = range.length.checked_sub(at).filter(|&left| left > 0)?;
            let offset = range.offset + at;
            let (member, member_offset) = self.place(offset);
            let length = left.min(self.unit_bytes - offset % self.unit_bytes);
            let piece = Piece { member, member_offset, at, length };
            at += length;
            Some(piece)
        })
    }

    /// The ranges of the stripe on which `range` of `member` lies, in order.
    pub fn of_member(self, member: usize, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let mut offset = range.offset;
        std::iter::from_fn(move || {
            let left = range.end().checked_sub(offset).filter(|&left| left > 0)?;
            let (unit, within) = (offset / self.unit_bytes, offset % self.unit_bytes);
            let length = left.min(self.unit_bytes - within);
            offset += length;
            let first = unit * self.row_bytes() + member as u64 * self.unit_bytes;
            Some(ByteRange { offset: first + within, length })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table of `docs/formats/stripe.md`, in which units are 4 KiB and members three.
    #[test]
    fn units_lie_where_the_format_says() {
        let layout = Layout { unit_bytes: 4096, member_count: 3 };
        for (offset, expected) in
            [(0, (0, 0)), (4096, (1, 0)), (8192, (2, 0)), (12_288, (0, 4096)), (20_992, (2, 4608)), (24_576, (0, 8192))]
        {
            assert_eq!(layout.place(offset), expected, "{offset}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_one_range_of_each_member(
            unit_shift in 9u32..13, member_count in 1u64..6, offset in 0u64..100_000, length in 0u64..100_000
        ) {
            let layout = Layout { unit_bytes: 1 << unit_shift, member_count };
            let range = ByteRange { offset, length };
            for member in 0..member_count as usize {
                let whole = layout.on_member(member, range);
                let mut next = whole.offset;
                for piece in layout.pieces(range).filter(|piece| piece.member == member) {
                    prop_assert_eq!(piece.member_offset, next);
                    next += piece.length;
                    prop_assert_eq!(layout.place(range.offset + piece.at), (member, piece.member_offset));
                }
                prop_assert_eq!(next, whole.end());
                let back: Vec<ByteRange> = layout.of_member(member, whole).collect();
                let there = layout.pieces(range).filter(|piece| piece.member == member);
                let there: Vec<ByteRange> =
                    there.map(|piece| ByteRange { offset: offset + piece.at, length: piece.length }).collect();
                prop_assert_eq!(back, there);
            }
            prop_assert_eq!(layout.pieces(range).map(|piece| piece.length).sum::<u64>(), length);
        }
    }
}
