//! `make bench-cache-open`: how long a large, full cache takes to open, and how much memory it takes then.
//!
//! The cache's file is sparse: by its table every frame holds a line, but the data of the lines was
//! never written. Each phase is a process of its own, so that memory is that of one open cache and
//! a killed one is really killed:
//!
//! | phase | what |
//! |---|---|
//! | `make` | formats the cache and fills its table |
//! | `stopped` | opens it after a clean stop, writes some lines, and is killed |
//! | `killed` | opens it after that, and closes it |
//!
//! The file is opened past the page cache, so that no cached pages need to be dropped.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use base::buffer::Buffer;
use base::units::ByteSize;
use block::device::DeviceExt;
use block::{Identity, SharedDevice};
use cache::format::{Line, PAGE_BYTES, emit_page};
use cache::layout::Layout;
use cache::numbers::{FrameNumber, PageNumber, TableSequence, Tag};
use cache::{Cache, CrashMode, FormatOptions, LineSize, Mode, OpenOptions};
use clap::Parser;
use clock::TokioClock;
use file::{FileDevice, FileOptions};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Lines written before the kill, so that there is a log to replay.
const WRITES: u64 = 20_000;

/// Pages written at once while the table is filled.
const PAGES_PER_WRITE: u64 = 64;

/// Measures how long a full cache takes to open.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder for the sparse files, on the disk to be measured
    #[arg(long)]
    folder: PathBuf,
    /// Size of the cache
    #[arg(long, default_value = "64GiB")]
    size: ByteSize,
    /// Size of a line
    #[arg(long, default_value = "4KiB")]
    line_size: LineSize,
    /// What a crash leaves
    #[arg(long, default_value = "dirty")]
    crash: CrashMode,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Inside: carry out one phase
    #[arg(long, hide = true)]
    phase: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.phase.as_deref() {
        None => measure(&arguments),
        Some("make") => make(&arguments).await,
        Some(phase) => open(&arguments, phase == "stopped").await,
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let mut rounds = Vec::new();
    for round in 1..=arguments.rounds {
        run(arguments, "make")?;
        for phase in ["stopped", "killed"] {
            let result = run(arguments, phase)?;
            println!("round {round}: {result}");
            rounds.push(result);
        }
    }
    for phase in ["stopped", "killed"] {
        let of = |key: &str| {
            let of_phase = rounds.iter().filter(|result| result["phase"] == phase);
            median(of_phase.filter_map(|result| result[key].as_f64()).collect())
        };
        let (seconds, bytes, peak) = (of("open_seconds"), of("bytes_per_line"), of("peak_bytes_per_line"));
        println!(
            "{phase}, crash mode {}: opened in {seconds:.2} s, {bytes:.1} bytes of memory a line, {peak:.1} at most",
            arguments.crash
        );
    }
    Ok(())
}

/// Runs one phase in a process of its own. Returns its result, the last line it prints.
fn run(arguments: &Arguments, phase: &str) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--folder")
        .arg(&arguments.folder)
        .args(["--size", &arguments.size.0.to_string(), "--line-size", &arguments.line_size.bytes().to_string()])
        .args(["--crash", &arguments.crash.to_string(), "--phase", phase])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let is_expected = output.status.success() || phase == "stopped";
    if !is_expected {
        return Err(format!("phase {phase} ended with {}", output.status).into());
    }
    Ok(text.lines().last().map_or(Ok(Value::Null), serde_json::from_str)?)
}

async fn make(arguments: &Arguments) -> Result<()> {
    let _ = std::fs::remove_file(arguments.folder.join("bench.cache"));
    let (device, origin) = devices(arguments)?;
    let uuid = uuid::Uuid::from_bytes([5; 16]);
    let (crash_mode, line_size) = (arguments.crash, arguments.line_size);
    let options = FormatOptions { uuid: Some(uuid), crash_mode, line_size, ..FormatOptions::default() };
    Cache::format(&device, &origin, options).await?;
    let layout = Layout::new(arguments.size.0, &options)?;
    let line = |frame: FrameNumber| {
        let set = layout.set_of_frame(frame);
        let tag = Tag((frame - layout.frames_of(set).start).into());
        Line { block: layout.block_of(set, tag), valid: layout.line_size.all_sectors(), ..Line::default() }
    };
    let mut page = 0;
    while page < layout.page_count {
        let count = PAGES_PER_WRITE.min(layout.page_count - page);
        let mut buffer = Buffer::zeroed(count as usize * 2 * PAGE_BYTES);
        for (slots, page) in buffer.chunks_exact_mut(2 * PAGE_BYTES).zip(page..) {
            let lines = layout.frames_of_page(PageNumber(page)).map(line);
            emit_page(&mut slots[..PAGE_BYTES], layout.line_size, uuid, PageNumber(page), TableSequence(1), lines);
        }
        device.write(layout.slot_offset(PageNumber(page), 0), buffer, false).await?;
        page += count;
    }
    device.flush().await?;
    Ok(())
}

async fn open(arguments: &Arguments, is_killed: bool) -> Result<()> {
    let (device, origin) = devices(arguments)?;
    let memory_before = memory("VmRSS:")?;
    let start = Instant::now();
    let cache = Cache::open(device, origin, OpenOptions::new(Mode::WriteBack, Arc::new(TokioClock::new()))).await?;
    let open_seconds = start.elapsed().as_secs_f64();
    let status = cache.status();
    let per_line = |bytes: u64| (bytes.saturating_sub(memory_before)) as f64 / status.lines as f64;
    let result = json!({
        "phase": if is_killed { "stopped" } else { "killed" },
        "open_seconds": open_seconds,
        "lines": status.lines,
        "resident_lines": status.resident_lines,
        "dirty_lines": status.dirty_lines,
        "log_records": status.recovery.log_records,
        "bytes_per_line": per_line(memory("VmRSS:")?),
        "peak_bytes_per_line": per_line(memory("VmHWM:")?),
    });
    println!("{result}");
    let background = tokio::spawn(cache.run());
    if is_killed {
        let stride = status.lines / WRITES.min(status.lines);
        for write in 0..WRITES.min(status.lines) {
            cache.write(write * stride * arguments.line_size.bytes(), Buffer::zeroed(4096), false).await?;
        }
        Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()?;
        std::future::pending::<()>().await;
    }
    cache.close(false).await?;
    background.await?;
    Ok(())
}

fn devices(arguments: &Arguments) -> Result<(SharedDevice, SharedDevice)> {
    let device = |name: &str| sparse(&arguments.folder.join(name), arguments.size.0);
    Ok((device("bench.cache")?, device("bench.origin")?))
}

fn sparse(path: &Path, size_bytes: u64) -> Result<SharedDevice> {
    let identity = Identity { target: "bench".into(), unit: path.display().to_string(), serial: "1".into() };
    let options = FileOptions { size: Some(size_bytes), direct: true, identity, ..FileOptions::default() };
    Ok(FileDevice::open(path, options)?)
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
