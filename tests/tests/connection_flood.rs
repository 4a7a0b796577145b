//! Connections that are opened and dropped at every stage of a login leave nothing behind: no task, no descriptor, no
//! session, hardly any memory.
//!
//! `FOREBAY_FLOOD_CONNECTIONS` changes how many.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::serial::Serial32;
use iscsi::pdu::{BHS_BYTES, LoginStage, NopOut};
use iscsi::text::Keys;
use serde_json::Value;
use tests::World;
use tests::bare_session::{login_request, pdu_bytes, read_pdu, tag};

const OPEN_IQN: &str = "iqn.2026-11.io.forebay:open";
const CHAP_IQN: &str = "iqn.2026-11.io.forebay:chap";
const CONNECTIONS_DEFAULT: usize = 10_000;
/// Connections at once: as many threads here.
const AT_ONCE: usize = 16;
/// What the target's memory may have grown by.
const GROWTH_BYTES_MAX: u64 = 8 << 20;
/// Longest wait until the target has noticed that the last connection is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a connection is dropped.
#[derive(Clone, Copy, Debug)]
enum Stage {
    BeforeAnything,
    InsideTheHeader,
    AfterSecurity,
    AfterTheChallenge,
    AfterOperational,
    InFullFeaturePhase,
    InDiscovery,
}

const STAGES: [Stage; 7] = [
    Stage::BeforeAnything,
    Stage::InsideTheHeader,
    Stage::AfterSecurity,
    Stage::AfterTheChallenge,
    Stage::AfterOperational,
    Stage::InFullFeaturePhase,
    Stage::InDiscovery,
];

/// An initiator of few words.
struct Peer {
    stream: TcpStream,
    number: u32,
}

impl Peer {
    fn login(&mut self, stage: LoginStage, transit_to: Option<LoginStage>, keys: &[(&'static str, &str)]) {
        let mut text = Keys::new();
        keys.iter().for_each(|(key, value)| text.push(*key, *value));
        let bytes = pdu_bytes(&login_request(self.number, stage, transit_to), text.emit());
        self.stream.write_all(&bytes).expect("the target takes a login");
        self.answer();
    }

    fn answer(&mut self) {
        read_pdu(&mut self.stream).expect("the target answers");
    }

    /// Brings the connection where it is dropped.
    fn go(&mut self, stage: Stage) {
        use LoginStage::{FullFeaturePhase, OperationalNegotiation as Operational, SecurityNegotiation as Security};
        let initiator = ("InitiatorName", "iqn.2026-11.io.forebay:flood");
        let open = ("TargetName", OPEN_IQN);
        match stage {
            Stage::BeforeAnything => {}
            Stage::InsideTheHeader => self.stream.write_all(&[0x43; BHS_BYTES / 2]).expect("there is room"),
            Stage::AfterSecurity => {
                self.login(Security, Some(Operational), &[initiator, open, ("AuthMethod", "None")]);
            }
            Stage::AfterTheChallenge => {
                self.login(Security, None, &[initiator, ("TargetName", CHAP_IQN), ("AuthMethod", "CHAP")]);
                self.login(Security, None, &[("CHAP_A", "7")]);
            }
            Stage::AfterOperational => {
                self.login(Security, Some(Operational), &[initiator, open, ("AuthMethod", "None")]);
                self.login(Operational, None, &[("HeaderDigest", "CRC32C"), ("ErrorRecoveryLevel", "2")]);
            }
            Stage::InFullFeaturePhase => {
                self.login(Operational, Some(FullFeaturePhase), &[initiator, open]);
                let ping = NopOut {
                    is_immediate: false,
                    lun: 0,
                    initiator_task_tag: Some(tag(2)),
                    target_transfer_tag: None,
                    cmd_sn: Serial32(1),
                    exp_stat_sn: Serial32(1),
                };
                self.stream.write_all(&pdu_bytes(&ping, Vec::new())).expect("there is room");
                self.answer();
            }
            Stage::InDiscovery => {
                self.login(Operational, Some(FullFeaturePhase), &[initiator, ("SessionType", "Discovery")]);
            }
        }
    }
}

/// What the target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    sessions: usize,
    connections: usize,
    tasks: u64,
    threads: usize,
    descriptors: usize,
}

fn status(world: &World) -> Value {
    world.run(["target", "status", "--json"]).json()
}

fn held(world: &World, pid: u32) -> Held {
    let status = status(world);
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("the process lives").count();
    let length = |key: &str| status[key].as_array().map_or(usize::MAX, Vec::len);
    Held {
        sessions: length("sessions"),
        connections: length("connections"),
        tasks: status["tasks"].as_u64().expect("it is a number"),
        threads: count("task"),
        descriptors: count("fd"),
    }
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux tells");
    let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("it is a number");
    kilobytes << 10
}

fn flood(portal: &str, connections: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= connections {
                        return;
                    }
                    let stream = TcpStream::connect(portal).expect("the target listens");
                    stream.set_read_timeout(Some(PATIENCE)).expect("it is a duration");
                    // Every second round ends with a reset instead of a FIN.
                    if (number / STAGES.len()).is_multiple_of(2) {
                        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("it is a socket");
                    }
                    let mut peer = Peer { stream, number: number as u32 };
                    peer.go(STAGES[number % STAGES.len()]);
                }
            });
        }
    });
}

/// Waits until the target holds what it held at first.
fn settle(world: &World, pid: u32, baseline: Held) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = held(world, pid);
        if now == baseline {
            return;
        }
        assert!(Instant::now() < deadline, "the target holds {now:?}, at first it held {baseline:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_dropped_at_every_stage_leave_nothing() {
    let connections = std::env::var("FOREBAY_FLOOD_CONNECTIONS")
        .map_or(CONNECTIONS_DEFAULT, |text| text.parse().expect("FOREBAY_FLOOD_CONNECTIONS is a number"));
    let world = World::new();
    fs::write(world.path("secret"), "a-secret-of-20-bytes\n").unwrap();
    let config = format!(
        "portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{OPEN_IQN}\"\nluns = [\"0=ram:16MiB\"]\n\
         [[target]]\niqn = \"{CHAP_IQN}\"\nluns = [\"0=ram:16MiB\"]\nchap-user = \"alice\"\nchap-file = \"secret\"\n"
    );
    fs::write(world.path("target.toml"), config).unwrap();
    let target = world.start(["target", "serve", "--config", "target.toml"]);
    let pid = target.id();
    // The status's own connection to the control socket may still be open when descriptors are counted: the fewest of
    // several are those that stay.
    let samples = (0..10).map(|_| held(&world, pid));
    let baseline = samples.min_by_key(|held| held.descriptors).expect("there are ten");
    assert_eq!((baseline.sessions, baseline.connections, baseline.tasks), (0, 0, 0));
    // A few of each first: what every process takes once is no leak.
    flood(&target.ready, 8 * STAGES.len());
    settle(&world, pid, baseline);
    let resident = resident_bytes(pid);
    let begun = Instant::now();
    flood(&target.ready, connections);
    settle(&world, pid, baseline);
    let grown = resident_bytes(pid).saturating_sub(resident);
    println!(
        "{connections} connections in {:?}: {} KiB more than {} KiB",
        begun.elapsed(),
        grown >> 10,
        resident >> 10
    );
    assert!(grown <= GROWTH_BYTES_MAX, "the target has grown by {grown} bytes");
    let accepted = status(&world)["connections_accepted"].as_u64().expect("it is a number");
    assert_eq!(accepted, (connections + 8 * STAGES.len()) as u64, "every connection was taken");
    assert!(target.terminate().code == Some(0));
}
