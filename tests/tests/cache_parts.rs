//! Several caches in one file or block device, each at an offset of its own: they work at once, survive `kill -9`, and
//! no byte outside them changes.

#[path = "../../crates/file/tests/loop_device/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod loop_device;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use loop_device::{LoopDevice, may_make_devices};
use tests::{Process, Target, World, tool};

const IN_USE: i32 = 6;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const NO_SPACE: i32 = 8;
const WOULD_LOSE_DATA: i32 = 9;

const DISK_BYTES: u64 = 96 << 20;
/// Where the caches are: offset and size of each, in MiB.
const PARTS: [(u64, u64); 2] = [(8, 24), (40, 24)];
const NAMES: [&str; 2] = ["first", "second"];

struct Bench {
    world: World,
    target: Target,
    /// The disk that holds both caches.
    disk: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let world = World::new();
        let target = world.target(["--lun", "0=file:0.img,size=64MiB", "--lun", "1=file:1.img,size=64MiB"]);
        let disk = world.path("disk");
        // What is nobody's is not zero, so that a zero there shows, too.
        let file = fs::File::create(&disk).unwrap();
        file.write_all_at(&vec![0xa5; DISK_BYTES as usize], 0).unwrap();
        for (offset, size) in PARTS {
            file.write_all_at(&vec![0; (size << 20) as usize], offset << 20).unwrap();
        }
        file.sync_all().unwrap();
        Self { world, target, disk }
    }

    /// The arguments that attach the LUN of this number.
    fn arguments(&self, lun: usize, disk: &Path, more: &[&str]) -> Vec<String> {
        let front = format!("nbd:unix:{}", self.world.path(&format!("{lun}.nbd")).display());
        let (url, disk) = (self.target.url(lun as u64), disk.display().to_string());
        let fixed = ["attach", &url, "--name", NAMES[lun], "--as", &front, "--cache", &disk];
        fixed.iter().chain(more).map(|&word| word.to_owned()).collect()
    }

    fn attach(&self, lun: usize, disk: &Path, is_new: bool) -> Process {
        let (offset, size) = PARTS[lun];
        let (offset, size) = (format!("{offset}MiB"), format!("{size}MiB"));
        let size: &[&str] = if is_new { &["--cache-size", &size] } else { &[] };
        self.world.start(self.arguments(lun, disk, &[&["--cache-offset", &offset], size].concat()))
    }

    fn detach(&self, lun: usize, process: Process) {
        self.world.run(["detach", NAMES[lun]]).success();
        process.wait().success();
    }

    /// The bytes outside both caches are as they were.
    fn check_the_rest(&self) {
        let bytes = fs::read(&self.disk).unwrap();
        let is_ours = |at: u64| PARTS.iter().any(|(offset, size)| (offset << 20..(offset + size) << 20).contains(&at));
        let changed = (0..DISK_BYTES).find(|&at| !is_ours(at) && bytes[at as usize] != 0xa5);
        assert_eq!(changed, None, "a byte that is no cache's");
    }
}

fn io(uri: &str, commands: &[&str]) {
    tool("qemu-io", ["-f", "raw"].into_iter().chain(commands.iter().flat_map(|command| ["-c", command])).chain([uri]));
}

/// Both are used at once, killed in the middle of writing, and found again.
fn two_caches_share(bench: &Bench, disk: &Path) {
    let mut running = [0, 1].map(|lun| bench.attach(lun, disk, true));
    for (lun, process) in running.iter().enumerate() {
        let status = bench.world.status(NAMES[lun]);
        assert_eq!(
            (&status["cache_offset"], &status["cache_bytes"]),
            (&(PARTS[lun].0 << 20).into(), &(24 << 20).into())
        );
        io(&process.ready, &["write -P 1 0 64k", "read 0 1M", "flush"]);
    }
    for round in 0..3 {
        // As much as both hold dirty, side by side.
        std::thread::scope(|scope| {
            for (lun, process) in running.iter().enumerate() {
                let write = format!("write -P {} 0 8M", 10 * (round + 1) + lun);
                let uri = process.ready.clone();
                scope.spawn(move || io(&uri, &[&write, "flush"]));
            }
        });
        let clients = running.each_ref().map(|process| {
            // More, behind what is looked at later.
            let more =
                ["bench", "-w", "-s", "4096", "-c", "65536", "-d", "16", "-o", "16M", "-f", "raw", &process.ready];
            Command::new("qemu-img").args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        });
        std::thread::sleep(Duration::from_millis(300));
        running.iter_mut().for_each(Process::kill);
        for mut client in clients {
            client.kill().and_then(|()| client.wait()).unwrap();
        }
        running.into_iter().for_each(|process| drop(process.wait()));
        bench.check_the_rest();
        running = [0, 1].map(|lun| bench.attach(lun, disk, false));
        for (lun, process) in running.iter().enumerate() {
            assert!(bench.world.status(NAMES[lun])["cache"]["dirty_bytes"].as_u64() > Some(0));
            io(&process.ready, &[&format!("read -P {} 0 8M", 10 * (round + 1) + lun)]);
        }
    }
    for (lun, process) in running.into_iter().enumerate() {
        bench.detach(lun, process);
        let image = fs::read(bench.world.path(&format!("{lun}.img"))).unwrap();
        assert!(image[..8 << 20].iter().all(|&byte| byte as usize == 30 + lun), "all of it is on the LUN");
    }
    bench.check_the_rest();
}

