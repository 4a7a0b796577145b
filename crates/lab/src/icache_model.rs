//! The machines of *A Caching Strategy to Improve iSCSI Performance*, in virtual time: the real write log over modelled
//! disks and a modelled link.
//!
//! ```text
//! closed loop ─► processor ─► write log ─► link ─► disk of the LUN (7200 rpm, 20 MB/s)
//!                             ├ 4 MiB of NVRAM
//!                             └ log disk, 20 MiB of it (the same model)
//! ```
//! The load follows the paper's description of its trace, which is not public: 230,370 requests of
//! 4 blocks (taken as 2 KiB), 89 % writes. The rest is chosen: a footprint of 64 MiB, a Zipf skew
//! of 0.9, each client one request at a time, as fast as it can.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::disk::{DiskLayer, DiskModel};
use block::memory::MemoryDevice;
use block::{Error, Identity, SharedDevice};
use workload::permutation::Permutation;
use workload::zipf::Zipf;
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, Status, VolatileRegion, WriteLog};

/// Requests of the paper's trace (3.2).
pub const REQUESTS: u64 = 230_370;
const REQUEST_BYTES: u64 = 2048;
const FOOTPRINT_BYTES: u64 = 64 << 20;
/// Size of the paper's NVRAM (3.1).
const NVRAM_BYTES: usize = 4 << 20;
/// 320 segments of 64 KiB (2.2), and the superblocks around them.
const LOG_BYTES: u64 = 21 << 20;
/// The link, a switched network of 100 Mbit/s: a round trip, and the transfer of 2 KiB.
const LINK: Duration = Duration::from_micros(400);
/// Processor time of a request, whether it is answered by the log or the LUN.
const PROCESSOR: Duration = Duration::from_micros(100);
/// Bytes that the disk transfers in the time of a seek and half a turn: 13 ms at 20 MB/s.
const SEEK_BYTES: u64 = 256 << 10;
/// A sweep over the disk in order of LBA takes some ten seconds.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Plain RAM for the data that is destaged next.
const BATCH_BYTES: u64 = 2 << 20;

/// The device that answers the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The disk behind the link.
    Plain,
    /// The log as the paper describes it.
    Paper,
    /// The log as it is meant to be used in front of a disk.
    Ours,
    /// The same, but no gaps are read from the LUN to make writes larger.
    OursApart,
}

/// Response times in nanoseconds, in the order of the answers.
#[derive(Default)]
pub struct Responses {
    /// Of all requests.
    pub all: Vec<u64>,
    /// Of writes.
    pub writes: Vec<u64>,
    /// Of reads.
    pub reads: Vec<u64>,
}

