//! `attach --as iscsi:PORT`: a stack as a target of its own, with clients that we did not write and with ours.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, SharedDevice};
use futures_util::stream::{FuturesUnordered, StreamExt};
use initiator::{Compared, InitiatorOptions, RemoteLun, ReservationType, TcpConnector};
use tests::iscsi_test_cu::{Verdict, run};
use tests::{IQN, Process, World, finish, tool};

const MIB: u64 = 1 << 20;

/// The arguments of an attachment `disk` behind a gateway at `port`, with `others`.
fn arguments(url: &str, port: u16, others: &[&str]) -> Vec<String> {
    let fixed = ["attach", url, "--name", "disk", "--as", &format!("iscsi:{port}")].map(str::to_owned);
    fixed.into_iter().chain(others.iter().map(|&other| other.to_owned())).collect()
}

/// A port that nobody listens on now, and that none of the system's own choice is soon: for who comes back there.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("there is a port").port()
}

/// A session of an initiator of this name.
async fn log_in(url: &str, name: &str) -> Arc<RemoteLun> {
    let options = InitiatorOptions {
        initiator_name: format!("iqn.2026-11.io.forebay:{name}"),
        replacement_timeout: Duration::from_secs(120),
        ..InitiatorOptions::for_url(&url.parse().expect("it is a URL"))
    };
    let (lun, driver) = initiator::connect(options, Arc::new(TcpConnector)).await.expect("it serves");
    tokio::spawn(driver);
    lun
}

#[test]
fn initiators_see_what_was_written_at_any_front_and_it_is_behind_when_it_was_detached() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let unix = format!("nbd:unix:{}", world.path("disk.nbd").display());
    let stores = ["--cache", "c", "--cache-size", "8MiB", "--cache-mode", "write-back", "--as", &unix];
    let disk = world.start(arguments(&target.url(0), 0, &stores));
    let status = world.status("disk");
    let (gateway, nbd) = (&disk.ready, status["fronts"][1]["address"].as_str().expect("it has one"));
    assert_eq!(status["fronts"][0]["kind"], "iscsi");
    tool("qemu-io", ["-f", "raw", "-c", "write -P 5 0 64k", "-c", "flush", gateway]);
    tool("qemu-io", ["-f", "raw", "-c", "read -P 5 0 64k", "-c", "write -P 6 64k 64k", nbd]);
    tool("qemu-io", ["-f", "raw", "-c", "read -P 6 64k 64k", gateway]);
    let counted = world.status("disk")["iscsi"].take();
    assert_eq!(counted["write"]["bytes"], 65536, "{counted}");
    assert!(counted["connections_accepted"].as_u64() >= Some(2), "{counted}");
    assert!(fs::read(world.path("disk.img")).unwrap().iter().all(|&byte| byte == 0), "it is in the cache");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    let image = fs::read(world.path("disk.img")).unwrap();
    assert!(image[..65536].iter().all(|&byte| byte == 5) && image[65536..131_072].iter().all(|&byte| byte == 6));
}

#[test]
fn a_gateway_is_the_same_disk_after_a_restart_and_never_the_one_behind() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let identity = |url: &str| {
        let inquiry = world.run(["inquiry", "--json", url]).json();
        (inquiry["unit"].clone(), inquiry["serial"].clone())
    };
    let of_gateway = || {
        let disk = world.start(arguments(&target.url(0), 0, &[]));
        let listed = tool("iscsi-ls", ["-s", disk.ready.split("/iqn").next().expect("it is a URL")]);
        assert!(listed.contains("GATEWAY DISK") || listed.contains("Lun:0"), "{listed}");
        let identity = identity(&disk.ready);
        disk.terminate().success();
        identity
    };
    let (first, behind) = (of_gateway(), identity(&target.url(0)));
    assert_eq!(of_gateway(), first);
    assert!(first.0 != behind.0 && first.1 != behind.1, "{first:?} {behind:?}");
}

