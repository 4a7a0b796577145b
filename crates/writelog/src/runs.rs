//! The writes in which a batch goes to the origin.
//!
//! - Adjacent pieces are one write.
//! - Writes are whole blocks of the origin. Where pieces are not (slots may be smaller than blocks), the rest of a
//!   block is read from the origin first: it is there, or newer and sent later.
//! - On a disk each further write costs a seek and half a turn, in which many bytes would pass under its head. When the
//!   user says how many (`seek_bytes`), pieces near each other become one write with what lies between them, which is
//!   read from the origin first:
//!
//! ```text
//!   n writes of d bytes in all         n * seek + d
//!   one read and one write of l bytes  2 * seek + 2 * l
//! ```
//!   whichever is less. The bytes between are written back as they were. No other host may write there meanwhile,
//!   which is why this is done only when the user asks for it.

use base::range::ByteRange;
use smallvec::{SmallVec, smallvec};

use crate::limits::{DESTAGE_DISCARD_BYTES_MAX, DESTAGE_ZEROES_BYTES_MAX, UNIT_BYTES};
use crate::map::Piece;
use crate::numbers::Sector;
use crate::place::{PlaceView, Zeroed};
use crate::sectors::{range_of, whole_blocks};

/// One write to the origin, or one request that makes a range zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Whole blocks of the origin, from the first piece to the end of the last.
    pub(crate) range: ByteRange,
    /// Ascending; mostly one.
    pub(crate) pieces: SmallVec<[Piece; 1]>,
    /// Whether it is a request without data: its one piece is zero, in whole blocks.
    pub(crate) is_zeroing: bool,
}

/// The bounds of the writes of a batch, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Block of the origin: no write begins or ends within one.
    pub(crate) block_bytes: u64,
    /// Longest write: a multiple of the block.
    pub(crate) length_max: u64,
    /// Bytes that a disk transfers in the time of one seek, which bounds the gap between two
    /// pieces; 0 for never.
    pub(crate) seek_bytes: u64,
}

impl Run {
    fn of(piece: Piece, block_bytes: u64) -> Self {
        let range = whole_blocks(range_of(&piece), block_bytes);
        Self { range, pieces: smallvec![piece], is_zeroing: false }
    }

    /// Whether there are bytes that no piece has: between pieces, or in the first and the last
    /// block.
    pub(crate) fn has_gaps(&self) -> bool {
        self.pieces.iter().map(|piece| piece.sectors * UNIT_BYTES).sum::<u64>() < self.range.length
    }

    fn joins(&self, next: &Self, gap_max: u64, length_max: u64) -> bool {
        !self.is_zeroing
            && !next.is_zeroing
            && next.range.offset.saturating_sub(self.range.end()) <= gap_max
            && next.range.end() - self.range.offset <= length_max
    }

    fn join(&mut self, next: Self) {
        self.range.length = next.range.end() - self.range.offset;
        self.pieces.extend(next.pieces);
    }
}

/// The writes for these ascending pieces, with gaps read where that costs less.
pub(crate) fn runs(pieces: &[Piece], bounds: &Bounds) -> Vec<Run> {
    let joined = joined(pieces, bounds);
    let Bounds { length_max, seek_bytes, .. } = *bounds;
    if seek_bytes == 0 {
        return joined;
    }
    // Each gap is read and written: one that takes longer than a seek costs more than it saves.
    let gap_max = seek_bytes / 2;
    let mut chosen = Vec::with_capacity(joined.len());
    let mut group: Vec<Run> = Vec::new();
    for run in joined {
        let is_near = match (group.first(), group.last()) {
            (Some(first), Some(last)) => {
                last.joins(&run, gap_max, length_max) && run.range.end() - first.range.offset <= length_max
            }
            _ => true,
        };
        if !is_near {
            close_group(&mut group, seek_bytes, &mut chosen);
        }
        group.push(run);
    }
    close_group(&mut group, seek_bytes, &mut chosen);
    chosen
}

