//! Data that the LUN loses before a flush, and reports as lost, stays dirty in the log.

mod common;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{
    Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, OperationKind, Request,
    SharedDevice,
};
use common::{Kind, format, open_options, read, try_open};
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 16 * 4096;

/// A LUN whose program restarts at some request: unflushed data is lost, the request itself
/// succeeds, and the loss is reported.
struct Restarting {
    medium: Mutex<CrashLayer>,
    /// The request at which it restarts, until then.
    restarts_at: Mutex<Option<(OperationKind, u64)>>,
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
        let request_now = (request.operation.kind(), request.offset);
        if self.restarts_at.lock().expect("nothing panics").take_if(|at| *at == request_now).is_some() {
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

/// Writes the even blocks, and sends them one by one in one batch, to a LUN whose writes take time
/// and which restarts at a request of that batch.
fn check_that_it_is_sent_again(restarts_at: (OperationKind, u64), kept: &[u64]) {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin = Arc::new(Restarting {
            medium: Mutex::new(CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry)),
            restarts_at: Mutex::default(),
            events: EventHub::new(),
        });
        let (clock, workers) = (Arc::new(executor.clock()), Workers::new());
        let delays = Delays { write: Latency::Fixed(Duration::from_micros(100)), ..Delays::default() };
        let below = Arc::new(DelayLayer::new(origin.clone(), clock, &workers, delays, 1));
        executor.spawn(async move { workers.run().await });
        let (device, below): (SharedDevice, SharedDevice) = (Arc::new(CrashLayer::new(512 << 10, 1)), below);
        format(&mut executor, &device, &below);
        let mut options = open_options(&executor, Kind { durability: Durability::Log, order }, None);
        let hour = Duration::from_secs(3600);
        (options.level2.idle, options.level2.age_max, options.level2.share_start) = (hour, hour, 0.9);
        (options.level2.seek_bytes, options.level2.writes_in_flight) = (0, 1);
        let log = try_open(&mut executor, &device, &below, options).expect("nothing fails");
        let expected: Vec<u8> = (0..16).map(|block| if block % 2 == 0 { block + 1 } else { 0 }).collect();
        for block in (0..16u8).step_by(2) {
            let writing = log.write(u64::from(block) * 4096, Buffer::copy_of(&[block + 1; 4096]), false);
            executor.block_on(writing).expect("nothing fails");
        }
        *origin.restarts_at.lock().expect("nothing panics") = Some(restarts_at);
        let destaging = Arc::clone(&log);
        let first = executor.block_on(async move { destaging.destage(|_| {}).await });
        assert_eq!(first.expect_err("it was lost").kind(), ErrorKind::OutcomeUnknown, "{order}");
        for (block, byte) in (0..16u64).zip(origin.blocks()) {
            let is_there = kept.contains(&block);
            assert_eq!(byte, if is_there { expected[block as usize] } else { 0 }, "{order}, block {block}");
        }
        assert_eq!(log.status().dirty_bytes, ORIGIN_BYTES / 2, "{order}");
        let closing = Arc::clone(&log);
        assert_eq!(
            read(&mut executor, log.as_ref(), 0, ORIGIN_BYTES).chunks(4096).map(|block| block[0]).collect::<Vec<_>>(),
            expected
        );
        executor.block_on(async move { closing.close(false).await }).expect("nothing fails any more");
        assert_eq!(origin.blocks(), expected, "{order}");
    }
}

#[test]
fn what_the_lun_lost_while_it_was_sent_stays_dirty_and_is_sent_again() {
    check_that_it_is_sent_again((OperationKind::Flush, 0), &[]);
}

/// The event of the loss is handled before the batch has sent the rest.
#[test]
fn what_the_lun_lost_between_two_writes_of_a_batch_stays_dirty_and_is_sent_again() {
    check_that_it_is_sent_again((OperationKind::Write, 8 * 4096), &[8, 10, 12, 14]);
}
