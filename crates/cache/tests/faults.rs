//! A cache device that refuses writes, reads and flushes now and then, and drops what it holds volatile in some of
//! these flushes, under load, whatever the mode and the crash mode: what is read is what was acknowledged, or an error;
//! and so it is after a crash.

mod common;

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
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::delay::Latency;
use block::{Device, ErrorKind, Geometry, SharedDevice};
use cache::{Associativity, Cache, CrashMode, FormatOptions, Mode};
use common::{Model, Workload, drive, format, format_options, open, read};

const LINE: u64 = 4096;
const ORIGIN_BYTES: u64 = 96 * LINE + 1536;
const CACHE_BYTES: u64 = 512 << 10;

/// Where the device refuses requests.
#[derive(Clone, Copy)]
struct Faults {
    /// Also in its first bytes, superblock and log; otherwise in the frames only.
    of_log: bool,
}

fn timed(executor: &mut Executor, medium: &CrashLayer, most: u64) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// Refuses requests every few milliseconds until `is_over`; then the device is sound again.
async fn disturb(medium: CrashLayer, clock: Arc<dyn Clock>, seed: u64, faults: Faults, is_over: Arc<AtomicBool>) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        clock.sleep(Duration::from_micros(random.below(4000))).await;
        match random.below(if faults.of_log { 4 } else { 2 }) {
            0 => {
                let line = 16 + random.below(CACHE_BYTES / LINE - 40);
                medium.fail_reads_of(ByteRange { offset: line * LINE, length: (1 + random.below(8)) * LINE });
            }
            1 => medium.heal(),
            2 => medium.fail_write_once(medium.writes_seen() + random.below(20), ErrorKind::Media),
            _ => {
                let effect = if random.chance(0.5) { FlushEffect::Drops } else { FlushEffect::None };
                let flush = medium.flushes_seen() + random.below(5);
                medium.fail_flush_as(flush, ErrorKind::Media, effect, Reported::Once);
            }
        }
    }
    medium.heal();
}

/// Checks each line by itself: what can be read is right. Returns how many cannot be read.
fn check_lines(executor: &mut Executor, cache: &Cache, model: &Model) -> u32 {
    let mut failed = 0;
    for offset in (0..ORIGIN_BYTES).step_by(LINE as usize) {
        let range = ByteRange { offset, length: LINE.min(ORIGIN_BYTES - offset) };
        match executor.block_on(cache.read(offset, Buffer::zeroed(range.length as usize))) {
            Ok(bytes) => model.check_read(range, &model.snapshot(range), &bytes, "when the device is sound again"),
            Err(_) => failed += 1,
        }
    }
    failed
}

/// Returns whether the cache has failed for good.
fn run(seed: u64, mode: Mode, crash_mode: CrashMode, faults: Faults) -> bool {
    let mut executor = Executor::new(seed);
    let cache_medium = CrashLayer::new(CACHE_BYTES, seed);
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let origin_medium = CrashLayer::new(ORIGIN_BYTES, seed + 1).with_geometry(geometry);
    let (device, origin) = (timed(&mut executor, &cache_medium, 100), timed(&mut executor, &origin_medium, 500));
    let options = FormatOptions {
        associativity: Associativity::Ways(1 + seed as u32 % 9),
        log_bytes: Some([16 << 10, 64 << 10][seed as usize % 2]),
        frames_max: Some(32 + seed % 40),
        has_checksums: seed.is_multiple_of(3),
        crash_mode,
        ..format_options()
    };
    format(&mut executor, &device, &origin, options);
    let model = Model::new(ORIGIN_BYTES);
    let cache = open(&mut executor, &device, &origin, mode);
    let is_over = Arc::new(AtomicBool::new(false));
    executor.spawn(disturb(cache_medium.clone(), Arc::new(executor.clock()), seed, faults, Arc::clone(&is_over)));
    let has_control = mode == Mode::WriteBack && crash_mode != CrashMode::DiscardAll;
    let workload = Workload { seed, requests: 300, depth: 8, sectors_max: 20, has_control, has_faults: true };
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    executor.block_on(drive(Arc::clone(&cache), Arc::clone(&model), Arc::clone(&clock), workload));
    is_over.store(true, Ordering::Relaxed);
    executor.block_on(async move { clock.sleep(Duration::from_millis(50)).await });
    let failed_lines = check_lines(&mut executor, &cache, &model.lock().unwrap());
    assert_eq!(failed_lines, 0, "seed {seed}: a sound device returns everything");
    let has_failed = cache.status().failure.is_some();
    drop((cache, executor));
    let mut executor = Executor::new(seed + 1);
    let medium = cache_medium.after_power_loss_as(Loss::Seeded(seed), &Power::new());
    let origin_medium = origin_medium.after_power_loss_as(Loss::InFlightOnly, &Power::new());
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium), Arc::new(origin_medium));
    let cache = open(&mut executor, &device, &origin, mode);
    let bytes = read(&mut executor, &cache, 0, cache.geometry().size_bytes);
    let context = format!("seed {seed}, {mode}, crash mode {crash_mode}");
    model.lock().unwrap().check_after_crash(&bytes, &context);
    has_failed
}

#[test]
fn whatever_the_cache_device_refuses_nothing_acknowledged_is_lost() {
    let test = block::crash_test!();
    let (mut failed, mut count) = (0, 0);
    for seed in test.seeds(0, 60, 1) {
        let _printed = test.on_panic(seed, None);
        for (mode, crash_mode) in [
            (Mode::WriteBack, CrashMode::DirtySynchronous),
            (Mode::WriteBack, CrashMode::Warm),
            (Mode::WriteBack, CrashMode::AllSynchronous),
            (Mode::WriteThrough, CrashMode::Warm),
            (Mode::WriteThrough, CrashMode::DiscardAll),
            (Mode::WriteAround, CrashMode::Warm),
        ] {
            let faults = Faults { of_log: seed % 2 == 0 };
            count += 1;
            failed += u32::from(run(seed, mode, crash_mode, faults));
        }
    }
    // With few seeds all may be of one sort.
    let are_few = count < 60;
    assert!(
        are_few || (failed > count / 10 && failed < count),
        "{failed} of {count} caches have failed for good: both are tried"
    );
}
