//! SIGTERM ends a target, an attachment and a mount within five seconds, whatever their peers do or do not do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tests::bare_session::BareSession;
use tests::{Finished, IQN, Process, Target, Underway, World, tool};

/// What is promised (docs/reference/exit-codes.md).
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// The same where more programs want to run than there are processors: each of the timers that make up the five seconds
/// runs late then, and whatever is done between them waits for a processor. Far less than any of the times that would
/// follow without them (those of a ping, a command or a session are a minute and more).
const LOADED_END_TIME_MAX: Duration = Duration::from_secs(45);

/// How long an end that is just over may have taken here.
fn end_time_max() -> Duration {
    if is_loaded() { LOADED_END_TIME_MAX } else { END_TIME_MAX }
}

/// Whether programs had to wait for a processor or a disk: by the load of the last minute, and, where the kernel tells,
/// by the share of the last ten seconds in which some did.
fn is_loaded() -> bool {
    let text = std::fs::read_to_string("/proc/loadavg").expect("Linux tells");
    let load: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("it is a number");
    let processors = std::thread::available_parallelism().expect("Linux tells").get();
    load > processors as f64 || ["cpu", "io"].into_iter().any(|what| pressure_percent(what) > PRESSURE_PERCENT)
}

/// In one second of the last ten somebody waited.
const PRESSURE_PERCENT: f64 = 10.0;

/// `avg10` of the line `some` of /proc/pressure (Documentation/accounting/psi.rst of Linux); zero where there is none.
fn pressure_percent(what: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).unwrap_or_default();
    let share = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="));
    share.and_then(|share| share.parse().ok()).unwrap_or_default()
}

const MIB: u32 = 1 << 20;

/// Ends it by SIGTERM, in time.
#[track_caller]
fn end(process: Process, what: &str) -> Finished {
    let began = Instant::now();
    let finished = process.terminate();
    let took = began.elapsed();
    let time_max = end_time_max();
    println!("{what}: {took:?} of {time_max:?}");
    assert!(took < time_max, "{what}: it took {took:?} to end, of {time_max:?}: {finished:?}");
    finished
}

/// Callers of a control socket who have connected, and one who has asked for something that is never done, none of whom
/// reads anything.
fn idle_callers(world: &World, name: &str) -> Vec<UnixStream> {
    let connect = || UnixStream::connect(world.path("run").join(format!("{name}.sock"))).expect("it listens");
    (0..20).map(|_| connect()).collect()
}

/// An NBD client in its transmission phase ("Newstyle negotiation", "Transmission"), which has asked for much more than
/// a socket takes, and reads none of it.
fn nbd_client_that_does_not_read(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("it said ready");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("it greets");
    // Fixed newstyle without zeroes, and the option that names the default export and ends the handshake.
    stream.write_all(&[0, 0, 0, 3]).expect("there is room");
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").expect("there is room");
    stream.read_exact(&mut [0; 10]).expect("it has the export");
    for cookie in 0_u64..64 {
        let mut request = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 4]].concat();
        request.extend(cookie.to_be_bytes());
        request.extend(0_u64.to_be_bytes());
        request.extend(MIB.to_be_bytes());
        stream.write_all(&request).expect("there is room");
    }
    stream
}

/// iSCSI sessions that have asked for what they do not fetch, and announced what they do not send; a login in the
/// middle of a header, and one that says nothing.
fn stuck_initiators(portal: &str, target: &str) -> (Vec<BareSession>, [TcpStream; 2]) {
    let solicited = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let sessions = (0..4).map(|number| {
        let mut session = BareSession::log_in(portal, target, "iqn.2026-11.io.forebay:stuck", number, &solicited);
        for tag in 100..116 {
            let command = if number % 2 == 0 { BareSession::read } else { BareSession::open_write };
            command(&mut session, tag, MIB).expect("there is room");
        }
        session
    });
    let sessions = sessions.collect();
    let silent = [&[][..], &[0x43; 24]].map(|said| {
        let mut stream = TcpStream::connect(portal).expect("it listens");
        stream.write_all(said).expect("there is room");
        stream
    });
    (sessions, silent)
}

