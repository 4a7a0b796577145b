//! Writes past a log whose device failed, to the origin.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{Device, ErrorKind, Request, SharedDevice};
use common::bench::{Bench, KIND, LOG_BYTES, ORIGIN_BYTES, only_when_asked, slow_devices};
use common::{Kind, format, open_options, read, try_open, write};
use futures_util::future::join_all;
use writelog::{DestageOrder, Durability, PersistentRegion, VolatileRegion, WriteLog};

/// A batch has chosen and read its data, and sends one run after the other, when the log fails;
/// then newer data comes for all of it.
#[test]
fn what_goes_past_a_failed_log_is_not_written_over_by_a_batch_under_way() {
    for is_zeroing in [false, true] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, KIND, None);
        only_when_asked(&mut options);
        (options.level2.seek_bytes, options.level2.writes_in_flight) = (0, 1);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails yet");
        let offsets = (0..16).map(|index| index * 4 * 4096);
        offsets.clone().for_each(|offset| write(&mut executor, log.as_ref(), offset, &[1; 4096]));
        let seen = origin_medium.writes_seen();
        let destaging = Arc::clone(&log);
        executor.spawn(async move { drop(destaging.destage(|_| {}).await) });
        while origin_medium.writes_seen() == seen {
            executor.run_until_stalled();
            executor.clock().advance(Duration::from_micros(1));
        }
        log_medium.fail_write_once(log_medium.writes_seen(), ErrorKind::Media);
        let changes: Vec<_> = offsets
            .clone()
            .map(|offset| match is_zeroing {
                true => log.submit(Request::write_zeroes(offset, 4096, false, false)),
                false => log.submit(Request::write(offset, Buffer::copy_of(&[9; 4096]), false)),
            })
            .collect();
        let changed = executor.block_on(join_all(changes));
        assert!(changed.iter().all(|response| response.result.is_ok()), "the origin takes them");
        executor.run();
        let expected = if is_zeroing { [0; 4096] } else { [9; 4096] };
        for offset in offsets {
            assert_eq!(origin_medium.durable_bytes(offset, 4096), expected, "byte {offset}, zeroes: {is_zeroing}");
        }
    }
}

/// Like a write that goes past it.
#[test]
fn zeroes_that_go_past_a_failed_log_are_durable() {
    let mut bench = Bench::new(only_when_asked);
    bench.write(0, 1).unwrap();
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move { log.destage(|_| {}).await }).expect("nothing fails");
    assert_eq!(bench.origin_medium.durable_bytes(0, 1), [1]);
    bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
    let zeroing = bench.log.write_zeroes(0, 4096, false, false);
    bench.executor.block_on(zeroing).expect("the origin takes them");
    assert_eq!(bench.origin_medium.durable_bytes(0, 4096), [0; 4096]);
}

/// Without level 2, which would remove the log's data from the map by sending it.
#[test]
fn what_goes_past_a_failed_log_is_read_there_though_nobody_destages() {
    for are_zeroes in [false, true] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(LOG_BYTES, 1);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(medium.clone()), Arc::new(CrashLayer::new(ORIGIN_BYTES, 2)));
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, KIND, None);
        let log = executor.block_on(WriteLog::open(device, origin, options)).expect("nothing fails");
        executor.spawn(log.run_requests());
        write(&mut executor, log.as_ref(), 0, &[1; 4096]);
        medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
        let after = if are_zeroes { 0 } else { 2 };
        match are_zeroes {
            true => executor.block_on(log.write_zeroes(0, 4096, false, false)).expect("the origin takes them"),
            false => write(&mut executor, log.as_ref(), 0, &[2; 4096]),
        }
        assert!(log.status().failure.is_some());
        assert!(read(&mut executor, log.as_ref(), 0, 4096) == [after; 4096], "zeroes: {are_zeroes}");
    }
}

const ORDERS: [DestageOrder; 3] = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];

/// The log has an older copy of data that a flush brings past it.
#[test]
fn what_is_flushed_past_a_failed_log_is_not_undone_by_the_next_start() {
    for order in ORDERS {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            (options.durability, options.order) = (Durability::UnsafeVolatile, order);
            // Otherwise a write is too large for slots.
            options.volatile_bytes = 128 << 10;
        });
        let flush = |bench: &mut Bench| bench.executor.block_on(bench.log.flush()).expect("the origin takes it");
        bench.write(0, 1).unwrap();
        flush(&mut bench);
        bench.write(0, 2).unwrap();
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        flush(&mut bench);
        assert!(bench.log.status().failure.is_some(), "{order}");
        bench.origin_medium = bench.origin_medium.after_power_loss();
        assert_eq!(bench.origin_medium.durable_bytes(0, 1), [2], "{order}");
        let after = bench.log_medium.after_power_loss();
        let log = bench.open_on(&after).expect("the log device works again");
        assert_eq!(read(&mut bench.executor, log.as_ref(), 0, 4096), [2; 4096], "{order}");
    }
}

/// After a crash a slot comes back as a whole, also where the rest of it alone is still needed.
#[test]
fn what_goes_past_a_failed_log_is_not_undone_by_a_slot_of_which_it_is_a_part() {
    let kind = Kind { durability: Durability::Nvram, order: DestageOrder::Lba };
    for is_zeroed in [false, true] {
        let region = Arc::new(VolatileRegion::new(64 << 10));
        let nvram = || Some(Arc::clone(&region) as Arc<dyn PersistentRegion>);
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            (options.durability, options.order, options.nvram) = (kind.durability, kind.order, nvram());
        });
        bench.write(0, 1).unwrap();
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        // Too large for slots.
        let large = bench.log.write(128 << 10, Buffer::copy_of(&[7; 16 << 10]), true);
        // The origin refuses the slots, which are brought there first, once.
        bench.origin_medium.fail_write_once(bench.origin_medium.writes_seen(), ErrorKind::Gone);
        bench.executor.block_on(large).expect("the origin takes it");
        assert!(bench.log.status().failure.is_some());
        assert!(bench.log.status().dirty_bytes >= 4096, "they are still there");
        if is_zeroed {
            let zeroing = bench.log.write_zeroes(512, 512, true, false);
            bench.executor.block_on(zeroing).expect("the origin takes it");
        } else {
            let writing = bench.log.write(512, Buffer::copy_of(&[2; 512]), true);
            bench.executor.block_on(writing).map(drop).expect("the origin takes it");
        }
        let expected = |at: usize| if at / 512 == 1 { if is_zeroed { 0 } else { 2 } } else { 1 };
        bench.origin_medium = bench.origin_medium.after_power_loss();
        let after = bench.log_medium.after_power_loss();
        let (device, origin) = (Arc::new(after), Arc::new(bench.origin_medium.clone()));
        let (device, origin): (SharedDevice, SharedDevice) = (device, origin);
        let options = open_options(&bench.executor, kind, nvram());
        let log = try_open(&mut bench.executor, &device, &origin, options).expect("the log device works again");
        let found = read(&mut bench.executor, log.as_ref(), 0, 4096);
        let sectors: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
        let expected: Vec<u8> = (0..8).map(|sector| expected(sector * 512)).collect();
        assert_eq!(sectors, expected, "zeroed: {is_zeroed}");
    }
}
