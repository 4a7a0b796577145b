//! The plan of a read: which parts come from the cache device, and which from the origin.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::Error;
use smallvec::SmallVec;

use crate::core::Core;
use crate::counters::Serving;
use crate::limits::MISS_GAP_BYTES_MAX;
use crate::line_check::{LineCheck, lost};
use crate::numbers::each_of;
use crate::pins::Pins;
use crate::sectors::{SectorRun, Sectors};

/// The pieces of a read with their sources.
pub(crate) struct ReadPlan {
    /// Ascending, without gaps, adjacent ones from different places.
    pub(crate) pieces: Pieces,
    /// Lines whose data is to be compared with its checksum.
    pub(crate) checks: Vec<LineCheck>,
    /// Deferred data, by its offset in the request's buffer; a later entry is newer.
    pub(crate) deferred: Vec<(u64, Vec<u8>)>,
    _pins: Pins,
}

/// Most reads are of one piece.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in the request's buffer.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Cache {
        offset: u64,
        /// Whether the origin's copy is older.
        is_dirty: bool,
    },
    /// Deferred data in memory, see [`ReadPlan::deferred`].
    Deferred,
    Origin,
}

impl ReadPlan {
    pub(crate) fn has_misses(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece.source, Source::Origin))
    }

    pub(crate) fn serving(&self) -> Serving {
        let missing = self.pieces.iter().filter(|piece| matches!(piece.source, Source::Origin)).count();
        match missing {
            0 => Serving::Hit,
            _ if missing == self.pieces.len() => Serving::Miss,
            _ => Serving::PartialHit,
        }
    }

    /// The buffer that was read, with the deferred data laid over it.
    pub(crate) fn with_deferred(&self, mut buffer: Buffer) -> Buffer {
        for (at, bytes) in &self.deferred {
            let at = *at as usize;
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
        }
        buffer
    }
}

impl Core {
    /// The source of a one-line read that the cache device can serve alone; the line counts as
    /// used.
    pub(crate) fn plan_hit(self: &Arc<Self>, range: ByteRange) -> Option<(u64, Piece, Pins)> {
        let blocks = self.line_size().blocks_of(range);
        if blocks.start.count_up_to(blocks.end) != 1 {
            return None;
        }
        let (wanted, _) = self.line_size().part_of(blocks.start, range);
        let mut pins = Pins::none(&self.lines);
        let state = &mut *self.lines.state();
        if !state.mode.caches_reads() || !self.revocations.may_use_copies() || state.admissions.follows_streams() {
            return None;
        }
        let (frame, line) = state.frames.find(blocks.start)?;
        if !line.valid.contains(wanted) || line.is_lost || line.checksum.is_known() || state.deferred.contains(frame) {
            return None;
        }
        state.frames.touch(frame);
        pins.add(&mut state.frames, frame);
        let in_line = range.offset - self.line_size().line_range(blocks.start).offset;
        let is_dirty = !(line.dirty & wanted).is_empty();
        let offset = self.layout.frame_offset(frame) + in_line;
        let source = Source::Cache { offset, is_dirty };
        Some((offset, Piece { at: 0, length: range.length, source }, pins))
    }

