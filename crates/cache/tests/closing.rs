//! Closing a cache during cleaning, changes and events: it opens again with all that was
//! acknowledged, and nothing that is void.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{
    Completion, Device, ErrorKind, Event, EventReceiver, Geometry, Identity, OperationKind, Request, SharedDevice,
};
use cache::{Cache, CleaningRate, CrashMode, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent};
use common::{format, format_options, memory, open_options, read, try_open, write};

const LINE: u64 = 4096;

fn never_clean() -> DirtyLimits {
    DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL }
}

/// Cleaning pauses between rounds; this close comes in the pause.
#[test]
fn a_cache_closed_in_a_pause_of_cleaning_opens_again() {
    let mut executor = Executor::in_order();
    let (device, origin) = (memory(16 << 20), memory(16 << 20));
    format(&mut executor, &device, &origin, format_options());
    let cleaning = CleaningRate { max_bytes: Some(1 << 20), ..CleaningRate::default() };
    let options = OpenOptions { dirty: never_clean(), cleaning, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    for line in 0..1000 {
        write(&mut executor, &cache, line * 2 * LINE, &[1; LINE as usize]);
    }
    let asked = Arc::clone(&cache);
    executor.spawn(async move { drop(asked.clean(|_| {}).await) });
    let clock = executor.clock();
    executor.block_on(async move { clock.sleep(Duration::from_millis(150)).await });
    let dirty = cache.status().dirty_lines;
    assert!(dirty > 0 && dirty < 1000, "{dirty}");
    let closing = Arc::clone(&cache);
    executor.block_on(async move { closing.close(true).await.unwrap() });
    executor.run();
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let options = open_options(&executor, Mode::WriteBack);
    let opened = try_open(&mut executor, &device, &origin, options);
    assert!(opened.is_ok(), "{:?}", opened.err());
}

/// One close waits until all is clean; another that keeps dirty data overtakes it.
#[test]
fn a_cache_that_another_closes_with_what_is_dirty_does_not_open_for_who_wanted_it_clean() {
    let mut executor = Executor::in_order();
    let (device, origin) = (memory(16 << 20), memory(16 << 20));
    format(&mut executor, &device, &origin, format_options());
    let cleaning = CleaningRate { max_bytes: Some(1 << 20), ..CleaningRate::default() };
    let options = OpenOptions { dirty: never_clean(), cleaning, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    for line in 0..1000 {
        write(&mut executor, &cache, line * 2 * LINE, &[1; LINE as usize]);
    }
    let (asked, clock) = (Arc::clone(&cache), executor.clock());
    executor.spawn(async move { assert!(asked.close(false).await.is_err(), "some of it stays dirty") });
    executor.block_on(async move { clock.sleep(Duration::from_millis(150)).await });
    let closing = Arc::clone(&cache);
    executor.block_on(async move { closing.close(true).await.unwrap() });
    executor.run();
    assert!(cache.status().dirty_lines > 0);
    let refused = executor.block_on(cache.read(0, Buffer::zeroed(LINE as usize))).map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Gone), "its device may be another's by now");
}

/// The end takes as long as its device takes.
#[test]
fn who_closes_a_cache_that_another_is_closing_waits_for_the_end_and_is_told_the_same() {
    for is_failing in [false, true] {
        let mut executor = Executor::in_order();
        let (medium, origin) = (CrashLayer::new(1 << 20, 3), memory(1 << 20));
        let device = timed(&mut executor, &medium, 10_000);
        format(&mut executor, &device, &origin, format_options());
        let options = open_options(&executor, Mode::WriteThrough);
        let cache = try_open(&mut executor, &device, &origin, options).unwrap();
        write(&mut executor, &cache, 0, &[1; LINE as usize]);
        if is_failing {
            medium.fail_writes_from(medium.writes_seen(), ErrorKind::Media);
        }
        let told = Rc::new(RefCell::new(None));
        let (first, tells) = (Arc::clone(&cache), Rc::clone(&told));
        executor.spawn(async move { *tells.borrow_mut() = Some(first.close(true).await) });
        let (second, clock) = (Arc::clone(&cache), executor.clock());
        let result = executor.block_on(async move {
            clock.sleep(Duration::from_micros(1)).await;
            second.close(true).await
        });
        let told = told.borrow_mut().take().expect("the first has come to its end");
        assert_eq!(told.as_ref().is_err(), is_failing, "{told:?}");
        let kind = |result: Result<(), block::Error>| result.map_err(|error| error.kind());
        assert_eq!(kind(result), kind(told));
        let third = Arc::clone(&cache);
        assert_eq!(executor.block_on(async move { third.close(true).await }).is_err(), is_failing, "and later, too");
    }
}

