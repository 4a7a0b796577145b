//! Several hosts on one LUN, each with a cache: no read is old, and nothing that was acknowledged is lost, whatever
//! happens to the others and to the target.
//!
//! Four attachments, each a process, write and read the same few blocks over NBD, and `qemu-io` beside them by iSCSI
//! without knowing of any of it. One is killed, one is frozen for longer than its lease and thawed, and the target is
//! killed and started again. Each write has a content of its own; afterwards the history of each block has to be that
//! of one register: see `tests::register`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use front::{ListenAddress, NbdClient};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::register::{BLOCK_BYTES, History, Place, check_all, value_of};
use tests::tgt::Tgt;
use tests::{IQN, Process, World, tool};

const BLOCKS: u64 = 24;
/// Requests of one attachment at a time.
const DEPTH: u64 = 3;
const LEASE: Duration = Duration::from_secs(10);

fn place_of(block: u64) -> Place {
    Place { block, offset: block * BLOCK_BYTES }
}

/// Reads and writes at random until it is over, or the device is gone.
async fn work(device: SharedDevice, host: u64, seed: u64, history: History) {
    let mut random = Random::new(seed);
    let mut failures = 0;
    while !history.is_over() && failures < 50 {
        let (place, is_write) = (place_of(random.below(BLOCKS)), random.chance(0.3));
        let is_done = match is_write {
            true => history.write(&device, host, place).await,
            false => history.read(&device, host, place).await,
        };
        failures = if is_done { 0 } else { failures + 1 };
        if failures > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A stock initiator, one command a session.
fn work_as_qemu(url: &str, pattern: &Path, seed: u64, history: &History) {
    let mut random = Random::new(seed);
    while !history.is_over() {
        let (place, is_write) = (place_of(random.below(BLOCKS)), random.chance(0.5));
        history.ask_qemu(url, pattern, is_write, place);
    }
}

struct Host {
    process: Process,
    device: SharedDevice,
}

impl Host {
    async fn attach(world: &World, url: &str, number: u64) -> Self {
        Self::attach_with(world, url, number, &[]).await
    }

    /// With more options.
    async fn attach_with(world: &World, url: &str, number: u64, more: &[&str]) -> Self {
        let name = format!("host{number}");
        let (socket, cache) = (world.path(&format!("{name}.nbd")), world.path(&format!("{name}.cache")));
        let front = format!("nbd:unix:{}", socket.display());
        let cache = cache.display().to_string();
        let what =
            ["attach", url, "--shared", "--name", &name, "--as", &front, "--cache", &cache, "--cache-size", "8MiB"];
        let process = world.start([&what[..], more].concat());
        let (device, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
        tokio::spawn(driver);
        Self { process, device }
    }

    fn load(&self, number: u64, history: &History) -> Vec<tokio::task::JoinHandle<()>> {
        let start = |each| tokio::spawn(work(Arc::clone(&self.device), number, number * 100 + each, history.clone()));
        (0..DEPTH).map(start).collect()
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("it runs");
        kill_process(id, signal).expect("it is our child");
    }
}

/// What is on the LUN now, as one host sees it.
async fn snapshot(device: &SharedDevice) -> BTreeSet<u64> {
    let bytes = device.read(0, Buffer::zeroed((BLOCKS * BLOCK_BYTES) as usize)).await.expect("it is there");
    bytes.chunks_exact(BLOCK_BYTES as usize).map(value_of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_with_caches_that_share_a_lun_read_nothing_old_and_lose_nothing() {
    let world = World::new();
    let lun = "0=file:disk.img,size=1MiB,shared";
    let serve = |portal: &str| world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", lun]);
    let mut target = serve("127.0.0.1:0");
    let portal = target.ready.clone();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let (history, start) = (History::default(), Instant::now());
    let mut hosts = Vec::new();
    for number in 1..=4 {
        hosts.push(Host::attach(&world, &url, number).await);
    }
    let mut loads: Vec<_> = hosts.iter().zip(1..).flat_map(|(host, number)| host.load(number, &history)).collect();
    let qemu = {
        let (url, pattern, history) = (url.clone(), world.path("pattern"), history.clone());
        std::thread::spawn(move || work_as_qemu(&url, &pattern, 77, &history))
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    hosts[2].process.kill();
    tokio::time::sleep(Duration::from_secs(1)).await;
    hosts[3].signal(Signal::STOP);
    tokio::time::sleep(LEASE + Duration::from_secs(4)).await;
    // All that the frozen host's writes can ever do is done: others went on.
    let left_by_frozen = snapshot(&hosts[0].device).await;
    let thawed = Instant::now();
    hosts[3].signal(Signal::CONT);
    tokio::time::sleep(Duration::from_secs(2)).await;
    target.kill();
    let restarted = Instant::now();
    let mut target = serve(&portal);
    tokio::time::sleep(LEASE + Duration::from_secs(4)).await;
    history.until_all_wrote(&[1, 2], restarted);
    history.end();
    for load in loads.drain(..) {
        load.await.expect("a load ends in order");
    }
    qemu.join().expect("qemu-io ends in order");

    let all = history.all();
    check_all(&all, start);
    let read_later = all.iter().filter(|operation| !operation.is_write && operation.began > thawed);
    let late: Vec<_> = read_later
        .filter(|operation| operation.value >> 32 == 4 && !left_by_frozen.contains(&operation.value))
        .collect();
    assert!(late.is_empty(), "the frozen host wrote when it woke: {late:?}");
    let hits = hits_of(&world.status("host1"));
    println!("{} operations; hits of host 1: {hits}", all.len());
    assert!(hits > 0, "no cache was used");
    let listed = world.run(["locks", &url, "--json"]).json();
    let lives = listed.as_array().expect("a list").iter().filter(|record| record["kind"] == "client").count();
    assert_eq!(lives, 2, "{listed}");
    target.kill();
}

/// Callbacks, answers and data each on whatever connection of the session they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_of_several_and_of_split_connections_read_nothing_old() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:1MiB,shared"]);
    let url = target.url(0);
    let several: [(&[&str], (u64, u64)); 3] =
        [(&[], (1, 0)), (&["--connections", "4"], (4, 0)), (&["--connections", "2", "--split-connections"], (4, 4))];
    let (history, start) = (History::default(), Instant::now());
    let (mut hosts, mut loads) = (Vec::new(), Vec::new());
    for ((more, _), number) in several.iter().zip(1..) {
        let host = Host::attach_with(&world, &url, number, more).await;
        loads.extend(host.load(number, &history));
        hosts.push(host);
    }
    let qemu = {
        let (url, pattern, history) = (url.clone(), world.path("pattern"), history.clone());
        std::thread::spawn(move || work_as_qemu(&url, &pattern, 78, &history))
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    history.until_all_wrote(&[1, 2, 3], start);
    for number in 1..=several.len() {
        let is_shared = |status: &Value| counted_purges(&status["remote"]) > 0 && hits_of(status) > 0;
        world.wait_for_status(&format!("host{number}"), "a cache that is used and asked for copies", is_shared);
    }
    history.end();
    for load in loads {
        load.await.expect("a load ends in order");
    }
    qemu.join().expect("qemu-io ends in order");
    let all = history.all();
    check_all(&all, start);
    for ((_, connections), number) in several.iter().zip(1..) {
        let status = world.status(&format!("host{number}"));
        let remote = &status["remote"];
        let counted = |name: &str| remote[name].as_u64().expect("it is counted");
        assert_eq!((counted("connections"), counted("split_connections")), *connections, "{status}");
    }
}

fn hits_of(status: &Value) -> u64 {
    status["cache"]["reads"]["hits"].as_u64().expect("it is counted")
}

fn counted_purges(remote: &Value) -> u64 {
    remote["sharing"]["purges"].as_u64().expect("it is counted")
}

const MIB: u64 = 1 << 20;

fn io(place: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    tool("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([place]));
}

/// A target of one LUN of 64 MiB in a file, which hosts share.
fn serve(world: &World, portal: &str) -> Process {
    let lun = "0=file:disk.img,size=64MiB,shared";
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", lun])
}

/// A host with a cache whose clean lines would count after a crash, were the LUN its own.
fn attach(world: &World, url: &str, name: &str) -> Process {
    let cache = format!("{name}.cache");
    let what = ["attach", url, "--shared", "--name", name, "--cache", &cache, "--cache-size", "16MiB"];
    world.start(what.into_iter().chain(["--cache-crash", "warm"]))
}

fn detach(world: &World, name: &str, process: Process) {
    world.run(["detach", name]).success();
    let ended = process.wait();
    let said = ended.stderr.clone();
    ended.success();
    assert!(!said.contains("the next attach"), "its end was none in order: {said}");
}

/// What its attach found out about its cache.
fn freshness(world: &World, name: &str) -> Value {
    world.status(name)["freshness"]["cache"].clone()
}

/// Bytes that came from the target while this was done: what was not in the cache, and a little for leases.
fn received(world: &World, name: &str, act: impl FnOnce()) -> u64 {
    let bytes = || world.status(name)["remote"]["bytes_received"].as_u64().expect("a number");
    let before = bytes();
    act();
    bytes() - before
}

fn misses(world: &World, name: &str) -> u64 {
    let reads = world.status(name)["cache"]["reads"].clone();
    ["misses", "partial_hits"].map(|what| reads[what].as_u64().expect("a number")).into_iter().sum()
}

/// More than leases and questions take, less than any change.
const LITTLE: u64 = MIB / 2;

#[test]
fn a_cache_of_a_shared_lun_that_comes_back_is_warm_but_for_what_others_wrote() {
    let world = World::new();
    let target = serve(&world, "127.0.0.1:0");
    let url = format!("iscsi://{}/{IQN}/0", target.ready);
    let one = attach(&world, &url, "one");
    assert_eq!(freshness(&world, "one")["state"], "cold");
    io(&one.ready, &["write -P 1 0 6M", "read -P 1 0 6M"]);
    detach(&world, "one", one);

    let one = attach(&world, &url, "one");
    assert_eq!(freshness(&world, "one")["state"], "kept", "{}", freshness(&world, "one"));
    let bytes = received(&world, "one", || io(&one.ready, &["read -P 1 0 6M"]));
    assert!(bytes < LITTLE && misses(&world, "one") == 0, "{bytes} came from the LUN");
    // What it has from before is asked back as what it read now is.
    let two = attach(&world, &url, "two");
    io(&two.ready, &["write -P 2 64k 4k"]);
    io(&one.ready, &["read -P 2 64k 4k", "read -P 1 68k 4k"]);
    detach(&world, "one", one);

    io(&two.ready, &["write -P 3 1M 64k"]);
    io(&url, &["write -P 4 3M 4k", "write -z 5M 64k"]);
    let one = attach(&world, &url, "one");
    let found = freshness(&world, "one");
    assert_eq!((&found["state"], &found["changed_by_others_bytes"]), (&"partly".into(), &(3 * MIB).into()), "{found}");
    let checks =
        ["read -P 1 0 64k", "read -P 2 64k 4k", "read -P 1 68k 956k", "read -P 3 1M 64k", "read -P 1 1088k 960k"];
    let more = ["read -P 1 2M 1M", "read -P 4 3M 4k", "read -P 1 3076k 1020k", "read -P 1 4M 1M", "read -P 0 5M 64k"];
    let bytes = received(&world, "one", || io(&one.ready, &[&checks[..], &more, &["read -P 1 5184k 960k"]].concat()));
    assert!((3 * MIB..3 * MIB + LITTLE).contains(&bytes), "{bytes} came from the LUN");
    // Nobody has forgotten the others.
    io(&url, &["write -P 5 2M 4k"]);
    io(&one.ready, &["read -P 5 2M 4k"]);
    io(&two.ready, &["read -P 5 2M 4k"]);
    detach(&world, "two", two);
    detach(&world, "one", one);
    let two = attach(&world, &url, "two");
    assert_eq!(freshness(&world, "two")["state"], "kept", "{}", freshness(&world, "two"));
    io(&two.ready, &["read -P 5 2M 4k"]);
    detach(&world, "two", two);
}

/// What it was asked to drop, it dropped in its memory.
#[test]
fn a_host_that_was_killed_reads_nothing_old_when_it_comes_back() {
    let world = World::new();
    let target = serve(&world, "127.0.0.1:0");
    let url = format!("iscsi://{}/{IQN}/0", target.ready);
    let one = attach(&world, &url, "one");
    io(&one.ready, &["write -P 1 0 4M", "read -P 1 0 4M"]);
    detach(&world, "one", one);
    let mut one = attach(&world, &url, "one");
    io(&one.ready, &["read -P 1 0 4M"]);
    // Before it is killed it is asked, and after that its lease is waited for.
    io(&url, &["write -P 2 1M 4k"]);
    one.kill();
    io(&url, &["write -P 3 2M 4k"]);
    let one = attach(&world, &url, "one");
    let found = freshness(&world, "one");
    assert!(
        found["state"] == "cold" && found["why"].as_str().is_some_and(|why| why.contains("orderly end")),
        "{found}"
    );
    io(&one.ready, &["read -P 2 1M 4k", "read -P 3 2M 4k", "read -P 1 3M 1M"]);
    detach(&world, "one", one);
    let one = attach(&world, &url, "one");
    assert_eq!(freshness(&world, "one")["state"], "kept", "{}", freshness(&world, "one"));
    let bytes = received(&world, "one", || io(&one.ready, &["read -P 2 1M 4k", "read -P 3 2M 4k", "read -P 1 3M 1M"]));
    assert!(bytes < LITTLE, "{bytes} came from the LUN");
    detach(&world, "one", one);
}

#[test]
fn a_cache_of_a_shared_lun_is_warm_after_a_restart_of_the_target_and_not_old() {
    let world = World::new();
    let mut target = serve(&world, "127.0.0.1:0");
    let portal = target.ready.clone();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let one = attach(&world, &url, "one");
    io(&one.ready, &["write -P 1 0 4M", "read -P 1 0 4M"]);
    detach(&world, "one", one);
    io(&url, &["write -P 2 1M 4k"]);
    target.kill();
    let mut target = serve(&world, &portal);
    io(&url, &["write -P 3 2M 4k"]);
    let one = attach(&world, &url, "one");
    let found = freshness(&world, "one");
    assert_eq!((&found["state"], &found["changed_by_others_bytes"]), (&"partly".into(), &(2 * MIB).into()), "{found}");
    let bytes = received(&world, "one", || io(&one.ready, &["read -P 1 0 1M", "read -P 1 3M 1M"]));
    assert!(bytes < LITTLE, "{bytes} came from the LUN");
    io(&one.ready, &["read -P 2 1M 4k", "read -P 3 2M 4k"]);
    // While it is attached: its copies are void then, and it registers anew.
    target.kill();
    let target = serve(&world, &portal);
    io(&url, &["write -P 4 0 4k"]);
    io(&one.ready, &["read -P 4 0 4k", "read -P 1 4k 4k"]);
    detach(&world, "one", one);
    let one = attach(&world, &url, "one");
    assert_eq!(freshness(&world, "one")["state"], "kept", "{}", freshness(&world, "one"));
    io(&one.ready, &["read -P 4 0 4k", "read -P 1 4k 4k", "read -P 2 1M 4k", "read -P 3 2M 4k", "read -P 1 3M 1M"]);
    detach(&world, "one", one);
    drop(target);
}

#[test]
fn what_nobody_keeps_apart_is_refused_with_advice() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB,shared"]);
    let (plain, shared) = (target.url(0), target.url(1));
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--as", "nbd:unix:disk.nbd"];
    let attach = |url: &str, more: &[&str]| world.run([&["attach", url], &cache[..], more].concat());
    let unsupported = attach(&plain, &["--shared"]);
    assert!(unsupported.code != Some(0) && unsupported.stderr.contains("option \"shared\""), "{unsupported:?}");
    attach(&shared, &[]).failure(2, &["--shared", "without a cache"]);
    attach(&shared, &["--shared", "--cache-mode", "write-back"]).failure(2, &["write-through"]);
    attach(&shared, &["--shared", "--log", "disk.log", "--log-size", "8MiB"]).failure(2, &["--log"]);
    attach(&shared, &["--shared", "--cache-exclusive"]).failure(2, &["--cache-exclusive"]);
    // The target takes several paths of one client; our initiator is a client by one.
    let (both, more) = (format!("{shared},{shared}"), &["--shared"][..]);
    attach(&both, more).failure(2, &["--shared takes one logical unit by one way, not several URLs"]);
}

/// tgt does not know the key.
#[test]
fn a_target_that_cannot_keep_caches_coherent_is_refused_with_words() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--as", "nbd:unix:disk.nbd"];
    let refused = world.run([&["attach", &url, "--shared"], &cache[..]].concat());
    assert!(refused.code != Some(0) && refused.stderr.contains("its target does not keep the caches"), "{refused:?}");
    assert!(!world.path("disk.cache").exists(), "nothing is made");
    let refused = world.run(["locks", &url]);
    assert!(refused.code != Some(0) && refused.stderr.contains("cannot be shared"), "{refused:?}");
}
