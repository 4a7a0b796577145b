//! What each crash mode keeps of a cache; no mode keeps clean lines that differ from the origin.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::stats::StatsLayer;
use block::{ErrorKind, Event, Geometry, OperationKind, SharedDevice};
use cache::layout::Layout;
use cache::numbers::PageNumber;
use cache::{Cache, CrashMode, FormatOptions, Mode};
use common::{format, format_options, memory, open, open_options, read, try_open, write};

const ORIGIN_BYTES: u64 = 256 * 4096;
const CACHE_BYTES: u64 = 1 << 20;
const LINE: u64 = 4096;

struct Bench {
    executor: Executor,
    cache_medium: CrashLayer,
    origin_medium: CrashLayer,
    origin: Arc<StatsLayer>,
    cache: Option<Arc<Cache>>,
}

impl Bench {
    fn new(crash_mode: CrashMode, mode: Mode) -> Self {
        let mut executor = Executor::in_order();
        let cache_medium = CrashLayer::new(CACHE_BYTES, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let (device, shared): (SharedDevice, SharedDevice) =
            (Arc::new(cache_medium.clone()), Arc::new(origin_medium.clone()));
        format(&mut executor, &device, &shared, FormatOptions { crash_mode, ..format_options() });
        let origin = stats(&mut executor, &origin_medium);
        let mut bench = Self { executor, cache_medium, origin_medium, origin, cache: None };
        bench.open(mode, None).expect("a fresh cache opens");
        bench
    }

    fn open(&mut self, mode: Mode, crash_mode: Option<CrashMode>) -> Result<(), ErrorKind> {
        self.cache = None;
        self.executor = Executor::in_order();
        self.origin = stats(&mut self.executor, &self.origin_medium);
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(self.cache_medium.clone()), self.origin.clone());
        let options = cache::OpenOptions { crash_mode, ..open_options(&self.executor, mode) };
        let cache = try_open(&mut self.executor, &device, &origin, options).map_err(|error| error.kind())?;
        self.cache = Some(cache);
        Ok(())
    }

    fn cache(&self) -> Arc<Cache> {
        Arc::clone(self.cache.as_ref().expect("it is open"))
    }

    /// The machine loses power: both media keep what was flushed.
    fn crash(&mut self) {
        self.cache = None;
        self.cache_medium = self.cache_medium.after_power_loss();
        self.origin_medium = self.origin_medium.after_power_loss();
    }

    /// The program is killed: both media keep all.
    fn kill(&mut self) {
        self.cache = None;
        self.cache_medium = self.cache_medium.after_power_loss_as(Loss::InFlightOnly, &Power::new());
        self.origin_medium = self.origin_medium.after_power_loss_as(Loss::InFlightOnly, &Power::new());
    }

    fn reopen(&mut self, mode: Mode) {
        self.open(mode, None).expect("a cache can be opened after any crash");
    }

    fn write(&mut self, block: u64, byte: u8) {
        let cache = self.cache();
        write(&mut self.executor, &*cache, block * LINE, &[byte; LINE as usize]);
        self.executor.run();
    }

    fn read(&mut self, block: u64) -> u8 {
        let cache = self.cache();
        let bytes = read(&mut self.executor, &*cache, block * LINE, LINE);
        self.executor.run();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a line is whole");
        bytes[0]
    }

    /// Reads blocks and counts the reads of the origin that this took.
    fn misses(&mut self, blocks: std::ops::Range<u64>) -> u64 {
        let before = self.origin.snapshot().of(OperationKind::Read).completed_count;
        for block in blocks {
            self.read(block);
        }
        self.origin.snapshot().of(OperationKind::Read).completed_count - before
    }

    fn close(&mut self) {
        let cache = self.cache();
        self.executor.block_on(async move { cache.close(false).await }).expect("nothing fails");
    }
}

