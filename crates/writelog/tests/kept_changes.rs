//! Other hosts wrote to the LUN where the log has dirty data: an open is refused before anything is
//! sent, in whatever order the log was used.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::{Executor, block_on};
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::memory::MemoryDevice;
use block::{Error, ErrorKind, Identity, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use writelog::{ConflictingChanges, DestageOrder, Durability, OpenOptions, PersistentRegion, VolatileRegion, WriteLog};

const ORIGIN_BYTES: u64 = 64 * 4096;
const EVERYTHING: ByteRange = ByteRange { offset: 0, length: ORIGIN_BYTES };

struct World {
    log: SharedDevice,
    origin: CrashLayer,
    durability: Durability,
    nvram: Arc<dyn PersistentRegion>,
}

impl World {
    /// A log that has dirty blocks 0, 2 and 4, left by order `lba`, in slots or in records.
    fn new(durability: Durability) -> Self {
        let world = Self {
            log: Arc::new(MemoryDevice::new(1 << 20, Identity::default())),
            origin: CrashLayer::new(ORIGIN_BYTES, 1),
            durability,
            nvram: Arc::new(VolatileRegion::new(64 << 10)),
        };
        let mut executor = Executor::in_order();
        format(&mut executor, &world.log, &world.shared_origin());
        let log = world.open(&mut executor, DestageOrder::Lba, &[]).expect("nothing was changed");
        [0, 2, 4].iter().for_each(|block| write(&mut executor, log.as_ref(), block * 4096, &[1; 4096]));
        // The program is killed.
        world
    }

    fn shared_origin(&self) -> SharedDevice {
        Arc::new(self.origin.clone())
    }

    fn open(
        &self,
        executor: &mut Executor,
        order: DestageOrder,
        kept_changes: &[ByteRange],
    ) -> Result<Arc<WriteLog>, Error> {
        let kind = Kind { durability: self.durability, order };
        let options = open_options(executor, kind, Some(Arc::clone(&self.nvram)));
        let options = OpenOptions { kept_changes: kept_changes.to_vec(), ..options };
        try_open(executor, &self.log, &self.shared_origin(), options)
    }

    /// Count of dirty bytes for which an open is refused.
    fn conflicting_bytes(&self, order: DestageOrder, kept_changes: &[ByteRange]) -> Option<u64> {
        let error = self.open(&mut Executor::in_order(), order, kept_changes).err()?;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        Some(ConflictingChanges::of(&error).expect("it says why").bytes)
    }
}

#[test]
fn an_open_after_others_changed_what_is_dirty_is_refused_before_anything_is_sent() {
    let range = |offset, length| ByteRange { offset, length };
    for durability in [Durability::Log, Durability::Nvram] {
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            let world = World::new(durability);
            block_on(world.origin.write(0, Buffer::copy_of(&[9; 8192]), true)).expect("nothing fails");
            let seen = world.origin.writes_seen();
            let conflicting = |ranges: &[ByteRange]| world.conflicting_bytes(order, ranges);
            assert_eq!(conflicting(&[EVERYTHING]), Some(3 * 4096));
            assert_eq!(conflicting(&[range(2048, 8192), range(4096, 4096)]), Some(2048 + 2048));
            assert_eq!(conflicting(&[range(100, 1), range(4096, 4096)]), Some(512), "in whole sectors");
            assert_eq!(world.origin.writes_seen(), seen, "{durability}, {order}: something was sent");
            let mut executor = Executor::in_order();
            let log = world.open(&mut executor, order, &[range(4096, 4096), range(0, 0)]).expect("none of it is dirty");
            assert_eq!(read(&mut executor, log.as_ref(), 0, 8192), [[1; 4096], [9; 4096]].concat());
            executor.block_on(async move { log.close(false).await }).expect("nothing fails");
            assert_eq!(world.origin.durable_bytes(0, 8192), [[1; 4096], [9; 4096]].concat());
            assert!(world.open(&mut executor, order, &[EVERYTHING]).is_ok(), "nothing is dirty any more");
        }
    }
}

/// Other hosts write after an open: where nothing is dirty reads return their data, even if the log
/// has a clean copy, and a crash does not send again what was destaged before.
#[test]
fn what_others_change_behind_an_open_is_read_and_not_written_over_after_a_crash() {
    for durability in [Durability::Log, Durability::Nvram] {
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            let world = World::new(durability);
            let mut executor = Executor::in_order();
            let log = world.open(&mut executor, order, &[]).expect("nothing was changed");
            let invalidate = |executor: &mut Executor, is_overwritten| {
                let log = Arc::clone(&log);
                executor.block_on(async move { log.invalidate(&[EVERYTHING], is_overwritten).await })
            };
            let error = invalidate(&mut executor, false).expect_err("three blocks are dirty");
            assert_eq!(ConflictingChanges::of(&error), Some(&ConflictingChanges { bytes: 3 * 4096 }));
            invalidate(&mut executor, true).expect("they are to be written over what others wrote");
            assert_eq!(read(&mut executor, log.as_ref(), 0, 4096), [1; 4096]);
            let destaging = Arc::clone(&log);
            executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
            block_on(world.origin.write(0, Buffer::copy_of(&[9; 8192]), true)).expect("nothing fails");
            invalidate(&mut executor, false).expect("nothing is dirty any more");
            assert_eq!(read(&mut executor, log.as_ref(), 0, 8192), [9; 8192], "{durability}, {order}");
            // The program is killed.
            drop((log, executor));
            let mut executor = Executor::in_order();
            let log = world.open(&mut executor, order, &[]).expect("nothing was changed");
            executor.block_on(async move { log.close(false).await }).expect("nothing fails");
            assert_eq!(world.origin.durable_bytes(0, 8192), [9; 8192], "{durability}, {order}");
        }
    }
}

#[test]
fn a_lun_that_ends_before_what_is_dirty_refuses_the_open_until_it_has_its_size_again() {
    for durability in [Durability::Log, Durability::Nvram] {
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            let mut world = World::new(durability);
            let mut opened_over = |size_bytes| {
                world.origin = CrashLayer::new(size_bytes, 1);
                world.open(&mut Executor::in_order(), order, &[]).map(drop).map_err(|error| error.kind())
            };
            assert_eq!(opened_over(5 * 4096 - 512), Err(ErrorKind::Corrupt), "{durability}, {order}");
            assert_eq!(opened_over(5 * 4096), Ok(()), "{durability}, {order}: block 4 is the last");
        }
    }
}
