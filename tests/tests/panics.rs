//! A panic in any background work ends the process at once, and the next start has everything that was acknowledged.
//!
//! `FOREBAY_UNSAFE_PANIC_IN` plants it in one piece of work after the other, by the names that `base::background` is
//! given, while a client writes.

#[path = "../../crates/file/tests/loop_device/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod loop_device;
#[path = "../../crates/file/tests/planted/mod.rs"]
mod planted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use front::{ListenAddress, NbdClient};
use futures_util::future::{Either, select};
use initiator::{InitiatorOptions, TcpConnector};
use loop_device::{LoopDevice, may_make_devices};
use planted::{DEVICE_WORK, FILE_WORK};
use tests::{IQN, PATIENCE, Process, World};
use walkdir::WalkDir;

/// The work that the tests here plant a panic in, by what it belongs to.
const CACHE_WORK: [&str; 4] = ["nbd-connection", "cache", "timer", "file-ring"];
const LOG_WORK: [&str; 3] = ["log-requests", "destaging", "session"];
const TARGET_WORK: [&str; 2] = ["target-connection", "file-ring"];
const CACHE: [&str; 4] = ["--cache", "disk.cache", "--cache-size", "8MiB"];
const DIFFERENCE: [&str; 4] = ["--difference", "own", "--difference-size", "16MiB"];
/// With what an attachment needs to have it.
const ATTACHMENT_WORK: [(&str, &[&str]); 5] = [
    ("loss-record", &[]),
    ("cache-switch", &CACHE),
    ("difference", &DIFFERENCE),
    ("difference-file", &DIFFERENCE),
    ("link", &["--link-round-trip", "1ms"]),
];
const MARKS_WORK: &str = "marks";
const PATHS_WORK: &str = "paths";
const UNIT_WORK: [&str; 2] = ["unit", "unit-workers"];
const RETIRING_WORK: &str = "retiring";
const LARGE_SECTORS_WORK: &str = "small-blocks";
const SESSION_WORK: &str = "session";
const REPLAY_WORK: &str = "log-replay";
const CLIENT_WORK: &str = "nbd-driver";
const THREADS: [&str; 2] = ["fuse", "wake-up"];
/// What a process does beside what it serves.
const CONTROL_WORK: &str = "control";
const METRICS_WORK: &str = "metrics";
const RELOAD_WORK: &str = "reload";
const WATCH_WORK: &str = "watch";
const GATEWAY_WORK: &str = "gateway";
const DAEMON_WORK: [&str; 2] = ["keeping", "daemon-files"];
const SIGNALS_WORK: &str = "replay-signals";
const FUSE_WORK: &str = "fuse-requests";
/// Of a mount: what is due at its first turn, and what programs ask for.
const COMMITS_WORK: &str = "mount-commits";
const MOUNT_WORK: &str = "mount-requests";
/// With what a LUN needs to have it.
const STORE_WORK: [(&str, &str); 2] = [("marks-file", ""), ("sharing-file", ",shared")];
const RESERVATIONS_WORK: &str = "sidecar";

/// All of it, and what `crates/file` plants.
fn planted_work() -> BTreeSet<&'static str> {
    let lists = [&CACHE_WORK[..], &LOG_WORK, &TARGET_WORK, &UNIT_WORK, &THREADS, &FILE_WORK, &DAEMON_WORK];
    let single = [
        MARKS_WORK,
        PATHS_WORK,
        RETIRING_WORK,
        LARGE_SECTORS_WORK,
        SESSION_WORK,
        REPLAY_WORK,
        CLIENT_WORK,
        RESERVATIONS_WORK,
        DEVICE_WORK,
        CONTROL_WORK,
        METRICS_WORK,
        RELOAD_WORK,
        WATCH_WORK,
        GATEWAY_WORK,
        SIGNALS_WORK,
        FUSE_WORK,
        COMMITS_WORK,
        MOUNT_WORK,
    ];
    let with_more = ATTACHMENT_WORK.iter().map(|(name, _)| *name).chain(STORE_WORK.iter().map(|(name, _)| *name));
    lists.into_iter().flatten().copied().chain(single).chain(with_more).collect()
}

