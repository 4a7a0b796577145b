//! What `check` finds when bytes of the log change behind its back: exactly what is dirty and not as it was written.

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use writelog::layout::Layout;
use writelog::{DamagedRange, FormatOptions, Inspection, OpenOptions, WriteLog, check, inspect};

const LOG_BYTES: u64 = 512 << 10;
/// A record of one write of 4 KiB: what is before its data, and its data.
const PREFIX_BYTES: u64 = 512;
const RECORD_BYTES: u64 = PREFIX_BYTES + 4096;

struct World {
    executor: Executor,
    medium: CrashLayer,
    log_device: SharedDevice,
    /// Where the first record is.
    records_at: u64,
}

impl World {
    /// A closed log with records of the blocks 1, 3, 5, 3 (again) and 6, opened once more since: replay begins in another segment.
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
            let mut options = OpenOptions::new(Arc::new(executor.clock()));
            options.level2.idle = Duration::from_secs(3600);
            options.level2.age_max = Duration::from_secs(3600);
            options.level2.share_start = 1.0;
            let opening = WriteLog::open(Arc::clone(&log_device), Arc::clone(&origin), options);
            let log = executor.block_on(opening).expect("nothing fails");
            executor.spawn(log.run());
            for &(block, byte) in blocks {
                let written = log.write(block * 4096, Buffer::copy_of(&[byte; 4096]), false);
                executor.block_on(written).expect("nothing fails");
            }
            executor.block_on(async move { log.close(true).await }).expect("nothing fails");
        }
        let layout = Layout::new(LOG_BYTES, &FormatOptions::paper()).expect("as it was made");
        let mut world = Self { executor, medium, log_device, records_at: 0 };
        let first = (0..layout.segment_count).map(|segment| layout.segment(segment).offset);
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

    /// One bit of the log becomes another.
    fn rot(&mut self, offset: u64) {
        let sector = offset / 512 * 512;
        let mut bytes = self.bytes(sector);
        bytes[(offset - sector) as usize] ^= 4;
        self.executor.block_on(self.log_device.write(sector, bytes, true)).expect("nothing fails");
    }

    fn check(&mut self) -> Inspection {
        let (device, clock) = (Arc::clone(&self.log_device), self.executor.clock());
        self.executor.block_on(async move { check(&device, &clock).await }).expect("damage is no error")
    }

    fn inspect(&mut self) -> Inspection {
        let (device, clock) = (Arc::clone(&self.log_device), self.executor.clock());
        self.executor.block_on(async move { inspect(&device, &clock).await }).expect("the map is whole")
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
