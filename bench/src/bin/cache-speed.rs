//! `make bench-cache`: the cost of the cache, measured beside the bare file that it lies in, in one
//! run.
//!
//! | measurement | beside |
//! |---|---|
//! | warm 4 KiB random reads at depth 1 and 32: time, and processor time of the process | reads of the same file through the same driver |
//! | the same reads from two threads, past the page cache and from it | from one thread, and from the bare file |
//! | durable 4 KiB random writes in write-back at depth 1 and 32, deferred and not | `pwritev2(RWF_DSYNC)` past the page cache to a preallocated, written file, from as many threads |
//! | a cold sequential read over a modelled link of 1 Gbit/s, and of a LUN in RAM without one | without the cache |
//!
//! Rounds are interleaved, so that other work of the machine affects both alike; medians are
//! reported, after the raw results. Files are opened past the page cache, as the program opens
//! caches; from the page cache the processors are the bottleneck, not the disk.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions as FileOpen};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::random::Random;
use base::units::ByteSize;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::disk::{DiskLayer, DiskModel};
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions};
use clap::Parser;
use clock::TokioClock;
use file::{FileDevice, FileOptions};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Size of an application's request.
const BLOCK_BYTES: u64 = 4096;
/// The origin of the measurements of small requests; it fits in the cache.
const ORIGIN_BYTES: u64 = 256 << 20;
/// Requests of the sequential read, and how many at a time: what a kernel reads ahead.
const STREAM_REQUEST_BYTES: u64 = 128 << 10;
const STREAM_DEPTH: usize = 8;
/// 1 Gbit/s less what Ethernet, IP and TCP take of it at 1500 bytes a frame.
const LINK: DiskModel = DiskModel {
    seek: Duration::ZERO,
    rotation: Duration::ZERO,
    bytes_per_second: 117_600_000,
    flush: Duration::from_micros(200),
};

/// Measures what the cache costs beside the bare file.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder for the files, on the disk to be measured
    #[arg(long)]
    folder: PathBuf,
    /// Size of the lines of the cache
    #[arg(long, default_value = "4KiB")]
    block_size: LineSize,
    /// Bytes of the sequential read
    #[arg(long, default_value = "1GiB")]
    stream: ByteSize,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only this measurement: read, threads, write or stream
    #[arg(long)]
    only: Option<String>,
    /// Bytes of a durable write
    #[arg(long, default_value = "4KiB")]
    write_size: ByteSize,
    /// Largest write that is deferred; beside it the same is measured with none
    #[arg(long, default_value_t = ByteSize(8 << 10))]
    deferred: ByteSize,
    /// Requests at a time, of small reads and writes; may be given more than once
    #[arg(long, default_values_t = [1, 32])]
    depth: Vec<usize>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let is_wanted = |name: &str| arguments.only.as_deref().is_none_or(|only| only == name);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if is_wanted("read") {
        runtime.block_on(measure_reads(&arguments))?;
    }
    if is_wanted("threads") {
        measure_threads(&arguments)?;
    }
    if is_wanted("write") {
        runtime.block_on(measure_writes(&arguments))?;
    }
    if is_wanted("stream") {
        runtime.block_on(measure_stream(&arguments))?;
    }
    Ok(())
}

/// The result of one measurement of small requests.
#[derive(Clone, Copy)]
struct Speed {
    per_second: f64,
    /// Processor time of the process.
    cpu_us: f64,
}

/// Runs `depth` tasks on this thread, each one request after another until the time is over;
/// `request` is one task.
async fn speed<F>(depth: usize, seconds: f64, request: impl Fn(Random, Instant) -> F) -> Result<Speed>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let (start, cpu_start) = (Instant::now(), processor_time());
    let end = start + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..depth).map(|task| tokio::spawn(request(Random::new(task as u64 + 1), end))).collect();
    let mut count = 0;
    for task in tasks {
        count += task.await??;
    }
    let cpu = processor_time() - cpu_start;
    let elapsed = start.elapsed().as_secs_f64();
    Ok(Speed { per_second: count as f64 / elapsed, cpu_us: cpu.as_secs_f64() * 1e6 / count as f64 })
}

/// Reads blocks of `places` from `first` on, at random, until `end`. How many.
async fn reader(device: SharedDevice, first: u64, places: u64, mut random: Random, end: Instant) -> Result<u64> {
    let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
    let mut count = 0;
    while Instant::now() < end {
        buffer = device.read(first + random.below(places) * BLOCK_BYTES, buffer).await?;
        count += 1;
    }
    Ok(count)
}

