//! How it ends when a target is killed, freezes, is silent from the start, or comes back as another device: as
//! docs/guides/recovery.md says, with one connection, with several and with a split pair. Whatever was acknowledged is
//! there, or whoever asks for it is told that it is not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, ByteRange, SharedDevice};
use clock::TokioClock;
use front::{ListenAddress, NbdClient};
use rustix::process::{Pid, Signal, kill_process};
use tests::{Finished, IQN, Process, Underway, World, finish, wait_until};
use workload::bench::ReadWrite;
use workload::closed_loop::{ClosedLoop, Ending, Limit, Plan};
use workload::ledger::InitialContent;
use workload::verify::verify_all;

/// The connections of a session: as flags, and how many TCP connections that makes.
const SHAPES: [(&[&str], u64); 3] =
    [(&[], 1), (&["--connections", "3"], 3), (&["--connections", "2", "--split-connections"], 4)];

/// A target that is gone is found out within a second, and a login is given half a second.
const IMPATIENT: [&str; 4] = ["--keepalive", "400ms", "--login-timeout", "500ms"];

/// A target on a portal that stays the same.
struct Server {
    portal: String,
    lun: &'static str,
    process: Process,
}

const FILE: &str = "0=file:disk.img,size=16MiB,write-cache";
const RAM: &str = "0=ram:16MiB";

impl Server {
    fn start(world: &World, lun: &'static str) -> Self {
        let process = serve(world, "127.0.0.1:0", lun);
        Self { portal: process.ready.clone(), lun, process }
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{IQN}/0", self.portal)
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn start_again(&mut self, world: &World) {
        self.process = serve(world, &self.portal, self.lun);
    }

    /// Stops every thread of it where it is: its sockets stay, and the kernel goes on acknowledging for them.
    fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("it is a process");
        kill_process(id, signal).expect("it is our child");
    }
}

fn serve(world: &World, portal: &str, lun: &str) -> Process {
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", lun])
}

fn attach(world: &World, url: &str, flags: &[&[&str]]) -> Process {
    world.start([&["attach", url, "--name", "disk"][..], &flags.concat()].concat())
}

/// Random reads and writes at `subject` for longer than any test takes: they end because it fails, which the test
/// brings about. Every read is compared with what was written.
fn start_doomed_load(world: &World, subject: &str, flags: &[&str]) -> Underway {
    let load = ["bench", subject, "--rw", "randrw", "--bs", "4KiB", "--depth", "16", "--seconds", "3600", "--verify"];
    let mut command = world.forebay();
    Underway::start(command.args(load).args(["--allow-data-loss", "--json"]).args(flags))
}

/// Random reads and writes of an attachment that go on until the test has seen what it waits for, however slow the
/// machine is. Every read is compared with what was written, and all that was written is read in the end.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Load {
    fn start(disk: &Process) -> Self {
        let socket = disk.ready.strip_prefix("nbd+unix:///?socket=").expect("it offers NBD").into();
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("there is memory").block_on(read_and_write(socket, &told));
        });
        Self { is_over, thread }
    }

    /// Ends it: nothing has failed, and nothing is lost.
    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("nothing fails");
    }
}

async fn read_and_write(socket: PathBuf, is_over: &AtomicBool) {
    let (client, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
    tokio::spawn(driver);
    let device: SharedDevice = client;
    let footprint = ByteRange { offset: 0, length: device.geometry().size_bytes };
    let plan = Plan {
        profile: ReadWrite::RandRw.profile(1, 4096, 0.5, footprint),
        depth: 16,
        limit: Limit::Time(Duration::from_secs(3600)),
        verify: Some(InitialContent::Unknown),
        keep_series: false,
    };
    let mut load = ClosedLoop::new(plan, Arc::new(TokioClock::new())).expect("the plan is possible");
    let go_on = |_| if is_over.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let ending = load.run(Arc::clone(&device), go_on).await.expect("every read has what was written");
    assert!(matches!(ending, Ending::Stopped), "{ending:?}");
    let written = load.into_ledger().expect("it is verified");
    verify_all(&device, &written, |_| ControlFlow::Continue(())).await.expect("all that was written is there");
}

/// What `qemu-io` says to these commands, and whether all of them worked.
fn qemu_io(uri: &str, commands: &[&str]) -> (bool, String) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let Finished { code, stdout, stderr } = finish(Command::new("qemu-io").args(["-f", "raw"]).args(commands).arg(uri));
    let said = stdout + &stderr;
    (code == Some(0) && !said.contains("failed") && !said.contains("error"), said)
}

