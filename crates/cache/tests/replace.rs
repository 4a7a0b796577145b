//! One cache takes the place of another while requests go on: nothing that was acknowledged is lost, whatever fails, and what was warm stays warm.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::layer::stats::StatsLayer;
use block::layer::switch::SwitchLayer;
use block::memory::MemoryDevice;
use block::{Completion, Device, Error, ErrorKind, Identity, OperationKind, Request, Response, SharedDevice};
use cache::{
    Alignment, Associativity, Cache, CrashMode, FormatOptions, LineSize, Mode, OpenOptions, Replacement, Tuning,
};
use common::model::{Lost, fill, random_range};
use common::{Model, format, format_options, open, open_options, read, try_open, write};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

const LINE: u64 = 4096;
const ORIGIN_BYTES: u64 = 48 * LINE + 512;

fn options_of(number: u8, ways: u32, frames: u64) -> FormatOptions {
    FormatOptions {
        uuid: Some(uuid::Uuid::from_bytes([number; 16])),
        associativity: Associativity::Ways(ways),
        frames_max: Some(frames),
        // A successor's lines may begin elsewhere.
        alignment: Alignment::At(u64::from(number % 2) * 1536),
        log_bytes: Some(16 << 10),
        ..format_options()
    }
}

/// Runs a future to its end, whoever waits for it.
fn spawn(workers: &Workers, future: impl Future<Output = ()> + Send + 'static) {
    drop(Completion::task(workers, async move {
        future.await;
        Response::done(Buffer::empty())
    }));
}

/// Copies, lets requests wait, hands over, tells `put_in_place`, and sends requests to the successor.
async fn replace(
    old: Arc<Cache>,
    new: Arc<Cache>,
    switch: Arc<SwitchLayer>,
    between: impl Future<Output = ()>,
    put_in_place: impl FnOnce(),
) -> Result<(), Error> {
    old.copy_to(&new, |_| {}).await?;
    // What is written now the successor must not go on to have as it was.
    between.await;
    switch.hold();
    match old.hand_over(&new).await {
        Ok(hand_over) => {
            put_in_place();
            switch.release(Some(new));
            hand_over.finish();
            Ok(())
        }
        Err(error) => {
            switch.release(None);
            Err(error)
        }
    }
}

#[test]
fn a_successor_is_warm_and_has_what_is_dirty() {
    for (frames, ways) in [(200, 10), (100, 100), (60, 4)] {
        let mut executor = Executor::in_order();
        let medium: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default()));
        write(&mut executor, &medium, 0, &[7; ORIGIN_BYTES as usize]);
        let origin = Arc::new(StatsLayer::new(medium, Arc::new(executor.clock()), &Workers::new()));
        let shared: SharedDevice = origin.clone();
        let device = || -> SharedDevice { Arc::new(MemoryDevice::new(2 << 20, Identity::default())) };
        let (first, second) = (device(), device());
        format(&mut executor, &first, &shared, options_of(1, 8, 96));
        format(&mut executor, &second, &shared, options_of(2, ways, frames));
        let old = open(&mut executor, &first, &shared, Mode::WriteBack);
        old.set_replacement(Replacement::Clock);
        let switch = Arc::new(SwitchLayer::new(old.clone()));
        read(&mut executor, &switch, 0, 32 * LINE);
        executor.run();
        write(&mut executor, &switch, 3 * LINE + 512, &[9; 1024]);
        let new = open(&mut executor, &second, &shared, Mode::WriteThrough);
        let reads_before = origin.snapshot().of(OperationKind::Read).completed_count;
        let replacing = replace(Arc::clone(&old), Arc::clone(&new), Arc::clone(&switch), async {}, || {});
        executor.block_on(replacing).unwrap();
        let status = new.status();
        assert_eq!((status.dirty_bytes, status.mode, status.replacement), (1024, Mode::WriteBack, Replacement::Clock));
        let mut expected = vec![7; 32 * LINE as usize];
        expected[3 * LINE as usize + 512..][..1024].fill(9);
        assert_eq!(read(&mut executor, &switch, 0, 32 * LINE), expected);
        assert_eq!(origin.snapshot().of(OperationKind::Read).completed_count, reads_before, "{frames} frames are warm");
        assert_eq!(executor.block_on(old.read(0, Buffer::zeroed(512))).unwrap_err().kind(), ErrorKind::Gone);
        executor.block_on(async move { new.close(false).await.unwrap() });
        assert_eq!(read(&mut executor, &shared, 3 * LINE + 512, 1024), vec![9; 1024]);
    }
}

