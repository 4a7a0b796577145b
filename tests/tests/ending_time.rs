//! SIGTERM ends a target and an attachment within five seconds, whatever their peers do or do not do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tests::bare_session::BareSession;
use tests::{Finished, IQN, Process, World, tool};

/// What is promised (docs/reference/exit-codes.md).
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// The same where more programs want to run than there are processors: each of the timers that make up the five seconds
/// runs late then, and whatever is done between them waits for a processor. Far less than any of the times that would
/// follow without them (those of a ping, a command or a session are a minute and more).
const LOADED_END_TIME_MAX: Duration = Duration::from_secs(10);

/// How long an end may take here and now.
fn end_time_max() -> Duration {
    let text = std::fs::read_to_string("/proc/loadavg").expect("Linux tells");
    // Of the last minute.
    let load: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("it is a number");
    let processors = std::thread::available_parallelism().expect("Linux tells").get();
    if load > processors as f64 { LOADED_END_TIME_MAX } else { END_TIME_MAX }
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
        let mut early_count = 0;
        for wait in [30, 60, 90, 120, 150, 200, 350, 600].map(Duration::from_millis) {
            let ended = end_while_it_opens(&world, &attach, wait);
            // Where it came before the program had its first turn, nobody was there to catch it.
            let Some(code) = ended.code else { continue };
            let was_ready = ended.stdout.contains("ready: ");
            assert_eq!(code, i32::from(!was_ready), "{what}, after {wait:?}: {ended:?}");
            early_count += u32::from(!was_ready);
        }
        assert!(early_count > 0, "{what}: none came while it was opened");
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

fn signal(process: &Process, signal: Signal) {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(id, signal).expect("it is our child");
}
