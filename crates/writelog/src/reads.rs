//! Counters of reads by where their bytes were found, and their response times.
//!
//! | place | a read counts there when its bytes were |
//! |---|---|
//! | RAM | in slots or in the newest records, or known to be zero |
//! | log | on the log device, some perhaps in RAM |
//! | origin | on the origin, all of them |
//! | mixed | on the origin, and others nearer |
//!
//! The response time includes waiting for writes to the same blocks. Reads that fail are not
//! counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::histogram::LatencyHistogram;
use serde::Serialize;

use crate::limits::UNIT_BYTES;

/// Sectors of a read by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundSectors {
    pub(crate) ram: u64,
    pub(crate) log: u64,
    pub(crate) origin: u64,
}

impl FoundSectors {
    fn place(self) -> Place {
        match (self.ram, self.log, self.origin) {
            (_, 0, 0) => Place::Ram,
            (_, _, 0) => Place::Log,
            (0, 0, _) => Place::Origin,
            _ => Place::Mixed,
        }
    }
}

/// Where the bytes of a read were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ram,
    Log,
    Origin,
    Mixed,
}

/// The histogram of one place; it takes memory from the first read on.
#[derive(Default)]
struct Times(Option<Box<LatencyHistogram>>);

/// Counts and times since the log was opened.
#[derive(Default)]
pub(crate) struct ReadCounters {
    ram_sectors: AtomicU64,
    log_sectors: AtomicU64,
    origin_sectors: AtomicU64,
    times: Mutex<[Times; 4]>,
}

impl ReadCounters {
    /// Counts a read that was answered.
    pub(crate) fn add(&self, found: FoundSectors, taken: Duration) {
        let sectors =
            [(&self.ram_sectors, found.ram), (&self.log_sectors, found.log), (&self.origin_sectors, found.origin)];
        for (counter, count) in sectors {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        let times = &mut self.times()[found.place() as usize];
        times.0.get_or_insert_with(|| Box::new(LatencyHistogram::compact())).record(taken);
    }

    fn times(&self) -> MutexGuard<'_, [Times; 4]> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> ReadStatus {
        let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed) * UNIT_BYTES;
        let times = self.times();
        let of = |place: Place| ReadLatency::of(times[place as usize].0.as_deref());
        let latency = ReadLatencies {
            ram: of(Place::Ram),
            log: of(Place::Log),
            origin: of(Place::Origin),
            mixed: of(Place::Mixed),
        };
        ReadStatus {
            ram: latency.ram.count,
            log: latency.log.count,
            origin: latency.origin.count,
            mixed: latency.mixed.count,
            ram_bytes: bytes(&self.ram_sectors),
            log_bytes: bytes(&self.log_sectors),
            origin_bytes: bytes(&self.origin_sectors),
            latency,
        }
    }
}

/// Counts of reads by where they were answered from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadStatus {
    /// Slots and newest records, alone.
    pub ram: u64,
    /// The log device, and perhaps RAM.
    pub log: u64,
    /// The origin alone.
    pub origin: u64,
    /// The origin, and the log device or RAM.
    pub mixed: u64,
    /// Bytes from RAM.
    pub ram_bytes: u64,
    /// Bytes from the log device.
    pub log_bytes: u64,
    /// Bytes from the origin.
    pub origin_bytes: u64,
    /// Their response times.
    pub latency: ReadLatencies,
}

/// Response times of reads, by where they were answered from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadLatencies {
    /// See [`ReadStatus::ram`].
    pub ram: ReadLatency,
    /// See [`ReadStatus::log`].
    pub log: ReadLatency,
    /// See [`ReadStatus::origin`].
    pub origin: ReadLatency,
    /// See [`ReadStatus::mixed`].
    pub mixed: ReadLatency,
}

/// Times of reads in nanoseconds, to two significant digits; all is `None` without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadLatency {
    /// Reads.
    pub count: u64,
    /// Their mean.
    pub mean_ns: Option<u64>,
    /// Half take no longer; `None`, as the others, where fewer than ten samples lie beyond.
    pub p50_ns: Option<u64>,
    /// 99 of 100 take no longer.
    pub p99_ns: Option<u64>,
    /// 999 of 1000 take no longer.
    pub p999_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
}

impl ReadLatency {
    fn of(times: Option<&LatencyHistogram>) -> Self {
        let Some(times) = times else { return Self::default() };
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let quantile = |share| times.quantile(share).map(nanoseconds);
        Self {
            count: times.count(),
            mean_ns: times.mean().map(nanoseconds),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: times.max().map(nanoseconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_counts_once_where_its_bytes_were() {
        let counters = ReadCounters::default();
        let reads = [(8, 0, 0, 1), (2, 6, 0, 20), (0, 8, 0, 30), (0, 0, 8, 400), (1, 0, 7, 500), (0, 1, 7, 600)];
        for (ram, log, origin, microseconds) in reads {
            counters.add(FoundSectors { ram, log, origin }, Duration::from_micros(microseconds));
        }
        let status = counters.status();
        assert_eq!((status.ram, status.log, status.origin, status.mixed), (1, 2, 1, 2));
        assert_eq!((status.ram_bytes, status.log_bytes, status.origin_bytes), (11 * 512, 15 * 512, 22 * 512));
        let ReadLatencies { ram, log, origin, mixed } = status.latency;
        let near = |found: Option<u64>, microseconds: u64| {
            found.is_some_and(|found| found.abs_diff(microseconds * 1000) <= microseconds * 10)
        };
        assert!(near(ram.max_ns, 1) && near(log.mean_ns, 25) && near(origin.mean_ns, 400) && near(mixed.max_ns, 600));
        assert_eq!((log.count, log.p50_ns), (2, None), "two reads have no median");
    }
}
