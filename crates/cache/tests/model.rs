//! Read-your-writes against a slow, obvious model: all operations, both modes, many requests in flight with random delays,
//! mode switches, cleaning, close and reopen, and an origin whose size is no multiple of a line.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::{Geometry, SharedDevice};
use cache::{Associativity, FormatOptions, Mode};
use common::{Model, Workload, drive, format, format_options, open, read};

const ORIGIN_BYTES: u64 = 96 * 4096 + 1536;

fn devices(executor: &mut Executor, seed: u64, cache_bytes: u64) -> (SharedDevice, SharedDevice) {
    let workers = Workers::new();
    let latency = |most| Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let cache = CrashLayer::new(cache_bytes, seed).with_latency(Arc::new(executor.clock()), latency(100), &workers);
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let origin = CrashLayer::new(ORIGIN_BYTES, seed + 1).with_geometry(geometry).with_latency(
        Arc::new(executor.clock()),
        latency(1000),
        &workers,
    );
    executor.spawn(async move { workers.run().await });
    (Arc::new(cache), Arc::new(origin))
}

fn run(seed: u64, associativity: Associativity, mode: Mode, has_control: bool) {
    let mut executor = Executor::new(seed);
    let (cache_device, origin) = devices(&mut executor, seed, 512 << 10);
    let options = FormatOptions {
        associativity,
        log_bytes: Some(16 << 10),
        frames_max: Some(32 + seed % 40),
        ..format_options()
    };
    format(&mut executor, &cache_device, &origin, options);
    let model = Model::new(ORIGIN_BYTES);
    for round in 0..3 {
        let cache = open(&mut executor, &cache_device, &origin, mode);
        assert!(cache.status().recovery.was_closed);
        let workload = Workload {
            seed: seed * 10 + round,
            requests: 250,
            depth: 1 + (seed as usize * 7) % 16,
            sectors_max: if seed.is_multiple_of(3) { 40 } else { 12 },
            has_control,
            has_faults: false,
        };
        let clock = Arc::new(executor.clock());
        executor.block_on(drive(Arc::clone(&cache), Arc::clone(&model), clock, workload));
        let bytes = read(&mut executor, &cache, 0, ORIGIN_BYTES);
        model.lock().unwrap().check_exact(&bytes, "all of it");
        let status = cache.status();
        assert_eq!(status.origin_reads_before_write_ack, 0);
        assert!(status.failure.is_none());
        let keep_dirty = round == 0;
        let closing = Arc::clone(&cache);
        executor.block_on(async move { closing.close(keep_dirty).await.expect("nothing fails") });
        if !keep_dirty {
            let bytes = read(&mut executor, &origin, 0, ORIGIN_BYTES);
            model.lock().unwrap().check_exact(&bytes, "the origin after cleaning");
        }
    }
}

#[test]
fn write_back_returns_what_was_written() {
    for seed in 0..12 {
        run(seed, Associativity::Ways([1, 2, 4, 8][seed as usize % 4]), Mode::WriteBack, false);
        run(seed, Associativity::Full, Mode::WriteBack, false);
    }
}

#[test]
fn write_through_returns_what_was_written() {
    for seed in 0..12 {
        run(seed, Associativity::Ways([1, 2, 4, 8][seed as usize % 4]), Mode::WriteThrough, false);
        run(seed, Associativity::Full, Mode::WriteThrough, false);
    }
}

#[test]
fn modes_switch_and_lines_are_cleaned_under_load() {
    for seed in 0..24 {
        run(seed, Associativity::Ways([1, 4, 16, 64][seed as usize % 4]), Mode::WriteBack, true);
    }
}
