//! The contract of a file device, on both engines, through the page cache and past it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, Device, Error, ErrorKind, ExtentKind, Request};
use file::{FileDevice, FileOptions};
use tempfile::TempDir;

const SIZE: u64 = 4 << 20;

/// The ways to serve a file, by name.
fn flavours() -> Vec<(&'static str, FileOptions)> {
    let base = FileOptions { size: Some(SIZE), ..FileOptions::default() };
    vec![
        ("ring, cached", base.clone()),
        ("ring, direct", FileOptions { direct: true, ..base.clone() }),
        ("pool, cached", FileOptions { io_uring: false, ..base.clone() }),
        ("ring, direct, waiting", FileOptions { direct: true, waits_for_fast_writes: true, ..base.clone() }),
        ("pool, direct", FileOptions { io_uring: false, direct: true, ..base }),
    ]
}

/// A folder on a real disk: `/tmp` may be a tmpfs, which knows neither `O_DIRECT` nor holes as disks do.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

/// Runs `test` on a fresh file for each flavour that this file system supports.
fn on_each_flavour(test: impl AsyncFn(&str, Arc<FileDevice>, PathBuf)) {
    let folder = folder();
    for (index, (name, options)) in flavours().into_iter().enumerate() {
        let path = folder.path().join(format!("disk{index}"));
        current_thread().block_on(async {
            match FileDevice::open(&path, options) {
                Err(error) if error.kind() == ErrorKind::Unsupported && name.contains("direct") => {
                    println!("skipped: {name}: {error}");
                }
                other => test(name, other.unwrap_or_else(|error| panic!("{name}: {error:?}")), path).await,
            }
        });
    }
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn every_operation_works_on_every_flavour() {
    on_each_flavour(async |name, device, path| {
        assert_eq!(device.geometry().size_bytes, SIZE, "{name}");
        device.write(0, Buffer::copy_of(&[1; 65536]), false).await.expect(name);
        device.write(65536, Buffer::copy_of(&[2; 4096]), true).await.expect(name);
        device.flush().await.expect(name);
        let read = device.read(61440, Buffer::copy_of(&[0xa5; 8192])).await.expect(name);
        assert!(read[..4096].iter().all(|byte| *byte == 1) && read[4096..].iter().all(|byte| *byte == 2), "{name}");

        device.write_zeroes(0, 4096, true, false).await.expect(name);
        device.write_zeroes(4096, 4096, false, true).await.expect(name);
        let read = device.read(0, Buffer::copy_of(&[0xa5; 12288])).await.expect(name);
        assert!(read[..8192].iter().all(|byte| *byte == 0) && read[8192..].iter().all(|byte| *byte == 1), "{name}");

        if device.geometry().discard_granularity_bytes.is_some() {
            device.discard(0, 65536).await.expect(name);
            let extents = device.extents(0, SIZE).await.expect(name);
            let kinds: Vec<_> = extents.iter().map(|extent| (extent.range.offset, extent.kind)).collect();
            assert_eq!(kinds, [(0, ExtentKind::Hole), (65536, ExtentKind::Data), (69632, ExtentKind::Hole)], "{name}");
        }
        drop(device);
        let bytes = std::fs::read(path).expect("the file is there");
        assert_eq!(bytes.len() as u64, SIZE, "{name}");
        assert!(bytes[65536..69632].iter().all(|byte| *byte == 2), "{name}");
    });
}

/// Many requests in flight on ranges of their own, against a plain vector.
#[test]
fn contents_equal_a_model_under_random_load() {
    const TASKS: u64 = 16;
    const SPAN: u64 = SIZE / TASKS;
    on_each_flavour(async |name, device, path| {
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let device = Arc::clone(&device);
            tasks.push(tokio::spawn(async move {
                let mut random = Random::new(task);
                let mut model = vec![0; SPAN as usize];
                for _ in 0..60 {
                    let offset = random.below(SPAN / 4096) * 4096;
                    let length = 4096 * (1 + random.below(((SPAN - offset) / 4096).min(16)));
                    let span = offset as usize..(offset + length) as usize;
                    let at = task * SPAN + offset;
                    match random.below(8) {
                        0..3 => {
                            random.fill(&mut model[span.clone()]);
                            let buffer = Buffer::copy_of(&model[span]);
                            device.write(at, buffer, random.chance(0.05)).await.expect("the disk works");
                        }
                        3 => {
                            device.write_zeroes(at, length, false, random.chance(0.5)).await.expect("the disk works");
                            model[span].fill(0);
                        }
                        _ => {
                            let buffer = Buffer::zeroed(length as usize);
                            let read = device.read(at, buffer).await.expect("the disk works");
                            assert!(read[..] == model[span]);
                        }
                    }
                }
                model
            }));
        }
        let mut model = Vec::new();
        for task in tasks {
            model.extend(task.await.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
        assert!(std::fs::read(path).expect("the file is there") == model, "{name}");
    });
}

/// Overlapping requests submitted one after the other, awaited in any order or not at all, act in the order of
/// submission.
#[test]
fn overlapping_requests_keep_their_order() {
    on_each_flavour(async |name, device, _| {
        for round in 0..20u8 {
            let large = 1 << 20;
            let first = device.write(0, Buffer::copy_of(&vec![round; large]), false);
            drop(device.write(4096, Buffer::copy_of(&[round + 100; 4096]), false));
            let read = device.read(0, Buffer::zeroed(16384));
            let last = device.write(0, Buffer::copy_of(&[0xff; 16384]), false);
            last.await.expect(name);
            let read = read.await.expect(name);
            first.await.expect(name);
            let pages: Vec<u8> = read.chunks(4096).map(|page| page[0]).collect();
            assert_eq!(pages, [round, round + 100, round, round], "{name}");
        }
    });
}

#[test]
fn more_requests_than_the_ring_holds_wait_in_line() {
    on_each_flavour(async |name, device, _| {
        let count = 2 * file::limits::IN_FLIGHT_MAX as u64;
        let writes: Vec<_> =
            (0..count).map(|index| device.write(index * 4096, Buffer::copy_of(&[index as u8; 4096]), false)).collect();
        for write in writes {
            write.await.expect(name);
        }
        let reads: Vec<_> = (0..count).map(|index| device.read(index * 4096, Buffer::zeroed(4096))).collect();
        for (index, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.expect(name)[..], [index as u8; 4096], "{name}");
        }
    });
}

#[test]
fn sectors_of_512_bytes_work_where_the_geometry_says_so() {
    on_each_flavour(async |name, device, _| {
        let sector = device.geometry().logical_block_bytes as usize;
        device.write(sector as u64, Buffer::copy_of(&vec![7; sector]), false).await.expect(name);
        let read = device.read(0, Buffer::zeroed(3 * sector)).await.expect(name);
        let values: Vec<u8> = read.chunks(sector).map(|sector| sector[sector.len() - 1]).collect();
        assert_eq!(values, [0, 7, 0], "{name}");
        let misaligned = device.read(1, Buffer::zeroed(sector)).await;
        assert_eq!(kind(misaligned), Some(ErrorKind::InvalidRange), "{name}");
        let past_end = device.read(SIZE, Buffer::zeroed(sector)).await;
        assert_eq!(kind(past_end), Some(ErrorKind::InvalidRange), "{name}");
        assert_eq!(device.read(0, Buffer::empty()).await.expect(name).len(), 0);
    });
}

/// The device and its completions are dropped: submitted requests are carried out, and no memory is
/// freed under the kernel.
#[test]
fn what_is_in_flight_survives_every_drop() {
    let folder = folder();
    for (index, (name, options)) in flavours().into_iter().enumerate() {
        let path = folder.path().join(format!("dropped{index}"));
        let runtime = current_thread();
        runtime.block_on(async {
            let Ok(device) = FileDevice::open(&path, options) else {
                return println!("skipped: {name} cannot be opened here");
            };
            for index in 0..300u64 {
                drop(device.submit(Request::write(index * 4096, Buffer::copy_of(&[3; 4096]), false)));
            }
            drop(device.read(0, Buffer::zeroed(1 << 20)));
            drop(device.write(0, Buffer::copy_of(&[4; 4096]), false));
            let kept = device.write(301 * 4096, Buffer::copy_of(&[5; 4096]), false);
            drop(device);
            kept.await.expect(name);
        });
        // Threads of the pool finish their work; the end of the runtime waits for the ring.
        drop(runtime);
        let Ok(bytes) = std::fs::read(&path) else { continue };
        assert!(bytes[301 * 4096..302 * 4096].iter().all(|byte| *byte == 5), "{name}");
    }
}

/// The runtime ends with writes in flight: they are awaited, and later requests fail with `Gone`.
#[test]
fn a_device_outlives_its_runtime_without_harm() {
    let folder = folder();
    let path = folder.path().join("disk");
    let runtime = current_thread();
    let options = FileOptions { size: Some(SIZE), direct: true, ..FileOptions::default() };
    let Ok(device) = runtime.block_on(async { FileDevice::open(&path, options) }) else {
        return println!("skipped: no file here is opened past the page cache");
    };
    let writes: Vec<_> =
        (0..64).map(|index| device.submit(Request::write(index * 4096, Buffer::copy_of(&[9; 4096]), false))).collect();
    drop(runtime);
    let runtime = current_thread();
    runtime.block_on(async {
        for write in writes {
            write.await.result.expect("it was in flight, and waited for");
        }
        let late = device.read(0, Buffer::zeroed(4096)).await;
        assert_eq!(kind(late), Some(ErrorKind::Gone));
    });
    assert!(std::fs::read(path).expect("the file is there")[..64 * 4096].iter().all(|byte| *byte == 9));
}

#[test]
fn many_threads_may_use_one_device() {
    let folder = folder();
    for (name, options) in flavours() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let path = folder.path().join(name);
        let Ok(device) = runtime.block_on(async { FileDevice::open(&path, options) }) else { continue };
        // Also plain threads, which end right after they submitted.
        let threads: Vec<_> = (0..8u64)
            .map(|index| {
                let device = Arc::clone(&device);
                std::thread::spawn(move || device.write(index * 65536, Buffer::copy_of(&[index as u8; 65536]), false))
            })
            .collect();
        let writes: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it only submits")).collect();
        runtime.block_on(async {
            for write in writes {
                write.await.expect(name);
            }
            let tasks: Vec<_> = (0..8u64)
                .map(|index| {
                    let device = Arc::clone(&device);
                    tokio::spawn(async move { device.read(index * 65536, Buffer::zeroed(65536)).await })
                })
                .collect();
            for (index, task) in tasks.into_iter().enumerate() {
                let read = task.await.expect("it does not panic").expect(name);
                assert!(read.iter().all(|byte| *byte == index as u8), "{name}");
            }
        });
    }
}

