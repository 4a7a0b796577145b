//! What cleaning sends to the LUN: fewer writes than the application made, and a sector that the LUN refuses costs its
//! own line only.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::disk::{DiskLayer, DiskModel};
use block::layer::error::{ErrorLayer, ErrorRule, Trigger};
use block::layer::stats::StatsLayer;
use block::memory::MemoryDevice;
use block::{Completion, Device, ErrorKind, Identity, OperationKind, Request, SharedDevice};
use cache::{Associativity, Cache, DirtyLimits, FormatOptions, LineSize, Mode, OpenOptions, Percent};
use common::{format, format_options, open_options, read, try_open, write};
use futures_util::stream::{FuturesUnordered, StreamExt};
use workload::AccessKind;
use workload::trace::kinds::Kind;
use workload::trace::{Options, Record, TraceReader};

const BLOCK: u64 = 4096;
const DISK_BLOCKS: u64 = 16_000;
const WRITE_BYTES_MAX: u64 = 1 << 20;

/// A LUN that takes its time, so that requests and cleaning meet.
const FLASH: DiskModel = DiskModel {
    seek: Duration::from_micros(100),
    rotation: Duration::ZERO,
    bytes_per_second: 400_000_000,
    flush: Duration::from_micros(200),
};

struct World {
    executor: Executor,
    cache: Arc<Cache>,
    cache_device: SharedDevice,
    memory: SharedDevice,
    origin: Arc<StatsLayer>,
    errors: Arc<ErrorLayer>,
}

impl World {
    fn new(format_as: FormatOptions, dirty: DirtyLimits, origin_bytes: u64, cache_bytes: u64) -> Self {
        let mut executor = Executor::in_order();
        let workers = Workers::new();
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let device = |bytes| -> SharedDevice { Arc::new(MemoryDevice::new(bytes, Identity::default())) };
        let memory = device(origin_bytes);
        let disk: SharedDevice = Arc::new(DiskLayer::new(Arc::clone(&memory), Arc::clone(&clock), &workers, FLASH));
        let errors = Arc::new(ErrorLayer::new(disk, &workers, 1));
        let origin = Arc::new(StatsLayer::new(Arc::clone(&errors) as SharedDevice, clock, &workers));
        executor.spawn(async move { workers.run().await });
        let (cache_device, lun) = (device(cache_bytes), Arc::clone(&origin) as SharedDevice);
        format(&mut executor, &cache_device, &lun, format_as);
        let options = OpenOptions { dirty, ..open_options(&executor, Mode::WriteBack) };
        let cache = try_open(&mut executor, &cache_device, &lun, options).expect("it was just made");
        Self { executor, cache, cache_device, memory, origin, errors }
    }

    fn clean(&mut self) -> Result<(), block::Error> {
        let cache = Arc::clone(&self.cache);
        self.executor.block_on(async move { cache.clean(|_| {}).await })
    }

    fn writes_sent(&self) -> u64 {
        self.origin.snapshot().of(OperationKind::Write).completed_count
    }
}

fn replay(world: &mut World, trace: &[Record], depth: usize) {
    let (cache, trace) = (Arc::clone(&world.cache), trace.to_vec());
    world.executor.block_on(async move {
        let mut running: FuturesUnordered<Completion> = FuturesUnordered::new();
        for Record { access, .. } in trace {
            let buffer = Buffer::zeroed(access.range.length as usize);
            let offset = access.range.offset;
            running.push(cache.submit(match access.kind {
                AccessKind::Write => Request::write(offset, buffer, false),
                _ => Request::read(offset, buffer),
            }));
            if running.len() == depth {
                running.next().await.expect("it is full").result.expect("nothing fails");
            }
        }
        while let Some(response) = running.next().await {
            response.result.expect("nothing fails");
        }
    });
}

fn writes(trace: &[Record]) -> impl Iterator<Item = &Record> {
    trace.iter().filter(|record| record.access.kind == AccessKind::Write)
}

/// Count of writes of up to a megabyte for everything written, if all of it were cleaned at the
/// end.
fn ideal(trace: &[Record]) -> u64 {
    let blocks_of = |record: &Record| record.access.range.offset / BLOCK..record.access.range.end().div_ceil(BLOCK);
    let blocks: BTreeSet<u64> = writes(trace).flat_map(blocks_of).collect();
    let (mut count, mut length, mut next) = (0, 0, u64::MAX);
    for block in blocks {
        if block != next || length == WRITE_BYTES_MAX / BLOCK {
            (count, length) = (count + 1, 0);
        }
        (length, next) = (length + 1, block + 1);
    }
    count
}

/// Replays it at depth 8 through a write-back cache of `cache_bytes`; cleaning goes on all the time.
fn sends_fewer_writes(name: &str, trace: &[Record], (disk_bytes, cache_bytes): (u64, u64)) {
    for line_bytes in [4096, 64 << 10] {
        let format_as = FormatOptions {
            line_size: LineSize::new(line_bytes).expect("it is a power of two"),
            associativity: Associativity::Ways(if line_bytes == 4096 { 256 } else { 16 }),
            ..format_options()
        };
        let mut world = World::new(format_as, DirtyLimits::default(), disk_bytes, cache_bytes);
        replay(&mut world, trace, 8);
        world.clean().expect("the LUN takes everything");
        assert_eq!(world.cache.status().dirty_lines, 0);
        let (sent, made, ideal) = (world.writes_sent(), writes(trace).count() as u64, ideal(trace));
        println!("{name}, lines of {line_bytes}: {sent} writes for {made} of the application, at best {ideal}");
        assert!(sent < made, "{name}, lines of {line_bytes}: {sent} writes for {made} of the application");
    }
}