/// Work that no test here plants a panic in, and why.
const NOT_PLANTED: [(&str, &str); 1] = [("kernel-nbd", "it needs the kernel's NBD client")];

/// Where something is spawned without a name of its own, and why: by file, and what stands before the call.
const UNNAMED: [(&str, &str, &str); 11] = [
    ("base/src/executor.rs", "self", "whoever runs the executor has the name"),
    ("block/src/layer/small_blocks.rs", "self", "it is a function there, which is looked at"),
    ("front/src/server.rs", "self", "it is a function there, which is looked at"),
    ("cli/src/commands/demo.rs", ".stdout(Stdio::piped())", "it is a process"),
    ("daemon/src/processes.rs", "let child = command", "it is a process"),
    ("daemon/src/reading.rs", ".name(\"files\".to_owned())", "a thread, which says its name when it begins"),
    ("clock/src/wake_up.rs", ".name(\"wake-up\".into())", "a thread, which says its name at each turn"),
    ("front/src/fuse/session.rs", ".name(\"fuse\".to_owned())", "a thread, which says its name when it begins"),
    ("stack/src/freshness/steps.rs", "tokio::", "it is for tests"),
    ("stack/src/worker_thread.rs", ".name(name.to_owned())", "a thread, whose work has a name"),
    ("target/src/server.rs", ".name(format!(\"target-{index}\"))", "a thread, whose work is that of connections"),
];

/// The crate that no device or server is made of.
const EXPERIMENTS: &str = "lab";

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 1024;
/// Work that the writes depend on has a turn long before.
const WRITES_MAX: u64 = 3000;

async fn connect(path: &Path) -> SharedDevice {
    let (client, driver) = NbdClient::connect(&ListenAddress::Unix(path.to_owned())).await.expect("it said ready");
    tokio::spawn(driver);
    client
}

