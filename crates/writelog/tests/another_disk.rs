//! The LUN turns out to be another disk while a batch is on its way to it: nothing is written
//! there.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{Device, ErrorKind, Event, Request, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use futures_util::future::join;
use writelog::{DestageOrder, Durability, WriteLog};

const LUN_BYTES: u64 = 64 * 4096;
const LOG_BYTES: u64 = 512 << 10;

/// A log whose device takes 10 ms for each request, over a LUN of nines that takes no time. Nothing
/// is destaged unless asked for.
fn slow_log(order: DestageOrder) -> (Executor, CrashLayer, CrashLayer, Arc<WriteLog>) {
    let mut executor = Executor::in_order();
    let (log_medium, lun) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(LUN_BYTES, 2));
    let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(10)));
    let slow = log_medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(slow), Arc::new(lun.clone()));
    write(&mut executor, &lun, 0, &[9; 8192]);
    format(&mut executor, &device, &origin);
    let hour = Duration::from_secs(3600);
    let mut options = open_options(&executor, Kind { durability: Durability::Log, order }, None);
    options.record_cache_bytes = 0;
    (options.level2.idle, options.level2.age_max) = (hour, hour);
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    (executor, log_medium, lun, log)
}

#[test]
fn what_was_chosen_to_be_sent_is_not_written_to_another_disk() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let (mut executor, _, lun, log) = slow_log(order);
        write(&mut executor, log.as_ref(), 0, &[7; 4096]);
        let (clock, sending, told) = (executor.clock(), Arc::clone(&log), lun.clone());
        let becomes_another = async move {
            clock.sleep(Duration::from_millis(5)).await;
            told.publish(&Event::IdentityChanged);
        };
        // The log is read for 10 ms.
        let (sent, ()) =
            executor.block_on(async move { join(async { sending.destage(|_| {}).await }, becomes_another).await });
        assert_eq!(sent.map_err(|error| error.kind()), Err(ErrorKind::Gone), "{order}");
        assert!(read(&mut executor, &lun, 0, 4096) == [9; 4096], "{order}");
    }
}

#[test]
fn what_the_log_refuses_is_not_written_to_another_disk() {
    for are_zeroes in [false, true] {
        let (mut executor, log_medium, lun, log) = slow_log(DestageOrder::Log);
        log_medium.fail_write_once(log_medium.writes_seen(), ErrorKind::Media);
        let changing = log.submit(match are_zeroes {
            false => Request::write(4096, Buffer::copy_of(&[7; 4096]), false),
            true => Request::write_zeroes(4096, 4096, false, false),
        });
        executor.run_until_stalled();
        lun.publish(&Event::IdentityChanged);
        let refused = executor.block_on(changing).result.expect_err("nobody takes it");
        assert_eq!(refused.kind(), ErrorKind::Gone, "zeroes: {are_zeroes}");
        assert!(read(&mut executor, &lun, 4096, 4096) == [9; 4096], "zeroes: {are_zeroes}");
    }
}
