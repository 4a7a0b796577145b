//! A slow, obvious model beside the cache, and a workload that drives both.
//!
//! One submitter keeps several requests in flight. Overlapping requests are carried out in the order of their submission, so every sector has
//! one history: the stamps written to it, in order. What may be read follows from that history alone:
//!
//! - A read returns what was submitted last before it; where requests before it failed, that or any of those since the last
//!   acknowledged one.
//! - After a crash a sector holds what was last known durable or anything submitted later.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::sync::{Arc, Mutex, MutexGuard};

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, Request, Response, SharedDevice};
use cache::{Admission, Cache, FormatOptions, Mode, OpenOptions, Replacement, Tuning};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};

pub const SECTOR: u64 = 512;

/// Options of an open under `executor`.
pub fn open_options(executor: &Executor, mode: Mode) -> OpenOptions {
    OpenOptions::new(mode, Arc::new(executor.clock()))
}

/// Formats with an identifier that is the same in every run.
pub fn format_options() -> FormatOptions {
    FormatOptions { uuid: Some(uuid::Uuid::from_bytes([7; 16])), ..FormatOptions::default() }
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

pub fn read(executor: &mut Executor, device: &impl Device, offset: u64, length: u64) -> Vec<u8> {
    let reading = device.read(offset, Buffer::zeroed(length as usize));
    executor.block_on(reading).expect("nothing fails").to_vec()
}

pub fn write(executor: &mut Executor, device: &impl Device, offset: u64, bytes: &[u8]) {
    let writing = device.write(offset, Buffer::copy_of(bytes), false);
    executor.block_on(writing).expect("nothing fails");
}

/// What became of a submitted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Acknowledged,
    Failed,
}

struct Change {
    stamp: u64,
    fate: Fate,
}

/// One sector's history. The first change is what it held at the start.
struct Sector {
    changes: Vec<Change>,
    /// Index of the last change known to survive a power loss of origin and cache device.
    durable: usize,
}

impl Sector {
    fn holding(stamp: u64) -> Self {
        Self { changes: vec![Change { stamp, fate: Fate::Acknowledged }], durable: 0 }
    }

    fn last(&self) -> usize {
        self.changes.len() - 1
    }

    fn last_acknowledged(&self, up_to: usize) -> usize {
        (0..=up_to).rev().find(|&index| self.changes[index].fate == Fate::Acknowledged).unwrap_or(0)
    }

    fn allows(&self, stamp: u64, indices: std::ops::RangeInclusive<usize>) -> bool {
        self.changes[indices].iter().any(|change| change.stamp == stamp)
    }
}

/// The model.
pub struct Model {
    sectors: Vec<Sector>,
    stamp_next: u64,
}

/// Which losses a check has to reckon with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The cache device and the program lost power; the origin kept all it had acknowledged.
    Cache,
    /// The origin lost power, perhaps together with the rest.
    Origin,
}

impl Model {
    pub fn new(size_bytes: u64) -> Arc<Mutex<Self>> {
        let sectors = (0..size_bytes / SECTOR).map(|_| Sector::holding(0)).collect();
        Arc::new(Mutex::new(Self { sectors, stamp_next: 1 }))
    }

    fn range(range: ByteRange) -> std::ops::Range<usize> {
        (range.offset / SECTOR) as usize..(range.end() / SECTOR) as usize
    }

    /// A change to all sectors of `range`: their new stamps begin with the returned one, or are all zero. Returns the indices.
    fn submit_change(&mut self, range: ByteRange, is_zero: bool) -> (u64, Vec<usize>) {
        let first = self.stamp_next;
        let mut indices = Vec::new();
        for sector in &mut self.sectors[Self::range(range)] {
            let stamp = if is_zero { 0 } else { self.stamp_next };
            self.stamp_next += 1;
            sector.changes.push(Change { stamp, fate: Fate::InFlight });
            indices.push(sector.last());
        }
        (first, indices)
    }

    fn finish_change(&mut self, range: ByteRange, indices: &[usize], is_ok: bool, is_durable: bool) {
        for (sector, &index) in self.sectors[Self::range(range)].iter_mut().zip(indices) {
            sector.changes[index].fate = if is_ok { Fate::Acknowledged } else { Fate::Failed };
            if is_ok && is_durable {
                sector.durable = sector.durable.max(index);
            }
        }
    }

    fn snapshot(&self, range: ByteRange) -> Vec<usize> {
        self.sectors[Self::range(range)].iter().map(Sector::last).collect()
    }

    fn acknowledged(&self) -> Vec<usize> {
        self.sectors.iter().map(|sector| sector.last_acknowledged(sector.last())).collect()
    }