/// The writes for these ascending pieces, adjacent ones joined. Pieces are cut at multiples of the longest write only,
/// so that no two writes meet in one block: where a block is written in part, the rest of it is read first, by one of
/// them.
pub(crate) fn joined(pieces: &[Piece], bounds: &Bounds) -> Vec<Run> {
    let cell_of = |run: &Run| run.range.offset / bounds.length_max;
    let mut runs: Vec<Run> = Vec::new();
    for next in pieces.iter().flat_map(|piece| parts(piece, bounds)) {
        match runs.last_mut() {
            Some(last) if cell_of(last) == cell_of(&next) && last.joins(&next, 0, bounds.length_max) => last.join(next),
            _ => runs.push(next),
        }
    }
    runs
}

/// Moves a group of near runs to `chosen`, joined or one by one.
fn close_group(group: &mut Vec<Run>, seek_bytes: u64, chosen: &mut Vec<Run>) {
    let data: u64 = group.iter().map(|run| run.range.length).sum();
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let length = last.range.end() - first.range.offset;
    let apart = (group.len() as u64).saturating_mul(seek_bytes).saturating_add(data);
    let together = 2 * length + seek_bytes.saturating_mul(2);
    if group.len() < 2 || apart <= together {
        chosen.append(group);
        return;
    }
    let mut runs = group.drain(..);
    let whole = runs.next().map(|mut whole| {
        runs.for_each(|run| whole.join(run));
        whole
    });
    chosen.extend(whole);
}

/// A piece in parts that each are within one multiple of the longest write. Zeroes in whole blocks
/// have no data.
fn parts(piece: &Piece, bounds: &Bounds) -> Vec<Run> {
    let block = bounds.block_bytes / UNIT_BYTES;
    let (start, end) = (piece.sector.next_multiple_of(block), piece.end().last_multiple_of(block));
    let cell = match piece.place.view() {
        PlaceView::Zeroes(Zeroed::Discarded) if start < end => DESTAGE_DISCARD_BYTES_MAX,
        PlaceView::Zeroes(Zeroed::Kept | Zeroed::MayDiscard) if start < end => DESTAGE_ZEROES_BYTES_MAX,
        _ => return cut(piece, bounds.length_max).map(|part| Run::of(part, bounds.block_bytes)).collect(),
    };
    let head = (piece.sector < start).then(|| Run::of(piece.clip(piece.sector, start), bounds.block_bytes));
    let tail = (end < piece.end()).then(|| Run::of(piece.clip(end, piece.end()), bounds.block_bytes));
    let whole = piece.clip(start, end);
    let named = cut(&whole, cell).map(|part| Run { is_zeroing: true, ..Run::of(part, bounds.block_bytes) });
    head.into_iter().chain(named).chain(tail).collect()
}

/// A piece cut at multiples of `cell_bytes`.
fn cut(piece: &Piece, cell_bytes: u64) -> impl Iterator<Item = Piece> {
    let (piece, cell) = (*piece, cell_bytes / UNIT_BYTES);
    let mut start = piece.sector;
    std::iter::from_fn(move || {
        let end = Sector((start.0 / cell + 1).saturating_mul(cell)).min(piece.end());
        let part = (start < end).then(|| piece.clip(start, end));
        start = end;
        part
    })
}

#[cfg(test)]
mod tests {
    use store::Sequence;

    use super::*;
    use crate::place::Place;
    use crate::tag::Tag;
    use crate::unit::LogUnit;

    fn bounds(length_sectors: u64, seek_sectors: u64) -> Bounds {
        Bounds { block_bytes: 512, length_max: length_sectors * UNIT_BYTES, seek_bytes: seek_sectors * UNIT_BYTES }
    }

    fn piece(sector: u64, sectors: u64) -> Piece {
        Piece { sector: Sector(sector), sectors, place: Place::segment(LogUnit(sector)), tag: Tag::dirty(1) }
    }

