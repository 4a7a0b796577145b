//! One failed durable call breaks every later promise, until the device is opened again: on real
//! disks that lose acknowledged writes.

mod loop_device;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, Device, Error, ErrorKind, Event};
use file::{FileDevice, FileOptions};
use loop_device::{FlushFailingDisk, LoopDevice, SmallFileSystem, may_make_devices};

const SIZE: u64 = 16 << 20;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's folder for tests is writable")
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(test);
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

async fn write(device: &Arc<FileDevice>, offset: u64, length: usize, fua: bool) -> Option<ErrorKind> {
    kind(device.write(offset, Buffer::copy_of(&vec![7; length]), fua).await)
}

/// A durable write through the page cache takes the write-back error of another's pages: the flush
/// after it fails all the same.
#[test]
fn a_flush_fails_after_a_durable_write_took_the_error_of_others() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let full = SmallFileSystem::new(&folder.path().join("full"), 1 << 20);
    let mut wrong = Vec::new();
    for io_uring in [true, false] {
        let disk = LoopDevice::new(&full.path.join("disk"), 8 << 20, 4096);
        block_on(async {
            let options = FileOptions { io_uring, exclusive: true, ..FileOptions::default() };
            let device = FileDevice::open(&disk.path, options).unwrap();
            device.write(0, Buffer::copy_of(&[1; 4096]), true).await.expect("there is room for this");
            // Acknowledged, volatile; the medium has no room for it.
            device.write(4 << 20, Buffer::copy_of(&vec![2; 2 << 20]), false).await.expect("the page cache takes it");
            let other = std::fs::File::open(&disk.path).unwrap();
            rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            std::thread::sleep(Duration::from_secs(2));
            let durable = device.write(0, Buffer::copy_of(&[3; 4096]), true).await.map(drop);
            let flushed = device.flush().await;
            println!("io_uring {io_uring}: durable write {durable:?}, flush {flushed:?}");
            if flushed.is_ok() {
                wrong.push(io_uring);
            }
        });
    }
    assert!(
        wrong.is_empty(),
        "a flush succeeded after 2 MiB that were acknowledged before were lost: io_uring {wrong:?}"
    );
}

/// The options of all devices here: past the page cache and through it, on both engines.
fn ways() -> impl Iterator<Item = FileOptions> {
    [(true, true), (true, false), (false, true), (false, false)].into_iter().map(|(direct, io_uring)| FileOptions {
        direct,
        io_uring,
        ..FileOptions::default()
    })
}

/// Runs `fail` on a disk that has acknowledged more than it can keep, then checks what is promised
/// afterwards, when the disk works again.
fn after_a_failure(fail: impl AsyncFn(&Arc<FileDevice>, &str)) {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    for options in ways() {
        let name = format!("direct {}, io_uring {}", options.direct, options.io_uring);
        let disk = FlushFailingDisk::new(&folder.path().join(&name), SIZE, 3 << 20);
        block_on(async {
            let device = FileDevice::open(&disk.disk.path, options.clone()).unwrap();
            assert_eq!(write(&device, 0, 4096, true).await, None, "{name}: there is room for this");
            assert_eq!(write(&device, 4 << 20, 8 << 20, false).await, None, "{name}: nobody asked for durability");
            fail(&device, &name).await;
            disk.heal();
            for _ in 0..2 {
                assert_eq!(kind(device.flush().await), Some(ErrorKind::Media), "{name}");
                assert_eq!(write(&device, 0, 4096, true).await, Some(ErrorKind::Media), "{name}");
                let zeroes = device.write_zeroes(4096, 4096, true, false).await;
                assert_eq!(kind(zeroes), Some(ErrorKind::Media), "{name}");
            }
            assert_eq!(write(&device, 8192, 4096, false).await, None, "{name}: this promises nothing");
            device.read(0, Buffer::zeroed(4096)).await.expect("reads go on");
            drop(device);
            let again = FileDevice::open(&disk.disk.path, options).unwrap();
            assert_eq!(write(&again, 0, 4096, true).await, None, "{name}");
            assert_eq!(kind(again.flush().await), None, "{name}");
        });
    }
}

#[test]
fn a_flush_that_fails_fails_every_promise_after_it() {
    after_a_failure(async |device, name| {
        assert!(kind(device.flush().await).is_some(), "{name}: what is lost is told");
    });
}

#[test]
fn a_durable_write_whose_sync_fails_says_so_and_breaks_every_promise_after_it() {
    after_a_failure(async |device, name| {
        let own = write(device, 0, 4096, true).await;
        if name.starts_with("direct true") {
            assert!(own.is_some(), "{name}: the flush in it failed");
        } else {
            // Through the page cache a durable write stands for its own bytes. An error that it may
            // have found is returned by the next flush, too.
            assert!(kind(device.flush().await).is_some(), "{name}: what is lost is told");
        }
    });
}

