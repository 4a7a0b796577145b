//! `make bench-writelog`: the write log beside bare durable writes of the same disk, in one run.
//!
//! | measurement | beside |
//! |---|---|
//! | 4 KiB durable random writes at depth 1 and 32 to a small log, so that level 2 works, to RAM, with its records in RAM and without; and to a large one, without level 2, and full when level 2 begins | `pwritev2(RWF_DSYNC)` past the page cache to a preallocated, written file, from as many threads |
//! | opening a full log whose program was killed, and memory per live slot | nothing |
//!
//! Rounds are interleaved, so that other work of the machine affects both alike; medians are
//! reported, after the raw results. Opening is done in a process of its own, so that memory is that
//! of one log and a killed one is really killed. Files are opened past the page cache, so no cached
//! pages need to be dropped.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions as FileOpen};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::random::Random;
use base::units::ByteSize;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use clap::Parser;
use clock::TokioClock;
use file::{FileDevice, FileOptions};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use serde_json::{Value, json};
use writelog::{FormatOptions, OpenOptions, WriteLog};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Size of an application's write.
const BLOCK_BYTES: u64 = 4096;
/// Share of the log that is filled before it is opened: the rest is for headers of records and for
/// segments in use.
const FILLED: f64 = 0.9;
/// The origin of the speed measurements; small enough that it stays in RAM.
const ORIGIN_BYTES: u64 = 256 << 20;
const ORIGIN_STEP_BYTES: usize = 1 << 20;
/// RAM for records, so small that it is soon reused.
const FEW_RECORD_BYTES: usize = 4 << 20;
/// Requests at once while a log is filled.
const FILL_DEPTH: usize = 32;

/// Measures the write log beside bare durable writes.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder for the files, on the disk to be measured
    #[arg(long)]
    folder: PathBuf,
    /// Size of the log that is opened full
    #[arg(long, default_value = "1GiB")]
    size: ByteSize,
    /// Size of the log and of the bare file while speed is measured
    #[arg(long, default_value = "64MiB")]
    speed_size: ByteSize,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Writers at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32])]
    depths: Vec<usize>,
    /// Only this measurement: speed or open
    #[arg(long)]
    only: Option<String>,
    /// Inside: carry out one phase
    #[arg(long, hide = true)]
    phase: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.phase.as_deref() {
        Some("fill") => return fill(&arguments).await,
        Some(_) => return open(&arguments).await,
        None => {}
    }
    if arguments.only.as_deref() != Some("open") {
        measure_speed(&arguments).await?;
    }
    if arguments.only.as_deref() != Some("speed") {
        measure_open(&arguments)?;
    }
    Ok(())
}

