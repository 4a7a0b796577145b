//! What all operations of one cache share: the devices, the locks, the state.
//!
//! Four locks, taken in this order and released in any:
//!
//! | lock | held by | keeps |
//! |---|---|---|
//! | `ranges`, by whole lines | every request until it and what follows from it is done (reads share) | requests of one line in their order |
//! | `fetches` | a read that misses, until what it fetched is inserted | two misses of one block from reading it twice |
//! | `origin_ranges` | whoever writes to the origin, until that write is done; cleaning takes *only* this one | an old dirty line from overtaking newer data on the origin |
//! | `state`, a mutex | nobody across an await | the maps |
//!
//! A request that waits for cleaning holds its `ranges` and nothing that cleaning needs, so cleaning always gets on. Nobody waits while
//! holding a reserved frame that others wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::{Clock, Instant};
use base::range::ByteRange;
use base::signal::Signal;
use block::completion::Workers;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use block::{
    Completion, Device, Error, ErrorKind, EventHub, EventReceiver, Geometry, Operation, Request, Response, SharedDevice,
};
use smallvec::SmallVec;
use store::{RecordLog, Superblock, Tokens};

use crate::admission::{Admissions, Advice};
use crate::alignment::inside;
use crate::clean::CleanProgress;
use crate::crash_mode::CrashMode;
use crate::format::{Line, ParametersRaw};
use crate::frames::Frames;
use crate::layout::Layout;
use crate::limits::TIMED_ONE_OF;
use crate::line_size::LineSize;
use crate::options::{DirtyLimits, Mode, TimeOfDay};
use crate::origin_flushes::OriginFlushes;
use crate::pace::Pace;
use crate::replace::CopyProgress;
use crate::sectors::Sectors;
use crate::status::{Counters, RecoveryReport, RequestKind};
use crate::table::Table;
use crate::write_through::Copy;
use crate::{discard, extents, flush, read, write_back, write_through};

/// See the module.
pub(crate) struct Core {
    pub(crate) cache_device: SharedDevice,
    /// As it is inside: it begins `padding` bytes earlier. See `alignment`.
    pub(crate) origin: SharedDevice,
    pub(crate) padding: u64,
    pub(crate) uuid: uuid::Uuid,
    /// Of the origin at open.
    pub(crate) identity: block::Identity,
    pub(crate) layout: Layout,
    /// What counts after a crash, as of open.
    pub(crate) crash_mode: CrashMode,
    /// Of the origin's content; 0 when nobody has said.
    pub(crate) generation: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) opened_at: Instant,
    pub(crate) time_of_day: Option<TimeOfDay>,
    /// What tells it from other copies of it.
    pub(crate) tokens: Option<Tokens>,
    /// How often clean lines are stored that count after a crash.
    pub(crate) lazy_interval: Duration,
    /// Whether there was nothing to store when it was looked at last.
    pub(crate) is_lazy_idle: AtomicBool,
    pub(crate) log: RecordLog,
    pub(crate) ranges: RangeLock,
    pub(crate) fetches: RangeLock,
    pub(crate) origin_ranges: RangeLock,
    pub(crate) workers: Workers,
    /// Notified when a line came to rest, a frame came free or room was made: whoever waits looks again.
    pub(crate) changed: Signal,
    /// Notified when background work may have become necessary. Apart from `changed`, so that it sleeps while there is none.
    pub(crate) background: Signal,
    pub(crate) events: EventHub,
    pub(crate) origin_events: Mutex<EventReceiver>,
    /// Held while a checkpoint runs.
    pub(crate) superblock: futures_util::lock::Mutex<Superblock<ParametersRaw>>,
    /// What is known about flushes of the origin, here and in a cache that takes the place of this one.
    pub(crate) origin_flushes: Arc<OriginFlushes>,
    pub(crate) insert_pool: BufferPool,
    pub(crate) counters: Counters,
    pub(crate) recovery: RecoveryReport,
    /// Whether the cache device failed: [`State::failure`], for who does not lock that.
    pub(crate) has_failed: AtomicBool,
    /// Whether requests are taken.
    pub(crate) is_open: AtomicBool,
    /// Whether the origin said that it is another disk now. Nothing is sent to it any more.
    pub(crate) is_origin_refused: AtomicBool,
    /// Whether a successor is getting what is dirty. Nothing is cleaned meanwhile.
    pub(crate) is_handing_over: AtomicBool,
    /// Whether this is that successor, and the other may still go on, or nobody knows yet what others write. Nothing is cleaned but what makes room.
    pub(crate) is_cleaning_held: AtomicBool,
    /// Why cleaning in the background did not succeed, when it was tried last.
    pub(crate) cleaning_failure: Mutex<Option<String>>,
    /// Whether background work is to end. Nothing is cleaned any more.
    pub(crate) is_stopped: AtomicBool,
    /// Whether nothing is done with the devices any more: whoever gets a place in `ranges` from now on leaves. Changed by who excludes requests.
    pub(crate) has_ended: AtomicBool,
    /// Batches of cleaning under way.
    pub(crate) cleaning_batches: AtomicU64,
    /// Grows when the origin says that it lost unflushed writes.
    pub(crate) origin_losses: AtomicU64,
    /// Requests submitted, around.
    pub(crate) request_count: AtomicU32,
    /// Short sections, never across an await or together with another lock.
    pub(crate) pace: Mutex<Pace>,
    /// Where the next batch of cleaning begins.
    pub(crate) clean_cursor: AtomicU32,
    pub(crate) state: Mutex<State>,
}

