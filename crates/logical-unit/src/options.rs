//! What a logical unit is set up with.

use std::sync::Arc;

use base::clock::Clock;
use block::BufferPool;

use crate::change_marks::{ChangeStore, SavedMarks};
use crate::comparison::CompareAndWrite;
use crate::limits::{COPY_BUFFER_BYTES, READ_BUFFER_BYTES_DEFAULT, WORK_BUFFER_BYTES};
use crate::reservation::{ReservationStore, SavedReservations};
use crate::sharing::SharingOptions;

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
    /// Physical block in bytes that READ CAPACITY(16) tells; `None` tells none larger than the logical block. It is
    /// said and not derived: what a file or a page cache writes at once is no property of a medium. The transfer
    /// granularity of VPD B0h is the device's own.
    pub physical_block_bytes: Option<u32>,
    /// Largest write that lands whole or not at all, whatever fails, in bytes: bounds WRITE ATOMIC. Zero where the
    /// device promises none.
    pub atomic_bytes_max: u32,
    /// Keeps persistent reservations over power loss (APTPL); without it, they cannot be.
    pub reservation_store: Option<Arc<dyn ReservationStore>>,
    /// What the store had kept.
    pub saved_reservations: SavedReservations,
    /// Whether every initiator's next flush fails once after the device lost writes ([`block::Event::WritesLost`]), so
    /// that it knows: for a device that goes on after such a loss as if nothing had been. A unit attention tells of it
    /// in any case.
    pub tells_lost_writes: bool,
    /// Whether the device lets requests wait while it is away, and fails them when that takes too long: then no command
    /// is refused for that alone.
    pub waits_for_device: bool,
    /// Who compares and writes, where others reach the device's blocks without this unit; without it, the unit does.
    pub compares_below: Option<Arc<dyn CompareAndWrite>>,
    /// Keeps change marks; without it, there are none.
    pub change_store: Option<Arc<dyn ChangeStore>>,
    /// What that store had kept.
    pub saved_marks: SavedMarks,
    /// How hosts share it; without it, or without a clock, they do not.
    pub sharing: Option<SharingOptions>,
    /// Times what has a shortest duration, and what change marks cost; without it, nothing has either.
    pub clock: Option<Arc<dyn Clock>>,
    /// Where buffers of data-in come from. When it has lent all it may, reads wait.
    pub read_buffers: BufferPool,
    /// Where buffers of what commands do on their own come from: repeating a block, comparing. Who waits for one may
    /// have blocks, so who has one waits for none.
    pub work_buffers: BufferPool,
    /// Where buffers of copies come from. Who has one may wait for blocks, so who waits for one has none.
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
