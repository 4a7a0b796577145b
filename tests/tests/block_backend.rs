//! Block devices as logical units, through the target, with QEMU's tools: loop devices, which need root.

#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../crates/file/tests/loop_device/mod.rs"]
mod loop_device;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use loop_device::{LoopDevice, SmallFileSystem, may_make_devices};
use serde_json::Value;
use tests::{Finished, Target, World, finish, tool};

const SIZE: u64 = 64 << 20;

/// What the target says of a logical unit.
fn inquiry(world: &World, target: &Target, lun: u64) -> Value {
    world.run(["inquiry", &target.url(lun), "--json"]).json()
}

/// Runs `qemu-io` with these commands.
fn qemu_io(target: &Target, lun: u64, commands: &[&str]) -> Finished {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    commands.iter().for_each(|text| {
        command.args(["-c", text]);
    });
    finish(command.arg(target.url(lun)))
}

fn lun(disk: &LoopDevice, options: &str) -> String {
    format!("0=file:{}{options}", disk.path.display())
}

/// Thick: QEMU 7.2 ends in an assertion of its own when it reads 32 KiB of a thin unit with blocks of 4096 bytes.
#[test]
fn qemu_reads_and_writes_a_block_device_with_sectors_of_512_and_4096_bytes() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    for sector in [512, 4096] {
        for options in ["", ",direct", ",direct,write-cache"] {
            let options = format!("{options},thick");
            let disk = LoopDevice::new(&world.path("disk.img"), SIZE, sector);
            let target = world.target(["--lun", &lun(&disk, &options)]);
            let told = inquiry(&world, &target, 0);
            assert_eq!((&told["logical_block_bytes"], &told["size_bytes"]), (&sector.into(), &SIZE.into()));
            assert!(told["physical_block_bytes"].as_u64() >= Some(sector.into()), "{told}");
            let commands =
                ["write -P 7 0 1M", "write -f -P 8 1M 60k", "write -z 512k 128k", "flush", "read -P 7 0 512k"];
            qemu_io(&target, 0, &commands).success();
            let commands = ["read -P 0 512k 128k", "read -P 7 640k 384k", "read -P 8 1M 60k"];
            qemu_io(&target, 0, &commands).success();
            target.process.terminate().success();
            let bytes = fs::read(world.path("disk.img")).unwrap();
            assert!(bytes[1 << 20..(1 << 20) + (60 << 10)].iter().all(|byte| *byte == 8), "{sector}{options}");
        }
    }
}

/// UNMAP reaches the medium: the backing file of the loop device has its space back.
#[test]
fn what_an_initiator_unmaps_a_block_device_gives_back() {
    use std::os::unix::fs::MetadataExt;
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let disk = LoopDevice::new(&world.path("disk.img"), SIZE, 4096);
    let target = world.target(["--lun", &lun(&disk, ",direct")]);
    assert!(inquiry(&world, &target, 0)["discard_granularity_bytes"].as_u64() >= Some(4096));
    let allocated = || fs::metadata(world.path("disk.img")).unwrap().blocks() * 512;
    qemu_io(&target, 0, &["write -P 7 0 16M"]).success();
    assert!(allocated() >= 16 << 20);
    qemu_io(&target, 0, &["discard 0 16M", "flush"]).success();
    assert!(allocated() < 1 << 20, "{} bytes are allocated", allocated());
}