#[test]
fn conformance_families_pass_at_a_gateway() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:256MiB"]);
    let disk = world.start(arguments(&target.url(0), 0, &["--cache", "c", "--cache-size", "64MiB"]));
    for family in [
        "Read10",
        "Write10",
        "Read16",
        "Write16",
        "Inquiry",
        "ReadCapacity10",
        "ReadCapacity16",
        "TestUnitReady",
        "ModeSense6",
        "CompareAndWrite",
        "PrinReadKeys",
        "ProutRegister",
        "ProutReserve",
        "ProutClear",
        "ProutPreempt",
        "Reserve6",
        "iSCSIcmdsn",
    ] {
        let family = if family.starts_with("iSCSI") { format!("iSCSI.{family}.*") } else { format!("SCSI.{family}.*") };
        // Those of reservations log in twice.
        let (verdicts, log) = run(&["--dataloss", "--test", &family], std::slice::from_ref(&disk.ready));
        assert!(!verdicts.is_empty(), "{family}: no test ran:\n{log}");
        let failed: Vec<_> = verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Failed).collect();
        assert!(failed.is_empty(), "{family}: {failed:?}\n{log}");
        let passed = verdicts.values().filter(|verdict| **verdict == Verdict::Passed).count();
        assert!(passed > 0, "{family}: all was skipped:\n{log}");
    }
}

#[test]
fn a_gateway_asks_for_the_secret_it_was_given_and_listens_to_other_machines_only_when_told() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let secret = "a-secret-of-18-byte";
    fs::write(world.path("secret"), secret).unwrap();
    let chap = [
        "--set",
        "iscsi.chap-user=alice",
        "--set",
        "iscsi.chap-file=secret",
        "--set",
        "iscsi.name=iqn.2026-11.org.example:gw",
    ];
    let disk = world.start(arguments(&target.url(0), 0, &chap));
    let place = disk.ready.strip_prefix("iscsi://").expect("it is a URL");
    assert!(place.ends_with("/iqn.2026-11.org.example:gw/0"), "{place}");
    let with = |user: &str, secret: &str| {
        finish(Command::new("iscsi-inq").arg(format!("iscsi://{user}%{secret}@{place}"))).code
    };
    assert_eq!(with("alice", secret), Some(0));
    assert_ne!(with("alice", "another-secret-here"), Some(0));
    assert_ne!(finish(Command::new("iscsi-inq").arg(&disk.ready)).code, Some(0));
    assert!(world.status("disk")["iscsi"]["logins_refused"].as_u64() >= Some(1));
    let other = |others: &[&str]| world.run([&["attach", &target.url(0), "--name", "other"], others].concat());
    other(&["--as", "iscsi:0.0.0.0:0"]).failure(2, &["0.0.0.0:0", "allow-remote=on"]);
    other(&["--as", "iscsi:0", "--set", "iscsi.chap-user=alice"]).failure(2, &["iscsi.chap-file"]);
    other(&["--as", "iscsi:0"]).failure(6, &["as \"disk\"", "several fronts (--as)"]);
}

#[tokio::test]
async fn hosts_at_the_lun_and_hosts_at_its_gateway_compare_and_write_the_same_blocks() {
    const TURNS: u64 = 60;
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let disk = world.start(arguments(&target.url(0), 0, &[]));
    let (behind, before) = (log_in(&target.url(0), "direct").await, log_in(&disk.ready, "through").await);
    let block = |number: u64| [&number.to_le_bytes()[..], &[0; 504]].concat();
    let count = async |lun: &RemoteLun| {
        for _ in 0..TURNS {
            loop {
                let found = lun.read(0, Buffer::zeroed(512)).await.expect("it can be read");
                let number = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
                let compared = lun.compare_and_write(0, &block(number), &block(number + 1)).await;
                if compared.expect("both can do it") == Compared::Written {
                    break;
                }
            }
        }
    };
    tokio::join!(count(&behind), count(&before));
    let found = behind.read(0, Buffer::zeroed(512)).await.expect("it can be read");
    assert_eq!(found.to_vec(), block(2 * TURNS), "every step counted once");
    let differing = before.compare_and_write(0, &block(1 << 40), &block(0)).await.expect("it is answered");
    assert_eq!(differing, Compared::Different { at: Some(0) }, "and what differs is told");
}

