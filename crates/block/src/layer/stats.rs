//! A layer that counts requests, bytes, errors, latencies and sizes, by operation.
//!
//! A request that is answered at once costs two readings of the clock and a short lock, and no allocation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::clock::{Clock, Instant};
use base::histogram::LatencyHistogram;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{OperationKind, Request, Response};

/// Count of size classes: powers of two up to 2^63, and one for nothing.
const SIZE_CLASS_COUNT: usize = 65;

/// Numbers of one operation.
#[derive(Clone, Default)]
pub struct OperationStats {
    /// Requests answered.
    pub completed_count: u64,
    /// Of these, answered with an error.
    pub failed_count: u64,
    /// Bytes of requests that succeeded.
    pub bytes: u64,
    /// From submission to answer, errors included.
    pub latency: LatencyHistogram,
    /// Requests by size.
    pub sizes: RequestSizes,
}

/// Counts of requests by size in bytes. Classes end *at* powers of two, as requests do; those of
/// [`SizeHistogram`](base::sizes::SizeHistogram), for messages of any size, end *below* them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSizes {
    counts: [u64; SIZE_CLASS_COUNT],
}

impl Default for RequestSizes {
    fn default() -> Self {
        Self { counts: [0; SIZE_CLASS_COUNT] }
    }
}

impl RequestSizes {
    /// Counts one of `bytes`.
    pub fn record(&mut self, bytes: u64) {
        // 0 | 1 | 2 | 3..=4 | 5..=8 ...: class n ends at 2^(n-1).
        let class = if bytes == 0 { 0 } else { 1 + (u64::BITS - (bytes - 1).leading_zeros()) as usize };
        self.counts[class.min(SIZE_CLASS_COUNT - 1)] += 1;
    }

    /// The classes that are not empty, smallest first: (largest size in bytes, count).
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(class, &count)| {
            let bytes_max = if class == 0 { 0 } else { 1u64 << (class - 1) };
            (bytes_max, count)
        })
    }
}

/// What a [`StatsLayer`] counted.
#[derive(Clone, Default)]
pub struct Snapshot {
    operations: [OperationStats; OperationKind::ALL.len()],
    /// Requests submitted and not answered yet.
    pub in_flight_count: u64,
    /// Their largest count so far.
    pub in_flight_count_max: u64,
}

impl Snapshot {
    /// The counts of one operation.
    pub fn of(&self, kind: OperationKind) -> &OperationStats {
        &self.operations[kind.index()]
    }
}

/// A device that counts.
pub struct StatsLayer {
    inner: SharedDevice,
    clock: Arc<dyn Clock>,
    workers: Workers,
    counters: Arc<Mutex<Snapshot>>,
}

impl StatsLayer {
    /// A layer over `inner` that counted nothing yet.
    pub fn new(inner: SharedDevice, clock: Arc<dyn Clock>, workers: &Workers) -> Self {
        Self { inner, clock, workers: workers.clone(), counters: Arc::default() }
    }

    /// The counts so far.
    pub fn snapshot(&self) -> Snapshot {
        lock(&self.counters).clone()
    }

    /// Starts counting anew. Requests in flight stay counted as in flight.
    pub fn reset(&self) {
        let mut counters = lock(&self.counters);
        let in_flight_count = counters.in_flight_count;
        *counters = Snapshot { in_flight_count, in_flight_count_max: in_flight_count, ..Snapshot::default() };
    }
}

fn lock(counters: &Mutex<Snapshot>) -> MutexGuard<'_, Snapshot> {
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request under way: counted as in flight until it is dropped or answered.
struct Passage {
    counters: Arc<Mutex<Snapshot>>,
    kind: OperationKind,
    bytes: u64,
    started_at: Instant,
}

impl Passage {
    fn begin(counters: &Arc<Mutex<Snapshot>>, request: &Request, started_at: Instant) -> Self {
        let mut state = lock(counters);
        state.in_flight_count += 1;
        state.in_flight_count_max = state.in_flight_count_max.max(state.in_flight_count);
        let bytes = request.range().map_or(0, |range| range.length);
        Self { counters: Arc::clone(counters), kind: request.operation.kind(), bytes, started_at }
    }

    fn end(self, now: Instant, response: &Response) {
        let mut state = lock(&self.counters);
        let stats = &mut state.operations[self.kind.index()];
        stats.completed_count += 1;
        stats.latency.record(now - self.started_at);
        stats.sizes.record(self.bytes);
        match response.result {
            Ok(()) => stats.bytes += self.bytes,
            Err(_) => stats.failed_count += 1,
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        lock(&self.counters).in_flight_count -= 1;
    }
}

impl Device for StatsLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let passage = Passage::begin(&self.counters, &request, self.clock.now());
        let mut completion = self.inner.submit(request);
        if let Some(response) = completion.try_take() {
            passage.end(self.clock.now(), &response);
            return Completion::ready(response);
        }
        let clock = Arc::clone(&self.clock);
        Completion::task(&self.workers, async move {
            let response = completion.await;
            passage.end(clock.now(), &response);
            response
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceExt;
    use crate::layer::delay::{DelayLayer, Delays, Latency};
    use crate::memory::MemoryDevice;
    use base::buffer::Buffer;
    use base::executor::Executor;
    use std::time::Duration;

    #[test]
    fn requests_bytes_latencies_and_errors_are_counted() {
        let mut executor = Executor::in_order();
        let (clock, workers) = (Arc::new(executor.clock()), Workers::new());
        let memory = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        let delays = Delays { read: Latency::Fixed(Duration::from_millis(1)), ..Delays::default() };
        let delayed = Arc::new(DelayLayer::new(memory, Arc::clone(&clock) as Arc<dyn Clock>, &workers, delays, 1));
        let device = Arc::new(StatsLayer::new(delayed, clock, &workers));
        let counting = Arc::clone(&device);
        executor.block_on(async move {
            let reads = [0, 4096].map(|offset| counting.read(offset, Buffer::zeroed(4096)));
            assert_eq!(counting.snapshot().in_flight_count, 2);
            for read in reads {
                read.await.expect("RAM does not fail");
            }
            counting.write(0, Buffer::zeroed(512), false).await.expect("RAM does not fail");
            counting.write(1 << 20, Buffer::zeroed(512), false).await.expect_err("that is past the end");
        });
        let snapshot = device.snapshot();
        let (read, write) = (snapshot.of(OperationKind::Read), snapshot.of(OperationKind::Write));
        assert_eq!((read.completed_count, read.bytes, read.failed_count), (2, 8192, 0));
        assert_eq!((write.completed_count, write.bytes, write.failed_count), (2, 512, 1));
        assert_eq!((snapshot.in_flight_count, snapshot.in_flight_count_max), (0, 2));
        let mean = read.latency.mean().expect("two samples");
        assert!(mean.abs_diff(Duration::from_millis(1)) < Duration::from_micros(10), "{mean:?}");
        assert_eq!(read.sizes.classes().collect::<Vec<_>>(), [(4096, 2)]);
        device.reset();
        assert_eq!(device.snapshot().of(OperationKind::Read).completed_count, 0);
    }

    #[test]
    fn sizes_fall_into_powers_of_two() {
        let mut sizes = RequestSizes::default();
        [0, 1, 2, 3, 4, 5, 512, 513, u64::MAX].into_iter().for_each(|bytes| sizes.record(bytes));
        let classes: Vec<_> = sizes.classes().collect();
        assert_eq!(classes, [(0, 1), (1, 1), (2, 1), (4, 2), (8, 1), (512, 1), (1024, 1), (1 << 63, 1)]);
    }
}
