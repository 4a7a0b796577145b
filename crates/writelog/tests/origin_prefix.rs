//! The order that `log` keeps at the origin: a prefix of what was written, and part of one batch.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use common::bench::{Bench, KIND, LOG_BYTES, ORIGIN_BYTES, only_when_asked, slow_devices};
use common::{Kind, format, open_options, read, try_open, write};
use futures_util::future::{join, join_all};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, WriteLog};

/// Whenever the origin is flushed it holds exactly what was acknowledged at some moment: of every
/// sector the last write until then.
#[test]
fn order_log_leaves_the_origin_a_prefix_at_each_flush() {
    let mut bench = Bench::new(|options| options.level2.is_interruptible = false);
    let mut random = Random::new(3);
    // By block, the numbers of the writes to it; write n fills with n.
    let mut history: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut prefixes = 0;
    for number in 1..=200u8 {
        let block = random.below(24);
        bench.write(block * 4096, number).unwrap();
        history.entry(block).or_default().push(number);
        if random.chance(0.3) {
            bench.executor.run_until_stalled();
            let clock = bench.executor.clock();
            clock.advance(std::time::Duration::from_micros(random.below(1500)));
            bench.executor.run_until_stalled();
        }
        let held: Vec<u8> = (0..24).map(|block| bench.origin_medium.durable_bytes(block * 4096, 1)[0]).collect();
        let newest = held.iter().copied().max().unwrap_or(0);
        prefixes += usize::from(newest > 0);
        for (block, &held) in (0..24).zip(&held) {
            let writes = history.get(&block).map_or(&[][..], Vec::as_slice);
            let expected = writes.iter().copied().filter(|&number| number <= newest).max().unwrap_or(0);
            assert_eq!(held, expected, "block {block} when the origin has got write {newest} of {number}");
        }
    }
    assert!(prefixes > 20, "{prefixes} prefixes");
    write(&mut bench.executor, bench.log.as_ref(), 0, &[7; 512]);
}

const WRITERS: u64 = 3;
const BLOCKS: u64 = 48;
const ROUNDS: u8 = 30;

/// A batch reads several segments, the last of them still being written: the newest data of a
/// sector when the first was read is not the newest when the last is.
#[test]
fn what_is_written_while_a_batch_is_read_reaches_the_origin_in_its_order() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(ORIGIN_BYTES, seed));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, Kind { order: DestageOrder::LastWriteFirst, ..KIND }, None);
        options.record_cache_bytes = 0;
        // Only the batches asked for, which take the oldest segments first, one after the other.
        let hour = Duration::from_secs(3600);
        options.level2 = Level2 {
            idle: hour,
            age_max: hour,
            share_start: 0.9,
            share_slow: 0.95,
            batch_bytes: LOG_BYTES,
            writes_in_flight: 1,
            ..options.level2
        };
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        let clock = executor.clock();
        executor.block_on(write_and_destage(log, clock));
        for block in 0..BLOCKS {
            assert_eq!(origin_medium.durable_bytes(block * 4096, 1), [ROUNDS], "block {block}, seed {seed}");
        }
    }
}

/// Writes each block over and over, and destages meanwhile.
async fn write_and_destage(log: Arc<WriteLog>, clock: impl Clock) {
    let is_written = AtomicBool::new(false);
    let write = async |writer: u64| {
        for round in 1..=ROUNDS {
            for block in (writer..BLOCKS).step_by(WRITERS as usize) {
                log.write(block * 4096, Buffer::copy_of(&[round; 4096]), false).await.expect("nothing fails");
            }
        }
    };
    let writes = async {
        join_all((0..WRITERS).map(write)).await;
        is_written.store(true, Ordering::Relaxed);
    };
    let destage = async {
        while !is_written.load(Ordering::Relaxed) {
            log.destage(|_| {}).await.expect("nothing fails");
            clock.sleep(Duration::from_micros(50)).await;
        }
    };
    join(writes, destage).await;
    log.close(false).await.expect("nothing fails");
}

