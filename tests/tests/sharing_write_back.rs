//! Several hosts on one LUN that delay their writes: each only in ranges that it holds alone, and none of them reads
//! anything older than what another was told is written.
//!
//! Each host is a process with directories of its own, as on a machine of its own. A write that was acknowledged by a
//! host that was killed or frozen, and had not reached the LUN by then, is in its cache: it comes when that is attached
//! again, if nobody wrote there since, and is refused otherwise.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::random::Random;
use block::SharedDevice;
use front::{ListenAddress, NbdClient};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::register::{BLOCK_BYTES, History, Operation, Place, check_all};
use tests::{IQN, PATIENCE, Process, World, finish, tool};

/// What was at a place before something was delayed there.
const BEFORE: u8 = 77;

const LEASE: Duration = Duration::from_secs(10);
/// Blocks that all hosts write, in as many ranges as there are quarters of them.
const BLOCKS: u64 = 16;
const DEPTH: u64 = 3;

fn place_of(block: u64) -> Place {
    Place { block, offset: ((block / 4) << 20) + (block % 4) * BLOCK_BYTES }
}

/// A host of its own.
struct Host {
    world: World,
    process: Process,
    name: &'static str,
}

fn started(command: &mut Command) -> Process {
    Process::start(command).unwrap_or_else(|finished| panic!("{finished:?}"))
}

impl Host {
    fn attach(url: &str, name: &'static str) -> Self {
        let world = World::new();
        let process = started(&mut Self::command(&world, url, name));
        Self { world, process, name }
    }

    /// To delay writes of a shared LUN is not for use yet, and has to be allowed.
    fn command(world: &World, url: &str, name: &'static str) -> Command {
        let what =
            "--shared --cache store.cache --cache-size 16MiB --cache-mode write-back --set cache.clean-above=100%";
        let mut command = world.forebay();
        command.env("FOREBAY_UNSAFE_SHARED_WRITE_BACK", "1");
        command.args(["attach", url, "--name", name]).args(what.split(' '));
        command
    }

    /// The same host once more, after it was killed.
    fn attach_again(&mut self, url: &str) {
        self.process = started(&mut Self::command(&self.world, url, self.name));
    }

    fn io(&self, commands: &[&str]) {
        io(&self.process.ready, commands);
    }

    fn status(&self) -> Value {
        self.world.status(self.name)
    }

    fn dirty_bytes(&self) -> u64 {
        self.status()["cache"]["dirty_bytes"].as_u64().expect("it is counted")
    }

    /// Lines that are delayed, or were: they may be for a moment only, where hosts compete.
    fn delayed_lines(&self) -> u64 {
        let cache = &self.status()["cache"];
        let count = |name: &str| cache[name].as_u64().expect("it is counted");
        count("dirty_lines") + count("cleaned_lines")
    }

    fn held(&self) -> u64 {
        self.status()["remote"]["sharing"]["ranges_held"].as_u64().expect("it is counted")
    }

    /// Writes something else, so that the range is asked for, until it is held, and then this, which is delayed.
    fn delay(&self, pattern: u8, place: &str) {
        let write = format!("write -P {BEFORE} {place}");
        let deadline = Instant::now() + PATIENCE;
        while self.dirty_bytes() == 0 {
            assert!(Instant::now() < deadline, "nothing is ever delayed: {}", self.status());
            self.io(&[&write]);
        }
        self.io(&[&format!("write -P {pattern} {place}")]);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("it runs");
        kill_process(id, signal).expect("it is our child");
    }

    fn detach(self) {
        self.world.run(["detach", self.name]).success();
        self.process.wait().success();
    }
}

