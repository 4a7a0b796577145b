//! A write that log and LUN refuse leaves the log's data as it was; zeroes that only the log has
//! are refused like data.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{ErrorKind, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::{DestageOrder, Durability};

const ORIGIN_BYTES: u64 = 16 * 4096;

#[test]
fn zeroes_that_only_the_log_has_conflict_with_what_others_changed() {
    let mut executor = Executor::in_order();
    let origin: SharedDevice = Arc::new(CrashLayer::new(ORIGIN_BYTES, 2));
    let log = CrashLayer::new(4 << 20, 1);
    let device: SharedDevice = Arc::new(log.clone());
    format(&mut executor, &device, &origin);
    let kind = Kind { order: DestageOrder::Log, durability: Durability::Log };
    let mut options = open_options(&executor, kind, None);
    options.level2.idle = Duration::from_secs(3600);
    options.level2.age_max = Duration::from_secs(3600);
    let opened = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    executor.block_on(opened.write_zeroes(0, 4096, false, false)).expect("nothing fails");
    drop((opened, executor));
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(log.after_power_loss());
    let mut options = open_options(&executor, kind, None);
    options.kept_changes = vec![ByteRange { offset: 0, length: 4096 }];
    assert!(try_open(&mut executor, &device, &origin, options).is_err(), "both have changed it");
}

#[test]
fn a_write_that_log_and_lun_refuse_leaves_what_the_log_had() {
    let mut executor = Executor::in_order();
    let (lun, log) = (CrashLayer::new(ORIGIN_BYTES, 2), CrashLayer::new(4 << 20, 1));
    let (origin, device): (SharedDevice, SharedDevice) = (Arc::new(lun.clone()), Arc::new(log.clone()));
    format(&mut executor, &device, &origin);
    let kind = Kind { order: DestageOrder::Log, durability: Durability::Log };
    let mut options = open_options(&executor, kind, None);
    options.level2.idle = Duration::from_secs(3600);
    options.level2.age_max = Duration::from_secs(3600);
    options.record_cache_bytes = 1 << 20;
    let opened = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    write(&mut executor, &opened, 0, &[1; 4096]);
    lun.fail_writes_from(0, ErrorKind::Media);
    // One record fails; the failure note is written.
    log.fail_write_once(log.writes_seen(), ErrorKind::Media);
    let writing = opened.write(0, Buffer::copy_of(&[2; 4096]), false);
    assert!(executor.block_on(writing).is_err());
    assert_eq!(read(&mut executor, &opened, 0, 4096), vec![1; 4096]);
}
