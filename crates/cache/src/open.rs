//! Opens a cache. How it is closed is said in `close`.
//!
//! An open cache is *in use* on the device, durably, before the first request: from then on only
//! the entries of dirty lines are kept up there. Each open begins a new epoch of the log, so no
//! record of an earlier one is ever replayed.

use std::sync::{Arc, Weak};

use base::buffer::BufferPool;
use block::completion::Workers;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Device, Error, ErrorKind, EventHub, EventReceiver, Identity, Keeper, SharedDevice};
use store::{Binding, Forgettings, Life, LogPosition, Superblock};

use crate::admission::{Admissions, seen_slots};
use crate::alignment::padding_of;
use crate::changes::Changes;
use crate::cleaner::Cleaner;
use crate::core::Core;
use crate::counters::Counters;
use crate::crash_mode::CrashMode;
use crate::failed_reads::FailedReads;
use crate::format::{CHECKSUMS_NONE, KIND, ParametersRaw};
use crate::format_cache::check_devices;
use crate::frames::Frames;
use crate::freshness::Freshness;
use crate::journal::{Extent, Journal, Stored};
use crate::layout::Layout;
use crate::line_size::LineSize;
use crate::lines::{Lines, State};
use crate::memory::Need;
use crate::options::OpenOptions;
use crate::origin::Origin;
use crate::origin_flushes::OriginFlushes;
use crate::pace::Pace;
use crate::recovery::{Clean, Recovered, recover, with_checksums};
use crate::refused_writes::RefusedWrites;
use crate::revocations::Revocations;
use crate::succession::Succession;

/// Opens a cache: see [`Cache::open`](crate::Cache::open).
pub(crate) async fn open(
    cache_device: SharedDevice,
    origin: SharedDevice,
    options: OpenOptions,
    origin_flushes: Arc<OriginFlushes>,
) -> Result<Arc<Core>, Error> {
    check_devices(&cache_device, &origin)?;
    // Subscribed before anything is read: the cache then gets the events of all later changes,
    // however long the open takes.
    let origin_events = origin.subscribe();
    let copies = origin.copies();
    let may_delay = options.delays_shared && copies.as_ref().is_some_and(|copies| copies.grants().is_some());
    options.mode.check_shared(copies.is_some(), may_delay)?;
    let found = find(&cache_device, Binding::of(&origin), copies.is_some(), &options).await?;
    let mut core = assemble(cache_device, (origin, origin_events), options, found, origin_flushes)?;
    let core = Arc::new_cyclic(|itself| {
        core.itself = itself.clone();
        core
    });
    if let Some(copies) = copies {
        let keeper: Arc<dyn Keeper> = core.clone();
        copies.add_keeper(Arc::downgrade(&keeper));
    }
    core.find_stranded();
    core.settle_first().await?;
    core.journal.checkpoint(Extent::Dirty).await?;
    core.journal.begin().await?;
    Ok(core)
}

/// The content of a cache device, before anything is written there.
struct Found {
    /// The superblock as it is to be written, except for the positions of log and table.
    superblock: Superblock<ParametersRaw>,
    recovered: Recovered,
    crash_mode: CrashMode,
    generation: u64,
    padding: u64,
    identity: Identity,
    /// Bytes of memory for deferred data.
    deferred_bytes_max: usize,
}

/// Reads the content of the device, for an origin that is `binding_now` and may be shared.
async fn find(
    cache_device: &SharedDevice,
    binding_now: Binding,
    is_shared: bool,
    options: &OpenOptions,
) -> Result<Found, Error> {
    let mut superblock: Superblock<ParametersRaw> = Superblock::read(cache_device, KIND).await?;
    let layout = Layout::from_parameters(&superblock.payload, cache_device.geometry().size_bytes)?;
    Binding::from_raw(&superblock.payload.binding)?.check_same(&binding_now, KIND.name)?;
    let crash_mode = match options.crash_mode {
        Some(crash_mode) => crash_mode,
        None => CrashMode::from_raw(superblock.payload.crash_mode)?,
    };
    crash_mode.check_mode(options.mode)?;
    let has_checksums = superblock.payload.checksums != CHECKSUMS_NONE;
    let need = Need::of(&layout, options.replacement, has_checksums);
    need.check(options.memory_max)?;
    let deferred_bytes_max = need.deferred_bytes_max(layout.log.length, options.memory_max);
    let frames = Frames::to_restore(layout, options.replacement, crash_mode.keeps_clean());
    let frames = with_checksums(frames, &superblock.payload)?;
    let generation = options.generation.unwrap_or(superblock.payload.generation.get());
    let is_of_another = generation != superblock.payload.generation.get();
    let is_unregistered = is_shared && !options.keeps_shared;
    let is_void = matches!(options.freshness, Freshness::Unknown | Freshness::Outdated(_));
    let is_stale = is_of_another || is_unregistered || is_void;
    let clean = match (is_stale, is_shared) {
        (true, _) => Clean::Drop,
        // A revocation drops the copy in memory at once, and on the device only at close.
        (false, true) => Clean::KeepOfClosed,
        (false, false) => Clean::Keep,
    };
    let padding = padding_within_blocks(&superblock.payload, layout.line_size, &binding_now)?;
    let origin_bytes = binding_now.size_bytes.saturating_add(padding);
    // A program that was killed may have left data in the volatile cache of the device. What is
    // relied on from here on must survive a later power loss.
    cache_device.flush().await?;
    let mut recovered = recover(cache_device, frames, origin_bytes, &superblock, clean).await?;
    check_discards_nothing(crash_mode, &recovered)?;
    if recovered.report.is_table_older {
        tracing::warn!("the table of the cache is not the one that it was closed with: it begins without clean lines");
    }
    if is_of_another {
        check_generation(generation, &superblock, &recovered)?;
    }
    if let Freshness::Changed(ranges) | Freshness::Outdated(ranges) = &options.freshness {
        let changes = Changes::new(ranges, padding);
        recovered.report.clean_lines_dropped += changes.drop_from(&mut recovered.frames, options.overwrites_changes)?;
    }
    superblock.payload.binding = binding_now.to_raw()?;
    superblock.payload.crash_mode = crash_mode as u8;
    superblock.payload.generation = generation.into();
    let identity = binding_now.identity;
    Ok(Found { superblock, recovered, crash_mode, generation, padding, identity, deferred_bytes_max })
}

