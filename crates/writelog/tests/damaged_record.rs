//! What `check` finds when bytes of the log are damaged: exactly the dirty ranges that are not as
//! they were written; and in no destage order such data reaches the origin.

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock as _;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::error::{ErrorLayer, ErrorRule, Trigger};
use block::memory::MemoryDevice;
use block::{ErrorKind, Identity, OperationKind, SharedDevice};
use writelog::layout::Layout;
use writelog::numbers::SegmentNumber;
use writelog::{
    DamagedRange, DestageOrder, Durability, FormatOptions, Inspection, OpenOptions, WriteLog, check, inspect,
};

const LOG_BYTES: u64 = 512 << 10;
/// A record of one write of 4 KiB: what is before its data, and its data.
const PREFIX_BYTES: u64 = 512;
const RECORD_BYTES: u64 = PREFIX_BYTES + 4096;

struct World {
    executor: Executor,
    medium: CrashLayer,
    log_device: SharedDevice,
    origin: SharedDevice,
    /// Offset of the first record.
    records_at: u64,
}

/// Opens a log that destages after `idle` without a request, and keeps no records in RAM.
fn open(
    executor: &mut Executor,
    log_device: &SharedDevice,
    origin: &SharedDevice,
    order: DestageOrder,
    idle: Duration,
) -> Arc<WriteLog> {
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.order = order;
    options.record_cache_bytes = 0;
    options.level2.idle = idle;
    options.level2.age_max = Duration::from_secs(3600);
    options.level2.share_start = 1.0;
    let opening = WriteLog::open(Arc::clone(log_device), Arc::clone(origin), options);
    let log = executor.block_on(opening).expect("nothing fails");
    executor.spawn(log.run());
    log
}

