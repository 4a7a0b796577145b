//! A flush covers what was completed before it was sent, as long as the unit has not lost its cache since: where it may have, the flush is worth
//! nothing, whatever was answered to it, and is sent again after everything was written again.

mod support;

use std::sync::{Arc, Mutex};

use block::completion::SlotSender;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{
    Buffer, Completion, Device, Event, EventHub, EventReceiver, Geometry, Identity, Operation, Request, Response,
};
use support::World;

/// A disk whose cache can be lost behind the target's back. It answers a flush when it is told to, as if nothing had happened.
struct Sloppy {
    medium: Mutex<CrashLayer>,
    events: EventHub,
    waiting: Mutex<Vec<SlotSender>>,
    holds_flushes: Mutex<bool>,
}

impl Sloppy {
    fn new() -> Arc<Self> {
        let medium = Mutex::new(CrashLayer::new(1 << 20, 1));
        Arc::new(Self { medium, events: EventHub::new(), waiting: Mutex::default(), holds_flushes: Mutex::new(true) })
    }

    fn lose_cache(&self) {
        let mut medium = self.medium.lock().unwrap();
        *medium = medium.after_power_loss_as(Loss::All, &Power::new());
        self.events.publish(&Event::WritesLost);
    }

    fn answer_flushes(&self) -> usize {
        *self.holds_flushes.lock().unwrap() = false;
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        let count = waiting.len();
        waiting.into_iter().for_each(|sender| sender.complete(Response::done(Buffer::empty())));
        count
    }

    fn durable(&self) -> Vec<u8> {
        self.medium.lock().unwrap().durable_bytes(0, 4096)
    }
}

impl Device for Sloppy {
    fn geometry(&self) -> Geometry {
        self.medium.lock().unwrap().geometry()
    }

    fn identity(&self) -> Identity {
        support::identity("sloppy")
    }

    fn submit(&self, request: Request) -> Completion {
        if matches!(request.operation, Operation::Flush) && *self.holds_flushes.lock().unwrap() {
            let (completion, sender) = Completion::slot();
            self.waiting.lock().unwrap().push(sender);
            return completion;
        }
        self.medium.lock().unwrap().submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

#[test]
fn a_flush_that_the_cache_was_lost_under_is_sent_again() {
    let mut world = World::new(1);
    let device = Sloppy::new();
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let write = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(write).unwrap();
    let flush = lun.flush();
    world.executor.run_until_stalled();
    device.lose_cache();
    assert_eq!(device.durable(), [0; 4096], "it is lost");
    // The next command brings the unit attention; it waits for the flush, which then ends well.
    let read = lun.read(0, Buffer::zeroed(4096));
    world.executor.run_until_stalled();
    assert_eq!(device.answer_flushes(), 1, "it was sent before the loss");
    world.run(flush).unwrap();
    assert_eq!(device.durable(), [7; 4096], "a flush that is acknowledged covers what was acknowledged before");
    assert_eq!(world.run(read).unwrap()[..], [7; 4096]);
    let status = lun.status();
    assert_eq!((status.session_count, status.writes_replayed), (1, 1));
}

/// The flush of the old session is answered and says nothing of a write that was under way then: issued again, that is kept until it is flushed.
#[test]
fn a_flush_of_the_old_session_does_not_cover_a_write_issued_again() {
    let mut world = World::new(2);
    let device = CrashLayer::new(1 << 20, 2);
    world.serve(Arc::new(device.clone()));
    let lun = world.connect(world.options()).unwrap();
    // The flush is answered, and the write is under way, when the link breaks.
    let flush = lun.flush();
    world.run(flush).unwrap();
    let write = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.network.freeze();
    world.executor.run_until_stalled();
    world.network.cut();
    world.run(write).unwrap();
    assert_eq!(lun.status().session_count, 2);
    assert_eq!(lun.status().retained_bytes, 4096, "it is kept, for the LUN may lose it");
    world.network.set_server(None);
    world.network.cut();
    let device = device.after_power_loss_as(Loss::All, &Power::new());
    world.serve(Arc::new(device.clone()));
    let flush = lun.flush();
    world.run(flush).unwrap();
    assert_eq!(device.durable_bytes(0, 4096), [7; 4096]);
}
