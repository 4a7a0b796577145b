//! An origin that several hosts share: revoked copies are forgotten, also data under way, and no
//! stale copy is used.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::SlotSender;
use block::device::DeviceExt;
use block::{Completion, Copies, Device, ErrorKind, Geometry, Identity, Operation, Request, SharedDevice};
use cache::{Cache, CrashMode, Freshness, Mode, OpenOptions};
use common::{close, made, memory, open, open_options, read, try_open, write};

const LINE: u64 = 4096;

/// A device that other hosts use, too. It counts reads, and may hold an answer back.
struct Shared {
    inner: SharedDevice,
    copies: Copies,
    reads: AtomicU64,
    is_holding: AtomicBool,
    held: Mutex<Option<(Request, SlotSender)>>,
}

impl Device for Shared {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !matches!(request.operation, Operation::Read { .. }) {
            return self.inner.submit(request);
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_holding.load(Ordering::Relaxed) {
            let (completion, sender) = Completion::slot();
            *self.held.lock().unwrap() = Some((request, sender));
            return completion;
        }
        self.inner.submit(request)
    }

    fn copies(&self) -> Option<Copies> {
        Some(self.copies.clone())
    }
}

struct World {
    executor: Executor,
    origin: Arc<Shared>,
    cache_device: SharedDevice,
    cache: Arc<Cache>,
}

impl World {
    fn new(mode: Mode) -> Self {
        let mut executor = Executor::new(1);
        let copies = Copies::new(Arc::new(executor.clock()));
        copies.allow_until(Some(executor.clock().now() + Duration::from_secs(3600)));
        let origin = Arc::new(Shared {
            inner: memory(64 * LINE),
            copies,
            reads: AtomicU64::new(0),
            is_holding: AtomicBool::new(false),
            held: Mutex::new(None),
        });
        let device: SharedDevice = origin.clone();
        let cache_device = made(&mut executor, &device, CrashMode::Warm);
        let cache = open(&mut executor, &cache_device, &device, mode);
        origin.reads.store(0, Ordering::Relaxed);
        Self { executor, origin, cache_device, cache }
    }

    fn read(&mut self) -> u8 {
        let found = read(&mut self.executor, &self.cache, 0, LINE)[0];
        self.executor.run_until_stalled();
        found
    }

    /// A change by another host: the copies are revoked, and then the content is changed.
    fn change(&mut self, byte: u8) {
        let dropped = self.origin.copies.revoke(ByteRange { offset: 0, length: LINE });
        self.executor.block_on(dropped);
        write(&mut self.executor, &self.origin.inner, 0, &[byte; LINE as usize]);
    }