#[track_caller]
fn works(uri: &str, commands: &[&str]) {
    let (is_fine, said) = qemu_io(uri, commands);
    assert!(is_fine, "{said}");
}

#[track_caller]
fn fails(uri: &str, commands: &[&str]) {
    let (is_fine, said) = qemu_io(uri, commands);
    assert!(!is_fine, "it worked: {said}");
}

#[test]
fn a_target_killed_under_load_and_started_again_loses_nothing() {
    for (shape, connections) in SHAPES {
        let world = World::new();
        let mut server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[shape]);
        world.wait_for_remote("disk", "all connections", |remote| remote["connections"] == connections);
        let load = Load::start(&disk);
        for round in 2..4 {
            // Killed with requests under way, and not in the moment between two bursts of them.
            server.freeze();
            world.wait_for_remote("disk", "load", |remote| remote["in_flight"].as_u64() > Some(4));
            server.kill();
            world.wait_for_remote("disk", "a loss that is noticed", |remote| remote["state"] == "reconnecting");
            server.start_again(&world);
            let back = world.wait_for_remote("disk", "a new session", |remote| remote["state"] == "online");
            assert_eq!(back["sessions"], round, "{back}");
        }
        load.end();
        let after =
            world.wait_for_remote("disk", "all connections again", |remote| remote["connections"] == connections);
        assert!(after["commands_retried"].as_u64() > Some(0), "something was under way: {after}");
        works(&disk.ready, &["write -P 9 0 64k", "flush"]);
        world.run(["detach", "disk"]).success();
        disk.wait().success();
    }
}

#[test]
fn a_target_that_is_not_started_again_fails_io_after_the_replacement_timeout() {
    for (shape, _) in SHAPES {
        let world = World::new();
        let mut server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[shape, &["--replacement-timeout", "1s"]]);
        works(&disk.ready, &["write -P 1 0 64k", "flush"]);
        server.kill();
        fails(&disk.ready, &["read 0 64k"]);
        let failing = world.wait_for_remote("disk", "failing", |remote| remote["state"] == "failing");
        let error = failing["last_error"].as_str().unwrap_or_default();
        assert!(error.contains("is the target running") && error.contains(&server.portal), "{failing}");
        assert!(failing["reconnect_attempts"].as_u64() > Some(1), "{failing}");
        // Whoever comes now is told at once, and does not wait once more.
        fails(&disk.ready, &["write -P 2 0 64k"]);
        server.start_again(&world);
        world.wait_for_remote("disk", "online", |remote| remote["state"] == "online");
        works(&disk.ready, &["read -P 1 0 64k", "write -P 3 0 64k", "read -P 3 0 64k"]);
        world.run(["detach", "disk"]).success();
        disk.wait().success();
        // The same without an attachment: an exit code, and what happened as the last line.
        let before = writes(&world);
        let load = start_doomed_load(&world, &server.url(), &[shape, &["--replacement-timeout", "1s"]].concat());
        wait_for_writes(&world, before);
        server.kill();
        ends_with(&load.finish(), 3, "has not been reachable for 1 s");
    }
}

/// The exit code, and what happened as the last line.
#[track_caller]
fn ends_with(finished: &Finished, code: i32, words: &str) {
    let last = finished.stderr.lines().last().unwrap_or_default();
    assert_eq!(finished.code, Some(code), "{finished:?}");
    assert!(last.starts_with("forebay: ") && last.contains(words), "{finished:?}");
}

