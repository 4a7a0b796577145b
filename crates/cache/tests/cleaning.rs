//! Cleaning beside a foreground: it gives way, it ends nevertheless, and it keeps to its byte budget. All in virtual
//! time.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::disk::{DiskLayer, DiskModel};
use block::layer::error::{ErrorLayer, ErrorRule, Trigger};
use block::{ErrorKind, OperationKind, SharedDevice};
use cache::{Cache, CleanProgress, CleaningRate, DirtyLimits, Mode, OpenOptions, Percent};
use common::{format, format_options, memory, open_options, read, try_open, write};

const ORIGIN_BYTES: u64 = 64 << 20;
const DIRTY_LINES: u64 = 3000;

/// A LUN on one disk of flash, as far as a queue and its service times go.
const FLASH: DiskModel = DiskModel {
    seek: Duration::from_micros(100),
    rotation: Duration::ZERO,
    bytes_per_second: 200_000_000,
    flush: Duration::from_micros(200),
};

/// Dirty lines far apart: each is a write.
const APART: u64 = ORIGIN_BYTES / DIRTY_LINES / 4096 * 4096;

/// A cache with dirty lines, `stride` bytes apart, over a LUN that takes time.
fn dirty_cache(cleaning: CleaningRate, stride: u64) -> (Executor, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let origin: SharedDevice = Arc::new(DiskLayer::new(memory(ORIGIN_BYTES), clock, &workers, FLASH));
    executor.spawn(async move { workers.run().await });
    let cache_device = memory(16 << 20);
    format(&mut executor, &cache_device, &origin, format_options());
    let options = open_options(&executor, Mode::WriteBack);
    let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
    let options = OpenOptions { dirty, cleaning, ..options };
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    for line in 0..DIRTY_LINES {
        let writing = cache.write(line * stride, Buffer::copy_of(&[1; 4096]), false);
        executor.block_on(writing).unwrap();
    }
    (executor, cache)
}

/// Reads uncached lines, one after the other, until `stop` is set. Returns the response times.
fn read_until(executor: &mut Executor, cache: &Arc<Cache>, stop: &Arc<Mutex<bool>>) -> Arc<Mutex<Vec<Duration>>> {
    let times = Arc::new(Mutex::new(Vec::new()));
    let (clock, cache, stop, noted) = (executor.clock(), Arc::clone(cache), Arc::clone(stop), Arc::clone(&times));
    executor.spawn(async move {
        let mut random = Random::new(3);
        while !*stop.lock().unwrap() {
            let start = clock.now();
            let offset = random.below(ORIGIN_BYTES / 4096) * 4096;
            cache.read(offset, Buffer::zeroed(4096)).await.unwrap();
            noted.lock().unwrap().push(clock.now() - start);
            clock.sleep(Duration::from_micros(500)).await;
        }
    });
    times
}

fn percentile(times: &Mutex<Vec<Duration>>, share: f64) -> Duration {
    let mut times = times.lock().unwrap().clone();
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

fn clean(executor: &mut Executor, cache: &Arc<Cache>) -> Duration {
    let (clock, start) = (executor.clock(), executor.clock().now());
    let cleaning = Arc::clone(cache);
    executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    assert_eq!(cache.status().dirty_lines, 0);
    clock.now() - start
}

#[test]
fn cleaning_gives_way_to_the_foreground_and_ends() {
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), APART);
    let alone = clean(&mut executor, &cache);
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), APART);
    let stop = Arc::new(Mutex::new(false));
    let quiet = read_until(&mut executor, &cache, &stop);
    let clock = executor.clock();
    executor.block_on(async move { clock.sleep(Duration::from_secs(2)).await });
    *stop.lock().unwrap() = true;
    executor.run();
    let stop = Arc::new(Mutex::new(false));
    let disturbed = read_until(&mut executor, &cache, &stop);
    let taken = clean(&mut executor, &cache);
    *stop.lock().unwrap() = true;
    let (quiet, disturbed) = (percentile(&quiet, 0.99), percentile(&disturbed, 0.99));
    assert!(disturbed <= 2 * quiet, "{disturbed:?} while cleaning, {quiet:?} without");
    assert!(taken <= 3 * alone, "{taken:?} beside readers, {alone:?} alone");
}

#[test]
fn cleaning_gets_slower_when_the_foreground_suffers() {
    // Adjacent dirty lines make long writes, and a read that finds one before it waits for long.
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), 4096);
    let alone = clean(&mut executor, &cache);
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), 4096);
    let stop = Arc::new(Mutex::new(false));
    read_until(&mut executor, &cache, &stop);
    let clock = executor.clock();
    executor.block_on(async move { clock.sleep(Duration::from_secs(1)).await });
    let taken = clean(&mut executor, &cache);
    *stop.lock().unwrap() = true;
    assert!(cache.status().clean_rounds_throttled > 1, "{:?}", cache.status());
    assert!(taken > 4 * alone, "{taken:?} beside readers, {alone:?} alone");
}

#[test]
fn cleaning_alone_is_limited_by_the_devices_only() {
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), APART);
    let taken = clean(&mut executor, &cache);
    let service = FLASH.seek + FLASH.transfer(4096);
    assert!(taken < service * (DIRTY_LINES as u32) * 5 / 4, "{taken:?}");
}

