//! The figures of a run, for people and for `--json`.
//!
//! Latencies are nanoseconds from issue to completion. A percentile is given only where at least
//! ten samples lie beyond it; otherwise it is `None`, in JSON `null`.

use std::time::Duration;

use base::histogram::LatencyHistogram;
use serde::{Deserialize, Serialize};

use crate::access::AccessKind;

/// Limits of the shares given: those of the iCache paper's figure 5b and a few around them.
pub const SHARE_LIMITS_US: [u64; 8] = [250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000];

/// Latencies of one kind of request, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean: Option<u64>,
    /// Median.
    pub p50: Option<u64>,
    /// 99 % are not slower.
    pub p99: Option<u64>,
    /// 99.9 % are not slower.
    pub p999: Option<u64>,
    /// Slowest.
    pub max: Option<u64>,
}

/// Processor time per request, in microseconds; filled in by a caller that can measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPerOperation {
    /// Of the side that issues.
    pub client: Option<f64>,
    /// Of the side that serves, when it runs on this machine.
    pub server: Option<f64>,
}

/// The share of requests that finished within a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareWithin {
    /// The time in microseconds.
    pub limit_us: u64,
    /// 0.0 to 1.0.
    pub share: f64,
}

/// Requests of one class of latencies; classes double.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyClass {
    /// The longest of the class, in nanoseconds.
    pub up_to_ns: u64,
    /// Requests.
    pub count: u64,
}

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Requests per second with a working device.
    pub iops: f64,
    /// Bytes read and written per second with a working device.
    pub bytes_per_second: f64,
    /// Reads and writes together.
    pub latency_ns: Latency,
    /// Reads.
    pub reads: Latency,
    /// Writes.
    pub writes: Latency,
    /// Share of reads and writes that took at most 1 ms.
    pub share_within_1ms: Option<f64>,
    /// Counts by latency.
    pub latency_classes: Vec<LatencyClass>,
    /// More such shares.
    pub shares_within: Vec<ShareWithin>,
    /// Processor time.
    pub cpu_us_per_op: CpuPerOperation,
    /// Reads and writes that finished.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Seconds in which requests ran, outages not counted.
    pub seconds: f64,
}

/// Collects the requests of a [`Measurement`].
#[derive(Clone, Default)]
pub struct Recorder {
    reads: LatencyHistogram,
    writes: LatencyHistogram,
    bytes: u64,
}

impl Recorder {
    /// A recorder without requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a finished request. Flushes and discards are not part of the figures.
    pub fn record(&mut self, kind: AccessKind, bytes: u64, latency: Duration) {
        match kind {
            AccessKind::Read => self.reads.record(latency),
            AccessKind::Write => self.writes.record(latency),
            AccessKind::Flush | AccessKind::Discard => return,
        }
        self.bytes += bytes;
    }

    /// Adds the requests of another recorder of the same time.
    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.bytes += other.bytes;
    }

    /// Reads and writes counted.
    pub fn count(&self) -> u64 {
        self.reads.count() + self.writes.count()
    }

    /// Reads and writes together.
    pub fn all(&self) -> LatencyHistogram {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        all
    }

    /// The figures, over `active` time.
    pub fn measurement(&self, active: Duration) -> Measurement {
        let all = self.all();
        let seconds = active.as_secs_f64();
        let rate = |amount: u64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
        let share = |limit_us| {
            let share = all.share_within(Duration::from_micros(limit_us))?;
            Some(ShareWithin { limit_us, share })
        };
        Measurement {
            iops: rate(self.count()),
            bytes_per_second: rate(self.bytes),
            latency_ns: Latency::of(&all),
            reads: Latency::of(&self.reads),
            writes: Latency::of(&self.writes),
            share_within_1ms: share(1000).map(|within| within.share),
            latency_classes: all.classes().into_iter().map(LatencyClass::of).collect(),
            shares_within: SHARE_LIMITS_US.into_iter().filter_map(share).collect(),
            cpu_us_per_op: CpuPerOperation::default(),
            operations: self.count(),
            bytes: self.bytes,
            seconds,
        }
    }
}

impl LatencyClass {
    fn of((latency, count): (Duration, u64)) -> Self {
        Self { up_to_ns: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), count }
    }
}

impl Latency {
    /// The figures of a histogram.
    pub fn of(histogram: &LatencyHistogram) -> Self {
        let ns = |latency: Duration| u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        Self {
            count: histogram.count(),
            mean: histogram.mean().map(ns),
            p50: histogram.quantile(0.5).map(ns),
            p99: histogram.quantile(0.99).map(ns),
            p999: histogram.quantile(0.999).map(ns),
            max: histogram.max().map(ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_scripts_depend_on() {
        let mut recorder = Recorder::new();
        (0..100).for_each(|_| recorder.record(AccessKind::Read, 4096, Duration::from_micros(500)));
        recorder.record(AccessKind::Flush, 0, Duration::from_secs(9));
        let measurement = recorder.measurement(Duration::from_secs(2));
        assert_eq!(measurement.iops, 50.0);
        assert_eq!(measurement.bytes_per_second, 204_800.0);
        assert_eq!(measurement.share_within_1ms, Some(1.0));
        let json = serde_json::to_value(&measurement).unwrap();
        assert_eq!(json["latency_ns"]["p999"], serde_json::Value::Null, "100 samples are too few");
        for key in ["mean", "p50", "max"] {
            assert!(json["latency_ns"][key].as_u64().is_some_and(|ns| ns.abs_diff(500_000) < 1000), "{key}");
        }
        assert_eq!(json["writes"]["count"], 0);
        let classes = json["latency_classes"].as_array().unwrap();
        assert_eq!(
            (classes.len(), &classes[0]["count"]),
            (1, &serde_json::json!(100)),
            "all of them between 256 and 512 us"
        );
        let mut twice = recorder.clone();
        twice.merge(&recorder);
        assert_eq!(twice.measurement(Duration::from_secs(2)).iops, 100.0);
        assert!(json["cpu_us_per_op"].as_object().is_some_and(|cpu| cpu.contains_key("client")));
        assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), measurement);
    }

    #[test]
    fn an_empty_run_has_no_figures() {
        let measurement = Recorder::new().measurement(Duration::ZERO);
        assert_eq!((measurement.iops, measurement.latency_ns.mean), (0.0, None));
        assert!(measurement.shares_within.is_empty());
    }
}
