//! When the two levels of destage begin, stop and make requests wait, and what the log holds
//! afterwards.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{Device, Request, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, OpenOptions, WriteLog};

const ORIGIN_BYTES: u64 = 256 * 4096;
const LOG_BYTES: u64 = 2 << 20;
/// Time of each request of the log device, and of each write of the origin.
const DEVICE_TIME: Duration = Duration::from_micros(100);

struct Bench {
    executor: Executor,
    origin_medium: CrashLayer,
    log: Arc<WriteLog>,
}

impl Bench {
    /// Neither level begins by itself unless `change` sets that.
    fn new(durability: Durability, change: impl FnOnce(&mut OpenOptions)) -> Self {
        let mut executor = Executor::in_order();
        let workers = Workers::new();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let slow = |medium: &CrashLayer, executor: &Executor| -> SharedDevice {
            let latency = Latency::Fixed(DEVICE_TIME);
            Arc::new(medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers))
        };
        let (device, origin) = (slow(&log_medium, &executor), slow(&origin_medium, &executor));
        executor.spawn(async move { workers.run().await });
        format(&mut executor, &device, &origin);
        let kind = Kind { durability, order: DestageOrder::LastWriteFirst };
        let mut options = open_options(&executor, kind, None);
        let hour = Duration::from_secs(3600);
        options.record_cache_bytes = 0;
        options.volatile_bytes = 128 << 10;
        options.level1.share_start = 0.5;
        options.level2 = Level2 { idle: hour, age_max: 2 * hour, share_start: 0.9, ..options.level2 };
        options.level2.writes_in_flight = 1;
        change(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        Self { executor, origin_medium, log }
    }

    fn write_blocks(&mut self, blocks: std::ops::Range<u64>) {
        // Not adjacent, so that each is a write of its own to the origin.
        blocks.for_each(|block| write(&mut self.executor, self.log.as_ref(), block * 8192, &[block as u8 + 1; 4096]));
    }

    fn pass(&mut self, time: Duration) {
        self.executor.run_until_stalled();
        let clock = self.executor.clock();
        let end = clock.now() + time;
        self.executor.block_on(async move { clock.sleep_until(end).await });
        self.executor.run_until_stalled();
    }

    fn slots_used(&self) -> u64 {
        self.log.status().slots_used
    }
}

#[test]
fn a_round_begins_at_its_share_and_moves_the_older_half() {
    let mut bench = Bench::new(Durability::UnsafeVolatile, |_| {});
    let slots = bench.log.status().slots;
    let blocks_to_half = slots.div_ceil(2).div_ceil(4);
    bench.write_blocks(0..blocks_to_half - 1);
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.slots_used(), (blocks_to_half - 1) * 4, "not yet");
    bench.write_blocks(blocks_to_half - 1..blocks_to_half);
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.slots_used(), blocks_to_half * 2);
}

#[test]
fn an_eager_round_begins_when_the_log_device_is_idle_and_a_record_is_full() {
    let mut bench = Bench::new(Durability::UnsafeVolatile, |options| options.level1.is_eager = true);
    bench.write_blocks(0..13);
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.slots_used(), 52, "56 slots of 1 KiB are a record");
    bench.write_blocks(13..14);
    bench.pass(Duration::from_millis(10));
    assert!(bench.slots_used() <= 28, "{}", bench.slots_used());
}

#[test]
fn what_is_old_leaves_the_slots_and_then_the_log_under_load_that_never_idles() {
    let mut bench = Bench::new(Durability::UnsafeVolatile, |options| {
        options.level2.age_max = Duration::from_millis(20);
        options.level2.idle = Duration::from_millis(3);
    });
    bench.write_blocks(0..1);
    // Other requests never leave it idle.
    for _ in 0..14 {
        bench.pass(Duration::from_millis(1));
        bench.write_blocks(100..101);
    }
    assert!(bench.log.status().records > 0, "it is in the log");
    for _ in 0..24 {
        bench.pass(Duration::from_millis(1));
        bench.write_blocks(100..101);
    }
    assert_eq!(bench.origin_medium.durable_bytes(0, 1), [1], "and then at the origin");
    assert!(bench.log.status().dirty_age_ns < 35_000_000, "{}", bench.log.status().dirty_age_ns);
}

#[test]
fn one_write_to_slots_that_were_empty_leaves_them_when_nobody_writes_any_more() {
    let mut bench = Bench::new(Durability::UnsafeVolatile, |options| options.level2.idle = Duration::from_millis(2));
    bench.pass(Duration::from_millis(10));
    bench.write_blocks(0..1);
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.slots_used(), 0);
}

