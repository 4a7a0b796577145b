//! The bytes of a read that have arrived.
//!
//! Data-In comes in order from nearly every target, so the front is one number; data that arrives
//! ahead of it is kept as pieces until the front reaches them. A byte that arrives twice is an
//! error (RFC 7143 13.18: overlays are forbidden): counted twice, it would hide a missing one.

use std::ops::Range;

use crate::limits::DATA_IN_PIECES_MAX;

/// The bytes of one task that have come.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// All bytes before this one have arrived.
    front: usize,
    /// Pieces behind the front, which do not touch; in no order.
    pieces: Vec<Range<usize>>,
}

impl Received {
    /// Count of bytes that have arrived.
    pub(super) fn bytes(&self) -> usize {
        self.front + self.pieces.iter().map(Range::len).sum::<usize>()
    }

    /// Adds a piece that is not empty. Returns `false` when one of its bytes has arrived before, or
    /// when there are too many pieces.
    pub(super) fn add(&mut self, piece: Range<usize>) -> bool {
        let overlaps = |other: &Range<usize>| piece.start < other.end && other.start < piece.end;
        if piece.start < self.front || self.pieces.iter().any(overlaps) || self.pieces.len() >= DATA_IN_PIECES_MAX {
            return false;
        }
        if piece.start > self.front {
            self.pieces.push(piece);
            return true;
        }
        self.front = piece.end;
        while let Some(next) = self.pieces.iter().position(|piece| piece.start == self.front) {
            self.front = self.pieces.swap_remove(next).end;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_bitmap(pieces in prop::collection::vec((0usize..64, 1usize..16), 0..40)) {
            let (mut received, mut bitmap) = (Received::default(), [false; 80]);
            for (start, length) in pieces {
                let is_new = bitmap[start..start + length].iter().all(|has_come| !has_come);
                prop_assert_eq!(received.add(start..start + length), is_new);
                if is_new {
                    bitmap[start..start + length].fill(true);
                }
                prop_assert_eq!(received.bytes(), bitmap.iter().filter(|has_come| **has_come).count());
            }
        }
    }

    #[test]
    fn pieces_are_bounded() {
        let mut received = Received::default();
        for index in 0..DATA_IN_PIECES_MAX {
            assert!(received.add(2 * index + 1..2 * index + 2));
        }
        assert!(!received.add(1 << 20..(1 << 20) + 1));
    }
}
