//! Read-your-writes against a slow, obvious model: all operations, both modes, many requests in flight with random
//! delays, mode switches, cleaning, close and reopen, lines of all sizes, and an origin whose size is no multiple of a
//! line.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{Geometry, SharedDevice};
use cache::{Associativity, FormatOptions, LineSize, Mode};
use common::{Model, Workload, drive, format, format_options, open, read};

/// An origin small enough that lines are evicted.
fn origin_bytes(line_size: LineSize) -> u64 {
    (96 * 4096).max(24 * line_size.bytes()) + 1536
}

fn devices(executor: &mut Executor, seed: u64, cache_bytes: u64, origin_bytes: u64) -> (SharedDevice, SharedDevice) {
    let workers = Workers::new();
    let latency = |most| Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let cache = CrashLayer::new(cache_bytes, seed).with_latency(Arc::new(executor.clock()), latency(100), &workers);
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(origin_bytes) };
    let origin = CrashLayer::new(origin_bytes, seed + 1).with_geometry(geometry).with_latency(
        Arc::new(executor.clock()),
        latency(1000),
        &workers,
    );
    executor.spawn(async move { workers.run().await });
    (Arc::new(cache), Arc::new(origin))
}

fn run(seed: u64, associativity: Associativity, mode: Mode, has_control: bool) {
    run_with(LineSize::default(), seed, associativity, mode, has_control);
}

fn run_with(line_size: LineSize, seed: u64, associativity: Associativity, mode: Mode, has_control: bool) {
    let mut executor = Executor::new(seed);
    let origin_bytes = origin_bytes(line_size);
    let cache_bytes = (512 << 10).max(20 * line_size.bytes());
    let (cache_device, origin) = devices(&mut executor, seed, cache_bytes, origin_bytes);
    let line_sectors = u64::from(line_size.sector_count());
    let options = FormatOptions {
        line_size,
        has_checksums: seed.is_multiple_of(2) && line_size == LineSize::default(),
        associativity,
        log_bytes: Some([16 << 10, 64 << 10][seed as usize % 2]),
        frames_max: Some(32 + seed % 40),
        ..format_options()
    };
    format(&mut executor, &cache_device, &origin, options);
    let model = Model::new(origin_bytes);
    for round in 0..3 {
        let cache = open(&mut executor, &cache_device, &origin, mode);
        assert!(cache.status().recovery.was_closed);
        let workload = Workload {
            seed: seed * 10 + round,
            requests: 250,
            depth: 1 + (seed as usize * 7) % 16,
            sectors_max: if seed.is_multiple_of(3) { 40.max(2 * line_sectors) } else { 12 },
            has_control,
            has_faults: false,
        };
        let clock = Arc::new(executor.clock());
        executor.block_on(drive(Arc::clone(&cache), Arc::clone(&model), clock, workload));
        let bytes = read(&mut executor, &cache, 0, origin_bytes);
        model.lock().unwrap().check_exact(&bytes, "all of it");
        let status = cache.status();
        assert_eq!(status.origin_reads_before_write_ack, 0);
        assert!(status.failure.is_none());
        assert_eq!(status.checksum_errors, 0);
        let keep_dirty = round == 0;
        let closing = Arc::clone(&cache);
        executor.block_on(async move { closing.close(keep_dirty).await.expect("nothing fails") });
        if !keep_dirty {
            let bytes = read(&mut executor, &origin, 0, origin_bytes);
            model.lock().unwrap().check_exact(&bytes, "the origin after cleaning");
        }
    }
}

#[test]
fn write_back_returns_what_was_written() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        let _printed = test.on_panic(seed, None);
        run(seed, Associativity::Ways([1, 2, 4, 8][seed as usize % 4]), Mode::WriteBack, false);
        run(seed, Associativity::Full, Mode::WriteBack, false);
    }
}

#[test]
fn write_through_returns_what_was_written() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        let _printed = test.on_panic(seed, None);
        run(seed, Associativity::Ways([1, 2, 4, 8][seed as usize % 4]), Mode::WriteThrough, false);
        run(seed, Associativity::Full, Mode::WriteThrough, false);
    }
}

#[test]
fn modes_switch_and_lines_are_cleaned_under_load() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 24, 1) {
        let _printed = test.on_panic(seed, None);
        run(seed, Associativity::Ways([1, 4, 16, 64][seed as usize % 4]), Mode::WriteBack, true);
    }
}

#[test]
fn lines_of_every_size_return_what_was_written() {
    let test = block::crash_test!();
    for (nth, bytes) in [8 << 10, 64 << 10, 256 << 10].into_iter().enumerate() {
        let line_size = LineSize::new(bytes).unwrap();
        for seed in test.seeds(nth as u64, 6, 10) {
            let _printed = test.on_panic(seed, None);
            let associativity =
                [Associativity::Ways(4), Associativity::Full, Associativity::Ways(8)][seed as usize % 3];
            run_with(line_size, seed, associativity, Mode::WriteBack, true);
            run_with(line_size, seed, associativity, Mode::WriteThrough, false);
        }
    }
}