impl World {
    /// A closed log with records of the blocks 1, 3, 5, 3 (again) and 6, opened once more since: replay begins in
    /// another segment.
    fn new() -> Self {
        let medium = CrashLayer::new(LOG_BYTES, 1);
        let log_device: SharedDevice = Arc::new(medium.clone());
        let identity = Identity { target: "test".into(), unit: "origin".into(), serial: "1".into() };
        let origin: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, identity));
        let mut executor = Executor::in_order();
        let (device, below) = (Arc::clone(&log_device), Arc::clone(&origin));
        let formatted = async move { WriteLog::format(&device, &below, FormatOptions::paper()).await };
        executor.block_on(formatted).expect("nothing fails");
        for blocks in [&[(1, 11), (3, 13), (5, 15), (3, 23), (6, 16)][..], &[]] {
            let log = open(&mut executor, &log_device, &origin, DestageOrder::Log, Duration::from_secs(3600));
            for &(block, byte) in blocks {
                let written = log.write(block * 4096, Buffer::copy_of(&[byte; 4096]), false);
                executor.block_on(written).expect("nothing fails");
            }
            executor.block_on(async move { log.close(true).await }).expect("nothing fails");
        }
        let layout = Layout::new(LOG_BYTES, &FormatOptions::paper()).expect("as it was made");
        let mut world = Self { executor, medium, log_device, origin, records_at: 0 };
        let first = layout.segments().map(|segment| layout.segment(segment).offset);
        let starts: Vec<u64> = first.filter(|&offset| world.bytes(offset)[4..8] == *b"frec").collect();
        assert_eq!(starts.len(), 1, "all records are in one segment");
        world.records_at = starts[0];
        for (index, byte) in [11, 13, 15, 23, 16].into_iter().enumerate() {
            let data_at = world.record(index as u64) + PREFIX_BYTES;
            assert_eq!(world.bytes(data_at)[..], [byte; 512], "the layout of records is another one");
        }
        world
    }

    fn record(&self, index: u64) -> u64 {
        self.records_at + index * RECORD_BYTES
    }

    fn bytes(&mut self, offset: u64) -> Buffer {
        self.executor.block_on(self.log_device.read(offset, Buffer::zeroed(512))).expect("nothing fails")
    }

    /// Flips one bit of the log.
    fn rot(&mut self, offset: u64) {
        let sector = offset / 512 * 512;
        let mut bytes = self.bytes(sector);
        bytes[(offset - sector) as usize] ^= 4;
        self.executor.block_on(self.log_device.write(sector, bytes, true)).expect("nothing fails");
    }

    fn check(&mut self) -> Inspection {
        let (device, clock) = (Arc::clone(&self.log_device), self.executor.clock());
        self.executor.block_on(async move { check(&device, None, &clock).await }).expect("damage is no error")
    }

    fn inspect(&mut self) -> Inspection {
        let (device, clock) = (Arc::clone(&self.log_device), self.executor.clock());
        self.executor.block_on(async move { inspect(&device, &clock).await }).expect("the map is whole")
    }

    fn open(&mut self, order: DestageOrder) -> Arc<WriteLog> {
        open(&mut self.executor, &self.log_device, &self.origin, order, Duration::from_secs(1))
    }

    fn write(&mut self, log: &Arc<WriteLog>, block: u64, bytes: &[u8]) {
        self.executor.block_on(log.write(block * 4096, Buffer::copy_of(bytes), false)).expect("nothing fails");
    }

    /// Offset of the first place in the segments that holds these bytes.
    fn find(&mut self, wanted: [u8; 512]) -> u64 {
        let layout = Layout::new(LOG_BYTES, &FormatOptions::paper()).expect("as it was made");
        let first = layout.segment(SegmentNumber(0)).offset;
        let end = layout.offset_of(layout.end());
        (first..end).step_by(512).find(|&offset| self.bytes(offset)[..] == wanted).expect("it was written")
    }

    /// The first byte of each of these blocks of the origin.
    fn origin_blocks<const N: usize>(&mut self, blocks: [u64; N]) -> [u8; N] {
        blocks.map(|block| {
            let read = self.origin.read(block * 4096, Buffer::zeroed(4096));
            let bytes = self.executor.block_on(read).expect("nothing fails");
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "block {block} is of two writes");
            bytes[0]
        })
    }

    /// Closes after a minute in which all was destaged in the background, in the order chosen.
    fn close(&mut self, log: Arc<WriteLog>) -> Result<(), ErrorKind> {
        let minute = self.executor.clock().sleep(Duration::from_secs(60));
        self.executor.block_on(minute);
        self.executor.block_on(async move { log.close(false).await }).map_err(|error| error.kind())
    }

    fn damaged_blocks(&mut self) -> Vec<(u64, u64)> {
        let blocks = |range: &DamagedRange| (range.offset_bytes / 4096, range.length_bytes / 4096);
        self.check().damaged.iter().map(blocks).collect()
    }
}

#[test]
fn a_whole_log_has_no_damage() {
    let mut world = World::new();
    let checked = world.check();
    assert_eq!((checked.dirty_bytes, checked.damaged), (4 * 4096, vec![]));
}

#[test]
fn a_flipped_bit_anywhere_in_a_record_behind_the_checkpoint_is_found() {
    // In the checksum, the sequence, the entries, the first and the last byte of the data.
    for at in [0, 32, 96, PREFIX_BYTES, RECORD_BYTES - 1] {
        let mut world = World::new();
        let offset = world.record(2) + at;
        world.rot(offset);
        assert_eq!(world.damaged_blocks(), [(5, 1)], "byte {at} of the record");
        assert!(world.inspect().damaged.is_empty(), "`inspect` does not read data");
    }
}

#[test]
fn damage_of_what_was_written_again_since_is_none() {
    let mut world = World::new();
    let superseded = world.record(1) + PREFIX_BYTES;
    world.rot(superseded);
    assert!(world.damaged_blocks().is_empty());
}