fn stats(executor: &mut Executor, origin: &CrashLayer) -> Arc<StatsLayer> {
    let workers = Workers::new();
    let stats = StatsLayer::new(Arc::new(origin.clone()), Arc::new(executor.clock()), &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(stats)
}

#[test]
fn what_a_crash_costs_depends_on_the_crash_mode() {
    for (crash_mode, kept) in [
        (CrashMode::DiscardAll, false),
        (CrashMode::AllSynchronous, true),
        (CrashMode::DirtySynchronous, false),
        (CrashMode::Warm, true),
    ] {
        let mut bench = Bench::new(crash_mode, Mode::WriteThrough);
        (0..40).for_each(|block| bench.write(block, 7));
        assert_eq!(bench.misses(40..80), 40);
        assert_eq!(bench.misses(0..80), 0);
        // A power loss: the origin has lost what was not flushed, and only lines that it still has
        // are kept.
        let flushing = bench.cache().flush();
        bench.executor.block_on(flushing).unwrap();
        bench.executor.run();
        bench.crash();
        bench.reopen(Mode::WriteThrough);
        assert_eq!(bench.misses(0..80), if kept { 0 } else { 80 }, "{crash_mode}");
        assert_eq!((bench.read(0), bench.read(50)), (7, 0), "{crash_mode}");
        assert_eq!(bench.cache().status().crash_mode, crash_mode);
    }
}

#[test]
fn all_synchronous_is_warm_at_once() {
    let mut bench = Bench::new(CrashMode::AllSynchronous, Mode::WriteThrough);
    let cache = bench.cache();
    write(&mut bench.executor, &*cache, 0, &[3; 4096]);
    let checkpoints = cache.status().checkpoints;
    let reading = cache.read(4096, Buffer::zeroed(4096));
    bench.executor.block_on(reading).unwrap();
    assert_eq!(cache.status().checkpoints, checkpoints, "nothing but the records can have said so");
    drop(cache);
    bench.executor.run();
    bench.crash();
    bench.reopen(Mode::WriteThrough);
    assert_eq!(bench.misses(0..2), 0);
    assert_eq!(bench.read(0), 3);
}

/// When the data may be used its record is durable: so the data must be durable, too, before any
/// flush of the device.
#[test]
fn all_synchronous_has_the_data_of_every_line_that_it_keeps() {
    let mut bench = Bench::new(CrashMode::AllSynchronous, Mode::WriteThrough);
    let medium = bench.origin_medium.clone();
    bench.executor.block_on(medium.write(LINE, Buffer::copy_of(&[5; LINE as usize]), true)).unwrap();
    let cache = bench.cache();
    write(&mut bench.executor, &*cache, 0, &[3; LINE as usize]);
    read(&mut bench.executor, &*cache, LINE, LINE);
    bench.executor.run_until_stalled();
    drop(cache);
    bench.cache = None;
    bench.cache_medium = bench.cache_medium.after_power_loss_as(Loss::All, &Power::new());
    bench.origin_medium = bench.origin_medium.after_power_loss_as(Loss::All, &Power::new());
    bench.reopen(Mode::WriteThrough);
    assert_eq!((bench.misses(0..2), bench.read(0), bench.read(1)), (0, 3, 5));
}

/// Zeroes may be volatile there, and gone with a flush that failed. A record of them at once would bring them back.
#[test]
fn all_synchronous_keeps_nothing_that_the_origin_can_lose_or_has_lost() {
    for is_lost_by_a_flush in [false, true] {
        let mut bench = Bench::new(CrashMode::AllSynchronous, Mode::WriteThrough);
        bench.write(0, 9);
        let (cache, medium) = (bench.cache(), bench.origin_medium.clone());
        bench.executor.block_on(cache.write_zeroes(0, LINE, false, true)).unwrap();
        if is_lost_by_a_flush {
            medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
            bench.executor.block_on(cache.flush()).unwrap_err();
            bench.executor.block_on(cache.flush()).unwrap();
        }
        assert_eq!(read(&mut bench.executor, &*cache, 0, LINE), [0; LINE as usize], "the origin shows it");
        bench.executor.run_until_stalled();
        drop(cache);
        bench.cache = None;
        bench.cache_medium = bench.cache_medium.after_power_loss_as(Loss::All, &Power::new());
        bench.origin_medium = medium.after_power_loss_as(Loss::All, &Power::new());
        let there = bench.origin_medium.durable_bytes(0, LINE as usize);
        assert!(there.contains(&9), "some of it is lost");
        bench.reopen(Mode::WriteThrough);
        let cache = bench.cache();
        assert_eq!(read(&mut bench.executor, &*cache, 0, LINE), there, "lost by a flush: {is_lost_by_a_flush}");
    }
}

/// Data that was read may be lost before it is in the cache, with nothing left to flush by then.
#[test]
fn all_synchronous_keeps_nothing_that_the_origin_lost_while_it_was_inserted() {
    let mut executor = Executor::in_order();
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let (cache_medium, origin_medium) =
        (CrashLayer::new(CACHE_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry));
    let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(10)));
    let slow = cache_medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(slow), Arc::new(origin_medium.clone()));
    format(
        &mut executor,
        &device,
        &origin,
        FormatOptions { crash_mode: CrashMode::AllSynchronous, ..format_options() },
    );
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    let some_time = |executor: &mut Executor| {
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_millis(200)).await });
    };
    write(&mut executor, &cache, 0, &[9; LINE as usize]);
    some_time(&mut executor);
    executor.block_on(cache.write_zeroes(0, LINE, false, true)).unwrap();
    assert!(read(&mut executor, &cache, 0, LINE) == [0; LINE as usize]);
    origin_medium.lose_cache();
    executor.block_on(cache.flush()).unwrap();
    some_time(&mut executor);
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let device: SharedDevice = Arc::new(cache_medium.after_power_loss());
    let after = origin_medium.after_power_loss();
    let there = after.durable_bytes(0, LINE as usize);
    assert!(there.contains(&9), "some of it is lost");
    let origin: SharedDevice = Arc::new(after);
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    assert!(read(&mut executor, &cache, 0, LINE) == there);
}