#[test]
fn a_byte_budget_bounds_cleaning() {
    let rate = CleaningRate { max_bytes: Some(2 << 20), ..CleaningRate::default() };
    let (mut executor, cache) = dirty_cache(rate, APART);
    let taken = clean(&mut executor, &cache);
    let at_least = Duration::from_secs_f64((DIRTY_LINES - 64) as f64 * 4096.0 / (2 << 20) as f64);
    assert!(taken >= at_least, "{taken:?}");
    cache.set_cleaning_rate(CleaningRate::default());
    assert_eq!(cache.cleaning_rate().max_bytes, None);
}

#[test]
fn progress_is_in_the_status_while_it_is_made() {
    let (mut executor, cache) =
        dirty_cache(CleaningRate { max_bytes: Some(2 << 20), ..CleaningRate::default() }, APART);
    assert_eq!(cache.status().cleaning, None);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (cleaning, noted) = (Arc::clone(&cache), Arc::clone(&seen));
    let watched = Arc::clone(&cache);
    executor.block_on(async move {
        let tell = |progress: CleanProgress| {
            assert_eq!(watched.status().cleaning, Some(progress));
            noted.lock().unwrap().push(progress.lines_done);
        };
        cleaning.clean(tell).await.unwrap();
    });
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 10 && seen.is_sorted() && seen.last() == Some(&DIRTY_LINES), "{seen:?}");
    assert_eq!(cache.status().cleaning, None);
}

#[test]
fn nothing_is_cleaned_in_the_background_while_that_is_held() {
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), APART);
    cache.hold_cleaning();
    cache.set_dirty_limits(DirtyLimits { clean_above: Percent::new(0), max: Percent::ALL });
    executor.run();
    assert_eq!(cache.status().dirty_lines, DIRTY_LINES);
    cache.begin_cleaning();
    executor.run();
    assert_eq!(cache.status().dirty_lines, 0);
}

#[test]
fn dirty_limits_say_when_cleaning_begins() {
    let (mut executor, cache) = dirty_cache(CleaningRate::default(), APART);
    executor.run();
    assert_eq!(cache.status().dirty_lines, DIRTY_LINES, "on command only");
    cache.set_dirty_limits(DirtyLimits { clean_above: Percent::new(10), max: Percent::ALL });
    executor.run();
    assert!(cache.status().dirty_lines <= cache.status().lines / 10, "in the background, down to a share");
    cache.set_dirty_limits(DirtyLimits { clean_above: Percent::new(0), max: Percent::ALL });
    executor.run();
    assert_eq!(cache.status().dirty_lines, 0, "continuously");
    executor.block_on(cache.write(0, Buffer::zeroed(512), false)).unwrap();
    executor.run();
    assert_eq!(cache.status().dirty_lines, 0);
    cache.set_dirty_limits(DirtyLimits { clean_above: Percent::ALL, max: Percent::new(0) });
    for line in 0..10 {
        executor.block_on(cache.write(line * 4096, Buffer::zeroed(512), false)).unwrap();
        assert_eq!(cache.status().dirty_lines, 1, "one line may always be dirty");
    }
}

/// A cache over a LUN that refuses writes of the bytes `bad`, in which `max` may be dirty.
fn over_a_bad_place(bad: ByteRange, max: Percent) -> (Executor, SharedDevice, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let (cache_device, medium) = (memory(4 << 20), memory(4 << 20));
    let layer = ErrorLayer::new(Arc::clone(&medium), &Workers::new(), 1);
    layer.add(ErrorRule::new(Trigger::Always, ErrorKind::Media).on(&[OperationKind::Write]).within(bad));
    let origin: SharedDevice = Arc::new(layer);
    format(&mut executor, &cache_device, &origin, format_options());
    let dirty = DirtyLimits { clean_above: Percent::ALL, max };
    let options = OpenOptions { dirty, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    (executor, medium, cache)
}

#[test]
fn a_bad_place_of_the_origin_keeps_nothing_beside_it_dirty() {
    let bad = ByteRange { offset: 100 * 4096 + 512, length: 512 };
    let (mut executor, medium, cache) = over_a_bad_place(bad, Percent::ALL);
    write(&mut executor, &cache, 0, &[1; 256 * 4096]);
    let cleaning = Arc::clone(&cache);
    let cleaned = executor.block_on(async move { cleaning.clean(|_| {}).await });
    assert_eq!(cleaned.unwrap_err().kind(), ErrorKind::Media, "whoever asked for everything is told");
    assert_eq!((cache.status().dirty_lines, cache.status().cleaned_lines), (1, 255));
    assert_eq!(read(&mut executor, &medium, 0, 100 * 4096), vec![1; 100 * 4096]);
    assert_eq!(read(&mut executor, &medium, 101 * 4096, 155 * 4096), vec![1; 155 * 4096]);
    assert_eq!(read(&mut executor, &cache, 100 * 4096, 4096), vec![1; 4096], "what is not sent is not lost");
}

#[test]
fn a_write_that_waits_for_room_passes_over_bad_places() {
    // More than one batch.
    let bad = ByteRange { offset: 0, length: 80 * 4096 };
    let (mut executor, medium, cache) = over_a_bad_place(bad, Percent::new(30));
    for line in 0..1000 {
        write(&mut executor, &cache, line * 4096, &[1; 4096]);
    }
    assert!(cache.status().writes_delayed > 0, "it never waited");
    assert_eq!(read(&mut executor, &cache, 0, 1 << 20), vec![1; 1 << 20]);
    assert_eq!(read(&mut executor, &medium, 0, 4096), vec![0; 4096]);
}
