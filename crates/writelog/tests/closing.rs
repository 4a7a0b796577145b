//! The close of a log, also while another closes it, and what it waits for.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use block::layer::delay::Latency;
use block::{ErrorKind, SharedDevice};
use common::bench::{Bench, KIND, LOG_BYTES, ORIGIN_BYTES, only_when_asked};
use common::{Kind, format, open_options, try_open, write};
use writelog::DestageOrder;

/// The end takes as long as its device takes.
#[test]
fn who_closes_a_log_that_another_is_closing_waits_for_the_end_and_is_told_the_same() {
    for is_failing in [false, true] {
        let mut executor = Executor::in_order();
        let (medium, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(10)));
        let slow = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(slow), Arc::new(origin));
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, KIND, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, &log, 0, &[1; 4096]);
        let (destaging, clock) = (Arc::clone(&log), executor.clock());
        executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
        if is_failing {
            medium.fail_writes_from(medium.writes_seen(), ErrorKind::Media);
        }
        let told = Arc::new(std::sync::Mutex::new(None));
        let (first, tells) = (Arc::clone(&log), Arc::clone(&told));
        executor.spawn(async move {
            let result = first.close(false).await;
            *tells.lock().unwrap() = Some(result.is_err());
        });
        let second = Arc::clone(&log);
        let result = executor.block_on(async move {
            clock.sleep(Duration::from_millis(1)).await;
            second.close(true).await
        });
        assert_eq!(*told.lock().unwrap(), Some(is_failing), "the first has come to its end");
        assert_eq!(result.is_err(), is_failing, "{result:?}");
    }
}

#[test]
fn a_failed_log_that_has_what_the_lun_lacks_says_so_when_it_is_closed() {
    let mut bench = Bench::new(only_when_asked);
    bench.write(0, 1).unwrap();
    bench.origin_medium.fail_writes_from(bench.origin_medium.writes_seen(), ErrorKind::Gone);
    bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
    assert!(bench.write(4096, 2).is_err(), "nobody takes it");
    assert_eq!(bench.close(true), Err(ErrorKind::Media));
}

#[test]
fn a_close_that_the_origin_tells_of_an_earlier_write_tries_again() {
    let mut bench = Bench::new(|_| {});
    // The background task has met the failure already, and waits.
    bench.origin_medium.fail_flush_as(0, ErrorKind::Media, FlushEffect::None, Reported::ForGood);
    bench.write(0, 1).unwrap();
    assert_eq!(bench.log.status().dirty_bytes, 4096);
    bench.origin_medium.heal();
    bench.origin_medium.fail_flush_once(bench.origin_medium.flushes_seen(), ErrorKind::Media);
    bench.close(false).expect("the second time it is flushed");
    assert_eq!(bench.log.status().dirty_bytes, 0);
    assert_eq!(bench.origin_medium.durable_bytes(0, 4096), [1; 4096]);
}

/// One close waits until all is destaged; another that keeps dirty data overtakes it. Of a batch of
/// many writes that are sent one after the other some are not sent yet then.
#[test]
fn nothing_is_sent_behind_a_close_that_keeps_what_is_dirty() {
    const ONE: u64 = 4096;
    const MANY: u64 = 64 << 10;
    for (order, is_close, batch_bytes) in [
        (DestageOrder::Log, false, ONE),
        (DestageOrder::Lba, false, ONE),
        (DestageOrder::Lba, true, ONE),
        (DestageOrder::Lba, false, MANY),
        (DestageOrder::LastWriteFirst, true, MANY),
    ] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(5)));
        let slow = origin_medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(log_medium.clone()), Arc::new(slow));
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, Kind { order, ..KIND }, None);
        only_when_asked(&mut options);
        (options.level2.batch_bytes, options.level2.seek_bytes) = (batch_bytes, 0);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        // Not adjacent in the batch of many: each is a write of its own.
        let stride = if batch_bytes == ONE { 1 } else { 2 };
        (0..60 / stride).for_each(|block| write(&mut executor, log.as_ref(), block * stride * 4096, &[1; 4096]));
        let (asked, clock) = (Arc::clone(&log), executor.clock());
        executor.spawn(async move {
            let asked = if is_close { asked.close(false).await } else { asked.destage(|_| {}).await };
            assert!(asked.is_err(), "some of it stays dirty");
        });
        executor.block_on(async move { clock.sleep(Duration::from_millis(12)).await });
        let closing = Arc::clone(&log);
        executor.block_on(async move { closing.close(true).await }).expect("nothing fails");
        let sent = origin_medium.writes_seen();
        executor.run();
        let context = format!("{order}, batches of {batch_bytes} bytes");
        assert!(log.status().dirty_bytes > 0, "{context}");
        assert_eq!(origin_medium.writes_seen(), sent, "{context}: the log may be open elsewhere by now");
        let refused = executor.block_on(log.read(0, Buffer::zeroed(4096))).map(drop);
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Gone), "{context}");
    }
}
