//! A cache and a write log on a disk of 4096-byte sectors, which stores in units of 512 bytes cannot use by themselves.
//!
//! The disk is a loop device, which needs root; without it the test says `skipped:`.

use std::path::Path;
use std::process::Command;

use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use front::{ListenAddress, NbdClient};
use tests::{World, tool};

/// A loop device, detached when it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(backing: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            println!("skipped: a loop device needs root and /dev/loop-control");
            return None;
        }
        let file = std::fs::File::create(backing).expect("the world is writable");
        file.set_len(32 << 20).expect("the world is writable");
        let backing = backing.to_str().expect("paths of tests are text");
        Some(Self(tool("losetup", ["--find", "--show", "--sector-size", "4096", backing]).trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A second failure while a test fails would hide the first.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

async fn connect(path: &Path) -> SharedDevice {
    let (client, driver) = NbdClient::connect(&ListenAddress::Unix(path.to_owned())).await.expect("it said ready");
    tokio::spawn(driver);
    client
}

fn content(unit: u64) -> Vec<u8> {
    vec![(unit % 251) as u8 + 1; 512]
}

/// Single units of 512 bytes, none beside the one before; then SIGKILL, and all are there.
#[tokio::test]
async fn a_cache_and_a_log_keep_what_they_acknowledged_on_a_disk_of_4096_byte_sectors() {
    for store in ["--cache", "--log"] {
        let world = World::new();
        let Some(disk) = LoopDevice::new(&world.path("backing")) else { return };
        let target = world.target(["--lun", "0=ram:16MiB"]);
        let socket = world.path("disk.nbd");
        let front = format!("nbd:unix:{}", socket.display());
        let url = target.url(0);
        let arguments = ["attach", &url, "--name", "disk", "--as", &front, store, &disk.0];
        let mut process = world.start(arguments);
        let device = connect(&socket).await;
        for number in 0..200u64 {
            let unit = number * 37 % 4096;
            device.write(unit * 512, Buffer::copy_of(&content(unit)), number % 3 == 0).await.expect("the disk works");
        }
        process.kill();
        drop(process);
        let process = world.start(arguments);
        let device = connect(&socket).await;
        for number in 0..200u64 {
            let unit = number * 37 % 4096;
            let found = device.read(unit * 512, Buffer::zeroed(512)).await.expect("the disk works");
            assert!(found[..] == content(unit), "{store}: unit {unit} is not there");
        }
        process.terminate().success();
    }
}

#[test]
fn a_cache_or_log_in_memory_is_refused_by_name() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    for (store, size) in [("--cache", "--cache-size"), ("--log", "--log-size")] {
        let place = format!("/dev/shm/forebay-test-{}", std::process::id());
        let arguments = ["attach", &target.url(0), "--name", "disk", store, &place, size, "16MiB"];
        world.run(arguments).failure(2, &[&place, "tmpfs"]);
        assert!(!Path::new(&place).exists());
    }
}
