//! Reads.
//!
//! | what is there | what happens |
//! |---|---|
//! | everything, in one piece | one read of the cache device, straight into the request's buffer |
//! | nothing | one read of the origin, straight into the request's buffer |
//! | some | pieces from both at once; pieces missing close to each other are fetched as one |
//!
//! The first of these, for one line, does without most of what the others need: see `read_hit`.
//!
//! What came from the origin is copied and inserted after the reader was answered. The copy is bounded: when the cache device cannot
//! keep up, data is not inserted rather than readers held up. The insertion keeps the lines' range lock (shared), so a write waits
//! for it, and the fetch lock, so that another reader of the same block waits for the copy in the cache instead of asking the origin.
//!
//! A cache device that cannot return clean data is a miss, logged. One that cannot return dirty data is an error: the origin's copy is
//! older than what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::range_lock::{Acquire, RangeGuard};
use block::{Completion, Error, ErrorKind, Request, Response};
use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::core::Core;
use crate::counters::{RequestKind, Serving};
use crate::insertion::{Insertion, Wanted};
use crate::limits::MISS_GAP_BYTES_MAX;
use crate::line_check::{LineCheck, lost};
use crate::pins::Pins;
use crate::timing::{finish_timing, start_timing};

/// Where to find which part of a request.
struct ReadPlan {
    /// Ascending, without gaps, adjacent ones from different places.
    pieces: Pieces,
    /// Lines whose data is to be compared with its checksum.
    checks: Vec<LineCheck>,
    _pins: Pins,
}

/// Most reads are of one piece.
type Pieces = SmallVec<[Piece; 1]>;

#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Offset in the request's buffer.
    at: u64,
    length: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Cache {
        offset: u64,
        /// Whether the origin's copy is older.
        is_dirty: bool,
    },
    Origin,
}

impl ReadPlan {
    fn has_misses(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece.source, Source::Origin))
    }

    fn serving(&self) -> Serving {
        let missing = self.pieces.iter().filter(|piece| matches!(piece.source, Source::Origin)).count();
        match missing {
            0 => Serving::Hit,
            _ if missing == self.pieces.len() => Serving::Miss,
            _ => Serving::PartialHit,
        }
    }
}

/// A read of one line that is all there, as most are where a cache is worth having: planned under one lock, and answered on the spot where the cache
/// device does so. Gives the buffer back when it is no such read, and has done nothing then.
pub(crate) fn read_hit(core: &Arc<Core>, range: ByteRange, buffer: Buffer) -> Result<Completion, Buffer> {
    let Some(guard) = core.ranges.try_shared(core.line_size().whole_lines(range)) else { return Err(buffer) };
    if !core.life.is_open() {
        return Err(buffer);
    }
    let had_failed = core.lines.has_failed();
    let Some((offset, piece, pins)) = core.plan_hit(range) else { return Err(buffer) };
    let timed = start_timing(core, RequestKind::Read);
    let counters = core.counters.of(RequestKind::Read);
    counters.tags(1, 0);
    counters.served(Serving::Hit);
    let finishing = Arc::clone(core);
    // Nothing of this is locked while the cache device is asked for something.
    let step = move |response: Response| {
        let is_doubtful = finishing.lines.has_failed() && !had_failed;
        if response.result.is_ok() && !is_doubtful {
            drop((pins, guard));
            finish_timing(timed);
            return Completion::ready(response);
        }
        let workers = finishing.workers.clone();
        Completion::task(&workers, async move {
            let (result, buffer) = match response.result {
                Ok(()) => {
                    let again = finishing.read_anew(range, response.buffer).await;
                    (again.result, again.buffer)
                }
                Err(_) => finishing.finish_piece(piece, range, response).await,
            };
            drop((pins, guard));
            finish_timing(timed);
            Response { result, buffer, extents: Vec::new() }
        })
    };
    Ok(core.cache_device.submit(Request::read(offset, buffer)).then(&core.workers, step))
}