    /// Plans where all of `range` is read from. The cache's parts keep their frames as long as the
    /// plan lives.
    ///
    /// # Errors
    /// `Media` for dirty data that is lost.
    pub(crate) fn plan_read(self: &Arc<Self>, range: ByteRange) -> Result<ReadPlan, Error> {
        let mut pieces = Pieces::new();
        let (mut checks, mut deferred) = (Vec::new(), Vec::new());
        let mut pins = Pins::none(&self.lines);
        let state = &mut *self.lines.state();
        let is_bypassed = !state.mode.caches_reads() || !self.revocations.may_use_copies();
        for block in each_of(self.line_size().blocks_of(range)) {
            let (wanted, at) = self.line_size().part_of(block, range);
            let first = wanted.hull().map_or(0, |run| run.offset());
            let found = state.frames.find(block);
            let (valid, dirty) =
                found.map_or_else(Default::default, |(_, line)| (line.valid & wanted, line.dirty & wanted));
            let valid = if is_bypassed { dirty } else { valid };
            if let Some((_, line)) = found
                && line.is_lost
                && !dirty.is_empty()
            {
                return Err(lost(self.line_size(), block));
            }
            if let Some((frame, _)) = found
                && !valid.is_empty()
            {
                pins.add(&mut state.frames, frame);
            }
            let in_memory = found.map_or(Sectors::NONE, |(frame, _)| state.deferred.sectors(frame));
            if let Some((frame, line)) = found
                && line.checksum.is_known()
                && !valid.is_empty()
                // With deferred data the frame's bytes do not match the checksum.
                && in_memory.is_empty()
            {
                let is_read = valid == self.line_size().all_sectors();
                let at = is_read.then_some(at);
                checks.push(LineCheck { block, frame, checksum: line.checksum, at, is_dirty: !dirty.is_empty() });
            }
            let frame_offset = found.map_or(0, |(frame, _)| self.layout.frame_offset(frame));
            let in_frame =
                |is_dirty| move |run: SectorRun| Source::Cache { offset: frame_offset + run.offset(), is_dirty };
            let place = |run: SectorRun| at as u64 + run.offset() - first;
            let mut add = |mask: Sectors, source: &dyn Fn(SectorRun) -> Source| {
                pieces.extend(mask.runs().map(|run| Piece {
                    at: place(run),
                    length: run.length(),
                    source: source(run),
                }));
            };
            add(dirty & in_memory, &|_| Source::Deferred);
            add(dirty & !in_memory, &in_frame(true));
            add(valid & !dirty, &in_frame(false));
            add(wanted & !valid, &|_| Source::Origin);
            if let Some((frame, _)) = found.filter(|_| !in_memory.is_empty()) {
                state.deferred.visit(frame, wanted, |run, bytes| deferred.push((place(run), bytes.to_vec())));
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.at);
        Ok(ReadPlan { pieces: merge(pieces), checks, deferred, _pins: pins })
    }
}

/// Joins pieces that are adjacent both in the buffer and at their source.
fn merge(pieces: Pieces) -> Pieces {
    let mut merged = Pieces::new();
    for piece in pieces {
        if let Some(last) = merged.last_mut() {
            let is_continued = match (&mut last.source, piece.source) {
                (Source::Origin, Source::Origin) | (Source::Deferred, Source::Deferred) => true,
                (Source::Cache { offset, is_dirty }, Source::Cache { offset: next, is_dirty: is_next_dirty })
                    if *offset + last.length == next =>
                {
                    *is_dirty |= is_next_dirty;
                    true
                }
                _ => false,
            };
            if is_continued {
                last.length += piece.length;
                continue;
            }
        }
        merged.push(piece);
    }
    merged
}

/// The pieces to fetch, joined over short stretches that the cache has.
pub(crate) fn merge_misses(pieces: &[Piece]) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::new();
    for piece in pieces.iter().filter(|piece| matches!(piece.source, Source::Origin)) {
        match merged.last_mut() {
            Some(last) if piece.at - (last.at + last.length) <= MISS_GAP_BYTES_MAX => {
                last.length = piece.at + piece.length - last.at;
            }
            _ => merged.push(*piece),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(at: u64, length: u64, source: Source) -> Piece {
        Piece { at, length, source }
    }

    fn cached(offset: u64, is_dirty: bool) -> Source {
        Source::Cache { offset, is_dirty }
    }

    #[test]
    fn neighbours_in_the_buffer_and_on_the_device_are_read_as_one_which_is_dirty_if_any_is() {
        let pieces = [
            piece(0, 512, cached(8192, false)),
            piece(512, 512, cached(8704, true)),
            piece(1024, 512, cached(0, false)),
            piece(1536, 512, Source::Origin),
            piece(2048, 512, Source::Origin),
        ];
        let merged = merge(pieces.into_iter().collect());
        assert_eq!(
            merged[..],
            [piece(0, 1024, cached(8192, true)), piece(1024, 512, cached(0, false)), piece(1536, 1024, Source::Origin)]
        );
    }

    #[test]
    fn misses_are_fetched_as_one_over_what_is_not_worth_a_request_of_its_own() {
        let far = 512 + MISS_GAP_BYTES_MAX + 512;
        let pieces = [
            piece(0, 512, Source::Origin),
            piece(512, MISS_GAP_BYTES_MAX, cached(0, false)),
            piece(512 + MISS_GAP_BYTES_MAX, 512, Source::Origin),
            piece(far, MISS_GAP_BYTES_MAX + 512, cached(1 << 20, false)),
            piece(far + MISS_GAP_BYTES_MAX + 512, 512, Source::Origin),
        ];
        let fetched = merge_misses(&pieces);
        assert_eq!(
            fetched,
            [piece(0, far, Source::Origin), piece(far + MISS_GAP_BYTES_MAX + 512, 512, Source::Origin)]
        );
    }
}
