//! A slow, obvious model beside the cache, and a workload that drives both.
//!
//! Several requests of one submitter are in flight at a time; the model says what a read may return
//! then.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

pub mod lines;
pub mod lists;
pub mod model;

use std::sync::{Arc, Mutex};

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Device, Error, Identity, Request, Response, SharedDevice};
use cache::{Admission, Alignment, Cache, CrashMode, FormatOptions, Mode, OpenOptions, Replacement, Tuning};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
pub use model::Model;
use model::{SECTOR, fill, lock, random_range};

/// Options of an open under `executor`.
pub fn open_options(executor: &Executor, mode: Mode) -> OpenOptions {
    // Short, so that even a short workload stores clean lines.
    let lazy_interval = std::time::Duration::from_millis(1);
    // Most tests are about writes to frames; `drive` draws whether any are deferred.
    OpenOptions { lazy_interval, deferred_max: 0, ..OpenOptions::new(mode, Arc::new(executor.clock())) }
}

/// A device in memory.
pub fn memory(size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, Identity::default()))
}

/// A device in memory of a MiB, formatted as a cache of `origin` with this crash mode.
pub fn made(executor: &mut Executor, origin: &SharedDevice, crash_mode: CrashMode) -> SharedDevice {
    let device = memory(1 << 20);
    format(executor, &device, origin, FormatOptions { crash_mode, ..format_options() });
    device
}

/// Formats with an identifier that is the same in every run, and without a look at the origin.
pub fn format_options() -> FormatOptions {
    let uuid = Some(uuid::Uuid::from_bytes([7; 16]));
    FormatOptions { uuid, alignment: Alignment::At(0), ..FormatOptions::default() }
}

pub fn format(executor: &mut Executor, cache: &SharedDevice, origin: &SharedDevice, options: FormatOptions) {
    let (cache, origin) = (Arc::clone(cache), Arc::clone(origin));
    executor.block_on(async move { Cache::format(&cache, &origin, options).await.expect("nothing fails yet") });
}

pub fn try_open(
    executor: &mut Executor,
    cache: &SharedDevice,
    origin: &SharedDevice,
    options: OpenOptions,
) -> Result<Arc<Cache>, Error> {
    let (cache, origin) = (Arc::clone(cache), Arc::clone(origin));
    let opened = executor.block_on(Cache::open(cache, origin, options))?;
    executor.spawn(opened.run());
    Ok(opened)
}

pub fn open(executor: &mut Executor, cache: &SharedDevice, origin: &SharedDevice, mode: Mode) -> Arc<Cache> {
    let options = open_options(executor, mode);
    try_open(executor, cache, origin, options).expect("a cache can be opened after any crash")
}

/// Closes the cache when nothing is under way any more.
pub fn close(executor: &mut Executor, cache: &Arc<Cache>, keep_dirty: bool) {
    executor.run_until_stalled();
    let closing = Arc::clone(cache);
    executor.block_on(async move { closing.close(keep_dirty).await.expect("nothing fails") });
}

pub fn read(executor: &mut Executor, device: &impl Device, offset: u64, length: u64) -> Vec<u8> {
    let reading = device.read(offset, Buffer::zeroed(length as usize));
    executor.block_on(reading).expect("nothing fails").to_vec()
}

pub fn write(executor: &mut Executor, device: &impl Device, offset: u64, bytes: &[u8]) {
    let writing = device.write(offset, Buffer::copy_of(bytes), false);
    executor.block_on(writing).expect("nothing fails");
}

/// Parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub requests: usize,
    pub depth: usize,
    /// Longest request in sectors.
    pub sectors_max: u64,
    /// Whether mode switches and cleaning happen meanwhile.
    pub has_control: bool,
    /// Whether requests may fail.
    pub has_faults: bool,
}

/// The outcome of a request, for the driver.
struct Outcome {
    is_ok: bool,
}

/// Runs the workload to its end.
pub async fn drive(cache: Arc<Cache>, model: Arc<Mutex<Model>>, clock: Arc<dyn Clock>, workload: Workload) {
    let mut random = Random::new(workload.seed);
    // With every replacement policy nothing may be lost.
    cache.set_replacement(Replacement::ALL[workload.seed as usize % Replacement::ALL.len()]);
    cache.set_tuning(tuning(&mut random));
    cache.set_deferred_max(deferred_max(&mut random));
    let mut running: FuturesUnordered<BoxFuture<'static, Outcome>> = FuturesUnordered::new();
    let size_bytes = cache.geometry().size_bytes;
    let mut submitted = 0;
    loop {
        let has_more = submitted < workload.requests;
        if !has_more && running.is_empty() {
            return;
        }
        if has_more && running.len() < workload.depth {
            submitted += 1;
            let operation = submit_one(&cache, &model, &mut random, size_bytes, &workload);
            running.push(operation);
            if random.chance(0.2) {
                clock.sleep(std::time::Duration::from_micros(random.below(500))).await;
            }
            continue;
        }
        let outcome = running.next().await.expect("something is running");
        assert!(outcome.is_ok || workload.has_faults, "a request failed without a fault");
    }
}

