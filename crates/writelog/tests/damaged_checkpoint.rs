//! A checkpoint whose checksum is right and whose rows cannot be (a broken memory, a forger) is refused when the log is
//! opened. Found by fuzzing (`log_image`): extents that overlapped, or reached out of their segment, were taken into
//! the map, and came apart later in a panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base::buffer::Buffer;
use base::checksum::crc32c;
use base::clock::Clock as _;
use base::executor::Executor;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Device, ErrorKind, Identity, SharedDevice};
use writelog::format::{CHECKPOINT_MAGIC, CheckpointRaw, ExtentRaw, SegmentRaw};
use writelog::layout::Layout;
use writelog::numbers::SegmentNumber;
use writelog::{DestageOrder, FormatOptions, OpenOptions, WriteLog};
use zerocopy::{FromBytes, IntoBytes};

const LOG_BYTES: u64 = 512 << 10;

struct World {
    executor: Executor,
    log_device: SharedDevice,
    origin: SharedDevice,
}

impl World {
    /// A closed log whose checkpoint has three extents.
    fn new() -> Self {
        let device = |name: &str, bytes| -> SharedDevice {
            let identity = Identity { target: "test".into(), unit: name.into(), serial: "1".into() };
            Arc::new(MemoryDevice::new(bytes, identity))
        };
        let (log_device, origin) = (device("log", LOG_BYTES), device("origin", 1 << 20));
        let mut world = Self { executor: Executor::in_order(), log_device, origin };
        let (device, origin) = (Arc::clone(&world.log_device), Arc::clone(&world.origin));
        let formatted = async move { WriteLog::format(&device, &origin, FormatOptions::paper()).await };
        world.executor.block_on(formatted).expect("RAM never fails");
        let log = world.open().expect("it is new");
        for block in [1, 3, 5] {
            let written = log.write(block * 4096, Buffer::copy_of(&[7; 4096]), false);
            world.executor.block_on(written).expect("RAM never fails");
        }
        world.executor.block_on(async move { log.close(true).await }).expect("RAM never fails");
        world
    }

    fn open(&mut self) -> Result<Arc<WriteLog>, ErrorKind> {
        self.open_in(DestageOrder::Log)
    }

    fn open_in(&mut self, order: DestageOrder) -> Result<Arc<WriteLog>, ErrorKind> {
        let mut options = OpenOptions::new(Arc::new(self.executor.clock()));
        options.order = order;
        options.record_cache_bytes = 0;
        options.level2.idle = std::time::Duration::from_secs(3600);
        options.level2.age_max = std::time::Duration::from_secs(3600);
        options.level2.share_start = 1.0;
        let opening = WriteLog::open(Arc::clone(&self.log_device), Arc::clone(&self.origin), options);
        let log = self.executor.block_on(opening).map_err(|error| error.kind())?;
        self.executor.spawn(log.run());
        Ok(log)
    }

    /// Changes the extents of both checkpoint slots, wherever there is one, and makes the checksums right again.
    fn change(&mut self, change: impl Fn(&mut [ExtentRaw], &Layout)) {
        self.change_rows(|_, extents, layout| change(extents, layout));
    }

    /// Likewise, and the segments.
    fn change_rows(&mut self, change: impl Fn(&mut [SegmentRaw], &mut [ExtentRaw], &Layout)) {
        let layout =
            Layout::new(self.log_device.geometry().size_bytes, &FormatOptions::paper()).expect("as it was made");
        let mut changed = 0;
        for slot in [0, 1] {
            let (offset, length) = (layout.checkpoint_slot(slot), layout.checkpoint_bytes as usize);
            let mut bytes = self.executor.block_on(self.log_device.read(offset, Buffer::zeroed(length))).expect("RAM");
            let (head, rest) = CheckpointRaw::read_from_prefix(&bytes).expect("a slot has room for it");
            if head.magic.get() != CHECKPOINT_MAGIC || head.extent_count.get() == 0 {
                continue;
            }
            let mut rows = rest.to_vec();
            let (segments, rest) =
                <[SegmentRaw]>::mut_from_prefix_with_elems(&mut rows, head.segment_count.get() as usize)
                    .expect("the slot has room for them");
            let (extents, _) = <[ExtentRaw]>::mut_from_prefix_with_elems(rest, head.extent_count.get() as usize)
                .expect("the slot has room for them");
            change(segments, extents, &layout);
            let row_bytes = size_of_val(segments) + size_of_val(extents);
            let start = size_of::<CheckpointRaw>();
            bytes[start..start + row_bytes].copy_from_slice(&rows[..row_bytes]);
            let checksum = crc32c(&bytes[4..start + row_bytes]);
            bytes[..4].copy_from_slice(checksum.as_bytes());
            self.executor.block_on(self.log_device.write(offset, bytes, true)).expect("RAM never fails");
            changed += 1;
        }
        assert!(changed > 0, "there is a checkpoint to change");
    }
}

#[test]
fn a_checkpoint_changed_as_little_as_not_at_all_is_taken() {
    let mut world = World::new();
    world.change(|extents, _| assert_eq!(extents.len(), 3));
    let log = world.open().expect("nothing is wrong with it");
    assert_eq!(log.status().dirty_bytes, 3 * 4096);
}

