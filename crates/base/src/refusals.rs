//! A limit on log messages about repeated refusals: a peer may try to connect ten thousand times,
//! and a full disk refuses each write.

use std::sync::{Mutex, PoisonError};

use crate::clock::Instant;
use crate::limits::{REFUSAL_LOG_INTERVAL, REFUSALS_LOGGED_MAX};

/// Counts refusals, and chooses those to be logged: the first few of each interval. The next one
/// logged gives the count of those left out.
#[derive(Default)]
pub struct Refusals(Mutex<State>);

#[derive(Default)]
struct State {
    interval_begin: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Refusals {
    /// Notes a refusal. `Some` if it is to be logged, with the count of refusals left out before.
    pub fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.interval_begin.is_none_or(|begin| now >= begin + REFUSAL_LOG_INTERVAL) {
            state.interval_begin = Some(now);
            state.logged = 0;
        }
        if state.logged >= REFUSALS_LOGGED_MAX {
            state.left_out += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_few_lines() {
        let refusals = Refusals::default();
        let begin = Instant::from_nanoseconds(0);
        let told = (0..10_000).filter(|_| refusals.note(begin).is_some()).count();
        assert_eq!(told, REFUSALS_LOGGED_MAX as usize);
        let later = begin + REFUSAL_LOG_INTERVAL;
        assert_eq!(refusals.note(later), Some(10_000 - u64::from(REFUSALS_LOGGED_MAX)), "the rest is counted");
        assert_eq!(refusals.note(later), Some(0));
    }
}