fn io(place: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    tool("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([place]));
}

fn serve(world: &World, portal: &str) -> Process {
    let lun = "0=file:disk.img,size=64MiB,shared";
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", lun])
}

fn url_of(target: &Process) -> String {
    format!("iscsi://{}/{IQN}/0", target.ready)
}

#[test]
fn what_one_host_delays_others_read_and_it_is_there_in_the_end() {
    let world = World::new();
    let target = serve(&world, "127.0.0.1:0");
    let url = url_of(&target);
    let (one, two) = (Host::attach(&url, "one"), Host::attach(&url, "two"));
    one.delay(1, "0 64k");
    assert!(one.held() > 0);
    let listed = world.run(["locks", &url]).success();
    assert!(listed.contains("D_X"), "{listed}");
    // A host that shares it, and one that knows of nothing.
    two.io(&["read -P 1 0 64k"]);
    assert_eq!((one.dirty_bytes(), one.held()), (0, 0));
    std::thread::sleep(Duration::from_secs(2));
    one.delay(2, "4k 4k");
    io(&url, &["read -P 1 0 4k", "read -P 2 4k 4k", "write -P 3 8k 4k"]);
    one.io(&["read -P 2 4k 4k", "read -P 3 8k 4k"]);
    two.delay(4, "5M 8k");
    one.delay(5, "9M 8k");
    two.detach();
    one.detach();
    io(&url, &["read -P 4 5M 8k", "read -P 5 9M 8k", "read -P 3 8k 4k"]);
}

#[test]
fn what_a_killed_host_had_not_written_comes_when_it_is_back_and_is_refused_where_others_wrote() {
    let world = World::new();
    let target = serve(&world, "127.0.0.1:0");
    let url = url_of(&target);
    let mut one = Host::attach(&url, "one");
    one.delay(1, "2M 4k");
    one.process.kill();
    // Nobody reads it before its lease is over; then what others see is what they had.
    io(&url, &["read -P 77 2M 4k", "write -P 9 7M 4k"]);
    one.attach_again(&url);
    let found = one.status()["freshness"]["cache"].clone();
    assert!(found["why"].as_str().is_some_and(|why| why.contains("orderly end")), "{found}");
    io(&url, &["read -P 1 2M 4k", "read -P 9 7M 4k"]);
    std::thread::sleep(Duration::from_secs(2));
    one.delay(2, "2M 4k");
    one.process.kill();
    io(&url, &["write -P 8 2M 4k"]);
    let refused = finish(&mut Host::command(&one.world, &url, one.name));
    refused.failure(9, &["store.cache", "others have written"]);
    io(&url, &["read -P 8 2M 4k"]);
    let inspected = one.world.run(["cache", "inspect", "store.cache"]).success();
    assert!(inspected.contains("dirty"), "it is still there: {inspected}");
}

#[test]
fn a_host_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes_and_says_so() {
    let world = World::new();
    let target = serve(&world, "127.0.0.1:0");
    let url = url_of(&target);
    let one = Host::attach(&url, "one");
    one.delay(1, "2M 4k");
    one.signal(Signal::STOP);
    io(&url, &["write -P 8 2M 4k"]);
    one.signal(Signal::CONT);
    one.world.wait_for_remote("one", "it is fenced", |remote| remote["state"] == "fenced");
    let read = finish(Command::new("qemu-io").args(["-f", "raw", "-c", "read -P 1 2M 4k", &one.process.ready]));
    assert!(read.code != Some(0) || read.stdout.contains("failed"), "what is dirty is not its own any more: {read:?}");
    let detached = one.world.run(["detach", one.name]);
    detached.failure(9, &["store.cache", "conflicts with what others may have written"]);
    io(&url, &["read -P 8 2M 4k"]);
}

#[test]
fn a_target_that_starts_again_is_given_what_hosts_had_not_written_before_anybody_reads() {
    let world = World::new();
    let mut target = serve(&world, "127.0.0.1:0");
    let portal = target.ready.clone();
    let url = url_of(&target);
    let one = Host::attach(&url, "one");
    one.delay(1, "2M 4k");
    target.kill();
    let target = serve(&world, &portal);
    io(&url, &["read -P 1 2M 4k"]);
    one.io(&["read -P 1 2M 4k"]);
    one.detach();
    drop(target);
}

/// Each host mostly writes in a range of its own for a while, so that some of it is delayed.
async fn work(device: SharedDevice, host: u64, seed: u64, history: History) {
    let mut random = Random::new(seed);
    let mut failures = 0;
    while !history.is_over() && failures < 20 {
        let own = (host * 4 + random.below(4)) % BLOCKS;
        let place = place_of(if random.chance(0.85) { own } else { random.below(BLOCKS) });
        let is_done = match random.chance(0.4) {
            true => history.write(&device, host, place).await,
            false => history.read(&device, host, place).await,
        };
        failures = if is_done { 0 } else { failures + 1 };
        let pause = if is_done { Duration::from_millis(random.below(4)) } else { Duration::from_millis(100) };
        tokio::time::sleep(pause).await;
    }
}

fn work_as_qemu(url: &str, pattern: &Path, history: &History) {
    let mut random = Random::new(5);
    while !history.is_over() {
        let (place, is_write) = (place_of(random.below(BLOCKS)), random.chance(0.4));
        history.ask_qemu(url, pattern, is_write, place);
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// What only a host that came to a bad end has seen is in its cache.
fn without_unseen(all: &[Operation], dead: &[u64]) -> Vec<Operation> {
    let seen_by_others =
        |value: u64| all.iter().any(|other| !other.is_write && other.value == value && other.host != value >> 32);
    let is_unseen =
        |operation: &&Operation| dead.contains(&(operation.value >> 32)) && !seen_by_others(operation.value);
    all.iter().filter(|operation| !is_unseen(operation)).copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_delay_writes_read_nothing_old_whatever_happens_to_one_of_them() {
    let world = World::new();
    let mut target = serve(&world, "127.0.0.1:0");
    let (portal, url) = (target.ready.clone(), url_of(&target));
    let history = History::default();
    let start = Instant::now();
    let (mut hosts, mut loads) = (Vec::new(), Vec::new());
    for (name, number) in ["one", "two", "three", "four"].into_iter().zip(1..) {
        let other = World::new();
        let socket = other.path("host.nbd");
        let front = format!("nbd:unix:{}", socket.display());
        let process = started(Host::command(&other, &url, name).args(["--as", &front]));
        let (device, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
        tokio::spawn(driver);
        let device: SharedDevice = device;
        let start = |each| tokio::spawn(work(Arc::clone(&device), number, number * 100 + each, history.clone()));
        loads.extend((0..DEPTH).map(start));
        hosts.push(Host { world: other, process, name });
    }
    let qemu = {
        let (url, pattern, history) = (url.clone(), world.path("pattern"), history.clone());
        std::thread::spawn(move || work_as_qemu(&url, &pattern, &history))
    };
    tokio::time::sleep(Duration::from_secs(4)).await;
    let deadline = Instant::now() + PATIENCE;
    let delayed = loop {
        let lines: u64 = hosts.iter().map(Host::delayed_lines).sum();
        assert!(lines > 0 || Instant::now() < deadline, "nothing is ever delayed: {}", hosts[0].status());
        if lines > 0 {
            break lines;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    hosts[2].process.kill();
    tokio::time::sleep(Duration::from_secs(2)).await;
    hosts[1].signal(Signal::STOP);
    tokio::time::sleep(LEASE + Duration::from_secs(4)).await;
    hosts[1].signal(Signal::CONT);
    let thawed = Instant::now();
    tokio::time::sleep(Duration::from_secs(4)).await;
    // What hosts have not written comes before anything that others ask.
    target.kill();
    let started_again = Instant::now();
    let target = serve(&world, &portal);
    tokio::time::sleep(LEASE + Duration::from_secs(4)).await;
    history.until_all_wrote(&[1, 4], started_again);
    history.end();
    for load in loads {
        load.await.expect("a load ends in order");
    }
    qemu.join().expect("qemu-io ends in order");
    let all = history.all();
    let known = without_unseen(&all, &[2, 3]);
    check_all(&known, start);
    let woke = all.iter().filter(|operation| operation.is_write && operation.host == 2 && operation.began > thawed);
    assert_eq!(woke.filter(|operation| operation.ended.is_some()).count(), 0, "the frozen host was told of a write");
    println!("{} operations, {delayed} lines delayed by the first death", all.len());
    hosts.swap_remove(3).detach();
    hosts.swap_remove(0).detach();
    drop(target);
}
