//! Random 4 KiB reads or writes on a file device: `depth PATH (cached|direct) (read|write) DEPTH SECONDS [pool]`.
//!
//! Prints requests per second and the mean latency, next to those of plain `pread`/`pwrite` calls on the same file. For
//! comparing engines on one machine; the project's benchmarks are elsewhere.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, Device};
use file::{FileDevice, FileOptions};

const BLOCK: u64 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, mode, operation, depth, seconds, rest @ ..] = arguments.as_slice() else {
        return Err("usage: depth PATH (cached|direct) (read|write) DEPTH SECONDS [pool]".into());
    };
    let (is_write, depth, seconds) = (operation == "write", depth.parse()?, Duration::from_secs(seconds.parse()?));
    let options = FileOptions { direct: mode == "direct", io_uring: rest.is_empty(), ..FileOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let count = runtime.block_on(async {
        let device = FileDevice::open(path, options)?;
        let tasks: Vec<_> =
            (0..depth).map(|task| tokio::spawn(load(Arc::clone(&device), is_write, task, seconds))).collect();
        let mut count = 0;
        for task in tasks {
            count += task.await??;
        }
        Ok::<u64, Box<dyn std::error::Error>>(count)
    })?;
    report("device", count, depth, seconds);
    let plain = plain(path, mode == "direct", is_write, seconds)?;
    report("plain, depth 1", plain, 1, seconds);
    Ok(())
}

fn report(name: &str, count: u64, depth: u64, seconds: Duration) {
    let mean_us = seconds.as_micros() as f64 * depth as f64 / count as f64;
    println!("{name}: {:.0} requests/s, mean {mean_us:.1} us", count as f64 / seconds.as_secs_f64());
}

async fn load(device: Arc<FileDevice>, is_write: bool, seed: u64, seconds: Duration) -> Result<u64, block::Error> {
    let (mut random, mut buffer, start) = (Random::new(seed), Buffer::zeroed(BLOCK as usize), Instant::now());
    let block_count = device.geometry().size_bytes / BLOCK;
    let mut count = 0;
    while start.elapsed() < seconds {
        let offset = random.below(block_count) * BLOCK;
        buffer = match is_write {
            true => device.write(offset, buffer, false).await?,
            false => device.read(offset, buffer).await?,
        };
        count += 1;
        if count % 16 == 0 {
            // Answers on the spot never yield.
            tokio::task::yield_now().await;
        }
    }
    Ok(count)
}

fn plain(path: &str, is_direct: bool, is_write: bool, seconds: Duration) -> Result<u64, Box<dyn std::error::Error>> {
    let mut flags = rustix::fs::OFlags::RDWR;
    if is_direct {
        flags |= rustix::fs::OFlags::DIRECT;
    }
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let block_count = rustix::fs::fstat(&file)?.st_size as u64 / BLOCK;
    let (mut random, mut buffer, start) = (Random::new(0), Buffer::zeroed(BLOCK as usize), Instant::now());
    let mut count = 0;
    while start.elapsed() < seconds {
        let offset = random.below(block_count) * BLOCK;
        match is_write {
            true => rustix::io::pwrite(file.as_fd(), &buffer, offset)?,
            false => rustix::io::pread(file.as_fd(), &mut buffer[..], offset)?,
        };
        count += 1;
    }
    Ok(count)
}
