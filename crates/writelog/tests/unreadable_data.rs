//! Bytes that only the log had and that its device does not return.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::ErrorKind;
use block::device::DeviceExt;
use common::bench::{Bench, LOG_BYTES, only_when_asked};
use common::read;
use writelog::DestageOrder;

#[test]
fn bytes_only_the_log_had_are_an_error_and_never_the_origins_old_ones() {
    let mut bench = Bench::new(|options| {
        options.level2.idle = std::time::Duration::from_secs(3600);
        options.level2.age_max = std::time::Duration::from_secs(3600);
        options.level2.share_start = 0.9;
    });
    bench.write(0, 1).unwrap();
    bench.write(8192, 2).unwrap();
    bench.log_medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
    let reading = bench.log.read(0, Buffer::zeroed(4096));
    let error = bench.executor.block_on(reading).expect_err("it cannot be read");
    assert_eq!(error.kind(), ErrorKind::Media);
    assert!(error.to_string().contains("bytes 0..4096"), "{error}");
    bench.write(0, 3).expect("what is written again is there again");
    bench.log_medium.heal();
    assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 0, 4096), [3; 4096]);
    assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 8192, 4096), [2; 4096]);
}

#[test]
fn a_damaged_record_is_lost_by_name_and_never_sent() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        (0..5).for_each(|block| bench.write(block * 4096, block as u8 + 1).unwrap());
        let bytes = bench.log_medium.durable_bytes(0, LOG_BYTES as usize);
        let damaged = bytes.windows(4096).position(|window| window == [3; 4096]).expect("it is in the log");
        bench.log_medium.corrupt(damaged as u64 + 1000, &[0xff]);
        assert_eq!(bench.close(false), Err(ErrorKind::Media), "{order}");
        let at_origin = (0..5).map(|block| bench.origin_medium.durable_bytes(block * 4096, 1)[0]).collect::<Vec<_>>();
        assert_eq!(at_origin, [1, 2, 0, 4, 5], "{order}");
        assert_eq!(bench.log.status().lost_bytes, 4096);
        let reading = bench.log.read(2 * 4096, Buffer::zeroed(4096));
        assert_eq!(bench.executor.block_on(reading).expect_err("it is lost").kind(), ErrorKind::Media);
    }
}

/// Later data went to the origin all the same, and a checkpoint records that.
#[test]
fn what_was_not_returned_in_its_turn_is_there_when_a_later_opening_reads_it() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        bench.write(0, 1).unwrap();
        bench.log_medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
        let log = Arc::clone(&bench.log);
        bench.executor.block_on(async move { log.destage(|_| {}).await }).expect_err("it cannot be read");
        bench.log_medium.heal();
        bench.write(8192, 2).unwrap();
        assert_eq!(bench.close(false), Err(ErrorKind::Media), "{order}: it is lost until then");
        assert_eq!(bench.origin_medium.durable_bytes(8192, 1), [2], "{order}");
        bench.close(true).expect("it keeps what it has");
        bench.log = bench.reopen().expect("nothing fails");
        assert!(read(&mut bench.executor, bench.log.as_ref(), 0, 4096) == [1; 4096], "{order}");
        bench.close(false).expect("nothing fails");
        assert_eq!(bench.origin_medium.durable_bytes(0, 1), [1], "{order}");
    }
}
