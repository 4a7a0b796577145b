//! A file or local block device.
//!
//! - Through the page cache, reads of cached data (and writes, where the file system need not wait)
//!   are answered on the spot; everything else goes to the engine.
//! - Durable writes to a fast disk are carried out on the spot where the options ask for it:
//!   handing them to the engine would take longer.
//! - Overlapping requests are carried out in the order of their submission: each holds its range from submission to
//!   completion.
//! - A durable call that fails breaks all promises of durability: until the device is opened again,
//!   or only for requests submitted before ([`Promises`]).
//! - What another process cut off is not read as zeroes, nor written to: [`FileEnd`].
//! - After the device is dropped requests in flight go on to their end; the file stays open and
//!   locked until then.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::background;
use base::range::ByteRange;
use block::completion::Workers;
use block::range_lock::{RangeGuard, RangeLock};
use block::{Buffer, Completion, Device, Error, ErrorKind, Event, EventHub, EventReceiver, Extent, ExtentKind};
use block::{Geometry, Identity};
use block::{Operation, Request, Response};
use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::runtime::Handle;

use crate::block_ioctl;
use crate::durable_call::DurableCall;
use crate::failure;
use crate::file_end::FileEnd;
use crate::job::{Job, Syncs};
use crate::limits::{CLOSED_INTERVAL, INLINE_BYTES_MAX, WAIT_BYTES_MAX};
use crate::open::OpenFile;
use crate::options::FileOptions;
use crate::patience::Patience;
use crate::pool::Pool;
use crate::promises::{Moment, Promises};
use crate::ring::Ring;
use crate::shared::Shared;
use crate::sync_files::SyncFiles;
use crate::topology::Discard;
use crate::work::Work;

/// A device over a file or a block device.
pub struct FileDevice {
    core: Arc<Core>,
}

/// The part that outlives the [`FileDevice`] while requests wait for their range.
struct Core {
    file: Arc<Shared>,
    ranges: RangeLock,
    workers: Workers,
    engine: Engine,
    runtime: Handle,
    /// Each call on a blocking thread of the runtime holds a clone.
    blocking_calls: Arc<()>,
}

enum Engine {
    Ring(Arc<Ring>),
    Pool(Arc<Pool>),
}

impl FileDevice {
    /// Opens `path` as a device of the current tokio runtime.
    ///
    /// # Errors
    /// `NotFound` without a file and without a size, `Busy` for a file that is locked, `Corrupt`
    /// for one of another size, `NoSpace` when there is no room to preallocate (a file just created
    /// is removed again), `Unsupported` for anything but a file or block device, for `direct` where
    /// it is not possible, and outside a tokio runtime; `AccessDenied`, `ReadOnly` and `Media` as
    /// the system reports.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Arc<Self>, Error> {
        let path = path.as_ref();
        let runtime = Handle::try_current().map_err(|error| {
            let context = format!("{} can be opened inside a tokio runtime only", path.display());
            Error::with_source(ErrorKind::Unsupported, context, error)
        })?;
        let open = OpenFile::open(path, &options)?;
        let is_cached = !open.is_direct;
        let is_volatile = options.is_write_cache_volatile;
        let file = Arc::new(Shared {
            size_bytes: AtomicU64::new(open.geometry.size_bytes),
            end: FileEnd::new(),
            events: EventHub::new(),
            open,
            sync_files: SyncFiles::default(),
            identity: options.identity,
            can_read_inline: AtomicBool::new(is_cached),
            can_write_inline: AtomicBool::new(is_cached && is_volatile),
            promises: Promises::new(options.goes_on_after_loss),
            sync_patience: Patience::new(),
            patience: (options.waits_for_fast_writes && !is_cached).then(Patience::new),
        });
        let workers = Workers::new();
        let engine = start_engine(&file, options.io_uring, &workers, &runtime);
        let blocking_calls = Arc::new(());
        let core = Core { file, ranges: RangeLock::new(), workers, engine, runtime, blocking_calls };
        Ok(Arc::new(Self { core: Arc::new(core) }))
    }

    /// Grows to `size_bytes`, or without it to the present size of the file or block device.
    /// Returns the new size, and publishes [`Event::Resized`].
    ///
    /// # Errors
    /// `Media` for a file that was cut, which is not made long again; `InvalidRange` for less than the present size,
    /// since requests may be under way there, or for a size that is no multiple of the block; `NoSpace`,
    /// `Unsupported` and others as the system reports.
    pub fn grow(&self, size_bytes: Option<u64>) -> Result<u64, Error> {
        let file = &self.core.file;
        let (path, known) = (file.path(), file.geometry());
        let fail = |errno: Errno| failure::error(errno, format!("growing {path}"));
        file.look_at_end();
        file.end.check(ByteRange { offset: 0, length: known.size_bytes }, path)?;
        let there = rustix::fs::seek(&file.open.file, SeekFrom::End(0)).map_err(fail)?;
        let block_bytes = u64::from(known.logical_block_bytes);
        let wanted = size_bytes.unwrap_or(there - there % block_bytes);
        if wanted < known.size_bytes || !wanted.is_multiple_of(block_bytes) {
            let context = format!("{path} serves {} bytes and cannot become {wanted} bytes", known.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if wanted > there {
            rustix::fs::ftruncate(&file.open.file, wanted).map_err(fail)?;
        }
        if file.size_bytes.swap(wanted, Ordering::AcqRel) != wanted {
            file.events.publish(&Event::Resized(file.geometry()));
        }
        Ok(wanted)
    }

    /// The length of the file when it was seen that somebody cut it; it is looked at now. What lay
    /// behind is lost, and requests there fail with `Media`, until it is opened again. Where a write
    /// may have made the end that was seen, all requests do, since a hole lies before it.
    pub fn cut_bytes(&self) -> Option<u64> {
        self.core.file.look_at_end();
        self.core.file.end.cut_bytes()
    }

    /// Completes when the file is closed and its lock is free: a little after the last clone of
    /// this device is dropped, because requests under way keep it open.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let file = Arc::downgrade(&self.core.file);
        async move {
            while file.strong_count() > 0 {
                tokio::time::sleep(CLOSED_INTERVAL).await;
            }
        }
    }
}