/// Part of a line was read that the origin had dropped but still showed. A record that the line is
/// clean would claim that the origin has it, and so would a page about the frame that it moved to.
#[test]
fn a_line_that_is_cleaned_keeps_nothing_that_the_origin_may_have_dropped() {
    const HALF: u64 = LINE / 2;
    for (crash_mode, is_moved) in [
        (CrashMode::Warm, false),
        (CrashMode::Warm, true),
        (CrashMode::AllSynchronous, false),
        (CrashMode::AllSynchronous, true),
    ] {
        let mut bench = Bench::new(crash_mode, Mode::WriteThrough);
        bench.write(0, 9);
        let (cache, medium) = (bench.cache(), bench.origin_medium.clone());
        bench.executor.block_on(cache.flush()).unwrap();
        bench.executor.block_on(cache.write_zeroes(0, HALF, false, true)).unwrap();
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
        bench.executor.block_on(cache.flush()).unwrap_err();
        let (switched, cleaned) = (Arc::clone(&cache), Arc::clone(&cache));
        bench.executor.block_on(async move { switched.set_mode(Mode::WriteBack).await }).unwrap();
        assert!(read(&mut bench.executor, &*cache, 0, HALF) == [0; HALF as usize], "the origin shows it");
        bench.executor.run();
        for _ in 0..1 + u32::from(is_moved) {
            write(&mut bench.executor, &*cache, HALF, &[7; HALF as usize]);
        }
        bench.executor.block_on(async move { cleaned.clean(|_| {}).await }).unwrap();
        if crash_mode == CrashMode::Warm {
            // Pages are stored without hurry; records are there at once, until a page takes their place.
            bench.executor.run();
        }
        drop(cache);
        bench.crash();
        let there = bench.origin_medium.durable_bytes(0, LINE as usize);
        assert!(there.contains(&9) && there.ends_with(&[7; HALF as usize]), "some of it is lost");
        bench.reopen(Mode::WriteBack);
        let cache = bench.cache();
        assert!(read(&mut bench.executor, &*cache, 0, LINE) == there, "{crash_mode}, moved: {is_moved}");
    }
}

