//! The disk below the target: a cache that is lost with the power, and a witness of every effect.

use std::sync::{Arc, Mutex};

use block::completion::Workers;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Completion, Device, EventReceiver, Geometry, Identity, Operation, Request};

use base::clock::Clock;

use crate::model::{Model, UNIT};

/// A disk that outlives the targets over it.
#[derive(Clone)]
pub(crate) struct Disk {
    medium: Arc<Mutex<CrashLayer>>,
    clock: Arc<dyn Clock>,
    workers: Workers,
    latency: Latency,
    model: Model,
}

impl Disk {
    pub(crate) fn new(
        medium: CrashLayer,
        clock: Arc<dyn Clock>,
        workers: &Workers,
        latency: Latency,
        model: &Model,
    ) -> Self {
        let medium = medium.with_latency(Arc::clone(&clock), latency, workers);
        let medium = Arc::new(Mutex::new(medium));
        Self { medium, clock, workers: workers.clone(), latency, model: model.clone() }
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.medium.lock().unwrap().geometry().is_write_cache_volatile
    }

    /// Fails, with what is in flight.
    pub(crate) fn lose_power(&self) {
        self.medium.lock().unwrap().power().clone().lose();
    }

    /// Is there again, with what the loss left.
    pub(crate) fn regain_power(&self, loss: Loss) {
        let mut medium = self.medium.lock().unwrap();
        let kept = medium.after_power_loss_as(loss, &Power::new());
        *medium = kept.with_latency(Arc::clone(&self.clock), self.latency, &self.workers);
    }

    /// Checks that what was acknowledged before `start` is safe, in `units`.
    pub(crate) fn check_durable(&self, units: std::ops::Range<u64>, start: u64, what: &str) {
        let length = (units.end - units.start) * UNIT;
        let bytes = self.medium.lock().unwrap().durable_bytes(units.start * UNIT, length as usize);
        self.model.check(units.start, &bytes, start, what);
    }

    /// The medium as it is now, for one target: it ends with its power.
    pub(crate) fn for_target(&self) -> Witness {
        let medium = self.medium.lock().unwrap().clone();
        Witness { medium, workers: self.workers.clone(), model: self.model.clone() }
    }
}

/// Looks at every mutation that the medium has carried out. Below everything that could reorder.
pub(crate) struct Witness {
    medium: CrashLayer,
    workers: Workers,
    model: Model,
}

impl Device for Witness {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let first = request.offset / UNIT;
        let written = match &request.operation {
            Operation::Write { buffer, .. } => buffer.to_vec(),
            Operation::Discard { length } | Operation::WriteZeroes { length, .. } => vec![0; *length as usize],
            _ => Vec::new(),
        };
        let under_way = self.medium.submit(request);
        let model = self.model.clone();
        let (completion, sender) = Completion::slot();
        // The effect is seen whether or not anybody waits for it.
        self.workers.spawn(async move {
            let response = under_way.await;
            if response.result.is_ok() {
                for (unit, bytes) in (first..).zip(written.chunks(UNIT as usize)) {
                    model.witness(unit, bytes);
                }
            }
            sender.complete(response);
        });
        completion
    }

    fn subscribe(&self) -> EventReceiver {
        self.medium.subscribe()
    }
}
