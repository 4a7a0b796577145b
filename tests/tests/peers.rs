//! Our initiator in front of our own target and of tgt, which we did not write and which knows one connection a
//! session: the same commands with the same flags, data verified, by the bytes in the target's own file as well.
//! (Linux's target, which knows several: linux_target.rs.)

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::{IQN, World, finish, tool};

/// What no machine is too slow for.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE_BYTES: u64 = 16 << 20;
const LUN: u16 = 1;
/// Of tgt's CHAP account, and of its own.
const SECRETS: (&str, &str) = ("a-secret-of-19-bytes", "and-one-of-19-bytes");

/// tgtd as a process of its own, with a control socket in the world's directory.
struct Tgt<'a> {
    world: &'a World,
    port: u16,
    process: Child,
}

impl<'a> Tgt<'a> {
    fn start(world: &'a World) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port();
        let file = std::fs::File::create(world.path("tgt.img")).unwrap();
        file.set_len(SIZE_BYTES).unwrap();
        let mut tgt = Self { world, port, process: Self::spawn(world, port) };
        tgt.configure();
        tgt
    }

    fn spawn(world: &World, port: u16) -> Child {
        let mut command = Command::new("tgtd");
        command.args(["-f", "-C", "1", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", world.path("tgt")).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("tgtd can be run: tests/tools/install-packages installs it")
    }

    fn configure(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "tgtd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (lun, file) = (LUN.to_string(), self.world.path("tgt.img"));
        self.administer(&["--mode", "target", "--op", "new", "--tid", "1", "-T", IQN]);
        let unit = ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", &lun, "-b"];
        self.administer(&[&unit[..], &[file.to_str().unwrap()]].concat());
        self.administer(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"]);
    }

    fn administer(&self, order: &[&str]) {
        let mut command = Command::new("tgtadm");
        command.env("TGT_IPC_SOCKET", self.world.path("tgt")).args(["-C", "1", "--lld", "iscsi"]).args(order);
        finish(&mut command).success();
    }

    fn update(&self, key: &str, value: &str) {
        self.administer(&["--mode", "target", "--op", "update", "--tid", "1", "--name", key, "--value", value]);
    }

    /// A CHAP account, asked for or shown (`--outgoing`).
    fn bind_account(&self, user: &str, secret: &str, direction: &[&str]) {
        self.administer(&["--mode", "account", "--op", "new", "--user", user, "--password", secret]);
        self.administer(&[&["--mode", "account", "--op", "bind", "--tid", "1", "--user", user], direction].concat());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.process = Self::spawn(self.world, self.port);
        self.configure();
    }

    fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{IQN}/{LUN}", self.portal())
    }
}

impl Drop for Tgt<'_> {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a session comes to: flags, connections with our target and how many of them are halves, connections with tgt.
const SHAPES: [(&[&str], (u64, u64), u64); 4] = [
    (&[], (1, 0), 1),
    (&["--connections", "3"], (3, 0), 1),
    (&["--split-connections"], (2, 2), 1),
    (&["--connections", "2", "--split-connections"], (4, 4), 1),
];

/// Small requests with immediate data and large ones with many R2Ts; every read is checked.
fn verify(world: &World, url: &str, flags: &[&str]) {
    for (size, requests) in [("4KiB", "800"), ("128KiB", "80"), ("1MiB", "20")] {
        let bench = ["bench", url, "--rw", "randrw", "--bs", size, "--requests", requests, "--depth", "8", "--json"];
        let finished = world.run([&bench[..], &["--verify", "--allow-data-loss"], flags].concat());
        assert_eq!(finished.stderr, "", "{url} {flags:?}");
        let measured = finished.json();
        assert_eq!(measured["operations"].to_string(), requests, "{url} {flags:?}");
    }
}

/// Attaches, writes, and finds the bytes in `image`. What the session came to.
fn attach_and_write(world: &World, url: &str, flags: &[&str], pattern: u8, connections: (u64, u64), image: &str) {
    let disk = world.start([&["attach", url, "--name", "disk"][..], flags].concat());
    let wanted = (Some(connections.0), Some(connections.1));
    world.wait_for_remote("disk", "the connections", |remote| {
        (remote["connections"].as_u64(), remote["split_connections"].as_u64()) == wanted
    });
    let write = format!("write -P {pattern} 64k 2M");
    let read = format!("read -P {pattern} 64k 2M");
    tool("qemu-io", ["-f", "raw", "-c", &write, "-c", "flush", "-c", &read, &disk.ready]);
    let remote = world.status("disk")["remote"].clone();
    assert_eq!((&remote["sessions"], &remote["state"]), (&1.into(), &"online".into()), "{remote}");
    let allowed = remote["negotiated"]["MaxConnections"].as_u64().unwrap();
    assert!(allowed >= connections.0, "{remote}");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    let image = std::fs::read(world.path(image)).unwrap();
    assert!(image[64 << 10..(64 << 10) + (2 << 20)].iter().all(|&byte| byte == pattern), "{flags:?}");
}

/// `discover` and `inquiry` with every combination of flags.
fn look(world: &World, portal: &str, url: &str, flags: &[&str]) {
    let found = world.run([&["discover", portal][..], flags].concat()).success();
    assert!(found.contains(IQN) && found.contains(portal), "{found}");
    let unit = world.run([&["inquiry", url, "--json"][..], flags].concat()).json();
    assert_eq!(unit["size_bytes"], SIZE_BYTES, "{unit}");
    assert!(unit["serial"].as_str().is_some_and(|serial| !serial.is_empty()), "{unit}");
}

#[test]
fn our_own_target_serves_us() {
    let world = World::new();
    let target = world.target(["--lun", &format!("{LUN}=file:ours.img,size=16MiB")]);
    let url = target.url(LUN.into());
    for (pattern, (flags, connections, _)) in (1..).zip(SHAPES) {
        look(&world, target.portal(), &url, flags);
        verify(&world, &url, flags);
        verify(&world, &url, &[flags, &["--digests"]].concat());
        attach_and_write(&world, &url, flags, pattern, connections, "ours.img");
    }
}

#[test]
fn tgt_serves_us_over_one_connection() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let (portal, url) = (tgt.portal(), tgt.url());
    for (pattern, (flags, _, connections)) in (1..).zip(SHAPES) {
        look(&world, &portal, &url, flags);
        verify(&world, &url, flags);
        attach_and_write(&world, &url, flags, pattern, (connections, 0), "tgt.img");
    }
    // It does not know digests until it is told to offer them.
    for key in ["HeaderDigest", "DataDigest"] {
        tgt.update(key, "CRC32C,None");
    }
    verify(&world, &url, &["--digests", "--connections", "2"]);
}

#[test]
fn tgt_serves_us_whatever_was_negotiated() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    for settings in [
        &[("InitialR2T", "No"), ("MaxOutstandingR2T", "4")][..],
        &[("ImmediateData", "No"), ("MaxBurstLength", "65536")],
        &[("InitialR2T", "Yes"), ("FirstBurstLength", "4096")],
        &[("MaxRecvDataSegmentLength", "4096"), ("ImmediateData", "Yes")],
    ] {
        settings.iter().for_each(|(key, value)| tgt.update(key, value));
        verify(&world, &url, &[]);
    }
}