/// Writes blocks, durably, one after the other; creates `trigger` on its way, and ends when an answer fails, or when
/// `planted` has ended. What was acknowledged, and the write that was not, by blocks.
async fn write_until_it_ends(
    device: &SharedDevice,
    trigger: &Path,
    planted: &mut Process,
) -> (BTreeMap<u64, u8>, (u64, u8)) {
    let mut acknowledged = BTreeMap::new();
    for number in 0..WRITES_MAX {
        if number == 40 {
            std::fs::write(trigger, "").expect("the world is writable");
        }
        let (block, fill) = (number * 7 % BLOCKS, (number % 250) as u8 + 1);
        let write = device.write(block * BLOCK_BYTES, Buffer::copy_of(&[fill; BLOCK_BYTES as usize]), true);
        // A write over a session whose target has ended waits for it to come back.
        let ended = async {
            while !planted.has_ended() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (write, ended) = (pin!(write), pin!(ended));
        let answered = tokio::time::timeout(PATIENCE, select(write, ended));
        match answered.await.expect("a write is answered, or the process ends") {
            Either::Left((Ok(_), _)) => acknowledged.insert(block, fill),
            Either::Left((Err(_), _)) | Either::Right(_) => return (acknowledged, (block, fill)),
        };
    }
    panic!("the work had no turn in {WRITES_MAX} writes")
}

async fn check(device: &SharedDevice, acknowledged: &BTreeMap<u64, u8>, open: (u64, u8), name: &str) {
    assert!(acknowledged.len() >= 40, "{name}: it ended before the panic was planted");
    for (block, fill) in acknowledged {
        let found = device.read(block * BLOCK_BYTES, Buffer::zeroed(BLOCK_BYTES as usize)).await.expect("it is back");
        let is_there = found.iter().all(|byte| byte == fill) || (*block, found[0]) == open;
        assert!(is_there, "{name}: block {block} was acknowledged as {fill}, and holds {}", found[0]);
    }
}

fn assert_ended_by_panic(process: Process, name: &str) {
    let began = Instant::now();
    let finished = process.wait();
    println!("{name}: ended {:?} after the last answer", began.elapsed());
    assert_eq!(finished.code, None, "{name}: a signal ended it");
    assert!(finished.stderr.contains(&format!("planted in {name}")), "{name}: {}", finished.stderr);
    assert!(finished.stderr.contains("start it again"), "{name}: {}", finished.stderr);
}

/// Plants a panic in `name` of an attachment with these arguments.
async fn panic_in_attachment(name: &str, place: &[&str]) {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:8MiB"]);
    let (socket, trigger) = (world.path("disk.nbd"), world.path("trigger"));
    let front = format!("nbd:unix:{}", socket.display());
    let url = target.url(0);
    let arguments = [&["attach", &url, "--name", "disk", "--as", &front], place].concat();
    let mut planted = world.forebay();
    planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{name}:{}", trigger.display())).args(&arguments);
    let mut process = Process::start(&mut planted).unwrap_or_else(|finished| panic!("{name}: {finished:?}"));
    let (acknowledged, open) = write_until_it_ends(&connect(&socket).await, &trigger, &mut process).await;
    assert_ended_by_panic(process, name);
    let process = world.start(&arguments);
    check(&connect(&socket).await, &acknowledged, open, name).await;
    process.terminate().success();
}

#[tokio::test]
async fn a_panic_in_the_work_behind_a_cache_ends_the_attachment_and_loses_nothing() {
    for name in CACHE_WORK {
        panic_in_attachment(name, &CACHE).await;
    }
}

#[tokio::test]
async fn a_panic_in_the_work_behind_a_log_ends_the_attachment_and_loses_nothing() {
    for name in LOG_WORK {
        panic_in_attachment(name, &["--log", "disk.log", "--log-size", "8MiB"]).await;
    }
}

#[tokio::test]
async fn a_panic_in_the_work_of_a_target_ends_it_and_loses_nothing() {
    for name in TARGET_WORK {
        let world = World::new();
        let (socket, trigger) = (world.path("disk.nbd"), world.path("trigger"));
        let lun = format!("0=file:{},size=8MiB", world.path("disk.img").display());
        let mut planted = world.forebay();
        planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{name}:{}", trigger.display()));
        planted.args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", &lun]);
        let mut target = Process::start(&mut planted).unwrap_or_else(|finished| panic!("{name}: {finished:?}"));
        let front = format!("nbd:unix:{}", socket.display());
        let url = format!("iscsi://{}/{IQN}/0", target.ready);
        let attachment = world.start(["attach", &url, "--name", "disk", "--as", &front]);
        let (acknowledged, open) = write_until_it_ends(&connect(&socket).await, &trigger, &mut target).await;
        assert_ended_by_panic(target, name);
        drop(attachment);
        let again = world.target(["--lun", &lun]);
        let attachment = world.start(["attach", &again.url(0), "--name", "again", "--as", &front]);
        check(&connect(&socket).await, &acknowledged, open, name).await;
        attachment.terminate().success();
    }
}

/// Starts `forebay` with a panic planted in `name`, due at its first turn, and expects that to end it.
fn ends_when_it_begins(world: &World, name: &str, arguments: &[&str]) {
    let trigger = world.path("trigger");
    std::fs::write(&trigger, "").expect("the world is writable");
    let mut planted = world.forebay();
    planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{name}:{}", trigger.display())).args(arguments);
    // It may have said that it is ready before.
    let finished = Process::start(&mut planted).map_or_else(|finished| finished, Process::wait);
    assert_eq!(finished.code, None, "{name}: a signal ended it: {finished:?}");
    assert!(finished.stderr.contains(&format!("planted in {name}")), "{name}: {}", finished.stderr);
}

/// Work that waits for what seldom happens has its first turn when it begins.
#[test]
fn a_panic_in_work_that_seldom_has_a_turn_ends_the_process_when_it_begins() {
    for (name, more) in ATTACHMENT_WORK {
        let (world, served) = (World::new(), World::new());
        let served = served.target(["--lun", "0=ram:8MiB"]);
        ends_when_it_begins(&world, name, &[&["attach", &served.url(0), "--name", "disk"], more].concat());
    }
    let (world, served) = (World::new(), World::new());
    let served = served.target(["--lun", "0=file:0.img,size=8MiB"]);
    ends_when_it_begins(&world, MARKS_WORK, &[&["attach", &served.url(0), "--name", "disk"], &CACHE[..]].concat());
    let (world, served) = (World::new(), World::new());
    let served = served.target(["--lun", "0=ram:8MiB"]);
    let paths = format!("{url},{url}", url = served.url(0));
    ends_when_it_begins(&world, PATHS_WORK, &["attach", &paths, "--multipath", "round-robin", "--name", "disk"]);
    for name in UNIT_WORK {
        let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:8MiB"];
        ends_when_it_begins(&World::new(), name, &serve);
    }
}

#[test]
fn a_panic_in_the_work_of_a_lun_that_is_gone_ends_the_target() {
    let (world, trigger) = (World::new(), "trigger");
    let configure = |luns: &str| {
        let text = format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{IQN}\"\nluns = [{luns}]\n");
        std::fs::write(world.path("target.toml"), text).expect("the world is writable");
    };
    configure("\"0=ram:8MiB\", \"1=ram:8MiB\"");
    let mut planted = world.forebay();
    planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{RETIRING_WORK}:{}", world.path(trigger).display()));
    planted.args(["target", "serve", "--config", "target.toml"]);
    let target = Process::start(&mut planted).expect("nothing is planted yet");
    configure("\"0=ram:8MiB\"");
    world.run(["target", "reload"]).success();
    configure("");
    std::fs::write(world.path(trigger), "").expect("the world is writable");
    // Nobody may be there to answer any more.
    drop(world.run(["target", "reload"]));
    assert_ended_by_panic(target, RETIRING_WORK);
}