#[test]
fn adjacent_damage_is_one_range_whatever_order_it_was_written_in() {
    let mut world = World::new();
    for index in [0, 2, 4] {
        let offset = world.record(index) + PREFIX_BYTES + 1000;
        world.rot(offset);
    }
    assert_eq!(world.damaged_blocks(), [(1, 1), (5, 2)]);
    assert_eq!(world.check().damaged[1].to_string(), "bytes 20480..28672");
}

#[test]
fn a_record_of_other_sectors_in_the_place_of_one_is_damage() {
    let mut world = World::new();
    // A write that landed in the wrong place: whole, with its checksum, but of another sequence and other sectors.
    let (from, to) = (world.record(3), world.record(2));
    for sector in 0..RECORD_BYTES / 512 {
        let bytes = world.bytes(from + sector * 512);
        let written = world.log_device.write(to + sector * 512, bytes, true);
        world.executor.block_on(written).expect("nothing fails");
    }
    assert_eq!(world.damaged_blocks(), [(5, 1)]);
}

#[test]
fn what_the_device_refuses_to_read_is_damage_and_its_neighbours_are_not() {
    let mut world = World::new();
    let offset = (world.record(4) + PREFIX_BYTES).next_multiple_of(4096);
    world.medium.fail_reads_of(ByteRange { offset, length: 512 });
    assert_eq!(world.damaged_blocks(), [(6, 1)]);
}

const ORDERS: [DestageOrder; 3] = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];

#[test]
fn damage_from_before_the_log_was_opened_never_reaches_the_origin() {
    for order in ORDERS {
        let mut world = World::new();
        let offset = world.record(2) + PREFIX_BYTES + 100;
        world.rot(offset);
        let log = world.open(order);
        assert_eq!(world.close(Arc::clone(&log)), Err(ErrorKind::Media), "{order}");
        assert_eq!(world.origin_blocks([1, 3, 5, 6]), [11, 23, 0, 16], "{order}");
        let read = world.executor.block_on(log.read(5 * 4096, Buffer::zeroed(4096)));
        assert_eq!(read.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Media), "{order}");
    }
}

/// The damaged record is not read and not destaged before this read.
#[test]
fn damage_from_before_the_log_was_opened_is_an_error_to_whoever_reads_it_first() {
    let hour = Duration::from_secs(3600);
    for order in ORDERS {
        // One bit, and all of a segment, as where a file was cut and grown again.
        for (damaged, length) in [(&[5][..], 1), (&[1, 3, 5, 6], 5 * RECORD_BYTES)] {
            let mut world = World::new();
            let offset = if length == 1 { world.record(2) + PREFIX_BYTES + 100 } else { world.records_at };
            world.medium.corrupt(offset, &vec![0; length as usize]);
            let log = open(&mut world.executor, &world.log_device, &world.origin, order, hour);
            let mut read = |block: u64, blocks: u64| {
                let reading = log.read(block * 4096, Buffer::zeroed((blocks * 4096) as usize));
                world.executor.block_on(reading).map(|bytes| bytes[0]).map_err(|error| error.kind())
            };
            assert_eq!(read(4, 4), Err(ErrorKind::Media), "{order}, across what is damaged");
            for (block, byte) in [(0, 0), (1, 11), (2, 0), (3, 23), (5, 15), (6, 16)] {
                let expected = if damaged.contains(&block) { Err(ErrorKind::Media) } else { Ok(byte) };
                assert_eq!(read(block, 1), expected, "{order}, block {block}");
            }
            assert_eq!(log.status().lost_bytes, damaged.len() as u64 * 4096, "{order}");
            world.write(&log, 5, &[70; 4096]);
            let again =
                world.executor.block_on(log.read(5 * 4096, Buffer::zeroed(4096))).expect("it was written again");
            assert_eq!(again[..], [70; 4096], "{order}");
        }
    }
}

