//! The change marks that this process holds at a LUN.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::Instant;

/// The marks that are held, by their ids.
#[derive(Default)]
pub(crate) struct TakenMarks {
    tokens: Mutex<BTreeMap<[u8; 16], Tokens>>,
    /// Since when the unit does not tell what it recorded in them.
    silent_since: Mutex<Option<Instant>>,
}

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
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ids(&self) -> Vec<[u8; 16]> {
        self.lock().keys().copied().collect()
    }

    /// Notes that the unit does not tell what it recorded. Returns whether that is so for `time_max` by now.
    pub(crate) fn is_silent_for(&self, now: Instant, time_max: Duration) -> bool {
        let since = *self.silence().get_or_insert(now);
        now.since(since) >= time_max
    }

    /// Notes that the unit told what it recorded.
    pub(crate) fn end_silence(&self) {
        *self.silence() = None;
    }

    fn silence(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` for a mark that is not held.
    pub(crate) fn get(&self, id: &[u8; 16]) -> Option<Tokens> {
        self.lock().get(id).cloned()
    }
}