/// Writes that the target has carried out.
fn writes(world: &World) -> u64 {
    world.run(["target", "status", "--json"]).json()["luns"][0]["writes"].as_u64().expect("a count")
}

/// Waits until the target has carried out many more writes than `before`: whoever writes has logged in.
fn wait_for_writes(world: &World, before: u64) {
    wait_until("somebody writes", || writes(world) >= before + 100);
}

#[test]
fn a_short_freeze_is_sat_out_by_the_same_session() {
    for (shape, connections) in SHAPES {
        let world = World::new();
        let server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[shape, &["--keepalive", "30s"]]);
        world.wait_for_remote("disk", "all connections", |remote| remote["connections"] == connections);
        let load = Load::start(&disk);
        world.wait_for_remote("disk", "load", |remote| remote["in_flight"].as_u64() > Some(4));
        server.freeze();
        std::thread::sleep(Duration::from_secs(1));
        server.thaw();
        load.end();
        let after = &world.status("disk")["remote"];
        assert_eq!((&after["sessions"], &after["commands_retried"]), (&1.into(), &0.into()), "{after}");
        assert_eq!(after["connections"], connections, "{after}");
        drop(disk);
    }
}

#[test]
fn a_long_freeze_ends_the_session_and_loses_nothing() {
    for (shape, connections) in SHAPES {
        let world = World::new();
        let server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[shape, &IMPATIENT]);
        world.wait_for_remote("disk", "all connections", |remote| remote["connections"] == connections);
        let load = Load::start(&disk);
        world.wait_for_remote("disk", "load", |remote| remote["in_flight"].as_u64() > Some(4));
        server.freeze();
        let lost = world.wait_for_remote("disk", "attempts", |remote| remote["reconnect_attempts"].as_u64() > Some(1));
        let error = lost["last_error"].as_str().unwrap_or_default();
        assert!(error.contains("did not complete a login within 0.5 s"), "{lost}");
        server.thaw();
        load.end();
        let after =
            world.wait_for_remote("disk", "all connections again", |remote| remote["connections"] == connections);
        assert!(after["sessions"].as_u64() > Some(1), "{after}");
        works(&disk.ready, &["write -P 9 0 64k", "read -P 9 0 64k", "flush"]);
        world.run(["detach", "disk"]).success();
        disk.wait().success();
    }
}

#[test]
fn a_target_frozen_for_good_fails_io_after_the_replacement_timeout() {
    for (shape, _) in SHAPES {
        let world = World::new();
        let server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[shape, &IMPATIENT, &["--replacement-timeout", "1s"]]);
        works(&disk.ready, &["write -P 1 0 64k", "flush"]);
        let load = start_doomed_load(&world, "disk", &[]);
        world.wait_for_remote("disk", "load", |remote| remote["in_flight"].as_u64() > Some(4));
        server.freeze();
        let finished = load.finish();
        assert_eq!(finished.code, Some(1), "I/O through NBD fails, and no more is known there: {finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        let failing = world.wait_for_remote("disk", "failing", |remote| remote["state"] == "failing");
        assert!(failing["last_error"].is_string(), "{failing}");
        // It ends although the target does not answer a logout. Whether it had acknowledged anything by then is a
        // matter of chance.
        let ended = disk.terminate();
        assert!(ended.code == Some(0) || ended.stderr.contains("may not be durable"), "{ended:?}");
        server.thaw();
    }
}