/// Acknowledged means durable, and the serial number goes with the device: not with its node, and not in `/dev`.
#[test]
fn a_block_device_keeps_its_data_and_its_name_over_kill_nine() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let backing = world.path("disk.img");
    let first = LoopDevice::new(&backing, SIZE, 512);
    let mut target = world.target(["--lun", &lun(&first, ",direct")]);
    let serial = inquiry(&world, &target, 0)["serial"].clone();
    for round in 0..4 {
        let pattern = 1 + round;
        qemu_io(&target, 0, &[&format!("write -P {pattern} {round}M 1M")]).success();
        // Another client is in the middle of its writes.
        let url = target.url(0);
        let mut client = Command::new("qemu-img")
            // As many as fit behind 32 MiB: at the end of the device it would begin again at its start.
            .args(["bench", "-w", "-s", "512", "-c", "65536", "-d", "16", "-o", "32M", "-f", "raw", &url])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("qemu-img is installed");
        std::thread::sleep(Duration::from_millis(200));
        target.process.kill();
        client.kill().and_then(|()| client.wait()).unwrap();
        target = world.target(["--lun", &lun(&first, ",direct")]);
        for earlier in 0..=round {
            qemu_io(&target, 0, &[&format!("read -P {} {earlier}M 1M", 1 + earlier)]).success();
        }
        assert_eq!(inquiry(&world, &target, 0)["serial"], serial);
    }
    target.process.terminate().success();
    let node = format!("{}.forebay", first.path.display());
    assert!(!Path::new(&node).exists(), "{node}");
    // Another node, the same device: the one that is free now is taken first.
    let other = LoopDevice::new(&world.path("other.img"), SIZE, 512);
    drop(first);
    let placeholder = LoopDevice::new(&world.path("placeholder.img"), SIZE, 512);
    let again = LoopDevice::over(&backing, &[]);
    let target = world.target(["--lun", &lun(&again, ""), "--lun", &lun(&other, "").replace("0=", "1=")]);
    assert_eq!(inquiry(&world, &target, 0)["serial"], serial);
    assert_ne!(inquiry(&world, &target, 1)["serial"], serial);
    drop(placeholder);
}

#[test]
fn a_block_device_in_use_or_write_protected_is_refused_in_words() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let disk = LoopDevice::new(&world.path("disk.img"), SIZE, 512);
    let target = world.target(["--lun", &lun(&disk, "")]);
    let serve = |lun: &str, name: &str| {
        let fixed = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", tests::IQN, "--name", name, "--lun"];
        world.run(fixed.iter().copied().chain([lun]))
    };
    let refused = serve(&lun(&disk, ""), "second");
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("in use by another process"), "{refused:?}");
    // Nothing was written: it does not matter here whether the disk is too busy for a last flush.
    target.process.terminate();
    drop(disk);
    let disk = LoopDevice::over(&world.path("disk.img"), &["--read-only"]);
    let refused = serve(&lun(&disk, ""), "third");
    assert!(refused.stderr.contains("is write protected: serve it read-only"), "{refused:?}");
    let target = world.target(["--lun", &lun(&disk, ",read-only")]);
    assert_eq!(inquiry(&world, &target, 0)["read_only"], true);
    let refused = qemu_io(&target, 0, &["write 0 4k"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
}

/// SPACE ALLOCATION FAILED WRITE PROTECT (27h/07h), which QEMU tells as ENOSPC; the session goes on.
#[test]
fn a_thin_file_on_a_full_file_system_says_so() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let full = SmallFileSystem::new(&world.path("full"), 4 << 20);
    let path = full.path.join("disk.img");
    let target = world.target(["--lun", &format!("0=file:{},size=64MiB", path.display())]);
    let written = qemu_io(&target, 0, &["write -P 7 0 1M", "write -P 8 8M 8M", "read -P 7 0 1M"]);
    let said = format!("{}{}", written.stdout, written.stderr);
    assert!(said.contains("No space left on device"), "{said}");
    qemu_io(&target, 0, &["read -P 7 0 1M", "discard 8M 8M", "write -P 9 1M 1M", "read -P 9 1M 1M"]).success();
    target.process.terminate().success();
}

/// The medium fails below the loop device: a medium error, for that request only.
#[test]
fn a_failing_block_device_is_a_medium_error_and_the_session_goes_on() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let full = SmallFileSystem::new(&world.path("full"), 4 << 20);
    let disk = LoopDevice::new(&full.path.join("disk.img"), SIZE, 512);
    let target = world.target(["--lun", &lun(&disk, ",direct,thick")]);
    let written = qemu_io(&target, 0, &["write -P 7 0 1M", "write -P 8 8M 8M"]);
    let said = format!("{}{}", written.stdout, written.stderr);
    assert!(said.contains("write failed"), "{said}");
    qemu_io(&target, 0, &["read -P 7 0 1M"]).success();
    let listed = tool("iscsi-ls", ["-s", &format!("iscsi://{}", target.portal())]);
    assert!(listed.contains("Lun:0"), "{listed}");
    target.process.terminate();
}
