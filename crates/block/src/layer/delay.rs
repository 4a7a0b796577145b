//! A layer that delays answers: by a fixed or seeded-random latency per kind of operation.
//!
//! The request goes down at once and the answer is held back, so the order below is the order of the calls, however the
//! latencies fall. Without a latency for an operation (the default) its completion is passed through untouched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::clock::Clock;
use base::random::Random;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{OperationKind, Request};

/// A latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latency {
    /// No time.
    #[default]
    None,
    /// Always the same.
    Fixed(Duration),
    /// Anything from the first to the second, equally likely.
    Between(Duration, Duration),
}

impl Latency {
    /// One sample; zero for [`Latency::None`].
    pub fn draw(&self, random: &mut Random) -> Duration {
        match *self {
            Self::None => Duration::ZERO,
            Self::Fixed(latency) => latency,
            Self::Between(least, most) => {
                let spread_ns = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
                least + Duration::from_nanos(random.below(spread_ns.saturating_add(1)))
            }
        }
    }
}

/// A latency for each kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Of reads.
    pub read: Latency,
    /// Of writes.
    pub write: Latency,
    /// Of flushes.
    pub flush: Latency,
    /// Of discards, writes of zeroes and requests for extents.
    pub other: Latency,
}

impl Delays {
    /// The same latency for everything.
    pub fn all(latency: Latency) -> Self {
        Self { read: latency, write: latency, flush: latency, other: latency }
    }

    fn of(&self, kind: OperationKind) -> Latency {
        match kind {
            OperationKind::Read => self.read,
            OperationKind::Write => self.write,
            OperationKind::Flush => self.flush,
            OperationKind::Discard | OperationKind::WriteZeroes | OperationKind::Extents => self.other,
        }
    }
}

/// A device with delayed answers.
pub struct DelayLayer {
    inner: SharedDevice,
    clock: Arc<dyn Clock>,
    workers: Workers,
    /// Short sections, never across an await.
    state: Mutex<State>,
}

struct State {
    delays: Delays,
    random: Random,
}

impl DelayLayer {
    /// A layer over `inner`; `seed` draws the random latencies.
    pub fn new(inner: SharedDevice, clock: Arc<dyn Clock>, workers: &Workers, delays: Delays, seed: u64) -> Self {
        let state = Mutex::new(State { delays, random: Random::new(seed) });
        Self { inner, clock, workers: workers.clone(), state }
    }

    /// Changes the latencies of requests submitted from now on.
    pub fn set_delays(&self, delays: Delays) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).delays = delays;
    }

    fn draw(&self, kind: OperationKind) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let latency = state.delays.of(kind);
        latency.draw(&mut state.random)
    }
}

impl Device for DelayLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let latency = self.draw(request.operation.kind());
        let completion = self.inner.submit(request);
        if latency.is_zero() {
            return completion;
        }
        let clock = Arc::clone(&self.clock);
        Completion::task(&self.workers, async move {
            let response = completion.await;
            clock.sleep(latency).await;
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
    use base::clock::Instant;
    use base::executor::Executor;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn each_operation_has_its_latency() {
        let mut executor = Executor::in_order();
        let clock = executor.clock();
        let delays = Delays {
            read: Latency::Fixed(milliseconds(1)),
            write: Latency::Fixed(milliseconds(2)),
            flush: Latency::Fixed(milliseconds(4)),
            other: Latency::None,
        };
        let memory = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        let device = DelayLayer::new(memory, Arc::new(clock.clone()), &Workers::new(), delays, 1);
        executor.block_on(async move {
            let read = device.read(0, Buffer::zeroed(512));
            let write = device.write(0, Buffer::copy_of(&[7; 512]), false);
            assert!(read.await.expect("RAM does not fail").iter().all(|&byte| byte == 0), "the read went down first");
            assert_eq!(clock.now(), Instant::START + milliseconds(1));
            write.await.expect("RAM does not fail");
            device.flush().await.expect("RAM does not fail");
            device.discard(0, 4096).await.expect("RAM does not fail");
            assert_eq!(clock.now(), Instant::START + milliseconds(2 + 4));
            device.set_delays(Delays::default());
            device.flush().await.expect("RAM does not fail");
            assert_eq!(clock.now(), Instant::START + milliseconds(2 + 4));
        });
    }

    #[test]
    fn random_latencies_stay_between_and_repeat() {
        let latency = Latency::Between(milliseconds(2), milliseconds(3));
        let sample = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| latency.draw(&mut random)).collect::<Vec<_>>()
        };
        assert!(sample(1).iter().all(|drawn| (milliseconds(2)..=milliseconds(3)).contains(drawn)));
        assert_eq!(sample(1), sample(1));
        assert_ne!(sample(1), sample(2));
    }

    #[test]
    fn a_write_that_nobody_awaits_is_done() {
        let memory: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        let mut executor = Executor::in_order();
        let workers = Workers::new();
        let delays = Delays::all(Latency::Fixed(milliseconds(1)));
        let device = DelayLayer::new(Arc::clone(&memory), Arc::new(executor.clock()), &workers, delays, 1);
        drop(device.write(0, Buffer::copy_of(&[7; 512]), false));
        let running = workers.clone();
        workers.stop();
        executor.spawn(async move { running.run().await });
        executor.run();
        let read = executor.block_on(async move { memory.read(0, Buffer::zeroed(512)).await });
        assert_eq!(read.expect("RAM does not fail")[..], [7; 512]);
    }
}
