//! Opens a cache, and closes it.
//!
//! An open cache is *in use* on the device, durably, before the first request: from then on only what dirty lines need is kept up there. Each
//! open begins a new epoch of the log, so nothing that an earlier one left behind is ever replayed. Closing waits for all requests,
//! writes the whole table and says *closed*; then the next open finds everything warm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::buffer::BufferPool;
use base::signal::Signal;
use block::completion::Workers;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Device, Error, ErrorKind, EventHub, SharedDevice};
use store::{Binding, LogPosition, RecordLog, Superblock};

use crate::admission::Admissions;
use crate::alignment::{Padded, padding_of};
use crate::checkpoint::Extent;
use crate::core::{Core, State, closed};
use crate::crash_mode::CrashMode;
use crate::format::{CHECKSUMS_NONE, CHECKSUMS_OF_LINES, KIND, ParametersRaw};
use crate::format_cache::check_devices;
use crate::frames::Frames;
use crate::freshness::{Changes, Freshness};
use crate::layout::Layout;
use crate::limits::LINES_PER_SEEN_SLOT;
use crate::memory::Need;
use crate::options::{Mode, OpenOptions};
use crate::origin_flushes::OriginFlushes;
use crate::pace::Pace;
use crate::recovery::{Clean, Recovered, recover};
use crate::status::Counters;

