//! I_T nexuses that may read a logical unit and not write it.
//!
//! To them it is write protected: MODE SENSE says so, and what would change the medium ends with WRITE PROTECTED. So
//! does what would take the unit from those who may write: reservations, mode pages, stopping it. Task management
//! reaches their own tasks only. As long as there are none, a command costs one load.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use scsi::Cdb;
use scsi::cdb::Change;
use scsi::sharing::action_out;

use crate::nexus::NexusId;

/// The nexuses that may only read.
#[derive(Default)]
pub(crate) struct Protection {
    /// Changes only under `readers`.
    count: AtomicUsize,
    readers: Mutex<BTreeSet<NexusId>>,
}

impl Protection {
    /// Whether a nexus may only read, from now on; gives whether that is new.
    pub(crate) fn set(&self, nexus: &NexusId, is_read_only: bool) -> bool {
        let mut readers = self.lock();
        let is_new = if is_read_only { readers.insert(nexus.clone()) } else { readers.remove(nexus) };
        self.count.store(readers.len(), Ordering::Release);
        is_new
    }

    /// Whether a nexus may only read.
    pub(crate) fn covers(&self, nexus: &NexusId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.lock().contains(nexus)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<NexusId>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a command is only for those who may write: it would change the medium, or what all see of the unit.
pub(crate) fn is_for_writers(cdb: &Cdb) -> bool {
    match cdb {
        // Who may only read may keep copies, and have files open to read them. Locks would keep the writers out, a
        // fence would end them, and a transaction is for locks.
        Cdb::SharingOut { service_action, .. } => {
            matches!(*service_action, action_out::LOCK | action_out::BEGIN | action_out::FENCE)
        }
        _ => cdb.class().change != Change::Nothing,
    }
}