/// Builds the core from its parts.
fn assemble(
    cache_device: SharedDevice,
    (origin, origin_events): (SharedDevice, EventReceiver),
    options: OpenOptions,
    found: Found,
    origin_flushes: Arc<OriginFlushes>,
) -> Result<Core, Error> {
    let Found { superblock, recovered, crash_mode, generation, padding, identity, deferred_bytes_max } = found;
    let layout = *recovered.frames.layout();
    let epoch = recovered.end.epoch.checked_add(1).ok_or(ErrorKind::Corrupt)?;
    let start = LogPosition { epoch, ..recovered.end };
    let state = State::new(
        recovered.frames,
        options.mode,
        options.dirty,
        Admissions::new(options.tuning, seen_slots(layout.frame_count())),
        // Deferred data that a replay found is placed by the checkpoint of this opening.
        recovered.deferred.bounded(options.deferred_max, deferred_bytes_max),
        superblock.payload.clean_at.get(),
        options.time_of_day,
    );
    let (lines, life) = (Arc::new(Lines::new(state)), Arc::new(Life::new("the cache")));
    let stored = Stored { superblock, table: recovered.table };
    let journal = Journal::new(Arc::clone(&cache_device), stored, start, crash_mode, options.tokens, &lines, &life)?;
    let pace = Pace::new(layout.line_size, options.cleaning);
    let copies = origin.copies();
    Ok(Core {
        itself: Weak::new(),
        journal: Arc::new(journal),
        origin: Origin::new(origin, padding, identity, &lines, origin_events, origin_flushes),
        revocations: Revocations::of(copies, options.delays_shared),
        cleaner: Cleaner::new(pace, &lines.changed, &lines.background),
        succession: Succession::default(),
        lines,
        life,
        cache_device,
        layout,
        crash_mode,
        generation,
        opened_at: options.clock.now(),
        clock: options.clock,
        lazy_interval: options.lazy_interval,
        ranges: RangeLock::new(),
        fetches: RangeLock::new(),
        forgettings: Forgettings::default(),
        insert_pool: BufferPool::new(options.insert_bytes_max),
        workers: Workers::new(),
        events: EventHub::new(),
        counters: Counters::default(),
        failed_reads: FailedReads::default(),
        refused_writes: RefusedWrites::default(),
        recovery: recovered.report,
    })
}

/// How many bytes the first line begins before the origin.
///
/// # Errors
/// `Corrupt` when lines would begin within blocks of the origin.
fn padding_within_blocks(parameters: &ParametersRaw, line_size: LineSize, binding_now: &Binding) -> Result<u64, Error> {
    let alignment = parameters.alignment_bytes.get();
    match alignment.is_multiple_of(u64::from(binding_now.logical_block_bytes)) {
        true => Ok(padding_of(line_size, alignment)),
        false => Err(Error::new(ErrorKind::Corrupt, "lines of this cache begin within blocks of its disk")),
    }
}

/// Refuses a crash mode that drops dirty lines, while there are any.
fn check_discards_nothing(crash_mode: CrashMode, recovered: &Recovered) -> Result<(), Error> {
    if crash_mode.keeps_dirty() || recovered.report.dirty_lines == 0 {
        return Ok(());
    }
    let context = format!(
        "{} dirty lines are in the cache, and crash mode \"discard\" would forget them at a crash: clean it first",
        recovered.report.dirty_lines
    );
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Refuses dirty data of one generation for an origin of another.
fn check_generation(
    generation: u64,
    superblock: &Superblock<ParametersRaw>,
    recovered: &Recovered,
) -> Result<(), Error> {
    if recovered.report.dirty_lines == 0 {
        return Ok(());
    }
    let context = format!(
        "{} dirty lines in the cache are of generation {}, and the disk is said to have generation {generation}: \
         attach it with the old one and clean it, or discard it",
        recovered.report.dirty_lines, superblock.payload.generation
    );
    Err(Error::new(ErrorKind::Unsupported, context))
}

impl Core {
    /// Makes durable what the origin acknowledged before this open, where mode or crash mode
    /// promise more than a flush does.
    async fn settle_first(&self) -> Result<(), Error> {
        match (self.lines.mode().delays_writes(), self.crash_mode) {
            // Write-back: every acknowledged write is durable.
            (true, _) => self.origin.flush().await,
            // Crash mode *all*: data read from now on is kept over a crash at once, so the origin
            // must keep it, too.
            (_, CrashMode::AllSynchronous) => {
                if let Err(error) = self.origin.flush().await {
                    tracing::warn!(%error, "the origin does not flush; what is read is not kept over a crash before it \
                                            does");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
