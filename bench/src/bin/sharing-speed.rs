//! `make bench-sharing`: the cost of sharing a LUN, measured beside a LUN that is not shared, in
//! one run.
//!
//! | measurement | beside |
//! |---|---|
//! | 4 KiB random reads and writes by a single client of a shared LUN, at depth 1 and 16 | by a plain initiator, of a LUN that nobody shares |
//! | a warm read of a cache whose copies are registered | of a cache that has its LUN for itself |
//! | a write for which one other client has to drop its copy | a write of a plain initiator, and the round trip of a command without data |
//! | 8 clients with caches that read one block while another writes it: reads and writes, and how even (Jain's index) | |
//!
//! The target is a process of its own with both LUNs in RAM; all hosts are in this one. Rounds are
//! interleaved, so that other work of the machine affects both alike. Raw results are printed as
//! they come, then medians with the smallest and the largest.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::random::Random;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use cache::{Cache, FormatOptions, Mode, OpenOptions};
use clap::Parser;
use clock::TokioClock;
use initiator::{InitiatorOptions, RemoteLun, TcpConnector};
use tests::Process;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const IQN: &str = "iqn.2026-11.io.forebay:bench";
const BLOCK_BYTES: u64 = 4096;
const LUN_BYTES: u64 = 64 << 20;
/// Bytes that are read in a warm measurement, all of them in the caches before it.
const WARM_BYTES: u64 = 4 << 20;
const CACHE_BYTES: u64 = 64 << 20;
const PLAIN: u16 = 0;
const SHARED: u16 = 1;
const READERS: usize = 8;
const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// Measures what sharing costs.
#[derive(Debug, Parser)]
struct Arguments {
    /// The forebay program
    #[arg(long, env = "FOREBAY_BIN", default_value = "target/release/forebay")]
    forebay: PathBuf,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let stage = tempfile::tempdir()?;
    let target = Target::start(&arguments.forebay, stage.path())?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut results = Results::default();
        for round in 1..=arguments.rounds {
            println!("round {round}");
            measure_alone(&target, arguments.seconds, &mut results).await?;
            measure_warm(&target, arguments.seconds, &mut results).await?;
            measure_callback(&target, arguments.seconds, &mut results).await?;
            measure_hot(&target, arguments.seconds, &mut results).await?;
        }
        results.print();
        Ok(())
    })
}

/// The values measured, by name, round by round.
#[derive(Default)]
struct Results(BTreeMap<String, Vec<f64>>);

impl Results {
    fn note(&mut self, name: &str, value: f64) {
        println!("  {name}: {value:.3}");
        self.0.entry(name.to_owned()).or_default().push(value);
    }

    fn print(&self) {
        println!("medians (smallest to largest)");
        for (name, values) in &self.0 {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
            println!("  {name}: {:.3} ({:.3} to {:.3})", at(sorted.len() / 2), at(0), at(sorted.len() - 1));
        }
    }
}

/// A target with one LUN that is not shared and one that may be, until it is dropped.
struct Target {
    process: Process,
}

impl Target {
    fn start(forebay: &Path, stage: &Path) -> Result<Self> {
        let luns = [format!("{PLAIN}=ram:{LUN_BYTES}"), format!("{SHARED}=ram:{LUN_BYTES},shared")];
        let mut command = Command::new(forebay);
        command
            .args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN])
            .args(luns.iter().flat_map(|lun| ["--lun", lun]))
            .env("FOREBAY_RUNTIME_DIR", stage.join("run"))
            .env("FOREBAY_STATE_DIR", stage.join("state"));
        let process = Process::start(&mut command).map_err(|ended| ended.stderr)?;
        Ok(Self { process })
    }

    /// A host: a client of the LUN, or a plain initiator.
    async fn host(&self, lun: u16, is_shared: bool, number: usize) -> Result<Arc<RemoteLun>> {
        let url = format!("iscsi://{}/{IQN}/{lun}", self.process.ready).parse()?;
        let initiator_name = format!("iqn.2026-11.io.forebay:host{number}");
        let options = InitiatorOptions { initiator_name, is_shared, ..InitiatorOptions::for_url(&url) };
        let (lun, driver) = initiator::connect(options, Arc::new(TcpConnector)).await?;
        tokio::spawn(driver);
        Ok(lun)
    }

    /// A host with a cache in RAM.
    async fn caching(&self, lun: u16, is_shared: bool, number: usize) -> Result<Caching> {
        let lun = self.host(lun, is_shared, number).await?;
        let identity = Identity { target: "bench".into(), unit: "cache".into(), serial: number.to_string() };
        let store: SharedDevice = Arc::new(MemoryDevice::new(CACHE_BYTES, identity));
        let origin: SharedDevice = lun.clone();
        Cache::format(&store, &origin, FormatOptions::default()).await?;
        let options = OpenOptions::new(Mode::WriteThrough, Arc::new(TokioClock::new()));
        let cache = Cache::open(store, origin, options).await?;
        let background = tokio::spawn(cache.run());
        Ok(Caching { lun, cache, background })
    }
}

struct Caching {
    lun: Arc<RemoteLun>,
    cache: Arc<Cache>,
    background: JoinHandle<()>,
}

impl Caching {
    fn device(&self) -> SharedDevice {
        self.cache.clone()
    }

    async fn end(self) -> Result<()> {
        self.cache.close(false).await?;
        self.background.await?;
        Ok(self.lun.close().await?)
    }
}

#[derive(Clone, Copy)]
enum Work {
    Read,
    Write,
}