/// Each write supersedes the one before it, whose slots come free: a write that waits for a slot
/// gets one, though nothing was moved to the log.
#[test]
fn who_waits_for_a_slot_goes_in_when_another_write_has_superseded_some() {
    let mut bench = Bench::new(Durability::UnsafeVolatile, |options| options.level1.share_start = 1.0);
    const BYTES: u64 = 8192;
    // This goes straight to the log, and all later writes are to the same blocks.
    let zeroes = bench.log.submit(Request::write_zeroes(0, BYTES, false, false));
    let write = |byte| Request::write(0, Buffer::copy_of(&[byte; BYTES as usize]), false);
    let mut writes: Vec<_> = (1..100).map(|byte| bench.log.submit(write(byte))).collect();
    assert!(bench.log.status().writes_slowed > 0, "none waits for a slot: this shows nothing");
    bench.pass(Duration::from_millis(100));
    assert!(bench.executor.block_on(zeroes).result.is_ok());
    assert!(writes.iter_mut().all(|write| write.try_take().is_some()), "some wait for ever");
}

/// The paper's profile: its peaks. Without it a write that comes during a round finds a free slot.
#[test]
fn an_exclusive_round_makes_requests_wait() {
    for is_exclusive in [false, true] {
        let mut bench = Bench::new(Durability::UnsafeVolatile, |options| options.level1.is_exclusive = is_exclusive);
        let blocks_to_half = bench.log.status().slots.div_ceil(2).div_ceil(4);
        bench.write_blocks(0..blocks_to_half);
        bench.executor.run_until_stalled();
        assert_eq!(bench.slots_used(), blocks_to_half * 4, "the round is under way");
        let mut late = bench.log.submit(Request::write(ORIGIN_BYTES - 4096, Buffer::zeroed(4096), false));
        bench.executor.run_until_stalled();
        assert_eq!(late.try_take().is_none(), is_exclusive);
        bench.pass(Duration::from_millis(10));
        assert!(is_exclusive == late.try_take().is_some(), "it is answered once the RAM is empty");
    }
}

#[test]
fn an_idle_batch_stops_for_a_request_and_goes_on_later() {
    let orders = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];
    for (order, is_interruptible) in orders.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let mut bench = Bench::new(Durability::Log, |options| {
            options.order = order;
            options.level2.idle = Duration::from_millis(2);
            options.level2.is_interruptible = is_interruptible;
            options.level2.batch_bytes = LOG_BYTES;
        });
        bench.write_blocks(0..60);
        // The batch has begun: segments are read, and some of 60 writes of 100 us are done.
        bench.pass(Duration::from_millis(2) + 12 * DEVICE_TIME);
        write(&mut bench.executor, bench.log.as_ref(), ORIGIN_BYTES - 4096, &[7; 4096]);
        bench.pass(Duration::from_micros(1500));
        let sent = bench.log.status().destaged_bytes;
        assert!(sent > 0, "{order}: it had begun");
        assert_eq!(sent < 18 * 4096, is_interruptible, "{order}: {sent}");
        bench.pass(Duration::from_millis(50));
        assert_eq!(bench.log.status().dirty_bytes, 0, "{order}");
        // What was not sent when it stopped is still dirty.
        for block in 0..60 {
            let there = bench.origin_medium.durable_bytes(block * 8192, 4096);
            assert_eq!(there, [block as u8 + 1; 4096], "{order}, block {block}");
        }
        assert_eq!(bench.origin_medium.durable_bytes(ORIGIN_BYTES - 4096, 4096), [7; 4096], "{order}");
    }
}

#[test]
fn destaged_data_is_read_from_the_log_until_its_segment_is_used_again() {
    let mut bench = Bench::new(Durability::Log, |_| {});
    bench.write_blocks(0..20);
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move { log.destage(|_| {}).await }).unwrap();
    assert_eq!(bench.log.status().dirty_bytes, 0);
    bench.origin_medium.fail_reads_of(ByteRange { offset: 0, length: ORIGIN_BYTES });
    for block in 0..20 {
        let bytes = read(&mut bench.executor, bench.log.as_ref(), block * 8192, 4096);
        assert_eq!(bytes, [block as u8 + 1; 4096]);
    }
    assert_eq!((bench.log.status().reads.log, bench.log.status().reads.origin), (20, 0));
}

#[test]
fn the_counters_say_what_was_merged_superseded_and_how_large_it_was() {
    let mut bench = Bench::new(Durability::Log, |_| {});
    // 8 adjacent pages, the last of them twice.
    (0..8).for_each(|page| write(&mut bench.executor, bench.log.as_ref(), page * 4096, &[1; 4096]));
    write(&mut bench.executor, bench.log.as_ref(), 7 * 4096, &[2; 4096]);
    let before = bench.log.status();
    assert_eq!((before.written_bytes, before.superseded_bytes, before.dirty_bytes), (9 * 4096, 4096, 8 * 4096));
    assert!(before.recovery_estimate_ns > 0 && before.tail_bytes > 9 * 4096);
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move { log.destage(|_| {}).await }).unwrap();
    let status = bench.log.status();
    assert_eq!((status.destaged_bytes, status.dirty_bytes), (8 * 4096, 0));
    assert_eq!(status.merged_pieces, 7);
    let class_of = |bytes: u64| bytes.ilog2() as usize - 9;
    assert_eq!((status.written_sizes[class_of(4096)], status.destaged_sizes[class_of(32768)]), (9, 1));
}