#[test]
fn a_panic_in_the_work_over_a_disk_of_large_sectors_ends_the_process_when_it_begins() {
    if !may_make_devices() {
        return;
    }
    let (world, served) = (World::new(), World::new());
    let served = served.target(["--lun", "0=ram:8MiB"]);
    let disk = LoopDevice::new(&world.path("backing"), 16 << 20, 4096);
    let disk = disk.path.display().to_string();
    let attach = ["attach", &served.url(0), "--name", "disk", "--cache", &disk];
    ends_when_it_begins(&world, LARGE_SECTORS_WORK, &attach);
}

/// Commands that work on a LUN or an attachment and end.
#[test]
fn a_panic_in_the_work_behind_a_command_ends_it() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:8MiB"]);
    let url = target.url(0);
    let log = ["attach", &url, "--name", "disk", "--log", "disk.log", "--log-size", "8MiB"];
    let load = ["--rw", "randread", "--seconds", "1"];
    ends_when_it_begins(&world, SESSION_WORK, &[&["bench", &url], &load[..]].concat());
    world.start(log).terminate().success();
    ends_when_it_begins(&world, REPLAY_WORK, &["log", "replay", "disk.log", &url]);
    let disk = world.start(log);
    ends_when_it_begins(&world, CLIENT_WORK, &[&["bench", "disk"], &load[..]].concat());
    disk.terminate().success();
}

/// All that is polled from the beginning.
#[test]
fn a_panic_in_what_a_process_does_beside_what_it_serves_ends_it() {
    let (world, served) = (World::new(), World::new());
    let served = served.target(["--lun", "0=ram:8MiB"]);
    let attach = ["attach", &served.url(0), "--name", "disk", "--as", "iscsi:0", "--metrics", "127.0.0.1:0"];
    for name in [CONTROL_WORK, METRICS_WORK, WATCH_WORK, GATEWAY_WORK] {
        ends_when_it_begins(&world, name, &attach);
    }
    let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:8MiB"];
    let serve = [&serve[..], &["--metrics", "127.0.0.1:0"]].concat();
    for name in [CONTROL_WORK, METRICS_WORK, RELOAD_WORK] {
        ends_when_it_begins(&World::new(), name, &serve);
    }
    for name in DAEMON_WORK {
        ends_when_it_begins(&World::new(), name, &["daemon"]);
    }
    let trace = "fio version 2 iolog\nd write 0 4096\n";
    std::fs::write(world.path("trace.log"), trace).expect("the world is writable");
    ends_when_it_begins(&world, SIGNALS_WORK, &["replay", "trace.log", &served.url(0)]);
}

