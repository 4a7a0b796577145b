//! An origin whose size changes while it is cached.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Request, SharedDevice};
use cache::{Alignment, Cache, CrashMode, DirtyLimits, FormatOptions, Mode, Percent, Stranded};
use common::{format, format_options, memory, open, read, write};

const LINE: u64 = 4096;
const ORIGIN_BYTES: u64 = 64 * LINE;

/// A device that can report a smaller size than it has.
struct Resizable {
    inner: SharedDevice,
    size_bytes: AtomicU64,
    events: EventHub,
}

impl Resizable {
    fn resize(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        self.events.publish(&Event::Resized(self.geometry()));
    }
}

impl Device for Resizable {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Relaxed), ..self.inner.geometry() }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        match self.geometry().check(&request) {
            Err(error) if request.range().is_some_and(|range| !range.is_empty()) => {
                Completion::ready(request.fail(error))
            }
            _ => self.inner.submit(request),
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

/// An origin whose size changes, and the cache over it.
struct World {
    executor: Executor,
    inner: SharedDevice,
    resizable: Arc<Resizable>,
    cache_device: SharedDevice,
}

impl World {
    fn new(options: FormatOptions) -> Self {
        Self::on(memory(1 << 20), options)
    }

    fn on(cache_device: SharedDevice, options: FormatOptions) -> Self {
        let mut executor = Executor::in_order();
        let inner = memory(ORIGIN_BYTES);
        let size_bytes = AtomicU64::new(ORIGIN_BYTES);
        let resizable = Arc::new(Resizable { inner: Arc::clone(&inner), size_bytes, events: EventHub::new() });
        format(&mut executor, &cache_device, &(resizable.clone() as SharedDevice), options);
        Self { executor, inner, resizable, cache_device }
    }

    fn origin(&self) -> SharedDevice {
        self.resizable.clone()
    }

    fn open(&mut self) -> Arc<Cache> {
        let origin = self.origin();
        open(&mut self.executor, &self.cache_device, &origin, Mode::WriteBack)
    }

    fn resize(&mut self, size_bytes: u64) {
        self.resizable.resize(size_bytes);
        self.executor.run();
    }

    fn clean(&mut self, cache: &Arc<Cache>) -> Result<(), block::Error> {
        let cache = Arc::clone(cache);
        self.executor.block_on(async move { cache.clean(|_| {}).await })
    }

    fn inspect(&mut self) -> cache::Inspection {
        let device = Arc::clone(&self.cache_device);
        self.executor.block_on(async move { cache::inspect(&device).await.unwrap() })
    }

