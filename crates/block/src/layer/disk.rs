//! A layer that answers as late as a disk would: one actuator, first in first out, seek + rotation
//! + transfer.
//!
//! ```text
//! a request starts when the one before it ends, and takes
//!   starting where the last one ended:  transfer
//!   anywhere else:                      seek + rotation + transfer
//!   a flush:                            its own cost
//! ```
//! The seek and the rotation are averages, not drawn: the model is for comparing systems, and
//! repeats to the nanosecond. Discards and requests for extents cost nothing; a write of zeroes
//! costs what a write of as many bytes does. The disk has no cache. The request goes down at once
//! and the answer is held back until the modelled time, so the order below is the order of the
//! calls. Over a device slower than the model, the device's time counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::clock::{Clock, Instant};

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{OperationKind, Request};

/// The parameters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// Average seek.
    pub seek: Duration,
    /// Average rotational latency.
    pub rotation: Duration,
    /// Bytes per second once the head is there.
    pub bytes_per_second: u64,
    /// Cost of a flush.
    pub flush: Duration,
}

impl DiskModel {
    /// A disk of 7200 revolutions a minute as in the papers: 8.5 ms seek, 4.17 ms rotation (half a
    /// turn), 20 MB/s. A flush costs half a turn.
    pub const fn rpm_7200() -> Self {
        Self {
            seek: Duration::from_micros(8_500),
            rotation: Duration::from_micros(4_170),
            bytes_per_second: 20_000_000,
            flush: Duration::from_micros(4_170),
        }
    }

    /// Time in which `length` bytes pass under the head.
    pub fn transfer(&self, length: u64) -> Duration {
        let nanoseconds = u128::from(length) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// A device with the response times of a disk.
pub struct DiskLayer {
    inner: SharedDevice,
    clock: Arc<dyn Clock>,
    workers: Workers,
    model: DiskModel,
    is_enabled: AtomicBool,
    /// Short sections, never across an await.
    actuator: Mutex<Actuator>,
}

struct Actuator {
    /// Where the last request ended.
    position: u64,
    busy_until: Instant,
}

impl DiskLayer {
    /// A disk over `inner`, its head at byte 0.
    pub fn new(inner: SharedDevice, clock: Arc<dyn Clock>, workers: &Workers, model: DiskModel) -> Self {
        let actuator = Mutex::new(Actuator { position: 0, busy_until: Instant::START });
        Self { inner, clock, workers: workers.clone(), model, is_enabled: AtomicBool::new(true), actuator }
    }

    /// Switches the model on or off for requests submitted from now on. Switched off, it is `inner` and nothing else.
    pub fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Whether requests are delayed.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Moves the actuator for `request`. Returns when it is done, or `None` when it costs nothing.
    fn schedule(&self, request: &Request) -> Option<Instant> {
        // A range that overflows is refused below; here it must not move the head.
        let range = request.range()?;
        let mut actuator = self.actuator.lock().unwrap_or_else(PoisonError::into_inner);
        let service = match request.operation.kind() {
            OperationKind::Discard | OperationKind::Extents => return None,
            OperationKind::Flush => self.model.flush,
            OperationKind::Read | OperationKind::Write | OperationKind::WriteZeroes => {
                let is_sequential = range.offset == actuator.position;
                actuator.position = range.end();
                let transfer = self.model.transfer(range.length);
                if is_sequential { transfer } else { self.model.seek + self.model.rotation + transfer }
            }
        };
        actuator.busy_until = actuator.busy_until.max(self.clock.now()) + service;
        Some(actuator.busy_until)
    }
}

impl Device for DiskLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let done_at = if self.is_enabled() { self.schedule(&request) } else { None };
        let completion = self.inner.submit(request);
        let Some(done_at) = done_at else { return completion };
        let clock = Arc::clone(&self.clock);
        Completion::task(&self.workers, async move {
            let response = completion.await;
            clock.sleep_until(done_at).await;
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
    use crate::memory::MemoryDevice;
    use base::buffer::Buffer;
    use base::executor::Executor;

    const MODEL: DiskModel = DiskModel::rpm_7200();

    fn disk(executor: &Executor) -> Arc<DiskLayer> {
        let memory = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        Arc::new(DiskLayer::new(memory, Arc::new(executor.clock()), &Workers::new(), MODEL))
    }

    #[test]
    fn sequential_requests_pay_transfer_only() {
        let mut executor = Executor::in_order();
        let (clock, disk) = (executor.clock(), disk(&executor));
        executor.block_on(async move {
            let start = clock.now();
            disk.read(65536, Buffer::zeroed(4096)).await.expect("RAM does not fail");
            assert_eq!(clock.now() - start, MODEL.seek + MODEL.rotation + MODEL.transfer(4096));
            let start = clock.now();
            disk.write(65536 + 4096, Buffer::zeroed(20_480), false).await.expect("RAM does not fail");
            assert_eq!(clock.now() - start, Duration::from_micros(1024), "20,480 bytes at 20 MB/s");
            let start = clock.now();
            disk.flush().await.expect("RAM does not fail");
            assert_eq!(clock.now() - start, MODEL.flush);
        });
    }

    #[test]
    fn one_actuator_serves_one_after_the_other() {
        let mut executor = Executor::in_order();
        let (clock, disk) = (executor.clock(), disk(&executor));
        executor.block_on(async move {
            let reads: Vec<_> = [0, 131_072, 4096].map(|offset| disk.read(offset, Buffer::zeroed(4096))).into();
            let mut ends = Vec::new();
            for read in reads {
                read.await.expect("RAM does not fail");
                ends.push(clock.now() - Instant::START);
            }
            let transfer = MODEL.transfer(4096);
            let random = MODEL.seek + MODEL.rotation + transfer;
            assert_eq!(ends, [transfer, transfer + random, transfer + random + random]);
        });
    }

    #[test]
    fn switched_off_it_costs_nothing() {
        let mut executor = Executor::in_order();
        let (clock, disk) = (executor.clock(), disk(&executor));
        disk.set_enabled(false);
        executor.block_on(async move {
            disk.read(65536, Buffer::zeroed(4096)).await.expect("RAM does not fail");
            assert_eq!(clock.now(), Instant::START);
            disk.set_enabled(true);
            disk.read(65536, Buffer::zeroed(4096)).await.expect("RAM does not fail");
            assert!(clock.now() > Instant::START);
        });
    }
}
