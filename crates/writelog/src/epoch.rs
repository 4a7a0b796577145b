//! Epochs: how destage order `log` keeps the origin as it was at some moment, plus part of one epoch.
//!
//! An epoch is all records from the end of the last one up to a record after which nothing acknowledged before is
//! missing. Of each sector it has what is newest *inside* it, even when the log has newer.
//!
//! ```text
//!   destaged_sequence ──► d                     e                    applied
//!   records               | ── epoch (d, e] ─── | ─── the next ... ─── |
//!   on the origin    all  |  some, in any order |  nothing
//!   clean            all  |  nothing            |  nothing
//! ```
//! - The end of an epoch is decided once. If the epoch is more than a batch it is sent in *steps*,
//!   in the order of the log: a step is what some segments have of the epoch, except what is newer
//!   in a later one. When it is on the origin, `destaged_sequence` moves to the end of these
//!   segments, and only then its sectors become clean and make room. So data that a crash leaves
//!   dirty is sent again with all that came after it.
//! - A step may be sent in several batches, since requests interrupt them; each continues, in order
//!   of LBA, where the one before was flushed.
//! - The first epoch of an opening has all records that the opening found: a program that was
//!   killed may have sent any of them without recording it. So it does not matter after which step
//!   of an epoch a crash comes: the next opening's first epoch ends no earlier.
//! - Data left by another order when the log was opened is such a first epoch, too. Until it is on
//!   the origin checkpoints keep the code of another order, so that an opening after a crash begins
//!   with all of the rest.
//! - If the epoch is no more than a batch its bytes stay in RAM from the search for its end; else
//!   those of a step are read when its turn comes. Apart from that it takes one entry for each
//!   write in it.

use std::collections::BTreeMap;
use store::Sequence;

use crate::map::Piece;
use crate::numbers::Sector;

/// An epoch: it is sent before anything that came after it.
pub(crate) struct Epoch {
    /// The step under way.
    step: Option<Step>,
    /// The pieces of later steps, by the last record of their segment: for each sector the newest
    /// in the epoch.
    rest: BTreeMap<Sequence, Vec<Piece>>,
}

/// A part of an epoch, after which `destaged_sequence` moves.
struct Step {
    /// Its last record.
    end: Sequence,
    /// Disjoint, ascending.
    pieces: Vec<Piece>,
    /// All pieces before this sector are on the origin, durably.
    sent_to: Sector,
}

/// The part of an epoch that one batch sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The sector behind its last one.
    pub(crate) end_sector: Sector,
    /// Whether it is the last part of its step.
    pub(crate) is_last: bool,
}

impl Epoch {
    /// An epoch of which nothing is sent yet: its pieces, by the last record of their segment.
    pub(crate) fn new(rest: BTreeMap<Sequence, Vec<Piece>>) -> Self {
        Self { step: None, rest }
    }

    /// The next pieces, of about `bytes_max` bytes, and which part of their step they are.
    pub(crate) fn next_part(&mut self, bytes_max: u64) -> (Vec<Piece>, Part) {
        let rest = &mut self.rest;
        self.step.get_or_insert_with(|| Step::first_of(rest, bytes_max)).next_part(bytes_max)
    }

    /// Notes that the step under way is on the origin up to `sector`, durably.
    pub(crate) fn sent_to(&mut self, sector: Sector) {
        self.step.iter_mut().for_each(|step| step.sent_to = sector);
    }

    /// Ends the step under way: it is on the origin, durably. Returns its last record and its
    /// pieces.
    pub(crate) fn end_step(&mut self) -> Option<(Sequence, Vec<Piece>)> {
        self.step.take().map(|step| (step.end, step.pieces))
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.step.is_none() && self.rest.is_empty()
    }
}

impl Step {
    /// The step of the oldest segments, up to `bytes_max` bytes, with at least one segment.
    fn first_of(rest: &mut BTreeMap<Sequence, Vec<Piece>>, bytes_max: u64) -> Self {
        let mut step = Self { end: Sequence::NONE, pieces: Vec::new(), sent_to: Sector::FIRST };
        let mut bytes = 0;
        while let Some(next) = rest.first_entry() {
            bytes += next.get().iter().map(Piece::destage_bytes).sum::<u64>();
            if bytes > bytes_max && !step.pieces.is_empty() {
                break;
            }
            step.end = *next.key();
            step.pieces.extend(next.remove());
        }
        step.pieces.sort_unstable_by_key(|piece| piece.sector);
        step
    }

    fn next_part(&self, bytes_max: u64) -> (Vec<Piece>, Part) {
        let first = self.pieces.partition_point(|piece| piece.end() <= self.sent_to);
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for piece in &self.pieces[first..] {
            if bytes >= bytes_max {
                break;
            }
            let rest = piece.clip(self.sent_to, piece.end()).within(bytes_max - bytes);
            bytes += rest.destage_bytes();
            pieces.push(rest);
        }
        let end_sector = pieces.last().map_or(self.sent_to, Piece::end);
        let is_last = self.pieces.last().is_none_or(|last| last.end() <= end_sector);
        (pieces, Part { end_sector, is_last })
    }
}
