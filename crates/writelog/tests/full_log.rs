//! Writers to a log with little room, or none: how long each waits, also compared with the bare
//! LUN.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::{Clock, Instant};
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::disk::{DiskLayer, DiskModel};
use block::layer::submitter::SubmitterLayer;
use block::memory::MemoryDevice;
use block::{Device, Identity, Request, SharedDevice};
use common::{Kind, format, open_options, read, try_open};
use writelog::{DestageOrder, Durability, OpenOptions, WriteLog};

const LOG_BYTES: u64 = 16 << 20;
const ORIGIN_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const ORDERS: [DestageOrder; 3] = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];

/// The response times of a LUN.
#[derive(Clone, Copy, Debug)]
enum Lun {
    /// Any number of requests at once, each with this latency.
    Latency(Duration),
    /// One request after the other.
    Disk(DiskModel),
}

/// A disk without much of a seek: 2,000 random writes a second.
const FAST_DISK: Lun = Lun::Disk(DiskModel {
    seek: Duration::from_micros(450),
    rotation: Duration::ZERO,
    bytes_per_second: 100_000_000,
    flush: Duration::ZERO,
});

impl Lun {
    fn device(self, executor: &mut Executor) -> SharedDevice {
        let workers = Workers::new();
        let (clock, memory) =
            (Arc::new(executor.clock()), Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default())));
        let device: SharedDevice = match self {
            Self::Latency(latency) => {
                Arc::new(DelayLayer::new(memory, clock, &workers, Delays::all(Latency::Fixed(latency)), 1))
            }
            Self::Disk(model) => Arc::new(DiskLayer::new(memory, clock, &workers, model)),
        };
        executor.spawn(async move { workers.run().await });
        device
    }
}

/// A fast log device.
fn log_device(executor: &mut Executor) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Fixed(Duration::from_micros(50));
    let device = CrashLayer::new(LOG_BYTES, 1).with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(device)
}

fn options(executor: &Executor, order: DestageOrder) -> OpenOptions {
    let usual = OpenOptions::new(Arc::new(executor.clock()));
    let mut options = open_options(executor, Kind { durability: Durability::Log, order }, None);
    (options.level2, options.checkpoint_pause) = (usual.level2, usual.checkpoint_pause);
    options
}

/// A log over `lun`, opened full, with the default options of level 2.
fn opened_full(executor: &mut Executor, lun: Lun, order: DestageOrder) -> (Arc<WriteLog>, SharedDevice) {
    opened_full_with(executor, lun, order, |_| {})
}

/// The same with other options.
fn opened_full_with(
    executor: &mut Executor,
    lun: Lun,
    order: DestageOrder,
    change: impl FnOnce(&mut OpenOptions),
) -> (Arc<WriteLog>, SharedDevice) {
    let (device, origin) = (log_device(executor), lun.device(executor));
    format(executor, &device, &origin);
    let mut filling = options(executor, order);
    filling.level2.share_start = 1.0;
    filling.level2.pause_max = Duration::ZERO;
    (filling.level2.idle, filling.level2.age_max) = (Duration::MAX, Duration::MAX);
    let log = try_open(executor, &device, &origin, filling).expect("nothing fails");
    let mut random = Random::new(7);
    while log.status().share_used < 0.95 {
        let (log, block) = (Arc::clone(&log), random.below(ORIGIN_BYTES / BLOCK));
        let written =
            executor.block_on(async move { log.write(block * BLOCK, Buffer::zeroed(BLOCK as usize), false).await });
        written.expect("nothing fails");
    }
    executor.block_on(async move { log.close(true).await }).expect("nothing fails");
    let mut options = options(executor, order);
    change(&mut options);
    let log = try_open(executor, &device, &origin, options).expect("nothing fails");
    (log, origin)
}

/// What one writer measured.
#[derive(Clone, Copy, Default)]
struct Seen {
    writes: u64,
    waited: Duration,
    longest: Duration,
}

impl Seen {
    fn mean(&self) -> Duration {
        self.waited / self.writes.max(1) as u32
    }
}