    fn ranges(runs: &[Run]) -> Vec<(u64, u64)> {
        runs.iter().map(|run| (run.range.offset / UNIT_BYTES, run.range.length / UNIT_BYTES)).collect()
    }

    #[test]
    fn adjacent_pieces_are_one_write_up_to_the_largest() {
        let zero = Piece { place: Place::zeroes(Sequence::FIRST, Zeroed::Kept), ..piece(24, 8) };
        let pieces = [piece(0, 8), piece(8, 8), piece(20, 4), zero, piece(32, 40)];
        assert_eq!(ranges(&runs(&pieces, &bounds(16, 0))), [(0, 16), (20, 4), (24, 8), (32, 16), (48, 16), (64, 8)]);
    }

    #[test]
    fn gaps_are_read_only_where_that_costs_less() {
        // Apart: 4 seeks and 16 sectors; together: 2 seeks and 2 * 52.
        let pieces = [piece(0, 4), piece(16, 4), piece(32, 4), piece(48, 4)];
        let at = |seek_sectors: u64| ranges(&runs(&pieces, &bounds(2048, seek_sectors)));
        assert_eq!(at(0).len(), 4);
        assert_eq!(at(43).len(), 4, "4 * 43 + 16 is less than 2 * 43 + 104");
        assert_eq!(at(45), [(0, 52)]);
        let near = [piece(0, 4), piece(5, 4)];
        assert_eq!(runs(&near, &bounds(2048, 2048)).len(), 2, "two writes never cost more than a read and a write");
        let whole = &runs(&pieces, &bounds(2048, 45))[0];
        assert!(whole.has_gaps());
        assert_eq!(joined(&whole.pieces, &bounds(2048, 0)).len(), 4);
        assert!(!joined(&[piece(0, 4), piece(4, 4)], &bounds(2048, 0))[0].has_gaps());
    }
    #[test]
    fn writes_are_whole_blocks_and_no_two_meet_in_one() {
        let bounds = Bounds { block_bytes: 4096, length_max: 1 << 20, seek_bytes: 0 };
        let runs = |pieces: &[Piece]| joined(pieces, &bounds);
        assert_eq!(ranges(&runs(&[piece(1, 2), piece(6, 1), piece(16, 8), piece(25, 3)])), [(0, 8), (16, 16)]);
        assert!(runs(&[piece(1, 2)])[0].has_gaps() && !runs(&[piece(8, 8)])[0].has_gaps());
        // Across a multiple of the longest write there are two, and they share no block.
        assert_eq!(ranges(&runs(&[piece(2040, 16)])), [(2040, 8), (2048, 8)]);
        assert_eq!(ranges(&runs(&[piece(2045, 5)])), [(2040, 8), (2048, 8)]);
        let zero = Piece { place: Place::zeroes(Sequence::FIRST, Zeroed::Kept), ..piece(3, 30) };
        let zeroes = runs(&[zero]);
        assert_eq!(ranges(&zeroes), [(0, 8), (8, 24), (32, 8)]);
        assert_eq!(zeroes.iter().map(|run| run.is_zeroing).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn many_zeroes_are_many_requests() {
        let of = |zeroed| Piece {
            sector: Sector(8),
            sectors: 1 << 31,
            place: Place::zeroes(Sequence::FIRST, zeroed),
            tag: Tag::dirty(1),
        };
        for (zeroed, bytes_max) in
            [(Zeroed::Kept, DESTAGE_ZEROES_BYTES_MAX), (Zeroed::Discarded, DESTAGE_DISCARD_BYTES_MAX)]
        {
            let runs = joined(&[of(zeroed)], &bounds(2048, 0));
            assert!(runs.iter().all(|run| run.is_zeroing && run.range.length <= bytes_max));
            assert_eq!(runs.iter().map(|run| run.range.length).sum::<u64>(), 1 << 40);
        }
    }
}