/// The result of one measurement of speed.
struct Speed {
    per_second: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl Speed {
    fn of(mut latencies: Vec<Duration>, elapsed: Duration) -> Result<Self> {
        latencies.sort_unstable();
        let at = |share: f64| {
            let latency = latencies.get((latencies.len() as f64 * share) as usize).ok_or("nothing was written")?;
            Ok::<f64, Box<dyn Error + Send + Sync>>(latency.as_secs_f64() * 1e6)
        };
        let per_second = latencies.len() as f64 / elapsed.as_secs_f64();
        Ok(Self { per_second, p50_us: at(0.5)?, p90_us: at(0.9)?, p99_us: at(0.99)?, p999_us: at(0.999)? })
    }
}

async fn measure_speed(arguments: &Arguments) -> Result<()> {
    let bare = arguments.folder.join("bare");
    let _ = std::fs::remove_file(&bare);
    drop(file_device(&bare, arguments.speed_size.0, true)?);
    let seconds = Duration::from_secs(arguments.seconds);
    let mut all: BTreeMap<(usize, &str), Vec<Speed>> = BTreeMap::new();
    for round in 1..=arguments.rounds {
        for &depth in &arguments.depths {
            let log = log_speed(arguments, depth, seconds, round as u64, Kind::Destages).await?;
            let raw = bare_speed(&bare, arguments.speed_size.0, depth, seconds)?;
            let read_back = log_speed(arguments, depth, seconds, round as u64, Kind::ReadsBack).await?;
            let burst = log_speed(arguments, depth, seconds, round as u64, Kind::Burst).await?;
            let full = log_speed(arguments, depth, seconds, round as u64, Kind::Full).await?;
            for (name, speed) in [("bare", raw), ("log", log), ("back", read_back), ("burst", burst), ("full", full)] {
                let Speed { per_second, p50_us, p90_us, p99_us, p999_us } = speed;
                println!(
                    "round {round}, depth {depth}: {name:<5} {per_second:>8.0}/s, p50 {p50_us:>7.1} us, \
                     p90 {p90_us:>7.1} us, p99 {p99_us:>7.1} us, p99.9 {p999_us:>8.1} us"
                );
                all.entry((depth, name)).or_default().push(speed);
            }
        }
    }
    for &depth in &arguments.depths {
        let of =
            |name, value: fn(&Speed) -> f64| median(all.get(&(depth, name)).into_iter().flatten().map(value).collect());
        let tail = |name| of(name, |speed| speed.p999_us / speed.p50_us);
        let (bare, bare_p50) = (of("bare", |speed| speed.per_second), of("bare", |speed| speed.p50_us));
        let kinds = [
            ("log", "level 2 at work"),
            ("back", "level 2 reading back"),
            ("burst", "no level 2"),
            ("full", "level 2 begins when it is full"),
        ];
        for (name, what) in kinds {
            let (log, log_p50) = (of(name, |speed| speed.per_second), of(name, |speed| speed.p50_us));
            println!(
                "depth {depth}, {what}: bare {bare:.0}/s, log {log:.0}/s, {:.2} x the rate; p50 {bare_p50:.1} and \
                 {log_p50:.1} us, {:.2} x; p99.9 over p50 {:.1} and {:.1}, {:.2} x",
                log / bare,
                log_p50 / bare_p50,
                tail("bare"),
                tail(name),
                tail(name) / tail("bare")
            );
        }
    }
    Ok(())
}

/// Threads that each write one block after another.
fn bare_speed(path: &Path, size_bytes: u64, depth: usize, seconds: Duration) -> Result<Speed> {
    let file = FileOpen::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let start = Instant::now();
    let threads: Vec<_> = (0..depth)
        .map(|seed| {
            let file = file.try_clone()?;
            Ok(std::thread::spawn(move || bare_writer(&file, size_bytes, seed as u64, start, seconds)))
        })
        .collect::<Result<_>>()?;
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().map_err(|_| "a thread panicked")??);
    }
    Speed::of(latencies, start.elapsed())
}

fn bare_writer(file: &File, size_bytes: u64, seed: u64, start: Instant, seconds: Duration) -> Result<Vec<Duration>> {
    let (mut random, buffer, mut latencies) = (Random::new(seed), Buffer::zeroed(BLOCK_BYTES as usize), Vec::new());
    while start.elapsed() < seconds {
        let offset = random.below(size_bytes / BLOCK_BYTES) * BLOCK_BYTES;
        let began = Instant::now();
        rustix::io::pwritev2(file, &[IoSlice::new(&buffer)], offset, ReadWriteFlags::DSYNC)?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

/// The state of the log during the measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Small enough that level 2 works nearly all the time, and that its records are still in RAM.
    Destages,
    /// Likewise, but level 2 reads its data back from the log device, as with a log larger than the
    /// RAM for its records.
    ReadsBack,
    /// Large, without level 2; the measurement ends before the log is full.
    Burst,
    /// Large, and full when level 2 begins.
    Full,
}

/// The limit of a measurement: a time, and a count of writes.
struct Until {
    start: Instant,
    seconds: Duration,
    writes_left: AtomicI64,
}

impl Until {
    fn new(seconds: Duration, bytes: u64) -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), seconds, writes_left: AtomicI64::new((bytes / BLOCK_BYTES) as i64) })
    }

    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.seconds || self.writes_left.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

/// A log and the level 2 of its own thread.
struct Running {
    log: Arc<WriteLog>,
    background: tokio::task::JoinHandle<()>,
    destaging: JoinHandle<()>,
}

impl Running {
    async fn open(device: &SharedDevice, origin: &SharedDevice, options: OpenOptions) -> Result<Self> {
        let log = WriteLog::open(Arc::clone(device), Arc::clone(origin), options).await?;
        let background = tokio::spawn(log.run_requests());
        let destaging = run_apart(log.run_destaging())?;
        Ok(Self { log, background, destaging })
    }

