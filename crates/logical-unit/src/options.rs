//! The configuration of a logical unit.

use std::sync::Arc;

use base::clock::Clock;
use block::BufferPool;
use block::losses::Losses;

use crate::change_marks::{ChangeStore, SavedMarks};
use crate::comparison::CompareAndWrite;
use crate::limits::{COPY_BUFFER_BYTES, READ_BUFFER_BYTES_DEFAULT, WORK_BUFFER_BYTES};
use crate::reservation::{ReservationStore, SavedReservations};
use crate::sharing::SharingOptions;

/// The configuration of a logical unit: what it reports, and the services that it uses.
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
    /// Whether it reports a rotating medium, else a non-rotating one.
    pub is_rotational: bool,
    /// Logical block in bytes, where it is larger than the device's; bytes past the last whole one cannot be addressed.
    pub logical_block_bytes: Option<u32>,
    /// Physical block in bytes that READ CAPACITY(16) reports; `None` reports none larger than the
    /// logical block. It is configured and not derived: what a file or a page cache writes at once
    /// is no property of a medium. The transfer granularity of VPD B0h is the device's own.
    pub physical_block_bytes: Option<u32>,
    /// Largest write in bytes that is stored whole or not at all, whatever fails: bounds WRITE
    /// ATOMIC. Zero where the device promises none.
    pub atomic_bytes_max: u32,
    /// Keeps persistent reservations over power loss (APTPL); without a store they end with the
    /// process.
    pub reservation_store: Option<Arc<dyn ReservationStore>>,
    /// The reservations that the store had kept.
    pub saved_reservations: SavedReservations,
    /// Whether every initiator's next flush fails once after the device lost writes
    /// ([`block::Event::WritesLost`]): for a device that goes on after such a loss as if nothing
    /// had happened. A unit attention reports it in any case.
    pub tells_lost_writes: bool,
    /// The losses that flushes of the device have reported, those that clients of other fronts asked
    /// for included: for a device that does not publish each as an event.
    pub losses: Option<Arc<Losses>>,
    /// Whether the device lets requests wait while it is offline, and fails them when that takes
    /// too long: then no command is refused only because it is offline.
    pub waits_for_device: bool,
    /// The layer that compares and writes, where other paths lead to the device's blocks; without
    /// it, the unit does.
    pub compares_below: Option<Arc<dyn CompareAndWrite>>,
    /// Keeps change marks; without it, there are none.
    pub change_store: Option<Arc<dyn ChangeStore>>,
    /// The marks that the store had kept.
    pub saved_marks: SavedMarks,
    /// The parameters of sharing; without them, or without a clock, the unit is not shared.
    pub sharing: Option<SharingOptions>,
    /// Times operations with a shortest duration, and the cost of change marks; without it, there
    /// is neither.
    pub clock: Option<Arc<dyn Clock>>,
    /// The pool of buffers for data-in. When all are lent, reads wait.
    pub read_buffers: BufferPool,
    /// The pool of buffers for the commands' own use: repeating a block, comparing. A command that
    /// waits for one may hold a range, so the holder of one waits for no range.
    pub work_buffers: BufferPool,
    /// The pool of buffers for copies. The holder of one may wait for a range, so a command that
    /// waits for one holds none.
    pub copy_buffers: BufferPool,
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
            losses: None,
            waits_for_device: false,
            compares_below: None,
            change_store: None,
            saved_marks: SavedMarks::default(),
            sharing: None,
            clock: None,
            read_buffers: BufferPool::new(READ_BUFFER_BYTES_DEFAULT),
            work_buffers: BufferPool::new(WORK_BUFFER_BYTES),
            copy_buffers: BufferPool::new(COPY_BUFFER_BYTES),
        }
    }
}
