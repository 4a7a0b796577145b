//! Formats a device as a write log, opens it, and closes it.
//!
//! Each open begins a new epoch in a new segment, with a checkpoint before the first request, so no
//! record of an earlier opening is ever replayed. Nothing is sent to the origin before
//! [`WriteLog::run`](crate::WriteLog::run) is polled. A close waits for all requests, empties the
//! slots, destages unless it is to keep dirty data, and marks the log *closed*.

use std::sync::Arc;

use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind, SharedDevice};
use store::{Binding, LogPosition, Sequence, Superblock, new_device, superblock};
use uuid::Uuid;
use zerocopy::little_endian::U64;

use crate::assemble::assemble;
use crate::core::Core;
use crate::format::{KIND, ParametersRaw, STATE_CLOSED, STATE_FAILED, STATE_IN_USE};
use crate::layout::Layout;
use crate::level2::DestageProgress;
use crate::numbers::Sector;
use crate::nvram::{PersistentRegion, VolatileRegion};
use crate::options::{DestageOrder, Durability, FormatOptions, OpenOptions};
use crate::origin::Origin;
use crate::recovery::{Recovered, recover};
use crate::sectors::whole_sectors;
use crate::stage::Stage;

/// A write log in errors.
const WORDS: new_device::Words = new_device::Words { device: "the log device", store: "a write log", done: "logged" };

pub(crate) async fn format(
    log_device: &SharedDevice,
    origin: &SharedDevice,
    options: FormatOptions,
) -> Result<(), Error> {
    new_device::check(log_device, origin, WORDS)?;
    let layout = Layout::new(log_device.geometry().size_bytes, &options)?;
    let first = LogPosition { offset: 0, epoch: 0, sequence: Sequence::FIRST, link: 0 };
    let parameters = ParametersRaw {
        binding: Binding::of(origin).to_raw()?,
        segment_bytes: (layout.segment_bytes as u32).into(),
        slot_bytes: (layout.slot_bytes as u32).into(),
        segment_count: layout.segment_count.into(),
        state: STATE_CLOSED,
        order: DestageOrder::Log.code(),
        checkpoint_slot: 0,
        has_nvram: 0,
        checkpoint_offset: layout.checkpoint_offset.into(),
        checkpoint_bytes: layout.checkpoint_bytes.into(),
        segments_offset: layout.segments_offset.into(),
        checkpoint_sequence: U64::ZERO,
        destaged_sequence: U64::ZERO,
        position: first.into(),
        position_segment: 0.into(),
        position_next: 0.into(),
        dirty_bytes: U64::ZERO,
        reserved_2: [0; 40],
    };
    superblock::erase(log_device).await?;
    new_device::write_zeroes(log_device, zeroed(&layout, options.data_bytes_max)).await?;
    Superblock::create(log_device, KIND, options.uuid.unwrap_or_else(Uuid::new_v4), parameters).await?;
    Ok(())
}

/// What becomes zeroes of checkpoints and segments: see [`FormatOptions::data_bytes_max`].
fn zeroed(layout: &Layout, bytes_max: u64) -> ByteRange {
    let offset = layout.checkpoint_offset;
    ByteRange { offset, length: (layout.offset_of(layout.end()) - offset).min(bytes_max) }
}

