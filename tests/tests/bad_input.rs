//! Bad input: one clear line, the documented exit code, nothing lost.

use std::fs;

use tests::{IQN, Process, World};

const UNREACHABLE: i32 = 3;
const ACCESS_DENIED: i32 = 4;
const NOT_FOUND: i32 = 5;
const IN_USE: i32 = 6;
const MISMATCH: i32 = 7;
const NO_SPACE: i32 = 8;
const WOULD_LOSE_DATA: i32 = 9;

#[test]
fn a_portal_nobody_listens_on() {
    let world = World::new();
    let unused = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let url = format!("iscsi://{unused}/{IQN}/0");
    world.run(["attach", &url]).failure(UNREACHABLE, &[&unused.to_string()]);
    world.run(["discover", &unused.to_string()]).failure(UNREACHABLE, &[&unused.to_string()]);
}

#[test]
fn a_url_that_is_none_or_has_a_password() {
    let world = World::new();
    world.run(["attach", "iscsi://host"]).failure(2, &["iscsi://"]);
    world.run(["attach", &format!("iscsi://user%secret@host/{IQN}/0")]).failure(2, &["--chap-file"]);
}

#[test]
fn a_target_that_is_not_there() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = format!("iscsi://{}/iqn.2026-11.io.forebay:other/0", target.portal());
    world.run(["attach", &url]).failure(NOT_FOUND, &["iqn.2026-11.io.forebay:other"]);
}

#[test]
fn a_lun_that_is_not_there() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    world.run(["attach", &target.url(5)]).failure(NOT_FOUND, &["5"]);
}

#[test]
fn wrong_and_missing_chap_secrets() {
    let world = World::new();
    fs::write(world.path("right"), "a-right-secret-of-24-b\n").unwrap();
    fs::write(world.path("wrong"), "a-wrong-secret-of-24-b\n").unwrap();
    let target = world.target(["--lun", "0=ram:16MiB", "--chap-user", "alice", "--chap-file", "right"]);
    let url = target.url(0);
    world.run(["attach", &url, "--chap-user", "alice", "--chap-file", "wrong"]).failure(ACCESS_DENIED, &["CHAP", IQN]);
    world.run(["attach", &url]).failure(ACCESS_DENIED, &["CHAP"]);
    world.run(["inquiry", &url, "--chap-user", "alice", "--chap-file", "right"]).success();
    world.run(["attach", &url, "--chap-user", "alice", "--chap-file", "none"]).failure(NOT_FOUND, &["none"]);
}

/// Those of both sides: of the user who logs in, and its own, which it proves to who asks for it.
#[test]
fn a_target_has_its_secrets_from_the_environment_where_no_file_is_named() {
    const SECRET: &str = "a-right-secret-of-24-b";
    const OWN: &str = "a-secret-of-the-target";
    let world = World::new();
    for (name, secret) in [("right", SECRET), ("own", OWN), ("wrong", "a-wrong-secret-of-24-b")] {
        fs::write(world.path(name), secret).unwrap();
    }
    let mut serve = world.forebay();
    serve.env("FOREBAY_CHAP_PASSWORD", SECRET).env("FOREBAY_MUTUAL_CHAP_PASSWORD", OWN);
    serve.args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:16MiB"]);
    serve.args(["--chap-user", "alice", "--mutual-chap-user", "disk"]);
    let target = Process::start(&mut serve).unwrap_or_else(|finished| panic!("{finished:?}"));
    let url = format!("iscsi://{}/{IQN}/0", target.ready);
    let inquiry = |secret: &str, own: &str| {
        let user = ["inquiry", &url, "--chap-user", "alice", "--chap-file", secret];
        world.run([&user[..], &["--mutual-chap-user", "disk", "--mutual-chap-file", own]].concat())
    };
    inquiry("right", "own").success();
    inquiry("wrong", "own").failure(ACCESS_DENIED, &["CHAP", IQN]);
    inquiry("right", "wrong").failure(ACCESS_DENIED, &["CHAP"]);
    world.run(["inquiry", &url]).failure(ACCESS_DENIED, &["CHAP"]);
}

#[test]
fn the_cache_of_another_lun_is_refused_by_both_names() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB"]);
    let attach = |lun, name: &str| {
        let url = target.url(lun);
        world.start(["attach", &url, "--name", name, "--cache", "disk.cache", "--cache-size", "8MiB"])
    };
    let first = attach(0, "first");
    world.run(["detach", "first"]).success();
    first.wait().success();
    let serial = |lun| {
        let parsed = world.run(["inquiry", &target.url(lun), "--json"]).json();
        parsed["serial"].as_str().unwrap().to_owned()
    };
    let before = fs::read(world.path("disk.cache")).unwrap();
    world
        .run(["attach", &target.url(1), "--cache", "disk.cache"])
        .failure(MISMATCH, &[&serial(0), &serial(1), "disk.cache"]);
    assert!(before == fs::read(world.path("disk.cache")).unwrap(), "the cache was changed");
}

