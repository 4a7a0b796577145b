//! The client with a foreign server: qemu-nbd over a sparse file.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::random::Random;
use block::device::DeviceExt;
use block::{Device, ErrorKind, ExtentKind};
use front::{ListenAddress, NbdClient};
use tokio::process::{Child, Command};

/// What no machine is too slow for.
const LISTENING_TIME_MAX: Duration = Duration::from_secs(60);

const MIB: u64 = 1 << 20;

/// qemu-nbd on `socket`, once it listens.
async fn qemu_nbd(socket: &Path, image: &Path) -> Child {
    let server = Command::new("qemu-nbd")
        .args(["--format=raw", "--cache=writeback", "--discard=unmap", "--persistent", "--export-name=disk"])
        .arg("--socket")
        .arg(socket)
        .arg(image)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("qemu-nbd is needed by this test: {error}"));
    let is_listening = || std::os::unix::net::UnixStream::connect(socket).is_ok();
    let listening = async {
        while !is_listening() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LISTENING_TIME_MAX, listening).await.expect("qemu-nbd listens");
    server
}

async fn connect(address: &ListenAddress) -> Arc<NbdClient> {
    let (device, driver) = NbdClient::connect_to(address, "disk").await.unwrap();
    tokio::spawn(driver);
    device
}

#[tokio::test]
async fn qemu_nbd_is_a_device() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, image) = (directory.path().join("nbd.sock"), directory.path().join("disk.img"));
    fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let mut server = qemu_nbd(&socket, &image).await;
    let address = ListenAddress::Unix(socket);
    let device = connect(&address).await;
    assert_eq!(device.geometry().size_bytes, 16 * MIB);
    assert!(device.info().is_structured && device.info().has_block_status);

    let mut written = Buffer::zeroed(3 * MIB as usize);
    Random::new(11).fill(&mut written);
    device.write(4 * MIB, Buffer::copy_of(&written), true).await.unwrap();
    let reads: Vec<_> =
        (0..48).map(|index| device.read(4 * MIB + index * 64 * 1024, Buffer::zeroed(64 * 1024))).collect();
    for (read, expected) in reads.into_iter().zip(written.chunks(64 * 1024)) {
        assert_eq!(read.await.unwrap()[..], *expected);
    }
    // Data and holes in one read: qemu answers in several chunks.
    let mixed = device.read(3 * MIB, Buffer::copy_of(&vec![0xa5; 2 * MIB as usize])).await.unwrap();
    assert_eq!(mixed[..MIB as usize], vec![0; MIB as usize]);
    assert_eq!(mixed[MIB as usize..], written[..MIB as usize]);
    let kinds: Vec<_> = device.extents(0, 16 * MIB).await.unwrap().iter().map(|extent| extent.kind).collect();
    assert_eq!(kinds, [ExtentKind::Hole, ExtentKind::Data, ExtentKind::Hole]);
    device.write_zeroes(4 * MIB, MIB, false, true).await.unwrap();
    device.discard(5 * MIB, MIB).await.unwrap();
    device.flush().await.unwrap();
    let stored = fs::read(&image).unwrap();
    assert_eq!(stored[4 * MIB as usize..5 * MIB as usize], vec![0; MIB as usize]);
    assert_eq!(stored[6 * MIB as usize..7 * MIB as usize], written[2 * MIB as usize..]);

    server.kill().await.unwrap();
    let lost = device.read(0, Buffer::zeroed(512)).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Gone);
}