pub(crate) async fn open(
    cache_device: SharedDevice,
    origin: SharedDevice,
    options: OpenOptions,
    origin_flushes: Arc<OriginFlushes>,
) -> Result<Arc<Core>, Error> {
    check_devices(&cache_device, &origin)?;
    // Before anything is read: what changes from now on is told, whatever an open takes.
    let origin_events = Mutex::new(origin.subscribe());
    let mut superblock: Superblock<ParametersRaw> = Superblock::read(&cache_device, KIND).await?;
    let layout = Layout::from_parameters(&superblock.payload, cache_device.geometry().size_bytes)?;
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    let binding_now = Binding::of(&origin);
    binding.check_same(&binding_now, KIND.name)?;
    let crash_mode = match options.crash_mode {
        Some(crash_mode) => crash_mode,
        None => CrashMode::from_raw(superblock.payload.crash_mode)?,
    };
    crash_mode.check_mode(options.mode)?;
    let has_checksums = superblock.payload.checksums != CHECKSUMS_NONE;
    Need::of(&layout, options.replacement, has_checksums).check(options.memory_max)?;
    let frames = Frames::to_restore(layout, options.replacement, crash_mode.keeps_clean());
    let frames = with_checksums(frames, &superblock.payload)?;
    let generation = options.generation.unwrap_or(superblock.payload.generation.get());
    let is_of_another = generation != superblock.payload.generation.get();
    let is_stale = is_of_another || options.freshness == Freshness::Unknown;
    let clean = if is_stale { Clean::Drop } else { Clean::Keep };
    let alignment = superblock.payload.alignment_bytes.get();
    if !alignment.is_multiple_of(u64::from(binding_now.logical_block_bytes)) {
        return Err(Error::new(ErrorKind::Corrupt, "lines of this cache begin within blocks of its disk"));
    }
    let padding = padding_of(layout.line_size, alignment);
    let origin_bytes = binding_now.size_bytes.saturating_add(padding);
    // A program that was killed may have left what it wrote in the device's own cache. What is relied on from here on must not be gone after all, or in
    // part, when the power fails later.
    cache_device.flush().await?;
    let mut recovered = recover(&cache_device, frames, origin_bytes, &superblock, clean).await?;
    check_discards_nothing(crash_mode, &recovered)?;
    if recovered.report.is_table_older {
        tracing::warn!("the table of the cache is not the one that it was closed with: it begins without clean lines");
    }
    if is_of_another {
        check_generation(generation, &superblock, &recovered)?;
    }
    if let Freshness::Changed(ranges) = &options.freshness {
        let changes = Changes::new(ranges, padding);
        recovered.report.clean_lines_dropped += changes.drop_from(&mut recovered.frames, options.overwrites_changes)?;
    }
    superblock.payload.binding = binding_now.to_raw()?;
    superblock.payload.crash_mode = crash_mode as u8;
    superblock.payload.generation = generation.into();

    let epoch = recovered.end.epoch.checked_add(1).ok_or(ErrorKind::Corrupt)?;
    let start = LogPosition { epoch, ..recovered.end };
    let log = RecordLog::new(Arc::clone(&cache_device), layout.log, superblock.uuid(), start)?;
    let clean_at = superblock.payload.clean_at.get();
    let core = Arc::new(Core {
        uuid: superblock.uuid(),
        identity: binding_now.identity,
        layout,
        crash_mode,
        generation,
        tokens: options.tokens,
        lazy_interval: options.lazy_interval,
        is_lazy_idle: AtomicBool::new(false),
        opened_at: options.clock.now(),
        clock: options.clock,
        time_of_day: options.time_of_day,
        log,
        ranges: RangeLock::new(),
        fetches: RangeLock::new(),
        origin_ranges: RangeLock::new(),
        workers: Workers::new(),
        changed: Signal::new(),
        background: Signal::new(),
        events: EventHub::new(),
        origin_events,
        superblock: futures_util::lock::Mutex::new(superblock),
        origin_flushes,
        insert_pool: BufferPool::new(options.insert_bytes_max),
        counters: Counters::default(),
        recovery: recovered.report,
        has_failed: AtomicBool::new(false),
        is_open: AtomicBool::new(true),
        is_origin_refused: AtomicBool::new(false),
        is_handing_over: AtomicBool::new(false),
        is_cleaning_held: AtomicBool::new(false),
        cleaning_failure: Mutex::default(),
        is_stopped: AtomicBool::new(false),
        has_ended: AtomicBool::new(false),
        cleaning_batches: AtomicU64::new(0),
        origin_losses: AtomicU64::new(0),
        request_count: AtomicU32::new(0),
        pace: Mutex::new(Pace::new(layout.line_size, options.cleaning)),
        clean_cursor: AtomicU32::new(0),
        state: Mutex::new(State {
            frames: recovered.frames,
            table: recovered.table,
            mode: options.mode,
            dirty: options.dirty,
            clean_at,
            admissions: Admissions::new(options.tuning, seen_slots(&layout)),
            cleaning: BTreeMap::new(),
            clean_progress: None,
            successor: None,
            copying: None,
            failure: None,
            uncertain: BTreeSet::new(),
        }),
        cache_device,
        origin: Padded::over(origin, padding),
        padding,
    });
    core.origin_flushes.join(&core);
    core.find_stranded();
    core.settle_first().await?;
    core.checkpoint(Extent::Dirty).await?;
    core.begin_log().await?;
    Ok(core)
}

/// `frames`, with checksums if the cache has them.
///
/// # Errors
/// `Unsupported` for checksums that this program does not know.
pub(crate) fn with_checksums(frames: Frames, parameters: &ParametersRaw) -> Result<Frames, Error> {
    match parameters.checksums {
        CHECKSUMS_NONE => Ok(frames),
        CHECKSUMS_OF_LINES => Ok(frames.with_checksums()),
        other => {
            let context = format!("this cache has checksums of kind {other}, which this program does not know");
            Err(Error::new(ErrorKind::Unsupported, context))
        }
    }
}

