//! The logical unit: a device and the state that commands share. The checks before a command are in
//! [`device_server`](crate::device_server).

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use block::completion::Workers;
use block::{BufferPool, ByteRange, ErrorKind, Geometry, Hints, Request, SharedDevice};
use scsi::Sense;
use scsi::cdb::Blocks;

use crate::access::Access;
use crate::attention::UnitAttentions;
use crate::change_marks::{self, ChangeMarks};
use crate::command::Command;
use crate::copy_results::CopyResults;
use crate::data_in::sense_bytes;
use crate::device_watch::DeviceWatch;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{COPY_SMALL_PIECE_BYTES, TRANSFER_BYTES_MAX};
use crate::lost_writes::LostWrites;
use crate::mapped_units::MappedUnits;
use crate::medium_state::MediumState;
use crate::mode_state::ModeState;
use crate::nexus::NexusId;
use crate::options::LogicalUnitOptions;
use crate::protection::Protection;
use crate::reservation::Reservations;
use crate::sanitize_state::SanitizeState;
use crate::sharing::Sharing;
use crate::task_set::{TaskSet, Ticket};

/// What clones of a [`LunMap`](crate::LunMap) share. Locks are taken in this order: `nexuses`, `read_only`, `units`.
#[derive(Default)]
pub(crate) struct LunTable {
    pub(crate) nexuses: Mutex<BTreeSet<NexusId>>,
    pub(crate) units: RwLock<MappedUnits<LogicalUnit>>,
    /// LUNs that nexuses of the map may only read; changes only under `nexuses`.
    pub(crate) read_only: Mutex<BTreeSet<u64>>,
}

/// The maps that a logical unit is in.
#[derive(Default)]
pub(crate) struct Maps(Mutex<Vec<Weak<LunTable>>>);

impl Maps {
    pub(crate) fn join(&self, map: &Arc<LunTable>) {
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        maps.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(map)));
        maps.push(Arc::downgrade(map));
    }

    /// The logical units that a nexus sees, and saw when its map had so many arrivals: those of each map that this unit
    /// was in and that has the nexus, which is one.
    pub(crate) fn seen_by(&self, nexus: &NexusId, arrivals: u64) -> Vec<Arc<LogicalUnit>> {
        let maps: Vec<Arc<LunTable>> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
        let is_in = |map: &&Arc<LunTable>| map.nexuses.lock().unwrap_or_else(PoisonError::into_inner).contains(nexus);
        let units_of = |map: &Arc<LunTable>| -> Vec<Arc<LogicalUnit>> {
            map.units.read().unwrap_or_else(PoisonError::into_inner).units_until(arrivals).cloned().collect()
        };
        maps.iter().filter(is_in).flat_map(units_of).collect()
    }
}

/// A device server over a block device.
pub struct LogicalUnit {
    device: SharedDevice,
    pub(crate) options: LogicalUnitOptions,
    pub(crate) attentions: Arc<UnitAttentions>,
    pub(crate) tasks: TaskSet,
    pub(crate) reservations: Reservations,
    pub(crate) protection: Protection,
    pub(crate) change_marks: Option<ChangeMarks>,
    pub(crate) medium: MediumState,
    pub(crate) mode: ModeState,
    pub(crate) sanitize: Arc<SanitizeState>,
    pub(crate) copies: CopyResults,
    /// Copies that came to other units and have blocks of this one: at the gate they are like tasks.
    pub(crate) visiting_copies: TaskSet,
    /// One piece of all copies, while others have tasks.
    pub(crate) copy_turn: BufferPool,
    /// The other units of the map it is in, for copies between them.
    pub(crate) maps: Maps,
    lost_writes: Arc<LostWrites>,
    pub(crate) access: Arc<Access>,
    /// Whether the device carried out the last long write at once, on the submitting thread.
    pub(crate) writes_on_the_spot: AtomicBool,
    workers: Workers,
    pub(crate) watch: Arc<DeviceWatch>,
}

