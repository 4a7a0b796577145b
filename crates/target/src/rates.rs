//! Recent rates of each logical unit: totals sampled once a second, and the difference over a short
//! window.
//!
//! Commands only count totals, which are sampled: rates cost them nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use base::clock::Instant;

use crate::limits::RATE_SAMPLES;
use crate::status::RateStatus;

/// Operations and bytes of logical units, by target name and LUN.
pub(crate) type Totals = BTreeMap<(String, u64), (u64, u64)>;

/// Samples, oldest first.
#[derive(Default)]
pub(crate) struct Rates {
    samples: Mutex<VecDeque<(Instant, Totals)>>,
}

impl Rates {
    /// Adds a sample of the totals.
    pub(crate) fn sample(&self, now: Instant, totals: Totals) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() >= RATE_SAMPLES {
            samples.pop_front();
        }
        samples.push_back((now, totals));
    }

    /// The rates of one logical unit since the oldest sample; `None` before there is one, or if no
    /// time has passed.
    pub(crate) fn of(&self, now: Instant, key: &(String, u64), (operations, bytes): (u64, u64)) -> Option<RateStatus> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, totals) = samples.front()?;
        let window = now.since(*since);
        let (old_operations, old_bytes) = totals.get(key).copied().unwrap_or_default();
        let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / window.as_secs_f64();
        (!window.is_zero()).then(|| RateStatus {
            window_ms: window.as_millis() as u64,
            operations_per_second: per_second(operations, old_operations).round() as u64,
            bytes_per_second: per_second(bytes, old_bytes).round() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_window() {
        let rates = Rates::default();
        let key = ("iqn.a".to_owned(), 0);
        let at = |seconds: u64| Instant::from_nanoseconds(seconds * 1_000_000_000);
        assert_eq!(rates.of(at(1), &key, (5, 5)), None);
        for second in 0..20 {
            rates.sample(at(second), BTreeMap::from([(key.clone(), (second * 100, second * 4096))]));
        }
        let rate = rates.of(at(20), &key, (2000, 20 * 4096)).unwrap();
        assert_eq!(rate.window_ms, 1000 * RATE_SAMPLES as u64);
        assert_eq!((rate.operations_per_second, rate.bytes_per_second), (100, 4096));
    }
}
