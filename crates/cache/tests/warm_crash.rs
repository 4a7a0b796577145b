//! Crash mode *warm*: the hit ratio in the minute after a crash is that of the minute before.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power, Reported, WriteEffect};
use block::{Error, ErrorKind, Geometry, SharedDevice};
use cache::{Cache, CrashMode, FormatOptions, Mode, OpenOptions};
use common::{format, format_options, read, try_open, write};
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, FutureExt};

const LINE: u64 = 4096;
/// Four times as many lines as the cache has room for.
const ORIGIN_LINES: u64 = 4096;
const CACHE_LINES: u64 = 1024;
/// One request each ten milliseconds.
const PERIOD: Duration = Duration::from_millis(10);
const MINUTE_REQUESTS: usize = 6000;

struct Load {
    random: Random,
}

impl Load {
    /// Requests over the whole origin, some lines much more often than others, one of ten a write.
    /// Returns the share of reads that were hits.
    fn run(&mut self, executor: &mut Executor, cache: &Arc<Cache>, requests: usize) -> f64 {
        let before = cache.status().reads;
        let clock = executor.clock();
        for _ in 0..requests {
            let place = (0..3).map(|_| self.random.below(ORIGIN_LINES)).min().expect("there are three");
            // Frequent lines are not adjacent.
            let line = place * 1021 % ORIGIN_LINES;
            match self.random.chance(0.1) {
                true => write(executor, cache, line * LINE, &[7; LINE as usize]),
                false => drop(read(executor, cache, line * LINE, LINE)),
            }
            let sleeping = clock.sleep(PERIOD);
            executor.block_on(sleeping);
        }
        let now = cache.status().reads;
        let (hits, misses) = (now.hits - before.hits, now.misses - before.misses);
        hits as f64 / (hits + misses) as f64
    }
}

/// Hit ratios in the minute before a crash and in the one after it.
fn before_and_after(crash_mode: CrashMode, mode: Mode, loss: Loss) -> (f64, f64) {
    let cache_bytes = 2 * CACHE_LINES * LINE;
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_LINES * LINE) };
    let mut cache_medium = CrashLayer::new(cache_bytes, 1);
    let mut origin_medium = CrashLayer::new(ORIGIN_LINES * LINE, 2).with_geometry(geometry);
    let mut load = Load { random: Random::new(3) };
    let open = |cache_medium: &CrashLayer, origin_medium: &CrashLayer, is_new: bool| {
        let mut executor = Executor::in_order();
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(cache_medium.clone()), Arc::new(origin_medium.clone()));
        if is_new {
            let options = FormatOptions { crash_mode, frames_max: Some(CACHE_LINES), ..format_options() };
            format(&mut executor, &device, &origin, options);
        }
        // The options of a cache outside of tests.
        let options = OpenOptions::new(mode, Arc::new(executor.clock()));
        let cache = try_open(&mut executor, &device, &origin, options).expect("a cache can be opened after any crash");
        (executor, cache)
    };
    let (mut executor, cache) = open(&cache_medium, &origin_medium, true);
    load.run(&mut executor, &cache, 3 * MINUTE_REQUESTS);
    let before = load.run(&mut executor, &cache, MINUTE_REQUESTS);
    drop((cache, executor));
    cache_medium = cache_medium.after_power_loss_as(loss, &Power::new());
    origin_medium = origin_medium.after_power_loss_as(loss, &Power::new());
    let (mut executor, cache) = open(&cache_medium, &origin_medium, false);
    let after = load.run(&mut executor, &cache, MINUTE_REQUESTS);
    (before, after)
}

#[test]
fn a_warm_cache_has_the_hit_ratio_after_a_crash_that_it_had_before() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        for loss in [Loss::InFlightOnly, Loss::Seeded(5)] {
            let (before, after) = before_and_after(CrashMode::Warm, mode, loss);
            assert!(before > 0.4, "{before}: there is little to lose");
            assert!(after >= 0.95 * before, "{mode}, {loss:?}: {before} before and {after} after");
        }
    }
    // The ratio is not reached by filling again quickly.
    let (before, after) = before_and_after(CrashMode::DirtySynchronous, Mode::WriteThrough, Loss::InFlightOnly);
    assert!(after < 0.9 * before, "{before} before and {after} after");
}

/// A write that failed and landed all the same is volatile on the LUN: what is read there is not kept
/// over a crash before the LUN has flushed it.
#[test]
fn what_a_failed_change_left_volatile_on_the_lun_is_not_clean_over_a_crash() {
    type Change = fn(&Cache) -> BoxFuture<'static, Result<(), Error>>;
    let changes: [(&str, Change); 3] = [
        ("write", |cache| cache.write(0, Buffer::copy_of(&[2; LINE as usize]), false).map_ok(drop).boxed()),
        ("durable write", |cache| cache.write(0, Buffer::copy_of(&[2; LINE as usize]), true).map_ok(drop).boxed()),
        ("zeroes", |cache| cache.write_zeroes(0, LINE, false, false).boxed()),
    ];
    for (name, change) in changes {
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(64 * LINE) };
        let mut executor = Executor::in_order();
        let cache_medium = CrashLayer::new(1 << 20, 1);
        let origin_medium = CrashLayer::new(64 * LINE, 2).with_geometry(geometry);
        let open = |executor: &mut Executor, cache_medium: &CrashLayer, origin_medium: &CrashLayer| {
            let (device, origin): (SharedDevice, SharedDevice) =
                (Arc::new(cache_medium.clone()), Arc::new(origin_medium.clone()));
            let options = OpenOptions::new(Mode::WriteThrough, Arc::new(executor.clock()));
            try_open(executor, &device, &origin, options).expect("nothing fails")
        };
        let options = FormatOptions { crash_mode: CrashMode::Warm, ..format_options() };
        format(
            &mut executor,
            &(Arc::new(cache_medium.clone()) as SharedDevice),
            &(Arc::new(origin_medium.clone()) as SharedDevice),
            options,
        );
        let cache = open(&mut executor, &cache_medium, &origin_medium);
        write(&mut executor, &cache, 0, &[1; LINE as usize]);
        let flushing = cache.flush();
        executor.block_on(flushing).expect("nothing fails");
        let nth = origin_medium.writes_seen();
        origin_medium.fail_write_as(nth, ErrorKind::Media, WriteEffect::Whole, Reported::Once);
        let changing = change(&cache);
        executor.block_on(changing).expect_err("it is told to have failed");
        for _ in 0..3 {
            let found = read(&mut executor, &cache, 0, LINE);
            assert_ne!(found[0], 1, "{name}: it has landed");
        }
        assert!(cache.status().reads.hits > 0, "{name}: it is in the cache");
        // Clean lines are stored meanwhile.
        let sleeping = executor.clock().sleep(Duration::from_secs(600));
        executor.block_on(sleeping);
        drop(cache);
        let lose = |medium: &CrashLayer| medium.after_power_loss_as(Loss::All, &Power::new());
        let (cache_medium, origin_medium) = (lose(&cache_medium), lose(&origin_medium));
        let lun = origin_medium.durable_bytes(0, 1)[0];
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &cache_medium, &origin_medium);
        assert_eq!(read(&mut executor, &cache, 0, LINE)[0], lun, "{name}: what the LUN has");
    }
}