impl Engine {
    /// Which part makes the syncs of jobs; `flushes_for_each`: each durable write by itself would be
    /// a flush of the whole disk.
    fn syncs(&self, flushes_for_each: bool) -> Syncs {
        match self {
            Self::Ring(_) if flushes_for_each => Syncs::SharedByWrites,
            Self::Ring(_) => Syncs::Shared,
            // The syncs take turns: the failure of another one, which may have dropped these bytes,
            // too, is noted before this one begins.
            Self::Pool(_) if flushes_for_each => Syncs::OwnAfterWrites,
            Self::Pool(_) => Syncs::Own,
        }
    }
}

fn start_engine(file: &Arc<Shared>, may_use_ring: bool, workers: &Workers, runtime: &Handle) -> Engine {
    let detached = workers.clone();
    if may_use_ring {
        match Ring::new(Arc::clone(file)).and_then(|ring| ring.driver().map(|driver| (ring, driver))) {
            Ok((ring, driver)) => {
                // Detached requests may still need the ring, so it is served until they are done, too.
                let detached = async move { detached.run().await };
                runtime.spawn(background::named("file-ring", futures_util::future::join(driver, detached)));
                return Engine::Ring(ring);
            }
            Err(error) => warn_once(&error),
        }
    }
    runtime.spawn(background::named("file-workers", async move { detached.run().await }));
    Engine::Pool(Pool::new(Arc::clone(file), runtime.clone()))
}

fn warn_once(error: &std::io::Error) {
    static WARNED: std::sync::Once = std::sync::Once::new();
    WARNED.call_once(|| {
        tracing::warn!("io_uring is not available ({error}): files are served by blocking calls, more slowly")
    });
}

