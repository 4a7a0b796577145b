//! A device for fronts, and what all fronts of one device share.

use std::sync::Arc;

use base::clock::VirtualClock;
use block::SharedDevice;
use block::losses::Losses;
use block::range_lock::RangeLock;

use crate::admission::Admission;

/// A device that one or more fronts offer. Clones are for other fronts of it.
#[derive(Clone)]
pub struct Exported {
    /// The device.
    pub device: SharedDevice,
    /// The losses that its flushes have reported, of which each client is told
    /// ([`LossRecordLayer`](block::layer::loss_record::LossRecordLayer)); where nobody records them,
    /// only the client whose flush reports one is told.
    pub losses: Arc<Losses>,
    /// The lock for changes of less than a block, which read and write the rest of it, too.
    pub turns: RangeLock,
    /// The turns of those who ask for much, over the clients of all fronts.
    pub admission: Arc<Admission>,
}

impl Exported {
    /// A device that one front offers, and whose losses nobody records.
    pub fn alone(device: SharedDevice) -> Self {
        // Where none are recorded, none have a time.
        let losses = Arc::new(Losses::new(Arc::new(VirtualClock::new())));
        Self { device, losses, turns: RangeLock::new(), admission: Arc::default() }
    }
}
