//! Order `log` over a crash of the host: what the log forgot that it sent is sent again, and the origin must not go back in time by that.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{Geometry, SharedDevice};
use common::{Kind, format, open_options, try_open};
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