#[test]
fn order_log_leaves_the_origin_a_prefix_and_part_of_one_batch_when_the_power_fails() {
    let test = block::crash_test!().of_few_crashes(50);
    for seed in test.seeds(0, 1, 1) {
        test.crash_at_every(seed, 1000, |nth| leaves_a_prefix(seed, nth));
    }
}

/// Returns whether the origin gets to that write.
fn leaves_a_prefix(seed: u64, nth: u64) -> bool {
    // A batch is a segment of 64 KiB here, of records of 4.5 KiB; one more may be needed to its end.
    const BATCH_WRITES: u8 = 15;
    let mut bench = Bench::new(|options| options.level2.share_start = 0.0);
    let power = bench.origin_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let (mut random, mut history) = (Random::new(seed << 32 | nth), HashMap::<u64, Vec<u8>>::new());
    for number in 1..=200u8 {
        let block = random.below(24);
        history.entry(block).or_default().push(number);
        bench.write(block * 4096, number).unwrap();
        let clock = bench.executor.clock();
        clock.advance(Duration::from_micros(random.below(400)));
        bench.executor.run_until_stalled();
        if power.is_lost() {
            break;
        }
    }
    if !power.is_lost() {
        return false;
    }
    let after = bench.origin_medium.after_power_loss_as(Loss::Seeded(seed << 32 | nth), &Power::new());
    let bytes = after.durable_bytes(0, 24 * 4096);
    check_prefix(&history, &bytes, BATCH_WRITES, &format!("power lost at write {nth} of the origin"));
    true
}

/// After a power loss the origin has, of every sector, a version that was written: all writes up to
/// some moment, and of later ones only those that one batch sends.
fn check_prefix(history: &HashMap<u64, Vec<u8>>, bytes: &[u8], batch_writes: u8, context: &str) {
    let (mut prefix, mut newest) = (u8::MAX, 0);
    for (index, sector) in bytes.chunks(512).enumerate() {
        let held = sector[0];
        let writes = history.get(&(index as u64 / 8)).map_or(&[][..], Vec::as_slice);
        assert!(
            held == 0 || writes.contains(&held),
            "{context}: sector {index} has {held}, which was never written there"
        );
        let next = writes.iter().copied().filter(|&number| number > held).min();
        prefix = prefix.min(next.map_or(u8::MAX, |next| next - 1));
        newest = newest.max(held);
    }
    assert!(
        newest <= prefix.saturating_add(batch_writes),
        "{context}: write {newest} is there, and {} is not",
        prefix + 1
    );
}

/// The slots of a round are lost; the part of it that had reached the log is an epoch without an
/// end.
#[test]
fn an_epoch_that_was_cut_off_with_volatile_ram_is_destaged() {
    let test = block::crash_test!().of_few_crashes(2);
    for seed in test.seeds(0, 1, 1) {
        test.crash_at_every(seed, 100, |nth| cuts_an_epoch_off(seed, nth));
    }
}

/// Returns whether the log device gets to that write.
fn cuts_an_epoch_off(seed: u64, nth: u64) -> bool {
    let mut bench = Bench::new(|options| {
        only_when_asked(options);
        options.durability = Durability::UnsafeVolatile;
        options.volatile_bytes = 160 << 10;
    });
    let power = bench.log_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move {
        for block in 0..30 {
            let _ = log.write(block * 4096, Buffer::copy_of(&[7; 4096]), false).await;
        }
        let _ = log.flush().await;
    });
    if !power.is_lost() {
        return false;
    }
    bench.log_medium = bench.log_medium.after_power_loss_as(Loss::Seeded(seed << 32 | nth), &Power::new());
    let log = bench.reopen().unwrap();
    let bytes = read(&mut bench.executor, log.as_ref(), 0, ORIGIN_BYTES);
    bench.executor.block_on(async move { log.close(false).await }).expect("all of it can be brought to the origin");
    assert_eq!(bench.origin_medium.durable_bytes(0, ORIGIN_BYTES as usize), bytes);
    true
}