pub(crate) async fn open(
    log_device: SharedDevice,
    origin: SharedDevice,
    options: OpenOptions,
) -> Result<Arc<Core>, Error> {
    new_device::check(&log_device, &origin, WORDS)?;
    // Before its identity is read: the log then gets the events of all later changes, however long
    // the open takes.
    let origin_events = origin.subscribe();
    let mut superblock: Superblock<ParametersRaw> = Superblock::read(&log_device, KIND).await?;
    let layout = Layout::from_parameters(&superblock.payload, log_device.geometry().size_bytes)?;
    check_state(&superblock.payload)?;
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    let binding_now = Binding::of(&origin);
    binding.check_same(&binding_now, KIND.name)?;
    // A program that was killed may have left data in the volatile cache of the device, also this
    // superblock. It must not be lost later, once the next checkpoint has overwritten the slot that
    // the superblock before it names.
    log_device.flush().await?;
    let recovered = recover(&log_device, &layout, &superblock, options.clock.as_ref()).await?;
    superblock.payload.binding = binding_now.to_raw()?;
    let stage = open_stage(&options, &layout, &superblock)?;
    check_size(&recovered, stage.as_ref(), &binding, binding_now.size_bytes)?;
    let was_ordered = superblock.payload.order == DestageOrder::Log.code();
    let destaged_sequence = superblock.payload.destaged_sequence.into();
    let origin = Origin::new(origin, binding_now.identity, origin_events);
    let kept_changes = options.kept_changes.clone();
    let core = assemble(log_device, origin, options, superblock, layout, recovered, stage);
    core.log.state().contents.check_kept_changes(&kept_changes)?;
    if core.settings.keeps_order() {
        if was_ordered {
            core.log.state().destaged.begin_at(destaged_sequence);
            core.epochs.forget_destaged().await;
            core.epochs.begin_with_found().await;
        } else {
            core.epochs.begin_with_leftovers().await;
        }
    }
    // Writes that the origin acknowledged before the log was attached may still be in its volatile
    // cache, and a client's flush of the log does not reach the origin. Before the checkpoint, so
    // that after a failure of this flush the next open flushes again.
    core.origin.device().flush().await?;
    core.checkpoints.make(STATE_IN_USE).await?;
    Ok(core)
}

fn check_state(payload: &ParametersRaw) -> Result<(), Error> {
    if payload.state != STATE_FAILED {
        return Ok(());
    }
    let context = "this log's device failed while it was in use, and the LUN has got newer data since: what the log \
                   holds may be older. Discard it";
    Err(Error::new(ErrorKind::Corrupt, context))
}

/// Refuses an origin that ends before some dirty data.
fn check_size(recovered: &Recovered, stage: Option<&Stage>, binding: &Binding, origin_bytes: u64) -> Result<(), Error> {
    let in_log = recovered.map.dirty_from(Sector::FIRST).map(|piece| piece.end());
    let in_slots =
        stage.into_iter().flat_map(Stage::slots_by_age).map(|(_, _, slot)| slot.sector + u64::from(slot.sectors));
    if in_log.chain(in_slots).all(|end| end <= Sector::at(origin_bytes)) {
        return Ok(());
    }
    let context = format!(
        "\"{}\" had {} bytes and now has {origin_bytes}, and data in the log lies beyond; attach it, or replay the \
         log, when it has its old size, and make it smaller then",
        binding.identity, binding.size_bytes
    );
    Err(Error::new(ErrorKind::Corrupt, context))
}