#[test]
fn damaged_and_missing_caches() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    world.run(["attach", &url, "--cache", "none.cache"]).failure(NOT_FOUND, &["none.cache", "--cache-size"]);
    world.run(["attach", &url, "--cache", "none.cache", "--cache-size", "4000"]).failure(2, &["4000", "4 KiB"]);
    for command in ["inspect", "check", "discard"] {
        world.run(["cache", command, "none.cache"]).failure(NOT_FOUND, &["there is no cache at none.cache"]);
    }
    world.run(["attach", &url, "--cache", "no/where/x", "--cache-size", "8MiB"]).failure(NOT_FOUND, &["no/where"]);
    fs::write(world.path("text"), vec![b'x'; 1 << 20]).unwrap();
    world.run(["attach", &url, "--cache", "text"]).failure(MISMATCH, &["text"]);
    assert_eq!(fs::read(world.path("text")).unwrap(), vec![b'x'; 1 << 20], "a file that is no cache was changed");
    let process = world.start(["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"]);
    process.terminate().success();
    let file = fs::OpenOptions::new().write(true).open(world.path("disk.cache")).unwrap();
    file.set_len(4 << 20).unwrap();
    world.run(["attach", &url, "--cache", "disk.cache"]).failure(MISMATCH, &["disk.cache"]);
    world.run(["cache", "check", "disk.cache"]).failure(MISMATCH, &["disk.cache"]);
}

#[test]
fn a_cache_in_use_a_lun_in_use_and_a_name_in_use() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB"]);
    let url = target.url(0);
    let _disk = world.start(["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"]);
    world.run(["attach", &url, "--name", "again"]).failure(IN_USE, &["\"disk\""]);
    world.run(["attach", &target.url(1), "--name", "disk"]).failure(IN_USE, &["\"disk\""]);
    world.run(["attach", &target.url(1), "--name", "other", "--cache", "disk.cache"]).failure(IN_USE, &["disk.cache"]);
    world.run(["cache", "discard", "disk.cache"]).failure(IN_USE, &["disk.cache"]);
    world.run(["status", "none"]).failure(NOT_FOUND, &["none"]);
}

#[test]
fn dirty_data_is_not_given_up_by_accident() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    let socket = world.path("disk.nbd");
    let front = format!("nbd:unix:{}", socket.display());
    let disk = world.start([
        "attach",
        &url,
        "--name",
        "disk",
        "--cache",
        "disk.cache",
        "--cache-size",
        "8MiB",
        "--as",
        &front,
    ]);
    let image = format!("nbd+unix:///?socket={}", socket.display());
    tests::tool("qemu-io", ["-f", "raw", "-c", "write -P 0x5a 0 64k", &image]);
    let ended = disk.terminate();
    assert_eq!(ended.code, Some(0), "SIGTERM keeps dirty data and ends well");
    // And says so, with what the next attachment needs.
    let said = ended.stderr.lines().find(|line| line.contains("was told to end at once")).unwrap_or_default();
    assert!(said.contains("65536 bytes stay dirty") && said.contains("--cache"), "{ended:?}");
    world.run(["attach", &url]).failure(WOULD_LOSE_DATA, &["disk.cache", "forebay cache discard"]);
    world.run(["bench", &url, "--rw", "randwrite"]).failure(WOULD_LOSE_DATA, &["disk.cache"]);
    world
        .run(["cache", "discard", "disk.cache"])
        .failure(WOULD_LOSE_DATA, &["64KiB", "in the last", "--allow-data-loss"]);
    let inspected = world.run(["cache", "inspect", "disk.cache"]).success();
    assert!(inspected.contains("65536 bytes"), "{inspected}");
    // With its cache, the data is there.
    let disk = world.start(["attach", &url, "--name", "disk", "--cache", "disk.cache", "--as", &front]);
    tests::tool("qemu-io", ["-f", "raw", "-c", "read -P 0x5a 0 64k", &image]);
    drop(disk);
    world.run(["cache", "discard", "disk.cache", "--allow-data-loss"]).success();
    assert!(!world.path("disk.cache").exists());
    world.start(["attach", &url, "--name", "disk"]).terminate().success();
}

/// A script that always gives --cache-size must not get an empty cache, and old data, when the one with the data is not
/// there.
#[test]
fn a_lost_cache_is_not_replaced_by_an_empty_one() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    let attach = ["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"];
    let mut disk = world.start(attach);
    tests::tool("qemu-io", ["-f", "raw", "-c", "write -P 0x5a 0 64k", &disk.ready]);
    disk.kill();
    fs::rename(world.path("disk.cache"), world.path("elsewhere")).unwrap();
    world.run(attach).failure(WOULD_LOSE_DATA, &["disk.cache", "nothing is there", "forebay cache discard"]);
    assert!(!world.path("disk.cache").exists());
    world.run(["cache", "discard", "disk.cache"]).failure(WOULD_LOSE_DATA, &["--allow-data-loss"]);
    fs::rename(world.path("elsewhere"), world.path("disk.cache")).unwrap();
    let disk = world.start(attach);
    tests::tool("qemu-io", ["-f", "raw", "-c", "read -P 0x5a 0 64k", &disk.ready]);
    disk.terminate().success();
    fs::remove_file(world.path("disk.cache")).unwrap();
    world.run(["cache", "discard", "disk.cache", "--allow-data-loss"]).success();
    world.run(["cache", "discard", "disk.cache"]).failure(NOT_FOUND, &["disk.cache"]);
    world.start(attach).terminate().success();
}

