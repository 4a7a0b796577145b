//! A warm cache is used again only over the generation that its content is of.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::layer::crash::CrashLayer;
use block::{ErrorKind, SharedDevice};
use cache::{Cache, CrashMode, FormatOptions, Mode, OpenOptions};
use common::{format, format_options, memory, open_options, read, try_open, write};

struct Bench {
    executor: Executor,
    medium: CrashLayer,
    origin: SharedDevice,
}

impl Bench {
    fn new(crash_mode: CrashMode, seed: u64) -> Self {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, seed);
        let origin = memory(1 << 20);
        write(&mut executor, &origin, 0, &[1; 65536]);
        let device: SharedDevice = Arc::new(medium.clone());
        format(&mut executor, &device, &origin, FormatOptions { crash_mode, ..format_options() });
        Self { executor, medium, origin }
    }

    fn open(&mut self, generation: Option<u64>) -> Result<Arc<Cache>, ErrorKind> {
        self.executor = Executor::in_order();
        let options = OpenOptions { generation, ..open_options(&self.executor, Mode::WriteBack) };
        let device: SharedDevice = Arc::new(self.medium.clone());
        try_open(&mut self.executor, &device, &self.origin, options).map_err(|error| error.kind())
    }

    fn close(&mut self, cache: Arc<Cache>) {
        self.executor.block_on(async move { cache.close(true).await.unwrap() });
    }

    /// Reads, so that there are clean lines, and closes.
    fn warm(&mut self, generation: Option<u64>) {
        let cache = self.open(generation).unwrap();
        read(&mut self.executor, &cache, 0, 65536);
        self.executor.run();
        self.close(cache);
    }
}

#[test]
fn clean_lines_of_another_generation_do_not_count() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
        for is_crash in [false, true] {
            let mut bench = Bench::new(crash_mode, 1);
            bench.warm(Some(7));
            for generation in [Some(7), None] {
                let cache = bench.open(generation).unwrap();
                assert_eq!((cache.status().resident_lines, cache.status().generation), (16, Some(7)), "warm");
                bench.close(cache);
            }
            // Another host has changed the origin, and the user sets another generation.
            let origin = Arc::clone(&bench.origin);
            write(&mut bench.executor, &origin, 0, &[2; 65536]);
            let cache = bench.open(Some(8)).unwrap();
            assert_eq!(cache.status().resident_lines, 0, "{crash_mode:?}");
            if is_crash {
                drop(cache);
                bench.medium = bench.medium.after_power_loss();
            } else {
                bench.close(cache);
            }
            let cache = bench.open(None).unwrap();
            assert_eq!((cache.status().resident_lines, cache.status().generation), (0, Some(8)));
            assert_eq!(read(&mut bench.executor, &cache, 0, 65536), vec![2; 65536]);
        }
    }
}

#[test]
fn dirty_lines_of_another_generation_are_refused() {
    let mut bench = Bench::new(CrashMode::DirtySynchronous, 1);
    let cache = bench.open(Some(7)).unwrap();
    write(&mut bench.executor, &cache, 0, &[9; 4096]);
    bench.close(cache);
    assert_eq!(bench.open(Some(8)).err(), Some(ErrorKind::Unsupported));
    let cache = bench.open(Some(7)).unwrap();
    let cleaning = Arc::clone(&cache);
    bench.executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    bench.close(cache);
    assert!(bench.open(Some(8)).is_ok());
}

/// Bits of the seed give the crash mode.
#[test]
fn the_power_may_fail_while_a_generation_begins() {
    const MODES: [CrashMode; 3] = [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous];
    let test = block::crash_test!().of_few_crashes(2);
    for seed in test.seeds(0, 6, 1) {
        let crash_mode = MODES[seed as usize % MODES.len()];
        test.crash_at_every(seed, 100, |nth| {
            let mut bench = Bench::new(crash_mode, seed);
            bench.warm(Some(7));
            let origin = Arc::clone(&bench.origin);
            write(&mut bench.executor, &origin, 0, &[2; 65536]);
            bench.medium.power().fail_write(bench.medium.power().writes_seen() + nth);
            let has_opened = bench.open(Some(8)).is_ok();
            bench.medium = bench.medium.after_power_loss();
            let cache = bench.open(Some(8)).unwrap();
            assert_eq!(read(&mut bench.executor, &cache, 0, 65536), vec![2; 65536], "{crash_mode:?}, write {nth}");
            !has_opened
        });
    }
}
