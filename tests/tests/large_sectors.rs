//! A cache and a write log on a disk of 4096-byte sectors, which stores in units of 512 bytes cannot use by themselves.
//!
//! The disk is a loop device, which needs root; without it the test says `skipped:`.

#[path = "../../crates/file/tests/loop_device/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod loop_device;

use std::path::Path;

use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use front::{ListenAddress, NbdClient};
use loop_device::{LoopDevice, may_make_devices};
use tests::World;

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
    if !may_make_devices() {
        return;
    }
    for store in ["--cache", "--log"] {
        let world = World::new();
        let disk = LoopDevice::new(&world.path("backing"), 32 << 20, 4096);
        let path = disk.path.display().to_string();
        let target = world.target(["--lun", "0=ram:16MiB"]);
        let socket = world.path("disk.nbd");
        let front = format!("nbd:unix:{}", socket.display());
        let url = target.url(0);
        let arguments = ["attach", &url, "--name", "disk", "--as", &front, store, &path];
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
