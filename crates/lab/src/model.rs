//! `--clock virtual`: the real initiator and the real target, over models, in virtual time.
//!
//! ```text
//! closed loop ─► processor ─► initiator ═══ link: rate, latency ═══ target ─► RAM, or a disk
//! ```
//! One thread, one clock, one seed, nothing from the operating system: a run is repeatable to the digit.
//! The processor is one server for all requests, first come first served; a request costs it a fixed time, and a time
//! for each frame that its data makes on the wire, which is where a machine of 2003 spent it (interrupts and copies).

use std::future::ready;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::clock::{Clock, Instant, VirtualClock};
use base::executor::Executor;
use block::completion::{Completion, Workers};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use block::{ByteRange, Device, EventReceiver, Geometry, Identity, Request, SharedDevice};
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions};
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use stack::link::{DelayedStream, LinkModel};
use target::{Addresses, Target, TargetServer, TargetServerOptions};
use workload::bench::ReadWrite;
use workload::closed_loop::{ClosedLoop, Limit, Plan};
use workload::ledger::InitialContent;

use crate::error::LabError;
use crate::limits::{SOCKET_BYTES, UNIT_BYTES, VIRTUAL_REQUESTS};

const IQN: &str = "iqn.2026-11.io.forebay:lab";

/// A machine and a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Round trip between the ends, on the wire and in both machines.
    pub(crate) round_trip: Duration,
    /// Rate of the wire.
    pub(crate) bytes_per_second: u64,
    /// Processor time of a request.
    pub(crate) per_request: Duration,
    /// Processor time of a frame of its data.
    pub(crate) per_frame: Duration,
    /// Bytes of data in a frame.
    pub(crate) frame_bytes: u64,
    /// Time that the medium adds to each request.
    pub(crate) medium: Duration,
}

/// The load on the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) rw: ReadWrite,
    pub(crate) bytes: u32,
    pub(crate) depth: u32,
}

/// Runs the load. Returns requests and bytes a second.
pub(crate) fn run(model: Model, load: Load) -> Result<(f64, f64), LabError> {
    let mut executor = Executor::in_order();
    let clock = executor.clock();
    let workers = Workers::new();
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    let connector =
        Arc::new(ModelConnector { server: server(model, &clock, &workers), clock: clock.clone(), model, workers });
    let options = InitiatorOptions {
        isid: Some(Isid::random_format(1, 1)),
        initiator_name: "iqn.2026-11.io.forebay:lab-initiator".to_owned(),
        clock: Arc::new(clock.clone()),
        keepalive_interval: Duration::ZERO,
        ..InitiatorOptions::new(Portal { host: "10.0.0.1".to_owned(), port: 3260 }, IQN, 0)
    };
    let workers = connector.workers.clone();
    let (lun, driver) = executor.block_on(initiator::connect(options, connector)).map_err(LabError::Device)?;
    executor.spawn(driver);
    let device: SharedDevice =
        Arc::new(Processor { inner: lun, clock: clock.clone(), model, workers, free_at: Mutex::default() });
    let footprint = ByteRange { offset: 0, length: UNIT_BYTES };
    let plan = Plan {
        profile: load.rw.profile(1, load.bytes, 0.5, footprint),
        depth: load.depth,
        limit: Limit::Requests(VIRTUAL_REQUESTS),
        verify: Some(InitialContent::Zero),
        keep_series: false,
    };
    let mut closed_loop = ClosedLoop::new(plan, Arc::new(clock)).map_err(|error| LabError::Other(error.to_string()))?;
    let measured = executor.block_on(async move {
        let ending = closed_loop.run(device, |_| ControlFlow::Continue(())).await;
        ending.map(|_| closed_loop.measurement()).map_err(|error| LabError::Other(error.to_string()))
    });
    let measurement = measured?;
    Ok((measurement.iops, measurement.bytes_per_second))
}

fn server(model: Model, clock: &VirtualClock, workers: &Workers) -> TargetServer {
    let identity = Identity { target: IQN.to_owned(), unit: "unit".to_owned(), serial: "1".to_owned() };
    let memory: SharedDevice = Arc::new(MemoryDevice::new(UNIT_BYTES, identity));
    let delays = Delays::all(Latency::Fixed(model.medium));
    let medium = DelayLayer::new(memory, Arc::new(clock.clone()), workers, delays, 1);
    let unit = LogicalUnit::new(Arc::new(medium), LogicalUnitOptions::default());
    workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), Arc::new(clock.clone()))
}

/// Connects to the server over the modelled link.
struct ModelConnector {
    server: TargetServer,
    clock: VirtualClock,
    model: Model,
    workers: Workers,
}

impl Connector for ModelConnector {
    fn connect(&self, _: &Portal) -> Connecting<'_> {
        let (near, far) = tokio::io::duplex(SOCKET_BYTES);
        let link = LinkModel {
            one_way_latency: self.model.round_trip / 2,
            bytes_per_second: Some(self.model.bytes_per_second),
        };
        let (stream, pump) = DelayedStream::over(near, Arc::new(self.clock.clone()), link);
        self.workers.spawn(pump);
        let server = self.server.clone();
        let addresses = Addresses { peer: "10.0.0.2:1000".to_owned(), local: "10.0.0.1:3260".to_owned() };
        self.workers.spawn(async move {
            server.serve_connection(far, addresses).await;
        });
        Box::pin(ready(Ok(Box::new(stream) as BoxedStream)))
    }
}

/// The processor of the initiator, as a device over the initiator.
struct Processor {
    inner: Arc<dyn Device>,
    clock: VirtualClock,
    model: Model,
    workers: Workers,
    /// When it has finished all the work it was given.
    free_at: Mutex<Option<Instant>>,
}

impl Processor {
    /// When the processor has finished a request of `bytes` that comes now.
    fn done_at(&self, bytes: u64) -> Instant {
        let frames = u32::try_from(bytes.div_ceil(self.model.frame_bytes)).unwrap_or(u32::MAX);
        let cost = self.model.per_request + self.model.per_frame * frames;
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let done = free_at.filter(|free_at| *free_at > now).unwrap_or(now) + cost;
        *free_at = Some(done);
        done
    }
}

impl Device for Processor {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let done_at = self.done_at(request.range().map_or(0, |range| range.length));
        let (inner, clock) = (Arc::clone(&self.inner), self.clock.clone());
        Completion::task(&self.workers, async move {
            clock.sleep_until(done_at).await;
            inner.submit(request).await
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_repeats_to_the_digit() {
        let model = Model {
            round_trip: Duration::from_micros(430),
            bytes_per_second: 117_000_000,
            per_request: Duration::from_micros(66),
            per_frame: Duration::ZERO,
            frame_bytes: 1460,
            medium: Duration::ZERO,
        };
        let load = Load { rw: ReadWrite::RandRead, bytes: 1024, depth: 2 };
        let first = run(model, load).expect("nothing fails in a model");
        assert_eq!(first, run(model, load).expect("nothing fails in a model"));
        assert!(first.0 < run(model, Load { depth: 4, ..load }).expect("nothing fails in a model").0);
    }
}