/// Starts `forebay` with a panic planted in `name`, and has `work` done in the `directory` that it serves.
fn ends_when_it_is_asked(world: &World, name: &str, arguments: &[&str], directory: &Path, work: impl FnOnce()) {
    let trigger = world.path("trigger");
    let mut planted = world.forebay();
    planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{name}:{}", trigger.display())).args(arguments);
    let process = Process::start(&mut planted).unwrap_or_else(|finished| panic!("{name}: {finished:?}"));
    std::fs::write(&trigger, "").expect("the world is writable");
    work();
    assert_ended_by_panic(process, name);
    // As after every kill.
    let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH);
}

/// What cannot be answered on the spot goes on in the background.
#[test]
fn a_panic_in_a_request_of_a_file_or_a_mount_ends_the_process() {
    let (world, served) = (World::new(), World::new());
    let served = served.target(["--lun", "0=ram:8MiB", "--lun", "1=ram:16MiB"]);
    let place = world.path("file");
    let front = format!("fuse:{}", place.display());
    let attach = ["attach", &served.url(0), "--name", "disk", "--as", &front];
    ends_when_it_is_asked(&world, FUSE_WORK, &attach, &place, || {
        std::fs::read(&place).expect_err("its process has ended");
    });
    let (url, files) = (served.url(1), world.path("files"));
    world.run(["mkfs", &url]).success();
    std::fs::create_dir(&files).expect("the world is writable");
    let mount = ["mount", &url, &files.display().to_string()];
    std::fs::remove_file(world.path("trigger")).expect("it was made");
    ends_when_it_is_asked(&world, MOUNT_WORK, &mount, &files, || {
        let written = std::fs::File::create(files.join("a")).and_then(|file| file.sync_all());
        written.expect_err("its process has ended");
    });
    ends_when_it_begins(&world, COMMITS_WORK, &mount);
    let _ = rustix::mount::unmount(&files, rustix::mount::UnmountFlags::DETACH);
}