#[test]
fn damage_that_comes_later_never_reaches_the_origin() {
    for order in ORDERS {
        let mut world = World::new();
        let log = world.open(order);
        for (block, byte) in [(10, 30), (5, 31), (20, 32)] {
            world.write(&log, block, &[byte; 4096]);
        }
        // One of before, and one of after the opening.
        for byte in [11, 31] {
            let offset = world.find([byte; 512]);
            world.rot(offset + 300);
        }
        assert_eq!(world.close(log), Err(ErrorKind::Media), "{order}");
        // Only in order of the log what was written before is sent first.
        let five = if order == DestageOrder::Log { 15 } else { 0 };
        assert_eq!(world.origin_blocks([1, 3, 5, 6, 10, 20]), [0, 23, five, 16, 30, 32], "{order}");
    }
}

#[test]
fn what_is_left_of_a_damaged_write_is_lost_and_what_joins_it_is_sent() {
    let mut world = World::new();
    let log = world.open(DestageOrder::Lba);
    // Four blocks in one entry, of which the second is written again; the next entry continues
    // where they end.
    let bytes: Vec<u8> = [40, 41, 42, 43].into_iter().flat_map(|byte| [byte; 4096]).collect();
    world.write(&log, 32, &bytes);
    world.write(&log, 36, &[44; 4096]);
    world.write(&log, 33, &[50; 4096]);
    let offset = world.find([42; 512]);
    world.rot(offset);
    assert_eq!(world.close(log), Err(ErrorKind::Media));
    assert_eq!(world.origin_blocks([32, 33, 34, 35, 36]), [0, 50, 0, 0, 44]);
}

#[test]
fn pieces_of_several_entries_are_sent_whole() {
    let mut world = World::new();
    let log = world.open(DestageOrder::Lba);
    // Together in one record, and adjacent on the origin: one extent of two entries.
    let writes = [(40, 60), (41, 61), (42, 62)].map(|(block, byte)| {
        let log = Arc::clone(&log);
        async move { log.write(block * 4096, Buffer::copy_of(&[byte; 4096]), false).await }
    });
    let written = world.executor.block_on(futures_util::future::try_join_all(writes));
    written.expect("nothing fails");
    world.write(&log, 41, &[63; 4096]);
    assert_eq!(world.close(log), Ok(()));
    assert_eq!(world.origin_blocks([1, 3, 5, 6, 40, 41, 42]), [11, 23, 15, 16, 60, 63, 62]);
}