#[tokio::test]
async fn reservations_keep_the_gateways_own_initiators_apart_and_outlive_it() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let port = free_port();
    let mut disk = world.start(arguments(&target.url(0), port, &[]));
    let (one, other) = (log_in(&disk.ready, "one").await, log_in(&disk.ready, "other").await);
    one.register(0, 7, true).await.expect("it takes registrations");
    one.reserve(7, ReservationType::WriteExclusive).await.expect("nobody has it");
    let write = other.write(0, Buffer::zeroed(512), false).await;
    assert_eq!(write.map(drop).unwrap_err().kind(), ErrorKind::ReservationConflict);
    disk.kill();
    drop(disk);
    let _disk = world.start(arguments(&target.url(0), port, &[]));
    let held = other.reservation().await.expect("it is back").held.expect("it was kept");
    assert_eq!((held.key, held.kind), (7, ReservationType::WriteExclusive));
    let behind = log_in(&target.url(0), "direct").await;
    behind.write(0, Buffer::zeroed(512), false).await.expect("the LUN behind knows nothing of it");
}

#[tokio::test]
async fn a_lun_that_grows_grows_at_the_gateway_too() {
    let world = World::new();
    let config = |size: &str| {
        let text = format!(
            "portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{IQN}\"\nluns = [\"0=file:disk.img,size={size}\"]\n"
        );
        fs::write(world.path("target.toml"), text).unwrap();
    };
    config("16MiB");
    let target = world.start(["target", "serve", "--config", "target.toml", "--name", "target"]);
    let disk = world.start(arguments(&format!("iscsi://{}/{IQN}/0", target.ready), 0, &[]));
    let lun = log_in(&disk.ready, "one").await;
    assert_eq!(lun.geometry().size_bytes, 16 * MIB);
    config("32MiB");
    world.run(["target", "reload"]).success();
    let deadline = Instant::now() + Duration::from_secs(60);
    while lun.geometry().size_bytes != 32 * MIB {
        assert!(Instant::now() < deadline, "it was never told");
        // A unit attention comes with the answer to a command.
        let _ = lun.read(0, Buffer::zeroed(512)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lun.write(31 * MIB, Buffer::copy_of(&[9; 512]), false).await.expect("it is as large");
}

/// Of each block the version last acknowledged.
async fn write_and_note(device: &SharedDevice, random: &mut Random, versions: &mut [u64], count: usize) {
    let mut in_flight = FuturesUnordered::new();
    let mut busy = vec![false; versions.len()];
    let mut begun = 0;
    while begun < count || !in_flight.is_empty() {
        while begun < count && in_flight.len() < 8 {
            let block = random.below(versions.len() as u64) as usize;
            if std::mem::replace(&mut busy[block], true) {
                continue;
            }
            begun += 1;
            let version = versions[block] + 1;
            let write =
                device.write(block as u64 * 4096, Buffer::copy_of(&content(block, version)), random.chance(0.1));
            in_flight.push(async move { (block, version, write.await) });
        }
        let Some((block, version, written)) = in_flight.next().await else { break };
        written.expect("who waits for the gateway loses nothing");
        (versions[block], busy[block]) = (version, false);
    }
}

fn content(block: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    if version > 0 {
        Random::new((block as u64) << 32 | version).fill(&mut bytes);
    }
    bytes
}

/// An initiator that writes goes on over each SIGKILL of the gateway, and finds everything there that was acknowledged.
#[tokio::test]
async fn a_gateway_that_is_killed_under_load_comes_back_with_its_cache_and_lost_nothing() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let stores = ["--cache", "c", "--cache-size", "8MiB", "--cache-mode", "write-back"];
    let arguments = arguments(&target.url(0), free_port(), &stores);
    let mut disk = world.start(&arguments);
    let device: SharedDevice = log_in(&disk.ready, "one").await;
    let (mut random, mut versions) = (Random::new(5), vec![0; 2048]);
    for round in 0..6 {
        let again = async {
            tokio::time::sleep(Duration::from_millis(20 + 40 * round)).await;
            disk.kill();
            let mut command = world.forebay();
            command.args(&arguments);
            let start = move || Process::start(&mut command).unwrap_or_else(|finished| panic!("{finished:?}"));
            disk = tokio::task::spawn_blocking(start).await.expect("it starts again");
        };
        tokio::join!(again, write_and_note(&device, &mut random, &mut versions, 600));
    }
    let check = async |device: &SharedDevice| {
        for (block, &version) in versions.iter().enumerate() {
            let found = device.read(block as u64 * 4096, Buffer::zeroed(4096)).await.expect("it is there");
            assert_eq!(found[..], content(block, version), "block {block} is not of version {version}");
        }
    };
    check(&device).await;
    device.flush().await.expect("it is there");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    let behind: SharedDevice = log_in(&target.url(0), "direct").await;
    check(&behind).await;
}
