//! A flush covers what was completed before it was sent, if the unit has not lost its cache since.
//! If it may have, a good answer to the flush does not count: it is sent again after the replay.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use block::completion::SlotSender;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{
    Buffer, Completion, Device, Event, EventHub, EventReceiver, Geometry, Identity, Operation, Request, Response,
};
use initiator::InitiatorOptions;
use support::World;

/// A disk whose cache can be lost without the target's knowledge. On the test's order it answers a
/// flush as if nothing had happened.
struct Sloppy {
    medium: Mutex<CrashLayer>,
    events: EventHub,
    waiting: Mutex<Vec<SlotSender>>,
    holds_flushes: Mutex<bool>,
}

impl Sloppy {
    fn new() -> Arc<Self> {
        Self::of(CrashLayer::new(1 << 20, 1), true)
    }

    fn of(medium: CrashLayer, holds_flushes: bool) -> Arc<Self> {
        let (medium, holds_flushes) = (Mutex::new(medium), Mutex::new(holds_flushes));
        Arc::new(Self { medium, events: EventHub::new(), waiting: Mutex::default(), holds_flushes })
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
        self.durable_bytes(4096)
    }

    fn durable_bytes(&self, length: usize) -> Vec<u8> {
        self.medium.lock().unwrap().durable_bytes(0, length)
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

/// The connection that carries the report of the loss is slow, and breaks.
#[test]
fn a_flush_or_a_read_that_is_answered_before_the_news_of_a_loss_comes_is_sent_again() {
    for (nth, read_count) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        let mut world = World::new(6);
        let device = Sloppy::of(CrashLayer::new(1 << 20, 6), false);
        world.serve(device.clone());
        let lun = world.connect(InitiatorOptions { connections: 2, split: true, ..world.options() }).unwrap();
        world.pass(Duration::from_millis(10));
        let before = world.network.traffic();
        let reads: Vec<_> = (0..8).map(|_| lun.read(8192, Buffer::zeroed(512))).collect();
        reads.into_iter().for_each(|read| drop(world.run(read).unwrap()));
        let answers: Vec<usize> =
            (0..before.len()).filter(|&at| world.network.traffic()[at].1 > before[at].1).collect();
        assert_eq!(answers.len(), 2, "answers come on links of their own");
        let write = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
        world.run(write).unwrap();
        device.lose_cache();
        world.network.freeze_one(answers[nth]);
        let reads: Vec<_> = (0..read_count).map(|_| lun.read(8192, Buffer::zeroed(512))).collect();
        let (flush, read) = (lun.flush(), lun.read(0, Buffer::zeroed(4096)));
        world.executor.run_until_stalled();
        world.network.cut_one(answers[nth]);
        assert!(world.run(read).unwrap()[..] == [7; 4096], "link {nth}, {read_count} reads");
        world.run(flush).unwrap();
        assert!(device.durable() == [7; 4096], "link {nth}, {read_count} reads");
        reads.into_iter().for_each(|read| drop(world.run(read).unwrap()));
    }
}

/// The flush of the old session is answered and says nothing of a write that was under way then: issued again, that is
/// kept until it is flushed.
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

/// A request of 24 commands, eight at a time, and the cache is lost when some of them are done: they are done again.
#[test]
fn a_write_of_several_commands_begins_again_when_the_cache_is_lost_under_it() {
    const LATENCY: Duration = Duration::from_millis(10);
    for (fua, milliseconds) in [(false, 5), (false, 15), (false, 25), (true, 15), (false, 35)] {
        let mut world = World::new(3);
        let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
        let medium = CrashLayer::new(4 << 20, 3);
        let geometry = Geometry { transfer_bytes_max: 64 << 10, ..medium.geometry() };
        let device = Sloppy::of(medium.with_geometry(geometry), false);
        let delays = Delays::all(Latency::Fixed(LATENCY));
        world.serve(Arc::new(DelayLayer::new(device.clone(), clock, &world.workers, delays, 3)));
        let lun = world.connect(world.options()).unwrap();
        let older = lun.write(0, Buffer::copy_of(&[1; 64 << 10]), false);
        world.run(older).unwrap();
        let write = lun.write(0, Buffer::copy_of(&[7; 24 * (64 << 10)]), fua);
        world.pass(Duration::from_millis(milliseconds));
        device.lose_cache();
        world.run(write).unwrap();
        if !fua {
            let flush = lun.flush();
            world.run(flush).unwrap();
        }
        let durable = device.durable_bytes(24 * (64 << 10));
        assert!(durable.iter().all(|&byte| byte == 7), "lost after {milliseconds} ms");
    }
}

/// Only the first command after a loss reports it; the data of the other reads does not count.
#[test]
fn a_read_that_followed_the_loss_of_the_cache_is_made_again() {
    let mut world = World::new(4);
    let device = Sloppy::of(CrashLayer::new(1 << 20, 4), false);
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let write = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(write).unwrap();
    device.lose_cache();
    let (first, second) = (lun.read(8192, Buffer::zeroed(512)), lun.read(0, Buffer::zeroed(4096)));
    world.run(first).unwrap();
    assert_eq!(world.run(second).unwrap()[..], [7; 4096]);
}

/// The last flush reports the loss, and what was lost is written again before the session ends.
#[test]
fn closing_writes_again_what_was_lost() {
    let mut world = World::new(5);
    let device = Sloppy::of(CrashLayer::new(1 << 20, 5), false);
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let write = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(write).unwrap();
    device.lose_cache();
    world.run(async move { lun.close().await }).unwrap();
    assert_eq!(device.durable(), [7; 4096]);
}
