//! The writes in which a batch goes to the origin.
//!
//! - Adjacent pieces are one write.
//! - On a disk each further write costs a seek and half a turn, in which many bytes would pass under its head. When the user says how many (`seek_bytes`),
//!   pieces near each other become one write with what lies between them, which is read from the origin first:
//!
//! ```text
//!   n writes of d bytes in all         n * seek + d
//!   one read and one write of l bytes  2 * seek + 2 * l
//! ```
//!   whichever is less. What lies between is written back as it was; nobody else may write there meanwhile, which is why nothing is ever
//!   read so unless the user asked for it.

use base::range::ByteRange;
use smallvec::{SmallVec, smallvec};

use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::read::range_of;

/// One write to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// From the first piece to the end of the last.
    pub(crate) range: ByteRange,
    /// Ascending; mostly one.
    pub(crate) pieces: SmallVec<[Piece; 1]>,
}

impl Run {
    /// Whether bytes lie between the pieces.
    pub(crate) fn has_gaps(&self) -> bool {
        self.pieces.windows(2).any(|pair| pair[0].end() < pair[1].sector)
    }

    fn is_zero(&self) -> bool {
        self.pieces.iter().any(Piece::is_zero)
    }

    fn joins(&self, next: &Self, gap_max: u64, length_max: u64) -> bool {
        !self.is_zero()
            && !next.is_zero()
            && next.range.offset - self.range.end() <= gap_max
            && next.range.end() - self.range.offset <= length_max
    }

    fn join(&mut self, next: Self) {
        self.range.length = next.range.end() - self.range.offset;
        self.pieces.extend(next.pieces);
    }
}

/// The writes for these ascending pieces, none longer than `length_max`, with gaps read where that costs less.
pub(crate) fn runs(pieces: &[Piece], length_max: u64, seek_bytes: u64) -> Vec<Run> {
    let joined = joined(pieces, length_max);
    if seek_bytes == 0 {
        return joined;
    }
    // Each gap is read and written: one that takes longer than a seek is never worth it.
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

/// The writes for these ascending pieces, adjacent ones joined.
pub(crate) fn joined(pieces: &[Piece], length_max: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for part in pieces.iter().flat_map(|piece| parts(piece, length_max / UNIT_BYTES)) {
        let next = Run { range: range_of(&part), pieces: smallvec![part] };
        match runs.last_mut() {
            Some(last) if last.joins(&next, 0, length_max) => last.join(next),
            _ => runs.push(next),
        }
    }
    runs
}

/// Moves a group of near runs to `chosen`, as one or as they are.
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

/// A piece in parts of at most `sectors_max`; zeroes stay whole.
fn parts(piece: &Piece, sectors_max: u64) -> impl Iterator<Item = Piece> {
    let (piece, step) = (*piece, if piece.is_zero() { piece.sectors } else { sectors_max });
    let starts = (piece.sector..piece.end()).step_by(step.max(1) as usize);
    starts.map(move |start| piece.clip(start, (start + step).min(piece.end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Tag, place_of_zeroes};

    fn piece(sector: u64, sectors: u64) -> Piece {
        Piece { sector, sectors, place: sector as u32, tag: Tag::dirty(1) }
    }

    fn ranges(runs: &[Run]) -> Vec<(u64, u64)> {
        runs.iter().map(|run| (run.range.offset / UNIT_BYTES, run.range.length / UNIT_BYTES)).collect()
    }

    #[test]
    fn adjacent_pieces_are_one_write_up_to_the_largest() {
        let zero = Piece { place: place_of_zeroes(1, false), ..piece(24, 8) };
        let pieces = [piece(0, 8), piece(8, 8), piece(20, 4), zero, piece(32, 40)];
        assert_eq!(
            ranges(&runs(&pieces, 16 * UNIT_BYTES, 0)),
            [(0, 16), (20, 4), (24, 8), (32, 16), (48, 16), (64, 8)]
        );
    }

    #[test]
    fn gaps_are_read_only_where_that_costs_less() {
        // Apart: 4 seeks and 16 sectors; together: 2 seeks and 2 * 52.
        let pieces = [piece(0, 4), piece(16, 4), piece(32, 4), piece(48, 4)];
        let at = |seek_sectors: u64| ranges(&runs(&pieces, 1 << 20, seek_sectors * UNIT_BYTES));
        assert_eq!(at(0).len(), 4);
        assert_eq!(at(43).len(), 4, "4 * 43 + 16 is less than 2 * 43 + 104");
        assert_eq!(at(45), [(0, 52)]);
        let near = [piece(0, 4), piece(5, 4)];
        assert_eq!(runs(&near, 1 << 20, 1 << 20).len(), 2, "two writes never cost more than a read and a write");
        let whole = &runs(&pieces, 1 << 20, 45 * UNIT_BYTES)[0];
        assert!(whole.has_gaps());
        assert_eq!(joined(&whole.pieces, whole.range.length).len(), 4);
        assert!(!joined(&[piece(0, 4), piece(4, 4)], 1 << 20)[0].has_gaps());
    }
}
