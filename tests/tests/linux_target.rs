//! Our initiator in front of Linux 6.12's own target (LIO), which runs in a guest: the one stock target in Debian that
//! speaks several connections a session, and one that we did not write. Data is verified under every combination of
//! connections, digests, CHAP and error recovery.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::forwarder::Forwarder;
use tests::guest::{Guest, RunningGuest};
use tests::{World, tool};

/// The name that the guest's targets let in.
const INITIATOR: &str = "iqn.2026-11.io.forebay:outside";
/// The CHAP secrets of target `chap`, its own and ours.
const SECRETS: (&str, &str) = ("a-secret-of-19-bytes", "and-one-of-19-bytes");

/// The guest: a target for each set of parameters, all on one portal, each with LUN 0 in RAM and LUN 1 in a file. Then
/// it does what it is told, one line at a time, and says `done`.
const SCRIPT: &str = r#"
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/target
mkdir -p core/rd_mcp_0/ram core/fileio_0/file
echo "rd_pages=16384" >core/rd_mcp_0/ram/control
truncate -s 64M /tmp/disk
echo "fd_dev_name=/tmp/disk,fd_dev_size=67108864" >core/fileio_0/file/control
for disk in rd_mcp_0/ram fileio_0/file; do
  echo "$(basename $disk)-0001" >core/$disk/wwn/vpd_unit_serial
  echo 1 >core/$disk/enable
