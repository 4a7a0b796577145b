//! Reads.
//!
//! | valid in the cache | what happens |
//! |---|---|
//! | everything, in one piece | one read of the cache device, straight into the request's buffer |
//! | nothing | one read of the origin, straight into the request's buffer |
//! | some | pieces from both at once; pieces missing close to each other are fetched as one |
//!
//! The first of these, for one line, does without most of what the others need: see `read_hit`.
//!
//! What came from the origin is copied, and inserted after the client was answered. The copy is
//! bounded: when the cache device cannot keep up, data is not inserted, and no reader waits. The
//! insertion keeps the lines' range lock (shared), so a write waits for it. It keeps the fetch
//! lock, so another reader of the same block waits for the cached copy instead of asking the
//! origin.
//!
//! A cache device that cannot return clean data is a miss, logged. One that cannot return dirty data is an error: the
//! origin's copy is older than what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::range_lock::{Acquire, RangeGuard};
use block::{Completion, Error, ErrorKind, Request, Response};
use futures_util::future::join_all;

use crate::core::{Core, Since};
use crate::counters::{RequestKind, Serving};
use crate::insertion::{Insertion, Wanted};
use crate::read_plan::{Piece, ReadPlan, Source, merge_misses};
use crate::timing::{finish_timing, start_timing};

/// A read of one line that is wholly in the cache, as most are in a good cache: planned under one
/// lock, and answered at once if the cache device does so. For any other read returns the buffer,
/// and has done nothing.
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
    // No lock is held while the cache device is asked.
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
    if let Err(error) = core.wait_for_lease(range).await {
        return Response::failed(error, buffer);
    }
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
    let since = core.since();
    let response = core.read_unless_failing(&plan, range, buffer, had_failed).await;
    if response.result.is_ok() && plan.has_misses() {
        core.start_insertion(range, &response.buffer, since, (guard, fetch));
    }
    response
}

impl Core {
    /// Reads as planned; `had_failed`: whether the cache device had failed when it was planned. If
    /// it failed since, clean data of the cache is not used: see
    /// [`Lines::fail`](crate::lines::Lines::fail).
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

    /// Plans and reads again, now that no clean data is in the cache.
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
                Ok(()) => self.check_lines(&plan.checks, range, plan.with_deferred(buffer)).await,
                Err(error) => Response::failed(error, buffer),
            };
        }
        let fetched = merge_misses(&plan.pieces);
        let cached = plan.pieces.iter().copied().filter(|piece| matches!(piece.source, Source::Cache { .. }));
        // The origin's bytes first: where such a read spans a piece that the cache has, the cached
        // bytes are newer.
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
        self.check_lines(&plan.checks, range, plan.with_deferred(buffer)).await
    }

    /// Reads one piece; clean data that the cache device cannot return comes from the origin.
    async fn read_piece(&self, piece: Piece, range: ByteRange, buffer: Buffer) -> (Result<(), Error>, Buffer) {
        let on_origin = ByteRange { offset: range.offset + piece.at, length: piece.length };
        let offset = match piece.source {
            Source::Cache { offset, .. } => offset,
            Source::Deferred => return (Ok(()), buffer),
            Source::Origin => {
                return self.origin.read(on_origin, buffer, self.counters.of(RequestKind::Read)).await;
            }
        };
        let response = self.cache_device.submit(Request::read(offset, buffer)).await;
        if response.result.is_ok() {
            return (Ok(()), response.buffer);
        }
        self.finish_piece(piece, range, response).await
    }

    /// Evaluates the cache device's answer for one piece; clean data that could not be read comes
    /// from the origin.
    async fn finish_piece(&self, piece: Piece, range: ByteRange, response: Response) -> (Result<(), Error>, Buffer) {
        let on_origin = ByteRange { offset: range.offset + piece.at, length: piece.length };
        let is_dirty = matches!(piece.source, Source::Cache { is_dirty: true, .. });
        let Err(error) = response.result else { return (Ok(()), response.buffer) };
        self.counters.cache_read_errors.fetch_add(1, Ordering::Relaxed);
        if is_dirty {
            self.failed_reads.note_dirty(&error, on_origin, self.clock.now());
            let context = format!("{on_origin} are dirty in the cache and its device cannot return them");
            return (Err(Error::with_source(ErrorKind::Media, context, error)), response.buffer);
        }
        self.failed_reads.note_clean(&error, on_origin, self.clock.now());
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
        since: Since,
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
                core.admit(&parts, since).await;
            }
            drop((pins, guards));
        });
    }
}
