//! Order `log` across a crash of the host: data whose destaging was forgotten is sent again, and
//! must not take the origin back in time.

mod common;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Geometry, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::{DestageOrder, Durability, PersistentRegion, VolatileRegion};

const ORIGIN_BYTES: u64 = 64 * 4096;
const LOG_BYTES: u64 = 512 << 10;
const SEGMENT_BYTES: u64 = 64 << 10;
const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };
const WRITES: u8 = 45;
/// Writes of the next life that are tried: the first of its batches.
const CRASHES: u64 = 40;
const SLOTS_BYTES: usize = 64 << 10;
/// Writes that come last, and are only in slots.
const WRITES_IN_SLOTS: u8 = 5;

/// As in `failures.rs`.
fn prefix_and_newest(history: &HashMap<u64, Vec<u8>>, bytes: &[u8]) -> (u8, u8) {
    let (mut prefix, mut newest) = (u8::MAX, 0);
    for (index, sector) in bytes.chunks(512).enumerate() {
        let held = sector[0];
        let writes = history.get(&(index as u64 / 8)).map_or(&[][..], Vec::as_slice);
        assert!(held == 0 || writes.contains(&held));
        let next = writes.iter().copied().filter(|&number| number > held).min();
        prefix = prefix.min(next.map_or(u8::MAX, |next| next - 1));
        newest = newest.max(held);
    }
    (prefix, newest)
}

/// Everything was destaged; the program is killed; the next one sends it again, and loses the LUN's
/// session (and the host its log) in between.
#[test]
fn order_log_does_not_take_the_origin_back_behind_what_a_life_before_destaged() {
    destage_again_everywhere(Durability::Log);
}

/// With slots that kept the last writes there is more to send than the opening found in the log.
#[test]
fn order_log_with_slots_does_not_take_the_origin_back_behind_what_a_life_before_destaged() {
    destage_again_everywhere(Durability::Nvram);
}

fn destage_again_everywhere(durability: Durability) {
    let test = block::crash_test!();
    for seed in test.seeds(9, 3, 1) {
        test.crash_at_every(seed, CRASHES + 1, |nth| {
            destages_again(durability, seed, nth);
            nth < CRASHES
        });
    }
}

fn destages_again(durability: Durability, seed: u64, nth: u64) {
    // As in `failures.rs`: a batch of 64 KiB, of records of 4.5 KiB, and one more.
    const BATCH_WRITES: u8 = 15;
    let mut executor = Executor::in_order();
    let log_medium = CrashLayer::new(LOG_BYTES, 1);
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
    format(&mut executor, &device, &origin);
    let region: Arc<dyn PersistentRegion> = Arc::new(VolatileRegion::new(SLOTS_BYTES));
    let options = |executor: &Executor| {
        let mut options = open_options(executor, Kind { durability, ..KIND }, Some(Arc::clone(&region)));
        options.record_cache_bytes = 0;
        // The default for a log of this size.
        options.checkpoint_interval_bytes = 64 << 20;
        options
    };
    let first = options(&executor);
    let log = try_open(&mut executor, &device, &origin, first).expect("nothing fails");
    let (mut random, mut history) = (Random::new(seed), HashMap::<u64, Vec<u8>>::new());
    let mut write_some = |executor: &mut Executor, numbers: RangeInclusive<u8>| {
        for number in numbers {
            let block = random.below(24);
            history.entry(block).or_default().push(number);
            executor.block_on(log.write(block * 4096, Buffer::copy_of(&[number; 4096]), false)).unwrap();
        }
    };
    write_some(&mut executor, 1..=WRITES);
    let all = Arc::clone(&log);
    executor.block_on(async move { all.destage(|_| {}).await }).unwrap();
    let bytes = origin_medium.durable_bytes(0, 24 * 4096);
    if durability == Durability::Nvram {
        write_some(&mut executor, WRITES + 1..=WRITES + WRITES_IN_SLOTS);
    }
    let all_before = history.iter().map(|(&block, writes)| {
        let before: Vec<u8> = writes.iter().copied().filter(|&number| number <= WRITES).collect();
        (block, before)
    });
    assert_eq!(prefix_and_newest(&all_before.collect(), &bytes), (u8::MAX, WRITES), "all of it is there, durably");
    // Killed.
    drop(log);
    drop(executor);
    let mut executor = Executor::in_order();
    let power = Power::new();
    let log_medium = log_medium.after_restart_as(Loss::Seeded(1), &Power::new());
    let origin_medium = origin_medium.after_restart_as(Loss::Seeded(1), &power);
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
    power.fail_write(power.writes_seen() + nth);
    let second = options(&executor);
    let Ok(_log) = try_open(&mut executor, &device, &origin, second) else { return };
    for _ in 0..50 {
        executor.run_until_stalled();
        executor.clock().advance(Duration::from_millis(1));
    }
    let after = origin_medium.after_power_loss_as(Loss::Seeded(nth), &Power::new());
    let (prefix, newest) = prefix_and_newest(&history, &after.durable_bytes(0, 24 * 4096));
    let too_new = newest.saturating_sub(prefix);
    assert!(too_new <= BATCH_WRITES, "at write {nth}: write {newest} is there, and {} is not", u16::from(prefix) + 1);
}

