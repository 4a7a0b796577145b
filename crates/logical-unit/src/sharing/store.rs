//! The state of sharing that outlives a start of the target.

use std::time::Duration;

use locks::identity::BootEpoch;
use locks::settings::Start;

use super::ended::EndedLives;
use super::proof::LifeSecret;
use crate::change_marks::Saving;

/// The durable state, kept beside the reservations. Grants are not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSharing {
    /// The epoch of the last start; zero before the first.
    pub boot_epoch: u32,
    /// The earliest start whose clients may still reclaim what they held.
    pub reclaimable_from: u32,
    /// The longest lease that was granted; `None` when no client can hold a lock.
    pub longest_lease_ms: Option<u32>,
    /// Whether a client may have held ranges of the unit alone, and dirty data that only it has.
    pub may_lack_writes: bool,
    /// The secret of the clients' proofs; `None` where no client can reclaim anything after the
    /// next start.
    pub secret: Option<LifeSecret>,
    /// The lives that have ended, of all starts from which something may still be reclaimed.
    pub ended: EndedLives,
}

impl SavedSharing {
    /// The state of the next start; it must be durable before any client registers.
    #[must_use]
    pub fn next_start(self) -> Self {
        let boot_epoch = self.boot_epoch.saturating_add(1);
        let is_reclaimable = self.longest_lease_ms.is_some() && self.reclaimable_from > 0;
        match is_reclaimable {
            true => Self { boot_epoch, ..self },
            false => Self { boot_epoch, reclaimable_from: boot_epoch, ended: EndedLives::default(), ..self },
        }
    }

    pub(super) fn start(&self) -> Start {
        Start {
            boot_epoch: BootEpoch(self.boot_epoch),
            reclaimable_from: BootEpoch(self.reclaimable_from),
            may_lack_writes: self.may_lack_writes,
            longest_lease: self.longest_lease_ms.map(|ms| Duration::from_millis(u64::from(ms))),
        }
    }
}

/// The store for that state.
pub trait SharingStore: Send + Sync {
    /// Makes it durable, without blocking the calling thread. When it fails, the state saved before
    /// is still there. It is not called again before it has ended, unless the future was dropped.
    fn save(&self, sharing: SavedSharing) -> Saving;
}