#[test]
fn rows_that_cannot_be_are_refused() {
    type Change = fn(&mut [ExtentRaw], &Layout);
    let changes: [(&str, Change); 8] = [
        ("overlap the next", |extents, _| extents[0].sectors = 17.into()),
        ("descend", |extents, _| extents.swap(0, 2)),
        ("are there twice", |extents, _| extents[1] = extents[0]),
        ("are empty", |extents, _| extents[1].sectors = 0.into()),
        ("reach into the next segment", |extents, layout| {
            extents[2].place = (layout.unit(SegmentNumber(1), 0).0 as u32 - 1).into();
        }),
        ("lie in a segment that is not in use", |extents, layout| {
            extents[2].place = (layout.unit(SegmentNumber(3), 512).0 as u32).into()
        }),
        ("lie behind the last segment", |extents, layout| extents[2].place = (layout.end().0 as u32 - 4).into()),
        ("begin where no disk has a sector", |extents, _| extents[2].sector = u64::MAX.into()),
    ];
    for (what, change) in changes {
        let mut world = World::new();
        world.change(change);
        assert_eq!(world.open().err(), Some(ErrorKind::Corrupt), "extents that {what}");
    }
}

#[test]
fn more_dirty_bytes_than_a_segment_has_are_refused() {
    let mut world = World::new();
    // Each extent alone is possible: nearly a whole segment, all from one place.
    world.change(|extents, layout| {
        let sectors = (layout.segment_bytes / 512 - 8) as u32;
        for (index, extent) in extents.iter_mut().enumerate() {
            let sector = index as u64 * u64::from(sectors);
            *extent = ExtentRaw { sector: sector.into(), sectors: sectors.into(), place: 1.into() };
        }
    });
    assert_eq!(world.open().err(), Some(ErrorKind::Corrupt));
}

/// A log device that ends the test after too many requests: virtual time stands still while a task
/// loops for ever.
struct Counted {
    inner: SharedDevice,
    requests: AtomicU32,
}

impl Device for Counted {
    fn geometry(&self) -> block::Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: block::Request) -> block::Completion {
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        assert!(count < 2000, "somebody asks again and again");
        self.inner.submit(request)
    }

    fn subscribe(&self) -> block::EventReceiver {
        self.inner.subscribe()
    }
}

/// A damaged record, and a checkpoint that promises more records than the log has, leave level 2
/// nothing to do. It once looked again at once, for ever.
#[test]
fn a_segment_that_promises_records_to_come_keeps_nobody_busy() {
    let mut world = World::new();
    world.change_rows(|segments, _, _| {
        let last = segments.last_mut().expect("a segment is in use");
        last.last_sequence = (last.last_sequence.get() + 1000).into();
    });
    // The data of block 3, behind the first record of 512 + 4096 bytes and the header of its own.
    let layout = Layout::new(LOG_BYTES, &FormatOptions::paper()).expect("as it was made");
    let offset = layout.segment(SegmentNumber(0)).offset + 4608 + 512;
    let mut bytes = world.executor.block_on(world.log_device.read(offset, Buffer::zeroed(512))).expect("RAM");
    assert_eq!(bytes[..], [7; 512], "the layout of records is another one");
    bytes[9] ^= 1;
    world.executor.block_on(world.log_device.write(offset, bytes, true)).expect("RAM never fails");
    let device = Arc::new(Counted { inner: Arc::clone(&world.log_device), requests: AtomicU32::new(0) });
    let options = OpenOptions { record_cache_bytes: 0, ..OpenOptions::new(Arc::new(world.executor.clock())) };
    let opening = WriteLog::open(device.clone(), Arc::clone(&world.origin), options);
    let log = world.executor.block_on(opening).expect("the records may be behind the checkpoint");
    world.executor.spawn(log.run());
    let idle = world.executor.clock().sleep(std::time::Duration::from_secs(60));
    world.executor.block_on(idle);
    let read = |block: u64| world.origin.read(block * 4096, Buffer::zeroed(4096));
    let blocks = [1, 3, 5].map(|block| world.executor.block_on(read(block)).expect("RAM never fails")[0]);
    assert_eq!(blocks, [7, 0, 7], "what is whole was sent");
}

/// Extents that lie within each other in the log, though not on the origin. Reading them by their
/// places once began behind the first.
#[test]
fn pieces_that_lie_within_each_other_end_in_values() {
    for order in [DestageOrder::Lba, DestageOrder::Log, DestageOrder::LastWriteFirst] {
        let mut world = World::new();
        world.change(|extents, layout| {
            let first = layout.unit(SegmentNumber(0), 512).0 as u32;
            for (extent, (place, sectors)) in extents.iter_mut().zip([(first, 24), (first + 8, 8), (first + 4, 2)]) {
                (extent.place, extent.sectors) = (place.into(), sectors.into());
            }
        });
        // Bytes that no record has for this sector are never sent; the rest ends in a value.
        let Ok(log) = world.open_in(order) else { continue };
        let closing = Arc::clone(&log);
        let _ = world.executor.block_on(async move { closing.close(false).await });
        let kept = world.executor.block_on(async move { log.close(true).await });
        assert!(kept.is_ok(), "{order}: {kept:?}");
    }
}