impl Core {
    /// Carries out a request that holds its range.
    fn start(&self, request: Request, range: ByteRange, guard: Option<RangeGuard>, moment: Moment) -> Completion {
        let is_durable = !self.file.open.geometry.is_write_cache_volatile;
        // Checked here and not before: the request may have waited for its range since it was
        // submitted.
        if asks_for_durability(&request, is_durable)
            && let Err(error) = self.file.check_promises(moment).and_then(|()| self.file.open.check_lasts())
        {
            return Completion::ready(request.fail(error));
        }
        if !matches!(request.operation, Operation::Flush)
            && let Err(error) = self.file.end.check(range, self.file.path())
        {
            return Completion::ready(request.fail(error));
        }
        if request.is_mutation() {
            self.file.end.note_write(range.end());
        }
        if let Operation::Discard { .. } | Operation::WriteZeroes { may_discard: true, .. } = request.operation {
            self.file.open.note_discard();
        }
        let Request { operation, .. } = request;
        let (operation, done) = match self.try_inline(operation, range, is_durable, moment) {
            Inline::Done(response) => return Completion::ready(response),
            Inline::Rest(operation, done) => (operation, done),
        };
        match operation {
            Operation::Extents { .. } => return self.start_extents(range, guard),
            Operation::Discard { .. } if self.file.open.discard == Some(Discard::Ioctl) => {
                return self.start_blocking(guard, move |file| discard(file, range, is_durable, moment));
            }
            _ => {}
        }
        let OpenFile { is_direct, flushes_for_each, .. } = self.file.open;
        let syncs = self.engine.syncs(is_direct && flushes_for_each);
        let job = Job::new(operation, range, done, is_durable).with_syncs(syncs).at(moment);
        let (completion, sender) = Completion::slot();
        let work = Work { job, guard, sender };
        match &self.engine {
            Engine::Ring(ring) => ring.submit(work),
            Engine::Pool(pool) => pool.submit(work),
        }
        completion
    }

    /// Carries out on the spot what needs no waiting in the page cache, and durable writes that are
    /// worth waiting for.
    fn try_inline(&self, operation: Operation, range: ByteRange, is_durable: bool, moment: Moment) -> Inline {
        let file = &self.file;
        match operation {
            Operation::Write { buffer, fua }
                if (fua || is_durable)
                    && is_at_most(&buffer, WAIT_BYTES_MAX)
                    && file.patience.as_ref().is_some_and(Patience::waits) =>
            {
                match file.write_durably(&buffer, range.offset) {
                    Ok(done) if done == buffer.len() => {
                        let result = file.check_promises(moment);
                        Inline::Done(Response { result, ..Response::done(buffer) })
                    }
                    Ok(done) => Inline::Rest(Operation::Write { buffer, fua }, done),
                    Err(errno) => {
                        let error = failure::error(errno, format!("write of {range} of {}", file.path()));
                        Inline::Done(Response::failed(error, buffer))
                    }
                }
            }
            Operation::Read { mut buffer } if is_small(&buffer) && file.can_read_inline.load(Ordering::Relaxed) => {
                let mut target = [IoSliceMut::new(&mut buffer)];
                let result = rustix::io::preadv2(&file.open.file, &mut target, range.offset, ReadWriteFlags::NOWAIT);
                let done = settle_inline(result, &file.can_read_inline);
                if done == buffer.len() {
                    Inline::Done(Response { result: file.open.check_whole(), ..Response::done(buffer) })
                } else {
                    Inline::Rest(Operation::Read { buffer }, done)
                }
            }
            Operation::Write { buffer, fua: false }
                if is_small(&buffer) && file.can_write_inline.load(Ordering::Relaxed) =>
            {
                let source = [IoSlice::new(&buffer)];
                let result = rustix::io::pwritev2(&file.open.file, &source, range.offset, ReadWriteFlags::NOWAIT);
                let done = settle_inline(result, &file.can_write_inline);
                let is_done = done == buffer.len();
                if is_done {
                    Inline::Done(Response::done(buffer))
                } else {
                    Inline::Rest(Operation::Write { buffer, fua: false }, done)
                }
            }
            operation => Inline::Rest(operation, 0),
        }
    }

    /// Looks up the extents, on a blocking thread: the file system may have to read its own
    /// structures.
    fn start_extents(&self, range: ByteRange, guard: Option<RangeGuard>) -> Completion {
        self.start_blocking(guard, move |file| {
            let extents =
                extents(file, range).map_err(|errno| (errno, format!("extents of {range} of {}", file.path())))?;
            // What was cut off is no hole: that would be read as zeroes without a read.
            file.look_at_end();
            let result = file.end.check(range, file.path());
            Ok(Response { result, extents, ..Response::done(Buffer::empty()) })
        })
    }