/// Nothing here has what the target acknowledged last and may have lost: a log or a cache in write-back would.
#[tokio::test]
async fn a_detach_without_its_target_says_that_unflushed_writes_may_be_lost() {
    let world = World::new();
    let mut server = Server::start(&world, FILE);
    let (socket, url) = (world.path("disk.nbd"), server.url());
    let front = format!("nbd:unix:{}", socket.display());
    let disk = attach(&world, &url, &[&["--as", &front]]);
    let (client, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
    let driver = tokio::spawn(driver);
    client.write(0, Buffer::copy_of(&[7; 4096]), false).await.expect("the target is there");
    server.kill();
    driver.abort();
    drop(client);
    world.run(["detach", "disk"]).failure(3, &["is detached, but", "may not be durable"]);
    disk.wait();
}

/// Nothing but the end of the detach itself could end it: the session is given ten minutes for everything.
const PATIENT: [&str; 6] = ["--keepalive", "600s", "--command-timeout", "600s", "--replacement-timeout", "600s"];

#[tokio::test]
async fn a_detach_does_not_wait_for_a_target_that_says_nothing_unless_something_is_dirty() {
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-mode", "write-through"];
    for cache in [&[][..], &cache] {
        let world = World::new();
        let server = Server::start(&world, FILE);
        let disk = attach(&world, &server.url(), &[&PATIENT, cache]);
        works(&disk.ready, &["write -P 1 0 64k", "flush"]);
        server.freeze();
        let said = world.run(["detach", "disk"]).success();
        assert!(said.contains("its target, which does not answer"), "{said}");
        disk.wait().success();
        server.thaw();
        // What may be lost is told.
        let (socket, url) = (world.path("disk.nbd"), server.url());
        let front = format!("nbd:unix:{}", socket.display());
        let disk = attach(&world, &url, &[&PATIENT, cache, &["--as", &front]]);
        let (client, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
        let driver = tokio::spawn(driver);
        client.write(0, Buffer::copy_of(&[7; 4096]), false).await.expect("the target is there");
        server.freeze();
        driver.abort();
        drop(client);
        world.run(["detach", "disk"]).failure(3, &["is detached, but", "may not be durable"]);
        disk.wait();
        server.thaw();
    }
}

/// A `forebay clean` that is under way, by its connection.
fn start_cleaning(world: &World) -> BufReader<UnixStream> {
    let mut caller = UnixStream::connect(world.path("run").join("disk.sock")).expect("it is attached");
    caller.write_all(b"{\"command\":\"clean\"}\n").expect("it is heard");
    let mut answers = BufReader::new(caller);
    let mut sign = String::new();
    answers.read_line(&mut sign).expect("it gives signs of life");
    assert!(sign.contains("progress"), "{sign}");
    answers
}

/// The target takes nothing for ten minutes; what is dirty stays dirty.
#[test]
fn an_end_at_once_does_not_wait_for_a_cleaning_that_somebody_asked_for() {
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "600s", "--destage-age", "600s"];
    for store in [&cache[..], &log] {
        for is_signal in [true, false] {
            let world = World::new();
            let server = Server::start(&world, FILE);
            let disk = attach(&world, &server.url(), &[&PATIENT, store]);
            server.freeze();
            works(&disk.ready, &["write -P 1 0 64k", "flush"]);
            let mut answers = start_cleaning(&world);
            let ended = if is_signal {
                disk.terminate()
            } else {
                world.run(["detach", "disk", "--keep-dirty"]).success();
                disk.wait()
            };
            ended.success();
            let mut last = String::new();
            answers.read_to_string(&mut last).expect("it hangs up");
            assert!(last.contains("is being detached"), "{last}");
            server.thaw();
        }
    }
}

/// Accepts connections, since the kernel does, and never answers.
fn silent_portal() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    (listener, address)
}

#[test]
fn a_portal_that_never_answers_is_given_up_after_the_login_timeout() {
    let world = World::new();
    let (_listener, portal) = silent_portal();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let words = ["accepts connections but did not complete a login within 0.5 s", &portal];
    for command in [
        &["inquiry", &url][..],
        &["discover", &portal],
        &["attach", &url],
        &["attach", &url, "--cache", "disk.cache", "--cache-size", "8MiB"],
        &["bench", &url],
        &["attach", &format!("{url},{url}"), "--multipath", "round-robin"],
    ] {
        for shape in [&[][..], &["--connections", "3"], &["--split-connections"]] {
            world.run([command, &["--login-timeout", "500ms"], shape].concat()).failure(3, &words);
        }
    }
    assert!(!world.path("disk.cache").exists(), "nothing is made before the target is there");
}

