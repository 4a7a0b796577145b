//! What `check` finds in NVRAM: writes as they were acknowledged, the one slot that a power loss may tear, and more
//! than that, which is damage.

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{ErrorKind, Identity, SharedDevice};
use writelog::{
    DamagedRange, Durability, FormatOptions, Inspection, NvramInspection, OpenOptions, PersistentRegion,
    VolatileRegion, WriteLog, check,
};

const SLOT_BYTES: u64 = 1024;

struct World {
    executor: Executor,
    log_device: SharedDevice,
    origin: SharedDevice,
    region: Arc<VolatileRegion>,
}

impl World {
    /// A log whose program stopped: block 1 is in the log and then, newer, in four slots; block 2 in four more.
    fn new() -> Self {
        let device = |name: &str, bytes| -> SharedDevice {
            let identity = Identity { target: "test".into(), unit: name.into(), serial: "1".into() };
            Arc::new(MemoryDevice::new(bytes, identity))
        };
        let (log_device, origin) = (device("log", 1 << 20), device("origin", 1 << 20));
        let (mut executor, region) = (Executor::in_order(), Arc::new(VolatileRegion::new(64 << 10)));
        let (made, below) = (Arc::clone(&log_device), Arc::clone(&origin));
        let options = FormatOptions { slot_bytes: SLOT_BYTES as u32, ..FormatOptions::paper() };
        executor.block_on(async move { WriteLog::format(&made, &below, options).await }).expect("RAM never fails");
        for (durability, blocks) in [(Durability::Log, &[1][..]), (Durability::Nvram, &[1, 2])] {
            let mut options = OpenOptions::new(Arc::new(executor.clock()));
            options.durability = durability;
            options.nvram = (durability == Durability::Nvram).then(|| region.clone() as Arc<dyn PersistentRegion>);
            options.level2.idle = Duration::from_secs(3600);
            options.level2.age_max = Duration::from_secs(3600);
            options.level2.share_start = 1.0;
            let opening = WriteLog::open(Arc::clone(&log_device), Arc::clone(&origin), options);
            let log = executor.block_on(opening).expect("RAM never fails");
            executor.spawn(log.run());
            for &block in blocks {
                let written = log.write(block * 4096, Buffer::copy_of(&[block as u8 + 7; 4096]), false);
                executor.block_on(written).expect("RAM never fails");
            }
            if durability == Durability::Log {
                executor.block_on(async move { log.close(true).await }).expect("RAM never fails");
            }
        }
        Self { executor, log_device, origin, region }
    }

    fn check(&mut self, is_nvram_given: bool) -> Result<Inspection, ErrorKind> {
        let (device, region, clock) = (Arc::clone(&self.log_device), Arc::clone(&self.region), self.executor.clock());
        let checked = async move { check(&device, is_nvram_given.then_some(&*region as _), &clock).await };
        self.executor.block_on(checked).map_err(|error| error.kind())
    }

    fn open(&mut self) -> Result<Arc<WriteLog>, ErrorKind> {
        let mut options = OpenOptions::new(Arc::new(self.executor.clock()));
        options.durability = Durability::Nvram;
        options.nvram = Some(self.region.clone());
        let opening = WriteLog::open(Arc::clone(&self.log_device), Arc::clone(&self.origin), options);
        self.executor.block_on(opening).map_err(|error| error.kind())
    }

    /// One bit of a slot's data changes. Slots are taken from the first on.
    fn rot(&mut self, slot: u64) {
        let data_at = (64 << 10) - 58 * SLOT_BYTES;
        let at = (data_at / 4096 * 4096 + slot * SLOT_BYTES + 100) as usize;
        let mut byte = [0];
        self.region.load(at, &mut byte);
        self.region.store(at, &[byte[0] ^ 4]);
    }

    fn found(&mut self) -> (NvramInspection, Vec<DamagedRange>) {
        let inspection = self.check(true).expect("it is readable");
        assert!(inspection.has_nvram);
        (inspection.nvram.expect("it was given"), inspection.damaged)
    }
}

#[test]
fn writes_in_slots_are_counted_only_when_the_nvram_is_there() {
    let mut world = World::new();
    let without = world.check(false).expect("it is readable");
    assert_eq!((without.has_nvram, without.nvram, without.dirty_bytes), (true, None, 4096));
    let (nvram, damaged) = world.found();
    assert_eq!((nvram.slots_whole, nvram.bytes, nvram.slots_torn), (8, 8192, 0));
    assert!(!nvram.is_damaged() && damaged.is_empty());
}

#[test]
fn one_torn_slot_is_a_power_loss_and_two_are_damage() {
    let mut world = World::new();
    world.rot(5);
    let (nvram, damaged) = world.found();
    assert_eq!((nvram.slots_whole, nvram.slots_torn, nvram.is_damaged()), (7, 1, false));
    assert!(damaged.is_empty());
    world.rot(6);
    let (nvram, mut damaged) = world.found();
    assert!(nvram.is_damaged());
    damaged.sort_by_key(|range| range.offset_bytes);
    let range = |offset_bytes| DamagedRange { offset_bytes, length_bytes: SLOT_BYTES };
    assert_eq!(damaged, [range(2 * 4096 + 1024), range(2 * 4096 + 2048)], "what the slots say they are");
}

#[test]
fn more_torn_slots_than_a_power_loss_leaves_refuse_the_log() {
    let mut world = World::new();
    world.rot(5);
    drop(world.open().expect("one is a write that nobody was told of"));
    assert_eq!(world.found().0.slots_torn, 0, "so that the next power loss may tear another");
    world.rot(6);
    drop(world.open().expect("that one"));
    world.rot(1);
    world.rot(2);
    assert_eq!(world.open().err(), Some(ErrorKind::Corrupt));
}

#[test]
fn damage_in_the_log_counts_only_where_no_slot_is_newer() {
    let mut world = World::new();
    let size = world.log_device.geometry().size_bytes;
    for offset in (0..size).step_by(512) {
        let read = world.log_device.read(offset, Buffer::zeroed(512));
        let mut bytes = world.executor.block_on(read).expect("RAM never fails");
        if bytes[..] == [8; 512] {
            bytes[7] ^= 1;
            world.executor.block_on(world.log_device.write(offset, bytes, true)).expect("RAM never fails");
        }
    }
    assert_eq!(world.check(false).expect("it is readable").damaged.len(), 1, "without the NVRAM it is the newest");
    assert!(world.found().1.is_empty());
}

#[test]
fn another_logs_nvram_is_refused() {
    let mut world = World::new();
    world.region = World::new().region;
    assert_eq!(world.check(true).err(), Some(ErrorKind::Corrupt));
    world.region = Arc::new(VolatileRegion::new(64 << 10));
    assert_eq!(world.check(true).err(), Some(ErrorKind::Corrupt), "acknowledged data may be in the right one");
}

/// The next program writes part of a slot's sectors again, and is killed, too.
#[test]
fn what_is_written_is_newer_than_what_was_found_in_slots() {
    let mut world = World::new();
    let log = world.open().expect("nothing is damaged");
    let written = log.write(4096, Buffer::copy_of(&[77; 512]), false);
    world.executor.block_on(written).expect("RAM never fails");
    drop(log);
    let log = world.open().expect("nothing is damaged");
    let read = world.executor.block_on(log.read(4096, Buffer::zeroed(4096))).expect("RAM never fails");
    assert_eq!(read[..], [[77; 512].as_slice(), &[8; 4096 - 512]].concat());
}
