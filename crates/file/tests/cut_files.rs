//! A file that another process cuts, or takes blocks out of, while it is open: these parts read as
//! zeroes without an error, unless the option to notice cuts is set.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use file::{CutNote, FileDevice, FileLoss, FileOptions};
use rustix::fs::FallocateFlags;

const SIZE: u64 = 1 << 20;

/// Turns content of a file into zeroes.
type Wound = fn(&Path);

fn cut_and_lengthened_by_a_write(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(&[7; 4096], SIZE - 4096).unwrap();
}

fn cut_in_the_middle(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(SIZE / 2).unwrap();
}

fn punched(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 0, SIZE / 2).unwrap();
}

async fn check(options: &FileOptions, wound: Wound) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    let device: Arc<FileDevice> = match FileDevice::open(&path, options.clone()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return println!("skipped: {error}"),
        opened => opened.unwrap(),
    };
    device.write(0, Buffer::copy_of(&[1; 8192]), true).await.unwrap();
    device.read(0, Buffer::zeroed(8192)).await.unwrap();
    wound(&path);
    let read = device.read(0, Buffer::zeroed(4096)).await;
    let error = read.expect_err("zeroes are not what was written");
    assert_eq!((error.kind(), FileLoss::of(&error)), (ErrorKind::Media, Some(FileLoss::Cut)));
    // A durable write could make the file a store again that can be opened.
    let written = device.write(0, Buffer::copy_of(&[1; 4096]), true).await;
    assert_eq!(written.err().map(|error| error.kind()), Some(ErrorKind::Media));
    assert_eq!(device.flush().await.err().map(|error| error.kind()), Some(ErrorKind::Media));
}

#[tokio::test]
async fn a_file_that_somebody_cuts_while_it_is_open_is_not_read_as_zeroes() {
    for io_uring in [true, false] {
        for direct in [true, false] {
            let base =
                FileOptions { size: Some(SIZE), preallocate: true, notices_cuts: true, ..FileOptions::default() };
            let options = FileOptions { io_uring, direct, ..base };
            for wound in [cut_and_lengthened_by_a_write as Wound, cut_in_the_middle, punched] {
                check(&options, wound).await;
            }
        }
    }
}

/// What it has can still be copied. A file that was moved has a name.
#[tokio::test]
async fn a_file_that_lost_its_last_name_is_read_and_promises_nothing_more() {
    for notices_removal in [true, false] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (path, moved) = (folder.path().join("disk"), folder.path().join("moved"));
        let options = FileOptions { size: Some(SIZE), notices_removal, ..FileOptions::default() };
        let device = FileDevice::open(&path, options).unwrap();
        device.write(0, Buffer::copy_of(&[1; 4096]), true).await.unwrap();
        std::fs::rename(&path, &moved).unwrap();
        device.flush().await.expect("it has a name");
        std::fs::remove_file(&moved).unwrap();
        let written = device.write(4096, Buffer::copy_of(&[1; 4096]), true).await.map(drop);
        for promised in [device.flush().await, written] {
            let loss = promised.err().and_then(|error| FileLoss::of(&error));
            assert_eq!(loss, notices_removal.then_some(FileLoss::Removed));
        }
        assert_eq!(device.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [1; 4096]);
    }
}

/// Whoever is told of the error finds the note.
#[tokio::test]
async fn that_a_file_was_cut_is_noted_before_anything_is_refused_and_not_otherwise() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    let noted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&noted);
    let note = CutNote::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let options = FileOptions {
        size: Some(SIZE),
        preallocate: true,
        notices_cuts: true,
        cut_note: Some(note),
        ..FileOptions::default()
    };
    let device = FileDevice::open(&path, options).unwrap();
    device.read(0, Buffer::zeroed(4096)).await.expect("it is whole");
    device.flush().await.expect("it is whole");
    assert_eq!(noted.load(Ordering::Relaxed), 0);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap();
    for _ in 0..2 {
        device.read(0, Buffer::zeroed(4096)).await.expect_err("it was cut");
        assert_eq!(noted.load(Ordering::Relaxed), 1, "once is enough");
    }
}

/// Blocks that the device itself gives back are no cut.
#[tokio::test]
async fn a_device_that_discards_is_not_taken_for_one_that_was_cut() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = FileOptions { size: Some(SIZE), preallocate: true, notices_cuts: true, ..FileOptions::default() };
    let device = FileDevice::open(folder.path().join("disk"), options).unwrap();
    device.write_zeroes(0, SIZE / 2, false, true).await.unwrap();
    device.read(0, Buffer::zeroed(4096)).await.expect("it is as long as before");
    device.flush().await.expect("it is as long as before");
}
