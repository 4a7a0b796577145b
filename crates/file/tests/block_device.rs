//! A file device over a real block device: its geometry, O_DIRECT, zeroing, discard, a claim that
//! keeps others away, and kinds of errors.

#[expect(dead_code, reason = "the tests of failed syncs use more of it")]
mod loop_device;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, Device, Error, ErrorKind, Geometry, Request};
use file::{FileDevice, FileOptions};
use loop_device::{LoopDevice, SmallFileSystem, may_make_devices};
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;

/// A folder on a real disk.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(future)
}

fn exclusive() -> FileOptions {
    FileOptions { exclusive: true, ..FileOptions::default() }
}

fn open(path: &Path, options: FileOptions) -> Arc<FileDevice> {
    FileDevice::open(path, options).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_block_device_tells_its_geometry() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    for sector_bytes in [512, 4096] {
        let disk = LoopDevice::new(&folder.path().join(format!("disk{sector_bytes}")), SIZE, sector_bytes);
        block_on(async {
            let Geometry {
                size_bytes,
                logical_block_bytes,
                physical_block_bytes,
                hints,
                discard_granularity_bytes,
                ..
            } = open(&disk.path, exclusive()).geometry();
            assert_eq!((size_bytes, logical_block_bytes), (SIZE, sector_bytes));
            assert!(physical_block_bytes >= sector_bytes);
            assert!(hints.io_bytes_min >= sector_bytes);
            assert!(discard_granularity_bytes.is_some_and(|bytes| bytes >= sector_bytes));
        });
    }
}

#[test]
fn every_operation_works_on_a_block_device_both_ways_and_on_both_engines() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    for (direct, io_uring, sector) in [(false, true, 512), (true, true, 4096), (false, false, 4096), (true, false, 512)]
    {
        let name = format!("direct {direct}, io_uring {io_uring}, sectors of {sector}");
        let backing = folder.path().join("disk");
        let disk = LoopDevice::new(&backing, SIZE, sector);
        block_on(async {
            let device = open(&disk.path, FileOptions { direct, io_uring, ..exclusive() });
            device.write(0, Buffer::copy_of(&[1; 1 << 20]), false).await.expect(&name);
            device.write(1 << 20, Buffer::copy_of(&[2; 4096]), true).await.expect(&name);
            device.flush().await.expect(&name);
            device.write_zeroes(4096, 4096, true, false).await.expect(&name);
            device.write_zeroes(8192, 4096, true, true).await.expect(&name);
            device.discard(64 << 10, 512 << 10).await.expect(&name);
            device.flush().await.expect(&name);
            let read = device.read(0, Buffer::copy_of(&[0xa5; (1 << 20) + 4096])).await.expect(&name);
            for (range, byte) in [
                (0..4096, 1),
                (4096..12288, 0),
                (12288..64 << 10, 1),
                (64 << 10..576 << 10, 0),
                (576 << 10..1 << 20, 1),
                (1 << 20..(1 << 20) + 4096, 2),
            ] {
                assert!(read[range.clone()].iter().all(|&found| found == byte), "{name}: {range:?}");
            }
            // A request off the device's blocks never gets there, whatever the memory it comes with.
            let half = u64::from(sector) / 2;
            assert_eq!(
                kind(device.write(half, Buffer::zeroed(half as usize), false).await),
                Some(ErrorKind::InvalidRange)
            );
        });
        // Discarded space was given back: less than half of the written bytes is still allocated.
        let allocated = std::fs::metadata(&backing).unwrap().blocks() * 512;
        assert!(allocated < 600 << 10, "{name}: {allocated} bytes are allocated");
    }
}

/// Flushes that the kernel has made of a block device (Documentation/block/stat.rst).
fn flushes(disk: &LoopDevice) -> u64 {
    let name = disk.path.file_name().and_then(|name| name.to_str()).expect("devices have names of text");
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("a block device has statistics");
    stat.split_whitespace().nth(15).and_then(|count| count.parse().ok()).expect("the sixteenth number counts flushes")
}