/// Keeps `depth` writes at random places under way until `end`.
fn write_until(
    executor: &mut Executor,
    device: &SharedDevice,
    depth: u64,
    seed: u64,
    end: Instant,
) -> Arc<Mutex<Seen>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    for task in 0..depth {
        let (device, seen, clock) = (Arc::clone(device), Arc::clone(&seen), executor.clock());
        let mut random = Random::new(seed << 16 | task);
        executor.spawn(async move {
            while clock.now() < end {
                let began_at = clock.now();
                let offset = random.below(ORIGIN_BYTES / BLOCK) * BLOCK;
                device.write(offset, Buffer::zeroed(BLOCK as usize), false).await.expect("nothing fails");
                let took = clock.now().since(began_at);
                let seen = &mut *seen.lock().unwrap();
                seen.writes += 1;
                seen.waited += took;
                seen.longest = seen.longest.max(took);
            }
        });
    }
    seen
}

fn pass_until(executor: &mut Executor, end: Instant) {
    let clock = executor.clock();
    executor.block_on(async move { clock.sleep_until(end).await });
}

/// The write is not acknowledged yet, so the old content is a right answer.
#[test]
fn a_read_of_a_block_whose_write_waits_for_its_turn_is_answered() {
    let mut executor = Executor::in_order();
    let never = Lun::Latency(Duration::from_secs(3600));
    let (device, origin) = (log_device(&mut executor), never.device(&mut executor));
    format(&mut executor, &device, &origin);
    let options = options(&executor, DestageOrder::Log);
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    let submit =
        |block: u64, byte| log.submit(Request::write(block * BLOCK, Buffer::copy_of(&[byte; BLOCK as usize]), false));
    // First half of the log, in a batch that never ends; then the block, which is not in that
    // batch.
    let (half, last) = (LOG_BYTES / BLOCK / 2, ORIGIN_BYTES / BLOCK - 1);
    let before: Vec<_> = (0..half).map(|block| submit(block, 1)).collect();
    executor.block_on(futures_util::future::join_all(before));
    executor.block_on(submit(last, 1)).result.expect("nothing fails");
    let writes = (half..3 * half).chain([last]).map(|block| submit(block, 2));
    let mut writes: Vec<_> = writes.collect();
    let end = executor.clock().now() + Duration::from_secs(1);
    pass_until(&mut executor, end);
    let mut waiting = writes.pop().expect("it is the last");
    assert!(waiting.try_take().is_none(), "there is room for it: this shows nothing");
    let mut reading = log.submit(Request::read(last * BLOCK, Buffer::zeroed(BLOCK as usize)));
    let end = executor.clock().now() + Duration::from_secs(1);
    pass_until(&mut executor, end);
    let bytes = reading.try_take().expect("it waits for the write").into_buffer().expect("nothing fails");
    assert!(waiting.try_take().is_none());
    assert_eq!(bytes[..], [1; BLOCK as usize]);
}

/// They were submitted before, and the close keeps what they write.
#[test]
fn who_waits_for_room_in_a_log_that_is_closed_goes_in_first() {
    let mut executor = Executor::in_order();
    let (log, _) = opened_full(&mut executor, FAST_DISK, DestageOrder::Lba);
    let submit = |block| log.submit(Request::write(block * BLOCK, Buffer::zeroed(BLOCK as usize), false));
    let writes: Vec<_> = (0..2000).map(submit).collect();
    assert!(log.status().writes_slowed > 0, "there is room for all: this shows nothing");
    let closing = Arc::clone(&log);
    let both =
        async move { futures_util::future::join(futures_util::future::join_all(writes), closing.close(true)).await };
    let (written, closed) = executor.block_on(both);
    closed.expect("nothing fails");
    assert!(written.iter().all(|response| response.result.is_ok()));
}

