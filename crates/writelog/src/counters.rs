//! Counters since a log was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::{SIZE_CLASSES, UNIT_BYTES};
use crate::options::DestageOrder;
use crate::reads::ReadCounters;

/// Counts of requests by size, shared by threads: up to 512 bytes, 1 KiB, ... 1 MiB, and more.
#[derive(Default)]
pub(crate) struct SizeCounters([AtomicU64; SIZE_CLASSES]);

impl SizeCounters {
    fn add(&self, bytes: u64) {
        let class = bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two().trailing_zeros() as usize;
        self.0[class.min(SIZE_CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Vec<u64> {
        self.0.iter().map(get).collect()
    }
}

/// Counts since the log was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) written_sizes: SizeCounters,
    pub(crate) destaged_sizes: SizeCounters,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) absorbed_sectors: AtomicU64,
    pub(crate) superseded_sectors: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) record_bytes: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) destaged_bytes: AtomicU64,
    pub(crate) destage_writes: AtomicU64,
    pub(crate) destage_pieces: AtomicU64,
    pub(crate) reads: ReadCounters,
    pub(crate) cleaned_bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) writes_slowed: AtomicU64,
    pub(crate) log_read_errors: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
}

/// The value of a counter now.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn written(&self, bytes: u64) {
        self.written_sizes.add(bytes);
        add(&self.written_bytes, bytes);
    }

    pub(crate) fn absorbed(&self, sectors: u64) {
        add(&self.absorbed_sectors, sectors);
    }

    /// Counts sectors of the log that were written again before they were sent. In order `log` they
    /// count only within one epoch: else they are sent all the same.
    pub(crate) fn superseded_in(&self, order: DestageOrder, sectors: u64) {
        if order != DestageOrder::Log {
            self.superseded(sectors);
        }
    }

    /// Counts sectors that are not sent, since they were written again.
    pub(crate) fn superseded(&self, sectors: u64) {
        add(&self.superseded_sectors, sectors);
    }

    pub(crate) fn record(&self, bytes: u64, data_bytes: u64) {
        add(&self.records, 1);
        add(&self.record_bytes, bytes);
        add(&self.appended_bytes, data_bytes);
    }

    pub(crate) fn destaged(&self, bytes: u64, pieces: usize) {
        self.destaged_sizes.add(bytes);
        add(&self.destaged_bytes, bytes);
        add(&self.destage_writes, 1);
        add(&self.destage_pieces, pieces as u64);
    }
}
