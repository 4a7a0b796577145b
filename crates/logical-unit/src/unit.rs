//! The logical unit: what is checked before a command runs, and where it goes.
//!
//! In this order (SAM-5 5.3.3, SPC-4 5.9): the CDB is parsed; a waiting unit attention is told first, whatever the command, unless it is
//! one of the three that are exempt; then what is wrong with the CDB; then reservations; then the medium's presence; then the
//! command itself. A command that needs one device request and no waiting costs no allocation.

use std::future::Future;
use std::sync::Arc;

use base::clock::Clock;
use block::completion::Workers;
use block::range_lock::RangeLock;
use block::{BufferPool, ByteRange, Geometry, Hints, Request, SharedDevice};
use scsi::cdb::Blocks;
use scsi::{Cdb, CdbError, Sense, Status};

use crate::admission::Admission;
use crate::attention::{self, UnitAttentions};
use crate::change_marks::{self, ChangeMarks, ChangeStore, SavedMarks};
use crate::command::{Command, Outcome};
use crate::commands;
use crate::commands::extended_copy::CopyResults;
use crate::commands::medium::MediumState;
use crate::commands::mode::ModeState;
use crate::commands::sanitize::{self, SanitizeState};
use crate::device_watch::DeviceWatch;
use crate::execution::Execution;
use crate::failure::{self, Doing, Failure};
use crate::limits::{READ_BUFFER_BYTES_DEFAULT, TRANSFER_BYTES_MAX, WORK_BUFFER_BYTES};
use crate::lost_writes::LostWrites;
use crate::lun_map::Maps;
use crate::nexus::NexusId;
use crate::protection::{self, Protection};
use crate::reservation::{ReservationStore, Reservations, SavedReservations};
use crate::task_set::{TaskSet, Ticket};

/// What a logical unit says about itself, and what it runs with.
#[derive(Clone)]
pub struct LogicalUnitOptions {
    /// T10 vendor identification, at most 8 characters.
    pub vendor: String,
    /// Product identification, at most 16 characters.
    pub product: String,
    /// Product revision level, at most 4 characters.
    pub revision: String,
    /// RMB: the medium can be ejected and loaded.
    pub is_removable: bool,
    /// Unmapping is offered, where the device can discard.
    pub is_thin: bool,
    /// Writes are refused, whatever the device would do.
    pub is_read_only: bool,
    /// Whether a medium that turns is claimed; else one that does not.
    pub is_rotational: bool,
    /// Logical block in bytes, where it is larger than the device's; bytes past the last whole one cannot be addressed.
    pub logical_block_bytes: Option<u32>,
    /// Physical block in bytes that READ CAPACITY(16) tells; `None` tells none larger than the logical block. It is said and not derived: what
    /// a file or a page cache writes at once is no property of a medium. The transfer granularity of VPD B0h is the device's own.
    pub physical_block_bytes: Option<u32>,
    /// Largest write that lands whole or not at all, whatever fails, in bytes: bounds WRITE ATOMIC. Zero where the device promises none.
    pub atomic_bytes_max: u32,
    /// Keeps persistent reservations over power loss (APTPL); without it, they cannot be.
    pub reservation_store: Option<Arc<dyn ReservationStore>>,
    /// What the store had kept.
    pub saved_reservations: SavedReservations,
    /// Whether every initiator's next flush fails once after the device lost writes ([`block::Event::WritesLost`]), so that it knows: for a device that goes on
    /// after such a loss as if nothing had been. A unit attention tells of it in any case.
    pub tells_lost_writes: bool,
    /// Keeps change marks; without it, there are none.
    pub change_store: Option<Arc<dyn ChangeStore>>,
    /// What that store had kept.
    pub saved_marks: SavedMarks,
    /// Times what has a shortest duration, and what change marks cost; without it, nothing has either.
    pub clock: Option<Arc<dyn Clock>>,
    /// Where buffers of data-in come from. When it has lent all it may, reads wait.
    pub read_buffers: BufferPool,
    /// Where buffers of what commands do on their own come from: copying, repeating a block, comparing.
    pub work_buffers: BufferPool,
}