fn open_stage(
    options: &OpenOptions,
    layout: &Layout,
    superblock: &Superblock<ParametersRaw>,
) -> Result<Option<Stage>, Error> {
    let is_needed = superblock.payload.has_nvram != 0;
    let keeps_order = options.order == DestageOrder::Log;
    let region: Arc<dyn PersistentRegion> = match (&options.nvram, options.durability) {
        (Some(region), _) => Arc::clone(region),
        (None, _) if is_needed => {
            let context = "acknowledged data of this log may be in NVRAM only: open it with that NVRAM";
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        (None, Durability::Log) => return Ok(None),
        (None, Durability::Nvram) => {
            return Err(Error::new(ErrorKind::Unsupported, "durability nvram needs a persistent-memory region"));
        }
        (None, Durability::UnsafeVolatile) => Arc::new(VolatileRegion::new(options.volatile_bytes)),
    };
    let log_bytes = layout.log_bytes();
    if keeps_order && 2 * region.size_bytes() as u64 > log_bytes {
        let context = format!(
            "a log of {log_bytes} bytes is too small for {} bytes of slots: destage order log needs twice as much",
            region.size_bytes()
        );
        return Err(Error::new(ErrorKind::InvalidRange, context));
    }
    Stage::open(region, superblock.uuid(), layout.slot_bytes, keeps_order, is_needed, options.clock.now()).map(Some)
}

impl Core {
    /// Forgets clean data that others changed: see
    /// [`WriteLog::invalidate`](crate::WriteLog::invalidate).
    pub(crate) async fn invalidate(self: &Arc<Self>, ranges: &[ByteRange], is_overwritten: bool) -> Result<(), Error> {
        let _guard = self.exclude_requests().await;
        if self.life.is_stopped() {
            return Err(self.life.closed());
        }
        if !is_overwritten {
            self.log.state().contents.check_kept_changes(ranges)?;
        }
        ranges.iter().for_each(|&range| self.log.state().contents.forget_clean_in(whole_sectors(range)));
        // Without this checkpoint a crash would replay data destaged since the last one, and send
        // it again, over the data of other hosts.
        self.checkpoints.make(STATE_IN_USE).await
    }

    /// Destages or keeps dirty data, and closes: see [`WriteLog::close`](crate::WriteLog::close).
    pub(crate) async fn close(
        self: &Arc<Self>,
        keep_dirty: bool,
        progress: impl FnMut(DestageProgress),
    ) -> Result<(), Error> {
        self.life.begin_close();
        if self.life.is_stopped() {
            // Another is closing it, or has.
            return self.stop_and_end().await;
        }
        self.admission.line_emptied().await;
        drop(self.exclude_requests().await);
        if let Err(error) = self.prepare_close(keep_dirty, progress).await {
            // Nothing is lost: the log goes on, and can be closed with `keep_dirty`.
            self.life.give_up_close();
            return Err(error);
        }
        self.stop_and_end().await
    }

    /// Ends what goes on in the background, then all. Whoever comes second waits for the first.
    async fn stop_and_end(self: &Arc<Self>) -> Result<(), Error> {
        let closing = async {
            self.life.stop();
            self.log.wake_all();
            drop(self.epochs.destaging.lock().await);
            let is_clean = self.log.state().contents.map.dirty_sectors() == 0;
            let result = match self.log.failure() {
                Some(error) if !is_clean => Err(error),
                // Clean in spite of a failure: if the device takes a checkpoint of nothing, the next open begins anew.
                _ => self.checkpoints.make(STATE_CLOSED).await,
            };
            self.workers.stop();
            result
        };
        self.life.close_once(closing).await
    }

    async fn prepare_close(
        self: &Arc<Self>,
        keep_dirty: bool,
        mut progress: impl FnMut(DestageProgress),
    ) -> Result<(), Error> {
        match keep_dirty {
            false => match self.destager.destage_all(&mut progress).await {
                // The error may concern an earlier write, and the origin reports it only once, so
                // try again. Lost data stays lost.
                Err(_) if self.lost.bytes_now() == 0 => self.destager.destage_all(progress).await,
                destaged => destaged,
            },
            true if self.log.has_failed() => Ok(()),
            true => self.mover.move_round(1.0).await,
        }
    }
}

/// The whole contents of a device's log as an open would find them; nothing is written.
pub(crate) async fn look(
    log_device: &SharedDevice,
    clock: &dyn base::clock::Clock,
) -> Result<(Superblock<ParametersRaw>, Layout, Recovered), Error> {
    let superblock: Superblock<ParametersRaw> = Superblock::read(log_device, KIND).await?;
    let layout = Layout::from_parameters(&superblock.payload, log_device.geometry().size_bytes)?;
    let recovered = recover(log_device, &layout, &superblock, clock).await?;
    Ok((superblock, layout, recovered))
}

#[cfg(test)]
mod tests {
    use base::executor::{Executor, block_on};
    use block::completion::Workers;
    use block::layer::stats::StatsLayer;
    use block::memory::MemoryDevice;
    use block::{Identity, OperationKind};

    use super::*;

    /// A file system commits its journal for each record in blocks that it has only reserved.
    #[test]
    fn a_log_is_made_of_data_as_far_as_it_is_told() {
        const LOG_BYTES: u64 = 4 << 20;
        let written = |data_bytes_max| {
            let memory = || Arc::new(MemoryDevice::new(LOG_BYTES, Identity::default()));
            let clock = Arc::new(Executor::in_order().clock());
            let stats = Arc::new(StatsLayer::new(memory(), clock, &Workers::default()));
            let (device, origin): (SharedDevice, SharedDevice) = (Arc::clone(&stats) as SharedDevice, memory());
            let options = FormatOptions { data_bytes_max, ..FormatOptions::default() };
            block_on(async move { format(&device, &origin, options).await }).expect("nothing fails");
            stats.snapshot().of(OperationKind::Write).bytes
        };
        let layout = Layout::new(LOG_BYTES, &FormatOptions::default()).expect("it is large enough");
        let superblocks = written(0);
        assert_eq!(written(u64::MAX), superblocks + layout.offset_of(layout.end()) - layout.checkpoint_offset);
        assert_eq!(written(3 << 19), superblocks + (3 << 19));
    }
}