#[test]
fn a_successor_that_fails_is_left_behind() {
    let mut executor = Executor::in_order();
    let origin: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default()));
    let first: SharedDevice = Arc::new(MemoryDevice::new(2 << 20, Identity::default()));
    let medium = CrashLayer::new(2 << 20, 1);
    let second: SharedDevice = Arc::new(medium.clone());
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteBack);
    let switch = Arc::new(SwitchLayer::new(old.clone()));
    for line in 0..20 {
        write(&mut executor, &switch, line * LINE, &[line as u8; 512]);
    }
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let new = open(&mut executor, &second, &origin, Mode::WriteBack);
    let copying = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move { copying.0.copy_to(&copying.1, |_| {}).await.unwrap() });
    medium.fail_writes_from(medium.writes_seen() + 7, ErrorKind::Media);
    let handing = (Arc::clone(&old), Arc::clone(&new));
    assert!(executor.block_on(async move { handing.0.hand_over(&handing.1).await.is_err() }));
    assert_eq!(old.status().dirty_lines, 20, "nothing was lost");
    write(&mut executor, &switch, 0, &[77; 512]);
    let handing = (Arc::clone(&old), new);
    let again = executor.block_on(async move { handing.0.hand_over(&handing.1).await.is_err() });
    assert!(again, "it has not been told of what came since");
    let cleaning = Arc::clone(&old);
    executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    assert_eq!(read(&mut executor, &origin, 0, 512), vec![77; 512]);
    // Of another disk, or the same cache: not even begun.
    let copying = Arc::clone(&old);
    let error = executor.block_on(async move { copying.copy_to(&copying, |_| {}).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// Media that outlive their executor, and which cache a start would find.
struct World {
    caches: [CrashLayer; 2],
    origin: CrashLayer,
    model: Arc<Mutex<Model>>,
    is_replaced: Arc<AtomicBool>,
}

fn timed(executor: &mut Executor, medium: &CrashLayer, most: u64) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// Random requests until told that the replacement is over, and some more.
async fn drive(
    switch: Arc<SwitchLayer>,
    model: Arc<Mutex<Model>>,
    clock: Arc<dyn Clock>,
    seed: u64,
    is_over: Arc<AtomicBool>,
) {
    let mut random = Random::new(seed);
    let mut running = FuturesUnordered::new();
    let mut rest = 40;
    while rest > 0 {
        rest -= u32::from(is_over.load(Ordering::Relaxed));
        let range = random_range(&mut random, ORIGIN_BYTES, 12);
        let (switch, model) = (Arc::clone(&switch), Arc::clone(&model));
        if random.chance(0.4) {
            let snapshot = model.lock().unwrap().snapshot(range);
            let reading = switch.read(range.offset, Buffer::zeroed(range.length as usize));
            running.push(Box::pin(async move {
                if let Ok(bytes) = reading.await {
                    model.lock().unwrap().check_read(range, &snapshot, &bytes, "a read");
                }
            }) as futures_util::future::BoxFuture<'static, ()>);
        } else {
            let is_discard = random.chance(0.1);
            let (stamp, indices) = model.lock().unwrap().submit_change(range, is_discard);
            let mut buffer = Buffer::zeroed(range.length as usize);
            fill(&mut buffer, stamp);
            let request = match is_discard {
                true => Request::discard(range.offset, range.length),
                false => Request::write(range.offset, buffer, false),
            };
            let changing = switch.submit(request);
            running.push(Box::pin(async move {
                let is_ok = changing.await.result.is_ok();
                model.lock().unwrap().finish_change(range, &indices, is_ok, is_ok);
            }));
        }
        clock.sleep(Duration::from_micros(random.below(400))).await;
        while running.len() > 6 {
            running.next().await;
        }
    }
    while running.next().await.is_some() {}
}

/// A workload during which a cache is replaced; the power of both cache devices fails at write `nth`. Whether it did.
fn run(seed: u64, nth: u64, mode: Mode, crash_mode: CrashMode, lines: [LineSize; 2]) -> (World, bool) {
    let mut executor = Executor::new(seed);
    let power = Power::new();
    let world = World {
        caches: [1, 2].map(|number| CrashLayer::on(&power, 1 << 20, seed + number)),
        origin: CrashLayer::on(&Power::new(), ORIGIN_BYTES, seed + 3),
        model: Model::new(ORIGIN_BYTES),
        is_replaced: Arc::default(),
    };
    let [first, second] = [0, 1].map(|index| timed(&mut executor, &world.caches[index], 100));
    let origin = timed(&mut executor, &world.origin, 500);
    let crash = move |options| FormatOptions { crash_mode, ..options };
    format(
        &mut executor,
        &first,
        &origin,
        crash(FormatOptions { line_size: lines[0], ..options_of(1, 4, 24 + seed % 30) }),
    );
    let old = open(&mut executor, &first, &origin, mode);
    power.fail_write(power.writes_seen() + nth);
    let switch = Arc::new(SwitchLayer::new(old.clone()));
    executor.spawn(switch.run());
    let workers = Workers::new();
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    let is_over = Arc::new(AtomicBool::new(false));
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let driving = drive(Arc::clone(&switch), Arc::clone(&world.model), Arc::clone(&clock), seed, Arc::clone(&is_over));
    let (options, is_replaced) = (open_options(&executor, mode), Arc::clone(&world.is_replaced));
    spawn(&workers.clone(), async move {
        clock.sleep(Duration::from_millis(10)).await;
        let format_options = crash(FormatOptions { line_size: lines[1], ..options_of(2, 6, 20 + seed % 40) });
        let made = match Cache::format(&second, &origin, format_options).await {
            Ok(()) => Cache::open(second, origin, OpenOptions { crash_mode: None, ..options }).await,
            Err(error) => Err(error),
        };
        if let Ok(new) = made {
            spawn(&workers, new.run());
            let between = clock.sleep(Duration::from_millis(5));
            let replacing = replace(old, new, switch, between, || is_replaced.store(true, Ordering::Relaxed));
            // It fails when the power does.
            drop(replacing.await);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    executor.block_on(driving);
    let is_lost = power.is_lost();
    assert!(is_lost || world.is_replaced.load(Ordering::Relaxed), "it was not replaced, and nothing failed");
    (world, is_lost)
}

fn check(world: &World, seed: u64, nth: u64, mode: Mode) {
    let mut executor = Executor::new(seed + 17);
    let index = usize::from(world.is_replaced.load(Ordering::Relaxed));
    let medium = world.caches[index].after_power_loss_as(Loss::Seeded(seed ^ nth), &Power::new());
    let origin = world.origin.after_power_loss_as(Loss::InFlightOnly, &Power::new());
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium), Arc::new(origin));
    let options = open_options(&executor, mode);
    let cache = try_open(&mut executor, &device, &origin, options).expect("it opens after any crash");
    let context = format!("seed {seed}, power lost at write {nth}, replaced: {index}");
    let bytes = read(&mut executor, &cache, 0, ORIGIN_BYTES);
    world.model.lock().unwrap().check_after_crash(&bytes, Lost::Cache, &context);
    executor.block_on(async move { cache.close(false).await.expect("nothing fails any more") });
    let bytes = read(&mut executor, &origin, 0, ORIGIN_BYTES);
    world.model.lock().unwrap().check_exact(&bytes, &context);
}

fn power_fails_at_every_write(first: u64, mode: Mode, crash_mode: CrashMode) {
    power_fails_while_lines_become(first, mode, crash_mode, [LineSize::default(); 2]);
}

fn power_fails_while_lines_become(first: u64, mode: Mode, crash_mode: CrashMode, lines: [LineSize; 2]) {
    for seed in [first, first + 101] {
        for nth in 0.. {
            let (world, is_lost) = run(seed, nth, mode, crash_mode, lines);
            check(&world, seed, nth, mode);
            if !is_lost {
                assert!(nth > 50, "so few writes test nothing");
                break;
            }
        }
    }
}

#[test]
fn write_back_survives_a_power_loss_at_every_write_of_a_replacement() {
    power_fails_at_every_write(1, Mode::WriteBack, CrashMode::DirtySynchronous);
}

#[test]
fn write_through_survives_a_power_loss_at_every_write_of_a_replacement() {
    power_fails_at_every_write(2, Mode::WriteThrough, CrashMode::DirtySynchronous);
}

#[test]
fn warm_lines_survive_a_power_loss_at_every_write_of_a_replacement() {
    power_fails_at_every_write(3, Mode::WriteBack, CrashMode::Warm);
    power_fails_at_every_write(4, Mode::WriteThrough, CrashMode::Warm);
}

#[test]
fn lines_of_another_size_survive_a_power_loss_at_every_write_of_a_replacement() {
    let [small, large] = [4 << 10, 32 << 10].map(|bytes| LineSize::new(bytes).unwrap());
    power_fails_while_lines_become(5, Mode::WriteBack, CrashMode::DirtySynchronous, [small, large]);
    power_fails_while_lines_become(6, Mode::WriteBack, CrashMode::Warm, [large, small]);
    power_fails_while_lines_become(7, Mode::WriteThrough, CrashMode::Warm, [small, large]);
}

/// As long as the hand-over is not finished the old cache may go on, and what the successor had sent could overtake what comes after.
#[test]
fn a_successor_sends_nothing_to_the_origin_before_it_is_in_place() {
    for cutoff_bytes in [None, Some(0)] {
        let mut executor = Executor::in_order();
        let medium: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default()));
        let origin = Arc::new(StatsLayer::new(Arc::clone(&medium), Arc::new(executor.clock()), &Workers::new()));
        let shared: SharedDevice = origin.clone();
        let device = || -> SharedDevice { Arc::new(MemoryDevice::new(2 << 20, Identity::default())) };
        let (first, second) = (device(), device());
        format(&mut executor, &first, &shared, options_of(1, 8, 96));
        format(&mut executor, &second, &shared, options_of(2, 40, 40));
        let old = open(&mut executor, &first, &shared, Mode::WriteBack);
        let new = open(&mut executor, &second, &shared, Mode::WriteBack);
        for line in 0..32 {
            write(&mut executor, &old, line * LINE, &[1; 512]);
        }
        old.set_tuning(Tuning { cutoff_bytes, ..Tuning::default() });
        let written = || origin.snapshot().of(OperationKind::Write).completed_count;
        let handing = (Arc::clone(&old), Arc::clone(&new));
        let hand_over = executor.block_on(async move {
            handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
            handing.0.hand_over(&handing.1).await.unwrap()
        });
        executor.run();
        assert_eq!((written(), new.status().dirty_lines), (0, 32), "more is dirty than it would leave so");
        drop(hand_over);
        // It could not be put in place: the old one goes on, and what it sends is the newest.
        write(&mut executor, &old, 0, &[2; 512]);
        let cleaning = Arc::clone(&old);
        executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
        executor.run();
        assert_eq!(read(&mut executor, &medium, 0, 512), vec![2; 512]);
        // The next one is finished, and cleans.
        let third = device();
        format(&mut executor, &third, &shared, options_of(3, 40, 40));
        let new = open(&mut executor, &third, &shared, Mode::WriteBack);
        old.set_tuning(Tuning::default());
        for line in 0..32 {
            write(&mut executor, &old, line * LINE, &[3; 512]);
        }
        let handing = (Arc::clone(&old), Arc::clone(&new));
        executor.block_on(async move {
            handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
            handing.0.hand_over(&handing.1).await.unwrap().finish();
        });
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_secs(5)).await });
        assert!(new.status().dirty_lines <= 20, "half of its lines, as usual");
    }
}