#[test]
fn a_target_ends_in_time_whatever_its_peers_do() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=64MiB"]);
    let disk = world.start(["attach", &target.url(0), "--name", "disk"]);
    let stuck = stuck_initiators(target.portal(), IQN);
    let callers = idle_callers(&world, "target");
    // An initiator that stands still with a session and does not answer.
    signal(&disk, Signal::STOP);
    end(target.process, "a target").success();
    signal(&disk, Signal::CONT);
    drop((stuck, callers));
}

/// Nothing but the end of the attachment itself could end its wait: the session is given ten minutes for everything.
const PATIENT: [&str; 6] = ["--keepalive", "600s", "--command-timeout", "600s", "--replacement-timeout", "600s"];

const CACHE: [&str; 6] = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];

const LOG: [&str; 8] = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "600s", "--destage-age", "600s"];

/// An attachment with a front of each kind that peers connect to, all of whom are stuck, and who cleans without end.
#[test]
fn an_attachment_ends_in_time_whatever_its_peers_and_its_target_do() {
    for (what, store) in [("nothing", &[][..]), ("a cache", &CACHE), ("a log", &LOG)] {
        for is_target_stopped in [false, true] {
            let world = World::new();
            let target = world.target(["--lun", "0=file:disk.img,size=64MiB"]);
            let (socket, url) = (world.path("disk.nbd"), target.url(0));
            let front = format!("nbd:unix:{}", socket.display());
            let fronts = ["attach", &url, "--name", "disk", "--as", "iscsi:0", "--as", &front];
            let disk = world.start([&fronts[..], &PATIENT, store].concat());
            if !store.is_empty() {
                let nbd = format!("nbd+unix:///?socket={}", socket.display());
                tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 64k", "-c", "flush", &nbd]);
            }
            // iscsi://PORTAL/TARGET/LUN
            let gateway = disk.ready.trim_start_matches("iscsi://").split('/').collect::<Vec<_>>();
            let stuck = stuck_initiators(gateway[0], gateway[1]);
            let client = nbd_client_that_does_not_read(&socket);
            let silent = UnixStream::connect(&socket).expect("it listens");
            let callers = idle_callers(&world, "disk");
            if is_target_stopped {
                signal(&target.process, Signal::STOP);
                // What waits for it now is under way.
                nbd_client_that_does_not_read(&socket);
            }
            let ended = end(disk, &format!("an attachment with {what}, its target stopped: {is_target_stopped}"));
            assert_eq!(ended.code, Some(0), "{what}: {ended:?}");
            let is_dirty = ended.stderr.contains("stay dirty");
            assert_eq!(is_dirty, !store.is_empty(), "{what}: {ended:?}");
            signal(&target.process, Signal::CONT);
            drop((stuck, client, silent, callers));
        }
    }
}

/// A cache of a GiB and what it is full of, in lines of 4 KiB: 250,000 lines that an attach looks at.
const LARGE_CACHE: [&str; 6] = ["--cache", "large.cache", "--cache-size", "1056MiB", "--cache-clean-above", "100%"];
const LARGE_CACHE_BYTES: u64 = 960 << 20;
/// How often it is tried to meet the time in which it is opened.
const WAITS_MAX: usize = 24;

/// Attaches and sends SIGTERM after `wait`; how it ended. What it printed is small enough for the pipes.
fn end_while_it_opens(world: &World, arguments: &[&str], wait: Duration) -> Finished {
    let mut child = world.forebay();
    let child = child.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is there");
    std::thread::sleep(wait);
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("it is a process");
    let began = Instant::now();
    kill_process(id, Signal::TERM).expect("it is our child");
    let output = child.wait_with_output().expect("it is our child");
    let (took, time_max) = (began.elapsed(), end_time_max());
    let signal = output.status.signal();
    assert!(signal.is_none_or(|signal| signal == Signal::TERM.as_raw()), "{output:?}");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    println!("SIGTERM after {wait:?}: {took:?} of {time_max:?}, {:?}, {stdout}", output.status.code());
    assert!(took < time_max, "after {wait:?} it took {took:?} to end, of {time_max:?}: {stderr}");
    Finished { code: output.status.code(), stdout, stderr }
}