    /// The origin's content, also behind the end that it reports.
    fn held(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let inner = Arc::clone(&self.inner);
        read(&mut self.executor, &inner, offset, length)
    }
}

/// In the middle of a line.
const END: u64 = 20 * LINE + 1024;

/// Dirty lines all over the origin, and one clean one; then the origin ends at [`END`].
fn shrunk_under_dirty_data(world: &mut World) -> Arc<Cache> {
    let cache = world.open();
    // The log is small: a line or two in a record.
    write(&mut world.executor, &cache, 0, &[7; 4 * LINE as usize]);
    write(&mut world.executor, &cache, 19 * LINE, &[8; 3 * LINE as usize]);
    write(&mut world.executor, &cache, ORIGIN_BYTES - LINE, &[9; LINE as usize]);
    world.resize(END);
    cache
}

fn check_stranded(stranded: &Stranded) {
    let ranges: Vec<(u64, u64)> = stranded.ranges.iter().map(|range| (range.offset, range.length)).collect();
    assert_eq!(ranges, [(END, 22 * LINE - END), (ORIGIN_BYTES - LINE, LINE)]);
    assert_eq!(stranded.bytes, 22 * LINE - END + LINE);
}

#[test]
fn what_is_dirty_beyond_the_end_keeps_nothing_else_from_being_cleaned() {
    for alignment in [0, 512] {
        let mut world = World::new(FormatOptions { alignment: Alignment::At(alignment), ..format_options() });
        let cache = shrunk_under_dirty_data(&mut world);
        check_stranded(&cache.status().stranded);
        for _ in 0..2 {
            let error = world.clean(&cache).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRange);
            for word in [format!("{END}..{}", 22 * LINE), format!("has {END} bytes"), "11264 bytes".to_owned()] {
                assert!(error.to_string().contains(&word), "{word}: {error}");
            }
            assert_eq!(cache.status().dirty_bytes, 22 * LINE - END + LINE);
        }
        let expected = [vec![7; 4 * LINE as usize], vec![0; 15 * LINE as usize], vec![8; (END - 19 * LINE) as usize]];
        assert!(world.held(0, END) == expected.concat());
        assert!(world.held(END, ORIGIN_BYTES - END).iter().all(|&byte| byte == 0), "sent to where nothing is");
        // Others are written and cleaned as before, in the background, too.
        cache.set_dirty_limits(DirtyLimits { clean_above: Percent::new(0), max: Percent::new(90) });
        write(&mut world.executor, &cache, 8 * LINE, &[5; LINE as usize]);
        let clock = world.executor.clock();
        world.executor.block_on(async move { clock.sleep(Duration::from_secs(60)).await });
        assert_eq!(world.held(8 * LINE, LINE), [5; LINE as usize]);
        assert_eq!(cache.status().dirty_bytes, cache.status().stranded.bytes);
        let closing = Arc::clone(&cache);
        assert!(world.executor.block_on(async move { closing.close(false).await }).is_err());
        let closing = Arc::clone(&cache);
        world.executor.block_on(async move { closing.close(true).await }).unwrap();
        // The data is there at the next start, and is sent when the origin is large enough again.
        let cache = world.open();
        check_stranded(&cache.status().stranded);
        check_stranded(&world.inspect().stranded);
        world.resize(ORIGIN_BYTES);
        assert_eq!(cache.status().stranded, Stranded::default());
        world.clean(&cache).unwrap();
        assert_eq!(world.held(END, 22 * LINE - END), vec![8; (22 * LINE - END) as usize]);
        assert_eq!(world.held(ORIGIN_BYTES - LINE, LINE), [9; LINE as usize]);
    }
}

/// A write that finds as much dirty as may be gets an error, instead of waiting for ever.
#[test]
fn a_write_does_not_wait_for_what_cannot_be_cleaned() {
    let mut world = World::new(FormatOptions { frames_max: Some(16), ..format_options() });
    let cache = world.open();
    cache.set_dirty_limits(DirtyLimits { clean_above: Percent::ALL, max: Percent::new(50) });
    for line in 0..8 {
        write(&mut world.executor, &cache, (40 + line) * LINE, &[7; LINE as usize]);
    }
    world.resize(32 * LINE);
    let writing = cache.write(0, Buffer::copy_of(&[8; LINE as usize]), false);
    let error = world.executor.block_on(writing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("beyond the end"), "{error}");
    // A write whose room can be made waits for that.
    world.resize(42 * LINE);
    for line in 0..8 {
        write(&mut world.executor, &cache, line * LINE, &[8; LINE as usize]);
    }
    assert_eq!(cache.status().stranded.bytes, 6 * LINE);
    assert_eq!(world.held(40 * LINE, 2 * LINE), [7; 2 * LINE as usize]);
}

/// Only that is given up.
#[test]
fn what_is_dirty_beyond_the_end_can_be_given_up() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
        let mut world = World::new(FormatOptions { crash_mode, ..format_options() });
        let cache = shrunk_under_dirty_data(&mut world);
        world.executor.block_on(async move { cache.close(true).await }).unwrap();
        let discard = |world: &mut World| {
            let (device, clock) = (Arc::clone(&world.cache_device), Arc::new(world.executor.clock()));
            world.executor.block_on(async move { cache::discard_beyond_end(&device, clock, None).await.unwrap() })
        };
        // As large as it was when the cache was opened last.
        assert_eq!(discard(&mut world), 0);
        let cache = world.open();
        world.executor.block_on(async move { cache.close(true).await }).unwrap();
        let dirty_bytes = world.inspect().dirty_bytes;
        assert_eq!(discard(&mut world), 22 * LINE - END + LINE);
        let inspection = world.inspect();
        assert_eq!(inspection.stranded, Stranded::default());
        assert_eq!(inspection.dirty_bytes, dirty_bytes - (22 * LINE - END + LINE));
        assert!(inspection.was_closed);
        world.resize(ORIGIN_BYTES);
        let cache = world.open();
        world.clean(&cache).unwrap();
        assert_eq!(world.held(0, 4 * LINE), [7; 4 * LINE as usize]);
        assert_eq!(world.held(19 * LINE, END - 19 * LINE), vec![8; (END - 19 * LINE) as usize]);
        assert!(world.held(END, ORIGIN_BYTES - END).iter().all(|&byte| byte == 0));
        assert_eq!(read(&mut world.executor, &cache, END, LINE), [0; LINE as usize]);
    }
}