#[test]
fn a_write_back_cache_sends_fewer_writes_than_the_application_made() {
    for (kind, count) in [(Kind::LargeWrites, 1500), (Kind::Server, 8000), (Kind::Shifting, 8000)] {
        let trace = kind.trace(3, count, DISK_BLOCKS);
        sends_fewer_writes(&format!("{kind:?}"), &trace, (DISK_BLOCKS * BLOCK, DISK_BLOCKS * BLOCK / 5));
    }
}

#[test]
fn so_does_one_under_a_trace_of_a_virtual_machine() {
    let Some(path) = std::env::var_os("FOREBAY_TRACE").filter(|path| !path.is_empty()) else {
        println!("skipped: FOREBAY_TRACE names no trace");
        return;
    };
    let file = std::fs::File::open(&path).expect("FOREBAY_TRACE names a file");
    let reader = TraceReader::new(std::io::BufReader::new(file), Options::default());
    let trace: Vec<Record> = reader.map(|record| record.expect("it is a trace")).collect();
    let disk_bytes = trace.iter().map(|record| record.access.range.end()).max().expect("it is not empty");
    sends_fewer_writes("the trace", &trace, (disk_bytes.next_multiple_of(1 << 20), 52 << 20));
}

fn on_command() -> DirtyLimits {
    DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL }
}

#[test]
fn one_large_write_leaves_as_one_though_its_lines_are_in_many_sets() {
    let format_as = FormatOptions { associativity: Associativity::Ways(32), ..format_options() };
    let mut world = World::new(format_as, on_command(), 64 << 20, 16 << 20);
    write(&mut world.executor, &world.cache, 100 << 10, &[7; 500 << 10]);
    world.clean().expect("the LUN takes everything");
    assert_eq!(world.writes_sent(), 1);
}

#[test]
fn a_sector_that_the_lun_refuses_keeps_its_own_line_dirty_and_no_other() {
    let mut world = World::new(format_options(), on_command(), 64 << 20, 16 << 20);
    write(&mut world.executor, &world.cache, 0, &[7; 40 * 4096]);
    write(&mut world.executor, &world.cache, 8 << 20, &[8; 4096]);
    let bad = ByteRange { offset: 20 * BLOCK + 512, length: 512 };
    world.errors.add(ErrorRule::new(Trigger::Always, ErrorKind::Media).on(&[OperationKind::Write]).within(bad));
    let error = world.clean().expect_err("one line cannot be sent");
    assert_eq!(error.kind(), ErrorKind::Media);
    assert_eq!(world.cache.status().dirty_lines, 1, "its neighbours are clean, and so is what comes after it");
    assert_eq!(read(&mut world.executor, &world.cache, 20 * BLOCK, BLOCK), [7; 4096]);
    assert_eq!(read(&mut world.executor, &world.memory, 21 * BLOCK, BLOCK), [7; 4096]);
    assert_eq!(read(&mut world.executor, &world.memory, 8 << 20, BLOCK), [8; 4096]);
    world.errors.clear();
    world.clean().expect("the sector can be written again");
    assert_eq!(world.cache.status().dirty_lines, 0);
    assert_eq!(read(&mut world.executor, &world.memory, 0, 40 * BLOCK), [7; 40 * 4096]);
}

#[test]
fn a_lun_that_is_away_is_asked_once_for_each_write_and_keeps_everything_dirty() {
    let mut world = World::new(format_options(), on_command(), 64 << 20, 16 << 20);
    write(&mut world.executor, &world.cache, 0, &[7; 40 * 4096]);
    world.errors.add(ErrorRule::new(Trigger::Always, ErrorKind::TimedOut).on(&[OperationKind::Write]));
    assert_eq!(world.clean().expect_err("it is away").kind(), ErrorKind::TimedOut);
    assert_eq!((world.writes_sent(), world.cache.status().dirty_lines), (1, 40));
}

#[test]
fn a_write_that_waits_for_room_goes_on_beside_a_line_that_cannot_be_sent() {
    let limits = DirtyLimits { clean_above: Percent::ALL, max: Percent::new(1) };
    let mut world = World::new(format_options(), limits, 64 << 20, 16 << 20);
    world.errors.add(
        ErrorRule::new(Trigger::Always, ErrorKind::Media)
            .on(&[OperationKind::Write])
            .within(ByteRange { offset: 0, length: 512 }),
    );
    for line in 0..200 {
        let writing = world.cache.write(line * BLOCK, Buffer::copy_of(&[3; 4096]), false);
        world.executor.block_on(writing).expect("others can be cleaned");
    }
    assert!(world.cache.status().dirty_lines >= 1);
    drop(world.cache_device);
}
