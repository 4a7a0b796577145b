//! Write logs over media that lose power, a workload that drives them, and the cache's model beside it.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

#[path = "../../../cache/tests/common/model.rs"]
pub mod model;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::Power;
use block::{Device, Error, Request, SharedDevice};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
pub use model::Model;
use model::{fill, lock, random_range};
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, PersistentRegion, WriteLog};

/// What kind of log.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub durability: Durability,
    pub order: DestageOrder,
}

/// Small segments and slots, and an identifier that is the same in every run.
pub fn format_options() -> FormatOptions {
    FormatOptions { uuid: Some(uuid::Uuid::from_bytes([7; 16])), ..FormatOptions::paper() }
}

/// Options that make everything happen often.
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
    // Gaps are read in two of the three orders, all nearly, and some.
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

/// Persistent memory that loses power: what was not persisted lands in part, 8 bytes at a time.
pub struct CrashRegion {
    state: Mutex<RegionState>,
    power: Power,
}

struct RegionState {
    visible: Vec<u8>,
    durable: Vec<u8>,
    unpersisted: Vec<(usize, usize)>,
    persists: u64,
    fails_at: Option<u64>,
}

impl CrashRegion {
    pub fn new(power: &Power, size_bytes: usize) -> Arc<Self> {
        Self::with(power, vec![0; size_bytes])
    }

    fn with(power: &Power, bytes: Vec<u8>) -> Arc<Self> {
        let state = RegionState {
            visible: bytes.clone(),
            durable: bytes,
            unpersisted: Vec::new(),
            persists: 0,
            fails_at: None,
        };
        Arc::new(Self { state: Mutex::new(state), power: power.clone() })
    }

    /// The power fails at persist `nth` from now on.
    pub fn fail_persist(&self, nth: u64) {
        let mut state = self.state.lock().unwrap();
        state.fails_at = Some(state.persists + nth);
    }

    /// The region as the next start finds it; `None` as seed when only the program stopped.
    pub fn after(&self, power: &Power, seed: Option<u64>) -> Arc<Self> {
        let state = self.state.lock().unwrap();
        let Some(seed) = seed else { return Self::with(power, state.visible.clone()) };
        let (mut bytes, mut random) = (state.durable.clone(), Random::new(seed));
        for &(offset, length) in &state.unpersisted {
            for start in (offset..offset + length).step_by(8) {
                let end = (start + 8).min(offset + length);
                if random.chance(0.5) {
                    bytes[start..end].copy_from_slice(&state.visible[start..end]);
                }
            }
        }
        Self::with(power, bytes)
    }
}

impl PersistentRegion for CrashRegion {
    fn size_bytes(&self) -> usize {
        self.state.lock().unwrap().visible.len()
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.state.lock().unwrap().visible[offset..offset + bytes.len()]);
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        if self.power.is_lost() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.visible[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.unpersisted.push((offset, bytes.len()));
    }

    fn persist(&self, offset: usize, length: usize) {
        let mut state = self.state.lock().unwrap();
        if self.power.is_lost() {
            return;
        }
        let ordinal = state.persists;
        state.persists += 1;
        if state.fails_at == Some(ordinal) {
            drop(state);
            return self.power.lose();
        }
        let state = &mut *state;
        state.durable[offset..offset + length].copy_from_slice(&state.visible[offset..offset + length]);
        state.unpersisted.retain(|&(start, count)| start < offset || start + count > offset + length);
    }
}

/// What a workload does.
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
    /// With it gone nobody hears an acknowledgement any more.
    pub power: Option<Power>,
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
            let snapshot = lock(&model).snapshot(range);
            let completion = log.submit(Request::read(range.offset, Buffer::zeroed(range.length as usize)));
            let power = workload.power.clone();
            let finish = async move {
                let response = completion.await;
                if response.result.is_ok() && !power.is_some_and(|power| power.is_lost()) {
                    lock(&model).check_read(range, &snapshot, &response.buffer, "a read");
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
            change(&log, model, range, request, indices, workload.power.clone()).boxed()
        }
        85..89 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            let request = Request::write_zeroes(range.offset, range.length, false, true);
            change(&log, model, range, request, indices, workload.power.clone()).boxed()
        }
        89..92 => {
            let (_, indices) = lock(&model).submit_change(range, true);
            change(&log, model, range, Request::discard(range.offset, range.length), indices, workload.power.clone())
                .boxed()
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
    power: Option<Power>,
) -> impl Future<Output = bool> + Send + 'static {
    let is_durable = !log.geometry().is_write_cache_volatile;
    let completion = log.submit(request);
    async move {
        let response = completion.await;
        let is_ok = response.result.is_ok() && !power.is_some_and(|power| power.is_lost());
        lock(&model).finish_change(range, &indices, is_ok, is_durable);
        is_ok
    }
}