/// Clients go on writing: some change waits for admission all the time.
#[test]
fn what_others_change_is_invalidated_while_more_is_written_than_the_log_takes_in() {
    let mut executor = Executor::in_order();
    let (log, _) = opened_full(&mut executor, FAST_DISK, DestageOrder::Lba);
    let end = executor.clock().now() + Duration::from_secs(20);
    let device: SharedDevice = Arc::clone(&log) as SharedDevice;
    let seen = write_until(&mut executor, &device, 256, 1, end);
    let warm = executor.clock().now() + Duration::from_secs(1);
    pass_until(&mut executor, warm);
    let (invalidating, clock) = (Arc::clone(&log), executor.clock());
    let everything = [ByteRange { offset: 0, length: ORIGIN_BYTES }];
    let invalidated_at = executor.block_on(async move {
        invalidating.invalidate(&everything, true).await.expect("nothing fails");
        clock.now()
    });
    assert!(invalidated_at < end, "it waits until nobody writes any more");
    let writes = seen.lock().unwrap().writes;
    pass_until(&mut executor, end);
    assert!(seen.lock().unwrap().writes > writes, "they go on");
}

/// A writer of one block at a time beside one of 256, in a full log: as two submitters, or as one.
fn beside_a_heavy_one(order: DestageOrder, are_apart: bool) -> (Seen, Seen) {
    let mut executor = Executor::in_order();
    let (log, _) = opened_full(&mut executor, FAST_DISK, order);
    let log: SharedDevice = log;
    let of = |_| -> SharedDevice {
        if are_apart { Arc::new(SubmitterLayer::new(Arc::clone(&log))) } else { Arc::clone(&log) }
    };
    let [heavy, light] = [0, 1].map(of);
    let end = executor.clock().now() + Duration::from_secs(4);
    let heavy = write_until(&mut executor, &heavy, 256, 1, end);
    let light = write_until(&mut executor, &light, 1, 2, end);
    pass_until(&mut executor, end);
    let of = |seen: &Arc<Mutex<Seen>>| *seen.lock().unwrap();
    (of(&heavy), of(&light))
}

#[test]
fn a_writer_of_one_block_at_a_time_does_not_wait_for_another_ones_hundreds() {
    for order in ORDERS {
        let mut means = Vec::new();
        for are_apart in [false, true] {
            let (heavy, light) = beside_a_heavy_one(order, are_apart);
            println!(
                "{order}, {}: heavy {} writes, {:?} each; light {} writes ({:.2} %), {:?} each, longest {:?}",
                if are_apart { "two submitters" } else { "one submitter" },
                heavy.writes,
                heavy.mean(),
                light.writes,
                100.0 * light.writes as f64 / (heavy.writes + light.writes) as f64,
                light.mean(),
                light.longest,
            );
            means.push((light.mean(), heavy.writes));
        }
        let [(alone, heavy_before), (fair, heavy_after)] = means[..] else { unreachable!("two were measured") };
        assert!(fair * 10 < alone, "{order}: {fair:?} instead of {alone:?}");
        assert!(heavy_after * 10 > heavy_before * 4, "{order}: the heavy one keeps its half");
    }
}

fn bare_rate(lun: Lun, depth: u64, time: Duration) -> f64 {
    let mut executor = Executor::in_order();
    let origin = lun.device(&mut executor);
    let end = executor.clock().now() + time;
    let seen = write_until(&mut executor, &origin, depth, 3, end);
    pass_until(&mut executor, end);
    let writes = seen.lock().unwrap().writes;
    writes as f64 / time.as_secs_f64()
}

fn full_rate(lun: Lun, order: DestageOrder, depth: u64, time: Duration) -> (f64, Seen) {
    let mut executor = Executor::in_order();
    let (log, _) = opened_full(&mut executor, lun, order);
    let log: SharedDevice = log;
    let end = executor.clock().now() + time;
    let seen = write_until(&mut executor, &log, depth, 3, end);
    pass_until(&mut executor, end);
    let seen = *seen.lock().unwrap();
    (seen.writes as f64 / time.as_secs_f64(), seen)
}