#[test]
fn a_file_that_got_shorter_is_a_medium_error() {
    on_each_flavour(async |name, device, path| {
        std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8192)).expect("it may shrink");
        let across = device.read(4096, Buffer::zeroed(8192)).await;
        assert_eq!(kind(across), Some(ErrorKind::Media), "{name}");
        let beyond = device.read(65536, Buffer::zeroed(4096)).await;
        assert_eq!(kind(beyond), Some(ErrorKind::Media), "{name}");
        device.read(0, Buffer::zeroed(8192)).await.expect(name);
    });
}

#[test]
fn a_device_without_a_volatile_cache_writes_through() {
    let folder = folder();
    let path = folder.path().join("disk");
    let options = FileOptions { size: Some(SIZE), is_write_cache_volatile: false, ..FileOptions::default() };
    current_thread().block_on(async {
        let device = FileDevice::open(&path, options).expect("it opens");
        assert!(!device.geometry().is_write_cache_volatile);
        device.write(0, Buffer::copy_of(&[1; 4096]), false).await.expect("the disk works");
        device.write_zeroes(4096, 4096, false, true).await.expect("the disk works");
        assert_eq!(device.read(0, Buffer::zeroed(512)).await.expect("the disk works")[..], [1; 512]);
    });
}

fn open(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, Error> {
    current_thread().block_on(async { FileDevice::open(path, options) })
}

#[test]
fn opening_says_what_is_wrong() {
    let folder = folder();
    let path = folder.path().join("disk");
    let sized = |size| FileOptions { size: Some(size), ..FileOptions::default() };

    let error = open(&path, FileOptions::default()).err().expect("there is no file");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("does not exist"), "{error}");
    assert_eq!(kind(open(&path, sized(1000))), Some(ErrorKind::InvalidRange));
    assert!(!path.exists());
    assert_eq!(kind(open(folder.path(), FileOptions { read_only: true, ..sized(SIZE) })), Some(ErrorKind::Unsupported));
    assert_eq!(kind(open(&folder.path().join("no/such"), sized(SIZE))), Some(ErrorKind::NotFound));

    open(&path, sized(SIZE)).expect("it is created");
    open(&path, sized(SIZE)).expect("it has this size");
    let error = open(&path, sized(SIZE * 2)).err().expect("it has another size");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::metadata(&path).expect("it is still there").len(), SIZE);

    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").expect("the folder is writable");
    assert_eq!(kind(open(&empty, FileOptions::default())), Some(ErrorKind::InvalidRange));
    open(&empty, sized(SIZE)).expect("an empty file takes the size");
    assert!(FileDevice::open(&path, FileOptions::default()).is_err(), "there is no runtime here");
}