    /// Makes calls that the engines do not have, on a blocking thread.
    fn start_blocking(
        &self,
        guard: Option<RangeGuard>,
        calls: impl FnOnce(&Shared) -> Result<Response, (Errno, String)> + Send + 'static,
    ) -> Completion {
        let (file, call) = (Arc::clone(&self.file), Arc::clone(&self.blocking_calls));
        let (completion, sender) = Completion::slot();
        self.runtime.spawn_blocking(move || {
            background::turn("file-call");
            let response = calls(&file)
                .unwrap_or_else(|(errno, action)| Response::failed(failure::error(errno, action), Buffer::empty()));
            drop((call, file));
            drop(guard);
            sender.complete(response);
        });
        completion
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.workers.stop();
        let is_idle = match &self.engine {
            Engine::Ring(ring) => ring.close(),
            Engine::Pool(pool) => pool.is_idle(),
        } && Arc::strong_count(&self.blocking_calls) == 1;
        if self.file.promises.were_broken() && !self.file.open.is_direct {
            self.file.forget_pages();
        }
        // Otherwise the lock ends with the descriptor, when the last request has ended.
        if is_idle {
            self.file.open.unlock();
        }
    }
}

enum Inline {
    Done(Response),
    /// The rest of the operation, and how many bytes are done.
    Rest(Operation, usize),
}

fn is_small(buffer: &Buffer) -> bool {
    is_at_most(buffer, INLINE_BYTES_MAX)
}

fn is_at_most(buffer: &Buffer, length_max: usize) -> bool {
    (1..=length_max).contains(&buffer.len())
}

/// Count of bytes done on the spot. Where the file system does not support it, it is not tried
/// again; other errors are left to the engine, which meets them again.
fn settle_inline(result: Result<usize, Errno>, is_possible: &AtomicBool) -> usize {
    match result {
        Ok(count) => count,
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
            is_possible.store(false, Ordering::Relaxed);
            0
        }
        Err(_) => 0,
    }
}

/// Whether its answer promises that something is durable.
fn asks_for_durability(request: &Request, is_durable: bool) -> bool {
    match request.operation {
        Operation::Flush => true,
        Operation::Write { fua, .. } | Operation::WriteZeroes { fua, .. } => fua || is_durable,
        Operation::Discard { .. } => is_durable,
        Operation::Read { .. } | Operation::Extents { .. } => false,
    }
}

/// Discards on a device that supports only `BLKDISCARD`.
fn discard(file: &Shared, range: ByteRange, is_durable: bool, moment: Moment) -> Result<Response, (Errno, String)> {
    let fail = |errno| (errno, format!("discard of {range} of {}", file.path()));
    block_ioctl::discard(&file.open.file, range).map_err(fail)?;
    if is_durable {
        let own = file.own_sync_file();
        let synced = rustix::fs::fdatasync(own.as_ref().map_or(&file.open.file, |own| &own.file));
        file.note_durable_call(DurableCall::Sync, own, synced.err());
        synced.map_err(fail)?;
        return Ok(Response { result: file.check_promises(moment), ..Response::done(Buffer::empty()) });
    }
    Ok(Response::done(Buffer::empty()))
}

/// Data and holes from the start of `range`, as many as one answer holds.
fn extents(file: &Shared, range: ByteRange) -> Result<Vec<Extent>, Errno> {
    let whole = Extent { range, kind: ExtentKind::Data };
    if file.open.is_block_device {
        return Ok(vec![whole]);
    }
    let mut extents = Vec::new();
    let mut offset = range.offset;
    while offset < range.end() && extents.len() < block::limits::EXTENTS_PER_RESPONSE_MAX {
        let data = match rustix::fs::seek(&file.open.file, SeekFrom::Data(offset)) {
            Ok(data) => data.clamp(offset, range.end()),
            // No data from here to the end of the file.
            Err(Errno::NXIO) => range.end(),
            Err(Errno::INVAL) => return Ok(vec![whole]),
            Err(errno) => return Err(errno),
        };
        let (kind, end) = if data > offset {
            (ExtentKind::Hole, data)
        } else {
            let hole = rustix::fs::seek(&file.open.file, SeekFrom::Hole(offset))?;
            (ExtentKind::Data, hole.clamp(offset + 1, range.end()))
        };
        extents.push(Extent { range: ByteRange { offset, length: end - offset }, kind });
        offset = end;
    }
    Ok(extents)
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        self.core.file.geometry()
    }

    fn subscribe(&self) -> EventReceiver {
        self.core.file.events.subscribe()
    }

    fn identity(&self) -> Identity {
        self.core.file.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        let core = &self.core;
        let moment = core.file.promises.moment();
        let range = match core.file.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if matches!(request.operation, Operation::Flush) {
            return core.start(request, range, None, moment);
        }
        if range.is_empty() {
            return Completion::ready(answer_nothing(request));
        }
        let mut place = if request.is_mutation() { core.ranges.exclusive(range) } else { core.ranges.shared(range) };
        if let Some(guard) = place.try_take() {
            return core.start(request, range, Some(guard), moment);
        }
        // Carried on whether or not the completion is polled: other requests may wait behind this
        // one, and be awaited first.
        let (completion, sender) = Completion::slot();
        let core = Arc::clone(core);
        let workers = core.workers.clone();
        workers.spawn(async move {
            let guard = place.await;
            sender.complete(core.start(request, range, Some(guard), moment).await);
        });
        completion
    }
}