#[test]
fn a_log_that_is_opened_full_takes_at_least_what_the_bare_lun_takes() {
    // A batch of random blocks on the slowest LUN, and a half more.
    const LONGEST: Duration = Duration::from_secs(3);
    let mut slower = Vec::new();
    for (lun, time_ms) in [
        (Lun::Latency(Duration::from_millis(1)), 200),
        (Lun::Latency(Duration::from_millis(1)), 1_000),
        (FAST_DISK, 4_000),
        (Lun::Disk(DiskModel::rpm_7200()), 120_000),
    ] {
        let time = Duration::from_millis(time_ms);
        for depth in [1, 32] {
            let bare = bare_rate(lun, depth, time);
            for order in ORDERS {
                let (full, seen) = full_rate(lun, order, depth, time);
                println!(
                    "{lun:?}, depth {depth}, {order}: bare {bare:.0}/s, opened full {full:.0}/s, mean {:?}, longest \
                     {:?}",
                    seen.mean(),
                    seen.longest
                );
                if seen.longest > LONGEST {
                    slower.push(format!("{lun:?}, depth {depth}, {order}: a wait of {:?}", seen.longest));
                }
                if full < 0.99 * bare {
                    slower.push(format!("{lun:?}, depth {depth}, {order}: {full:.0} of {bare:.0}"));
                }
            }
        }
    }
    assert!(slower.is_empty(), "{slower:#?}");
}

/// Slots in RAM over a log of `log_bytes_per_second`, of which nothing is moved before a share of `share_start` is in
/// use.
fn with_slots(executor: &mut Executor, log_bytes_per_second: u64, share_start: f64) -> Arc<WriteLog> {
    let workers = Workers::new();
    let (clock, memory) = (Arc::new(executor.clock()), Arc::new(MemoryDevice::new(LOG_BYTES, Identity::default())));
    let transfer = DiskModel {
        seek: Duration::ZERO,
        rotation: Duration::ZERO,
        bytes_per_second: log_bytes_per_second,
        flush: Duration::ZERO,
    };
    let device: SharedDevice = Arc::new(DiskLayer::new(memory, clock, &workers, transfer));
    executor.spawn(async move { workers.run().await });
    let origin = Lun::Latency(Duration::from_micros(10)).device(executor);
    format(executor, &device, &origin);
    let mut options = options(executor, DestageOrder::Lba);
    (options.durability, options.volatile_bytes) = (Durability::UnsafeVolatile, SLOTS_BYTES);
    // Level 2 reads nothing from the device.
    options.record_cache_bytes = LOG_BYTES as usize;
    options.level1.share_start = share_start;
    let hour = Duration::from_secs(3600);
    (options.level2.idle, options.level2.age_max) = (hour, hour);
    try_open(executor, &device, &origin, options).expect("nothing fails")
}

const SLOTS_BYTES: usize = 4 << 20;
/// Bytes a second of the log device under the slots.
const SLOW_LOG: u64 = 20_000_000;

/// Writes `count` blocks from `first` on, one every `interval`, and returns how long each waited.
fn write_each(
    executor: &mut Executor,
    log: &Arc<WriteLog>,
    interval: Duration,
    blocks: impl Iterator<Item = u64> + Send + 'static,
) -> Vec<Duration> {
    let (log, clock) = (Arc::clone(log), executor.clock());
    executor.block_on(async move {
        let (mut waits, mut next) = (Vec::new(), clock.now());
        for block in blocks {
            clock.sleep_until(next).await;
            next = next + interval;
            let began_at = clock.now();
            log.write(block * BLOCK, Buffer::zeroed(BLOCK as usize), false).await.expect("nothing fails");
            waits.push(clock.now().since(began_at));
        }
        waits
    })
}

/// Slots and log may be however full: they do not get fuller.
#[test]
fn nobody_waits_for_slots_that_empty_faster_than_they_fill() {
    let mut executor = Executor::in_order();
    // Nearly all slots are in use when a round begins.
    let log = with_slots(&mut executor, SLOW_LOG, 0.95);
    // A first round has shown how fast they empty.
    write_each(&mut executor, &log, Duration::ZERO, 0..500);
    executor.block_on(log.flush()).expect("nothing fails");
    let interval = Duration::from_secs_f64(2.0 * BLOCK as f64 / SLOW_LOG as f64);
    let waits = write_each(&mut executor, &log, interval, 0..4000);
    let longest = waits.iter().max().expect("some were made");
    assert!(log.status().rounds > 2, "{} rounds show nothing", log.status().rounds);
    assert!(*longest < Duration::from_millis(1), "{longest:?}");

    // And over a log that is nearly full.
    let mut executor = Executor::in_order();
    let (log, _) = opened_full_with(&mut executor, FAST_DISK, DestageOrder::Lba, |options| {
        (options.durability, options.volatile_bytes) = (Durability::UnsafeVolatile, SLOTS_BYTES);
    });
    let waits = write_each(&mut executor, &log, Duration::from_millis(5), 0..10);
    assert!(log.status().share_used > 0.9, "the log is not full: this shows nothing");
    assert!(waits.iter().all(Duration::is_zero), "{waits:?}");
}

