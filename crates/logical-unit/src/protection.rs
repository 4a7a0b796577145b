//! I_T nexuses that may read a logical unit and not write it.
//!
//! For them the unit is write protected: MODE SENSE reports that, and commands that would change
//! the medium end with WRITE PROTECTED. So do commands that would take the unit from writers:
//! reservations, mode pages, stopping it. Their task management affects only their own tasks. While
//! there is no such nexus, a command costs one load.

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
    /// Sets whether a nexus may only read. Returns whether that is a change.
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

/// Whether a command needs write permission: it would change the medium, or state that all nexuses
/// see.
pub(crate) fn is_for_writers(cdb: &Cdb) -> bool {
    match cdb {
        // A read-only client may keep copies, and have files open for reading. Locks would exclude
        // the writers, a fence would end them, and transactions are for locks.
        Cdb::SharingOut { service_action, .. } => {
            matches!(*service_action, action_out::LOCK | action_out::BEGIN | action_out::FENCE)
        }
        _ => cdb.class().change != Change::Nothing,
    }
}