/// The registry knows a cache by one name, whatever links lead to it.
#[test]
fn a_cache_behind_a_link_is_discarded_for_good() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    fs::create_dir(world.path("real")).unwrap();
    std::os::unix::fs::symlink("real", world.path("link")).unwrap();
    let mut disk =
        world.start(["attach", &url, "--name", "disk", "--cache", "link/disk.cache", "--cache-size", "8MiB"]);
    disk.kill();
    world.run(["cache", "discard", "link/disk.cache", "--allow-data-loss"]).success();
    world.start(["attach", &url, "--name", "disk"]).terminate().success();
}

#[test]
fn a_full_disk() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let huge = world.run(["attach", &target.url(0), "--cache", "disk.cache", "--cache-size", "8000TiB"]);
    huge.failure(NO_SPACE, &["disk.cache"]);
    let left: Vec<_> = fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("disk.cache")), "{left:?}");
}

#[test]
fn wrong_command_lines() {
    let world = World::new();
    for arguments in [
        &["target", "serve"][..],
        &["target", "serve", "--iqn", IQN, "--lun", "0=tape:x"],
        &["attach", "iscsi://h/iqn.2026-11.io.forebay:x/0", "--cache-mode", "write-around"],
        &["attach", "iscsi://h/iqn.2026-11.io.forebay:x/0", "--as", "floppy"],
        &["bench", "x", "--bs", "many"],
        &["frobnicate"],
    ] {
        let finished = world.run(arguments);
        assert_eq!(finished.code, Some(2), "{arguments:?}: {finished:?}");
        assert!(!finished.stderr.is_empty());
    }
}

#[test]
fn a_target_that_cannot_start() {
    let world = World::new();
    let first = world.target(["--lun", "0=ram:16MiB"]);
    let taken =
        ["target", "serve", "--portal", first.portal(), "--iqn", IQN, "--lun", "0=ram:1MiB", "--name", "second"];
    world.run(taken).failure(IN_USE, &[first.portal()]);
    let serve = |lun: &str| {
        world.run(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", lun, "--name", "second"])
    };
    serve("0=file:none.img").failure(NOT_FOUND, &["none.img", "size"]);
    serve("0=file:none.img,size=16MiB,read-only").failure(NOT_FOUND, &["none.img", "read-only is not created"]);
    let remote = world.run([
        "target",
        "serve",
        "--portal",
        "0.0.0.0:0",
        "--iqn",
        IQN,
        "--lun",
        "0=ram:1MiB",
        "--name",
        "second",
    ]);
    remote.failure(2, &["--allow-remote"]);
    let nbd = world.run(["attach", &first.url(0), "--as", "nbd:0.0.0.0:0"]);
    nbd.failure(2, &["0.0.0.0", "nbd.tls-certificate"]);
}

#[test]
fn an_image_that_ends_within_a_block_is_named_when_it_is_served() {
    let world = World::new();
    fs::write(world.path("disk.img"), [1; 1000]).unwrap();
    let ended = world.target(["--lun", "0=file:disk.img"]).process.terminate();
    assert!(ended.stderr.contains("disk.img has 1000 bytes, and the last 488 are no whole block"), "{ended:?}");
    ended.success();
}

#[test]
fn a_write_through_cache_that_crashed_holds_nothing_back() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-mode"];
    let attach = |mode: &str| world.start([&["attach", url.as_str(), "--name", "disk"], &cache[..], &[mode]].concat());
    attach("write-through").kill();
    world.start(["attach", &url, "--name", "disk"]).terminate().success();
    // In write-back it may hold something from its first moment on, also when it becomes so while it runs.
    let mut disk = attach("write-through");
    world.run(["set", "disk", "cache.mode=write-back"]).success();
    disk.kill();
    world.run(["attach", &url]).failure(WOULD_LOSE_DATA, &["disk.cache"]);
    let disk = attach("write-back");
    world.run(["set", "disk", "cache.mode=write-through"]).success();
    world.run(["detach", "disk", "--keep-dirty"]).success();
    disk.wait().success();
    world.start(["attach", &url, "--name", "disk"]).terminate().success();
}

#[test]
fn persistent_memory_that_is_none() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let url = target.url(0);
    let log = ["attach", &url, "--log", "disk.log", "--log-size", "8MiB", "--durability", "nvram"];
    world.run(log).failure(2, &["--nvram"]);
    let refused = world.run(log.into_iter().chain(["--nvram", "memory", "--nvram-size", "1MiB"]));
    refused.failure(1, &["memory is not in persistent memory", "-o dax"]);
    assert!(!world.path("memory").exists() && !world.path("disk.log").exists(), "nothing is made");
}