pub(crate) async fn read(
    core: Arc<Core>,
    range: ByteRange,
    buffer: Buffer,
    place: Acquire,
    kind: RequestKind,
) -> Response {
    let guard = match core.enter(place).await {
        Ok(guard) => guard,
        Err(error) => return Response::failed(error, buffer),
    };
    let had_failed = core.lines.has_failed();
    let plan = match core.plan_read(range) {
        Ok(plan) => plan,
        Err(error) => return Response::failed(error, buffer),
    };
    core.counters.of(kind).served(plan.serving());
    if !plan.has_misses() {
        return core.read_unless_failing(&plan, range, buffer, had_failed).await;
    }
    let (plan, fetch) = match core.fetches.try_exclusive(core.line_size().whole_lines(range)) {
        Some(fetch) => (plan, fetch),
        None => {
            drop(plan);
            let fetch = core.fetches.exclusive(core.line_size().whole_lines(range)).await;
            match core.plan_read(range) {
                Ok(plan) => (plan, fetch),
                Err(error) => return Response::failed(error, buffer),
            }
        }
    };
    let losses = core.origin.losses.count();
    let response = core.read_unless_failing(&plan, range, buffer, had_failed).await;
    if response.result.is_ok() && plan.has_misses() {
        core.start_insertion(range, &response.buffer, losses, (guard, fetch));
    }
    response
}

