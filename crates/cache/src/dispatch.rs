//! Dispatch of requests to the code that carries them out, in the order of submission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::range_lock::{Acquire, RangeGuard};
use block::{Completion, Error, ErrorKind, Operation, Request, Response};

use crate::admission::Advice;
use crate::core::Core;
use crate::counters::RequestKind;
use crate::granted::Right;
use crate::lines::State;
use crate::mode::Mode;
use crate::numbers::{BlockNumber, each_of};
use crate::timing::{finish_timing, start_timing};
use crate::write_through::Copy;
use crate::{discard, extents, flush, read, write_back, write_through};

impl Core {
    pub(crate) fn submit(self: &Arc<Self>, request: Request) -> Completion {
        // What has been reported by now is true for this request.
        if self.origin.reports.may_have_event() {
            self.handle_origin_events();
        }
        let range = match self.shape().check(&request) {
            Ok(range) => self.origin.inside(range),
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if !self.life.is_open() {
            return Completion::ready(request.fail(self.life.closed()));
        }
        if request.is_mutation() && !self.lines.mode().takes_writes() {
            return Completion::ready(request.fail(Error::new(ErrorKind::ReadOnly, "the cache is in mode read-only")));
        }
        let request = match request.operation {
            Operation::Read { buffer } => match read::read_hit(self, range, buffer) {
                Ok(reading) => return reading,
                Err(buffer) => Request { operation: Operation::Read { buffer }, ..request },
            },
            _ => request,
        };
        let lines = self.line_size().whole_lines(range);
        let place = if request.is_mutation() { self.ranges.exclusive(lines) } else { self.ranges.shared(lines) };
        // Checked after the place is taken. A close first refuses requests and then waits for all
        // that have a place, so no request slips through.
        if !self.life.is_open() {
            return Completion::ready(request.fail(self.life.closed()));
        }
        let core = Arc::clone(self);
        let workers = &self.workers;
        match request.operation {
            Operation::Flush => Completion::task(workers, flush::flush(core)),
            Operation::Read { buffer } => {
                let advice = self.touch(range, RequestKind::Read);
                let timed = start_timing(self, RequestKind::Read);
                let reading = Completion::task(workers, async move {
                    let response = read::read(core, range, buffer, place, RequestKind::Read).await;
                    finish_timing(timed);
                    response
                });
                // After the request itself, so that its own fetch comes first.
                for ahead in advice.lines.into_iter().chain(advice.ahead) {
                    self.fetch_ahead(ahead);
                }
                reading
            }
            Operation::Write { buffer, fua } => {
                let advice = self.touch(range, RequestKind::Write);
                let timed = start_timing(self, RequestKind::Write);
                Completion::task(workers, async move {
                    let response = write(core, range, buffer, fua, advice.is_past, place).await;
                    finish_timing(timed);
                    response
                })
            }
            Operation::Discard { .. } => Completion::task(workers, discard::discard(core, range, place)),
            Operation::WriteZeroes { fua, may_discard, .. } => {
                Completion::task(workers, discard::write_zeroes(core, range, fua, may_discard, place))
            }
            Operation::Extents { .. } => Completion::task(workers, extents::extents(core, range, place)),
        }
    }

    /// Counts tag hits and misses, and gives blocks that are not resident a frame, in the order of submission.
    fn touch(&self, range: ByteRange, kind: RequestKind) -> Advice {
        let size_bytes = self.origin.end();
        let state = &mut *self.lines.state();
        let mut advice = match kind {
            RequestKind::Ahead => Advice::default(),
            RequestKind::Read | RequestKind::Write => state.admissions.advise(kind, range, size_bytes),
        };
        let may_insert = !advice.is_past
            && state.failure.is_none()
            && match kind {
                RequestKind::Read | RequestKind::Ahead => state.mode.caches_reads(),
                RequestKind::Write => state.mode.caches_writes(),
            };
        if !may_insert {
            // The mode takes nothing in, so there is no frame to fetch into.
            advice.ahead = None;
        }
        let mut evicted_count = 0;
        let (mut hit_count, mut miss_count) = (0, 0);
        for block in each_of(self.line_size().blocks_of(range)) {
            if let Some(frame) = state.frames.lookup(block) {
                state.frames.touch(frame);
                hit_count += 1;
                continue;
            }
            miss_count += 1;
            if !may_insert || (kind != RequestKind::Ahead && !state.admissions.admits(block)) {
                continue;
            }
            evicted_count += state.give_frame(block);
        }
        if may_insert && kind == RequestKind::Read && state.admissions.tuning().prefetches_lines {
            advice.lines = self.rest_of_lines(state, range);
        }
        self.counters.of(kind).tags(hit_count, miss_count);
        self.counters.evictions.fetch_add(evicted_count, Ordering::Relaxed);
        advice
    }

    /// The whole lines of `range`, if they have more than that, a place, and not all of what they should have.
    fn rest_of_lines(&self, state: &State, range: ByteRange) -> Option<ByteRange> {
        let line_size = self.line_size();
        let lines = line_size.whole_lines(range);
        let start = lines.offset.max(self.origin.padding);
        let end = lines.end().min(self.origin.end());
        let is_wanting = |block: BlockNumber| {
            let found = state.frames.find(block);
            found.is_some_and(|(_, line)| {
                line.valid != line_size.part_of(block, ByteRange { offset: start, length: end - start }).0
            })
        };
        let is_more = start < range.offset || range.end() < end;
        (is_more && each_of(line_size.blocks_of(range)).any(is_wanting))
            .then_some(ByteRange { offset: start, length: end - start })
    }

    /// Reads into the cache what a client will probably ask for next. Does nothing when there is no
    /// memory for it now.
    fn fetch_ahead(self: &Arc<Self>, range: ByteRange) {
        let Some(buffer) = self.insert_pool.try_acquire(range.length as usize) else { return };
        self.touch(range, RequestKind::Ahead);
        let place = self.ranges.shared(self.line_size().whole_lines(range));
        if !self.life.is_open() {
            return;
        }
        let reading = read::read(Arc::clone(self), range, buffer, place, RequestKind::Ahead);
        self.start(async move { drop(reading.await) });
    }
}

async fn write(
    core: Arc<Core>,
    range: ByteRange,
    buffer: Buffer,
    fua: bool,
    is_past: bool,
    place: Acquire,
) -> Response {
    let guard = match core.enter(place).await {
        Ok(guard) => guard,
        Err(error) => return Response::failed(error, buffer),
    };
    let (mode, has_failed) = {
        let state = core.lines.state();
        (state.mode, state.failure.is_some())
    };
    core.succession.tell(range, core.origin.padding).await;
    match mode {
        Mode::WriteBack if !has_failed && !is_past => match core.right_to_delay(range) {
            Right::Unshared => write_back::write(core, range, buffer, guard).await,
            Right::Granted(used) => {
                let response = write_back::write(Arc::clone(&core), range, buffer, guard).await;
                core.confirm(response, &used)
            }
            Right::Lacking => write_past(core, range, buffer, true, guard).await,
        },
        // Acknowledged writes were promised to be durable, also without the cache device.
        Mode::WriteBack => write_past(core, range, buffer, true, guard).await,
        // A shared origin registers copies of reads only; it would not call back a copy of a write.
        Mode::WriteThrough if !is_past && !core.revocations.is_shared() => {
            write_through::write(core, range, buffer, fua, Copy::Keep, guard).await
        }
        Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => write_past(core, range, buffer, fua, guard).await,
        // The mode was changed while the write waited for its place.
        Mode::ReadOnly => Response::failed(Error::new(ErrorKind::ReadOnly, "the cache is in mode read-only"), buffer),
    }
}

/// Writes to the origin alone; the cache keeps no copy.
async fn write_past(core: Arc<Core>, range: ByteRange, buffer: Buffer, fua: bool, guard: RangeGuard) -> Response {
    match core.clean_before_change(range).await {
        Ok(()) => write_through::write(core, range, buffer, fua, Copy::Drop, guard).await,
        Err(error) => Response::failed(error, buffer),
    }
}
