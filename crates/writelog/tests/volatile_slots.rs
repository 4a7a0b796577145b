//! Slots of RAM: what a flush or force unit access makes durable.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{Device, Request, SharedDevice};
use common::bench::{Bench, LOG_BYTES, ORIGIN_BYTES, only_when_asked, slow_devices};
use common::{Kind, format, open_options, read, try_open, write};
use futures_util::future::join_all;
use writelog::{DestageOrder, Durability};

#[test]
fn force_unit_access_goes_past_volatile_ram() {
    let mut bench = Bench::new(|options| options.durability = Durability::UnsafeVolatile);
    bench.write(0, 1).unwrap();
    let writing = bench.log.write(4096, Buffer::copy_of(&[2; 4096]), true);
    bench.executor.block_on(writing).unwrap();
    bench.log_medium = bench.log_medium.after_power_loss();
    let log = bench.reopen().unwrap();
    assert_eq!(read(&mut bench.executor, log.as_ref(), 4096, 4096), [2; 4096]);
}

/// A flush moves the data of a slot of volatile RAM; before that is in the log, newer data of the
/// same block comes into another slot.
#[test]
fn what_was_flushed_is_there_after_a_crash_though_newer_data_came_into_ram_meanwhile() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let kind = Kind { durability: Durability::UnsafeVolatile, order };
        let mut options = open_options(&executor, kind, None);
        only_when_asked(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, log.as_ref(), 0, &[1; 512]);
        let flushing = log.submit(Request::flush());
        // The record is on its way.
        executor.run_until_stalled();
        let writing = log.submit(Request::write(0, Buffer::copy_of(&[2; 512]), false));
        let answers = executor.block_on(join_all([flushing, writing]));
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
        // A checkpoint stores it: the record itself is not replayed any more.
        let invalidating = Arc::clone(&log);
        executor.block_on(async move { invalidating.invalidate(&[], true).await }).expect("nothing fails");
        assert_eq!(read(&mut executor, log.as_ref(), 0, 512), [2; 512], "{order}");
        drop((log, executor));
        let mut executor = Executor::in_order();
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.after_power_loss()), Arc::new(origin_medium.after_power_loss()));
        let options = open_options(&executor, kind, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        assert_eq!(read(&mut executor, log.as_ref(), 0, 512), [1; 512], "{order}");
    }
}