/// Under a load without pauses data leaves in time, in every durability.
#[test]
fn nothing_gets_older_than_the_age_that_was_asked_for() {
    for durability in [Durability::Log, Durability::UnsafeVolatile] {
        let age_max = Duration::from_secs(1);
        let mut bench = Bench::new(durability, |options| {
            options.level1.share_start = 0.9;
            options.level2.age_max = age_max;
            options.level2.share_slow = 0.95;
        });
        let (mut oldest, clock) = (0, bench.executor.clock());
        for block in 0..1000 {
            let offset = (block * 37 % 200) * 4096;
            write(&mut bench.executor, bench.log.as_ref(), offset, &[block as u8; 4096]);
            let pause = clock.sleep(Duration::from_millis(10));
            bench.executor.block_on(pause);
            oldest = oldest.max(bench.log.status().dirty_age_ns);
        }
        assert!(u128::from(oldest) <= age_max.as_nanos(), "{durability}: {} ms", oldest / 1_000_000);
        assert!(oldest > 700_000_000, "{durability}: it left before it had to: {} ms", oldest / 1_000_000);
        assert!(bench.log.status().cleaned_bytes > 100 * 4096);
    }
}

/// A checkpoint names every extent of the log, so one for each segment that comes free would be most of what the log
/// device does.
#[test]
fn a_full_log_is_not_checkpointed_for_each_segment() {
    let mut bench = Bench::new(Durability::Log, |options| {
        // Level 2 begins when there is no room, and writes are not slowed down before.
        options.level2.share_start = 1.0;
        options.level2.share_slow = 1.0 - f64::EPSILON;
        options.level2.pause_max = Duration::ZERO;
        options.checkpoint_interval_bytes = 1 << 30;
    });
    // Records of 32 writes, in falling order: each is an extent of its own in the log, and all are one write to the
    // origin.
    let (count, rounds) = (ORIGIN_BYTES / 1024, 20);
    for round in 0..rounds {
        for first in (0..count).step_by(32) {
            let bytes = || Buffer::copy_of(&[round as u8; 512]);
            let writes = (first..first + 32).rev().map(|block| bench.log.write(block * 512, bytes(), false));
            let written = futures_util::future::try_join_all(writes.collect::<Vec<_>>());
            bench.executor.block_on(written).expect("nothing fails");
        }
    }
    let status = bench.log.status();
    let segments_used_again = (rounds * count * 512 - LOG_BYTES) / (64 << 10);
    assert!(segments_used_again > 40, "{segments_used_again}");
    assert!(status.checkpoints > 2, "{}", status.checkpoints);
    let checkpoints = status.checkpoints;
    assert!(checkpoints * 3 < segments_used_again, "{checkpoints} for {segments_used_again} segments");
    let held = read(&mut bench.executor, bench.log.as_ref(), 0, count * 512);
    assert_eq!(held, vec![rounds as u8 - 1; held.len()]);
}

/// Writes of a sector each, in the middle of a clean extent: each splits it in two, and adds one of
/// its own.
#[test]
fn the_map_has_no_more_extents_than_the_log_says() {
    let mut bench = Bench::new(Durability::Log, |options| options.level2.batch_bytes = LOG_BYTES);
    let (sectors, mut most) = (ORIGIN_BYTES / 512, 0);
    for round in 0..6u64 {
        for first in (0..ORIGIN_BYTES).step_by(128 << 10) {
            let whole = bench.log.write(first, Buffer::zeroed(128 << 10), false);
            bench.executor.block_on(whole).expect("nothing fails");
        }
        let log = Arc::clone(&bench.log);
        bench.executor.block_on(async move { log.destage(|_| {}).await }).unwrap();
        for first in (round % 2..sectors).step_by(128) {
            let some = (first..sectors.min(first + 128)).step_by(2);
            let writes = some.map(|sector| bench.log.write(sector * 512, Buffer::zeroed(512), false));
            let written = futures_util::future::try_join_all(writes.collect::<Vec<_>>());
            bench.executor.block_on(written).expect("nothing fails");
            let status = bench.log.status();
            assert!(status.extents <= status.extents_max, "{} of {}", status.extents, status.extents_max);
            most = most.max(status.extents * 100 / status.extents_max);
        }
    }
    assert!(most > 40, "{most} percent is far from it: this shows nothing");
}
