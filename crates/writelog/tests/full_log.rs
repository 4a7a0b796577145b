//! What writers meet whose log has little room, or none: who waits for how long, for whom, and beside the bare LUN.

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

/// What a LUN is like.
#[derive(Clone, Copy, Debug)]
enum Lun {
    /// Any number of requests at once, each of this time.
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

/// A log over `lun`, opened full, with level 2 as usual.
fn opened_full(executor: &mut Executor, lun: Lun, order: DestageOrder) -> (Arc<WriteLog>, SharedDevice) {
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
    let options = options(executor, order);
    let log = try_open(executor, &device, &origin, options).expect("nothing fails");
    (log, origin)
}

/// What one writer saw.
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

/// `depth` writes at a time at random places until `end`.
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

/// Nobody was told of the write, so what was there before is an answer.
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
    // Half of the log first, of which a batch is on its way for ever; then the block, which is not in it.
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

/// Applications go on writing: somebody waits for his turn all the time.
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

/// A writer of one block at a time beside one of 256, in a full log: by submitters, and as one.
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
    // A batch of random blocks on the slowest of them, and a half more.
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
                if full < 0.95 * bare {
                    slower.push(format!("{lun:?}, depth {depth}, {order}: {full:.0} of {bare:.0}"));
                }
            }
        }
    }
    assert!(slower.is_empty(), "{slower:#?}");
}

/// Whoever writes to a full log reads what was written, in whoever's turn.
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
