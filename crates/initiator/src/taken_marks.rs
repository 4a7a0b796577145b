//! The change marks that this process holds at a LUN.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The marks that are held, by their ids.
#[derive(Default)]
pub(crate) struct TakenMarks(Mutex<BTreeMap<[u8; 16], Tokens>>);

/// The tokens that a mark may have at its target: one, or several while a newer one is on its way.
/// The last is the newest.
#[derive(Clone, Debug)]
pub(crate) struct Tokens(pub(crate) Vec<u64>);

impl Tokens {
    pub(crate) fn newest(&self) -> Option<u64> {
        self.0.last().copied()
    }
}

impl TakenMarks {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], Tokens>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ids(&self) -> Vec<[u8; 16]> {
        self.lock().keys().copied().collect()
    }

    /// `None` for a mark that is not held.
    pub(crate) fn get(&self, id: &[u8; 16]) -> Option<Tokens> {
        self.lock().get(id).cloned()
    }
}