/// Filling it takes some twenty seconds: no smaller one takes long enough to be opened.
#[test]
fn an_attach_that_opens_a_large_full_cache_ends_in_time_and_leaves_it_whole() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=1GiB"]);
    let (socket, url) = (world.path("disk.nbd"), target.url(0));
    let front = format!("nbd:unix:{}", socket.display());
    let attach = [&["attach", &url, "--name", "disk", "--as", &front], &LARGE_CACHE[..]].concat();
    let nbd = format!("nbd+unix:///?socket={}", socket.display());
    let ask = |what: &str| {
        let said = tool("qemu-io", ["-f", "raw", "-c", &format!("{what} 0 {LARGE_CACHE_BYTES}"), &nbd]);
        assert!(!said.contains("failed"), "{said}");
    };
    let disk = world.start(&attach);
    ask("write -P 7");
    assert!(disk.terminate().stderr.contains("stay dirty"));
    let assert_ends = |what: &str| {
        let mut waits = [30, 60, 90, 120, 150, 200, 350, 600].map(Duration::from_millis).to_vec();
        let mut early_count = 0;
        let mut next = 0;
        while next < waits.len() {
            let wait = waits[next];
            next += 1;
            let ended = end_while_it_opens(&world, &attach, wait);
            let was_ready = ended.stdout.contains("ready: ");
            if let Some(code) = ended.code {
                assert_eq!(code, i32::from(!was_ready), "{what}, after {wait:?}: {ended:?}");
                early_count += u32::from(!was_ready);
            }
            // Where it came before the program had its first turn, nobody was there to catch it. On a slow machine that
            // is so with all of these: it comes later then, until one is in time.
            if next == waits.len() && early_count == 0 {
                assert!(next < WAITS_MAX, "{what}: none came while it was opened");
                waits.push(if was_ready { wait * 2 / 3 } else { wait * 3 / 2 });
            }
        }
        assert_eq!(world.run(["cache", "check", "large.cache"]).success(), "large.cache: no damage found\n");
    };
    assert_ends("full of dirty lines");
    let disk = world.start(&attach);
    ask("read -P 7");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    assert_ends("full of clean lines");
    let disk = world.start(&attach);
    ask("read -P 7");
    disk.terminate().success();
}

/// A file system on a LUN in a directory, with a file that is durable.
struct Mounted {
    world: World,
    target: Target,
    directory: PathBuf,
    mount: Option<Process>,
}

const OLD: &[u8] = b"durable";
const NEW: &[u8] = b"changed";

impl Mounted {
    fn new() -> Self {
        let world = World::new();
        let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
        world.run(["mkfs", &target.url(0)]).success();
        let directory = world.path("files");
        fs::create_dir(&directory).unwrap();
        let mut mounted = Self { world, target, directory, mount: None };
        mounted.start(&PATIENT);
        let mut file = File::create(mounted.file()).unwrap();
        file.write_all(OLD).unwrap();
        file.sync_all().unwrap();
        mounted
    }

    fn start(&mut self, more: &[&str]) {
        let url = self.target.url(0);
        let mount = ["mount", &url, self.directory.to_str().unwrap()];
        self.mount = Some(self.world.start([&mount[..], more].concat()));
    }

    fn file(&self) -> PathBuf {
        self.directory.join("file")
    }

    /// Writes what is in no cache of the kernel's, and stays in memory here while the target is away.
    fn change(&self) {
        File::options().write(true).open(self.file()).unwrap().write_all_at(NEW, 0).unwrap();
    }

    fn mount(&mut self) -> Process {
        self.mount.take().expect("it is mounted")
    }

