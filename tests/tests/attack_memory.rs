//! Peers that ask for much and take nothing make a target hold what its limits say, and no more: of the whole process,
//! as the operating system counts it.

use std::fs;
use std::io;
use std::thread;

use tests::bare_session::{BareSession, read_pdu};
use tests::{IQN, Process, World};

const MIB: u64 = 1 << 20;
/// Sessions of each kind.
const SESSIONS: u64 = 8;
const DATA_IN_BYTES: u64 = 64 * MIB;
const DATA_OUT_BYTES: u64 = 64 * MIB;
/// What a session may have beyond these whatever others hold: a read of a MiB, a piece of a write.
const ALWAYS_BYTES: u64 = MIB + (64 << 10);
/// Answers of one connection that wait to be sent (docs/concepts/limits.md).
const ANSWER_BYTES: u64 = 2 * MIB;
/// What all else may take: the program itself, its threads and pools, and what the allocator keeps.
const ELSE_BYTES: u64 = 64 * MIB;
/// Texts that are sent at once.
const TEXTS: usize = 100;

fn peak_bytes(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells");
    let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("it is a number");
    kilobytes << 10
}

/// What one session of an attack does without end.
type Attack = fn(&mut BareSession, u32) -> io::Result<()>;

fn ping(session: &mut BareSession, _: u32) -> io::Result<()> {
    session.ping(&[b'n'; 256 << 10])
}

fn read(session: &mut BareSession, number: u32) -> io::Result<()> {
    session.read(100 + number, MIB as u32)
}

/// One burst: room is kept for all that a command asks for, and memory is held for what has come of it.
fn write(session: &mut BareSession, number: u32) -> io::Result<()> {
    session.unfinished_write(100 + number, 256 << 10)
}

/// Short ones: of these a target looks at most in a time, and each answer is longer than its text.
fn text(session: &mut BareSession, _: u32) -> io::Result<()> {
    session.texts(b"a=\0", TEXTS)
}

/// How often each session asks, which is more than it can have, and what they all may make the target hold.
const ATTACKS: [(&str, &str, Attack, u32, u64); 4] = [
    ("pings whose echoes are not read", "ping", ping, 400, SESSIONS * ANSWER_BYTES),
    ("reads that are not fetched", "read", read, 100, DATA_IN_BYTES + SESSIONS * ALWAYS_BYTES),
    ("writes whose data does not end", "write", write, 100, DATA_OUT_BYTES + SESSIONS * ALWAYS_BYTES),
    ("texts whose answers are not read", "text", text, 10_000, SESSIONS * ANSWER_BYTES),
];

/// Sessions that go on with an attack until the target takes nothing more of it.
fn besiege(portal: &str, attack: Attack, name: &str, requests: u32) -> Vec<BareSession> {
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxRecvDataSegmentLength", "262144")];
    let besiege = |number: u32| {
        let mut session = BareSession::log_in(portal, IQN, &format!("iqn.2026-11.io.forebay:{name}"), number, &keys);
        // It may close the connection, or stop listening. What is behind the window of commands it drops in silence.
        let ended = (0..requests).try_for_each(|request| attack(&mut session, request));
        assert!(ended.is_err() || name == "read", "{name}: it would have taken more");
        session
    };
    thread::scope(|scope| {
        let besieging: Vec<_> = (0..SESSIONS as u32).map(|number| scope.spawn(move || besiege(number))).collect();
        besieging.into_iter().map(|session| session.join().expect("it logs in")).collect()
    })
}

#[track_caller]
fn assert_bounded(target: &Process, limit: u64, what: &str) {
    // Somebody else is served meanwhile, and only after what came before was looked at.
    BareSession::log_in(&target.ready, IQN, "iqn.2026-11.io.forebay:good", 1, &[]);
    let peak = peak_bytes(target.id());
    println!("{what}: {} MiB", peak / MIB);
    assert!(peak < limit + ELSE_BYTES, "{what}: {} MiB where {} and 64 are allowed", peak / MIB, limit / MIB);
}

/// What all sessions keep for recovery, and what each always may (docs/concepts/limits.md).
const RETAINED_BYTES: u64 = 256 * MIB;
const RETAINED_ALWAYS_BYTES: u64 = MIB / 2;

/// Echoes that are read, of sessions that could ask for them again: they acknowledge none, and each has so few that it
/// has a part of its share only.
#[test]
fn echoes_that_nobody_acknowledges_are_bounded_in_all() {
    const SESSIONS: u32 = 112;
    const PINGS: usize = 16;
    let world = World::new();
    let target = world.start(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:64MiB"]);
    let keys = [("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "262144")];
    let keep = |number: u32| {
        let name = "iqn.2026-11.io.forebay:keep";
        let mut session = BareSession::log_in(&target.ready, IQN, name, number, &keys);
        let (mut stream, _) = session.raw().expect("a connection can be cloned");
        for _ in 0..PINGS {
            session.ping(&[b'n'; 256 << 10]).expect("the target takes a ping");
            read_pdu(&mut stream).expect("it is answered");
        }
        session
    };
    let _sessions: Vec<_> = (0..SESSIONS).map(keep).collect();
    let limit = RETAINED_BYTES + u64::from(SESSIONS) * RETAINED_ALWAYS_BYTES;
    assert_bounded(&target, limit, "echoes that nobody acknowledges");
    target.terminate().success();
}

/// Each attack alone, and then all of them together.
#[test]
fn attacks_make_a_target_hold_what_its_limits_say() {
    let world = World::new();
    let config = format!(
        "portals = [\"127.0.0.1:0\"]\n[limits]\ndata-in = \"{DATA_IN_BYTES}\"\ndata-out = \"{DATA_OUT_BYTES}\"\n\
         [[target]]\niqn = \"{IQN}\"\nluns = [\"0=file:disk.img,size=64MiB\"]\n"
    );
    fs::write(world.path("target.toml"), config).expect("the world is writable");
    let serve = || world.start(["target", "serve", "--config", "target.toml"]);
    for (what, name, attack, requests, limit) in ATTACKS {
        let target = serve();
        let _sessions = besiege(&target.ready, attack, name, requests);
        assert_bounded(&target, limit, what);
        target.terminate().success();
    }
    let target = serve();
    let _sessions = ATTACKS.map(|(_, name, attack, requests, _)| besiege(&target.ready, attack, name, requests));
    assert_bounded(&target, ATTACKS.iter().map(|(.., limit)| limit).sum(), "all together");
    target.terminate().success();
}
