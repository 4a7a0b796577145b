//! LUNs with blocks of 4096 bytes: every request to them is cut at whole blocks.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{ErrorKind, Geometry, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, PersistentRegion, VolatileRegion, WriteLog};

const ORIGIN_BYTES: u64 = 64 << 20;

#[test]
fn every_order_brings_writes_of_every_size_to_a_lun_with_blocks_of_4096_bytes() {
    for durability in [Durability::Log, Durability::UnsafeVolatile] {
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            for (kib, count) in [(4u64, 500u64), (64, 100), (256, 40), (1280, 10)] {
                destages(durability, order, kib << 10, count);
            }
        }
    }
}

fn destages(durability: Durability, order: DestageOrder, bytes: u64, count: u64) {
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(CrashLayer::new(64 << 20, 1));
    let geometry =
        Geometry { logical_block_bytes: 4096, is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
    let origin: SharedDevice = Arc::new(medium.clone());
    let (log, below) = (Arc::clone(&device), Arc::clone(&origin));
    executor
        .block_on(async move { WriteLog::format(&log, &below, FormatOptions::default()).await })
        .expect("nothing fails");
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.durability = durability;
    options.order = order;
    let hour = Duration::from_secs(3600);
    options.level2 = Level2 {
        idle: hour,
        age_max: 2 * hour,
        share_start: 0.95,
        share_slow: 0.97,
        batch_bytes: 4 << 20,
        ..options.level2
    };
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    for index in 0..count {
        let written = log.write(index * bytes, Buffer::copy_of(&vec![(index % 251) as u8 + 1; bytes as usize]), false);
        executor.block_on(written).expect("nothing fails");
    }
    let context = format!("{durability} {order} {count} writes of {bytes} bytes");
    let destaging = Arc::clone(&log);
    let result = executor.block_on(async move { destaging.destage(|_| {}).await });
    assert_eq!(result.map_err(|error| error.to_string()), Ok(()), "{context}");
    for index in 0..count {
        assert_eq!(
            medium.durable_bytes(index * bytes, bytes as usize),
            vec![(index % 251) as u8 + 1; bytes as usize],
            "{context}"
        );
    }
}

const BLOCK_BYTES: u64 = 4096;
const SLOT_BYTES: usize = 1024;
const SLOTS_AT: usize = 4096;

/// A log over a LUN with blocks of 4096 bytes, of which one is of 1. The power failed between the slots of a write of 2
/// to it, which are smaller than a block: the third is torn. Nothing is destaged unless it is asked for.
fn with_a_torn_slot() -> (Executor, CrashLayer, Arc<WriteLog>) {
    let geometry = Geometry { logical_block_bytes: 4096, ..Geometry::plain(64 * BLOCK_BYTES) };
    let device: SharedDevice = Arc::new(CrashLayer::new(1 << 20, 1));
    let medium = CrashLayer::new(geometry.size_bytes, 2).with_geometry(geometry);
    let origin: SharedDevice = Arc::new(medium.clone());
    let region = Arc::new(VolatileRegion::new(64 << 10));
    let nvram: Arc<dyn PersistentRegion> = region.clone();
    let kind = Kind { durability: Durability::Nvram, order: DestageOrder::Lba };
    let mut executor = Executor::in_order();
    format(&mut executor, &device, &origin);
    write(&mut executor, &origin, BLOCK_BYTES, &[1; 4096]);
    let slow = |executor: &Executor| {
        let mut options = open_options(executor, kind, Some(Arc::clone(&nvram)));
        options.level2.idle = Duration::from_secs(3600);
        options.level2.age_max = Duration::from_secs(3600);
        options
    };
    let options = slow(&executor);
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
    write(&mut executor, log.as_ref(), BLOCK_BYTES, &[2; 4096]);
    drop((log, executor));
    region.store(SLOTS_AT + 2 * SLOT_BYTES, &[9; 100]);

    let mut executor = Executor::in_order();
    let options = slow(&executor);
    let log = try_open(&mut executor, &device, &origin, options).expect("one torn slot is a power loss");
    (executor, medium, log)
}

/// Of 2, with what the LUN had in the torn slot.
fn expected() -> [u8; 4096] {
    let mut expected = [2; 4096];
    expected[2 * SLOT_BYTES..3 * SLOT_BYTES].fill(1);
    expected
}

/// The write was not acknowledged, so any part of it may be there.
#[test]
fn a_block_of_which_some_slots_were_lost_with_the_power_is_read_and_destaged() {
    let (mut executor, origin, log) = with_a_torn_slot();
    assert_eq!(read(&mut executor, log.as_ref(), BLOCK_BYTES, BLOCK_BYTES), expected());
    let destaging = Arc::clone(&log);
    executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
    assert_eq!(read(&mut executor, &origin, BLOCK_BYTES, BLOCK_BYTES), expected());
}

/// A block is written whole: what is not in the log would have to be invented.
#[test]
fn a_block_of_which_the_rest_cannot_be_read_is_not_written() {
    let (mut executor, origin, log) = with_a_torn_slot();
    origin.fail_reads_of(ByteRange { offset: BLOCK_BYTES, length: BLOCK_BYTES });
    let destaging = Arc::clone(&log);
    let refused = executor.block_on(async move { destaging.destage(|_| {}).await });
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Media));
    origin.heal();
    assert_eq!(read(&mut executor, &origin, BLOCK_BYTES, BLOCK_BYTES), [1; 4096], "as it was");
    assert_eq!(read(&mut executor, log.as_ref(), BLOCK_BYTES, BLOCK_BYTES), expected(), "the log has it still");
    let destaging = Arc::clone(&log);
    executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails any more");
    assert_eq!(read(&mut executor, &origin, BLOCK_BYTES, BLOCK_BYTES), expected());
}
