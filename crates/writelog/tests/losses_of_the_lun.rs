//! What the LUN loses while it is sent, and says so, stays the log's to send.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{
    Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Operation, Request, SharedDevice,
};
use common::{Kind, format, open_options, read, try_open};
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 16 * 4096;

/// A LUN that is another program's when it is flushed: what was not flushed is gone, its own flush succeeds, and it says what happened.
struct Restarting {
    medium: Mutex<CrashLayer>,
    restarts: AtomicBool,
    events: EventHub,
}

impl Restarting {
    fn medium(&self) -> MutexGuard<'_, CrashLayer> {
        self.medium.lock().expect("nothing panics")
    }

    fn blocks(&self) -> Vec<u8> {
        self.medium().durable_bytes(0, ORIGIN_BYTES as usize).chunks(4096).map(|block| block[0]).collect()
    }
}

impl Device for Restarting {
    fn geometry(&self) -> Geometry {
        self.medium().geometry()
    }

    fn identity(&self) -> Identity {
        self.medium().identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if matches!(request.operation, Operation::Flush) && self.restarts.swap(false, Ordering::Relaxed) {
            let after = self.medium().after_power_loss_as(Loss::All, &Power::new());
            *self.medium() = after;
            self.events.publish(&Event::WritesLost);
        }
        self.medium().submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

#[test]
fn what_the_lun_lost_while_it_was_sent_stays_dirty_and_is_sent_again() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin = Arc::new(Restarting {
            medium: Mutex::new(CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry)),
            restarts: AtomicBool::new(false),
            events: EventHub::new(),
        });
        let (device, below): (SharedDevice, SharedDevice) = (Arc::new(CrashLayer::new(512 << 10, 1)), origin.clone());
        format(&mut executor, &device, &below);
        let mut options = open_options(&executor, Kind { durability: Durability::Log, order }, None);
        let hour = Duration::from_secs(3600);
        (options.level2.idle, options.level2.age_max, options.level2.share_start) = (hour, hour, 0.9);
        let log = try_open(&mut executor, &device, &below, options).expect("nothing fails");
        for block in 0..16u8 {
            let writing = log.write(u64::from(block) * 4096, Buffer::copy_of(&[block + 1; 4096]), false);
            executor.block_on(writing).expect("nothing fails");
        }
        origin.restarts.store(true, Ordering::Relaxed);
        let destaging = Arc::clone(&log);
        let first = executor.block_on(async move { destaging.destage(|_| {}).await });
        assert_eq!(first.expect_err("it was lost").kind(), ErrorKind::OutcomeUnknown, "{order}");
        assert_eq!(origin.blocks(), [0; 16], "{order}");
        assert_eq!(log.status().dirty_bytes, ORIGIN_BYTES, "{order}");
        let expected: Vec<u8> = (1..=16).collect();
        let closing = Arc::clone(&log);
        assert_eq!(
            read(&mut executor, log.as_ref(), 0, ORIGIN_BYTES).chunks(4096).map(|block| block[0]).collect::<Vec<_>>(),
            expected
        );
        executor.block_on(async move { closing.close(false).await }).expect("nothing fails any more");
        assert_eq!(origin.blocks(), expected, "{order}");
    }
}