    fn make_durable(&mut self, indices: &[usize]) {
        for (sector, &index) in self.sectors.iter_mut().zip(indices) {
            sector.durable = sector.durable.max(index);
        }
    }

    fn check_read(&self, range: ByteRange, snapshot: &[usize], bytes: &[u8], context: &str) {
        let sectors = self.sectors[Self::range(range)].iter().zip(snapshot).zip(bytes.chunks(512)).enumerate();
        for (index, ((sector, &last), bytes)) in sectors {
            let stamp = stamp_of(bytes);
            let number = range.offset / SECTOR + index as u64;
            let first = sector.last_acknowledged(last);
            assert!(
                sector.allows(stamp, first..=last),
                "{context}: sector {number} reads stamp {stamp}, not one of {:?}",
                sector.changes[first..=last].iter().map(|change| change.stamp).collect::<Vec<_>>()
            );
        }
    }

    /// Checks what is there after a crash, and takes it as the new start.
    pub fn check_after_crash(&mut self, bytes: &[u8], lost: Lost, context: &str) {
        for (number, (sector, bytes)) in self.sectors.iter_mut().zip(bytes.chunks(512)).enumerate() {
            let stamp = stamp_of(bytes);
            let last = sector.last();
            let first = match lost {
                Lost::Cache => sector.last_acknowledged(last),
                Lost::Origin => sector.durable,
            };
            assert!(
                sector.allows(stamp, first..=last),
                "{context}: after the crash sector {number} holds stamp {stamp}, not one of {:?}",
                sector.changes[first..=last].iter().map(|change| (change.stamp, change.fate)).collect::<Vec<_>>()
            );
            *sector = Sector::holding(stamp);
        }
    }

    /// Checks that `bytes` are exactly what was acknowledged last.
    pub fn check_exact(&self, bytes: &[u8], context: &str) {
        let snapshot = self.snapshot(ByteRange { offset: 0, length: bytes.len() as u64 });
        self.check_read(ByteRange { offset: 0, length: bytes.len() as u64 }, &snapshot, bytes, context);
    }
}

/// The stamp of a sector, which must be whole.
fn stamp_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let stamp = u64::from_le_bytes(words[0]);
    assert!(words.iter().all(|word| *word == words[0]), "a sector is torn");
    stamp
}

fn fill(buffer: &mut Buffer, first_stamp: u64) {
    for (index, sector) in buffer.chunks_mut(512).enumerate() {
        let stamp = (first_stamp + index as u64).to_le_bytes();
        sector.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp));
    }
}

/// What a workload does.
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

/// What a finished request tells the driver.
struct Outcome {
    is_ok: bool,
}

/// Runs the workload to its end.
pub async fn drive(cache: Arc<Cache>, model: Arc<Mutex<Model>>, clock: Arc<dyn Clock>, workload: Workload) {
    let mut random = Random::new(workload.seed);
    // Whatever chooses who comes in and who goes, nothing is lost.
    cache.set_replacement(Replacement::ALL[workload.seed as usize % Replacement::ALL.len()]);
    cache.set_tuning(tuning(&mut random));
    let mut running: FuturesUnordered<BoxFuture<'static, Outcome>> = FuturesUnordered::new();
    let size_bytes = cache.geometry().size_bytes;
    let mut submitted = 0;
    while submitted < workload.requests || !running.is_empty() {
        if submitted < workload.requests && running.len() < workload.depth {
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

fn lock(model: &Mutex<Model>) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn random_range(random: &mut Random, size_bytes: u64, sectors_max: u64) -> ByteRange {
    let sectors = size_bytes / SECTOR;
    let count = 1 + random.below(sectors_max.min(sectors));
    // Half of the requests go to a small hot region, so that lines are written again and again.
    let span = if random.chance(0.5) { (sectors / 8).max(count) } else { sectors };
    let first = random.below(span - count + 1);
    ByteRange { offset: first * SECTOR, length: count * SECTOR }
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

/// Half of the time what is usual, else anything.
fn tuning(random: &mut Random) -> Tuning {
    if random.chance(0.5) {
        return Tuning::default();
    }
    Tuning {
        admission: if random.chance(0.3) { Admission::SecondUse } else { Admission::Always },
        cutoff_bytes: random.chance(0.5).then(|| random.below(64) * SECTOR),
        prefetch_bytes: random.below(8) * 4096,
    }
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
        // A device that says before and after that its write cache is not volatile has promised something.
        let is_durable = fua || !(is_volatile_before || cache.geometry().is_write_cache_volatile);
        lock(&model).finish_change(range, &indices, response.result.is_ok(), is_durable);
        Outcome { is_ok: response.result.is_ok() }
    }
}
