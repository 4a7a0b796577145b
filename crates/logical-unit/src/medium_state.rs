//! The state of the medium: present or ejected, and who prevents its removal.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::nexus::NexusId;

/// The state of the medium: present or ejected, and who prevents its removal.
#[derive(Default)]
pub(crate) struct MediumState {
    pub(crate) is_ejected: AtomicBool,
    /// Nexuses that prevent its removal.
    preventing: Mutex<BTreeSet<NexusId>>,
}

impl MediumState {
    pub(crate) fn is_loaded(&self) -> bool {
        !self.is_ejected.load(Ordering::Acquire)
    }

    pub(crate) fn allow_removal(&self, nexus: &NexusId) {
        self.preventing.lock().unwrap_or_else(PoisonError::into_inner).remove(nexus);
    }

    pub(crate) fn prevent_removal(&self, nexus: &NexusId) {
        self.preventing.lock().unwrap_or_else(PoisonError::into_inner).insert(nexus.clone());
    }

    pub(crate) fn is_removal_prevented(&self) -> bool {
        !self.preventing.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Ends all prevention at a reset; the medium stays where it is.
    pub(crate) fn reset(&self) {
        self.preventing.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