/// Requests of random blocks below `bytes`, one after the other, until `end`. How many.
async fn work(device: SharedDevice, work: Work, bytes: u64, mut random: Random, end: Instant) -> Result<u64> {
    let (mut buffer, mut count) = (Buffer::zeroed(BLOCK_BYTES as usize), 0);
    while Instant::now() < end {
        let offset = random.below(bytes / BLOCK_BYTES) * BLOCK_BYTES;
        buffer = match work {
            Work::Read => device.read(offset, buffer).await?,
            Work::Write => device.write(offset, buffer, false).await?,
        };
        count += 1;
        // A cache hit never yields: without this one task keeps its thread from all others.
        tokio::task::yield_now().await;
    }
    Ok(count)
}

/// Microseconds that a request takes, at this depth.
async fn time_of(device: &SharedDevice, kind: Work, bytes: u64, (depth, seconds): (u64, f64)) -> Result<f64> {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> =
        (1..=depth).map(|task| tokio::spawn(work(Arc::clone(device), kind, bytes, Random::new(task), end))).collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 * depth as f64 / count as f64)
}

async fn measure_alone(target: &Target, seconds: f64, results: &mut Results) -> Result<()> {
    let plain = target.host(PLAIN, false, 1).await?;
    let sharing = target.host(SHARED, true, 2).await?;
    for (name, kind) in [("read", Work::Read), ("write", Work::Write)] {
        for depth in [1, 16] {
            let of = async |lun: &Arc<RemoteLun>| {
                let device: SharedDevice = lun.clone();
                time_of(&device, kind, LUN_BYTES, (depth, seconds)).await
            };
            let (ours, others) = (of(&sharing).await?, of(&plain).await?);
            results.note(&format!("{name}, depth {depth}, plain, us"), others);
            results.note(&format!("{name}, depth {depth}, sharing alone, us"), ours);
            results.note(&format!("{name}, depth {depth}, sharing alone / plain"), ours / others);
        }
    }
    sharing.close().await?;
    Ok(plain.close().await?)
}

async fn measure_warm(target: &Target, seconds: f64, results: &mut Results) -> Result<()> {
    let private = target.caching(PLAIN, false, 1).await?;
    let registered = target.caching(SHARED, true, 2).await?;
    let mut times = Vec::new();
    for (name, host) in [("private cache", &private), ("registered", &registered)] {
        let device = host.device();
        for _ in 0..3 {
            for offset in (0..WARM_BYTES).step_by(BLOCK_BYTES as usize) {
                device.read(offset, Buffer::zeroed(BLOCK_BYTES as usize)).await?;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let before = (host.cache.status().reads.misses, host.lun.status().commands_sent);
        let time = time_of(&device, Work::Read, WARM_BYTES, (1, seconds)).await?;
        let after = (host.cache.status().reads.misses, host.lun.status().commands_sent);
        if after != before {
            return Err(format!("not every read of the {name} was a hit: {before:?}, then {after:?}").into());
        }
        results.note(&format!("warm read, {name}, us"), time);
        times.push(time);
    }
    results.note("warm read, registered / private cache", times[1] / times[0]);
    registered.end().await?;
    private.end().await
}

async fn measure_callback(target: &Target, seconds: f64, results: &mut Results) -> Result<()> {
    let plain = target.host(PLAIN, false, 1).await?;
    let (writer, reader) = (target.host(SHARED, true, 2).await?, target.host(SHARED, true, 3).await?);
    let mut random = Random::new(7);
    let (mut calling, mut alone, mut round_trip) = (Vec::new(), Vec::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        let offset = random.below(LUN_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        let block = || Buffer::zeroed(BLOCK_BYTES as usize);
        reader.read(offset, block()).await?;
        calling.push(timed(writer.write(offset, block(), false)).await?);
        alone.push(timed(plain.write(offset, block(), false)).await?);
        round_trip.push(timed(async { plain.execute(&TEST_UNIT_READY, &[], 0).await }).await?);
    }
    let purges = reader.status().sharing.map_or(0, |sharing| sharing.purges);
    if purges < calling.len() as u64 {
        return Err(format!("{} writes, and only {purges} callbacks", calling.len()).into());
    }
    let [calling, alone, round_trip] = [calling, alone, round_trip].map(median);
    results.note("write that calls one client back, us", calling);
    results.note("write of a plain initiator, us", alone);
    results.note("round trip of a command without data, us", round_trip);
    results.note("a callback costs, round trips", (calling - alone) / round_trip);
    writer.close().await?;
    reader.close().await?;
    Ok(plain.close().await?)
}

async fn measure_hot(target: &Target, seconds: f64, results: &mut Results) -> Result<()> {
    let mut readers = Vec::new();
    for number in 0..READERS {
        readers.push(target.caching(SHARED, true, 10 + number).await?);
    }
    let writer: SharedDevice = target.host(SHARED, true, 2).await?;
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let task = |device, kind| tokio::spawn(work(device, kind, BLOCK_BYTES, Random::new(1), end));
    let reading: Vec<_> = readers.iter().map(|reader| task(reader.device(), Work::Read)).collect();
    let writing = task(writer, Work::Write);
    let mut counts = Vec::new();
    for one in reading {
        counts.push(one.await?? as f64);
    }
    let (writes, elapsed) = (writing.await?? as f64, start.elapsed().as_secs_f64());
    let (sum, squares): (f64, f64) = (counts.iter().sum(), counts.iter().map(|count| count * count).sum());
    results.note("hot block, reads of all, a second", sum / elapsed);
    results.note("hot block, writes, a second", writes / elapsed);
    results.note("hot block, fewest / most reads of a client", least(&counts) / most(&counts));
    results.note("hot block, Jain's index of the reads", sum * sum / (READERS as f64 * squares));
    for reader in readers {
        reader.end().await?;
    }
    Ok(())
}

/// How many microseconds it takes.
async fn timed<T>(request: impl Future<Output = std::result::Result<T, block::Error>>) -> Result<f64> {
    let start = Instant::now();
    request.await?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
