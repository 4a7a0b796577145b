//! The results of copies, kept for RECEIVE COPY RESULTS.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scsi::extended_copy::CopyStatus;

use crate::limits::COPY_RESULTS_MAX;
use crate::nexus::NexusId;

/// The results of copies, kept for RECEIVE COPY RESULTS.
#[derive(Default)]
pub(crate) struct CopyResults {
    /// The oldest first; each nexus and identifier once.
    results: Mutex<VecDeque<(NexusId, u8, CopyStatus)>>,
}

impl CopyResults {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(NexusId, u8, CopyStatus)>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, nexus: &NexusId, identifier: u8, status: CopyStatus) {
        let mut results = self.lock();
        match results.iter_mut().find(|(owner, number, _)| owner == nexus && *number == identifier) {
            Some((_, _, known)) => *known = status,
            None => {
                if results.len() == COPY_RESULTS_MAX {
                    results.pop_front();
                }
                results.push_back((nexus.clone(), identifier, status));
            }
        }
    }

    pub(crate) fn get(&self, nexus: &NexusId, identifier: u8) -> Option<CopyStatus> {
        let results = self.lock();
        let found = results.iter().find(|(owner, number, _)| owner == nexus && *number == identifier);
        found.map(|(_, _, status)| *status)
    }

    /// Removes the results of a nexus that is gone.
    pub(crate) fn forget(&self, nexus: &NexusId) {
        self.lock().retain(|(owner, _, _)| owner != nexus);
    }
}