#[test]
fn tgt_and_we_prove_ourselves_to_each_other() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    tgt.bind_account("alice", SECRETS.0, &[]);
    tgt.bind_account("bob", SECRETS.1, &["--outgoing"]);
    for (name, secret) in [("secret", SECRETS.0), ("mutual", SECRETS.1), ("wrong", "not-the-secret-at-all")] {
        std::fs::write(world.path(name), secret).unwrap();
    }
    let chap = |file: &'static str| ["--chap-user", "alice", "--chap-file", file];
    verify(&world, &url, &chap("secret"));
    let mutual =
        |file: &'static str| [&chap("secret")[..], &["--mutual-chap-user", "bob", "--mutual-chap-file", file]].concat();
    verify(&world, &url, &mutual("mutual"));
    world.run(["inquiry", &url]).failure(4, &["asks for CHAP"]);
    world.run([&["inquiry", &url][..], &chap("wrong")].concat()).failure(4, &["CHAP"]);
    world.run([&["inquiry", &url][..], &mutual("wrong")].concat()).failure(4, &["authentication"]);
}

#[test]
fn tgt_killed_under_load_and_started_again_loses_nothing() {
    let world = World::new();
    let mut tgt = Tgt::start(&world);
    let url = tgt.url();
    let disk = world.start(["attach", &url, "--name", "disk", "--connections", "3"]);
    let load = ["bench", "disk", "--rw", "randrw", "--depth", "8", "--seconds", "4", "--verify", "--allow-data-loss"];
    let load = world.forebay().args(load).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while world.status("disk")["remote"]["commands_sent"].as_u64() < Some(200) {
        assert!(Instant::now() < deadline, "there is no load");
        std::thread::sleep(Duration::from_millis(20));
    }
    tgt.kill();
    tgt.start_again();
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let is_back = |remote: &Value| remote["sessions"].as_u64() > Some(1) && remote["state"] == "online";
    world.wait_for_remote("disk", "another session", is_back);
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}