/// It would be the mode of a cache that nobody uses any more.
#[test]
fn a_mode_that_is_set_while_requests_wait_for_a_successor_is_refused() {
    let mut executor = Executor::in_order();
    let origin: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, Identity::default()));
    let device = || -> SharedDevice { Arc::new(MemoryDevice::new(2 << 20, Identity::default())) };
    let (first, second) = (device(), device());
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteBack);
    let new = open(&mut executor, &second, &origin, Mode::WriteBack);
    let handing = (Arc::clone(&old), Arc::clone(&new));
    let hand_over = executor.block_on(async move {
        handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
        handing.0.hand_over(&handing.1).await.unwrap()
    });
    let mut setting = Box::pin(async move { old.set_mode(Mode::WriteThrough).await });
    assert!((&mut setting).now_or_never().is_none());
    hand_over.finish();
    assert_eq!(executor.block_on(setting).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(new.mode(), Mode::WriteBack);
}

/// Whoever waits for a hand-over may be told to stop. What the successor sent to make room for what it got must not arrive behind what comes after.
#[test]
fn a_successor_that_is_left_behind_has_nothing_on_its_way() {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let slow = Latency::Between(Duration::from_millis(50), Duration::from_millis(50));
    let delayed = CrashLayer::new(ORIGIN_BYTES, 3).with_latency(Arc::new(executor.clock()), slow, &workers);
    let origin = Arc::new(StatsLayer::new(Arc::new(delayed), Arc::new(executor.clock()), &workers));
    executor.spawn(async move { workers.run().await });
    let shared: SharedDevice = origin.clone();
    let device = || -> SharedDevice { Arc::new(MemoryDevice::new(2 << 20, Identity::default())) };
    let (first, second) = (device(), device());
    format(&mut executor, &first, &shared, options_of(1, 8, 96));
    format(&mut executor, &second, &shared, options_of(2, 16, 16));
    let old = open(&mut executor, &first, &shared, Mode::WriteBack);
    let new = open(&mut executor, &second, &shared, Mode::WriteBack);
    for line in 0..32 {
        write(&mut executor, &old, line * LINE, &[1; 512]);
    }
    let (handing, clock) = ((Arc::clone(&old), Arc::clone(&new)), executor.clock());
    let told_to_stop = executor.block_on(async move {
        handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
        let handing_over = Box::pin(handing.0.hand_over(&handing.1));
        // In the middle of the first write that makes room.
        let stop = Box::pin(clock.sleep(Duration::from_millis(20)));
        matches!(futures_util::future::select(handing_over, stop).await, futures_util::future::Either::Right(_))
    });
    assert!(told_to_stop && origin.snapshot().in_flight_count > 0);
    let leaving = Arc::clone(&new);
    executor.block_on(async move { leaving.leave().await });
    assert_eq!(origin.snapshot().in_flight_count, 0);
    assert_eq!(executor.block_on(new.read(0, Buffer::zeroed(512))).unwrap_err().kind(), ErrorKind::Gone);
    let written = origin.snapshot().of(OperationKind::Write).completed_count;
    write(&mut executor, &old, 0, &[2; 512]);
    let closing = Arc::clone(&old);
    executor.block_on(async move { closing.close(false).await.unwrap() });
    assert!(origin.snapshot().of(OperationKind::Write).completed_count > written);
    assert_eq!(read(&mut executor, &shared, 0, 512), vec![2; 512]);
}