impl Core {
    /// Where a read of one line is served from that the cache device can serve alone; the line counts as used.
    fn plan_hit(self: &Arc<Self>, range: ByteRange) -> Option<(u64, Piece, Pins)> {
        let blocks = self.line_size().blocks_of(range);
        if blocks.end - blocks.start != 1 {
            return None;
        }
        let (wanted, _) = self.line_size().part_of(blocks.start, range);
        let mut pins = Pins::none(&self.lines);
        let state = &mut *self.lines.state();
        if !state.mode.caches_reads() || state.admissions.follows_streams() {
            return None;
        }
        let (frame, line) = state.frames.find(blocks.start)?;
        if !line.valid.contains(wanted) || line.is_lost || line.checksum != 0 {
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

    fn plan_read(self: &Arc<Self>, range: ByteRange) -> Result<ReadPlan, Error> {
        let mut pieces = Pieces::new();
        let mut checks = Vec::new();
        let mut pins = Pins::none(&self.lines);
        let state = &mut *self.lines.state();
        let is_bypassed = !state.mode.caches_reads();
        for block in self.line_size().blocks_of(range) {
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
            if let Some((frame, line)) = found
                && line.checksum != 0
                && !valid.is_empty()
            {
                let is_read = valid == self.line_size().all_sectors();
                let at = is_read.then_some(at);
                checks.push(LineCheck { block, frame, checksum: line.checksum, at, is_dirty: !dirty.is_empty() });
            }
            for (mask, is_hit, is_dirty) in
                [(dirty, true, true), (valid & !dirty, true, false), (wanted & !valid, false, false)]
            {
                for run in mask.runs() {
                    let source = match found {
                        Some((frame, _)) if is_hit => {
                            Source::Cache { offset: self.layout.frame_offset(frame) + run.offset(), is_dirty }
                        }
                        _ => Source::Origin,
                    };
                    let at = at as u64 + run.offset() - first;
                    pieces.push(Piece { at, length: run.length(), source });
                }
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.at);
        Ok(ReadPlan { pieces: merge(pieces), checks, _pins: pins })
    }

    /// Reads as planned, when the cache device `had_failed` or not. What is clean in the cache is not used if it has since: see [`Lines::fail`](crate::lines::Lines::fail).
    async fn read_unless_failing(
        self: &Arc<Self>,
        plan: &ReadPlan,
        range: ByteRange,
        buffer: Buffer,
        had_failed: bool,
    ) -> Response {
        let response = self.read_planned(plan, range, buffer).await;
        match response.result.is_ok() && self.lines.has_failed() && !had_failed {
            true => self.read_anew(range, response.buffer).await,
            false => response,
        }
    }

    /// Reads once more, now that nothing that is clean is in the cache.
    async fn read_anew(self: &Arc<Self>, range: ByteRange, buffer: Buffer) -> Response {
        match self.plan_read(range) {
            Ok(plan) => self.read_planned(&plan, range, buffer).await,
            Err(error) => Response::failed(error, buffer),
        }
    }

    async fn read_planned(self: &Arc<Self>, plan: &ReadPlan, range: ByteRange, mut buffer: Buffer) -> Response {
        if let [piece] = plan.pieces[..] {
            let (result, buffer) = self.read_piece(piece, range, buffer).await;
            return match result {
                Ok(()) => self.check_lines(&plan.checks, range, buffer).await,
                Err(error) => Response::failed(error, buffer),
            };
        }
        let fetched = merge_misses(&plan.pieces);
        let cached = plan.pieces.iter().copied().filter(|piece| matches!(piece.source, Source::Cache { .. }));
        // The origin's bytes first: where they span a piece that the cache has, the cache's are newer.
        let in_order: Vec<Piece> = fetched.into_iter().chain(cached).collect();
        let reads = in_order.iter().map(|&piece| {
            let part = Buffer::zeroed(piece.length as usize);
            async move { (piece, self.read_piece(piece, range, part).await) }
        });
        for (piece, (result, part)) in join_all(reads).await {
            if let Err(error) = result {
                return Response::failed(error, buffer);
            }
            buffer[piece.at as usize..(piece.at + piece.length) as usize].copy_from_slice(&part);
        }
        self.check_lines(&plan.checks, range, buffer).await
    }

    /// Reads one piece; clean data that the cache device cannot return comes from the origin.
    async fn read_piece(&self, piece: Piece, range: ByteRange, buffer: Buffer) -> (Result<(), Error>, Buffer) {
        let on_origin = ByteRange { offset: range.offset + piece.at, length: piece.length };
        let Source::Cache { offset, .. } = piece.source else {
            return self.origin.read(on_origin, buffer, self.counters.of(RequestKind::Read)).await;
        };
        let response = self.cache_device.submit(Request::read(offset, buffer)).await;
        if response.result.is_ok() {
            return (Ok(()), response.buffer);
        }
        self.finish_piece(piece, range, response).await
    }

    /// What the cache device answered for one piece; what is clean and could not be read comes from the origin.
    async fn finish_piece(&self, piece: Piece, range: ByteRange, response: Response) -> (Result<(), Error>, Buffer) {
        let on_origin = ByteRange { offset: range.offset + piece.at, length: piece.length };
        let is_dirty = matches!(piece.source, Source::Cache { is_dirty: true, .. });
        let Err(error) = response.result else { return (Ok(()), response.buffer) };
        self.counters.cache_read_errors.fetch_add(1, Ordering::Relaxed);
        if is_dirty {
            tracing::error!(%error, %on_origin, "the cache device cannot return data that the origin does not have");
            let context = format!("{on_origin} are dirty in the cache and its device cannot return them");
            return (Err(Error::with_source(ErrorKind::Media, context, error)), response.buffer);
        }
        tracing::warn!(%error, %on_origin, "the cache device cannot return clean data; the origin serves it");
        self.lines.forget_clean(on_origin);
        let mut buffer = response.buffer;
        if buffer.len() as u64 != piece.length {
            buffer = Buffer::zeroed(piece.length as usize);
        }
        self.origin.read(on_origin, buffer, self.counters.of(RequestKind::Read)).await
    }

    /// Copies what was missing and writes it to the cache device, after the reader is answered.
    fn start_insertion(
        self: &Arc<Self>,
        range: ByteRange,
        bytes: &[u8],
        losses: u64,
        guards: (RangeGuard, RangeGuard),
    ) {
        let Some(insertion) = self.plan_insertion(range, bytes, Wanted::Missing) else {
            self.counters.insertions_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let core = Arc::clone(self);
        self.start(async move {
            let Insertion { parts, writes, pins } = insertion;
            if core.write_clean(&parts, &pins, writes).await {
                core.admit(&parts, losses).await;
            }
            drop((pins, guards));
        });
    }
}

/// Joins pieces that follow each other in the buffer and in their place.
fn merge(pieces: Pieces) -> Pieces {
    let mut merged = Pieces::new();
    for piece in pieces {
        if let Some(last) = merged.last_mut() {
            let is_continued = match (&mut last.source, piece.source) {
                (Source::Origin, Source::Origin) => true,
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
fn merge_misses(pieces: &[Piece]) -> Vec<Piece> {
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
