//! Overlapping requests are carried out in the order in which they came, also when the unit is busy
//! in between.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, ErrorKind, EventReceiver, Geometry, Identity, Operation, Request};
use initiator::InitiatorOptions;
use support::{World, identity};

const BLOCK: usize = 4096;

/// Busy for the first write of the first block.
struct BusyOnce {
    device: MemoryDevice,
    was_busy: AtomicBool,
}

impl Device for BusyOnce {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_first = request.offset == 0 && matches!(request.operation, Operation::Write { .. });
        if is_first && !self.was_busy.swap(true, Ordering::Relaxed) {
            return Completion::ready(request.fail(ErrorKind::Busy));
        }
        self.device.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.device.subscribe()
    }
}

#[test]
fn a_write_that_is_issued_again_does_not_land_on_a_later_one() {
    for (connections, split) in [(1, false), (3, false), (2, true)] {
        let mut world = World::new(1);
        let device = MemoryDevice::new(1 << 20, identity("one"));
        world.serve(Arc::new(BusyOnce { device, was_busy: AtomicBool::new(false) }));
        let options = InitiatorOptions { connections, split, ..world.options() };
        let lun = world.connect(options).unwrap();
        world.pass(Duration::from_millis(10));
        let write = |offset: usize, length: usize, byte: u8| {
            lun.write((offset * BLOCK) as u64, Buffer::copy_of(&vec![byte; length * BLOCK]), false)
        };
        // The first gets BUSY; the others overlap it, or each other, or nothing.
        let writes = (write(0, 2, 1), write(1, 2, 2), write(2, 1, 3), write(8, 1, 4));
        let early = lun.read(0, Buffer::zeroed(4 * BLOCK));
        let read = {
            let (first, second, third, fourth) = writes;
            world.run(async move {
                fourth.await.unwrap();
                first.await.unwrap();
                second.await.unwrap();
                third.await.unwrap();
                early.await.unwrap()
            })
        };
        let blocks: Vec<u8> = read.chunks(BLOCK).map(|block| block[0]).collect();
        assert_eq!(blocks, [1, 2, 3, 0], "{connections} connections, split: {split}: as they were submitted");
        assert!(lun.status().commands_retried > 0, "the unit was busy");
    }
}