/// Guarded by `Core::state`; sections are short and never await.
pub(crate) struct State {
    pub(crate) frames: Frames,
    pub(crate) table: Table,
    pub(crate) mode: Mode,
    pub(crate) dirty: DirtyLimits,
    /// Seconds since 1970 at which nothing was dirty; 0 when that is not known.
    pub(crate) clean_at: u64,
    pub(crate) admissions: Admissions,
    /// Sectors being cleaned, by block. A write to a sector takes it out: what was sent to the origin is then old.
    pub(crate) cleaning: BTreeMap<u64, Sectors>,
    /// How far the cleaning is that somebody asked for.
    pub(crate) clean_progress: Option<CleanProgress>,
    /// The cache that is to take the place of this one, and is told of changes.
    pub(crate) successor: Option<Arc<Core>>,
    /// How far the copying to it is.
    pub(crate) copying: Option<CopyProgress>,
    /// The cache device refused a log record or a table page. From then on nothing new is cached.
    pub(crate) failure: Option<Error>,
    /// Blocks of records that may or may not have landed when the log failed.
    pub(crate) uncertain: BTreeSet<u64>,
}

impl Core {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.state().mode
    }

    /// How large lines are.
    pub(crate) fn line_size(&self) -> LineSize {
        self.layout.line_size
    }

    /// Starts a future now; whatever it leaves undone is done by the workers.
    pub(crate) fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(Completion::task(&self.workers, async move {
            future.await;
            Response::done(Buffer::empty())
        }));
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let shape = self.shape();
        let is_write_cache_volatile = shape.is_write_cache_volatile && !self.mode().delays_writes();
        Geometry { is_write_cache_volatile, ..shape }
    }

    /// The geometry but for what depends on the mode: all that a request is checked against.
    fn shape(&self) -> Geometry {
        let origin = self.origin.geometry();
        let cache_transfer_max = self.cache_device.geometry().transfer_bytes_max;
        Geometry {
            size_bytes: origin.size_bytes.saturating_sub(self.padding),
            transfer_bytes_max: origin.transfer_bytes_max.min(cache_transfer_max),
            ..origin
        }
    }

    pub(crate) fn submit(self: &Arc<Self>, request: Request) -> Completion {
        let range = match self.shape().check(&request) {
            Ok(range) => inside(range, self.padding),
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if !self.is_open.load(Ordering::Acquire) {
            return Completion::ready(request.fail(closed()));
        }
        if request.is_mutation() && !self.mode().takes_writes() {
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
        // Behind taking the place: who closes says so first and waits for all who have a place then, so nobody slips through.
        if !self.is_open.load(Ordering::SeqCst) {
            return Completion::ready(request.fail(closed()));
        }
        let core = Arc::clone(self);
        let workers = &self.workers;
        match request.operation {
            Operation::Flush => Completion::task(workers, flush::flush(core)),
            Operation::Read { buffer } => {
                let advice = self.touch(range, RequestKind::Read);
                let timed = self.start_timing(RequestKind::Read);
                let reading = Completion::task(workers, async move {
                    let response = read::read(core, range, buffer, place, RequestKind::Read).await;
                    finish_timing(timed);
                    response
                });
                // Behind the request itself: who comes first gets what is asked for first.
                for ahead in advice.lines.into_iter().chain(advice.ahead) {
                    self.fetch_ahead(ahead);
                }
                reading
            }
            Operation::Write { buffer, fua } => {
                let advice = self.touch(range, RequestKind::Write);
                let timed = self.start_timing(RequestKind::Write);
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

    /// Begins to time a request, if it is one of those that are timed.
    pub(crate) fn start_timing(self: &Arc<Self>, kind: RequestKind) -> Option<Timed> {
        let is_one_of_many = self.request_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED_ONE_OF);
        let stands_for = if self.is_cleaning() { 1 } else { u64::from(TIMED_ONE_OF) };
        let is_timed = is_one_of_many || stands_for == 1;
        is_timed.then(|| Timed { core: Arc::clone(self), kind, stands_for, start: self.clock.now() })
    }

    fn is_cleaning(&self) -> bool {
        self.cleaning_batches.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts tag hits and misses, and gives blocks that are not resident a frame, in the order of submission.
    fn touch(&self, range: ByteRange, kind: RequestKind) -> Advice {
        let size_bytes = self.origin.geometry().size_bytes;
        let state = &mut *self.state();
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
            // There is nowhere to put it.
            advice.ahead = None;
        }
        let mut evicted_count = 0;
        let (mut hit_count, mut miss_count) = (0, 0);
        for block in self.line_size().blocks_of(range) {
            if let Some(frame) = state.frames.lookup(block) {
                state.frames.touch(frame);
                hit_count += 1;
                continue;
            }
            miss_count += 1;
            if !may_insert || (kind != RequestKind::Ahead && !state.admissions.admits(block)) {
                continue;
            }
            evicted_count += give_frame(state, block);
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
        let start = lines.offset.max(self.padding);
        let end = lines.end().min(self.origin.geometry().size_bytes);
        let is_wanting = |block: u64| {
            let found = state.frames.find(block);
            found.is_some_and(|(_, line)| {
                line.valid != line_size.part_of(block, ByteRange { offset: start, length: end - start }).0
            })
        };
        let is_more = start < range.offset || range.end() < end;
        (is_more && line_size.blocks_of(range).any(is_wanting))
            .then_some(ByteRange { offset: start, length: end - start })
    }

    /// Gives blocks that are not resident a frame, whatever they are worth.
    pub(crate) fn give_frames(&self, range: ByteRange) {
        let state = &mut *self.state();
        for block in self.line_size().blocks_of(range) {
            if state.frames.lookup(block).is_none() {
                let evicted_count = give_frame(state, block);
                self.counters.evictions.fetch_add(evicted_count, Ordering::Relaxed);
            }
        }
    }

    /// Reads into the cache what will be asked for next. Without memory for it now, nothing happens.
    fn fetch_ahead(self: &Arc<Self>, range: ByteRange) {
        let Some(buffer) = self.insert_pool.try_acquire(range.length as usize) else { return };
        self.touch(range, RequestKind::Ahead);
        let place = self.ranges.shared(self.line_size().whole_lines(range));
        if !self.is_open.load(Ordering::SeqCst) {
            return;
        }
        let reading = read::read(Arc::clone(self), range, buffer, place, RequestKind::Ahead);
        self.start(async move { drop(reading.await) });
    }

    /// Reports that the cache device failed where nothing can be promised without it. The first time, loudly.
    pub(crate) fn fail(&self, error: &Error) {
        let mut state = self.state();
        if state.failure.is_none() {
            tracing::error!(%error, "the cache device failed: nothing new is cached; writes go to the origin");
            state.failure = Some(error.clone());
            // What is clean was written without force unit access: a flush that failed, of our own or of a durable write, may have dropped it.
            state.frames.forget_clean();
            self.has_failed.store(true, Ordering::Release);
            self.log.fail(error.clone());
        }
        drop(state);
        self.changed.notify();
        self.background.notify();
    }

    /// Notes the time of day while nothing is dirty.
    pub(crate) fn note_clean(&self, state: &mut State) {
        if state.frames.counts().dirty_lines == 0
            && let Some(time_of_day) = &self.time_of_day
        {
            state.clean_at = time_of_day();
        }
    }

    /// Waits for a place in `ranges`.
    ///
    /// # Errors
    /// `Gone` when the cache has ended meanwhile.
    pub(crate) async fn enter(&self, place: Acquire) -> Result<RangeGuard, Error> {
        let guard = place.await;
        if self.has_ended.load(Ordering::Acquire) { Err(closed()) } else { Ok(guard) }
    }

    /// Waits until nobody is at work, and keeps everybody out until the guard is dropped.
    pub(crate) async fn exclude_requests(&self) -> RangeGuard {
        self.ranges.exclusive(ByteRange { offset: 0, length: u64::MAX }).await
    }
}

/// What is said to whoever comes too late.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Gone, "the cache is closed")
}

/// Gives a block a frame of its own, if there is one; how many lines had to leave for it.
fn give_frame(state: &mut State, block: u64) -> u64 {
    let Some(reserved) = state.frames.reserve(block) else { return 0 };
    state.frames.attach(reserved.frame, Line { block, ..Line::default() });
    u64::from(reserved.has_evicted)
}

/// A request that is timed.
pub(crate) struct Timed {
    core: Arc<Core>,
    kind: RequestKind,
    /// For how many requests it is timed.
    stands_for: u64,
    start: Instant,
}

pub(crate) fn finish_timing(timed: Option<Timed>) {
    if let Some(Timed { core, kind, stands_for, start }) = timed {
        let taken = core.clock.now() - start;
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        core.counters.served_ns.fetch_add(taken_ns.saturating_mul(stands_for), Ordering::Relaxed);
        core.pace().note(kind, taken, core.is_cleaning());
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
    let (mode, has_failed, has_successor) = {
        let state = core.state();
        (state.mode, state.failure.is_some(), state.successor.is_some())
    };
    if has_successor {
        core.tell_successor(range).await;
    }
    match mode {
        Mode::WriteBack if !has_failed && !is_past => write_back::write(core, range, buffer, guard).await,
        // What was promised for write-back holds without the cache device, too: acknowledged is durable.
        Mode::WriteBack => write_through::write(core, range, buffer, true, Copy::Drop, guard).await,
        Mode::WriteThrough if !is_past => write_through::write(core, range, buffer, fua, Copy::Keep, guard).await,
        Mode::WriteThrough | Mode::WriteAround | Mode::PassThrough => {
            write_through::write(core, range, buffer, fua, Copy::Drop, guard).await
        }
        // The mode was changed while the write waited for its place.
        Mode::ReadOnly => Response::failed(Error::new(ErrorKind::ReadOnly, "the cache is in mode read-only"), buffer),
    }
}

/// Frames whose bytes must stay what they are. Dropping it lets them go.
pub(crate) struct Pins {
    core: Arc<Core>,
    /// Most requests touch one line.
    frames: SmallVec<[u32; 1]>,
}

impl Pins {
    pub(crate) fn frames(&self) -> &[u32] {
        &self.frames
    }

    pub(crate) fn none(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), frames: SmallVec::new() }
    }

    /// Pins one more frame. `frames` are those of this very cache, locked.
    pub(crate) fn add(&mut self, frames: &mut Frames, frame: u32) {
        frames.pin(frame);
        self.frames.push(frame);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        {
            let mut state = self.core.state();
            for &frame in &self.frames {
                state.frames.unpin(frame);
            }
        }
        self.core.changed.notify();
    }
}