impl Default for LogicalUnitOptions {
    fn default() -> Self {
        Self {
            vendor: "FOREBAY".into(),
            product: "VIRTUAL DISK".into(),
            revision: "0001".into(),
            is_removable: false,
            is_thin: true,
            is_read_only: false,
            is_rotational: false,
            logical_block_bytes: None,
            physical_block_bytes: None,
            atomic_bytes_max: 0,
            reservation_store: None,
            saved_reservations: SavedReservations::default(),
            tells_lost_writes: false,
            change_store: None,
            saved_marks: SavedMarks::default(),
            clock: None,
            read_buffers: BufferPool::new(READ_BUFFER_BYTES_DEFAULT),
            work_buffers: BufferPool::new(WORK_BUFFER_BYTES),
        }
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
    /// The other units of the map it is in, for copies between them.
    pub(crate) maps: Maps,
    lost_writes: Arc<LostWrites>,
    pub(crate) ranges: RangeLock,
    workers: Workers,
    watch: Arc<DeviceWatch>,
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
        let attentions = Arc::<UnitAttentions>::default();
        let lost_writes = Arc::<LostWrites>::default();
        let told = options.tells_lost_writes.then(|| Arc::clone(&lost_writes));
        let watch = Arc::new(DeviceWatch::new(&device, Arc::clone(&attentions), told));
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
            maps: Maps::default(),
            lost_writes,
            ranges: RangeLock::new(),
            workers: Workers::new(),
            watch,
        })
    }

    /// Whether a unit attention waits for a nexus (QUERY ASYNCHRONOUS EVENT, SAM-5 7.9). It stays.
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

    /// Sense data as its initiators want it: in descriptor format with D_SENSE set.
    pub fn sense_bytes(&self, sense: &Sense) -> Vec<u8> {
        commands::inquiry::sense_bytes(sense, self.mode.has_descriptor_sense())
    }

    /// Background work: what the device reports becomes unit attentions, and commands whose execution was dropped are finished. Runs
    /// until it is dropped.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (watch, workers) = (Arc::clone(&self.watch), self.workers.clone());
        async move {
            futures_util::future::join(watch.run(), workers.run()).await;
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

    /// Runs one command of `nexus`.
    pub(crate) fn execute(self: &Arc<Self>, nexus: &NexusId, command: Command) -> Execution {
        let parsed = Cdb::parse(&command.cdb);
        // As it stands when the command comes: its nexus may be gone when it executes.
        let admission = Admission { sanitizes_begun: self.sanitize.begun(), held: self.held_by(nexus) };
        let cdb = match self.admit(nexus, parsed) {
            Ok(cdb) => cdb,
            Err(failure) => return Execution::ready(Outcome::from(Err(failure))),
        };
        if self.tasks.is_full() {
            return Execution::ready(Outcome::status(Status::TaskSetFull));
        }
        // SANITIZE overtakes all (SBC-4 5.30): what waits is told of it instead of being carried out first.
        if matches!(cdb, Cdb::Sanitize(_)) || !self.tasks.must_wait(command.attribute) {
            return commands::start(self, nexus, cdb, command, admission);
        }
        let ticket = Arc::new(self.enter(nexus, &command));
        let (unit, nexus, workers) = (Arc::clone(self), nexus.clone(), self.workers.clone());
        let waiting = Arc::clone(&ticket);
        let future = async move {
            waiting.turn().await;
            if !sanitize::is_exempt(&cdb)
                && let Err(failure) = admission.check(&unit, &waiting)
            {
                return Outcome::from(Err(failure));
            }
            // Its place in the order is taken and held by the ticket; what starts here is part of this task.
            commands::start(&unit, &nexus, cdb, command, admission).await
        };
        Execution::task(future, ticket, &workers)
    }

    /// What stands between a command and its execution.
    fn admit(&self, nexus: &NexusId, parsed: Result<Cdb, CdbError>) -> Result<Cdb, Failure> {
        self.watch.catch_up();
        if !parsed.as_ref().is_ok_and(attention::is_exempt)
            && let Some(sense) = self.attentions.take(nexus)
        {
            return Err(sense.into());
        }
        let cdb = parsed?;
        self.reservations.check(nexus, &cdb)?;
        if protection::is_for_writers(&cdb) && self.protection.covers(nexus) {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        if !sanitize::is_exempt(&cdb) {
            self.sanitize.check()?;
        }
        Ok(cdb)
    }

    /// The bytes of the blocks a command addresses, when they are on the device.
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

    /// Makes durable what a nexus wrote.
    ///
    /// # Errors
    /// What the device says, or that it lost something before, which this nexus was not told yet.
    pub(crate) fn flush(self: &Arc<Self>, nexus: &NexusId) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let is_owed = self.lost_writes.tell(nexus);
        let flush = self.device.submit(Request::flush());
        let (unit, nexus) = (Arc::clone(self), nexus.clone());
        async move {
            match flush.await.result {
                Ok(()) if is_owed => Err(Sense::WRITE_ERROR.into()),
                Ok(()) => Ok(()),
                Err(error) => {
                    // What the device says of it is told by this.
                    unit.watch.catch_up();
                    unit.lost_writes.tell(&nexus);
                    Err(failure::of_block_error(&error, Doing::Writing, None))
                }
            }
        }
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    pub(crate) fn enter(&self, nexus: &NexusId, command: &Command) -> Ticket {
        self.tasks.enter(nexus, command.task_tag, command.attribute)
    }

    /// A new I_T nexus.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        self.attentions.add_nexus(nexus);
        self.lost_writes.add_nexus(nexus);
        if let Some(marks) = &self.change_marks {
            marks.add_nexus(nexus);
        }
    }

    /// The I_T nexus is gone: with it its RESERVE(6), its prevention of medium removal and its unit attentions (SAM-5 6.3.4).
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        self.attentions.remove_nexus(nexus);
        if let Some(marks) = &self.change_marks {
            marks.remove_nexus(nexus);
        }
        self.protection.set(nexus, false);
        self.reservations.release_of(nexus);
        self.medium.allow_removal(nexus);
        self.copies.forget(nexus);
    }

    /// LOGICAL UNIT RESET (SAM-5 6.3.3), but for the tasks, which the caller aborts.
    pub(crate) fn reset(&self) {
        self.reservations.reset();
        self.medium.reset();
        self.mode.reset();
        self.attentions.establish(Sense::BUS_DEVICE_RESET, None);
    }
}

/// An alignment that can be said in blocks, or none.
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
