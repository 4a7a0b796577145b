//! An image that another process cuts while it is served: what lay behind its new end is lost, and
//! is neither read as zeroes nor told to be a hole.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event};
use file::{FileDevice, FileOptions};
use tempfile::TempDir;

const SIZE: u64 = 1 << 20;
const LEFT: u64 = SIZE / 4;

fn image(options: FileOptions) -> Option<(TempDir, PathBuf, Arc<FileDevice>)> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    match FileDevice::open(&path, FileOptions { size: Some(SIZE), ..options }) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("skipped: {error}");
            None
        }
        opened => Some((folder, path, opened.unwrap())),
    }
}

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn block_of(byte: u8) -> Buffer {
    Buffer::copy_of(&[byte; 4096])
}

async fn read(device: &FileDevice, offset: u64) -> Result<Buffer, block::Error> {
    device.read(offset, Buffer::zeroed(4096)).await
}

/// Each engine, with and without the page cache.
fn every_way() -> impl Iterator<Item = FileOptions> {
    [(true, false), (false, false), (true, true), (false, true)].into_iter().map(|(io_uring, direct)| FileOptions {
        io_uring,
        direct,
        goes_on_after_loss: true,
        ..FileOptions::default()
    })
}

#[tokio::test]
async fn what_was_cut_off_is_not_read_as_zeroes() {
    for options in every_way() {
        let Some((_folder, path, device)) = image(options) else { continue };
        for offset in [0, LEFT, SIZE - 4096] {
            device.write(offset, block_of(7), true).await.unwrap();
        }
        // So that no write is taken for one that came after the cut.
        assert_eq!((device.cut_bytes(), device.cut_bytes()), (None, None));
        let events = device.subscribe();
        cut(&path, LEFT);
        let refused = read(&device, LEFT).await.expect_err("it is gone");
        assert_eq!(refused.kind(), ErrorKind::Media);
        let words = format!("the file was cut to {LEFT} bytes while it is in use");
        assert!(refused.to_string().contains(&words), "{refused}");
        assert_eq!(device.cut_bytes(), Some(LEFT));
        assert!(matches!(events.try_receive(), Some(Event::WritesLost)), "writes there are lost, too");
        for byte in [8, 9] {
            let written = device.write(SIZE - 4096, block_of(byte), false).await;
            assert_eq!(written.err().map(|error| error.kind()), Some(ErrorKind::Media), "it would make a hole");
        }
        device.write(0, block_of(3), false).await.expect("this is there");
        device.flush().await.expect("and can be made durable");
        assert_eq!(read(&device, 0).await.unwrap()[..], [3; 4096]);
        assert_eq!(path.metadata().unwrap().len(), LEFT);
        assert_eq!(device.grow(Some(SIZE)).err().map(|error| error.kind()), Some(ErrorKind::Media));
        // It does not become good by becoming long.
        cut(&path, SIZE);
        assert_eq!(read(&device, SIZE - 4096).await.err().map(|error| error.kind()), Some(ErrorKind::Media));
    }
}

/// Some initiators ask for holes, and read nothing where there is one.
#[tokio::test]
async fn what_was_cut_off_is_no_hole() {
    let (_folder, path, device) = image(FileOptions::default()).unwrap();
    let extents = |offset| device.extents(offset, 4096);
    extents(SIZE - 4096).await.expect("a hole");
    cut(&path, LEFT);
    assert_eq!(extents(SIZE - 4096).await.err().map(|error| error.kind()), Some(ErrorKind::Media));
    extents(0).await.expect("this is there");
    let flushed = device.flush().await;
    assert_eq!(flushed.err().map(|error| error.kind()), Some(ErrorKind::Media), "what was written there is lost");
}

#[tokio::test]
async fn a_file_that_grows_or_ends_within_a_block_is_not_cut() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![5; 8192 + 100]).unwrap();
    let device = FileDevice::open(&path, FileOptions::default()).unwrap();
    assert_eq!((device.geometry().size_bytes, device.cut_bytes()), (8192, None));
    cut(&path, SIZE);
    assert_eq!(device.cut_bytes(), None);
    assert_eq!(device.grow(None).unwrap(), SIZE);
    read(&device, SIZE - 4096).await.expect("it has this now");
    cut(&path, 8192);
    assert_eq!(device.cut_bytes(), Some(8192), "of what it has now");
}
