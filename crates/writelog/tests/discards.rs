//! Discards cost a LUN nothing that it does not offer: it gets none that it does not support, none
//! becomes a write, and zeroes go in bounded requests.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{Completion, Device, ErrorKind, Geometry, Identity, OperationKind, Request, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::{DestageOrder, Durability, WriteLog};

const ORIGIN_BYTES: u64 = 256 << 20;
const LOG_BYTES: u64 = 2 << 20;

/// An origin that notes its requests.
struct Origin {
    medium: CrashLayer,
    asked: Mutex<Vec<(OperationKind, ByteRange)>>,
}

impl Device for Origin {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = request.range().expect("it is on the device");
        self.asked.lock().unwrap().push((request.operation.kind(), range));
        self.medium.submit(request)
    }
}

impl Origin {
    fn asked(&self, kind: OperationKind) -> Vec<ByteRange> {
        self.asked.lock().unwrap().iter().filter(|asked| asked.0 == kind).map(|asked| asked.1).collect()
    }
}

struct World {
    executor: Executor,
    origin: Arc<Origin>,
    log: Arc<WriteLog>,
}

impl World {
    fn new(order: DestageOrder, discard_granularity_bytes: Option<u32>, discard_reads_zeroes: bool) -> Self {
        let mut executor = Executor::in_order();
        let geometry = Geometry { discard_granularity_bytes, discard_reads_zeroes, ..Geometry::plain(ORIGIN_BYTES) };
        let medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let origin = Arc::new(Origin { medium, asked: Mutex::default() });
        let (device, below): (SharedDevice, SharedDevice) = (Arc::new(CrashLayer::new(LOG_BYTES, 1)), origin.clone());
        format(&mut executor, &device, &below);
        let kind = Kind { durability: Durability::Log, order };
        let mut options = open_options(&executor, kind, None);
        options.level2.idle = Duration::from_secs(3600);
        options.level2.age_max = Duration::from_secs(7200);
        let log = try_open(&mut executor, &device, &below, options).expect("nothing fails");
        Self { executor, origin, log }
    }

    fn destage(&mut self) {
        let log = Arc::clone(&self.log);
        self.executor.block_on(async move { log.destage(|_| {}).await }).expect("nothing fails");
    }
}

const ORDERS: [DestageOrder; 3] = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];

#[test]
fn a_lun_that_cannot_discard_is_asked_for_none() {
    let mut world = World::new(DestageOrder::Log, None, false);
    assert_eq!(world.log.geometry().discard_granularity_bytes, None);
    let discarded = world.log.discard(0, 64 << 20);
    let error = world.executor.block_on(discarded).expect_err("the LUN cannot");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    world.destage();
    assert!(world.origin.asked(OperationKind::WriteZeroes).is_empty());
}

#[test]
fn a_discard_reaches_the_lun_as_one_and_writes_nothing() {
    for order in ORDERS {
        let mut world = World::new(order, Some(4096), false);
        let (executor, log) = (&mut world.executor, Arc::clone(&world.log));
        write(executor, log.as_ref(), 4096, &[1; 4096]);
        executor.block_on(log.discard(0, ORIGIN_BYTES)).expect("the LUN can");
        assert_eq!(read(executor, log.as_ref(), 4096, 512), [0; 512]);
        write(executor, log.as_ref(), 8192, &[2; 4096]);
        world.destage();
        assert!(world.origin.asked(OperationKind::WriteZeroes).is_empty(), "{order}");
        let discarded: u64 = world.origin.asked(OperationKind::Discard).iter().map(|range| range.length).sum();
        assert!(discarded >= ORIGIN_BYTES - 4096, "{order}: {discarded} bytes were discarded");
        assert_eq!(read(&mut world.executor, log.as_ref(), 8192, 512), [2; 512], "{order}");
        assert_eq!(world.origin.medium.durable_bytes(8192, 512), [2; 512], "{order}");
    }
}

#[test]
fn zeroes_are_zero_wherever_the_lun_promises_nothing_of_discards() {
    for order in ORDERS {
        let mut world = World::new(order, Some(4096), false);
        let (executor, log) = (&mut world.executor, Arc::clone(&world.log));
        executor
            .block_on(world.origin.medium.write(0, base::buffer::Buffer::copy_of(&[9; 8192]), true))
            .expect("it can");
        executor.block_on(log.write_zeroes(0, ORIGIN_BYTES, false, true)).expect("nothing fails");
        world.destage();
        assert!(world.origin.asked(OperationKind::Discard).is_empty(), "{order}");
        let zeroed = world.origin.asked(OperationKind::WriteZeroes);
        assert_eq!(zeroed.iter().map(|range| range.length).sum::<u64>(), ORIGIN_BYTES, "{order}");
        assert!(zeroed.iter().all(|range| range.length <= 16 << 20), "{order}: a read waits for one of these");
        assert_eq!(world.origin.medium.durable_bytes(0, 8192), [0; 8192], "{order}");
    }
}

/// A destage of everything sends the data of its beginning, not all that comes meanwhile. The LUN
/// takes its time, as long as other writes go on.
#[test]
fn bringing_down_what_there_is_ends_though_zeroes_are_written_all_the_time() {
    const WRITES: u64 = 2000;
    for order in ORDERS {
        let mut executor = Executor::in_order();
        let (clock, workers) = (Arc::new(executor.clock()), Workers::new());
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let medium: SharedDevice = Arc::new(CrashLayer::new(ORIGIN_BYTES, 2));
        let delays = Delays::all(Latency::Fixed(Duration::from_millis(1)));
        let origin: SharedDevice = Arc::new(DelayLayer::new(medium, clock.clone(), &workers, delays, 1));
        let device: SharedDevice = Arc::new(CrashLayer::new(8 << 20, 1));
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, Kind { durability: Durability::Log, order }, None);
        options.level2.idle = Duration::from_secs(3600);
        options.level2.age_max = Duration::from_secs(7200);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, log.as_ref(), 0, &[7; 4096]);
        let written = Arc::new(AtomicU64::new(0));
        let (zeroing, count) = (Arc::clone(&log), Arc::clone(&written));
        executor.spawn(async move {
            for number in 1..=WRITES {
                zeroing.write_zeroes(number * 8192, 4096, false, false).await.expect("nothing fails");
                count.store(number, Ordering::Relaxed);
                clock.sleep(Duration::from_micros(100)).await;
            }
        });
        executor.block_on(async move { log.destage(|_| {}).await }).expect("nothing fails");
        let written = written.load(Ordering::Relaxed);
        assert!(written < WRITES / 2, "{order}: it ended when {written} writes had come");
    }
}
