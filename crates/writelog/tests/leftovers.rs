//! Data left by another order when a log is opened in order `log`: an open sends none of it, and
//! all of it is on the LUN before anything newer.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Geometry, SharedDevice};
use common::{Kind, format, open_options, read};
use writelog::{DestageOrder, Durability, PersistentRegion, VolatileRegion, WriteLog};

const BLOCKS: u64 = 40;
const BLOCK_BYTES: u64 = 4096;
const LOG_BYTES: u64 = 1 << 20;
const SLOTS_BYTES: usize = 128 << 10;
/// Offset of the order in the superblock: `docs/formats/writelog.md`.
const ORDER_AT: u64 = 128 + 2573;

/// One host's log over a LUN with a volatile cache, and the history of its writes.
struct World {
    executor: Executor,
    random: Random,
    durability: Durability,
    log_medium: CrashLayer,
    origin: CrashLayer,
    nvram: Arc<dyn PersistentRegion>,
    history: HashMap<u64, Vec<u8>>,
    newest: u8,
    /// The last write of the earlier lives: writes up to it may be on the LUN in any order.
    newest_before: u8,
}

impl World {
    fn new(seed: u64, durability: Durability) -> Self {
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(BLOCKS * BLOCK_BYTES) };
        let mut world = Self {
            executor: Executor::new(seed),
            random: Random::new(seed),
            durability,
            log_medium: CrashLayer::new(LOG_BYTES, seed),
            origin: CrashLayer::new(BLOCKS * BLOCK_BYTES, seed + 1).with_geometry(geometry),
            nvram: Arc::new(VolatileRegion::new(SLOTS_BYTES)),
            history: HashMap::new(),
            newest: 0,
            newest_before: 0,
        };
        let (log, origin): (SharedDevice, SharedDevice) =
            (Arc::new(world.log_medium.clone()), Arc::new(world.origin.clone()));
        format(&mut world.executor, &log, &origin);
        world
    }

    /// Opens the log, without level 2.
    fn open(&mut self, order: DestageOrder) -> Arc<WriteLog> {
        let workers = Workers::new();
        let latency = Latency::Between(Duration::ZERO, Duration::from_micros(300));
        let log = self.log_medium.clone().with_latency(Arc::new(self.executor.clock()), latency, &workers);
        self.executor.spawn(async move { workers.run().await });
        let (log, origin): (SharedDevice, SharedDevice) = (Arc::new(log), Arc::new(self.origin.clone()));
        let kind = Kind { durability: self.durability, order };
        let mut options = open_options(&self.executor, kind, Some(Arc::clone(&self.nvram)));
        // An epoch is sent at once, with one flush.
        options.level2.batch_bytes = LOG_BYTES;
        options.level2.is_interruptible = false;
        let log = self.executor.block_on(WriteLog::open(log, origin, options)).expect("nothing fails");
        self.executor.spawn(log.run_requests());
        log
    }

    fn write(&mut self, log: &WriteLog) {
        self.newest += 1;
        let block = self.random.below(BLOCKS);
        self.history.entry(block).or_default().push(self.newest);
        let bytes = Buffer::copy_of(&[self.newest; BLOCK_BYTES as usize]);
        self.executor.block_on(log.write(block * BLOCK_BYTES, bytes, false)).expect("nothing fails");
        for _ in 0..self.random.below(6) {
            self.executor.run_until_stalled();
            self.executor.clock().advance(Duration::from_micros(self.random.below(300)));
        }
    }

    /// The host is killed; the LUN goes on.
    fn kill(&mut self, log: Arc<WriteLog>) {
        drop(log);
        self.executor = Executor::new(self.newest.into());
        self.log_medium = self.log_medium.after_restart_as(Loss::Seeded(1), &Power::new());
        self.newest_before = self.newest;
    }

    /// Two lives in another order: one that destages part of its data, and one that destages
    /// nothing.
    fn leave(&mut self, order: DestageOrder) {
        for is_destaging in [true, false] {
            let log = self.open(order);
            if is_destaging {
                self.executor.spawn(log.run_destaging());
            }
            (0..30).for_each(|_| self.write(&log));
            self.kill(log);
        }
    }

    /// The expected byte of a block after all writes, or after those up to `newest`.
    fn expected(&self, block: u64, newest: u8) -> u8 {
        let writes = self.history.get(&block).map_or(&[][..], Vec::as_slice);
        writes.iter().copied().filter(|&number| number <= newest).max().unwrap_or(0)
    }

    /// Checks that newer data is on the LUN only with all that was left, and then as it was at one
    /// moment.
    fn check_origin(&self, context: &str) {
        let held = |block| self.origin.durable_bytes(block * BLOCK_BYTES, 1)[0];
        let newest = (0..BLOCKS).map(held).max().unwrap_or(0);
        if newest <= self.newest_before {
            return;
        }
        for block in 0..BLOCKS {
            let expected = self.expected(block, newest);
            assert_eq!(held(block), expected, "{context}: block {block} when the LUN has got write {newest}");
        }
    }

    fn invalidate_nothing(&mut self, log: &Arc<WriteLog>) {
        let log = Arc::clone(log);
        self.executor.block_on(async move { log.invalidate(&[], false).await }).expect("nothing fails");
    }

    fn order_on_device(&self) -> u8 {
        self.log_medium.durable_bytes(ORDER_AT, 1)[0]
    }
}