/// Refuses to go on without a promise for dirty data, as long as there is some.
fn check_discards_nothing(crash_mode: CrashMode, recovered: &Recovered) -> Result<(), Error> {
    if crash_mode != CrashMode::DiscardAll || recovered.report.dirty_lines == 0 {
        return Ok(());
    }
    let context = format!(
        "{} dirty lines are in the cache, and crash mode \"discard\" would forget them at a crash: clean it first",
        recovered.report.dirty_lines
    );
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Refuses to take dirty data of one generation for that of another.
fn check_generation(
    generation: u64,
    superblock: &Superblock<ParametersRaw>,
    recovered: &Recovered,
) -> Result<(), Error> {
    if recovered.report.dirty_lines == 0 {
        return Ok(());
    }
    let context = format!(
        "{} dirty lines in the cache are of generation {}, and the disk is said to have generation {generation}: attach it with the old one and \
         clean it, or discard it",
        recovered.report.dirty_lines, superblock.payload.generation
    );
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Blocks that are remembered for a second use.
pub(crate) fn seen_slots(layout: &Layout) -> usize {
    layout.frame_count() as usize / LINES_PER_SEEN_SLOT
}

impl Core {
    /// Changes when writes are acknowledged. To anything but write-back: returns when nothing is dirty any more.
    pub(crate) async fn set_mode(self: &Arc<Self>, mode: Mode) -> Result<(), Error> {
        self.crash_mode.check_mode(mode)?;
        {
            let guard = self.exclude_requests().await;
            if !self.is_open.load(Ordering::Acquire) {
                // Another cache has taken the place of this one meanwhile.
                return Err(closed());
            }
            if mode.delays_writes() {
                // What write-through acknowledged becomes durable, as write-back promises for everything acknowledged.
                self.flush_origin().await?;
                // Clients of write-back need not flush, so they would never be told.
                self.origin_flushes.failures.untold().map_or(Ok(()), Err)?;
            }
            self.state().mode = mode;
            self.background.notify();
            drop(guard);
        }
        if !mode.delays_writes() {
            self.clean_all(|_| {}).await?;
        }
        Ok(())
    }

    /// Makes durable what the origin acknowledged before this open, where more is promised than a client's next flush.
    async fn settle_first(self: &Arc<Self>) -> Result<(), Error> {
        match (self.mode().delays_writes(), self.crash_mode) {
            // Everything acknowledged is durable.
            (true, _) => self.flush_origin().await,
            // What is read from now on is kept over a crash at once, as far as the origin keeps it.
            (_, CrashMode::AllSynchronous) => {
                if let Err(error) = self.flush_origin().await {
                    tracing::warn!(%error, "the origin does not flush; what is read is not kept over a crash before it does");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// See [`Cache::close`](crate::Cache::close).
    pub(crate) async fn close(self: &Arc<Self>, keep_dirty: bool) -> Result<(), Error> {
        if !self.is_open.swap(false, Ordering::SeqCst) && self.is_stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        drop(self.exclude_requests().await);
        let prepared = async {
            if !keep_dirty {
                self.clean_all(|_| {}).await?;
            }
            match self.is_origin_refused.load(Ordering::Acquire) {
                true => Ok(()),
                false => self.flush_origin().await,
            }
        };
        if let Err(error) = prepared.await {
            // Nothing is lost: it goes on, and can be closed with what is dirty.
            let is_refused = self.is_origin_refused.load(Ordering::Acquire);
            self.is_open.store(!is_refused, Ordering::Release);
            return Err(error);
        }
        self.is_stopped.store(true, Ordering::SeqCst);
        self.changed.notify();
        self.background.notify();
        self.wait_for_cleaning().await;
        let result = self.end().await;
        self.workers.stop();
        result
    }

    /// Makes all that is here durable as that of a closed cache. No request is taken any more, and nothing cleaned.
    async fn end(self: &Arc<Self>) -> Result<(), Error> {
        self.handle_origin_events();
        loop {
            // Behind those who act on what the origin has said.
            let _guard = self.exclude_requests().await;
            if self.has_ended.load(Ordering::Acquire) {
                // Somebody else has closed it, or another cache has taken its place.
                return Ok(());
            }
            let result = match self.log.failure() {
                Some(error) => Err(error),
                None => self.checkpoint(Extent::Complete).await,
            };
            if result.is_ok() && self.handle_origin_events() > 0 {
                // Something of what was just stored may be void.
                continue;
            }
            self.has_ended.store(true, Ordering::Release);
            self.log.fail(closed());
            // A checkpoint that has begun in the background ends first.
            drop(self.superblock.lock().await);
            return result;
        }
    }
}
