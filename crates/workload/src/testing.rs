//! A device whose behaviour tests choose: slow, failing at a moment, losing a write.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use base::clock::{Clock, Instant, VirtualClock};
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::memory::MemoryDevice;
use block::{Completion, Device, Error, ErrorKind, Geometry, Identity, Operation, Request, Response, SharedDevice};

pub(crate) struct ModelDevice {
    memory: Arc<MemoryDevice>,
    geometry: Geometry,
    clock: Mutex<VirtualClock>,
    workers: Workers,
    latency: Duration,
    random: OnceLock<Mutex<Random>>,
    /// From when on every request fails; every second failing one is carried out.
    fails_at: Option<Instant>,
    loses_write: Option<u64>,
    writes: Mutex<u64>,
}

/// Changes a device that has no other user yet, for chains in tests.
fn changed(mut device: Arc<ModelDevice>, change: impl FnOnce(&mut ModelDevice)) -> Arc<ModelDevice> {
    change(Arc::get_mut(&mut device).expect("nobody else has it yet"));
    device
}

impl ModelDevice {
    pub(crate) fn new(size_bytes: u64) -> Arc<Self> {
        Self::over(Arc::new(MemoryDevice::new(size_bytes, Identity::default())))
    }

    /// A device over a memory that another one may have used.
    pub(crate) fn over(memory: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self {
            geometry: memory.geometry(),
            memory,
            clock: Mutex::default(),
            workers: Workers::new(),
            latency: Duration::ZERO,
            random: OnceLock::new(),
            fails_at: None,
            loses_write: None,
            writes: Mutex::new(0),
        })
    }

    /// Sets the latency of every request.
    pub(crate) fn latency(self: Arc<Self>, latency: Duration) -> Arc<Self> {
        changed(self, |device| device.latency = latency)
    }

    /// Sets a random latency of up to `latency_max`.
    pub(crate) fn random_latency(self: Arc<Self>, seed: u64, latency_max: Duration) -> Arc<Self> {
        changed(self, |device| {
            device.latency = latency_max;
            device.random = OnceLock::from(Mutex::new(Random::new(seed)));
        })
    }

    pub(crate) fn transfer_bytes_max(self: Arc<Self>, bytes: u32) -> Arc<Self> {
        changed(self, |device| device.geometry.transfer_bytes_max = bytes)
    }

    /// From then on requests fail with an unknown outcome; every second one is carried out all the same.
    pub(crate) fn failing_at(self: Arc<Self>, at: Duration) -> Arc<Self> {
        changed(self, |device| device.fails_at = Some(Instant::START + at))
    }

    /// The n-th write (from 1) is acknowledged and forgotten.
    pub(crate) fn losing_write(self: Arc<Self>, number: u64) -> Arc<Self> {
        changed(self, |device| device.loses_write = Some(number))
    }

    pub(crate) fn shared(self: &Arc<Self>) -> SharedDevice {
        Arc::clone(self) as SharedDevice
    }

    pub(crate) fn memory(&self) -> Arc<MemoryDevice> {
        Arc::clone(&self.memory)
    }

    /// Ties the device to the clock of an executor, which is returned.
    pub(crate) fn clock_of(self: &Arc<Self>, executor: &mut Executor) -> Arc<dyn Clock> {
        *self.clock.lock().unwrap() = executor.clock();
        Arc::new(executor.clock())
    }

    fn service_time(&self) -> Duration {
        match self.random.get() {
            Some(random) => self.latency.mul_f64(random.lock().unwrap().unit()),
            None => self.latency,
        }
    }

    /// Whether this request is a write, counted, that is to be forgotten.
    fn is_lost(&self, request: &Request) -> bool {
        if !matches!(request.operation, Operation::Write { .. }) {
            return false;
        }
        let mut writes = self.writes.lock().unwrap();
        *writes += 1;
        self.loses_write == Some(*writes)
    }
}

impl Device for ModelDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.memory.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if let Err(error) = self.geometry.check(&request) {
            return Completion::ready(request.fail(error));
        }
        let (clock, memory, fails_at) = (self.clock.lock().unwrap().clone(), self.memory(), self.fails_at);
        let (service_time, is_lost) = (self.service_time(), self.is_lost(&request));
        if service_time.is_zero() && !is_lost && fails_at.is_none() {
            return memory.submit(request);
        }
        Completion::task(&self.workers, async move {
            clock.sleep(service_time).await;
            let is_failed = fails_at.is_some_and(|fails_at| clock.now() >= fails_at);
            let is_done = !is_lost && (!is_failed || request.offset / 512 % 8 < 4);
            let response = match request {
                Request { operation: Operation::Write { buffer, .. }, .. } if !is_done => Response::done(buffer),
                request => memory.submit(request).await,
            };
            match is_failed {
                true => Response::failed(Error::new(ErrorKind::OutcomeUnknown, "killed"), response.buffer),
                false => response,
            }
        })
    }
}

/// A progress callback of any kind that never stops.
pub(crate) fn keep_going<P>(_: P) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