/// A portal in front of `target` on whose connections nothing comes back after the login.
fn silent_after_login(target: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let target = target.to_owned();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&target).expect("the target runs");
            let pair = |from: &TcpStream, to: &TcpStream| Some((from.try_clone().ok()?, to.try_clone().ok()?));
            let (Some(there), Some(back)) = (pair(&near, &far), pair(&far, &near)) else { continue };
            std::thread::spawn(move || std::io::copy(&mut &there.0, &mut &there.1));
            std::thread::spawn(move || copy_login(back.0, back.1));
            kept.push(near);
        }
    });
    address
}

/// Copies PDUs (RFC 7143 11.2) until the login is done (11.13): a Login Response with the T bit, on to the full feature
/// phase.
fn copy_login(mut from: TcpStream, mut to: TcpStream) -> Option<()> {
    loop {
        let mut header = [0; 48];
        from.read_exact(&mut header).ok()?;
        let [opcode, flags, _, _, _, high, middle, low, ..] = header;
        let length = u32::from_be_bytes([0, high, middle, low]).next_multiple_of(4);
        let mut data = vec![0; length as usize];
        from.read_exact(&mut data).ok()?;
        to.write_all(&[&header[..], &data].concat()).ok()?;
        if opcode == 0x23 && flags & 0x83 == 0x83 {
            // Both directions stay open, and nothing comes any more.
            std::thread::park();
        }
    }
}

#[test]
fn a_portal_that_falls_silent_after_the_login_is_found_out_by_pings() {
    let world = World::new();
    let server = Server::start(&world, FILE);
    for (shape, _) in SHAPES {
        let portal = silent_after_login(&server.portal).to_string();
        let url = format!("iscsi://{portal}/{IQN}/0");
        for command in ["inquiry", "attach", "bench"] {
            ends_with(&world.run([&[command, &url][..], &IMPATIENT, shape].concat()), 3, &portal);
        }
        ends_with(&world.run([&["discover", &portal][..], &IMPATIENT].concat()), 3, &portal);
    }
}

#[test]
fn a_ram_lun_that_was_started_again_never_gets_the_data_of_the_old_one() {
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];
    for (shape, _) in SHAPES {
        for cache in [&[][..], &cache] {
            let world = World::new();
            let mut server = Server::start(&world, RAM);
            let disk = attach(&world, &server.url(), &[shape, cache]);
            works(&disk.ready, &["write -P 7 0 64k", "flush"]);
            let load = cache.is_empty().then(|| start_doomed_load(&world, "disk", &[]));
            if load.is_some() {
                world.wait_for_remote("disk", "load", |remote| remote["in_flight"].as_u64() > Some(4));
            }
            server.kill();
            server.start_again(&world);
            if let Some(load) = load {
                assert_eq!(load.finish().code, Some(1), "what was written is gone, and whoever reads it is told");
            }
            let replaced = world.wait_for_remote("disk", "replaced", |remote| remote["state"] == "replaced");
            let error = replaced["last_error"].as_str().unwrap_or_default();
            assert!(error.contains("is another device now") && error.contains("detach and look"), "{replaced}");
            fails(&disk.ready, &["read -P 0 1M 64k"]);
            if cache.is_empty() {
                world.run(["detach", "disk"]).success();
                disk.wait().success();
            } else {
                // Not even what the cache holds: it goes with a disk that is not there any more.
                fails(&disk.ready, &["read 0 64k"]);
                world.run(["detach", "disk"]).failure(3, &["65536 bytes stay dirty here"]);
                let ended = disk.wait();
                assert_eq!(ended.code, Some(3), "{}", ended.stderr);
                assert!(ended.stderr.contains("65536 bytes stay dirty here"), "{}", ended.stderr);
                assert_eq!(world.run([&["attach", &server.url()][..], cache].concat()).code, Some(7), "another LUN's");
            }
            // Nothing of the old one's was written to the new one.
            let read = attach(&world, &server.url(), &[]);
            works(&read.ready, &["read -P 0 0 16M"]);
        }
    }
}
