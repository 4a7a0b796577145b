//! A cache device whose flush fails may have dropped what it held volatile: clean lines, which are written to it
//! without force unit access.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use block::layer::shared_flush::SharedFlushLayer;
use block::memory::MemoryDevice;
use block::{Buffer, ErrorKind, Identity, SharedDevice};
use cache::{CrashMode, FormatOptions, Mode};
use common::{format, format_options, open, read, write};

const LINE: u64 = 4096;
const LINES: u64 = 24;

fn origin() -> SharedDevice {
    Arc::new(MemoryDevice::new(256 * LINE, Identity::default()))
}

/// Checks that a read of the whole cache returns the origin's content.
fn assert_serves_what_the_origin_has(executor: &mut Executor, cache: &cache::Cache, origin: &SharedDevice, what: &str) {
    let bytes = read(executor, cache, 0, LINES * LINE);
    let expected = read(executor, origin, 0, LINES * LINE);
    let stale = (0..bytes.len()).step_by(512).filter(|&at| bytes[at] != expected[at]).count();
    assert_eq!(stale, 0, "{what}: sectors that are not what was acknowledged");
}

/// The failing flush is the one before clean lines are stored.
#[test]
fn what_the_cache_device_dropped_in_a_flush_that_failed_is_read_from_the_origin() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 8, 1) {
        let _printed = test.on_panic(seed, None);
        for mode in [Mode::WriteThrough, Mode::WriteBack] {
            let mut executor = Executor::in_order();
            let medium = CrashLayer::new(1 << 20, seed);
            let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium.clone()), origin());
            let all: Vec<u8> = (0..LINES * LINE).map(|at| 1 + (at / 512 % 250) as u8).collect();
            write(&mut executor, &origin, 0, &all);
            let options = FormatOptions { crash_mode: CrashMode::Warm, ..format_options() };
            format(&mut executor, &device, &origin, options);
            let cache = open(&mut executor, &device, &origin, mode);
            let flush = medium.flushes_seen();
            medium.fail_flush_as(flush, ErrorKind::Media, FlushEffect::Drops, Reported::Once);
            read(&mut executor, &cache, 0, LINES / 2 * LINE);
            if mode == Mode::WriteThrough {
                write(&mut executor, &cache, LINES / 2 * LINE, &[0xaa; 4 * LINE as usize]);
            }
            executor.run();
            assert!(medium.flushes_seen() > flush, "what is clean was to be stored");
            let what = format!("seed {seed}, {mode}");
            assert_serves_what_the_origin_has(&mut executor, &cache, &origin, &what);
        }
    }
}

/// Durable writes share the flush that drops what is clean.
#[test]
fn what_the_cache_device_dropped_in_the_flush_of_a_write_is_read_from_the_origin() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 8, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, seed);
        let workers = Workers::new();
        let device: SharedDevice = Arc::new(SharedFlushLayer::new(Arc::new(medium.clone()), &workers));
        executor.spawn(async move { workers.run().await });
        let origin = origin();
        write(&mut executor, &origin, 0, &[1; (LINES * LINE) as usize]);
        format(&mut executor, &device, &origin, format_options());
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        read(&mut executor, &cache, 0, LINES / 2 * LINE);
        executor.run();
        let flush = medium.flushes_seen();
        medium.fail_flush_as(flush, ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        // The device fails, so this write may or may not be durable.
        let writing = cache.write((LINES - 1) * LINE, Buffer::copy_of(&[1; LINE as usize]), false);
        let kind = executor.block_on(writing).map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::OutcomeUnknown), "seed {seed}");
        assert_serves_what_the_origin_has(&mut executor, &cache, &origin, &format!("seed {seed}"));
    }
}
