//! Slots of RAM or NVRAM that hold more than the log: the log is bounded by the room of a
//! checkpoint, which does not hold slots.

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
use block::{ErrorKind, SharedDevice};
use common::try_open;
use futures_util::stream::{self, StreamExt};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, WriteLog};

fn format(executor: &mut Executor, log: &SharedDevice, origin: &SharedDevice) {
    let (log, origin) = (Arc::clone(log), Arc::clone(origin));
    executor
        .block_on(async move { WriteLog::format(&log, &origin, FormatOptions::default()).await })
        .expect("nothing fails");
}

#[test]
fn more_slots_than_a_checkpoint_has_extents_fill_and_empty() {
    for order in [DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let device: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
        let origin: SharedDevice = Arc::new(CrashLayer::new(64 << 20, 2));
        format(&mut executor, &device, &origin);
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        options.durability = Durability::UnsafeVolatile;
        options.order = order;
        options.volatile_bytes = 12 << 20;
        let hour = Duration::from_secs(3600);
        options.level2 =
            Level2 { idle: hour, age_max: 2 * hour, share_start: 0.95, share_slow: 0.97, ..options.level2 };
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        for index in 0..20_000u64 {
            let written = log.write((index * 7919 % 32768) * 2048, Buffer::copy_of(&[7; 1024]), false);
            executor.block_on(written).expect("nothing fails");
        }
        let flushed = log.flush();
        executor.block_on(flushed).expect("nothing fails");
    }
}

/// Slots in the middle of the log's extents split them: such writes wait for room like records.
#[test]
fn a_checkpoint_has_room_however_slots_split_what_the_log_holds() {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let (medium, origin_medium) = (CrashLayer::new(32 << 20, 1), CrashLayer::new(256 << 20, 2));
    let us = |us| Latency::Fixed(Duration::from_micros(us));
    let delays = |write, flush| Delays { read: us(20), write: us(write), flush: us(flush), other: us(20) };
    let slow = |medium: &CrashLayer, delays| -> SharedDevice {
        Arc::new(DelayLayer::new(Arc::new(medium.clone()), clock.clone(), &workers, delays, 1))
    };
    let (device, origin) = (slow(&medium, delays(20, 20)), slow(&origin_medium, delays(5000, 5000)));
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    format(&mut executor, &device, &origin);
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.durability = Durability::UnsafeVolatile;
    options.volatile_bytes = 15 << 20;
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    origin_medium.fail_writes_from(origin_medium.writes_seen(), ErrorKind::Gone);
    let writing = Arc::clone(&log);
    executor.block_on(async move {
        let write = |index: u64| writing.write(index * 8192, Buffer::copy_of(&[1; 4096]), false);
        stream::iter(0..5600).map(write).buffer_unordered(256).for_each(|written| async { drop(written) }).await;
        writing.flush().await.expect("it fits");
    });
    let writing = Arc::clone(&log);
    executor.spawn(async move {
        let write = |index: u64| {
            writing.write((index % 5600) * 8192 + 512 + (index / 5600) * 1024, Buffer::copy_of(&[2; 512]), false)
        };
        stream::iter(0..14_000).map(write).buffer_unordered(2048).for_each(|written| async { drop(written) }).await;
    });
    let mut pass = |time| {
        let until = executor.clock().sleep(time);
        executor.block_on(until);
        assert_eq!(log.status().failure, None, "a log whose device is whole never fails");
    };
    (0..20).for_each(|_| pass(Duration::from_millis(200)));
    origin_medium.heal();
    (0..40).for_each(|_| pass(Duration::from_millis(500)));
    assert!(log.status().cleaned_bytes > 0);
}