async fn writer(device: SharedDevice, bytes: u64, mut random: Random, end: Instant) -> Result<u64> {
    let mut buffer = Buffer::zeroed(bytes as usize);
    let mut count = 0;
    while Instant::now() < end {
        buffer = device.write(random.below(ORIGIN_BYTES / bytes) * bytes, buffer, false).await?;
        count += 1;
    }
    Ok(count)
}

async fn measure_reads(arguments: &Arguments) -> Result<()> {
    let (file, cache, background) = warm_cache(arguments, true).await?;
    let mut all: BTreeMap<(usize, &str), Vec<Speed>> = BTreeMap::new();
    for round in 1..=arguments.rounds {
        for &depth in &arguments.depth {
            for name in ["bare", "cache"] {
                // The frames begin behind superblock and log; the bare file is read from about that
                // place.
                let (device, first): (SharedDevice, u64) =
                    if name == "bare" { (Arc::clone(&file), 32 << 20) } else { (cache.clone(), 0) };
                let read = |random, end| reader(Arc::clone(&device), first, ORIGIN_BYTES / BLOCK_BYTES, random, end);
                let speed = speed(depth, arguments.seconds, read).await?;
                let Speed { per_second, cpu_us } = speed;
                println!(
                    "round {round}, depth {depth}: {name:<5} {per_second:>8.0} reads/s, {cpu_us:>6.2} us of processor \
                     a read"
                );
                all.entry((depth, name)).or_default().push(speed);
            }
        }
    }
    let status = cache.status();
    if status.reads.misses + status.reads.partial_hits > 0 {
        return Err("not every read was a hit".into());
    }
    for &depth in &arguments.depth {
        compare(&all, depth, "reads");
    }
    end(&cache, background).await
}

/// Prints the medians of the bare file and of the cache beside each other.
fn compare(all: &BTreeMap<(usize, &str), Vec<Speed>>, depth: usize, what: &str) {
    let of =
        |name, value: fn(&Speed) -> f64| median(all.get(&(depth, name)).into_iter().flatten().map(value).collect());
    let rate = |name| of(name, |speed| speed.per_second);
    let cpu = |name| of(name, |speed| speed.cpu_us);
    println!(
        "depth {depth}: bare {:.0} {what}/s, cache {:.0}: {:.2} x the time; processor {:.2} and {:.2} us, {:.2} x",
        rate("bare"),
        rate("cache"),
        rate("bare") / rate("cache"),
        cpu("bare"),
        cpu("cache"),
        cpu("cache") / cpu("bare")
    );
}

/// Each thread has a runtime of its own, and reads one block after another.
fn measure_threads(arguments: &Arguments) -> Result<()> {
    // Requests that do not complete at once are completed on this runtime.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for is_direct in [true, false] {
        let (file, cache, background) = runtime.block_on(warm_cache(arguments, is_direct))?;
        let place = if is_direct { "past the page cache" } else { "from the page cache" };
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for round in 1..=arguments.rounds {
            for name in ["bare", "cache"] {
                let (device, first): (SharedDevice, u64) =
                    if name == "bare" { (Arc::clone(&file), 32 << 20) } else { (cache.clone(), 0) };
                let [one, two] = [1, 2].map(|threads| read_from_threads(&device, first, threads, arguments.seconds));
                let (one, two) = (one?, two?);
                println!(
                    "round {round}, {place}: {name:<5} one thread {one:>8.0} reads/s, two threads {two:>8.0}, {:.2} x",
                    two / one
                );
                ratios.entry(name).or_default().push(two / one);
            }
        }
        let of = |name| median(ratios.get(name).cloned().unwrap_or_default());
        println!(
            "{place}: two threads read {:.2} x as much as one through the cache, {:.2} x from the bare file",
            of("cache"),
            of("bare")
        );
        runtime.block_on(end(&cache, background))?;
    }
    Ok(())
}