/// What serves a FUSE file, and what measures how long a wake-up takes.
#[test]
fn a_panic_in_a_thread_of_its_own_ends_the_process() {
    for name in THREADS {
        let (world, served) = (World::new(), World::new());
        let served = served.target(["--lun", "0=ram:8MiB"]);
        let place = world.path("file");
        let front = format!("fuse:{}", place.display());
        ends_when_it_begins(&world, name, &["attach", &served.url(0), "--name", "disk", "--as", &front]);
        // As after every kill: it is nobody's until the next attachment takes it.
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Marks are written by the target for a cache, what a start has to know of hosts that share a LUN at its start.
#[test]
fn a_panic_in_what_a_target_writes_beside_a_lun_ends_it() {
    for (name, more) in STORE_WORK {
        let world = World::new();
        let lun = format!("0=file:{},size=8MiB{more}", world.path("disk.img").display());
        std::fs::write(world.path("trigger"), "").expect("the world is writable");
        let mut planted = world.forebay();
        planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{name}:{}", world.path("trigger").display()));
        planted.args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", &lun]);
        let finished = match Process::start(&mut planted) {
            Err(finished) => finished,
            Ok(target) => {
                let url = format!("iscsi://{}/{IQN}/0", target.ready);
                let mut attach = world.forebay();
                let shared: &[&str] = if more.is_empty() { &[] } else { &["--shared"] };
                attach.args(["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"]);
                let mut attachment = attach.args(shared).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                let finished = target.wait();
                attachment.kill().and_then(|()| attachment.wait()).expect("it is ours");
                finished
            }
        };
        assert_eq!(finished.code, None, "{name}: a signal ended it: {finished:?}");
        assert!(finished.stderr.contains(&format!("planted in {name}")), "{name}: {}", finished.stderr);
    }
}

/// A reservation that is to last is written before it is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_what_keeps_reservations_ends_the_target() {
    let world = World::new();
    let trigger = world.path("trigger");
    let mut planted = world.forebay();
    planted.env("FOREBAY_UNSAFE_PANIC_IN", format!("{RESERVATIONS_WORK}:{}", trigger.display()));
    planted.args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=file:disk.img,size=8MiB"]);
    let target = Process::start(&mut planted).unwrap_or_else(|finished| panic!("{finished:?}"));
    let url = format!("iscsi://{}/{IQN}/0", target.ready);
    let options = InitiatorOptions::for_url(&url.parse().expect("it is a URL"));
    let (lun, driver) = initiator::connect(options, Arc::new(TcpConnector)).await.expect("it serves");
    let driver = tokio::spawn(driver);
    std::fs::write(&trigger, "").expect("the world is writable");
    let asking = tokio::spawn(async move { lun.register_and_ignore(1, true).await });
    assert_ended_by_panic(target, RESERVATIONS_WORK);
    asking.abort();
    driver.abort();
}

#[test]
fn every_work_that_has_a_name_has_a_panic_planted_in_it() {
    let planted = planted_work();
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates"));
    let mut names = BTreeSet::new();
    for entry in WalkDir::new(crates).into_iter().map(Result::unwrap) {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with("base/src/background.rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("it is there");
        for call in ["background::named(\"", "background::turn(\""] {
            names.extend(text.split(call).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    assert!(names.len() > 20, "{names:?}");
    let excepted: BTreeSet<&str> = NOT_PLANTED.iter().map(|(name, _)| *name).collect();
    assert!(planted.is_disjoint(&excepted), "what is planted is no exception");
    let known: BTreeSet<&str> = planted.union(&excepted).copied().collect();
    let there: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let left: Vec<_> = there.difference(&known).collect();
    assert!(left.is_empty(), "no panic is planted in {left:?}");
    let gone: Vec<_> = known.difference(&there).collect();
    assert!(gone.is_empty(), "there is no such work any more: {gone:?}");
}

/// Whether what is spawned by a call that ends at `before`, with `after` behind it, has a name.
fn is_named(before: &str, after: &str) -> bool {
    let called = before.strip_suffix("spawn(").expect("it is a call of that");
    // Whoever runs a line of workers has the name of all that they do.
    let is_of_workers = ["workers.", "workers().", "workers.clone()."].iter().any(|end| called.ends_with(end));
    let is_no_call =
        called.ends_with("fn ") || called.lines().last().is_some_and(|line| line.trim_start().starts_with("//"));
    let argument = after.trim_start().trim_start_matches("base::").trim_start_matches("background::");
    is_of_workers || is_no_call || argument.starts_with("named(")
}

#[test]
fn all_background_work_has_a_name() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates"));
    let (mut unnamed, mut count) = (BTreeSet::new(), 0);
    let mut left: BTreeSet<_> = UNNAMED.iter().map(|(file, before, _)| (*file, *before)).collect();
    for entry in WalkDir::new(crates).into_iter().map(Result::unwrap) {
        let path = entry.path().strip_prefix(crates).expect("it is below").to_str().expect("paths are text");
        let mut parts = path.split('/');
        let is_program = parts.next() != Some(EXPERIMENTS) && parts.next() == Some("src");
        // What is for tests, in files of its own: the layer of crashes, too.
        if !is_program || !path.ends_with(".rs") || path.contains("test") || path.contains("layer/crash/") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("it is there");
        let of_tests = |text: &str| ["mod tests", "pub(crate) mod tests"].iter().any(|module| text.starts_with(module));
        let parts = text.split_inclusive("#[cfg(test)]\n");
        let text: String = parts.take_while(|part| !of_tests(part)).collect();
        for (at, call) in text.match_indices("spawn(") {
            let (before, after) = text.split_at(at + call.len());
            count += 1;
            let called = before.trim_end_matches("spawn(").trim_end_matches('.').trim_end();
            if let Some((file, end, _)) = UNNAMED.iter().find(|(file, end, _)| path == *file && called.ends_with(*end))
            {
                left.remove(&(*file, *end));
            } else if !is_named(before, after) {
                unnamed.insert(format!("{path}:{}", before.lines().count()));
            }
        }
    }
    assert!(count > 40, "{count} calls were found");
    assert!(unnamed.is_empty(), "a panic cannot be planted in what is spawned at {unnamed:?}");
    assert!(left.is_empty(), "there is no such exception any more: {left:?}");
}