/// A record that the line is clean would also claim that the origin has what was sent. A later
/// write goes past the cache meanwhile.
#[test]
fn a_line_that_is_written_through_while_it_is_cleaned_does_not_come_back_as_it_was() {
    let mut executor = Executor::in_order();
    let (cache_medium, origin_medium) = (CrashLayer::new(CACHE_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
    let (workers, ms) = (Workers::new(), |ms| Latency::Fixed(Duration::from_millis(ms)));
    let delays = Delays { write: ms(20), flush: ms(10), ..Delays::default() };
    let (device, inner): (SharedDevice, SharedDevice) =
        (Arc::new(cache_medium.clone()), Arc::new(origin_medium.clone()));
    let origin: SharedDevice = Arc::new(DelayLayer::new(inner, Arc::new(executor.clock()), &workers, delays, 1));
    executor.spawn(async move { workers.run().await });
    let options = FormatOptions { crash_mode: CrashMode::AllSynchronous, ..format_options() };
    format(&mut executor, &device, &origin, options);
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    let (clock, cleaning) = (executor.clock(), Arc::clone(&cache));
    executor.spawn(async move { cleaning.set_mode(Mode::WriteThrough).await.expect("nothing fails") });
    // The line is sent, and the flush behind it ends while the write is under way.
    executor.block_on(async move { clock.sleep(Duration::from_millis(25)).await });
    write(&mut executor, &cache, 0, &[2; LINE as usize]);
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let survivor = |medium: CrashLayer| -> SharedDevice {
        Arc::new(medium.after_power_loss_as(Loss::InFlightOnly, &Power::new()))
    };
    let cache = open(&mut executor, &survivor(cache_medium), &survivor(origin_medium), Mode::WriteThrough);
    assert_eq!(read(&mut executor, &cache, 0, LINE), [2; LINE as usize]);
}

#[test]
fn discarding_all_excludes_write_back() {
    let mut bench = Bench::new(CrashMode::DiscardAll, Mode::WriteThrough);
    let cache = bench.cache();
    let refused = bench.executor.block_on(async move { cache.set_mode(Mode::WriteBack).await }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("discard"), "{refused}");
    bench.write(0, 1);
    bench.close();
    assert_eq!(bench.open(Mode::WriteBack, None), Err(ErrorKind::Unsupported));
    assert_eq!(bench.open(Mode::WriteBack, Some(CrashMode::Warm)), Ok(()));
    bench.write(1, 2);
    bench.kill();
    let refused = bench.open(Mode::WriteThrough, Some(CrashMode::DiscardAll));
    assert_eq!(refused, Err(ErrorKind::Unsupported), "there is dirty data");
    bench.reopen(Mode::WriteBack);
    assert_eq!((bench.read(0), bench.read(1)), (1, 2));
}

#[test]
fn a_mapping_is_taken_back_before_its_block_changes() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack] {
        let mut bench = Bench::new(CrashMode::Warm, mode);
        assert_eq!(bench.misses(0..20), 20);
        bench.executor.run();
        assert!(bench.cache().status().table_pages_written > 0, "the mappings are on the device");
        // Killed at once, before anything is stored without hurry.
        let cache = bench.cache();
        write(&mut bench.executor, &*cache, 5 * LINE, &[9; LINE as usize]);
        drop(cache);
        bench.kill();
        bench.reopen(mode);
        assert_eq!((bench.read(5), bench.read(6)), (9, 0), "{mode}");
        assert!(bench.misses(0..20) == 0, "the others are warm");
    }
}

#[test]
fn a_mapping_is_taken_back_before_its_frame_holds_another_block() {
    let mut bench = Bench::new(CrashMode::Warm, Mode::WriteThrough);
    let frames = bench.cache().status().lines;
    assert!(frames < 256, "{frames} frames hold all");
    (0..256).for_each(|block| bench.write(block, block as u8));
    for round in 0..6 {
        (0..256).for_each(|block| assert_eq!(bench.read(block), block as u8, "round {round}"));
        bench.kill();
        bench.reopen(Mode::WriteThrough);
        let resident = bench.cache().status().resident_lines;
        assert!(resident * 10 >= frames * 9, "{resident} of {frames} lines are warm");
    }
}

/// A cache in a mode that forgets clean lines leaves old mappings in its table. Another mode, later, must not believe
/// them.
#[test]
fn mappings_of_another_crash_mode_do_not_come_back() {
    let mut bench = Bench::new(CrashMode::DirtySynchronous, Mode::WriteThrough);
    assert_eq!(bench.misses(0..20), 20);
    bench.close();
    bench.open(Mode::WriteThrough, None).unwrap();
    assert_eq!(bench.misses(0..20), 0);
    bench.write(3, 8);
    bench.kill();
    bench.open(Mode::WriteThrough, Some(CrashMode::Warm)).unwrap();
    bench.kill();
    bench.reopen(Mode::WriteThrough);
    assert_eq!(bench.read(3), 8);
    assert_eq!(bench.cache().status().crash_mode, CrashMode::Warm);
}

/// No request reads the line between the event and the crash.
#[test]
fn what_the_origin_says_has_changed_does_not_come_back_after_a_crash() {
    let changed = Event::Invalidated(ByteRange { offset: LINE, length: LINE });
    for (crash_mode, event) in
        [(CrashMode::Warm, changed.clone()), (CrashMode::AllSynchronous, changed), (CrashMode::Warm, Event::Missed)]
    {
        let mut bench = Bench::new(crash_mode, Mode::WriteThrough);
        (0..4).for_each(|block| bench.write(block, 1));
        bench.kill();
        bench.reopen(Mode::WriteThrough);
        assert_eq!(bench.misses(0..4), 0, "{crash_mode}: it is warm after a crash");
        let medium = bench.origin_medium.clone();
        bench.executor.block_on(medium.write(LINE, Buffer::copy_of(&[2; LINE as usize]), true)).unwrap();
        medium.publish(&event);
        bench.executor.run_until_stalled();
        bench.kill();
        bench.reopen(Mode::WriteThrough);
        assert_eq!(bench.read(1), 2, "{crash_mode}, {event:?}");
        let is_all_gone = event == Event::Missed;
        assert_eq!(bench.misses(2..4), if is_all_gone { 2 } else { 0 }, "{crash_mode}, {event:?}: no more than that");
    }
}

