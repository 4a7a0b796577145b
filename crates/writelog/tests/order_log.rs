//! In destage order `log` no older write of a sector ever replaces a newer one on the LUN, and no
//! read returns one, whatever interrupts a batch, makes the next one smaller or fails.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{ErrorKind, Geometry, SharedDevice};
use common::{Kind, open_options, read, try_open, write};
use futures_util::stream::{self, StreamExt};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, WriteLog};

const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };

fn format(executor: &mut Executor, log: &SharedDevice, origin: &SharedDevice, options: FormatOptions) {
    let (log, origin) = (Arc::clone(log), Arc::clone(origin));
    executor.block_on(async move { WriteLog::format(&log, &origin, options).await.expect("nothing fails") });
}

fn pass(executor: &mut Executor, time: Duration) {
    let clock = executor.clock();
    let end = clock.now() + time;
    executor.block_on(async move { clock.sleep_until(end).await });
    executor.run_until_stalled();
}

fn only_when_asked(options: &mut OpenOptions) {
    let hour = Duration::from_secs(3600);
    options.level2 = Level2 { idle: hour, age_max: 2 * hour, share_start: 0.95, share_slow: 0.97, ..options.level2 };
}

fn cached_origin(size_bytes: u64) -> CrashLayer {
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(size_bytes) };
    CrashLayer::new(size_bytes, 2).with_geometry(geometry)
}

#[test]
fn a_log_that_failed_and_was_drained_brings_nothing_old_back() {
    let mut executor = Executor::in_order();
    let log_medium = CrashLayer::new(512 << 10, 1);
    let origin_medium = cached_origin(256 << 10);
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
    format(&mut executor, &device, &origin, FormatOptions::paper());
    let mut options = open_options(&executor, KIND, None);
    only_when_asked(&mut options);
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    write(&mut executor, log.as_ref(), 0, &[1; 4096]);
    log_medium.fail_write_once(log_medium.writes_seen(), ErrorKind::Media);
    write(&mut executor, log.as_ref(), 4096, &[2; 4096]);
    write(&mut executor, log.as_ref(), 0, &[3; 4096]);
    executor.block_on(async move { log.close(false).await }).expect("all of it is on the LUN");
    assert_eq!(origin_medium.durable_bytes(0, 1), [3]);
    let options = open_options(&executor, KIND, None);
    let log = try_open(&mut executor, &device, &origin, options).expect("it begins anew");
    pass(&mut executor, Duration::from_secs(2));
    assert_eq!(read(&mut executor, log.as_ref(), 0, 4096), [3; 4096]);
    assert_eq!(origin_medium.durable_bytes(0, 1), [3]);
}

/// A LUN that interrupts an idle batch once it has sent the newest write of a block, and fills the
/// log during its flush.
struct Shrinking {
    executor: Executor,
    log_medium: CrashLayer,
    origin_medium: CrashLayer,
    log: Arc<WriteLog>,
}

impl Shrinking {
    fn new(is_zero: bool) -> Self {
        let mut executor = Executor::in_order();
        let workers = Workers::new();
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let (log_medium, origin_medium) = (CrashLayer::new(24 << 20, 1), cached_origin(256 << 20));
        let slow = |medium: &CrashLayer, times: [u64; 4]| -> SharedDevice {
            let [read, write, flush, other] = times.map(|us| Latency::Fixed(Duration::from_micros(us)));
            let delays = Delays { read, write, flush, other };
            Arc::new(DelayLayer::new(Arc::new(medium.clone()), clock.clone(), &workers, delays, 1))
        };
        let device = slow(&log_medium, [20, 20, 20, 20]);
        let origin = slow(&origin_medium, [50, 100, 3_000_000, 100]);
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        format(&mut executor, &device, &origin, FormatOptions::default());
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        options.level2.idle = Duration::from_millis(100);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, log.as_ref(), 0, &[1; 4096]);
        (1..=300).for_each(|block| write(&mut executor, log.as_ref(), block * 8192, &[9; 4096]));
        if is_zero {
            let zeroes = log.write_zeroes(0, 4096, false, false);
            executor.block_on(zeroes).expect("nothing fails");
        } else {
            write(&mut executor, log.as_ref(), 0, &[2; 4096]);
        }
        pass(&mut executor, Duration::from_millis(101));
        let burst = Arc::clone(&log);
        executor.spawn(async move {
            let write = |index: u64| burst.write((64 << 20) + index * 8192, Buffer::copy_of(&[7; 4096]), false);
            stream::iter(0..12_000)
                .map(write)
                .buffer_unordered(64)
                .for_each(|written| async { written.map(drop).expect("nothing fails") })
                .await;
        });
        Self { executor, log_medium, origin_medium, log }
    }
}

#[test]
fn an_epoch_that_was_begun_ends_where_it_was_to_end_however_full_the_log_becomes() {
    for is_zero in [true, false] {
        let mut world = Shrinking::new(is_zero);
        let newest = if is_zero { 0 } else { 2 };
        for step in 0..700 {
            pass(&mut world.executor, Duration::from_millis(20));
            let bytes = read(&mut world.executor, world.log.as_ref(), 0, 4096);
            assert_eq!(bytes[0], newest, "zeroes {is_zero}: read at step {step}");
        }
        assert!(world.log.status().destaged_bytes > 1 << 20, "the burst filled the log and was sent");
    }
}

#[test]
fn after_a_power_loss_between_two_batches_of_an_epoch_reads_return_the_newest() {
    for (is_zero, crash_at) in
        [true, false].into_iter().flat_map(|is_zero| [160, 305, 330, 460].map(|at| (is_zero, at)))
    {
        let mut world = Shrinking::new(is_zero);
        pass(&mut world.executor, Duration::from_millis(20) * crash_at);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(world.log_medium.after_power_loss()), Arc::new(world.origin_medium.after_power_loss()));
        let mut executor = Executor::in_order();
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        only_when_asked(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        let bytes = read(&mut executor, log.as_ref(), 0, 4096);
        assert_eq!(bytes[0], if is_zero { 0 } else { 2 }, "zeroes {is_zero}: power lost at step {crash_at}");
    }
}

/// A superseded write is sent all the same, unless both writes are in one epoch: the counter shows
/// what was saved.
#[test]
fn what_is_written_again_is_saved_only_within_an_epoch() {
    let mut executor = Executor::in_order();
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(CrashLayer::new(1 << 20, 1)), Arc::new(cached_origin(1 << 20)));
    format(&mut executor, &device, &origin, FormatOptions::paper());
    let mut options = open_options(&executor, KIND, None);
    only_when_asked(&mut options);
    options.level2.seek_bytes = 0;
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    let destage = |executor: &mut Executor| {
        let destaging = Arc::clone(&log);
        executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
        (log.status().superseded_bytes, log.status().destaged_bytes)
    };
    write(&mut executor, log.as_ref(), 0, &[1; 4096]);
    write(&mut executor, log.as_ref(), 0, &[2; 4096]);
    assert_eq!(log.status().superseded_bytes, 0, "nobody knows yet what is sent");
    assert_eq!(destage(&mut executor), (4096, 4096));
    // Two epochs of a batch each: the block is sent with both.
    write(&mut executor, log.as_ref(), 0, &[3; 4096]);
    (1..40).for_each(|block| write(&mut executor, log.as_ref(), block * 4096, &[4; 4096]));
    write(&mut executor, log.as_ref(), 0, &[5; 4096]);
    let (superseded, destaged) = destage(&mut executor);
    assert_eq!(superseded + destaged, 4096 * (2 + 41));
    assert_eq!(superseded, 4096, "the second time it was sent twice");
}