    /// Mounts it again at a target that answers: what was durable is there.
    #[track_caller]
    fn check(mut self) {
        self.target = self.world.target(["--lun", "0=file:disk.img,size=16MiB"]);
        self.start(&[]);
        let found = fs::read(self.file()).unwrap();
        assert!(found == OLD || found == NEW, "{found:?}");
        self.mount().terminate().success();
        tool("/usr/sbin/e2fsck", ["-fn".as_ref(), self.world.path("disk.img").as_os_str()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What was killed leaves a directory without a server.
        let _ = Command::new("umount").arg("--lazy").arg(&self.directory).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_mount_ends_in_time_without_its_target() {
    for is_killed in [false, true] {
        for is_changed in [false, true] {
            let what = format!("a mount, its target killed: {is_killed}, with something volatile: {is_changed}");
            let mut mounted = Mounted::new();
            match is_killed {
                true => mounted.target.process.kill(),
                false => signal(&mounted.target.process, Signal::STOP),
            }
            if is_changed {
                mounted.change();
            }
            let ended = end(mounted.mount(), &what);
            assert_eq!(ended.code, Some(if is_changed { 3 } else { 0 }), "{what}: {ended:?}");
            for (words, are_said) in [("may be lost", is_changed), ("not marked as clean", !is_changed)] {
                assert_eq!(ended.stderr.contains(words), are_said, "{what}: {ended:?}");
            }
            mounted.target.process.kill();
            mounted.check();
        }
    }
}

#[test]
fn a_detach_of_a_mount_says_what_it_waits_for_and_sigterm_ends_that() {
    let mut mounted = Mounted::new();
    mounted.target.process.kill();
    mounted.change();
    let world = &mounted.world;
    // Nothing but the memory of the mount has what was changed.
    let refused = ["nothing keeps", mounted.target.portal(), "kill "];
    world.run(["detach", "files", "--keep-dirty"]).failure(9, &refused);
    let detach = Underway::start(world.forebay().args(["detach", "files"]));
    detach.wait_for_words("is waited for");
    // Whoever comes second has the same end.
    let second = Underway::start(world.forebay().args(["detach", "files"]));
    second.wait_for_words("is waited for");
    let ended = end(mounted.mount(), "a mount that is being detached");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for detach in [detach, second] {
        let Finished { code, stderr: said, .. } = detach.finish();
        assert_eq!(code, Some(3), "{said}");
        for words in ["bytes are dirty, and ", "is waited for; `kill ", "may be lost"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    mounted.check();
}

#[test]
fn a_detach_of_a_mount_that_has_nothing_volatile_does_not_wait_for_its_target() {
    let mut mounted = Mounted::new();
    signal(&mounted.target.process, Signal::STOP);
    let began = Instant::now();
    let said = mounted.world.run(["detach", "files"]).success();
    assert!(began.elapsed() < end_time_max(), "{:?}", began.elapsed());
    assert!(said.contains("all that it acknowledged is durable"), "{said}");
    mounted.mount().wait().success();
    mounted.target.process.kill();
    mounted.check();
}

/// The target answers every question, and takes minutes for the first block.
#[test]
fn a_mount_that_begins_ends_in_time() {
    let world = World::new();
    let slow = world.target(["--lun", "0=ram:16MiB,transfer=10B/s"]);
    let directory = world.path("files");
    fs::create_dir(&directory).unwrap();
    let begun = Underway::start(world.forebay().args(["mount", &slow.url(0)]).arg(directory));
    world.wait_for_status("target", "a read that takes minutes", |status| status["tasks"].as_u64() > Some(0));
    let began = Instant::now();
    kill_process(i32::try_from(begun.id()).ok().and_then(Pid::from_raw).expect("it is a process"), Signal::TERM)
        .unwrap();
    let ended = begun.finish();
    assert!(began.elapsed() < end_time_max(), "{:?}", began.elapsed());
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

fn signal(process: &Process, signal: Signal) {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(id, signal).expect("it is our child");
}
