//! Write logs, a workload that drives them, and the cache's model beside it.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

#[path = "../../../cache/tests/common/model.rs"]
pub mod model;

pub mod bench;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, Request, SharedDevice};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
pub use model::Model;
use model::{fill, lock, random_range};
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, PersistentRegion, WriteLog};

/// A durability and a destage order.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub durability: Durability,
    pub order: DestageOrder,
}

/// Small segments and slots, and an identifier that is the same in every run.
pub fn format_options() -> FormatOptions {
    FormatOptions { uuid: Some(uuid::Uuid::from_bytes([7; 16])), ..FormatOptions::paper() }
}

/// Options with which everything happens often.
pub fn open_options(executor: &Executor, kind: Kind, nvram: Option<Arc<dyn PersistentRegion>>) -> OpenOptions {
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.durability = kind.durability;
    options.order = kind.order;
    options.nvram = nvram.filter(|_| kind.durability == Durability::Nvram);
    options.volatile_bytes = 32 << 10;
    options.record_cache_bytes = 48 << 10;
    options.checkpoint_interval_bytes = 96 << 10;
    options.checkpoint_pause = Duration::from_millis(2);
    options.level2.batch_bytes = 64 << 10;
    options.level2.idle = Duration::from_micros(700);
    options.level2.age_max = Duration::from_millis(20);
    options.level2.pause_max = Duration::from_micros(200);
    // The order decides whether no gaps are read, nearly all, or some.
    options.level2.seek_bytes = match kind.order {
        DestageOrder::Lba => 64 << 10,
        DestageOrder::Log => 4 << 10,
        DestageOrder::LastWriteFirst => 0,
    };
    options
}

pub fn format(executor: &mut Executor, log: &SharedDevice, origin: &SharedDevice) {
    let (log, origin) = (Arc::clone(log), Arc::clone(origin));
    executor
        .block_on(async move { WriteLog::format(&log, &origin, format_options()).await.expect("nothing fails yet") });
}

pub fn try_open(
    executor: &mut Executor,
    log: &SharedDevice,
    origin: &SharedDevice,
    options: OpenOptions,
) -> Result<Arc<WriteLog>, Error> {
    let (log, origin) = (Arc::clone(log), Arc::clone(origin));
    let opened = executor.block_on(WriteLog::open(log, origin, options))?;
    executor.spawn(opened.run());
    Ok(opened)
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
#[derive(Clone)]
pub struct Workload {
    pub seed: u64,
    pub requests: usize,
    pub depth: usize,
    /// Longest request in sectors.
    pub sectors_max: u64,
    /// Whether everything is destaged now and then.
    pub has_control: bool,
    /// Whether requests may fail.
    pub has_faults: bool,
    /// Whether there are discards and writes of zeroes.
    pub has_zeroes: bool,
}

/// Runs the workload to its end.
pub async fn drive(log: Arc<WriteLog>, model: Arc<Mutex<Model>>, clock: Arc<dyn Clock>, workload: Workload) {
    let mut random = Random::new(workload.seed);
    let mut running: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let size_bytes = log.geometry().size_bytes;
    let mut submitted = 0;
    while submitted < workload.requests || !running.is_empty() {
        if submitted < workload.requests && running.len() < workload.depth {
            submitted += 1;
            running.push(submit_one(&log, &model, &mut random, size_bytes, &workload));
            if random.chance(0.2) {
                clock.sleep(Duration::from_micros(random.below(2000))).await;
            }
            continue;
        }
        let is_ok = running.next().await.expect("something is running");
        assert!(is_ok || workload.has_faults, "a request failed without a fault");
    }
}

fn submit_one(
    log: &Arc<WriteLog>,
    model: &Arc<Mutex<Model>>,
    random: &mut Random,
    size_bytes: u64,
    workload: &Workload,
) -> BoxFuture<'static, bool> {
    let range = random_range(random, size_bytes, workload.sectors_max);
    let (log, model) = (Arc::clone(log), Arc::clone(model));
    let has_faults = workload.has_faults;
    let choice = random.below(100);
    let choice = if (85..92).contains(&choice) && !workload.has_zeroes { 50 } else { choice };
    match choice {
        0..30 => {
            // A write that waits for admission keeps no read waiting.
            let first = lock(&model).acknowledged_in(range);
            let snapshot = lock(&model).snapshot(range);
            let completion = log.submit(Request::read(range.offset, Buffer::zeroed(range.length as usize)));
            let finish = async move {
                let response = completion.await;
                if response.result.is_ok() {
                    lock(&model).check_read_since(range, &first, &snapshot, &response.buffer, "a read");
                }
                response.result.is_ok()
            };
            finish.boxed()
        }
        30..85 => {
            let (stamp, indices) = lock(&model).submit_change(range, false);
            let mut buffer = Buffer::zeroed(range.length as usize);
            fill(&mut buffer, stamp);
            let request = Request::write(range.offset, buffer, false);
            change(&log, model, range, request, indices).boxed()
        }
        85..89 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            let request = Request::write_zeroes(range.offset, range.length, false, true);
            change(&log, model, range, request, indices).boxed()
        }
        89..92 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            change(&log, model, range, Request::discard(range.offset, range.length), indices).boxed()
        }
        92..96 => {
            let acknowledged = lock(&model).acknowledged();
            let completion = log.submit(Request::flush());
            let finish = async move {
                let is_ok = completion.await.result.is_ok();
                if is_ok {
                    lock(&model).make_durable(&acknowledged);
                }
                is_ok
            };
            finish.boxed()
        }
        _ if !workload.has_control => async { true }.boxed(),
        _ => async move { log.destage(|_| {}).await.is_ok() || has_faults }.boxed(),
    }
}

/// A request that changes what is stored.
fn change(
    log: &Arc<WriteLog>,
    model: Arc<Mutex<Model>>,
    range: ByteRange,
    request: Request,
    indices: Vec<usize>,
) -> impl Future<Output = bool> + Send + 'static {
    let is_durable = !log.geometry().is_write_cache_volatile;
    let completion = log.submit(request);
    async move {
        let response = completion.await;
        let is_ok = response.result.is_ok();
        lock(&model).finish_change(range, &indices, is_ok, is_durable);
        is_ok
    }
}