impl LogicalUnit {
    /// A logical unit over `device`. Poll [`run`](Self::run) for as long as it serves.
    pub fn new(device: SharedDevice, options: LogicalUnitOptions) -> Arc<Self> {
        let reservations =
            Reservations::restored(&options.saved_reservations, options.reservation_store.as_ref().map(Arc::clone));
        let range_bytes = change_marks::range_bytes_for(device.geometry().size_bytes);
        let change_marks = options.change_store.as_ref().map(|store| {
            ChangeMarks::restored(Arc::clone(store), &options.saved_marks, range_bytes, options.clock.clone())
        });
        let sharing = options
            .sharing
            .as_ref()
            .and_then(|sharing| Some(Sharing::new(sharing, &device.geometry(), options.clock.clone()?)));
        let attentions = Arc::<UnitAttentions>::default();
        let lost_writes = Arc::<LostWrites>::default();
        let told = options.tells_lost_writes.then(|| Arc::clone(&lost_writes));
        let (losses, waits) = (options.losses.clone(), options.waits_for_device);
        let watch = Arc::new(DeviceWatch::new(&device, Arc::clone(&attentions), told, losses, waits));
        Arc::new(Self {
            device,
            options,
            attentions,
            tasks: TaskSet::default(),
            reservations,
            protection: Protection::default(),
            change_marks,
            medium: MediumState::default(),
            mode: ModeState::default(),
            sanitize: Arc::default(),
            copies: CopyResults::default(),
            visiting_copies: TaskSet::default(),
            copy_turn: BufferPool::new(COPY_SMALL_PIECE_BYTES as usize),
            maps: Maps::default(),
            lost_writes,
            access: Arc::new(Access::new(sharing)),
            writes_on_the_spot: AtomicBool::new(false),
            workers: Workers::new(),
            watch,
        })
    }

    /// Whether a unit attention is pending for a nexus (QUERY ASYNCHRONOUS EVENT, SAM-5 7.9). It
    /// stays pending.
    pub fn has_attention(&self, nexus: &NexusId) -> bool {
        self.attentions.is_waiting_for(nexus)
    }

    /// Whether no command waits for the device.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The device below.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Size and blocks as initiators see them.
    pub fn geometry(&self) -> Geometry {
        let geometry = self.device.geometry();
        let Some(block_bytes) = self.options.logical_block_bytes.filter(|&bytes| bytes > geometry.logical_block_bytes)
        else {
            return geometry;
        };
        Geometry {
            size_bytes: geometry.size_bytes - geometry.size_bytes % u64::from(block_bytes),
            logical_block_bytes: block_bytes,
            physical_block_bytes: geometry.physical_block_bytes.max(block_bytes),
            discard_granularity_bytes: geometry.discard_granularity_bytes.map(|bytes| bytes.max(block_bytes)),
            hints: Hints {
                physical_alignment_bytes: whole_blocks(geometry.hints.physical_alignment_bytes, block_bytes),
                discard_alignment_bytes: whole_blocks(geometry.hints.discard_alignment_bytes, block_bytes),
                ..geometry.hints
            },
            ..geometry
        }
    }

    /// Sense data in the format that the mode page selects: descriptor format with D_SENSE set.
    pub fn sense_bytes(&self, sense: &Sense) -> Vec<u8> {
        sense_bytes(sense, self.mode.has_descriptor_sense())
    }

