//! Read-your-writes against a slow, obvious model: all operations, every durability and order, many requests in flight
//! with random delays, destaging, close and reopen, and an origin whose size is no multiple of a page.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{Completion, Device, EventReceiver, Geometry, Identity, Operation, Request, SharedDevice};
use common::{Kind, Model, Workload, drive, format, open_options, read, try_open};
use writelog::{DestageOrder, Durability, VolatileRegion};

const ORIGIN_BYTES: u64 = 96 * 4096 + 1536;

fn devices(executor: &mut Executor, seed: u64) -> (SharedDevice, SharedDevice) {
    let workers = Workers::new();
    let latency = |most| Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let clock = Arc::new(executor.clock());
    let log = CrashLayer::new(600 << 10, seed).with_latency(clock.clone(), latency(100), &workers);
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let origin =
        CrashLayer::new(ORIGIN_BYTES, seed + 1).with_geometry(geometry).with_latency(clock, latency(1000), &workers);
    executor.spawn(async move { workers.run().await });
    (Arc::new(log), Arc::new(origin))
}

fn run(seed: u64, kind: Kind) {
    let mut executor = Executor::new(seed);
    let (log_device, origin) = devices(&mut executor, seed);
    format(&mut executor, &log_device, &origin);
    let nvram = Arc::new(VolatileRegion::new(40 << 10));
    let model = Model::new(ORIGIN_BYTES);
    let mut has_absorbed_or_superseded = false;
    for round in 0..3 {
        let options = open_options(&executor, kind, Some(nvram.clone()));
        let log = try_open(&mut executor, &log_device, &origin, options).expect("nothing fails");
        assert!(log.status().recovery.was_closed);
        let workload = Workload {
            seed: seed * 10 + round,
            requests: 300,
            depth: 1 + (seed as usize * 7) % 16,
            sectors_max: if seed.is_multiple_of(3) { 150 } else { 12 },
            has_control: seed % 2 == 1,
            has_faults: false,
            has_zeroes: true,
        };
        let clock = Arc::new(executor.clock());
        executor.block_on(drive(Arc::clone(&log), Arc::clone(&model), clock, workload));
        let bytes = read(&mut executor, &log, 0, ORIGIN_BYTES);
        model.lock().unwrap().check_exact(&bytes, "all of it");
        let status = log.status();
        assert!(status.failure.is_none());
        has_absorbed_or_superseded |= status.absorbed_bytes + status.superseded_bytes > 0;
        let keep_dirty = round == 0;
        let closing = Arc::clone(&log);
        executor.block_on(async move { closing.close(keep_dirty).await.expect("nothing fails") });
        if !keep_dirty {
            let bytes = read(&mut executor, &origin, 0, ORIGIN_BYTES);
            model.lock().unwrap().check_exact(&bytes, "the origin after destaging");
            assert_eq!(log.status().dirty_bytes, 0);
        }
    }
    assert!(has_absorbed_or_superseded);
}

fn all_orders(durability: Durability) {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        let _printed = test.on_panic(seed, None);
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            run(seed, Kind { durability, order });
        }
    }
}

#[test]
fn a_log_returns_what_was_written() {
    all_orders(Durability::Log);
}

#[test]
fn nvram_returns_what_was_written() {
    all_orders(Durability::Nvram);
}

#[test]
fn volatile_ram_returns_what_was_written() {
    all_orders(Durability::UnsafeVolatile);
}

/// The destage order of a log changes from run to run, while it has dirty data.
#[test]
fn the_order_may_change_from_open_to_open() {
    let mut executor = Executor::new(5);
    let (log_device, origin) = devices(&mut executor, 5);
    format(&mut executor, &log_device, &origin);
    let model = Model::new(ORIGIN_BYTES);
    let orders = [DestageOrder::Lba, DestageOrder::Log, DestageOrder::LastWriteFirst, DestageOrder::Log];
    for (seed, order) in (0..).zip(orders) {
        let options = open_options(&executor, Kind { durability: Durability::Log, order }, None);
        let log = try_open(&mut executor, &log_device, &origin, options).expect("nothing fails");
        let workload = Workload {
            seed,
            requests: 60,
            depth: 4,
            sectors_max: 12,
            has_control: false,
            has_faults: false,
            has_zeroes: true,
        };
        let clock = Arc::new(executor.clock());
        executor.block_on(drive(Arc::clone(&log), Arc::clone(&model), clock, workload));
        let closing = Arc::clone(&log);
        executor.block_on(async move { closing.close(true).await.expect("nothing fails") });
    }
    let options = open_options(&executor, Kind { durability: Durability::Log, order: DestageOrder::Log }, None);
    let log = try_open(&mut executor, &log_device, &origin, options).expect("nothing fails");
    let bytes = read(&mut executor, &log, 0, ORIGIN_BYTES);
    model.lock().unwrap().check_exact(&bytes, "all of it");
}