done
echo 1 >core/fileio_0/file/attrib/emulate_tpu
mkdir -p iscsi
# make_target NAME [KEY=VALUE ...]
make_target() { target=$1; shift; make_group $target 1 3260 "$@"; }
# make_group TARGET TAG PORT [KEY=VALUE ...]
make_group() {
  group=iscsi/iqn.2026-11.io.forebay:$1/tpgt_$2
  acl=$group/acls/$INITIATOR
  mkdir -p $group/np/0.0.0.0:$3 $group/lun/lun_0 $group/lun/lun_1 $acl/lun_0 $acl/lun_1
  shift 3
  ln -s core/rd_mcp_0/ram $group/lun/lun_0/ram
  ln -s core/fileio_0/file $group/lun/lun_1/file
  ln -s $group/lun/lun_0 $acl/lun_0/lun_0
  ln -s $group/lun/lun_1 $acl/lun_1/lun_1
  echo 0 >$group/attrib/authentication
  for parameter in "$@"; do echo "${parameter#*=}" >$group/param/${parameter%%=*}; done
}
# set_auth KEY VALUE ...: what is written there is taken as it is, with its line feed if there is one.
set_auth() { while [ $# -gt 0 ]; do printf %s "$2" >$acl/auth/$1; shift 2; done; }
make_target plain MaxConnections=4
make_target single MaxConnections=1
make_target eager MaxConnections=4 InitialR2T=No MaxOutstandingR2T=4 MaxBurstLength=1048576
make_target solicited MaxConnections=4 ImmediateData=No InitialR2T=Yes MaxBurstLength=65536
make_target recovery MaxConnections=4
# What it offers an initiator is kept with that, and its parameter of this name is not looked at.
echo 2 >$acl/attrib/default_erl
make_target chap MaxConnections=4
echo 1 >$group/attrib/authentication
set_auth userid alice password "$SECRET"
make_target mutual MaxConnections=4
echo 1 >$group/attrib/authentication
set_auth userid alice password "$SECRET"
set_auth userid_mutual bob password_mutual "$MUTUAL_SECRET"
# Two ways to LUN 0, each with an access state of its own.
states=core/rd_mcp_0/ram/alua
for tag in 1 2; do
  make_group ways $tag $((3259 + tag))
  mkdir $states/way$tag
  echo $tag >$states/way$tag/tg_pt_gp_id
  echo way$tag >$group/lun/lun_0/alua_tg_pt_gp
done
# set_state TAG STATE: 0 active/optimized, 1 active/non-optimized, 2 standby
set_state() { echo $2 >$states/way$1/alua_access_state; }
for group in iscsi/iqn.*/tpgt_*; do echo 1 >$group/enable; done
echo "serving"
while read -r command && [ "$command" != end ]; do eval "$command"; echo "done"; done
"#;

fn boot() -> RunningGuest {
    let variables = format!("INITIATOR={INITIATOR} SECRET={} MUTUAL_SECRET={}\n", SECRETS.0, SECRETS.1);
    let modules = ["configfs", "target_core_mod", "target_core_file", "iscsi_target_mod", "crc32c_generic"];
    let guest = Guest::new().with_modules(&modules).with_ports(&[3260, 3261]);
    let mut guest = guest.boot(&(variables + SCRIPT));
    guest.wait_for("serving");
    guest
}

/// A combination that is tried.
struct Trial {
    target: &'static str,
    /// Of the initiator, on every command line.
    arguments: &'static [&'static str],
    /// Connections that the session then has.
    connections: usize,
    /// What both ends then agree on.
    agreed: &'static [(&'static str, &'static str)],
}

const PAIR: &[&str] = &["--connections", "2"];
const DIGESTS: &[&str] = &["--connections", "2", "--digests"];
const SPLIT: &[&str] = &["--connections", "2", "--split-connections"];
const CHAP: &[&str] = &["--connections", "2", "--digests", "--chap-user", "alice", "--chap-file", "secret"];
#[rustfmt::skip]
const MUTUAL: &[&str] = &[
    "--connections", "2", "--chap-user", "alice", "--chap-file", "secret",
    "--mutual-chap-user", "bob", "--mutual-chap-file", "mutual-secret",
];

#[rustfmt::skip]
const TRIALS: &[Trial] = &[
    Trial { target: "plain", arguments: &[], connections: 1, agreed: &[("InitialR2T", "true"), ("ImmediateData", "true")] },
    Trial { target: "plain", arguments: PAIR, connections: 2, agreed: &[("MaxConnections", "4")] },
    Trial { target: "plain", arguments: DIGESTS, connections: 2, agreed: &[("DataDigest", "\"CRC32C\"")] },
    // The extension is ours alone: with Linux they are ordinary connections.
    Trial { target: "plain", arguments: SPLIT, connections: 2, agreed: &[] },
    Trial { target: "single", arguments: PAIR, connections: 1, agreed: &[("MaxConnections", "1")] },
    Trial { target: "eager", arguments: PAIR, connections: 2, agreed: &[("InitialR2T", "false"), ("MaxOutstandingR2T", "4")] },
    Trial { target: "solicited", arguments: PAIR, connections: 2, agreed: &[("InitialR2T", "true"), ("ImmediateData", "false")] },
    Trial { target: "recovery", arguments: PAIR, connections: 2, agreed: &[("ErrorRecoveryLevel", "2")] },
    Trial { target: "chap", arguments: CHAP, connections: 2, agreed: &[("HeaderDigest", "\"CRC32C\"")] },
    Trial { target: "mutual", arguments: MUTUAL, connections: 2, agreed: &[] },
];

fn name(target: &str) -> String {
    format!("iqn.2026-11.io.forebay:{target}")
}

/// Requests small enough for immediate data and large enough for R2Ts, on both LUNs; every read is checked.
fn verify(world: &World, address: &str, trial: &Trial) {
    for (lun, size, requests) in [(0, "4KiB", "1500"), (1, "4KiB", "500"), (0, "1MiB", "40"), (1, "512KiB", "40")] {
        let url = format!("iscsi://{address}/{}/{lun}", name(trial.target));
        let bench = ["bench", &url, "--rw", "randrw", "--bs", size, "--requests", requests, "--depth", "16", "--json"];
        let check = ["--verify", "--allow-data-loss", "--initiator-name", INITIATOR];
        let finished = world.run([&bench[..], &check, trial.arguments].concat());
        assert_eq!(finished.stderr, "", "{url} {:?}", trial.arguments);
        let measured = finished.json();
        assert_eq!(measured["operations"].to_string(), requests, "{url} {:?}", trial.arguments);
    }
}

/// What both ends say of a session: the connections, and what was negotiated.
fn compare_sessions(world: &World, guest: &mut RunningGuest, address: &str, trial: &Trial) {
    let url = format!("iscsi://{address}/{}/0", name(trial.target));
    let attach = ["attach", &url, "--name", "disk", "--initiator-name", INITIATOR];
    let disk = world.start([&attach[..], trial.arguments].concat());
    let remote = || {
        let status = world.status("disk");
        status["remote"].clone()
    };
    // The others are made after the first, while the device works already.
    let deadline = Instant::now() + Duration::from_secs(60);
    while remote()["connections"] != trial.connections && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let remote = remote();
    assert_eq!(remote["connections"], trial.connections, "{remote}");
    assert_eq!(remote["sessions"], 1, "{remote}");
    assert_eq!(remote["split_connections"], 0, "{remote}");
    for (key, value) in trial.agreed {
        assert_eq!(remote["negotiated"][key].to_string(), *value, "{key} with {}", trial.target);
    }
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 1M 1M", "-c", "read -P 7 1M 1M", "-c", "flush", &disk.ready]);
    let session = ask(guest, &format!("cat iscsi/{}/tpgt_1/acls/{INITIATOR}/info", name(trial.target)));
    let serving = session.iter().filter(|line| line.starts_with("CID: ") && line.contains("LOGGED_IN")).count();
    assert_eq!(serving, trial.connections, "{session:#?}");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}

/// What the guest prints for a command.
fn ask(guest: &mut RunningGuest, command: &str) -> Vec<String> {
    guest.answer(command);
    let mut lines = Vec::new();
    loop {
        match guest.wait_for("") {
            line if line == "done" => return lines,
            line => lines.push(line),
        }
    }
}

/// How many guests are tried before a kernel that dies is no accident.
const GUESTS: usize = 4;

/// What is tried with a guest, and with another one when Linux's own target died of it: with two connections that
/// happens now and then (general protection faults in its sending thread, and at the end of its session), and says
/// nothing of the initiator.
fn on_a_guest(trial: impl Fn(&mut RunningGuest)) {
    for attempt in 1.. {
        let mut guest = boot();
        match catch_unwind(AssertUnwindSafe(|| trial(&mut guest))) {
            Ok(()) => {
                guest.answer("end");
                let kernel_log = guest.finish().kernel_log;
                for bad in ["BUG:", "WARNING:", "Oops", "TARGET_CORE"] {
                    assert!(!kernel_log.contains(bad), "\"{bad}\" in:\n{kernel_log}");
                }
                return;
            }
            Err(_) if attempt < GUESTS && guest.kernel_died_in("iscsi_target_mod") => {
                println!("guest {attempt}: Linux's target died");
            }
            Err(cause) => resume_unwind(cause),
        }
    }
}

#[test]
fn linux_serves_us_whatever_was_negotiated() {
    on_a_guest(try_all);
}

fn try_all(guest: &mut RunningGuest) {
    let world = World::new();
    fs::write(world.path("secret"), SECRETS.0).expect("the world is ours");
    fs::write(world.path("mutual-secret"), SECRETS.1).expect("the world is ours");
    let address = guest.address(3260).to_string();
    let found = world.run(["discover", &address, "--initiator-name", INITIATOR]).success();
    for trial in TRIALS {
        assert!(found.contains(&name(trial.target)), "{} is missing: {found}", trial.target);
        verify(&world, &address, trial);
        compare_sessions(&world, guest, &address, trial);
    }
    let url = format!("iscsi://{address}/{}/0", name("chap"));
    fs::write(world.path("wrong"), "not-the-secret-at-all").expect("the world is ours");
    let chap = ["--initiator-name", INITIATOR, "--chap-user", "alice", "--chap-file"];
    world.run([&["inquiry", &url][..], &chap, &["secret"]].concat()).success();
    world.run([&["inquiry", &url][..], &chap, &["wrong"]].concat()).failure(4, &["CHAP"]);
}

/// A connection of two that is lost under load: at level 0 a new session is made, and nothing is lost. At level 2 Linux
/// agrees too, but its kernel mostly dies of it (a general protection fault in `iscsit_stop_session`, at the logout),
/// so that is not tried here.
#[test]
fn a_connection_to_linux_is_lost_and_data_is_not() {
    on_a_guest(|guest| lose_a_connection(guest));
}

fn lose_a_connection(guest: &RunningGuest) {
    let world = World::new();
    let forwarder = Forwarder::to(&guest.address(3260).to_string());
    let url = format!("iscsi://{}/{}/0", forwarder.address, name("plain"));
    let attach = ["attach", &url, "--name", "disk", "--initiator-name", INITIATOR, "--connections", "2"];
    let disk = world.start(attach);
    let remote = || {
        let status = world.status("disk");
        status["remote"].clone()
    };
    world.wait_for_remote("disk", "two connections", |remote| remote["connections"] == 2);
    assert_eq!(remote()["negotiated"]["ErrorRecoveryLevel"], 0);
    std::thread::scope(|scope| {
        let bench = ["bench", "disk", "--rw", "randrw", "--bs", "16KiB", "--depth", "16", "--requests", "12000"];
        let checked = [&bench[..], &["--verify", "--allow-data-loss"]].concat();
        let running = scope.spawn(|| world.run(checked));
        let begun = remote()["commands_sent"].as_u64().expect("a count");
        world.wait_for_remote("disk", "load", |remote| remote["commands_sent"].as_u64() > Some(begun + 1000));
        forwarder.cut_one(1);
        world.wait_for_remote("disk", "two connections again", |remote| {
            remote["sessions"].as_u64() >= Some(2) && remote["connections"] == 2
        });
        running.join().expect("it does not panic").success();
    });
    world.run(["detach", "disk"]).success();
    let finished = disk.wait();
    println!("{}", finished.stderr);
    finished.success();
}

/// The paths as `status` shows them.
fn paths(world: &World) -> Vec<Value> {
    let status = world.status("disk");
    status["multipath"]["paths"].as_array().expect("there are paths").clone()
}

/// Waits until the paths have these access states: they are asked for every five seconds.
fn wait_for_access(world: &World, expected: [&str; 2]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let paths = paths(world);
        if paths.iter().map(|path| &path["access"]).eq(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "never {expected:?}: {paths:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes and reads a pattern; how many requests each path took.
fn requests_of(world: &World, disk: &str, pattern: u8) -> (u64, u64) {
    let counts = || paths(world).iter().map(|path| path["requests"].as_u64().expect("a count")).collect::<Vec<_>>();
    let before = counts();
    let (write, read) = (format!("write -P {pattern} 0 1M"), format!("read -P {pattern} 0 1M"));
    tool("qemu-io", ["-f", "raw", "-c", &write, "-c", &read, "-c", &write, "-c", &read, disk]);
    let after = counts();
    (after[0] - before[0], after[1] - before[1])
}

/// Linux's target with two target port groups, whose access states change while requests go on.
#[test]
fn requests_follow_the_access_states_of_linux() {
    for policy in ["failover", "round-robin"] {
        on_a_guest(|guest| follow_access(guest, policy));
    }
}

fn follow_access(guest: &mut RunningGuest, policy: &str) {
    let is_round = policy == "round-robin";
    let world = World::new();
    let url = |port| format!("iscsi://{}/{}/0", guest.address(port), name("ways"));
    let urls = [url(3260), url(3261)].join(",");
    let attach = ["attach", &urls, "--multipath", policy, "--name", "disk", "--initiator-name", INITIATOR];
    // A path in standby is a path all the same.
    ask(guest, "set_state 1 2");
    let disk = world.start(attach);
    wait_for_access(&world, ["none", "optimized"]);
    assert!(matches!(requests_of(&world, &disk.ready, 1), (0, 1..)));
    ask(guest, "set_state 1 0");
    wait_for_access(&world, ["optimized", "optimized"]);
    assert!(matches!((requests_of(&world, &disk.ready, 2), is_round), ((1.., 0), false) | ((1.., 1..), true)));
    // Nobody knows of this before the first request is refused.
    ask(guest, "set_state 1 2");
    assert!(matches!(requests_of(&world, &disk.ready, 3), (0..=2, 1..)));
    ask(guest, "set_state 1 1");
    wait_for_access(&world, ["non-optimized", "optimized"]);
    assert!(matches!(requests_of(&world, &disk.ready, 4), (0, 1..)));
    // For a moment no way is open.
    ask(guest, "set_state 1 2; set_state 2 2; (sleep 2; set_state 1 0) &");
    assert!(matches!(requests_of(&world, &disk.ready, 5), (1.., _)));
    wait_for_access(&world, ["optimized", "none"]);
    assert!(matches!(requests_of(&world, &disk.ready, 6), (1.., 0)));
    assert!(paths(&world).iter().all(|path| path["remote"]["sessions"] == 1), "no session was lost");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}
