//! The disk below the target: a volatile cache that is lost with the power, or alone, and a witness
//! of every effect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use block::completion::{SlotSender, Workers};
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Operation, Request};
use initiator::RemoteLun;

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
    /// Whether a host ever switched the cache on, which others notice later. Writes in flight may
    /// be lost then, and the hosts get an error.
    pub(crate) was_switched_on: Arc<AtomicBool>,
    /// The part of it that the present target uses.
    in_use: Arc<Mutex<Weak<InUse>>>,
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
        Self {
            medium,
            clock,
            workers: workers.clone(),
            latency,
            model: model.clone(),
            was_switched_on: Arc::default(),
            in_use: Arc::default(),
        }
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.medium.lock().unwrap().geometry().is_write_cache_volatile
    }

    /// Flushes by `lun`. `None` when a loss is reported, which happens once for each time that a
    /// cache was switched on.
    pub(crate) async fn flush(&self, lun: &RemoteLun) -> Option<()> {
        match lun.flush().await {
            Ok(()) => Some(()),
            Err(error) => {
                let is_told = self.was_switched_on.load(Ordering::Relaxed) && error.kind() == ErrorKind::OutcomeUnknown;
                assert!(is_told, "a flush: {error}");
                None
            }
        }
    }

    /// Loses its power, with the requests in flight.
    pub(crate) fn lose_power(&self) {
        self.medium.lock().unwrap().power().clone().lose();
    }

    /// Gets its power back, with the data that the loss left.
    pub(crate) fn regain_power(&self, loss: Loss) {
        let mut medium = self.medium.lock().unwrap();
        let kept = medium.after_power_loss_as(loss, &Power::new());
        *medium = kept.with_latency(Arc::clone(&self.clock), self.latency, &self.workers);
    }

    /// Checks that writes acknowledged before `start` are durable, in `units`.
    pub(crate) fn check_durable(&self, units: std::ops::Range<u64>, start: u64, what: &str) {
        let length = (units.end - units.start) * UNIT;
        let bytes = self.medium.lock().unwrap().durable_bytes(units.start * UNIT, length as usize);
        self.model.check(units.start, &bytes, start, what);
    }

    /// The medium as it is now, for one target, which ends with its power.
    pub(crate) fn for_target(&self) -> Witness {
        let medium = self.medium.lock().unwrap().clone();
        let gate = Gate { medium, in_flight: 0, waiting: Vec::new(), loss: None };
        let in_use = Arc::new(InUse { disk: self.clone(), gate: Mutex::new(gate), events: EventHub::new() });
        *self.in_use.lock().unwrap() = Arc::downgrade(&in_use);
        Witness { in_use }
    }

    /// Loses the cache while the target goes on and gets the event, as soon as no request is in
    /// flight.
    pub(crate) fn lose_cache(&self, loss: Loss) {
        let in_use = self.in_use.lock().unwrap().upgrade();
        if let Some(in_use) = in_use {
            in_use.gate.lock().unwrap().loss = Some(loss);
            in_use.lose_cache();
        }
    }
}

/// The disk of one target.
struct InUse {
    disk: Disk,
    gate: Mutex<Gate>,
    events: EventHub,
}

struct Gate {
    medium: CrashLayer,
    in_flight: usize,
    /// Changes that came while the loss waits for those in flight.
    waiting: Vec<(Request, SlotSender)>,
    loss: Option<Loss>,
}

impl InUse {
    fn submit(self: &Arc<Self>, request: Request, sender: SlotSender) {
        let first = request.offset / UNIT;
        let written = match &request.operation {
            Operation::Write { buffer, .. } => buffer.to_vec(),
            Operation::Discard { length } | Operation::WriteZeroes { length, .. } => vec![0; *length as usize],
            _ => Vec::new(),
        };
        let under_way = {
            let mut gate = self.gate.lock().unwrap();
            // Requests before the loss flush and read the content before it.
            if gate.loss.is_some() && request.is_mutation() {
                gate.waiting.push((request, sender));
                return;
            }
            gate.in_flight += 1;
            gate.medium.submit(request)
        };
        let in_use = Arc::clone(self);
        // The effect is witnessed whether or not the request is awaited.
        self.disk.workers.spawn(async move {
            let response = under_way.await;
            if response.result.is_ok() {
                for (unit, bytes) in (first..).zip(written.chunks(UNIT as usize)) {
                    in_use.disk.model.witness(unit, bytes);
                }
            }
            sender.complete(response);
            in_use.gate.lock().unwrap().in_flight -= 1;
            in_use.lose_cache();
        });
    }

    /// Loses the cache, if that was ordered and no request is in flight.
    fn lose_cache(self: &Arc<Self>) {
        let waiting = {
            let mut gate = self.gate.lock().unwrap();
            if gate.in_flight > 0 {
                return;
            }
            let Some(loss) = gate.loss.take() else { return };
            // The power may have been lost meanwhile.
            if !gate.medium.power().is_lost() {
                self.disk.regain_power(loss);
                gate.medium = self.disk.medium.lock().unwrap().clone();
            }
            std::mem::take(&mut gate.waiting)
        };
        self.events.publish(&Event::WritesLost);
        waiting.into_iter().for_each(|(request, sender)| self.submit(request, sender));
    }
}

/// Sees every mutation that the medium has carried out. It is below all layers that could reorder.
pub(crate) struct Witness {
    in_use: Arc<InUse>,
}

impl Device for Witness {
    fn geometry(&self) -> Geometry {
        self.in_use.gate.lock().unwrap().medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.in_use.gate.lock().unwrap().medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let (completion, sender) = Completion::slot();
        self.in_use.submit(request, sender);
        completion
    }

    fn subscribe(&self) -> EventReceiver {
        self.in_use.events.subscribe()
    }
}