/// A log with 70 changes of 64 blocks, some of them to zeroes, all missing on the LUN; the program
/// was killed.
struct Filled {
    log_medium: CrashLayer,
    origin_medium: CrashLayer,
    blocks: [u8; 64],
}

impl Filled {
    fn new() -> Self {
        let mut executor = Executor::in_order();
        let log_medium = CrashLayer::new(LOG_BYTES, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
        write(&mut executor, &origin_medium, 0, &[200; ORIGIN_BYTES as usize]);
        executor.block_on(origin.flush()).expect("nothing fails");
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, KIND, None);
        let hour = Duration::from_secs(3600);
        (options.level2.idle, options.level2.age_max, options.level2.share_start) = (hour, hour, 1.0);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        let mut blocks = [200; 64];
        for number in 1..=70u8 {
            let block = u64::from(number) * 13 % 64;
            if number % 9 == 0 {
                executor.block_on(log.write_zeroes(block * 4096, 4096, false, false)).expect("nothing fails");
                blocks[block as usize] = 0;
            } else {
                write(&mut executor, log.as_ref(), block * 4096, &[number; 4096]);
                blocks[block as usize] = number;
            }
        }
        assert_eq!(log.status().destaged_bytes, 0, "there is nothing left to show");
        drop((log, executor));
        Self { log_medium, origin_medium, blocks }
    }

    /// Opens the log over a LUN that takes `writes` writes, and destages. Returns the dirty bytes
    /// each time that their count changed.
    fn live(&mut self, writes: u64, is_closed: bool, batch_bytes: u64) -> Vec<u64> {
        let mut executor = Executor::in_order();
        let (workers, power) = (Workers::new(), Power::new());
        self.log_medium = self.log_medium.after_restart_as(Loss::Seeded(1), &Power::new());
        self.origin_medium = self.origin_medium.after_power_loss_as(Loss::Seeded(writes), &power);
        power.fail_write(writes);
        let latency = Latency::Fixed(Duration::from_micros(500));
        let slow = self.origin_medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(self.log_medium.clone()), Arc::new(slow));
        let mut options = open_options(&executor, KIND, None);
        options.record_cache_bytes = 0;
        options.level2.batch_bytes = batch_bytes;
        let log = try_open(&mut executor, &device, &origin, options).expect("the log's device keeps its power");
        let mut dirty = Vec::new();
        for _ in 0..1000 {
            executor.run_until_stalled();
            executor.clock().advance(Duration::from_micros(100));
            dirty.push(log.status().dirty_bytes);
        }
        if !power.is_lost() {
            let bytes = read(&mut executor, log.as_ref(), 0, ORIGIN_BYTES);
            assert_eq!(first_bytes(&bytes), self.blocks);
        }
        if is_closed {
            executor.block_on(async move { log.close(true).await }).expect("the LUN is not asked");
        }
        dirty.dedup();
        dirty
    }
}

fn first_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(4096).map(|block| block[0]).collect()
}

#[test]
fn what_a_log_is_opened_with_makes_room_before_all_of_it_is_sent() {
    let dirty = Filled::new().live(u64::MAX, false, SEGMENT_BYTES);
    assert!(dirty.len() > 3, "{dirty:?} are no steps");
    assert_eq!(dirty.last(), Some(&0));
}

/// More writes to the LUN than a life makes.
const WRITES_CUT: u64 = 60;

/// The next lives end at any write to the LUN, by a crash or a close.
#[test]
fn what_is_sent_in_steps_is_all_there_however_often_that_is_cut_off() {
    let test = block::crash_test!();
    // Bits of the seed decide whether lives are closed, whether a batch is less than a segment, and
    // how far apart their ends are.
    for seed in test.seeds(0, 4, 1) {
        test.crash_at_every(seed, WRITES_CUT + 1, |nth| {
            let (is_closed, step) = (seed % 2 == 1, 7 + seed / 4);
            let batch_bytes = if seed / 2 % 2 == 0 { SEGMENT_BYTES } else { SEGMENT_BYTES / 8 };
            let mut filled = Filled::new();
            for life in 0..3 {
                filled.live((nth + life * step) % WRITES_CUT, is_closed, batch_bytes);
            }
            filled.live(u64::MAX, false, batch_bytes);
            let bytes = filled.origin_medium.durable_bytes(0, ORIGIN_BYTES as usize);
            assert_eq!(
                first_bytes(&bytes),
                filled.blocks,
                "cut off at write {nth}, closed {is_closed}, batches of {batch_bytes}"
            );
            nth < WRITES_CUT
        });
    }
}