/// The slots never fill up, and as much is admitted as the log takes.
#[test]
fn a_flood_to_slots_is_slowed_evenly_to_the_rate_at_which_they_empty() {
    let mut executor = Executor::in_order();
    let log = with_slots(&mut executor, SLOW_LOG, 0.5);
    let device: SharedDevice = Arc::clone(&log) as SharedDevice;
    let end = executor.clock().now() + Duration::from_secs(2);
    let seen = write_until(&mut executor, &device, 64, 1, end);
    let (mut rates, mut before, window) = (Vec::new(), 0, Duration::from_millis(20));
    while executor.clock().now() < end {
        let next = executor.clock().now() + window;
        pass_until(&mut executor, next);
        let (writes, status) = (seen.lock().unwrap().writes, log.status());
        assert!(status.slots_used < status.slots, "they are all in use: {rates:?}");
        rates.push((writes - before) as f64 * BLOCK as f64 / window.as_secs_f64());
        before = writes;
    }
    let settled = &rates[rates.len() / 2..];
    let mean = settled.iter().sum::<f64>() / settled.len() as f64;
    // A record has its table before the data.
    assert!((0.8..1.01).contains(&(mean / SLOW_LOG as f64)), "{mean}: {rates:?}");
    let [least, most] = [f64::min, f64::max].map(|either| settled.iter().copied().reduce(either).expect("some passed"));
    assert!(least > 0.7 * mean && most < 1.3 * mean, "{least} to {most}: {rates:?}");
}

/// Each write takes the slots that it frees, however few are left.
#[test]
fn what_is_written_again_in_slots_is_not_slowed_down() {
    let mut executor = Executor::in_order();
    let log = with_slots(&mut executor, SLOW_LOG, 0.95);
    let blocks_of_slots = log.status().slots * 1024 / BLOCK;
    // A first round has shown how fast they empty.
    write_each(&mut executor, &log, Duration::ZERO, 0..blocks_of_slots / 2);
    executor.block_on(log.flush()).expect("nothing fails");
    let hot = blocks_of_slots * 9 / 10;
    write_each(&mut executor, &log, Duration::from_millis(1), 0..hot);
    let (rounds, began_at) = (log.status().rounds, executor.clock().now());
    write_each(&mut executor, &log, Duration::ZERO, (0..20).flat_map(move |_| 0..hot));
    assert_eq!(log.status().rounds, rounds, "they are all in slots");
    assert_eq!(executor.clock().now().since(began_at), Duration::ZERO);
}

/// Each of two submitters to a full log reads what it wrote.
#[test]
fn what_two_submitters_write_to_a_full_log_is_there() {
    let mut executor = Executor::new(5);
    let (log, _) = opened_full(&mut executor, FAST_DISK, DestageOrder::Log);
    let shared: SharedDevice = log.clone();
    let devices = [0, 1].map(|_| SubmitterLayer::new(Arc::clone(&shared)));
    let writes = (0..400u64).map(|index| {
        let bytes = [1 + (index / 2 % 200) as u8; BLOCK as usize];
        devices[(index % 2) as usize].write((index % 2 * 1000 + index / 2 % 40) * BLOCK, Buffer::copy_of(&bytes), false)
    });
    let written = futures_util::future::try_join_all(writes.collect::<Vec<_>>());
    executor.block_on(written).expect("nothing fails");
    for block in 0..40 {
        for base in [0, 1000] {
            let bytes = read(&mut executor, log.as_ref(), (base + block) * BLOCK, BLOCK);
            assert_eq!(bytes, [161 + block as u8; BLOCK as usize], "block {}", base + block);
        }
    }
    executor.block_on(async move { log.close(false).await }).expect("nothing fails");
}
