//! `forebay flush`: what was acknowledged before is durable after it, wherever that is; and what it says where that
//! cannot be had.

use std::fs;

use tests::{Process, World, tool};

const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const NOT_FOUND: i32 = 5;

const LUN: [&str; 2] = ["--lun", "0=file:disk.img,size=16MiB"];

const CACHE: [&str; 6] = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];

/// A log that has acknowledged writes in RAM alone until a flush.
const VOLATILE_LOG: [&str; 6] = ["--log", "disk.log", "--log-size", "32MiB", "--durability", "unsafe-volatile"];

fn attach(world: &World, url: &str, flags: &[&str]) -> Process {
    world.start([&["attach", url, "--name", "disk"][..], flags].concat())
}

/// A client of its own, that goes without a flush: `qemu-io` makes one when it ends in order.
fn io(uri: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    tool("qemu-io", ["-f", "raw", "-t", "unsafe"].into_iter().chain(commands).chain([uri]));
}

#[test]
fn what_was_acknowledged_before_a_flush_survives_a_kill_and_it_is_said_where_it_is() {
    for (flags, place, words) in [
        (&[][..], "logical-unit", "durable at its logical unit\n"),
        (&CACHE[..], "cache", "durable in its cache; 65536 bytes are dirty here"),
        (&VOLATILE_LOG[..], "log", "durable in its write log"),
    ] {
        let world = World::new();
        let target = world.target(LUN);
        let mut disk = attach(&world, &target.url(0), flags);
        io(&disk.ready, &["write -P 5 0 64k"]);
        let said = world.run(["flush", "disk"]).success();
        assert!(said.starts_with("disk: what was acknowledged is ") && said.contains(words), "{said}");
        let answer = world.run(["flush", "disk", "--json"]).json();
        assert_eq!((answer["name"].as_str(), answer["durable_in"].as_str()), (Some("disk"), Some(place)));
        assert!(answer["dirty_bytes"].is_u64(), "{answer}");
        disk.kill();
        let again = attach(&world, &target.url(0), flags);
        io(&again.ready, &["read -P 5 0 64k"]);
        again.terminate().success();
    }
}

#[test]
fn flushes_end_beside_a_load_of_writes() {
    let world = World::new();
    let target = world.target(LUN);
    let _disk = attach(&world, &target.url(0), &CACHE);
    let load = ["bench", "disk", "--rw", "randwrite", "--seconds", "600", "--allow-data-loss"];
    let mut load = world.forebay().args(load).spawn().expect("the binary is there");
    world.wait_for_status("disk", "a load", |status| status["nbd"]["write"]["requests"].as_u64() > Some(100));
    for _ in 0..20 {
        world.run(["flush", "disk"]).success();
    }
    assert!(load.try_wait().expect("it is our child").is_none(), "it went on");
    load.kill().expect("it is our child");
    load.wait().expect("it is our child");
}

#[test]
fn files_of_a_mount_that_nobody_synced_are_there_after_a_flush_and_a_kill() {
    let world = World::new();
    let target = world.target(LUN);
    world.run(["mkfs", &target.url(0)]).success();
    let directory = world.path("files");
    fs::create_dir(&directory).unwrap();
    let (url, place) = (target.url(0), directory.display().to_string());
    let mount = ["mount", &url, &place];
    let mut mounted = world.start(mount);
    fs::write(directory.join("note"), "kept").unwrap();
    let said = world.run(["flush", "files"]).success();
    assert!(said.contains("durable at its logical unit"), "{said}");
    mounted.kill();
    tool("umount", ["--lazy", &place]);
    let again = world.start(mount);
    let note = fs::read_to_string(directory.join("note"));
    again.terminate().success();
    assert_eq!(note.unwrap(), "kept");
}

#[test]
fn what_cannot_be_flushed_says_why_and_what_becomes_of_the_data() {
    let world = World::new();
    let mut target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &["--set", "timeout.replacement=1s"]);
    world.run(["flush", "target"]).failure(USAGE, &["\"target\" is a target", "its initiators flush"]);
    world.run(["flush", "other"]).failure(NOT_FOUND, &["nothing runs under the name \"other\""]);
    io(&disk.ready, &["write -P 5 0 64k"]);
    target.process.kill();
    world.wait_for_remote("disk", "its target is away", |remote| remote["state"] == "failing");
    let refused = world.run(["flush", "disk"]);
    assert_eq!(refused.code, Some(UNREACHABLE), "{refused:?}");
    assert!(refused.stderr.contains("\"disk\""), "{refused:?}");
    assert!(refused.stderr.contains("acknowledged"), "{refused:?}");
}