    /// Runs `depth` tasks that write.
    async fn write(&self, depth: usize, seed: u64, until: &Arc<Until>) -> Result<Vec<Duration>> {
        let writers: Vec<_> = (0..depth as u64)
            .map(|writer| tokio::spawn(log_writer(Arc::clone(&self.log), seed << 8 | writer, Arc::clone(until))))
            .collect();
        let mut latencies = Vec::new();
        for writer in writers {
            latencies.extend(writer.await??);
        }
        Ok(latencies)
    }

    async fn close(self, keep_dirty: bool) -> Result<()> {
        self.log.close(keep_dirty).await?;
        self.background.await?;
        Ok(self.destaging.join().map_err(|_| "destaging panicked")?)
    }
}

async fn log_speed(arguments: &Arguments, depth: usize, seconds: Duration, seed: u64, kind: Kind) -> Result<Speed> {
    let is_large = matches!(kind, Kind::Burst | Kind::Full);
    let path = arguments.folder.join("log");
    let _ = std::fs::remove_file(&path);
    let size = if is_large { arguments.size } else { arguments.speed_size };
    let device = file_device(&path, size.0, true)?;
    let most = (size.0 as f64 * FILLED) as u64;
    let mut options = OpenOptions::new(Arc::new(TokioClock::new()));
    if kind == Kind::ReadsBack {
        options.record_cache_bytes = FEW_RECORD_BYTES;
    }
    let identity = Identity { target: "bench".into(), unit: "ram".into(), serial: "1".into() };
    let origin: SharedDevice = Arc::new(MemoryDevice::new(ORIGIN_BYTES, identity));
    for offset in (0..ORIGIN_BYTES).step_by(ORIGIN_STEP_BYTES) {
        // The memory of the origin is allocated before the measurement, as that of a LUN is.
        origin.write(offset, Buffer::zeroed(ORIGIN_STEP_BYTES), false).await?;
    }
    WriteLog::format(&device, &origin, FormatOptions::default()).await?;
    if kind == Kind::Full {
        let filling = Running::open(&device, &origin, without_level2()).await?;
        filling.write(FILL_DEPTH, seed, &Until::new(Duration::MAX, most)).await?;
        filling.close(true).await?;
    }
    let is_burst = kind == Kind::Burst;
    let running = Running::open(&device, &origin, if is_burst { without_level2() } else { options }).await?;
    let until = Until::new(seconds, if is_burst { most } else { u64::MAX >> 1 });
    let latencies = running.write(depth, seed, &until).await?;
    let elapsed = until.start.elapsed();
    let status = serde_json::to_value(running.log.status())?;
    let of = |key: &str| status[key].as_u64().unwrap_or_default();
    println!(
        "  log: {} records, {} bytes written, {} destaged, {} checkpoints, {} writes slowed",
        of("records"),
        of("written_bytes"),
        of("destaged_bytes"),
        of("checkpoints"),
        of("writes_slowed")
    );
    running.close(is_burst).await?;
    Speed::of(latencies, elapsed)
}

/// Options with which nothing is destaged before the log is full.
fn without_level2() -> OpenOptions {
    let mut options = OpenOptions::new(Arc::new(TokioClock::new()));
    options.level2.share_start = 1.0;
    options.level2.share_slow = 1.0 - f64::EPSILON;
    options.level2.pause_max = Duration::ZERO;
    (options.level2.idle, options.level2.age_max) = (Duration::MAX, Duration::MAX);
    options
}

/// Runs a future on a thread of its own.
fn run_apart(future: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(std::thread::spawn(move || runtime.block_on(future)))
}