/// A request for no bytes is done.
fn answer_nothing(request: Request) -> Response {
    match request.operation {
        Operation::Read { buffer } | Operation::Write { buffer, .. } => Response::done(buffer),
        _ => Response::done(Buffer::empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::Progress;

    /// Two that flush the whole disk at once could each drop what the other relies on.
    #[tokio::test]
    async fn where_each_durable_write_would_flush_the_disk_none_does_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        for io_uring in [true, false] {
            let path = folder.path().join(format!("io_uring {io_uring}"));
            let options = FileOptions { size: Some(1 << 20), io_uring, ..FileOptions::default() };
            let device = FileDevice::open(path, options).unwrap();
            for flushes_for_each in [true, false] {
                let write = Operation::Write { buffer: Buffer::zeroed(4096), fua: true };
                let range = ByteRange { offset: 0, length: 4096 };
                let syncs = device.core.engine.syncs(flushes_for_each);
                let job = Job::new(write, range, 0, false).with_syncs(syncs);
                let by_itself = (!flushes_for_each).then_some(DurableCall::Write);
                assert_eq!(job.durable_call(), by_itself, "io_uring {io_uring}");
                let is_shared = flushes_for_each && matches!(device.core.engine, Engine::Ring(_));
                assert_eq!(job.is_write_before_sync(), is_shared, "io_uring {io_uring}");
            }
        }
    }

    /// Another durable call fails while this one is under way: what it wrote may have been dropped, too.
    #[tokio::test]
    async fn a_durable_write_that_ends_after_another_call_failed_is_not_promised() {
        let (folder, range) = (tempfile::tempdir().unwrap(), ByteRange { offset: 0, length: 4096 });
        let write = || Operation::Write { buffer: Buffer::zeroed(4096), fua: true };
        for direct in [false, true] {
            let (size, path) = (Some(1 << 20), folder.path().join(format!("direct {direct}")));
            let options = FileOptions { size, direct, waits_for_fast_writes: true, ..FileOptions::default() };
            let device = match FileDevice::open(path, options) {
                Err(error) if direct && error.kind() == ErrorKind::Unsupported => {
                    println!("skipped: {error}");
                    return;
                }
                opened => opened.unwrap(),
            };
            let (core, file) = (&device.core, &device.core.file);
            let moment = file.promises.moment();
            let mut job = Job::new(write(), range, 0, false).at(moment);
            file.promises.call_failed(DurableCall::Sync, Errno::IO, true);
            let Progress::Done(result) = file.handle(&mut job, None, Ok(4096)) else { panic!("it is over") };
            assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::Media), "direct: {direct}");
            if let Inline::Done(response) = core.try_inline(write(), range, false, moment) {
                assert!(direct, "through the page cache it is the engine's");
                assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::Media), "on the spot");
            } else {
                assert!(!direct, "it was to be carried out on the spot");
            }
        }
    }

    /// A slow call, as `BLKDISCARD` may be: until it has ended no other process may claim the file.
    #[tokio::test]
    async fn a_call_on_a_blocking_thread_keeps_the_claim_of_a_dropped_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let options = FileOptions { size: Some(1 << 20), exclusive: true, ..FileOptions::default() };
        let device = FileDevice::open(&path, options.clone()).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let call = device.core.start_blocking(None, move |_| {
            held.recv().expect("the test lets it go");
            Ok(Response::done(Buffer::empty()))
        });
        drop(device);
        let error = FileDevice::open(&path, options.clone()).err().expect("it is in use");
        assert_eq!(error.kind(), ErrorKind::Busy);
        release.send(()).unwrap();
        call.await.result.unwrap();
        // A child process that another test is starting has the descriptor, too, until it executes
        // its program.
        let is_free = || FileDevice::open(&path, options.clone()).is_ok();
        for _ in 0..6000 {
            if is_free() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the call has ended, and the file is in use");
    }
}