#[test]
fn what_the_origin_lost_does_not_come_back_from_a_warm_cache() {
    let mut bench = Bench::new(CrashMode::Warm, Mode::WriteThrough);
    bench.write(3, 1);
    let flushing = bench.cache().flush();
    bench.executor.block_on(flushing).unwrap();
    let cache = bench.cache();
    write(&mut bench.executor, &*cache, 3 * LINE, &[2; LINE as usize]);
    drop(cache);
    bench.crash();
    bench.reopen(Mode::WriteThrough);
    let cache = bench.cache();
    let there = read(&mut bench.executor, &*cache, 3 * LINE, LINE);
    drop(cache);
    bench.close();
    let origin: SharedDevice = Arc::new(bench.origin_medium.clone());
    assert_eq!(read(&mut bench.executor, &origin, 3 * LINE, LINE), there, "cache and origin agree");
}

/// The log can no longer void a mapping. The superblock makes all of them void.
#[test]
fn a_cache_whose_log_failed_brings_nothing_old_back() {
    let mut bench = Bench::new(CrashMode::Warm, Mode::WriteThrough);
    assert_eq!(bench.misses(0..20), 20);
    // The next write is the record that takes the mapping back.
    bench.cache_medium.fail_write_once(bench.cache_medium.writes_seen(), ErrorKind::Media);
    bench.write(4, 6);
    assert!(bench.cache().status().failure.is_some());
    assert_eq!(bench.read(4), 6);
    bench.kill();
    bench.reopen(Mode::WriteThrough);
    assert_eq!(bench.read(4), 6);
    assert_eq!(bench.misses(5..20), 15, "all had to go");
}

/// Not even the superblock can be written: the write is refused, since the next start would undo
/// it.
#[test]
fn a_cache_device_that_takes_nothing_refuses_what_it_would_bring_back() {
    let mut bench = Bench::new(CrashMode::Warm, Mode::WriteThrough);
    assert_eq!(bench.misses(0..20), 20);
    bench.cache_medium.fail_writes_from(bench.cache_medium.writes_seen(), ErrorKind::Media);
    let cache = bench.cache();
    for nth in ["first", "second"] {
        let writing = cache.write(4 * LINE, Buffer::zeroed(LINE as usize), false);
        let refused = bench.executor.block_on(writing).expect_err(nth);
        assert_eq!(refused.kind(), ErrorKind::Media);
        assert!(refused.to_string().contains("discard the cache"), "the {nth}: {refused}");
    }
    // A line that is not mapped on the device is written through.
    bench.executor.block_on(cache.write(100 * LINE, Buffer::copy_of(&[5; 4096]), false)).unwrap();
    assert_eq!(read(&mut bench.executor, &*cache, 100 * LINE, 512)[0], 5);
}

/// A page that was torn while it was stored without hurry is in no log: unless it is written anew, the next start takes
/// it for one that was durable once.
#[test]
fn a_torn_page_is_written_anew_before_it_looks_like_a_durable_one() {
    let mut executor = Executor::in_order();
    let (device, origin) = (memory(1 << 20), memory(1 << 20));
    let options = FormatOptions { crash_mode: CrashMode::Warm, ..format_options() };
    let layout = Layout::new(1 << 20, &options).unwrap();
    format(&mut executor, &device, &origin, options);
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[7; 8192]);
    executor.run();
    executor.block_on(async move { cache.close(false).await.unwrap() });
    // The other slot is a copy that claims to be newer, with the old checksum.
    let [first, second] =
        [0, 1].map(|slot| read(&mut executor, &device, layout.slot_offset(PageNumber::FIRST, slot), 4096));
    let sequence = |slot: &[u8]| u64::from_le_bytes(slot[16..24].try_into().unwrap());
    let (newest, other) = if sequence(&first) > sequence(&second) { (first, 1) } else { (second, 0) };
    let mut torn = newest.clone();
    torn[16..24].copy_from_slice(&(sequence(&newest) + 10).to_le_bytes());
    write(&mut executor, &device, layout.slot_offset(PageNumber::FIRST, other), &torn);
    for start in 0..3 {
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        assert_eq!(cache.status().resident_lines, 2, "start {start}");
        drop(cache);
        executor = Executor::in_order();
    }
}