/// Runs `requests` by `depth` clients. The status is the log's at the end.
///
/// # Errors
/// Errors of a device; models do not fail by themselves.
pub fn run(system: System, depth: u64, requests: u64) -> Result<(Responses, Option<Status>), Error> {
    let mut executor = Executor::in_order();
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let remote = disk(&mut executor, FOOTPRINT_BYTES, "origin");
    let origin = delayed(&mut executor, remote, LINK);
    let log = match system {
        System::Plain => None,
        _ => Some(open_log(&mut executor, system, &origin)?),
    };
    let top: SharedDevice = match &log {
        Some(log) => log.clone(),
        None => origin,
    };
    let device = delayed(&mut executor, top, PROCESSOR);
    let responses = Arc::new(Mutex::new(Responses::default()));
    let clients: Vec<_> = (1..=depth)
        .map(|seed| client(device.clone(), clock.clone(), seed, requests / depth, Arc::clone(&responses)))
        .collect();
    executor.block_on(async move { futures_util::future::try_join_all(clients).await })?;
    let responses = std::mem::take(&mut *responses.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((responses, log.map(|log| log.status())))
}

fn disk(executor: &mut Executor, size_bytes: u64, name: &str) -> SharedDevice {
    let identity = Identity { target: "memory".into(), unit: name.into(), serial: String::new() };
    let workers = Workers::new();
    let memory = Arc::new(MemoryDevice::new(size_bytes, identity));
    let disk = DiskLayer::new(memory, Arc::new(executor.clock()), &workers, DiskModel::rpm_7200());
    executor.spawn(async move { workers.run().await });
    Arc::new(disk)
}

fn delayed(executor: &mut Executor, inner: SharedDevice, delay: Duration) -> SharedDevice {
    let workers = Workers::new();
    let delays = Delays::all(Latency::Fixed(delay));
    let layer = DelayLayer::new(inner, Arc::new(executor.clock()), &workers, delays, 1);
    executor.spawn(async move { workers.run().await });
    Arc::new(layer)
}

fn open_log(executor: &mut Executor, system: System, origin: &SharedDevice) -> Result<Arc<WriteLog>, Error> {
    let (log_disk, options) = (disk(executor, LOG_BYTES, "log"), options(executor, system));
    let below = Arc::clone(origin);
    let log = executor.block_on(async move {
        let format = FormatOptions { uuid: Some(uuid::Uuid::from_bytes([7; 16])), ..FormatOptions::paper() };
        WriteLog::format(&log_disk, &below, format).await?;
        WriteLog::open(log_disk, below, options).await
    })?;
    executor.spawn(log.run());
    Ok(log)
}

fn options(executor: &Executor, system: System) -> OpenOptions {
    let mut options = OpenOptions::new(Arc::new(executor.clock()));
    options.durability = Durability::Nvram;
    options.nvram = Some(Arc::new(VolatileRegion::new(NVRAM_BYTES)));
    options.record_cache_bytes = 0;
    if system == System::Paper {
        return options.paper();
    }
    options.order = DestageOrder::Lba;
    options.level2.age_max = AGE_MAX;
    options.level1.share_start = 0.35;
    options.level2.share_start = 0.3;
    options.level2.share_slow = 0.8;
    options.level2.batch_bytes = BATCH_BYTES;
    options.level2.seek_bytes = if system == System::Ours { SEEK_BYTES } else { 0 };
    options.level2.writes_in_flight = if system == System::Ours { 16 } else { 64 };
    options.level2.pause_max = Duration::from_millis(40);
    options
}

async fn client(
    device: SharedDevice,
    clock: Arc<dyn Clock>,
    seed: u64,
    requests: u64,
    responses: Arc<Mutex<Responses>>,
) -> Result<(), Error> {
    let mut random = Random::new(seed);
    let count = FOOTPRINT_BYTES / REQUEST_BYTES;
    let (zipf, places) = (Zipf::new(count, 0.9), Permutation::new(count, 7));
    for _ in 0..requests {
        let offset = places.apply(zipf.draw(&mut random) - 1) * REQUEST_BYTES;
        let is_write = random.chance(0.89);
        let began_at = clock.now();
        let buffer = Buffer::zeroed(REQUEST_BYTES as usize);
        match is_write {
            true => device.write(offset, buffer, false).await.map(drop)?,
            false => device.read(offset, buffer).await.map(drop)?,
        }
        let time_ns = u64::try_from(clock.now().since(began_at).as_nanos()).unwrap_or(u64::MAX);
        let responses = &mut *responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.all.push(time_ns);
        if is_write { &mut responses.writes } else { &mut responses.reads }.push(time_ns);
    }
    Ok(())
}

/// Share of response times below `limit` (0.0 to 1.0).
pub fn share_within(times_ns: &[u64], limit: Duration) -> f64 {
    let within = times_ns.iter().filter(|&&time_ns| u128::from(time_ns) < limit.as_nanos()).count();
    within as f64 / times_ns.len().max(1) as f64
}

/// The longest response time.
pub fn slowest(times_ns: &[u64]) -> Duration {
    Duration::from_nanos(times_ns.iter().copied().max().unwrap_or(0))
}

/// The mean.
pub fn mean(times_ns: &[u64]) -> Duration {
    Duration::from_nanos(times_ns.iter().sum::<u64>() / times_ns.len().max(1) as u64)
}