#[test]
fn two_caches_in_one_block_device_work_at_once_and_never_touch_each_other() {
    if !may_make_devices() {
        return;
    }
    let bench = Bench::new();
    let disk = LoopDevice::over(&bench.disk, &[]);
    two_caches_share(&bench, &disk.path);
    bench.target.process.terminate().success();
}

/// The size would be ignored, and the rest of the device taken with it.
#[test]
fn a_blank_device_is_not_taken_as_a_whole_with_another_size() {
    if !may_make_devices() {
        return;
    }
    let bench = Bench::new();
    let (blank, url) = (bench.world.path("blank"), bench.target.url(0));
    fs::File::create(&blank).unwrap().set_len(32 << 20).unwrap();
    let disk = LoopDevice::over(&blank, &[]);
    let path = disk.path.to_str().unwrap();
    for store in ["cache", "log"] {
        let (option, size) = (format!("--{store}"), format!("--{store}-size"));
        let words = ["takes all of the device", "32MiB", &format!("--set {store}.offset=0")];
        bench.world.run(["attach", &url, "--name", "first", &option, path, &size, "16MiB"]).failure(USAGE, &words);
    }
    assert!(fs::read(&blank).unwrap().iter().all(|&byte| byte == 0));
    let part = ["--cache", path, "--cache-size", "16MiB", "--set", "cache.offset=0"];
    bench.world.start([&["attach", &url, "--name", "first"][..], &part].concat()).terminate().success();
    bench.target.process.terminate().success();
}

#[test]
fn two_caches_in_one_file_work_at_once_and_never_touch_each_other() {
    let bench = Bench::new();
    two_caches_share(&bench, &bench.disk);
    bench.target.process.terminate().success();
}

/// Whether the other is used or not, by whatever name, and also by a cache that would take everything.
#[test]
fn an_overlap_is_refused_and_says_whose_it_is() {
    let bench = Bench::new();
    let first = bench.attach(0, &bench.disk, true);
    io(&first.ready, &["write -P 7 0 1M", "flush"]);
    let same = bench.world.path("same");
    fs::hard_link(&bench.disk, &same).unwrap();
    let refused = |words: &[&str]| {
        for disk in [&bench.disk, &same] {
            for place in [
                &["--cache-offset", "16MiB", "--cache-size", "8MiB"][..],
                &["--cache-offset", "4MiB", "--cache-size", "24MiB"],
                &[],
            ] {
                bench.world.run(bench.arguments(1, disk, place)).failure(IN_USE, words);
            }
        }
        bench.check_the_rest();
    };
    let words = ["overlaps the cache", "disk at 8MiB", "\"first\"", "takes 24MiB", "--cache-offset 8MiB"];
    refused(&words);
    // The same place, by another who has never heard of the cache.
    let state = bench.world.path("elsewhere");
    let elsewhere = tests::finish(bench.world.forebay().env("FOREBAY_STATE_DIR", state).args(bench.arguments(
        1,
        &bench.disk,
        &["--cache-offset", "12MiB", "--cache-size", "8MiB"],
    )));
    elsewhere.failure(IN_USE, &["in use by another process", "bytes 12582912..20971520"]);
    bench.world.run(["detach", "first", "--keep-dirty"]).success();
    first.wait().success();
    refused(&words);
    // The LUN is not to be had without it, and each command finds it.
    let url = bench.target.url(0);
    bench
        .world
        .run(["attach", &url, "--name", "first"])
        .failure(WOULD_LOSE_DATA, &["disk at 8MiB", "--cache-offset 8MiB", "`forebay cache discard"]);
    let disk = bench.disk.to_str().unwrap();
    let list = bench.world.run(["cache", "list", "--json"]).json();
    let found = &list["caches"][0];
    assert_eq!((&found["offset"], &found["bytes"]), (&(8 << 20).into(), &(24 << 20).into()), "{list}");
    assert_eq!(found["state"], "dirty");
    let at = ["--cache-offset", "8MiB"];
    let inspection = bench.world.run(["cache", "inspect", disk, "--json"].iter().chain(&at)).json();
    assert_eq!(inspection["dirty_bytes"], 1 << 20);
    bench.world.run(["cache", "check", disk].iter().chain(&at)).success();
    bench.world.run(["cache", "inspect", disk]).failure(IN_USE, &["disk at 8MiB"]);
    bench.world.run(["cache", "discard", disk, "--allow-data-loss"]).failure(IN_USE, &["disk at 8MiB"]);
    // Given up, its place is free, and the file is where it was.
    bench.world.run(["cache", "discard", disk].iter().chain(&at)).failure(WOULD_LOSE_DATA, &["1MiB"]);
    bench.world.run(["cache", "discard", disk, "--allow-data-loss"].iter().chain(&at)).success();
    assert_eq!(bench.world.run(["cache", "list", "--json"]).json()["caches"].as_array().map(Vec::len), Some(0));
    bench.check_the_rest();
    let process =
        bench.world.start(bench.arguments(1, &bench.disk, &["--cache-offset", "16MiB", "--cache-size", "8MiB"]));
    bench.world.run(["detach", "second"]).success();
    process.wait().success();
    bench.target.process.terminate().success();
}

