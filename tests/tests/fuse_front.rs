//! A LUN as a file: what the tools of the system do with it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use tests::{Process, Target, World, tool};

fn attach(world: &World, target: &Target, more: &[&str]) -> Process {
    let place = format!("fuse:{}", world.path("disk").display());
    world.start([&["attach", &target.url(0), "--name", "disk", "--as", &place][..], more].concat())
}

/// Whatever fails before, the loop device goes.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Self {
        Self(tool("losetup", ["--find".as_ref(), "--show".as_ref(), file.as_os_str()]).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", ["--detach", &self.0]);
    }
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        tool("umount", [self.0]);
    }
}

#[test]
fn a_lun_as_a_file_is_a_disk_by_losetup() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:64MiB"]);
    let stores = ["--cache", "c", "--cache-size", "16MiB"];
    let process = attach(&world, &target, &stores);
    let (path, files) = (world.path("disk"), world.path("files"));
    assert_eq!(process.ready, path.display().to_string());
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    fs::create_dir(&files).unwrap();
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 251) as u8).collect();
    {
        let disk = Loop::of(&path);
        tool("mkfs.ext4", ["-q", &disk.0]);
        tool("mount", ["-o", "discard", &disk.0, files.to_str().unwrap()]);
        let _mounted = Mounted(&files);
        fs::write(files.join("a"), &content).unwrap();
        fs::write(files.join("b"), &content).unwrap();
        fs::remove_file(files.join("b")).unwrap();
        File::open(files.join("a")).unwrap().sync_all().unwrap();
        assert_eq!(world.status("disk")["fronts"][0]["clients"], 1);
    }
    tool("e2fsck", ["-fn", path.to_str().unwrap()]);
    world.run(["detach", "disk"]).success();
    process.wait().success();
    assert!(!path.exists(), "it was made for the attachment");
    // By another way, what the LUN itself has.
    let other = attach(&world, &target, &["--read-only"]);
    tool("e2fsck", ["-fn", path.to_str().unwrap()]);
    let dump = tool("debugfs", ["-R", "stat /a", path.to_str().unwrap()]);
    assert!(dump.contains("Size: 5242880"), "{dump}");
    other.terminate().success();
}

#[test]
fn fio_finds_what_it_wrote_at_depth_and_in_odd_pieces() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:32MiB"]);
    let process = attach(&world, &target, &["--cache", "c", "--cache-size", "8MiB"]);
    let file = format!("--filename={}", world.path("disk").display());
    let verify = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--rw=randwrite"];
    let deep = ["--name=deep", &file, "--size=16m", "--bs=4k", "--ioengine=libaio", "--iodepth=32", "--direct=1"];
    tool("fio", [&deep[..], &verify].concat());
    let odd = ["--name=odd", &file, "--size=4m", "--bsrange=1k-200k", "--bs_unaligned=1", "--ioengine=psync"];
    tool("fio", [&odd[..], &verify, &["--fsync=16"]].concat());
    process.terminate().success();
}

#[test]
fn the_file_is_as_long_as_its_device_whatever_is_done_to_it() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let process = attach(&world, &target, &[]);
    let path = world.path("disk");
    let mut file = OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap();
    assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().mode() & 0o777), (16 << 20, 0o600));
    file.write_all(&[7; 1000]).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..1001], [[7; 1000].as_slice(), &[0]].concat());
    assert_eq!(file.write_at(&[1; 2], (16 << 20) - 1).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.read_at(&mut [0; 10], 16 << 20).unwrap(), 0, "the end");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 10, 500).unwrap();
    let mut found = [1; 600];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, *[[7; 10].as_slice(), &[0; 500], &[7; 90]].concat());
    assert!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).is_err());
    assert_eq!(
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    file.sync_all().unwrap();
    let status = world.status("disk");
    assert_eq!((&status["fuse"]["open"], &status["fuse"]["flush"]["requests"]), (&1.into(), &1.into()), "{status}");
    drop(file);
    process.terminate().success();
    let process = attach(&world, &target, &["--read-only"]);
    assert_eq!(OpenOptions::new().write(true).open(&path).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(&path).unwrap()[..10], [7; 10]);
    process.terminate().success();
}

#[test]
fn a_file_of_a_process_that_was_killed_is_taken_over_and_one_in_use_is_not() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let mut process = attach(&world, &target, &[]);
    let place = format!("fuse:{}", world.path("disk").display());
    let taken = ["attach", &target.url(0), "--name", "other", "--as", &place];
    // Its LUN is in use, too: that is looked at later.
    world.run(taken).failure(2, &["disk", "no empty file"]);
    fs::write(world.path("disk"), [5; 4096]).unwrap();
    let open = File::open(world.path("disk")).unwrap();
    process.kill();
    assert!(open.read_at(&mut [0; 1], 0).is_err(), "its process is gone");
    let process = attach(&world, &target, &[]);
    assert_eq!(fs::read(world.path("disk")).unwrap()[..4096], [5; 4096]);
    // Whoever has it open does not keep it from ending.
    let open = File::open(world.path("disk")).unwrap();
    world.run(["detach", "disk"]).success();
    process.wait().success();
    assert!(open.read_at(&mut [0; 1], 0).is_err());
    assert!(
        !world.path("disk").exists(),
        "programs would write into what the first one left, and think it is the disk"
    );
}

#[test]
fn two_fronts_of_two_kinds_see_what_the_other_one_wrote() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let process = attach(&world, &target, &["--as", "nbd:127.0.0.1:0"]);
    let status = world.status("disk");
    let nbd = status["fronts"][1]["address"].as_str().expect("it has an address").to_owned();
    let file = OpenOptions::new().read(true).write(true).open(world.path("disk")).unwrap();
    for value in 1..4u8 {
        file.write_all_at(&[value; 4096], 8192).unwrap();
        tool("qemu-io", ["-f", "raw", "-c", &format!("read -P {value} 8k 4k"), &nbd]);
        tool("qemu-io", ["-f", "raw", "-c", &format!("write -P {} 8k 4k", value + 100), &nbd]);
        let mut found = [0; 4096];
        file.read_exact_at(&mut found, 8192).unwrap();
        assert_eq!(found, [value + 100; 4096]);
    }
    drop(file);
    process.terminate().success();
}