async fn log_writer(log: Arc<WriteLog>, seed: u64, until: Arc<Until>) -> Result<Vec<Duration>> {
    let (mut random, mut latencies) = (Random::new(seed), Vec::new());
    let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
    while !until.is_over() {
        let offset = random.below(ORIGIN_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        let began = Instant::now();
        buffer = log.write(offset, buffer, false).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

fn measure_open(arguments: &Arguments) -> Result<()> {
    let mut rounds = Vec::new();
    for round in 1..=arguments.rounds {
        run(arguments, "fill")?;
        let result = run(arguments, "open")?;
        println!("round {round}: {result}");
        rounds.push(result);
    }
    let of = |key: &str| median(rounds.iter().filter_map(|result| result[key].as_f64()).collect());
    println!(
        "opened in {:.3} s with {:.0} MiB of records since the checkpoint; {:.1} bytes of memory a live slot, {:.1} at \
         most",
        of("open_seconds"),
        of("tail_bytes") / f64::from(1 << 20),
        of("bytes_per_slot"),
        of("peak_bytes_per_slot")
    );
    Ok(())
}

/// Runs one phase in a process of its own. Returns its result, the last line it prints.
fn run(arguments: &Arguments, phase: &str) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--folder")
        .arg(&arguments.folder)
        .args(["--size", &arguments.size.0.to_string(), "--phase", phase])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() && phase != "fill" {
        return Err(format!("phase {phase} ended with {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().last().map_or(Ok(Value::Null), serde_json::from_str)?)
}

/// Fills a log with writes of one block, no two adjacent, destages none of them, and kills this
/// process.
async fn fill(arguments: &Arguments) -> Result<()> {
    let path = arguments.folder.join("full");
    let _ = std::fs::remove_file(&path);
    let (device, origin) = (file_device(&path, arguments.size.0, true)?, sparse_origin(arguments)?);
    WriteLog::format(&device, &origin, FormatOptions::default()).await?;
    let log = WriteLog::open(device, origin, without_level2()).await?;
    tokio::spawn(log.run());
    let count = (arguments.size.0 as f64 * FILLED) as u64 / BLOCK_BYTES;
    for first in (0..count).step_by(FILL_DEPTH) {
        let writes = (first..count.min(first + FILL_DEPTH as u64))
            .map(|index| log.write(2 * index * BLOCK_BYTES, Buffer::zeroed(BLOCK_BYTES as usize), false));
        for write in writes.collect::<Vec<_>>() {
            write.await?;
        }
    }
    Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()?;
    std::future::pending().await
}

async fn open(arguments: &Arguments) -> Result<()> {
    let device = file_device(&arguments.folder.join("full"), arguments.size.0, false)?;
    let origin = sparse_origin(arguments)?;
    let before = memory("VmRSS:")?;
    let start = Instant::now();
    let log = WriteLog::open(device, origin, OpenOptions::new(Arc::new(TokioClock::new()))).await?;
    let open_seconds = start.elapsed().as_secs_f64();
    let recovery = log.status().recovery;
    let slots = recovery.dirty_bytes / BLOCK_BYTES;
    let per_slot = |bytes: u64| bytes.saturating_sub(before) as f64 / slots as f64;
    let result = json!({
        "open_seconds": open_seconds,
        "slots": slots,
        "checkpoint_extents": recovery.checkpoint_extents,
        "records": recovery.records,
        "tail_bytes": recovery.record_bytes,
        "bytes_per_slot": per_slot(memory("VmRSS:")?),
        "peak_bytes_per_slot": per_slot(memory("VmHWM:")?),
    });
    println!("{result}");
    Ok(())
}

/// A file past the page cache, made anew and written with zeroes in full, or as it is.
fn file_device(path: &Path, size_bytes: u64, is_new: bool) -> Result<SharedDevice> {
    let identity = Identity { target: "bench".into(), unit: path.display().to_string(), serial: "1".into() };
    let size = is_new.then_some(size_bytes);
    let options = FileOptions {
        size,
        preallocate: true,
        zero_written: is_new,
        direct: true,
        exclusive: true,
        identity,
        is_write_cache_volatile: true,
        waits_for_fast_writes: true,
        ..FileOptions::default()
    };
    Ok(FileDevice::open(path, options)?)
}

/// An origin of twice the size of the log, with no block allocated.
fn sparse_origin(arguments: &Arguments) -> Result<SharedDevice> {
    let identity = Identity { target: "bench".into(), unit: "origin".into(), serial: "1".into() };
    let size = Some(2 * arguments.size.0);
    let options = FileOptions { size, direct: true, identity, ..FileOptions::default() };
    Ok(FileDevice::open(arguments.folder.join("origin"), options)?)
}

/// A figure of this process in bytes.
fn memory(key: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)).ok_or("the system tells no memory")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes << 10)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
