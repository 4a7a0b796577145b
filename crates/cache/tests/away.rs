//! An origin that is away: a warm cache goes on serving reads, write-back goes on taking writes up
//! to its limit, and all goes on when the origin is back.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::signal::Signal;
use block::completion::Workers;
use block::device::DeviceExt;
use block::{Completion, Device, Error, ErrorKind, EventReceiver, Geometry, Identity, Request, SharedDevice};
use cache::{Cache, DirtyLimits, Mode, OpenOptions, Percent};
use common::{format, format_options, memory, open_options, read, try_open, write};
use futures_util::FutureExt;

const ORIGIN_BYTES: u64 = 1 << 20;
const LINE: u64 = 4096;

/// The behaviour of a device that is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    /// Answers nothing until it is back.
    Waits,
    /// Fails everything.
    Fails,
}

/// A device that can go away and come back.
struct Remote {
    inner: SharedDevice,
    workers: Workers,
    manner: Away,
    is_away: Arc<AtomicBool>,
    back: Arc<Signal>,
}

impl Remote {
    fn leave(&self) {
        self.is_away.store(true, Ordering::Relaxed);
    }

    fn come_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
        self.back.notify();
    }
}

impl Device for Remote {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !self.is_away.load(Ordering::Relaxed) {
            return self.inner.submit(request);
        }
        if self.manner == Away::Fails {
            return Completion::ready(request.fail(Error::new(ErrorKind::TimedOut, "the target is away")));
        }
        let (inner, is_away, back) = (Arc::clone(&self.inner), Arc::clone(&self.is_away), Arc::clone(&self.back));
        Completion::task(&self.workers, async move {
            loop {
                let count = back.count();
                if !is_away.load(Ordering::Relaxed) {
                    return inner.submit(request).await;
                }
                back.changed_since(count).await;
            }
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}

/// A cache of 64 lines, of which 32 may be dirty.
fn bench(manner: Away) -> (Executor, Arc<Remote>, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let inner = memory(ORIGIN_BYTES);
    let (is_away, back) = (Arc::default(), Arc::new(Signal::new()));
    let remote = Arc::new(Remote { inner, workers: workers.clone(), manner, is_away, back });
    executor.spawn(async move { workers.run().await });
    let cache_device = memory(1 << 20);
    let origin: SharedDevice = remote.clone();
    let options = cache::FormatOptions { frames_max: Some(64), ..format_options() };
    format(&mut executor, &cache_device, &origin, options);
    let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::new(50) };
    let options = OpenOptions { dirty, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    (executor, remote, cache)
}

/// Reads half of the lines, and leaves with the other half still free.
fn warm_and_away(manner: Away) -> (Executor, Arc<Remote>, Arc<Cache>) {
    let (mut executor, remote, cache) = bench(manner);
    write(&mut executor, &remote.inner, 0, &[7; 16 * LINE as usize]);
    read(&mut executor, &cache, 0, 16 * LINE);
    executor.run();
    remote.leave();
    (executor, remote, cache)
}

fn assert_back_in_order(executor: &mut Executor, remote: &Remote, cache: &Arc<Cache>, written_lines: u64) {
    let cleaning = Arc::clone(cache);
    executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    assert_eq!(cache.status().dirty_lines, 0);
    let written = read(executor, &remote.inner, 16 * LINE, written_lines * LINE);
    assert!(written.iter().all(|&byte| byte == 9), "all that was acknowledged arrives");
}

#[test]
fn a_warm_cache_reads_and_writes_up_to_its_limit_while_the_origin_waits() {
    let (mut executor, remote, cache) = warm_and_away(Away::Waits);
    assert_eq!(read(&mut executor, &cache, 0, 16 * LINE), vec![7; 16 * LINE as usize]);
    for line in 16..48 {
        write(&mut executor, &cache, line * LINE, &[9; LINE as usize]);
    }
    assert_eq!(cache.status().dirty_lines, 32);
    let mut one_more = Box::pin(cache.write(48 * LINE, Buffer::copy_of(&[9; LINE as usize]), false));
    let mut cold = Box::pin(cache.read(100 * LINE, Buffer::zeroed(512)));
    executor.run();
    assert_eq!(cache.status().writes_delayed, 1, "there is no room for one more");
    assert!((&mut one_more).now_or_never().is_none());
    assert!((&mut cold).now_or_never().is_none());
    // Meanwhile the rest goes on, dirty lines too, while they are on their way to the origin.
    assert_eq!(read(&mut executor, &cache, 0, LINE), vec![7; LINE as usize]);
    assert_eq!(read(&mut executor, &cache, 20 * LINE, LINE), vec![9; LINE as usize]);
    write(&mut executor, &cache, 21 * LINE, &[9; LINE as usize]);
    remote.come_back();
    executor.block_on(one_more).unwrap();
    assert_eq!(executor.block_on(cold).unwrap().to_vec(), vec![0; 512]);
    assert_back_in_order(&mut executor, &remote, &cache, 33);
}

#[test]
fn a_warm_cache_reads_and_writes_up_to_its_limit_while_the_origin_fails() {
    let (mut executor, remote, cache) = warm_and_away(Away::Fails);
    for line in 16..48 {
        write(&mut executor, &cache, line * LINE, &[9; LINE as usize]);
    }
    let one_more = cache.write(48 * LINE, Buffer::copy_of(&[9; LINE as usize]), false);
    assert_eq!(executor.block_on(one_more).unwrap_err().kind(), ErrorKind::TimedOut);
    let cold = cache.read(100 * LINE, Buffer::zeroed(512));
    assert_eq!(executor.block_on(cold).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(read(&mut executor, &cache, 0, 16 * LINE), vec![7; 16 * LINE as usize]);
    assert_eq!(read(&mut executor, &cache, 16 * LINE, 32 * LINE), vec![9; 32 * LINE as usize]);
    executor.block_on(cache.flush()).unwrap();
    remote.come_back();
    write(&mut executor, &cache, 48 * LINE, &[9; LINE as usize]);
    assert_back_in_order(&mut executor, &remote, &cache, 33);
}

#[test]
fn dirty_data_says_how_old_it_may_be() {
    let (mut executor, remote, cache) = bench(Away::Waits);
    assert_eq!(cache.status().clean_at, None, "without a time of day");
    executor.block_on(async move { cache.close(false).await.unwrap() });
    let cache_device = memory(1 << 20);
    let origin: SharedDevice = remote;
    format(&mut executor, &cache_device, &origin, format_options());
    let now = Arc::new(std::sync::atomic::AtomicU64::new(1000));
    let clock = Arc::clone(&now);
    let time_of_day: cache::TimeOfDay = Arc::new(move || clock.load(Ordering::Relaxed));
    let options = OpenOptions { time_of_day: Some(time_of_day), ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    now.store(2000, Ordering::Relaxed);
    write(&mut executor, &cache, 0, &[1; 512]);
    now.store(3000, Ordering::Relaxed);
    write(&mut executor, &cache, 4096, &[1; 512]);
    assert_eq!(cache.status().clean_at, Some(2000));
    executor.block_on(async move { cache.close(true).await.unwrap() });
    let inspection = executor.block_on(async move { cache::inspect(&cache_device).await.unwrap() });
    assert_eq!((inspection.dirty_bytes, inspection.clean_at), (1024, Some(2000)));
}

/// The caller of a cleaning may stop waiting in the middle, as a hurried `forebay detach` does: its
/// lines must not stay taken.
#[test]
fn a_cleaning_that_nobody_waits_for_any_more_ends_by_itself() {
    let (mut executor, remote, cache) = warm_and_away(Away::Waits);
    write(&mut executor, &cache, 16 * LINE, &[9; 4 * LINE as usize]);
    let asking = Arc::clone(&cache);
    let mut cleaning = Box::pin(async move { asking.clean(|_| {}).await });
    assert!((&mut cleaning).now_or_never().is_none());
    executor.run();
    drop(cleaning);
    assert_eq!(cache.status().cleaning, None);
    remote.come_back();
    assert_back_in_order(&mut executor, &remote, &cache, 4);
    executor.block_on(async move { cache.close(true).await.unwrap() });
}

/// In modes other than write-back dirty data is cleaned as soon as possible, whatever kept it from
/// being cleaned when the mode was set.
#[test]
fn what_is_dirty_of_an_earlier_mode_is_cleaned_when_the_origin_is_back() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough, Mode::ReadOnly] {
        let (mut executor, remote, cache) = warm_and_away(Away::Fails);
        write(&mut executor, &cache, 16 * LINE, &[9; 4 * LINE as usize]);
        let changing = Arc::clone(&cache);
        executor.block_on(async move { changing.set_mode(mode).await.unwrap_err() });
        assert_eq!((cache.mode(), cache.status().dirty_lines), (mode, 4));
        remote.come_back();
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_secs(3)).await });
        assert_eq!(cache.status().dirty_lines, 0, "{mode}");
        assert_eq!(read(&mut executor, &remote.inner, 16 * LINE, 4 * LINE), vec![9; 4 * LINE as usize]);
    }
}

#[test]
fn what_is_dirty_when_a_cache_is_opened_in_another_mode_is_cleaned() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = (memory(1 << 20), memory(ORIGIN_BYTES));
    format(&mut executor, &cache_device, &origin, format_options());
    let options = open_options(&executor, Mode::WriteBack);
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    write(&mut executor, &cache, 0, &[9; LINE as usize]);
    executor.block_on(async move { cache.close(true).await.unwrap() });
    let options = open_options(&executor, Mode::WriteThrough);
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    executor.run();
    assert_eq!(cache.status().dirty_lines, 0);
    assert_eq!(read(&mut executor, &origin, 0, LINE), vec![9; LINE as usize]);
}