#[test]
fn an_exclusive_file_is_in_use_until_its_device_is_gone() {
    let folder = folder();
    let path = folder.path().join("disk");
    for io_uring in [true, false] {
        let options = FileOptions { size: Some(SIZE), exclusive: true, io_uring, ..FileOptions::default() };
        current_thread().block_on(async {
            let device = FileDevice::open(&path, options.clone()).expect("nobody uses it");
            let error = FileDevice::open(&path, options.clone()).err().expect("somebody uses it");
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert_eq!(error.to_string(), format!("in use by another process: {}", path.display()));
            device.write(0, Buffer::copy_of(&[1; 4096]), true).await.expect("the disk works");
            drop(device);
            // An idle device releases its claim at once; a thread of the pool may need a moment to
            // see that it is idle.
            for _ in 0..1000 {
                match FileDevice::open(&path, options.clone()) {
                    Ok(_) => return,
                    Err(error) => assert_eq!((error.kind(), io_uring), (ErrorKind::Busy, false)),
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            panic!("the lock was never released");
        });
    }
}

#[test]
fn a_read_only_device_refuses_changes() {
    let folder = folder();
    let path = folder.path().join("disk");
    open(&path, FileOptions { size: Some(SIZE), ..FileOptions::default() }).expect("it is created");
    current_thread().block_on(async {
        let options = FileOptions { read_only: true, ..FileOptions::default() };
        let device = FileDevice::open(&path, options).expect("it is there");
        assert!(device.geometry().is_read_only);
        assert_eq!(kind(device.write(0, Buffer::zeroed(512), false).await), Some(ErrorKind::ReadOnly));
        device.read(0, Buffer::zeroed(512)).await.expect("the disk works");
        device.flush().await.expect("there is nothing to flush");
    });
}

#[test]
fn preallocated_files_have_their_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    for (name, preallocate, zero_written) in [("reserved", true, false), ("written", false, true)] {
        let path = folder.path().join(name);
        let options = FileOptions { size: Some(SIZE), preallocate, zero_written, ..FileOptions::default() };
        open(&path, options).expect("there is room");
        let metadata = std::fs::metadata(&path).expect("it was created");
        assert!(metadata.blocks() * 512 >= SIZE, "{name}: {} blocks", metadata.blocks());
    }
}

/// A tmpfs of 1 MiB, where the tests run as root; unmounted on drop.
struct SmallFileSystem(TempDir);

impl SmallFileSystem {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"])
            .arg(folder.path())
            .stderr(std::process::Stdio::null())
            .status();
        status.is_ok_and(|status| status.success()).then(|| Self(folder))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // A ring closes its file a moment after its end, so the mount is detached now and goes when
        // it can.
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_is_no_space() {
    let Some(small) = SmallFileSystem::mount() else { return println!("skipped: not allowed to mount a tmpfs") };
    let path = small.0.path().join("disk");
    for io_uring in [true, false] {
        let options = FileOptions { size: Some(SIZE), io_uring, ..FileOptions::default() };
        let reserved = open(&path, FileOptions { preallocate: true, ..options.clone() });
        let error = reserved.err().expect("1 MiB does not hold 4");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains("whose file system has 1048576 free"), "before all of it is taken: {error}");
        assert!(!path.exists(), "what it created is gone");
        current_thread().block_on(async {
            let device = FileDevice::open(&path, options).expect("a sparse file fits");
            let write = device.write(0, Buffer::copy_of(&vec![1; 2 << 20]), false).await;
            assert_eq!(kind(write), Some(ErrorKind::NoSpace));
            let single = device.write(2 << 20, Buffer::copy_of(&[1; 4096]), false).await;
            assert_eq!(kind(single), Some(ErrorKind::NoSpace));
        });
        std::fs::remove_file(&path).expect("it was created");
    }
}

/// Writes by another process are seen: the device caches nothing.
#[test]
fn the_device_shows_what_is_in_the_file() {
    on_each_flavour(async |name, device, path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("it was created");
        file.write_all_at(&[8; 4096], 12288).and_then(|()| file.sync_all()).expect("the disk works");
        assert_eq!(device.read(12288, Buffer::zeroed(4096)).await.expect(name)[..], [8; 4096], "{name}");
    });
}