    /// Background work: turns the device's events into unit attentions, and finishes commands whose
    /// execution was dropped. Runs until it is dropped.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (watch, workers) = (Arc::clone(&self.watch), self.workers.clone());
        let sharing = self.access.sharing().map(|sharing| {
            let (ranges, workers) = (self.access.ranges().clone(), self.workers.clone());
            Arc::clone(sharing).run(ranges, workers, Arc::clone(&self.device))
        });
        async move {
            let sharing = async {
                if let Some(sharing) = sharing {
                    sharing.await;
                }
            };
            futures_util::future::join3(watch.run(), workers.run(), sharing).await;
        }
    }

    /// Blocks per command at most (VPD B0h MAXIMUM TRANSFER LENGTH).
    pub(crate) fn transfer_blocks_max(&self, geometry: &Geometry) -> u32 {
        geometry.transfer_bytes_max.min(TRANSFER_BYTES_MAX) / geometry.logical_block_bytes
    }

    /// Whether UNMAP and its relatives are offered.
    pub(crate) fn is_thin(&self, geometry: &Geometry) -> bool {
        self.options.is_thin && (geometry.discard_granularity_bytes.is_some() || geometry.is_read_only)
    }

    pub(crate) fn is_read_only(&self, geometry: &Geometry) -> bool {
        self.options.is_read_only || geometry.is_read_only
    }

    /// The bytes of the blocks that a command addresses, if they are within the device.
    pub(crate) fn range_of(&self, geometry: &Geometry, blocks: Blocks) -> Result<ByteRange, Sense> {
        self.check_medium()?;
        range_in(geometry, blocks.lba, u64::from(blocks.count))
    }

    /// As [`range_of`](Self::range_of), and no more of them than one transfer may have.
    pub(crate) fn transfer_range_of(&self, geometry: &Geometry, blocks: Blocks) -> Result<ByteRange, Sense> {
        let range = self.range_of(geometry, blocks)?;
        if blocks.count > self.transfer_blocks_max(geometry) {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        Ok(range)
    }

    /// Whether the medium can be reached.
    pub(crate) fn check_medium(&self) -> Result<(), Sense> {
        if !self.medium.is_loaded() {
            return Err(Sense::MEDIUM_NOT_PRESENT);
        }
        if !self.watch.is_online() {
            return Err(Sense::COMMUNICATION_FAILURE);
        }
        Ok(())
    }

    /// Whether the medium may be changed.
    pub(crate) fn check_writable(&self, geometry: &Geometry) -> Result<(), Sense> {
        if self.is_read_only(geometry) {
            return Err(Sense::WRITE_PROTECTED);
        }
        if self.mode.is_write_protected() { Err(Sense::SOFTWARE_WRITE_PROTECTED) } else { Ok(()) }
    }

    /// Makes durable what a nexus wrote, for the task of `ticket`.
    ///
    /// # Errors
    /// That of the device, or an earlier loss of writes that has not been reported to this nexus
    /// yet.
    pub(crate) fn flush(
        self: &Arc<Self>,
        nexus: &NexusId,
        ticket: Arc<Ticket>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let flush = self.device.submit(Request::flush());
        let (unit, nexus) = (Arc::clone(self), nexus.clone());
        async move {
            let result = flush.await.result;
            // The device's event about a failure is taken here: the error reports it.
            unit.watch.catch_up();
            // A flush that was not done is tried again, and tells nobody of a loss; a report that
            // nobody gets is still due.
            let is_repeated = |kind: ErrorKind| kind == ErrorKind::Busy || !kind.may_have_lost();
            let is_done = result.as_ref().err().is_none_or(|error| !is_repeated(error.kind()));
            let is_told = is_done && ticket.is_answered() && unit.lost_writes.tell(&nexus);
            if is_told {
                unit.watch.note_told();
            }
            match result {
                Ok(()) if is_told => Err(Sense::WRITE_ERROR.into()),
                Ok(()) => Ok(()),
                Err(error) => Err(failure::of_block_error(&error, DeviceAccess::Writing, None)),
            }
        }
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    pub(crate) fn enter(&self, nexus: &NexusId, command: &Command) -> Ticket {
        self.tasks.enter(nexus, command.task_tag, command.attribute)
    }

    /// Adds an I_T nexus.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        self.attentions.add_nexus(nexus);
        self.lost_writes.add_nexus(nexus);
        if let Some(marks) = &self.change_marks {
            marks.add_nexus(nexus);
        }
    }

    /// Removes an I_T nexus with its RESERVE(6), its prevention of medium removal and its unit
    /// attentions (SAM-5 6.3.4).
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        self.attentions.remove_nexus(nexus);
        self.lost_writes.remove_nexus(nexus);
        if let Some(marks) = &self.change_marks {
            marks.remove_nexus(nexus);
        }
        self.protection.set(nexus, false);
        self.reservations.release_of(nexus);
        self.medium.allow_removal(nexus);
        self.copies.forget(nexus);
        if let Some(sharing) = self.access.sharing() {
            sharing.remove_nexus(nexus);
        }
    }

    /// LOGICAL UNIT RESET (SAM-5 6.3.3), but for the tasks, which the caller aborts.
    pub(crate) fn reset(&self) {
        self.reservations.reset();
        self.medium.reset();
        self.mode.reset();
        self.attentions.establish(Sense::BUS_DEVICE_RESET, None);
        self.mode.settle();
    }
}

/// An alignment in bytes; zero where it is no whole number of blocks.
fn whole_blocks(bytes: u32, block_bytes: u32) -> u32 {
    if bytes.is_multiple_of(block_bytes) { bytes } else { 0 }
}

/// The bytes of `count` blocks from `lba`.
pub(crate) fn range_in(geometry: &Geometry, lba: u64, count: u64) -> Result<ByteRange, Sense> {
    let block_bytes = u64::from(geometry.logical_block_bytes);
    let end = lba.checked_add(count).ok_or(Sense::LBA_OUT_OF_RANGE)?;
    if end > geometry.size_bytes / block_bytes {
        return Err(Sense::LBA_OUT_OF_RANGE);
    }
    Ok(ByteRange { offset: lba * block_bytes, length: count * block_bytes })
}
