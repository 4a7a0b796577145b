//! The flushes of an application whose answers it has not taken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::Clock;

/// Flushes under way. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Flushes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flush is submitted.
    pub fn begin(&self) -> u64 {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        number
    }

    /// Its answer is taken.
    pub fn end(&self, number: u64) {
        self.lock().under_way.remove(&number);
    }

    /// Waits until the answers of all that are under way now are taken. One of them may have reported
    /// a loss already, which is reported once.
    pub async fn settle(&self, clock: &dyn Clock) {
        let before = self.lock().next;
        while self.lock().under_way.first().is_some_and(|&oldest| oldest < before) {
            clock.sleep(Duration::from_micros(1)).await;
        }
    }
}