/// The kernel's loop device has a volatile cache and no write past it, so durable writes share flushes.
#[test]
fn durable_writes_past_the_page_cache_are_answered_after_a_flush_which_they_share() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    block_on(async {
        let device = open(&disk.path, FileOptions { direct: true, ..exclusive() });
        let before = flushes(&disk);
        device.write(0, Buffer::copy_of(&[1; 4096]), false).await.unwrap();
        assert_eq!(flushes(&disk), before, "nobody asked for a flush");
        device.write(4096, Buffer::copy_of(&[2; 4096]), true).await.unwrap();
        assert_eq!(flushes(&disk), before + 1);

        let write = |number: u64| device.write(number * 4096, Buffer::copy_of(&[number as u8; 4096]), true);
        let written = futures_util::future::join_all((0..64).map(write)).await;
        assert!(written.iter().all(Result::is_ok));
        let shared = flushes(&disk) - before - 1;
        assert!((1..=16).contains(&shared), "64 writes that were submitted together took {shared} flushes");
        let read = device.read(0, Buffer::zeroed(64 * 4096)).await.unwrap();
        assert!(read.chunks(4096).enumerate().all(|(number, block)| block.iter().all(|byte| *byte == number as u8)));
    });
}

/// Reads without end do not hold up the flush that a durable write waits for.
#[test]
fn a_durable_write_is_answered_while_others_read() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    block_on(async {
        let device = open(&disk.path, FileOptions { direct: true, ..exclusive() });
        let is_written = AtomicBool::new(false);
        let readers = futures_util::future::join_all((1..9).map(|number| {
            let (device, is_written) = (&device, &is_written);
            async move {
                while !is_written.load(Ordering::Relaxed) {
                    device.read(number << 16, Buffer::zeroed(4096)).await.unwrap();
                }
            }
        }));
        let writer = async {
            for number in 0..100 {
                device.write(number * 512, Buffer::zeroed(512), true).await.unwrap();
            }
            is_written.store(true, Ordering::Relaxed);
        };
        let both = futures_util::future::join(readers, writer);
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("the writes end");
    });
}

/// Data in the page cache of the device is read within `submit` (RWF_NOWAIT); past the page cache
/// nothing is.
#[test]
fn a_page_cache_hit_is_answered_on_the_spot() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    for io_uring in [true, false] {
        block_on(async {
            let cached = open(&disk.path, FileOptions { io_uring, ..exclusive() });
            cached.write(0, Buffer::copy_of(&[7; 8192]), false).await.unwrap();
            let mut hit = cached.submit(Request::read(4096, Buffer::zeroed(4096)));
            let response = hit.try_take().expect("it is over already");
            assert!(response.result.is_ok() && response.buffer.iter().all(|byte| *byte == 7));
        });
    }
    // The only thread that could carry it out is blocked, so a request that is over was carried out
    // by `submit`.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let direct = open(&disk.path, FileOptions { io_uring: false, direct: true, ..exclusive() });
        let (release, held) = std::sync::mpsc::channel::<()>();
        let holder = tokio::task::spawn_blocking(move || held.recv());
        let mut read = direct.submit(Request::read(4096, Buffer::zeroed(4096)));
        assert!(read.try_take().is_none());
        release.send(()).unwrap();
        holder.await.unwrap().unwrap();
        assert!(read.await.buffer.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_block_device_is_claimed_from_everybody_and_let_go_of() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&disk.path, &link).unwrap();
    block_on(async {
        let device = open(&disk.path, exclusive());
        device.write(0, Buffer::copy_of(&[7; 4096]), false).await.unwrap();
        assert_eq!(kind(FileDevice::open(&link, exclusive())), Some(ErrorKind::Busy), "by another name, too");
        let mount = std::process::Command::new("mount").arg("-r").arg(&disk.path).arg(folder.path()).output().unwrap();
        assert!(!mount.status.success(), "a claimed device cannot be mounted");
        drop(device);
        open(&disk.path, exclusive());
    });
}

#[test]
fn a_write_protected_device_is_served_read_only() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let backing = folder.path().join("disk");
    File::create(&backing).and_then(|file| file.set_len(SIZE)).unwrap();
    let disk = LoopDevice::over(&backing, &["--read-only"]);
    block_on(async {
        let error = FileDevice::open(&disk.path, exclusive()).err().expect("it cannot be written");
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert!(error.to_string().contains("read-only"), "{error}");
        let device = open(&disk.path, FileOptions { read_only: true, ..exclusive() });
        let geometry = device.geometry();
        assert!(geometry.is_read_only && geometry.discard_granularity_bytes.is_none());
        device.read(0, Buffer::zeroed(4096)).await.unwrap();
        assert_eq!(kind(device.write(0, Buffer::zeroed(4096), false).await), Some(ErrorKind::ReadOnly));
        assert_eq!(kind(device.discard(0, 4096).await), Some(ErrorKind::ReadOnly));
    });
}

