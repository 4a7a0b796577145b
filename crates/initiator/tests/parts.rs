//! A request larger than one command is sent as several at once.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, ErrorKind, Geometry, Identity, Request, Response};
use initiator::InitiatorOptions;
use support::{World, identity};

const SIZE: u64 = 8 << 20;
const LATENCY: Duration = Duration::from_millis(10);

/// A disk that takes 64 KiB at once, and may refuse commands that touch one block.
struct Narrow {
    memory: MemoryDevice,
    broken_offset: Option<u64>,
}

impl Device for Narrow {
    fn geometry(&self) -> Geometry {
        Geometry { transfer_bytes_max: 64 << 10, ..self.memory.geometry() }
    }

    fn identity(&self) -> Identity {
        self.memory.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = request.range().unwrap();
        if self.broken_offset.is_some_and(|offset| (range.offset..range.end()).contains(&offset)) {
            return Completion::ready(request.fail(ErrorKind::Media));
        }
        self.memory.submit(request)
    }
}

fn serve(world: &mut World, broken_offset: Option<u64>) {
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let narrow = Arc::new(Narrow { memory: MemoryDevice::new(SIZE, identity("narrow")), broken_offset });
    let device = DelayLayer::new(narrow, clock, &world.workers, Delays::all(Latency::Fixed(LATENCY)), 1);
    world.serve(Arc::new(device));
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 512 * 7 + index) as u8).collect()
}

#[test]
fn parts_are_under_way_together_and_come_out_as_one() {
    let mut world = World::new(1);
    serve(&mut world, None);
    let lun = world.connect(world.options()).unwrap();
    let bytes = pattern(1 << 20);
    let before = world.clock.now();
    let write = lun.write(512, Buffer::copy_of(&bytes), false);
    assert!(world.run(write).unwrap()[..] == bytes[..], "the buffer comes back as it was");
    // Sixteen commands, eight at once; one after the other would take 16 times the latency.
    assert_eq!(world.clock.now().since(before), LATENCY * 2);
    let before = world.clock.now();
    let read = lun.read(512, Buffer::zeroed(1 << 20));
    assert!(world.run(read).unwrap()[..] == bytes[..]);
    assert_eq!(world.clock.now().since(before), LATENCY * 2);
}

#[test]
fn parts_do_not_exceed_the_queue_depth() {
    let mut world = World::new(2);
    serve(&mut world, None);
    let lun = world.connect(InitiatorOptions { queue_depth: 2, ..world.options() }).unwrap();
    let read = lun.read(0, Buffer::zeroed(512 << 10));
    world.pass(LATENCY / 2);
    assert_eq!((lun.status().in_flight, lun.status().waiting), (2, 0));
    world.run(read).unwrap();
    assert_eq!(lun.status().in_flight, 0);
}

#[test]
fn a_part_that_fails_ends_the_request_when_no_other_is_under_way() {
    let mut world = World::new(3);
    serve(&mut world, Some(300 << 10));
    let lun = world.connect(world.options()).unwrap();
    for is_write in [false, true] {
        let buffer = Buffer::copy_of(&pattern(2 << 20));
        let request = if is_write { Request::write(0, buffer, false) } else { Request::read(0, buffer) };
        let Response { result, buffer, .. } = {
            let under_way = lun.submit(request);
            world.run(under_way)
        };
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Media);
        assert_eq!(buffer.len(), 2 << 20, "the buffer comes back");
        let sent = lun.status().commands_sent;
        world.pass(LATENCY * 10);
        assert_eq!((lun.status().commands_sent, lun.status().in_flight), (sent, 0), "nothing is issued any more");
    }
    let read = lun.read(1 << 20, Buffer::zeroed(4096));
    world.run(read).unwrap();
}

#[test]
fn parts_that_are_lost_with_their_session_are_issued_again() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 40, 1) {
        let _printed = test.on_panic(seed, None);
        let mut world = World::new(seed);
        serve(&mut world, None);
        let lun = world.connect(world.options()).unwrap();
        let bytes = pattern(700 << 10);
        let write = lun.write(4096, Buffer::copy_of(&bytes), false);
        world.network.cut_next_after(seed * 9000);
        world.pass(LATENCY / 4 * (seed as u32 % 9));
        world.network.cut();
        world.run(write).unwrap();
        let read = lun.read(4096, Buffer::zeroed(700 << 10));
        world.network.cut_next_after(seed * 11_000);
        world.pass(LATENCY / 4 * (seed as u32 % 7));
        world.network.cut();
        assert!(world.run(read).unwrap()[..] == bytes[..], "seed {seed}");
        assert!(lun.status().session_count >= 3, "seed {seed}");
    }
}