/// The data is all there, or part of it was given up; nothing else is missing.
#[test]
fn the_power_may_fail_at_every_write_of_giving_up() {
    let test = block::crash_test!().of_few_crashes(4);
    for seed in test.seeds(0, 3, 1) {
        test.crash_at_every(seed, 100, |nth| loses_power_while_giving_up(seed, nth));
    }
}

/// Returns whether the power was lost.
fn loses_power_while_giving_up(seed: u64, nth: u64) -> bool {
    let medium = CrashLayer::new(1 << 20, seed ^ nth);
    let mut world = World::on(Arc::new(medium.clone()), format_options());
    let cache = shrunk_under_dirty_data(&mut world);
    world.executor.block_on(async move { cache.close(true).await }).unwrap();
    let cache = world.open();
    world.executor.block_on(async move { cache.close(true).await }).unwrap();
    medium.power().fail_write(medium.power().writes_seen() + nth);
    let (device, clock) = (Arc::clone(&world.cache_device), Arc::new(world.executor.clock()));
    let discarded = world.executor.block_on(async move { cache::discard_beyond_end(&device, clock, None).await });
    let has_failed = medium.power().is_lost();
    assert_eq!(discarded.is_err(), has_failed, "write {nth}: {:?}", discarded.err());
    world.executor = Executor::in_order();
    world.cache_device = Arc::new(medium.after_power_loss_as(Loss::Seeded(seed ^ nth), &Power::new()));
    world.resize(ORIGIN_BYTES);
    let cache = world.open();
    world.clean(&cache).unwrap();
    assert_eq!(world.held(0, 4 * LINE), [7; 4 * LINE as usize], "write {nth}");
    assert_eq!(world.held(19 * LINE, END - 19 * LINE), vec![8; (END - 19 * LINE) as usize], "write {nth}");
    let given_up = [(END, 22 * LINE - END, 8), (ORIGIN_BYTES - LINE, LINE, 9)];
    for (offset, length, byte) in given_up {
        let held = world.held(offset, length);
        assert!(held.iter().all(|&held| held == 0 || (has_failed && held == byte)), "write {nth}");
    }
    has_failed
}

#[test]
fn what_an_origin_lost_by_shrinking_does_not_come_back_when_it_grows() {
    let mut executor = Executor::in_order();
    let inner = memory(ORIGIN_BYTES);
    let size_bytes = AtomicU64::new(ORIGIN_BYTES);
    let resizable = Arc::new(Resizable { inner: Arc::clone(&inner), size_bytes, events: EventHub::new() });
    let origin: SharedDevice = resizable.clone();
    let cache_device = memory(1 << 20);
    format(&mut executor, &cache_device, &origin, format_options());
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[7; ORIGIN_BYTES as usize]);
    executor.run();
    // In the middle of a line, of which the rest stays.
    let end = 20 * LINE + 1024;
    resizable.resize(end);
    executor.run();
    assert_eq!(cache.geometry().size_bytes, end);
    write(&mut executor, &inner, end, &vec![0; (ORIGIN_BYTES - end) as usize]);
    resizable.resize(ORIGIN_BYTES);
    executor.run();
    let hits = cache.status().reads.hits;
    assert_eq!(read(&mut executor, &cache, 0, end), vec![7; end as usize]);
    assert_eq!(cache.status().reads.hits, hits + 1, "what was not lost is still cached");
    assert_eq!(read(&mut executor, &cache, end, ORIGIN_BYTES - end), vec![0; (ORIGIN_BYTES - end) as usize]);
}
