//! Order `log` where writes are acknowledged from slots: an epoch is a round of level 1, whatever
//! was absorbed in slots.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::memory::MemoryDevice;
use block::{Completion, Device, Geometry, Identity, Operation, Request, SharedDevice};
use common::{Kind, format, open_options, try_open};
use writelog::{DestageOrder, Durability, Level2, PersistentRegion, VolatileRegion, WriteLog};

const BLOCKS: u64 = 40;
const BLOCK_BYTES: u64 = 4096;
const LOG_BYTES: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);
/// Bytes of slots: a round takes several records.
const SLOTS_BYTES: usize = 256 << 10;

/// A log on a slow device, so that anything may happen between two records of a round, over a LUN
/// with a volatile cache.
fn open(seed: u64, durability: Durability) -> (Executor, CrashLayer, Arc<WriteLog>) {
    let mut executor = Executor::new(seed);
    let workers = Workers::new();
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(BLOCKS * BLOCK_BYTES) };
    let origin_medium = CrashLayer::new(BLOCKS * BLOCK_BYTES, 2).with_geometry(geometry);
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(300));
    let log_medium = CrashLayer::new(LOG_BYTES, 1).with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(log_medium), Arc::new(origin_medium.clone()));
    format(&mut executor, &device, &origin);
    let region: Arc<dyn PersistentRegion> = Arc::new(VolatileRegion::new(SLOTS_BYTES));
    let mut options = open_options(&executor, Kind { durability, order: DestageOrder::Log }, Some(region));
    options.volatile_bytes = SLOTS_BYTES;
    // An epoch is sent at once, with one flush.
    options.level2.batch_bytes = LOG_BYTES;
    options.level2.is_interruptible = false;
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    (executor, origin_medium, log)
}

/// Whenever the LUN is flushed it holds exactly what was acknowledged at some moment: of every
/// block the last write until then.
#[test]
fn order_log_with_slots_leaves_the_origin_a_prefix_at_each_flush() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 24, 1) {
        let _printed = test.on_panic(seed, None);
        let durability = [Durability::UnsafeVolatile, Durability::Nvram][seed as usize % 2];
        let (mut executor, origin, log) = open(seed, durability);
        let mut random = Random::new(seed);
        let mut history: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut moments = std::collections::BTreeSet::new();
        for number in 1..=250u8 {
            let block = random.below(BLOCKS);
            let writing = log.write(block * BLOCK_BYTES, Buffer::copy_of(&[number; BLOCK_BYTES as usize]), false);
            history.entry(block).or_default().push(number);
            executor.block_on(writing).expect("nothing fails");
            for _ in 0..random.below(6) {
                executor.run_until_stalled();
                executor.clock().advance(Duration::from_micros(random.below(300)));
            }
            let held: Vec<u8> = (0..BLOCKS).map(|block| origin.durable_bytes(block * BLOCK_BYTES, 1)[0]).collect();
            let newest = held.iter().copied().max().unwrap_or(0);
            moments.insert(newest);
            for (block, &held) in (0..BLOCKS).zip(&held) {
                let writes = history.get(&block).map_or(&[][..], Vec::as_slice);
                let expected = writes.iter().copied().filter(|&number| number <= newest).max().unwrap_or(0);
                assert_eq!(
                    held, expected,
                    "{durability}, seed {seed}: block {block} when the LUN has got write {newest} of {number}"
                );
            }
        }
        assert!(moments.len() > 3, "{durability}, seed {seed}: {moments:?} are no test");
    }
}

/// Counts of requests to log device and LUN.
#[derive(Default)]
struct Asked {
    /// Bytes sent to the LUN since the last read of the log, and their largest count.
    sent_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

/// The log device or the LUN, with these counters.
struct Noting {
    below: MemoryDevice,
    is_log: bool,
    asked: Arc<Asked>,
}

impl Device for Noting {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let asked = &self.asked;
        match &request.operation {
            Operation::Write { .. } if !self.is_log => {
                let length = request.range().map_or(0, |range| range.length);
                let sent = asked.sent_bytes.fetch_add(length, Relaxed) + length;
                asked.most_bytes.fetch_max(sent, Relaxed);
            }
            Operation::Read { .. } if self.is_log => asked.sent_bytes.store(0, Relaxed),
            _ => {}
        }
        self.below.submit(request)
    }
}

/// An epoch longer than a batch is read again, a batch at a time: data sent without a read of the
/// log was in RAM.
#[test]
fn of_a_long_epoch_no_more_is_in_ram_than_a_batch() {
    const EPOCH_BYTES: u64 = 1 << 20;
    const BATCH_BYTES: u64 = 128 << 10;
    let mut executor = Executor::new(1);
    let asked = Arc::<Asked>::default();
    let noting = |is_log| {
        let below = MemoryDevice::new(8 * EPOCH_BYTES, Identity::default());
        Arc::new(Noting { below, is_log, asked: Arc::clone(&asked) })
    };
    let (device, origin): (SharedDevice, SharedDevice) = (noting(true), noting(false));
    format(&mut executor, &device, &origin);
    let kind = Kind { durability: Durability::UnsafeVolatile, order: DestageOrder::Log };
    let mut options = open_options(&executor, kind, None);
    options.volatile_bytes = 2 * EPOCH_BYTES as usize;
    options.record_cache_bytes = 0;
    options.checkpoint_interval_bytes = 4 * EPOCH_BYTES;
    options.level2 = Level2 { batch_bytes: BATCH_BYTES, idle: HOUR, age_max: HOUR, ..options.level2 };
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    // One round of blocks that are not adjacent.
    for block in 0..EPOCH_BYTES / BLOCK_BYTES {
        let write = log.write(2 * block * BLOCK_BYTES, Buffer::copy_of(&[7; BLOCK_BYTES as usize]), false);
        executor.block_on(write).expect("nothing fails");
    }
    executor.block_on(async move { log.destage(|_| {}).await }).expect("nothing fails");
    let most = asked.most_bytes.load(Relaxed);
    assert!((1..=2 * BATCH_BYTES).contains(&most), "{most} bytes were sent of what was in RAM");
}