/// The first reads of a segment fail, of all of it or of its parts: data from a later read is
/// checked like the rest.
#[test]
fn what_is_read_after_errors_is_checked_before_it_is_sent() {
    for order in ORDERS {
        for failures in 1..20 {
            let mut world = World::new();
            let log_device = Arc::clone(&world.log_device);
            let failing = Arc::new(ErrorLayer::new(log_device, &Workers::new(), 1));
            world.log_device = Arc::clone(&failing) as SharedDevice;
            let log = world.open(order);
            for (block, byte) in [(10, 30), (20, 31), (30, 32)] {
                world.write(&log, block, &[byte; 4096]);
            }
            for byte in [11, 31] {
                let offset = world.find([byte; 512]);
                world.rot(offset + 300);
            }
            // Each failing read is the first that those before it let through.
            for _ in 0..failures {
                failing.add(ErrorRule::new(Trigger::Nth(0), ErrorKind::Media).on(&[OperationKind::Read]));
            }
            assert_eq!(world.close(log), Err(ErrorKind::Media), "{order}");
            let at_origin = world.origin_blocks([1, 3, 5, 6, 10, 20, 30]);
            assert_eq!((at_origin[0], at_origin[5]), (0, 0), "{order}, {failures} failures: damage at the origin");
            let others = [23, 15, 16, 30, 32].iter().zip([1, 2, 3, 4, 6].map(|index| at_origin[index]));
            assert!(failures > 1 || others.clone().all(|(&byte, found)| found == byte), "{order}: {at_origin:?}");
            assert!(others.into_iter().all(|(&byte, found)| found == byte || found == 0), "{order}: {at_origin:?}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_lost_and_its_neighbours_are_sent() {
    for order in ORDERS {
        let mut world = World::new();
        let log = world.open(order);
        for (block, byte) in [(10, 30), (20, 31), (30, 32)] {
            world.write(&log, block, &[byte; 4096]);
        }
        for offset in [15, 31].map(|byte| world.find([byte; 512]).next_multiple_of(4096)) {
            world.medium.fail_reads_of(ByteRange { offset, length: 512 });
        }
        assert_eq!(world.close(log), Err(ErrorKind::Media), "{order}");
        assert_eq!(world.origin_blocks([1, 3, 5, 6, 10, 20, 30]), [11, 23, 0, 16, 30, 0, 32], "{order}");
    }
}

const LARGE_BYTES: u64 = 28 << 10;

/// A log with 20 records of large writes, the first of bytes of 1, two to a segment.
fn many_segments() -> (Executor, CrashLayer, SharedDevice, Arc<WriteLog>) {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(2 << 20, 1);
    let log_device: SharedDevice = Arc::new(medium.clone());
    let origin: SharedDevice = Arc::new(CrashLayer::new(8 << 20, 2));
    let (device, below) = (Arc::clone(&log_device), Arc::clone(&origin));
    executor
        .block_on(async move { WriteLog::format(&device, &below, FormatOptions::paper()).await })
        .expect("nothing fails");
    let log = open(&mut executor, &log_device, &origin, DestageOrder::Log, Duration::from_secs(3600));
    for index in 0..20u8 {
        let bytes = Buffer::copy_of(&vec![index + 1; LARGE_BYTES as usize]);
        executor.block_on(log.write(u64::from(index) * LARGE_BYTES, bytes, false)).expect("nothing fails");
    }
    (executor, medium, origin, log)
}

/// Changes one byte of the large write that is filled with `byte`.
fn damage(medium: &CrashLayer, byte: u8) {
    let bytes = medium.durable_bytes(0, 2 << 20);
    let at = bytes.windows(4096).position(|window| window == [byte; 4096]).expect("it is in the log");
    medium.corrupt(at as u64 + 1000, &[0xff]);
}

#[test]
fn damage_in_several_segments_is_lost_by_name_and_all_else_is_sent() {
    for order in ORDERS {
        let (mut executor, medium, origin, log) = many_segments();
        executor.block_on(async move { log.close(true).await }).expect("nothing fails");
        [3, 8, 9, 20].iter().for_each(|&byte| damage(&medium, byte));
        let device: SharedDevice = Arc::new(medium.clone());
        let (checked, clock) = (Arc::clone(&device), executor.clock());
        let found = executor.block_on(async move { check(&checked, None, &clock).await }).expect("damage is no error");
        let ranges: Vec<(u64, u64)> = found
            .damaged
            .iter()
            .map(|range| (range.offset_bytes / LARGE_BYTES, range.length_bytes / LARGE_BYTES))
            .collect();
        assert_eq!(ranges, [(2, 1), (7, 2), (19, 1)]);
        let log = open(&mut executor, &device, &origin, order, Duration::from_secs(1));
        let minute = executor.clock().sleep(Duration::from_secs(60));
        executor.block_on(minute);
        assert_eq!(log.status().lost_bytes, 4 * LARGE_BYTES, "{order}");
        let closed = executor.block_on(async move { log.close(false).await });
        assert_eq!(closed.map_err(|error| error.kind()), Err(ErrorKind::Media), "{order}");
        for byte in 1..=20u8 {
            let place = u64::from(byte - 1) * LARGE_BYTES;
            let bytes = executor.block_on(origin.read(place, Buffer::zeroed(LARGE_BYTES as usize)));
            let expected = if [3, 8, 9, 20].contains(&byte) { 0 } else { byte };
            let bytes = bytes.expect("nothing fails");
            assert!(bytes.iter().all(|&held| held == expected), "{order}: write {byte}");
        }
    }
}

/// Records continue behind the segment in which one is missing: with at most two of them under way,
/// that is no torn end.
#[test]
fn a_damaged_record_that_later_segments_disprove_refuses_the_log() {
    for damaged in [5u8, 6] {
        let (mut executor, medium, origin, _log) = many_segments();
        damage(&medium, damaged);
        let after: SharedDevice = Arc::new(medium.after_power_loss());
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        options.level2.idle = Duration::from_secs(3600);
        let opened = executor.block_on(WriteLog::open(after, Arc::clone(&origin), options));
        let error = opened.err().expect("16 acknowledged writes would be gone");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

/// Of two records under way the second may have landed alone. A third proves that the first was durable.
#[test]
fn a_missing_record_is_a_torn_end_before_one_and_damage_before_two() {
    for (damaged, refusal) in [(1, Some(ErrorKind::Corrupt)), (2, None)] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(2 << 20, 1);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(medium.clone()), Arc::new(CrashLayer::new(8 << 20, 2)));
        let (made, below) = (Arc::clone(&device), Arc::clone(&origin));
        let formatted = async move { WriteLog::format(&made, &below, FormatOptions::paper()).await };
        executor.block_on(formatted).expect("nothing fails");
        let log = open(&mut executor, &device, &origin, DestageOrder::Log, Duration::from_secs(3600));
        for byte in 1..=3u8 {
            let written = log.write(u64::from(byte) * 4096, Buffer::copy_of(&[byte; 4096]), false);
            executor.block_on(written).expect("nothing fails");
        }
        damage(&medium, damaged);
        let options = OpenOptions::new(Arc::new(executor.clock()));
        let opened = executor.block_on(WriteLog::open(Arc::new(medium.after_power_loss()), origin, options));
        assert_eq!(opened.err().map(|error| error.kind()), refusal, "record {damaged}");
    }
}

const SLOT_BYTES: u64 = 1024;

/// The piece of the log below a slot of RAM, needed if the slot is lost, is damaged: it is marked
/// lost, once.
#[test]
fn damage_below_a_slot_is_lost_once() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(2 << 20, 1);
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(medium.clone()), Arc::new(CrashLayer::new(8 << 20, 2)));
    let (made, below) = (Arc::clone(&device), Arc::clone(&origin));
    let formatted = async move { WriteLog::format(&made, &below, FormatOptions::paper()).await };
    executor.block_on(formatted).expect("nothing fails");
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.durability = Durability::UnsafeVolatile;
    options.order = DestageOrder::Lba;
    options.record_cache_bytes = 0;
    options.level1.share_start = 1.0;
    // Level 2 is always at work; slots are not moved.
    (options.level2.share_start, options.level2.idle) = (0.0, Duration::from_secs(3600));
    options.level2.age_max = Duration::from_secs(3600);
    let log = executor.block_on(WriteLog::open(device, origin, options)).expect("nothing fails");
    executor.spawn(log.run_requests());
    let write = |executor: &mut Executor, byte| {
        executor.block_on(log.write(4096, Buffer::copy_of(&[byte; 4096]), false)).expect("nothing fails")
    };
    write(&mut executor, 1);
    executor.block_on(log.flush()).expect("nothing fails");
    write(&mut executor, 2);
    damage(&medium, 1);
    executor.spawn(log.run_destaging());
    for _ in 0..100 {
        executor.run_until_stalled();
        executor.clock().advance(Duration::from_millis(100));
    }
    assert_eq!(log.status().lost_bytes, SLOT_BYTES, "of the four slots that it came from one");
    let read = executor.block_on(log.read(4096, Buffer::zeroed(4096))).expect("the slot is whole");
    assert_eq!(read[..], [2; 4096]);
}