    /// How often the origin was read since the last call.
    fn reads(&self) -> u64 {
        self.origin.reads.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn what_is_asked_back_is_read_again() {
    let mut world = World::new(Mode::WriteThrough);
    assert_eq!((world.read(), world.reads()), (0, 1));
    assert_eq!((world.read(), world.reads()), (0, 0), "it is kept");
    world.change(5);
    assert_eq!((world.read(), world.reads()), (5, 1));
    assert_eq!((world.read(), world.reads()), (5, 0));
}

/// The answer and the revocation overtake each other.
#[test]
fn what_is_asked_back_on_its_way_is_given_to_who_waits_and_not_kept() {
    let mut world = World::new(Mode::WriteThrough);
    world.origin.is_holding.store(true, Ordering::Relaxed);
    let reading = world.cache.read(0, Buffer::zeroed(LINE as usize));
    world.executor.run_until_stalled();
    world.origin.is_holding.store(false, Ordering::Relaxed);
    let (request, sender) = world.origin.held.lock().unwrap().take().expect("it was asked");
    let response = world.executor.block_on(world.origin.inner.submit(request));
    world.change(7);
    sender.complete(response);
    assert_eq!(world.executor.block_on(reading).unwrap()[0], 0);
    world.executor.run_until_stalled();
    world.reads();
    assert_eq!((world.read(), world.reads()), (7, 1), "from the origin");
}

#[test]
fn copies_are_not_used_when_the_lease_is_over() {
    let mut world = World::new(Mode::WriteThrough);
    world.read();
    world.reads();
    world.origin.copies.allow_until(None);
    assert_eq!((world.read(), world.reads()), (0, 1));
}

/// A write registers no copy at the origin: a change by another host would not revoke it.
#[test]
fn what_is_written_is_not_kept() {
    let mut world = World::new(Mode::WriteThrough);
    world.read();
    write(&mut world.executor, &world.cache, 0, &[3; LINE as usize]);
    world.executor.run_until_stalled();
    world.reads();
    assert_eq!((world.read(), world.reads()), (3, 1));
}

impl World {
    /// Reads `count` lines from the first on.
    fn read_lines(&mut self, count: u64) {
        for line in 0..count {
            read(&mut self.executor, &self.cache, line * LINE, LINE);
        }
        self.executor.run_until_stalled();
    }

    /// Opens the cache anew; it keeps lines that others have not `changed`.
    fn open_again(&mut self, changed: Vec<ByteRange>) {
        let options = OpenOptions {
            keeps_shared: true,
            freshness: Freshness::Changed(changed),
            ..open_options(&self.executor, Mode::WriteThrough)
        };
        let device: SharedDevice = self.origin.clone();
        self.cache = try_open(&mut self.executor, &self.cache_device, &device, options).unwrap();
        self.reads();
    }
}

#[test]
fn a_cache_that_was_closed_keeps_what_is_to_be_registered_and_what_was_asked_back_is_not_among_it() {
    let mut world = World::new(Mode::WriteThrough);
    world.read_lines(8);
    world.change(5);
    let cache = Arc::clone(&world.cache);
    close(&mut world.executor, &cache, false);
    world.open_again(vec![ByteRange { offset: 4 * LINE, length: 512 }]);
    let range = |first, count| ByteRange { offset: first * LINE, length: count * LINE };
    // Part of the line that was changed in part is left.
    assert_eq!(world.cache.clean_ranges(8), [range(1, 7)]);
    world.read_lines(8);
    assert_eq!(world.reads(), 2, "the first and a part of the fifth");
    let (cache, executor) = (Arc::clone(&world.cache), &mut world.executor);
    executor
        .block_on(async move { cache.invalidate(&[ByteRange { offset: 2 * LINE, length: 2 * LINE }], false).await })
        .unwrap();
    assert_eq!(world.cache.clean_ranges(8), [range(0, 2), range(4, 4)]);
    assert_eq!(world.cache.clean_ranges(1), [range(0, 8)]);
}

/// Revocations were handled in memory, and the device knows nothing of them.
#[test]
fn a_cache_of_a_shared_origin_that_was_not_closed_keeps_nothing_whatever_its_crash_mode() {
    let mut world = World::new(Mode::WriteThrough);
    world.read_lines(8);
    let clock = world.executor.clock();
    clock.advance(Duration::from_secs(60));
    world.executor.run_until_stalled();
    world.change(5);
    world.open_again(Vec::new());
    assert_eq!(world.cache.clean_ranges(8), []);
    assert_eq!((world.read(), world.reads()), (5, 1));
}

#[test]
fn a_cache_of_a_shared_origin_begins_cold_and_delays_no_writes() {
    let mut world = World::new(Mode::WriteThrough);
    world.read();
    let cache = Arc::clone(&world.cache);
    close(&mut world.executor, &cache, false);
    let device: SharedDevice = world.origin.clone();
    world.cache = open(&mut world.executor, &world.cache_device, &device, Mode::WriteThrough);
    world.reads();
    assert_eq!((world.read(), world.reads()), (0, 1));
    let setting = Arc::clone(&world.cache);
    let refused = world.executor.block_on(async move { setting.set_mode(Mode::WriteBack).await });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    let cache = Arc::clone(&world.cache);
    close(&mut world.executor, &cache, false);
    let options = open_options(&world.executor, Mode::WriteBack);
    let refused =
        try_open(&mut world.executor, &world.cache_device, &device, options).err().expect("it would delay writes");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
