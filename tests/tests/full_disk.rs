//! Caches on a disk that is full, or became full since: what is dirty there can be had back, and asking for too much
//! takes nothing from others.

#[path = "../../crates/file/tests/loop_device/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod loop_device;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use loop_device::{LoopDevice, SmallFileSystem, may_make_devices};
use tests::{Process, Target, World, finish, tool};

const CACHE_BYTES: u64 = 8 << 20;
const NO_SPACE: i32 = 8;

const CACHE: [&str; 6] = ["--cache", "disk/disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];

/// A world with a small file system on a disk of its own in `disk`, and a target whose LUN is elsewhere.
struct Bench {
    target: Target,
    _mounted: SmallFileSystem,
    _device: LoopDevice,
    world: World,
}

impl Bench {
    /// `None` without the right to make one.
    fn new() -> Option<Self> {
        may_make_devices().then(|| {
            let world = World::new();
            let device = LoopDevice::new(&world.path("backing"), 64 << 20, 512);
            tool("mkfs.ext4", ["-q".as_ref(), "-m".as_ref(), "0".as_ref(), device.path.as_os_str()]);
            let path = world.path("disk");
            fs::create_dir(&path).unwrap();
            tool("mount", ["-t".as_ref(), "ext4".as_ref(), device.path.as_os_str(), path.as_os_str()]);
            let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
            Self { target, _mounted: SmallFileSystem { path }, _device: device, world }
        })
    }

    fn attach(&self, more: &[&str]) -> Process {
        self.world.start([&["attach", &self.target.url(0), "--name", "disk"], &CACHE[..], more].concat())
    }

    /// Takes every block that is left.
    fn fill(&self) {
        let path = self.world.path("disk/others");
        let path = path.to_str().expect("paths of tests are text");
        for count in ["bs=1M", "bs=4k"] {
            let name = format!("of={path}.{count}");
            let filled = finish(std::process::Command::new("dd").args(["if=/dev/zero", &name, count, "conv=fsync"]));
            assert!(filled.stderr.contains("No space left"), "{filled:?}");
        }
    }
}

fn io(process: &Process, command: &str) {
    tool("qemu-io", ["-f", "raw", "-c", command, &process.ready]);
}

#[test]
fn a_new_cache_has_all_its_blocks() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let disk = world.start(["attach", &target.url(0), "--name", "disk", "--cache", "c", "--cache-size", "8MiB"]);
    let blocks = fs::metadata(world.path("c")).unwrap().blocks();
    assert!(blocks * 512 >= CACHE_BYTES, "{blocks} blocks");
    disk.terminate().success();
}

#[test]
fn a_cache_that_crashed_on_a_disk_that_is_full_since_gives_its_data_back() {
    let Some(bench) = Bench::new() else { return };
    let mut disk = bench.attach(&[]);
    io(&disk, "write -P 0x5a 0 64k");
    disk.kill();
    bench.fill();
    bench.world.run(["cache", "check", "disk/disk.cache"]).success();
    let disk = bench.attach(&[]);
    io(&disk, "read -P 0x5a 0 64k");
    bench.world.run(["detach", "disk"]).success();
    disk.wait().success();
}

/// As a cache of an earlier version has one, or one that was copied by a program that makes holes.
#[test]
fn a_hole_that_cannot_be_filled_any_more_keeps_nobody_from_what_is_dirty() {
    let Some(bench) = Bench::new() else { return };
    let mut disk = bench.attach(&[]);
    io(&disk, "write -P 0x5a 0 64k");
    disk.kill();
    let path = bench.world.path("disk/disk.cache");
    let path = path.to_str().expect("paths of tests are text");
    // In the frames, of which few are used.
    tool("fallocate", ["--punch-hole", "--offset", "4194304", "--length", "1048576", path]);
    bench.fill();
    // A check writes nothing, and asks for no space.
    bench.world.run(["cache", "check", "disk/disk.cache"]).success();
    let disk = bench.attach(&[]);
    io(&disk, "read -P 0x5a 0 64k");
    bench.world.run(["detach", "disk"]).success();
    let ended = disk.wait();
    assert!(ended.stderr.contains("opened without all of its space"), "{ended:?}");
    ended.success();
    bench.world.run(["cache", "discard", "disk/disk.cache"]).success();
}

#[test]
fn a_cache_that_is_larger_than_the_room_there_is_takes_none_of_it() {
    let Some(bench) = Bench::new() else { return };
    let url = bench.target.url(0);
    let refused = bench.world.run(["attach", &url, "--cache", "disk/disk.cache", "--cache-size", "128MiB"]);
    // Whoever asks the file system for it learns that only when all is taken.
    refused.failure(NO_SPACE, &["disk.cache", "134217728 bytes", "free: No space left"]);
    assert_eq!(fs::read_dir(bench.world.path("disk")).unwrap().count(), 1, "but for lost+found");
}

#[test]
fn a_new_cache_that_cannot_be_recorded_leaves_nothing() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let records = world.path("state/caches");
    fs::create_dir_all(&records).unwrap();
    fs::remove_dir(&records).expect("nothing is recorded yet");
    fs::set_permissions(world.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let _full = SmallFileSystem::new(&records, 1 << 20);
    fs::set_permissions(&records, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(fs::write(records.join("others"), vec![1; 2 << 20]).is_err(), "it has no room for that");
    let refused = world.run(["attach", &target.url(0), "--cache", "disk.cache", "--cache-size", "8MiB"]);
    refused.failure(NO_SPACE, &["No space left"]);
    assert!(!world.path("disk.cache").exists(), "the next start would take it for one that was used");
    let left: Vec<_> = fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // Who may change the records is not one of them.
    assert!(left.iter().all(|name| name == "others" || name == "lock"), "{left:?}");
}