/// A LUN that has lost what it held volatile when it is flushed next, and says so with the answer.
struct LosesUntold {
    medium: CrashLayer,
    is_lost: AtomicBool,
}

impl Device for LosesUntold {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_told = request.operation.kind() == OperationKind::Flush && self.is_lost.swap(false, Ordering::Relaxed);
        if is_told {
            self.medium.lose_cache_silently();
        }
        let answered = self.medium.submit(request);
        if is_told {
            self.medium.publish(&Event::WritesLost);
        }
        answered
    }

    fn subscribe(&self) -> EventReceiver {
        self.medium.subscribe()
    }
}

#[test]
fn what_the_lun_lost_before_the_flush_of_a_close_is_not_warm_at_the_next_start() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm] {
        let mut executor = Executor::in_order();
        let (device, medium) = (memory(1 << 20), CrashLayer::new(1 << 20, 2));
        let lun = Arc::new(LosesUntold { medium: medium.clone(), is_lost: AtomicBool::new(false) });
        let origin: SharedDevice = lun.clone();
        format(&mut executor, &device, &origin, FormatOptions { crash_mode, ..format_options() });
        let options = open_options(&executor, Mode::WriteThrough);
        let cache = try_open(&mut executor, &device, &origin, options).unwrap();
        for line in 0..32 {
            let writing = cache.write(line * LINE, Buffer::copy_of(&[7; LINE as usize]), false);
            executor.block_on(writing).unwrap();
        }
        lun.is_lost.store(true, Ordering::Relaxed);
        executor.block_on(async move { cache.close(true).await }).unwrap();
        assert!(!lun.is_lost.load(Ordering::Relaxed), "the close flushes");
        executor.run();
        let options = open_options(&executor, Mode::WriteThrough);
        let cache = try_open(&mut executor, &device, &origin, options).unwrap();
        let there = medium.durable_bytes(0, 32 * LINE as usize);
        assert!(there.contains(&0), "some of it is lost");
        assert!(read(&mut executor, &cache, 0, 32 * LINE) == there, "{crash_mode}");
    }
}

/// Lines that clients write; behind them lines that another host changes.
const CLIENT_LINES: u64 = 48;
const OTHERS_LINES: u64 = 24;

/// What a client's line may hold: the last acknowledged write, or one submitted since.
#[derive(Clone, Copy, Default)]
struct Held {
    acknowledged: u8,
    submitted: u8,
}

struct World {
    cache_medium: CrashLayer,
    origin_medium: CrashLayer,
    held: Rc<RefCell<Vec<Held>>>,
    others: Rc<RefCell<Vec<u8>>>,
}

fn timed(executor: &mut Executor, medium: &CrashLayer, most: u64) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// Writes its lines, one after the other, until the cache is closed.
async fn write_lines(
    cache: Arc<Cache>,
    held: Rc<RefCell<Vec<Held>>>,
    clock: Arc<dyn Clock>,
    seed: u64,
    lines: Vec<u64>,
) {
    let mut random = Random::new(seed);
    for round in 1..200 {
        for &line in &lines {
            held.borrow_mut()[line as usize].submitted = round;
            let fua = random.chance(0.1);
            match cache.write(line * LINE, Buffer::copy_of(&[round; LINE as usize]), fua).await {
                Ok(_) => held.borrow_mut()[line as usize].acknowledged = round,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Gone);
                    return;
                }
            }
            clock.sleep(Duration::from_micros(random.below(60))).await;
        }
    }
}

/// Reads the lines that another host changes, so that they are in the cache.
async fn read_lines(cache: Arc<Cache>, seed: u64) {
    let mut random = Random::new(seed);
    loop {
        let line = CLIENT_LINES + random.below(OTHERS_LINES);
        if cache.read(line * LINE, Buffer::zeroed(LINE as usize)).await.is_err() {
            return;
        }
    }
}

/// Changes the origin as another host does, and publishes the event.
async fn change_by_others(
    medium: CrashLayer,
    others: Rc<RefCell<Vec<u8>>>,
    clock: Arc<dyn Clock>,
    seed: u64,
    has_closed: Rc<Cell<bool>>,
) {
    let mut random = Random::new(seed);
    while !has_closed.get() {
        let line = random.below(OTHERS_LINES);
        let range = ByteRange { offset: (CLIENT_LINES + line) * LINE, length: LINE };
        let byte = random.below(255) as u8;
        // The medium itself takes no time: it has changed when this continues.
        let writing = medium.write(range.offset, Buffer::copy_of(&[byte; LINE as usize]), true);
        writing.await.expect("nothing fails");
        others.borrow_mut()[line as usize] = byte;
        medium.publish(&if random.chance(0.05) { Event::Missed } else { Event::Invalidated(range) });
        clock.sleep(Duration::from_micros(random.below(200))).await;
    }
}

