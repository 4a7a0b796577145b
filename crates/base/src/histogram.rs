//! Latency histograms.
//!
//! A percentile is given only where it has enough samples: at least ten beyond it.

use std::time::Duration;

/// Latencies from 1 ns to an hour, to three significant digits unless it is compact.
#[derive(Clone)]
pub struct LatencyHistogram(hdrhistogram::Histogram<u64>);

/// One hour: longer latencies are counted as this long.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

impl LatencyHistogram {
    /// A histogram without samples.
    pub fn new() -> Self {
        Self(hdrhistogram::Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are constants in order"))
    }

    /// A histogram without samples that keeps two significant digits: some 35 KiB instead of some 270.
    pub fn compact() -> Self {
        Self(hdrhistogram::Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("the bounds are constants in order"))
    }

    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(latency_ns.clamp(1, LATENCY_NS_MAX));
    }

    /// Adds another histogram's samples.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Count of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Count of samples not above `latency`.
    pub fn count_within(&self, latency: Duration) -> u64 {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NS_MAX).clamp(1, LATENCY_NS_MAX);
        self.0.count_between(0, latency_ns)
    }

    /// Mean, or `None` without samples.
    pub fn mean(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_nanos(self.0.mean() as u64))
    }

    /// Largest, or `None` without samples.
    pub fn max(&self) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_nanos(self.0.max()))
    }

    /// The latency that `quantile` (0.0 to 1.0) of the samples do not exceed, or `None` where fewer than ten samples
    /// lie beyond it.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let beyond = self.0.len() as f64 * (1.0 - quantile);
        // The tolerance forgives the rounding of `1.0 - 0.999`.
        (beyond >= 10.0 - 1e-6).then(|| Duration::from_nanos(self.0.value_at_quantile(quantile)))
    }

    /// Samples in classes that double from one microsecond: the largest latency of each class that
    /// is not empty, and its count.
    pub fn classes(&self) -> Vec<(Duration, u64)> {
        let steps = self.0.iter_log(1000, 2.0);
        let classes =
            steps.map(|step| (Duration::from_nanos(step.value_iterated_to()), step.count_since_last_iteration()));
        classes.filter(|(_, count)| *count > 0).collect()
    }

    /// The share (0.0 to 1.0) of samples not above `latency`, or `None` without samples.
    pub fn share_within(&self, latency: Duration) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.count_within(latency) as f64 / self.0.len() as f64)
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        let mut histogram = LatencyHistogram::new();
        for sample in 1..=999 {
            histogram.record(Duration::from_micros(sample));
        }
        assert!(histogram.quantile(0.5).is_some());
        assert!(histogram.quantile(0.99).is_none());
        histogram.record(Duration::from_micros(1000));
        assert!(histogram.quantile(0.99).is_some());
        assert!(histogram.quantile(0.999).is_none());
    }

    #[test]
    fn shares_count_what_is_within() {
        let mut histogram = LatencyHistogram::new();
        assert_eq!(histogram.share_within(Duration::from_millis(1)), None);
        for milliseconds in [0, 2, 4, 8] {
            histogram.record(Duration::from_millis(milliseconds));
        }
        assert_eq!(histogram.share_within(Duration::from_millis(5)), Some(0.75));
    }
}
