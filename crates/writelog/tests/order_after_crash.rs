//! Order `log` over a crash of the host: what the log forgot that it sent is sent again, and the origin must not go back in time by that.

mod common;

use std::collections::HashMap;
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
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 64 * 4096;
const LOG_BYTES: u64 = 512 << 10;
const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };
const WRITES: u8 = 45;

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

/// Everything was destaged; the program is killed; the next one sends it again, and loses the LUN's session (and the host its log) in between.
#[test]
fn order_log_does_not_take_the_origin_back_behind_what_a_life_before_destaged() {
    // As in `failures.rs`: a batch of 64 KiB, of records of 4.5 KiB, and one more.
    const BATCH_WRITES: u8 = 15;
    let mut worst = (0, String::new());
    for nth in 0..40 {
        let mut executor = Executor::in_order();
        let log_medium = CrashLayer::new(LOG_BYTES, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
        format(&mut executor, &device, &origin);
        let options = |executor: &Executor| {
            let mut options = open_options(executor, KIND, None);
            options.record_cache_bytes = 0;
            // As large as a log of this size has it.
            options.checkpoint_interval_bytes = 64 << 20;
            options
        };
        let first = options(&executor);
        let log = try_open(&mut executor, &device, &origin, first).expect("nothing fails");
        let (mut random, mut history) = (Random::new(9), HashMap::<u64, Vec<u8>>::new());
        for number in 1..=WRITES {
            let block = random.below(24);
            history.entry(block).or_default().push(number);
            executor.block_on(log.write(block * 4096, Buffer::copy_of(&[number; 4096]), false)).unwrap();
        }
        let all = Arc::clone(&log);
        executor.block_on(async move { all.destage(|_| {}).await }).unwrap();
        let bytes = origin_medium.durable_bytes(0, 24 * 4096);
        assert_eq!(prefix_and_newest(&history, &bytes), (u8::MAX, WRITES), "all of it is there, durably");
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
        let Ok(log) = try_open(&mut executor, &device, &origin, second) else { continue };
        for _ in 0..50 {
            executor.run_until_stalled();
            executor.clock().advance(Duration::from_millis(1));
        }
        let after = origin_medium.after_power_loss_as(Loss::Seeded(nth), &Power::new());
        let (prefix, newest) = prefix_and_newest(&history, &after.durable_bytes(0, 24 * 4096));
        let too_new = newest.saturating_sub(prefix);
        if too_new > worst.0 {
            worst = (too_new, format!("at write {nth}: write {newest} is there, and {} is not", u16::from(prefix) + 1));
        }
        drop(log);
    }
    assert!(worst.0 <= BATCH_WRITES, "{}", worst.1);
}

/// A log with 70 changes of 64 blocks, some of them to zeroes, and a LUN that has none of them; the program was killed.
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

    /// Opens the log, of which the LUN takes that many writes, and lets it destage. What was dirty, each time that this was another number.
    fn live(&mut self, writes: u64, is_closed: bool) -> Vec<u64> {
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
    let dirty = Filled::new().live(u64::MAX, false);
    assert!(dirty.len() > 3, "{dirty:?} are no steps");
    assert_eq!(dirty.last(), Some(&0));
}

/// Whichever writes to the LUN the next lives end at, crashed or closed.
#[test]
fn what_is_sent_in_steps_is_all_there_however_often_that_is_cut_off() {
    for (nth, is_closed) in (0..60).flat_map(|nth| [(nth, false), (nth, true)]) {
        let mut filled = Filled::new();
        for life in 0..3 {
            filled.live((nth + life * 7) % 60, is_closed);
        }
        filled.live(u64::MAX, false);
        let bytes = filled.origin_medium.durable_bytes(0, ORIGIN_BYTES as usize);
        assert_eq!(first_bytes(&bytes), filled.blocks, "cut off at write {nth}, closed {is_closed}");
    }
}