fn close_in_the_middle(seed: u64, crash_mode: CrashMode, keep_dirty: bool) {
    let context = format!("seed {seed}, {crash_mode}, keeps dirty: {keep_dirty}");
    let mut executor = Executor::new(seed);
    let world = World {
        cache_medium: CrashLayer::new(1 << 20, seed),
        origin_medium: CrashLayer::new((CLIENT_LINES + OTHERS_LINES) * LINE, seed + 1),
        held: Rc::new(RefCell::new(vec![Held::default(); CLIENT_LINES as usize])),
        others: Rc::new(RefCell::new(vec![0; OTHERS_LINES as usize])),
    };
    let device = timed(&mut executor, &world.cache_medium, 40);
    let origin = timed(&mut executor, &world.origin_medium, 150);
    let options = FormatOptions { crash_mode, log_bytes: Some(16 << 10), ..format_options() };
    format(&mut executor, &device, &origin, options);
    let cleaning = CleaningRate { max_bytes: Some(16 << 20), ..CleaningRate::default() };
    let options = OpenOptions { cleaning, dirty: never_clean(), ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let has_closed = Rc::new(Cell::new(false));
    for client in 0..4 {
        let lines = (client..CLIENT_LINES).step_by(4).collect();
        let held = Rc::clone(&world.held);
        executor.spawn(write_lines(Arc::clone(&cache), held, Arc::clone(&clock), seed * 7 + client, lines));
    }
    executor.spawn(read_lines(Arc::clone(&cache), seed * 11));
    executor.spawn(change_by_others(
        world.origin_medium.clone(),
        Rc::clone(&world.others),
        Arc::clone(&clock),
        seed * 13,
        Rc::clone(&has_closed),
    ));
    let (asked, asked_clock, is_closed) = (Arc::clone(&cache), Arc::clone(&clock), Rc::clone(&has_closed));
    executor.spawn(async move {
        while !is_closed.get() {
            asked_clock.sleep(Duration::from_micros(300)).await;
            // Fails when the origin lost something, or the cache is closed.
            drop(asked.clean(|_| {}).await);
        }
    });
    let mut random = Random::new(seed);
    let wait = Duration::from_micros(2000 + random.below(6000));
    let closing = Arc::clone(&cache);
    executor.block_on(async move {
        clock.sleep(wait).await;
        // An origin that lost something may have lost lines that were being cleaned: the cache then
        // goes on, and is closed once more.
        while let Err(error) = closing.close(keep_dirty).await {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        }
        has_closed.set(true);
    });
    let writes = world.cache_medium.writes_seen();
    executor.run();
    assert_eq!(world.cache_medium.writes_seen(), writes, "{context}: nothing is written to what is closed");
    drop((cache, executor));
    check(&world, &context, keep_dirty);
}

fn check(world: &World, context: &str, keep_dirty: bool) {
    let mut executor = Executor::in_order();
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(world.cache_medium.clone()), Arc::new(world.origin_medium.clone()));
    let options = OpenOptions { dirty: never_clean(), ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &origin, options);
    let cache = cache.unwrap_or_else(|error| panic!("{context}: {error}"));
    let status = cache.status();
    assert!(status.recovery.was_closed, "{context}");
    assert!(keep_dirty || status.dirty_lines == 0, "{context}: {} lines are dirty", status.dirty_lines);
    for (line, held) in world.held.borrow().iter().enumerate() {
        let bytes = read(&mut executor, &cache, line as u64 * LINE, LINE);
        let is_allowed = [held.acknowledged, held.submitted].contains(&bytes[0]);
        assert!(is_allowed && bytes.iter().all(|&byte| byte == bytes[0]), "{context}: line {line} holds {}", bytes[0]);
    }
    for (line, &byte) in world.others.borrow().iter().enumerate() {
        let bytes = read(&mut executor, &cache, (CLIENT_LINES + line as u64) * LINE, LINE);
        assert_eq!(bytes[0], byte, "{context}: line {line} of others");
    }
}

#[test]
fn a_cache_closed_while_it_is_cleaned_and_changed_has_what_was_acknowledged_and_nothing_void() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        let _printed = test.on_panic(seed, None);
        for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
            close_in_the_middle(seed, crash_mode, seed % 3 != 0);
        }
    }
}