#[test]
fn a_size_that_a_block_device_has_not_got_is_refused() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    block_on(async {
        let with = |size| FileDevice::open(&disk.path, FileOptions { size: Some(size), ..exclusive() });
        assert_eq!(kind(with(2 * SIZE)), Some(ErrorKind::Corrupt));
        assert_eq!(kind(with(SIZE)), None);
    });
}

/// The file system under the device is full, so the device can store nothing more: EIO. Of many
/// durable writes at once, each that did not reach the medium gets the error, through the page
/// cache as well.
#[test]
fn a_block_device_that_fails_says_medium_error() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let full = SmallFileSystem::new(&folder.path().join("full"), 1 << 20);
    for (direct, io_uring) in [(true, true), (true, false), (false, true)] {
        let disk = LoopDevice::new(&full.path.join("disk"), SIZE, 4096);
        block_on(async {
            let device =
                open(&disk.path, FileOptions { direct, io_uring, is_write_cache_volatile: false, ..exclusive() });
            let errors = futures_util::future::join_all(
                (0..8).map(|index| device.write(index << 20, Buffer::copy_of(&[9; 1 << 20]), false)),
            );
            let errors: Vec<_> = errors.await.into_iter().filter_map(|result| result.err()).collect();
            assert!(errors.len() >= 7, "direct {direct}, io_uring {io_uring}: {} errors", errors.len());
            for error in errors {
                assert!(matches!(error.kind(), ErrorKind::Media | ErrorKind::NoSpace), "{error}");
            }
        });
    }
}

/// A sparse file on a full file system.
#[test]
fn a_file_on_a_full_file_system_has_no_space() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let full = SmallFileSystem::new(&folder.path().join("full"), 1 << 20);
    for io_uring in [true, false] {
        let path = full.path.join("disk");
        block_on(async {
            let device = open(&path, FileOptions { size: Some(SIZE), io_uring, ..exclusive() });
            let mut found = Vec::new();
            for offset in (0..SIZE).step_by(1 << 20) {
                found.push(kind(device.write(offset, Buffer::copy_of(&[9; 1 << 20]), false).await));
            }
            assert!(found[2..].iter().all(|kind| *kind == Some(ErrorKind::NoSpace)), "{found:?}");
            // Space that is given back can be written again.
            device.discard(0, SIZE).await.unwrap();
            device.write(0, Buffer::copy_of(&[9; 4096]), false).await.unwrap();
        });
        std::fs::remove_file(path).unwrap();
    }
}

/// The backing file of a loop device becomes smaller: the lost part never returns old data, nor
/// causes a panic.
#[test]
fn a_device_that_shrinks_below_us_is_an_error_or_zeroes() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let backing = folder.path().join("disk");
    let disk = LoopDevice::new(&backing, SIZE, 512);
    block_on(async {
        let device = open(&disk.path, FileOptions { direct: true, ..exclusive() });
        device.write(SIZE / 2, Buffer::copy_of(&[3; 4096]), false).await.unwrap();
        File::options().write(true).open(&backing).and_then(|file| file.set_len(4096)).unwrap();
        match device.read(SIZE / 2, Buffer::copy_of(&[0xa5; 4096])).await {
            Ok(read) => assert!(read.iter().all(|byte| *byte == 0)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Media, "{error}"),
        }
        device.read(0, Buffer::zeroed(4096)).await.unwrap();
    });
}

/// `losetup --detach` waits for the last user, so the device stays whole while it is open.
#[test]
fn a_loop_device_detached_below_us_stays_until_we_let_go() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let disk = LoopDevice::new(&folder.path().join("disk"), SIZE, 512);
    block_on(async {
        let device = open(&disk.path, FileOptions { direct: true, ..exclusive() });
        let detached = std::process::Command::new("losetup").arg("-d").arg(&disk.path).output().unwrap();
        let outcome = device.write(0, Buffer::copy_of(&[3; 4096]), true).await;
        assert!(matches!(kind(outcome), None | Some(ErrorKind::Media | ErrorKind::Gone)), "{detached:?}");
    });
}