fn submit_one(
    cache: &Arc<Cache>,
    model: &Arc<Mutex<Model>>,
    random: &mut Random,
    size_bytes: u64,
    workload: &Workload,
) -> BoxFuture<'static, Outcome> {
    let range = random_range(random, size_bytes, workload.sectors_max);
    let (cache, model) = (Arc::clone(cache), Arc::clone(model));
    let has_faults = workload.has_faults;
    match random.below(100) {
        0..35 => {
            let snapshot = lock(&model).snapshot(range);
            let completion = cache.submit(Request::read(range.offset, Buffer::zeroed(range.length as usize)));
            let finish = async move {
                let response: Response = completion.await;
                if response.result.is_ok() {
                    lock(&model).check_read(range, &snapshot, &response.buffer, "a read");
                }
                Outcome { is_ok: response.result.is_ok() }
            };
            finish.boxed()
        }
        35..85 => {
            let (stamp, indices) = lock(&model).submit_change(range, false);
            let mut buffer = Buffer::zeroed(range.length as usize);
            fill(&mut buffer, stamp);
            let fua = random.chance(0.2);
            let request = Request::write(range.offset, buffer, fua);
            change(cache, model, range, request, indices, fua).boxed()
        }
        85..89 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            let fua = random.chance(0.2);
            let request = Request::write_zeroes(range.offset, range.length, fua, true);
            change(cache, model, range, request, indices, fua).boxed()
        }
        89..92 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            let request = Request::discard(range.offset, range.length);
            change(cache, model, range, request, indices, false).boxed()
        }
        92..96 => {
            let acknowledged = lock(&model).acknowledged();
            let completion = cache.submit(Request::flush());
            let finish = async move {
                let is_ok = completion.await.result.is_ok();
                if is_ok {
                    lock(&model).make_durable(&acknowledged);
                }
                Outcome { is_ok }
            };
            finish.boxed()
        }
        _ if !workload.has_control => async { Outcome { is_ok: true } }.boxed(),
        96..98 => {
            let finish = async move { Outcome { is_ok: cache.clean(|_| {}).await.is_ok() || has_faults } };
            finish.boxed()
        }
        _ => {
            let modes = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteBack, Mode::WriteAround, Mode::PassThrough];
            let mode = modes[random.below(modes.len() as u64) as usize];
            cache.set_tuning(tuning(random));
            cache.set_deferred_max(deferred_max(random));
            cache.set_replacement(Replacement::ALL[random.below(Replacement::ALL.len() as u64) as usize]);
            let acknowledged = lock(&model).acknowledged();
            let finish = async move {
                let is_ok = cache.set_mode(mode).await.is_ok();
                if is_ok && mode == Mode::WriteBack {
                    lock(&model).make_durable(&acknowledged);
                }
                Outcome { is_ok }
            };
            finish.boxed()
        }
    }
}

/// Half of the time the usual options, else any.
fn tuning(random: &mut Random) -> Tuning {
    if random.chance(0.5) {
        return Tuning::default();
    }
    let admission = if random.chance(0.3) { Admission::SecondUse } else { Admission::Always };
    let cutoff_bytes = random.chance(0.5).then(|| random.below(64) * SECTOR);
    let prefetch_bytes = random.below(8) * 4096;
    Tuning { admission, cutoff_bytes, prefetch_bytes, prefetches_lines: !prefetch_bytes.is_multiple_of(8192) }
}

/// Often a bound that nearly all small writes are below.
fn deferred_max(random: &mut Random) -> u64 {
    [0, SECTOR, 2048, 4096, 64 << 10][random.below(5) as usize]
}

/// A request that changes what is stored.
fn change(
    cache: Arc<Cache>,
    model: Arc<Mutex<Model>>,
    range: ByteRange,
    request: Request,
    indices: Vec<usize>,
    fua: bool,
) -> impl Future<Output = Outcome> + Send + 'static {
    let is_volatile_before = cache.geometry().is_write_cache_volatile;
    let completion = cache.submit(request);
    async move {
        let response = completion.await;
        // A device that reports before and after that its write cache is not volatile has promised
        // durability.
        let is_durable = fua || !(is_volatile_before || cache.geometry().is_write_cache_volatile);
        lock(&model).finish_change(range, &indices, response.result.is_ok(), is_durable);
        Outcome { is_ok: response.result.is_ok() }
    }
}