/// The list of caches knows nothing of a log, or of what another user has: what is there says it itself.
#[test]
fn what_takes_all_of_a_file_is_not_overwritten_in_its_middle() {
    let bench = Bench::new();
    let file = bench.world.path("all.log");
    let log =
        ["attach", &bench.target.url(0), "--name", "first", "--log", file.to_str().unwrap(), "--log-size", "32MiB"];
    let process = bench.world.start(log);
    bench.world.run(["detach", "first"]).success();
    process.wait().success();
    let bytes = fs::read(&file).unwrap();
    assert!(bytes[16 << 20..24 << 20].iter().all(|&byte| byte == 0), "it could be taken for room");
    let place = ["--cache-offset", "16MiB", "--cache-size", "8MiB"];
    let words = ["all.log at 16MiB", "the first 32MiB"];
    bench.world.run(bench.arguments(1, &file, &place)).failure(IN_USE, &words);
    assert!(fs::read(&file).unwrap() == bytes);
    bench.target.process.terminate().success();
}

/// The other one would be made in a file beside the one that all of them are in, and take its place.
#[test]
fn a_cache_in_a_part_of_a_disk_is_not_made_anew_while_it_is_used() {
    let bench = Bench::new();
    let process = bench.attach(0, &bench.disk, true);
    io(&process.ready, &["write -P 1 0 1M"]);
    for setting in ["cache.size=16MiB", "cache.block-size=64KiB", "cache.associativity=full", "cache.lines=1000"] {
        let words = ["disk at 8MiB is not in a file of its own", "detach, discard it"];
        bench.world.run(["set", NAMES[0], setting]).failure(USAGE, &words);
    }
    bench.check_the_rest();
    io(&process.ready, &["read -P 1 0 1M"]);
    bench.detach(0, process);
    let process = bench.attach(0, &bench.disk, false);
    io(&process.ready, &["read -P 1 0 1M"]);
    bench.detach(0, process);
    bench.target.process.terminate().success();
}

#[test]
fn an_offset_that_cannot_be_is_refused_in_words() {
    let bench = Bench::new();
    let refused = |disk: &Path, place: &[&str], code: i32, words: &[&str]| {
        bench.world.run(bench.arguments(0, disk, place)).failure(code, words);
        bench.check_the_rest();
    };
    let directory = bench.world.path("directory");
    fs::create_dir(&directory).unwrap();
    refused(&bench.disk, &["--cache-offset", "8MiB"], NOT_FOUND, &["disk at 8MiB", "--cache-size"]);
    refused(&bench.disk, &["--cache-offset", "1000", "--cache-size", "8MiB"], USAGE, &["1000", "multiple of 4 KiB"]);
    refused(&bench.disk, &["--cache-offset", "8MiB", "--cache-size", "5000"], USAGE, &["5000", "4 KiB"]);
    refused(
        &bench.disk,
        &["--cache-offset", "200MiB", "--cache-size", "8MiB"],
        USAGE,
        &["disk at 200MiB", "ends before"],
    );
    refused(&directory, &["--cache-offset", "8MiB", "--cache-size", "8MiB"], USAGE, &["is a directory"]);
    let missing = bench.world.path("missing");
    refused(&missing, &["--cache-offset", "8MiB", "--cache-size", "8MiB"], NOT_FOUND, &["missing", "is there"]);
    // Its end is past that of the disk; and where something is already.
    refused(
        &bench.disk,
        &["--cache-offset", "40MiB", "--cache-size", "64MiB"],
        NO_SPACE,
        &["disk has 100663296 bytes"],
    );
    refused(&bench.disk, &["--cache-offset", "4MiB", "--cache-size", "8MiB"], 7, &["not a forebay cache"]);
    let process = bench.attach(0, &bench.disk, true);
    bench.world.run(["set", "first", "cache.size=8MiB"]).failure(USAGE, &["not in a file of its own"]);
    bench.world.run(["detach", "first", "--remove-cache"]).failure(USAGE, &["`forebay cache discard`"]);
    bench.detach(0, process);
    bench.target.process.terminate().success();
}