/// Many at once: the next sync acknowledges no write that was made while the failed sync was under
/// way.
#[test]
fn no_durable_write_is_acknowledged_after_a_sync_that_failed() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    for io_uring in [true, false] {
        let name = format!("io_uring {io_uring}");
        let disk = FlushFailingDisk::new(&folder.path().join(&name), SIZE, 3 << 20);
        block_on(async {
            let options = FileOptions { direct: true, io_uring, ..FileOptions::default() };
            let device = FileDevice::open(&disk.disk.path, options).unwrap();
            let rest = futures_util::future::join_all(
                (0..64).map(|index| device.write(index << 18, Buffer::copy_of(&vec![9; 1 << 18]), true)),
            );
            let acknowledged = rest.await.into_iter().filter(Result::is_ok).count();
            // The disk has room for eleven, and its own structures; Linux's loop device reports
            // success for one that it cut for want of room.
            assert!(acknowledged <= 12, "{name}: {acknowledged} of 64 acknowledged");
            disk.heal();
            assert_eq!(kind(device.flush().await), Some(ErrorKind::Media), "{name}");
        });
    }
}

/// After room was made durable writes go on.
#[test]
fn a_durable_write_refused_for_want_of_room_breaks_nothing() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let full = SmallFileSystem::new(&folder.path().join("full"), 1 << 20);
    for io_uring in [true, false] {
        let path = full.path.join(format!("disk {io_uring}"));
        block_on(async {
            let options = FileOptions { size: Some(SIZE), io_uring, ..FileOptions::default() };
            let device = FileDevice::open(&path, options).unwrap();
            assert_eq!(write(&device, 0, 4 << 20, true).await, Some(ErrorKind::NoSpace));
            device.discard(0, SIZE).await.expect("room is made");
            assert_eq!(write(&device, 0, 4096, true).await, None);
            assert_eq!(kind(device.flush().await), None);
        });
        std::fs::remove_file(&path).unwrap();
    }
}

/// The page cache shows what could not be written until it is dropped: at once where the device goes on, otherwise when
/// it is closed. Somebody else has the disk open, so that the kernel itself drops nothing.
#[test]
fn what_the_disk_has_not_got_after_a_flush_that_failed_is_not_read_from_the_page_cache() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    let full = SmallFileSystem::new(&folder.path().join("full"), 1 << 20);
    for (goes_on_after_loss, io_uring) in [(true, true), (true, false), (false, true), (false, false)] {
        let name = format!("goes on {goes_on_after_loss}, io_uring {io_uring}");
        let backing = full.path.join("disk");
        let disk = LoopDevice::new(&backing, 8 << 20, 4096);
        let _other = std::fs::File::open(&disk.path).unwrap();
        block_on(async {
            let options = FileOptions { goes_on_after_loss, io_uring, ..FileOptions::default() };
            let mut device = FileDevice::open(&disk.path, options.clone()).unwrap();
            assert_eq!(write(&device, 4 << 20, 2 << 20, false).await, None, "{name}: the page cache takes it");
            assert!(kind(device.flush().await).is_some(), "{name}: the disk has no room for it");
            if !goes_on_after_loss {
                let closed = device.closed();
                drop(device);
                closed.await;
                device = FileDevice::open(&disk.path, options).unwrap();
            }
            let read = device.read(4 << 20, Buffer::zeroed(2 << 20)).await.unwrap();
            let there = std::fs::read(&backing).unwrap();
            assert!(there.iter().filter(|&&byte| byte == 7).count() < 2 << 20, "{name}: some of it is lost");
            assert!(read[..] == there[4 << 20..6 << 20], "{name}: what is lost is shown as if it were there");
        });
    }
}

/// An owner that notifies all its clients goes on without opening anew.
#[test]
fn where_all_are_told_what_comes_after_a_failed_flush_is_promised_anew() {
    if !may_make_devices() {
        return;
    }
    let folder = folder();
    for options in ways() {
        let name = format!("direct {}, io_uring {}", options.direct, options.io_uring);
        let disk = FlushFailingDisk::new(&folder.path().join(&name), SIZE, 3 << 20);
        block_on(async {
            let options = FileOptions { goes_on_after_loss: true, ..options };
            let device = FileDevice::open(&disk.disk.path, options).unwrap();
            let events = device.subscribe();
            assert_eq!(write(&device, 0, 4096, true).await, None, "{name}: there is room for this");
            assert_eq!(write(&device, 4 << 20, 8 << 20, false).await, None, "{name}: nobody asked for durability");
            assert_eq!(events.try_receive(), None, "{name}");
            assert!(kind(device.flush().await).is_some(), "{name}: what is lost is told");
            assert_eq!(events.try_receive(), Some(Event::WritesLost), "{name}: it is said before the answer");
            disk.heal();
            assert_eq!(write(&device, 0, 4096, true).await, None, "{name}");
            assert_eq!(kind(device.flush().await), None, "{name}");
            assert_eq!(events.try_receive(), None, "{name}: it is said once");
        });
    }
}