/// Reads a second.
fn read_from_threads(device: &SharedDevice, first: u64, thread_count: u64, seconds: f64) -> Result<f64> {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let read = |thread| {
        let device = Arc::clone(device);
        std::thread::spawn(move || -> Result<u64> {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(reader(device, first, ORIGIN_BYTES / BLOCK_BYTES, Random::new(thread), end))
        })
    };
    let threads: Vec<_> = (1..=thread_count).map(read).collect();
    let mut count = 0;
    for thread in threads {
        count += thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

async fn measure_writes(arguments: &Arguments) -> Result<()> {
    let bare = arguments.folder.join("bare");
    drop(file_device(&bare, ORIGIN_BYTES, true)?);
    let mut all: BTreeMap<(usize, &str), Vec<Speed>> = BTreeMap::new();
    for round in 1..=arguments.rounds {
        for &depth in &arguments.depth {
            let mut speeds = vec![("bare", bare_writes(&bare, depth, arguments)?)];
            for (name, deferred_max) in [("cache", arguments.deferred.0), ("not deferred", 0)] {
                speeds.push((name, cached_writes(arguments, depth, deferred_max).await?));
            }
            for (name, speed) in speeds {
                let Speed { per_second, cpu_us } = speed;
                println!(
                    "round {round}, depth {depth}: {name:<12} {per_second:>8.0} writes/s, {cpu_us:>6.2} us of \
                     processor a write"
                );
                all.entry((depth, name)).or_default().push(speed);
            }
        }
    }
    for &depth in &arguments.depth {
        compare(&all, depth, "durable writes");
        let rate = |name| median(all.get(&(depth, name)).into_iter().flatten().map(|speed| speed.per_second).collect());
        println!(
            "depth {depth}: {:.2} x the rate of the cache when nothing is deferred",
            rate("cache") / rate("not deferred")
        );
    }
    Ok(())
}

/// Measures writes to a new cache in write-back; those of up to `deferred_max` bytes are deferred.
async fn cached_writes(arguments: &Arguments, depth: usize, deferred_max: u64) -> Result<Speed> {
    let (_, cache, background) = new_cache(arguments, true, ram(ORIGIN_BYTES), Mode::WriteBack).await?;
    cache.set_deferred_max(deferred_max);
    let device: SharedDevice = cache.clone();
    let bytes = arguments.write_size.0;
    let write = |random, end| writer(Arc::clone(&device), bytes, random, end);
    let speed = speed(depth, arguments.seconds, write).await?;
    let status = cache.status();
    println!(
        "  cache: {} deferred, {} cleaned, {} checkpoints, {} writes waited",
        status.writes_deferred, status.cleaned_lines, status.checkpoints, status.writes_delayed
    );
    end(&cache, background).await?;
    Ok(speed)
}

/// Threads that each write one block after another.
fn bare_writes(path: &Path, depth: usize, arguments: &Arguments) -> Result<Speed> {
    let (seconds, bytes) = (arguments.seconds, arguments.write_size.0);
    let file = FileOpen::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
    let (start, cpu_start) = (Instant::now(), processor_time());
    let end = start + Duration::from_secs_f64(seconds);
    let threads: Vec<_> = (0..depth)
        .map(|seed| {
            let file = file.try_clone()?;
            Ok(std::thread::spawn(move || bare_writer(&file, bytes, seed as u64 + 1, end)))
        })
        .collect::<Result<_>>()?;
    let mut count = 0;
    for thread in threads {
        count += thread.join().map_err(|_| "a thread panicked")??;
    }
    let cpu = processor_time() - cpu_start;
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    Ok(Speed { per_second, cpu_us: cpu.as_secs_f64() * 1e6 / count as f64 })
}

fn bare_writer(file: &File, bytes: u64, seed: u64, end: Instant) -> Result<u64> {
    let (mut random, buffer, mut count) = (Random::new(seed), Buffer::zeroed(bytes as usize), 0);
    while Instant::now() < end {
        let offset = random.below(ORIGIN_BYTES / bytes) * bytes;
        rustix::io::pwritev2(file, &[IoSlice::new(&buffer)], offset, ReadWriteFlags::DSYNC)?;
        count += 1;
    }
    Ok(count)
}

async fn measure_stream(arguments: &Arguments) -> Result<()> {
    for has_link in [true, false] {
        let (mut slowdowns, mut shares) = (Vec::new(), Vec::new());
        for round in 1..=arguments.rounds {
            let workers = Workers::new();
            let memory = ram(arguments.stream.0);
            let origin: SharedDevice = match has_link {
                true => Arc::new(DiskLayer::new(memory, Arc::new(TokioClock::new()), &workers, LINK)),
                false => memory,
            };
            let running = tokio::spawn(async move { workers.run().await });
            let bare = stream(&origin, arguments.stream.0).await?;
            let (_, cache, background) = new_cache(arguments, true, origin, Mode::WriteThrough).await?;
            let device: SharedDevice = cache.clone();
            let cached = stream(&device, arguments.stream.0).await?;
            // Insertions still in progress count as inserted; this gives them time to end.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let share = cache.status().valid_bytes as f64 / arguments.stream.0 as f64;
            end(&cache, background).await?;
            running.abort();
            let link = if has_link { "1 Gbit/s" } else { "no link" };
            let rates = [bare, cached].map(|time| arguments.stream.0 as f64 / time.as_secs_f64() / 1e6);
            println!(
                "round {round}, {link}: without the cache {:.1} MB/s, with it {:.1} MB/s, {:.1} % inserted",
                rates[0],
                rates[1],
                share * 100.0
            );
            slowdowns.push(cached.as_secs_f64() / bare.as_secs_f64());
            shares.push(share);
        }
        println!(
            "a cold sequential read {}: {:.1} % slower with the cache, {:.1} % inserted",
            if has_link { "over 1 Gbit/s" } else { "of a LUN in RAM" },
            (median(slowdowns) - 1.0) * 100.0,
            median(shares) * 100.0
        );
    }
    Ok(())
}

/// Reads a device from beginning to end. How long that takes.
async fn stream(device: &SharedDevice, bytes: u64) -> Result<Duration> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..STREAM_DEPTH as u64)
        .map(|task| {
            let device = Arc::clone(device);
            tokio::spawn(async move {
                let mut buffer = Buffer::zeroed(STREAM_REQUEST_BYTES as usize);
                for index in (task..bytes / STREAM_REQUEST_BYTES).step_by(STREAM_DEPTH) {
                    buffer = device.read(index * STREAM_REQUEST_BYTES, buffer).await?;
                }
                Ok::<(), block::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(start.elapsed())
}

type Running = (SharedDevice, Arc<Cache>, tokio::task::JoinHandle<()>);

/// An empty cache with room for all of `origin`, in a file that has its blocks.
async fn new_cache(arguments: &Arguments, is_direct: bool, origin: SharedDevice, mode: Mode) -> Result<Running> {
    let size_bytes = origin.geometry().size_bytes / 4 * 5 + (64 << 20);
    let path = arguments.folder.join(format!("cache-{}", size_bytes >> 20));
    let file = file_device(&path, size_bytes, is_direct)?;
    let options = FormatOptions { line_size: arguments.block_size, ..FormatOptions::default() };
    Cache::format(&file, &origin, options).await?;
    let cache = Cache::open(Arc::clone(&file), origin, OpenOptions::new(mode, Arc::new(TokioClock::new()))).await?;
    let background = tokio::spawn(cache.run());
    Ok((file, cache, background))
}

/// A cache that holds all of its origin.
async fn warm_cache(arguments: &Arguments, is_direct: bool) -> Result<Running> {
    let running = new_cache(arguments, is_direct, ram(ORIGIN_BYTES), Mode::WriteThrough).await?;
    let cache = &running.1;
    let device: SharedDevice = cache.clone();
    while cache.status().valid_bytes < ORIGIN_BYTES {
        stream(&device, ORIGIN_BYTES).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    cache.close(false).await?;
    let (file, mode) = (Arc::clone(&running.0), Mode::WriteThrough);
    running.2.await?;
    // The cache is opened anew, so that its counters are those of the measurement.
    let options = OpenOptions::new(mode, Arc::new(TokioClock::new()));
    let cache = Cache::open(Arc::clone(&file), ram(ORIGIN_BYTES), options).await?;
    let background = tokio::spawn(cache.run());
    Ok((file, cache, background))
}

async fn end(cache: &Arc<Cache>, background: tokio::task::JoinHandle<()>) -> Result<()> {
    cache.close(false).await?;
    Ok(background.await?)
}

fn ram(bytes: u64) -> SharedDevice {
    let identity = Identity { target: "bench".into(), unit: "ram".into(), serial: "1".into() };
    Arc::new(MemoryDevice::new(bytes, identity))
}

/// A file that is written in full when it is made.
fn file_device(path: &Path, size_bytes: u64, is_direct: bool) -> Result<SharedDevice> {
    let identity = Identity { target: "bench".into(), unit: path.display().to_string(), serial: "1".into() };
    let options = FileOptions {
        size: Some(size_bytes),
        preallocate: true,
        zero_written: true,
        direct: is_direct,
        exclusive: true,
        identity,
        is_write_cache_volatile: true,
        ..FileOptions::default()
    };
    Ok(FileDevice::open(path, options)?)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