/// Whether its disk ends in its middle or before it, or has gone and left a device of no bytes.
#[test]
fn a_cache_whose_disk_became_smaller_can_be_given_up() {
    for left_bytes in [16 << 20, 4 << 20, 0] {
        let bench = Bench::new();
        let mut process = bench.attach(0, &bench.disk, true);
        io(&process.ready, &["write -P 1 0 64k", "flush"]);
        process.kill();
        fs::File::options().write(true).open(&bench.disk).unwrap().set_len(left_bytes).unwrap();
        let before = fs::read(&bench.disk).unwrap();
        let discard = ["cache", "discard", "disk", "--cache-offset", "8MiB"];
        bench.world.run(discard).failure(WOULD_LOSE_DATA, &["disk at 8MiB ends within", "--allow-data-loss"]);
        bench.world.run(["attach", &bench.target.url(0)]).failure(WOULD_LOSE_DATA, &["disk at 8MiB"]);
        let said = bench.world.run(discard.iter().chain(&["--allow-data-loss"])).success();
        assert!(said.contains("struck from the registry"), "{said}");
        assert!(fs::read(&bench.disk).unwrap() == before, "somebody else may have the rest");
        bench.world.start(["attach", &bench.target.url(0)]).terminate().success();
    }
}

/// One disk for all that a host keeps near: neither touches what is the other's, or nobody's, and each is found again
/// by its place.
#[test]
fn a_cache_and_a_write_log_in_one_file_survive_kill_minus_nine() {
    let bench = Bench::new();
    let (url, disk) = (bench.target.url(0), bench.disk.display().to_string());
    let idle = ["--destage-idle", "100000s", "--destage-age", "100000s"];
    let cache = ["attach", &url, "--name", "first", "--cache", &disk, "--cache-offset", "8MiB"];
    let log = ["--log", &disk, "--log-offset"];
    let world = &bench.world;
    let sizes = ["--cache-size", "24MiB", "--log-size", "24MiB"];
    // In the way of each other they are not made.
    for (at, word) in [("16MiB", "over each other"), ("4MiB", "over each other"), ("5KiB", "multiple of 4 KiB")] {
        world.run([&cache[..], &log, &[at], &sizes, &idle].concat()).failure(USAGE, &[word]);
    }
    world.run([&cache[..], &["--log", &disk], &sizes].concat()).failure(USAGE, &["cannot both be in"]);
    let mut both = world.start([&cache[..], &log, &["40MiB"], &sizes, &idle].concat());
    let status = world.status("first");
    assert_eq!((&status["cache_offset"], &status["log_offset"]), (&(8 << 20).into(), &(40 << 20).into()), "{status}");
    for round in 1..=3 {
        io(&both.ready, &[&format!("write -P {round} 0 4M"), "flush", "read 8M 1M"]);
        both.kill();
        drop(both.wait());
        bench.check_the_rest();
        both = world.start([&cache[..], &log, &["40MiB"], &idle].concat());
        io(&both.ready, &[&format!("read -P {round} 0 4M")]);
    }
    world.run(["detach", "first", "--keep-dirty"]).success();
    both.wait().success();
    let list = world.run(["log", "list", "--json"]).json();
    let found = &list["logs"][0];
    assert_eq!((&found["offset"], &found["bytes"]), (&(40 << 20).into(), &(24 << 20).into()), "{list}");
    let at = ["--log-offset", "40MiB"];
    let inspection = world.run(["log", "inspect", &disk, "--json"].iter().chain(&at)).json();
    assert!(inspection["dirty_bytes"].as_u64() > Some(0), "{inspection}");
    world.run(["log", "check", &disk].iter().chain(&at)).success();
    world.run(["log", "inspect", &disk]).failure(IN_USE, &["disk at"]);
    world.run(["attach", &url, "--name", "first"]).failure(WOULD_LOSE_DATA, &["--cache-offset 8MiB"]);
    world.run(cache).failure(WOULD_LOSE_DATA, &["--log-offset 40MiB"]);
    world.run(["log", "replay", &disk, &url].iter().chain(&at)).failure(WOULD_LOSE_DATA, &["--cache-offset 8MiB"]);
    let both = world.start([&cache[..], &log, &["40MiB"], &idle].concat());
    bench.detach(0, both);
    let image = fs::read(world.path("0.img")).unwrap();
    assert!(image[..4 << 20].iter().all(|&byte| byte == 3), "all of it is on the LUN");
    world.run(["log", "discard", &disk].iter().chain(&at)).success();
    bench.check_the_rest();
}
