//! A record that is on its way when the log device refuses another one.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::buffer::Buffer;
use base::executor::Executor;
use base::signal::Signal;
use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::{Completion, Device, ErrorKind, EventReceiver, Geometry, Identity, Request, SharedDevice};
use common::{Kind, format, open_options, read};
use writelog::{DestageOrder, Durability, WriteLog};

const ORIGIN_BYTES: u64 = 64 * 4096;
const LOG_BYTES: u64 = 512 << 10;
const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };

/// Enough for a record beside another one.
const LARGE_BYTES: usize = 64 << 10;

/// A device that holds one write back until it is released.
struct Holding {
    medium: CrashLayer,
    workers: Workers,
    holds_next: AtomicBool,
    let_go: Arc<Signal>,
}

impl Device for Holding {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !self.holds_next.swap(false, Ordering::AcqRel) {
            return self.medium.submit(request);
        }
        let (medium, let_go, count) = (self.medium.clone(), Arc::clone(&self.let_go), self.let_go.count());
        Completion::task(&self.workers, async move {
            let_go.changed_since(count).await;
            medium.submit(request).await
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.medium.subscribe()
    }
}

/// Otherwise the record could land after data that went past the log, or after the writer's next
/// write.
#[test]
fn a_write_goes_past_a_failed_log_only_when_its_record_is_not_on_its_way_any_more() {
    let mut executor = Executor::in_order();
    let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
    let workers = Workers::new();
    let device = Arc::new(Holding {
        medium: log_medium.clone(),
        workers: workers.clone(),
        holds_next: AtomicBool::new(false),
        let_go: Arc::new(Signal::new()),
    });
    executor.spawn(async move { workers.run().await });
    let (below, origin): (SharedDevice, SharedDevice) = (device.clone(), Arc::new(origin_medium.clone()));
    format(&mut executor, &below, &origin);
    let options = open_options(&executor, KIND, None);
    let log = executor.block_on(WriteLog::open(below, origin, options)).expect("nothing fails");
    // Level 2, which would bring the log's data to the LUN, does not run.
    executor.spawn(log.run_requests());

    device.holds_next.store(true, Ordering::Release);
    let small = log.submit(Request::write(0, Buffer::copy_of(&[1; 4096]), false));
    executor.run_until_stalled();
    assert!(!device.holds_next.load(Ordering::Acquire), "its record is on its way");
    log_medium.fail_write_once(log_medium.writes_seen(), ErrorKind::Media);
    let large = log.submit(Request::write(64 << 10, Buffer::copy_of(&[2; LARGE_BYTES]), false));
    executor.run_until_stalled();
    assert!(log.status().failure.is_some());
    executor.block_on(large).result.expect("the origin takes it");
    executor.run_until_stalled();
    assert_eq!(origin_medium.durable_bytes(0, 1), [0], "its record may still land");

    device.let_go.notify();
    executor.block_on(small).result.expect("the origin takes it");
    assert_eq!(origin_medium.durable_bytes(0, 4096), [1; 4096]);
    assert_eq!(read(&mut executor, log.as_ref(), 0, 4096), [1; 4096]);
}