/// A read of the LUN takes time. A write to the same block does not wait for it, and the read
/// returns the content of its beginning, even when the write is to be destaged meanwhile.
#[test]
fn a_read_that_waits_for_the_lun_holds_up_no_write_and_sees_none() {
    let mut executor = Executor::new(6);
    let (log_device, fast) = devices(&mut executor, 6);
    let workers = Workers::new();
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let delays = Delays { read: Latency::Fixed(Duration::from_millis(50)), ..Delays::all(Latency::None) };
    let slow: SharedDevice = Arc::new(DelayLayer::new(fast, clock.clone(), &workers, delays, 1));
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &log_device, &slow);
    let options = open_options(&executor, Kind { durability: Durability::Log, order: DestageOrder::Lba }, None);
    let log = try_open(&mut executor, &log_device, &slow, options).expect("nothing fails");
    executor.block_on(async move {
        let began_at = clock.now();
        let reading = log.read(4096, Buffer::zeroed(4096));
        log.write(4096, Buffer::copy_of(&[7; 4096]), false).await.expect("nothing fails");
        assert!(clock.now() - began_at < Duration::from_millis(5), "the write waited for the read");
        let destaging = async {
            log.destage(|_| {}).await.expect("nothing fails");
            assert!(clock.now() - began_at >= Duration::from_millis(50), "the origin changed under the read");
        };
        let (read, ()) = futures_util::future::join(reading, destaging).await;
        assert_eq!(read.expect("nothing fails")[..], [0; 4096], "what was there when it began");
        assert_eq!(log.read(4096, Buffer::zeroed(4096)).await.expect("nothing fails")[..], [7; 4096]);
    });
}

/// A log device that can delay its next read for a minute before it reads.
struct LateRead {
    inner: SharedDevice,
    is_next_late: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    workers: Workers,
}

impl Device for LateRead {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !matches!(request.operation, Operation::Read { .. }) || !self.is_next_late.swap(false, Ordering::Relaxed) {
            return self.inner.submit(request);
        }
        let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.clock));
        Completion::task(&self.workers, async move {
            clock.sleep(Duration::from_secs(60)).await;
            inner.submit(request).await
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}

#[test]
fn a_segment_that_somebody_reads_from_is_not_used_again_meanwhile() {
    const LARGE_BYTES: u64 = 28 << 10;
    let mut executor = Executor::new(7);
    let (workers, is_next_late) = (Workers::new(), Arc::new(AtomicBool::new(false)));
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let (inner, origin): (SharedDevice, SharedDevice) =
        (Arc::new(CrashLayer::new(2 << 20, 7)), Arc::new(CrashLayer::new(ORIGIN_BYTES, 8)));
    let late = LateRead { inner, is_next_late: is_next_late.clone(), clock: clock.clone(), workers: workers.clone() };
    let log_device: SharedDevice = Arc::new(late);
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &log_device, &origin);
    let options = open_options(&executor, Kind { durability: Durability::Log, order: DestageOrder::Lba }, None);
    let log = try_open(&mut executor, &log_device, &origin, options).expect("nothing fails");
    executor.block_on(async move {
        let writing = Arc::clone(&log);
        // Several times as much as the log has, and as the records in RAM.
        let write_others = async move |rounds: u64| {
            for round in 0..rounds {
                for index in 1..10 {
                    let bytes = Buffer::copy_of(&[round as u8 + 100; LARGE_BYTES as usize]);
                    writing.write(index * LARGE_BYTES, bytes, false).await.expect("nothing fails");
                }
                writing.destage(|_| {}).await.expect("nothing fails");
            }
        };
        log.write(0, Buffer::copy_of(&[7; 4096]), false).await.expect("nothing fails");
        write_others(1).await;
        is_next_late.store(true, Ordering::Relaxed);
        let began_at = clock.now();
        let reading = log.read(0, Buffer::zeroed(4096));
        let others = async {
            write_others(40).await;
            assert!(clock.now() - began_at < Duration::from_secs(60), "the read is over by then");
        };
        let (read, ()) = futures_util::future::join(reading, others).await;
        assert!(!is_next_late.load(Ordering::Relaxed), "it was read from RAM, or from the origin");
        assert_eq!(read.expect("nothing fails")[..], [7; 4096]);
    });
}
