//! Counters of one logical unit: operations, bytes, latencies, errors.
//!
//! A thread that serves sessions writes into a slot of its own, so that no two of them contend
//! during I/O; readers add up the slots. A slot's lock is taken once per command, by its own
//! thread, and for a moment by readers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::histogram::LatencyHistogram;
use scsi::cdb::Traffic;

use crate::limits::TALLY_SLOTS;
use crate::status::{LatencyStatus, LunStatus};

/// The counts of one logical unit, in one slot for each thread that serves sessions.
#[derive(Default)]
pub(crate) struct Tally {
    slots: [Mutex<Slot>; TALLY_SLOTS],
}

/// Counts of one thread.
#[derive(Default)]
struct Slot {
    reads: Operations,
    writes: Operations,
    others: Operations,
    failures: u64,
    errors: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Operations {
    count: u64,
    bytes: u64,
    /// Made with the first sample: most logical units see few kinds of commands on few threads.
    latencies: Option<Box<LatencyHistogram>>,
}

impl Operations {
    fn add(&mut self, bytes: u64, latency: Duration) {
        self.count += 1;
        self.bytes += bytes;
        self.latencies.get_or_insert_with(|| Box::new(LatencyHistogram::compact())).record(latency);
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        if let Some(latencies) = &other.latencies {
            self.latencies.get_or_insert_with(|| Box::new(LatencyHistogram::compact())).merge(latencies);
        }
    }
}

impl Tally {
    /// Counts a command, whatever its status.
    pub(crate) fn count(&self, traffic: Traffic, bytes: usize, latency: Duration) {
        let mut slot = self.slot();
        let operations = match traffic {
            Traffic::Read => &mut slot.reads,
            Traffic::Write => &mut slot.writes,
            Traffic::Other => &mut slot.others,
        };
        operations.add(bytes as u64, latency);
    }

    /// Counts a command that did not end with GOOD, besides [`Tally::count`].
    pub(crate) fn count_failure(&self, kind: &'static str) {
        let mut slot = self.slot();
        slot.failures += 1;
        *slot.errors.entry(kind).or_default() += 1;
    }

    /// Operations and bytes so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let of = |slot: &Slot| [&slot.reads, &slot.writes, &slot.others].map(|kind| (kind.count, kind.bytes));
        self.slots.iter().flat_map(|slot| of(&lock(slot))).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    pub(crate) fn status(&self, target_name: &str, lun: u64) -> LunStatus {
        let mut sum = Slot::default();
        for slot in &self.slots {
            let slot = lock(slot);
            sum.reads.merge(&slot.reads);
            sum.writes.merge(&slot.writes);
            sum.others.merge(&slot.others);
            sum.failures += slot.failures;
            slot.errors.iter().for_each(|(kind, count)| *sum.errors.entry(kind).or_default() += count);
        }
        let latencies = |operations: &Operations| operations.latencies.as_deref().map(LatencyStatus::of);
        LunStatus {
            target_name: target_name.to_owned(),
            lun,
            reads: sum.reads.count,
            read_bytes: sum.reads.bytes,
            writes: sum.writes.count,
            written_bytes: sum.writes.bytes,
            others: sum.others.count,
            failures: sum.failures,
            errors: sum.errors.into_iter().map(|(kind, count)| (kind.into(), count)).collect(),
            rates: None,
            read_latency: latencies(&sum.reads),
            write_latency: latencies(&sum.writes),
            other_latency: latencies(&sum.others),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        lock(&self.slots[slot_of_thread()])
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slot of the calling thread, less than [`TALLY_SLOTS`]: threads take turns when there are more of them.
fn slot_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SLOT: Cell<Option<usize>> = const { Cell::new(None) });
    SLOT.with(|slot| {
        slot.get().unwrap_or_else(|| {
            let taken = NEXT.fetch_add(1, Ordering::Relaxed) % TALLY_SLOTS;
            slot.set(Some(taken));
            taken
        })
    })
}

/// The kind of a failure: the sense key of a CHECK CONDITION, or the status.
pub(crate) fn failure_kind(status: scsi::Status, sense: Option<&scsi::Sense>) -> &'static str {
    use scsi::{SenseKey, Status};
    match (status, sense.map(|sense| sense.key)) {
        (Status::CheckCondition, Some(key)) => match key {
            SenseKey::NotReady => "not_ready",
            SenseKey::MediumError => "medium_error",
            SenseKey::HardwareError => "hardware_error",
            SenseKey::IllegalRequest => "illegal_request",
            SenseKey::UnitAttention => "unit_attention",
            SenseKey::DataProtect => "data_protect",
            SenseKey::AbortedCommand => "aborted_command",
            SenseKey::CopyAborted => "copy_aborted",
            SenseKey::Miscompare => "miscompare",
            _ => "other_sense",
        },
        (Status::CheckCondition, None) => "other_sense",
        (Status::Busy, _) => "busy",
        (Status::ReservationConflict, _) => "reservation_conflict",
        (Status::TaskSetFull, _) => "task_set_full",
        (Status::AcaActive, _) => "aca_active",
        (Status::TaskAborted, _) => "task_aborted",
        (Status::Good | Status::ConditionMet, _) => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_counted_is_added_up() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * TALLY_SLOTS {
                scope.spawn(|| {
                    tally.count(Traffic::Read, 4096, Duration::from_micros(80));
                    tally.count(Traffic::Write, 512, Duration::from_millis(3));
                    tally.count(Traffic::Other, 0, Duration::from_micros(5));
                    tally.count_failure("busy");
                });
            }
        });
        let threads = 2 * TALLY_SLOTS as u64;
        let status = tally.status("iqn.2026-11.io.forebay:a", 3);
        assert_eq!((status.reads, status.read_bytes), (threads, threads * 4096));
        assert_eq!((status.writes, status.written_bytes, status.others), (threads, threads * 512, threads));
        assert_eq!((status.failures, status.errors["busy"]), (threads, threads));
        assert_eq!(tally.totals(), (3 * threads, threads * (4096 + 512)));
        let read = status.read_latency.expect("there are samples");
        assert_eq!(read.count, threads);
        assert!((79_000..=81_000).contains(&read.mean_ns), "{read:?}");
        let within: Vec<u64> = read.histogram.iter().filter(|bucket| bucket.count == 0).map(|b| b.le_ns).collect();
        assert_eq!(within.last(), Some(&50_000), "80 us are in the bucket up to 100 us");
    }
}