fn kinds() -> impl Iterator<Item = (DestageOrder, Durability)> {
    let orders = [DestageOrder::Lba, DestageOrder::LastWriteFirst];
    orders.into_iter().flat_map(|order| [Durability::Log, Durability::Nvram].map(|durability| (order, durability)))
}

#[test]
fn an_open_sends_nothing_of_what_another_order_left_and_neither_does_what_follows_until_it_is_told_to() {
    for (order, durability) in kinds() {
        let mut world = World::new(1, durability);
        world.leave(order);
        let seen = world.origin.writes_seen();
        for life in 0..3 {
            let log = world.open(DestageOrder::Log);
            world.invalidate_nothing(&log);
            (0..5).for_each(|_| world.write(&log));
            assert_ne!(world.order_on_device(), 0, "a checkpoint says that what was left is part of no epoch");
            if life == 1 {
                let log = Arc::clone(&log);
                world.executor.block_on(async move { log.close(true).await }).expect("nothing fails");
            }
            world.kill(log);
        }
        assert_eq!(world.origin.writes_seen(), seen, "{order}, {durability}");
        let log = world.open(DestageOrder::Log);
        world.executor.spawn(log.run_destaging());
        let destaging = Arc::clone(&log);
        world.executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
        let expected: Vec<u8> = (0..BLOCKS).map(|block| world.expected(block, u8::MAX)).collect();
        let held = world.origin.durable_bytes(0, (BLOCKS * BLOCK_BYTES) as usize);
        assert!(held.chunks(BLOCK_BYTES as usize).map(|block| block[0]).eq(expected), "{order}, {durability}");
        world.invalidate_nothing(&log);
        assert_eq!(world.order_on_device(), 0, "from now on the LUN is a prefix");
    }
}

#[test]
fn what_another_order_left_is_on_the_lun_before_anything_newer_whenever_the_host_is_killed() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 8, 1) {
        let _printed = test.on_panic(seed, None);
        for (order, durability) in kinds() {
            let mut world = World::new(seed, durability);
            world.leave(order);
            for life in 0..3 {
                let context = format!("{order}, {durability}, seed {seed}, life {life}");
                let log = world.open(DestageOrder::Log);
                // Overwritten data is in an epoch of its own.
                (0..10).for_each(|_| world.write(&log));
                world.check_origin(&context);
                world.executor.spawn(log.run_destaging());
                for _ in 0..world.random.below(50) {
                    world.write(&log);
                    world.check_origin(&context);
                }
                let bytes = read(&mut world.executor, log.as_ref(), 0, BLOCKS * BLOCK_BYTES);
                let expected = (0..BLOCKS).map(|block| world.expected(block, u8::MAX));
                assert!(bytes.chunks(BLOCK_BYTES as usize).map(|block| block[0]).eq(expected), "{context}");
                world.kill(log);
            }
        }
    }
}
