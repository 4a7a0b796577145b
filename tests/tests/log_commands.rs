//! `forebay log inspect|check|replay|discard` on what a killed attachment leaves, and what `attach` takes for its log.

use std::fs;

use serde_json::Value;
use tests::{IQN, Process, World, tool};

/// Exit codes, as documented.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const MISMATCH: i32 = 7;
const WOULD_LOSE_DATA: i32 = 9;

/// A log from which nothing leaves by itself.
const LOG: [&str; 8] =
    ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];

fn attach(world: &World, url: &str) -> Process {
    world.start([&["attach", url, "--name", "disk"], &LOG[..]].concat())
}

fn io(process: &Process, command: &str) {
    tool("qemu-io", ["-f", "raw", "-c", command, &process.ready]);
}

fn inspect(world: &World) -> Value {
    world.run(["log", "inspect", "disk.log", "--json"]).json()
}

/// An attachment that wrote 64 KiB and was killed.
fn write_and_kill(world: &World, url: &str) {
    let mut disk = attach(world, url);
    io(&disk, "write -P 0x5a 0 64k");
    disk.kill();
}

/// Makes the log of a killed attachment one with a checkpoint of everything.
fn checkpoint(world: &World, url: &str) {
    attach(world, url).terminate().success();
}

/// The LUN takes its data from nowhere else any more.
fn check_alone(world: &World, url: &str, commands: &[&str]) {
    let plain = world.start(["attach", url, "--name", "plain"]);
    commands.iter().for_each(|command| io(&plain, command));
    plain.terminate().success();
}

/// Changes one bit of the first byte of each place where `found` stands in the log, and says how many there were.
fn rot(world: &World, found: &[u8]) -> usize {
    let mut bytes = fs::read(world.path("disk.log")).unwrap();
    let starts: Vec<usize> =
        bytes.windows(found.len()).enumerate().filter(|row| row.1 == found).map(|row| row.0).collect();
    starts.iter().for_each(|&start| bytes[start] ^= 1);
    fs::write(world.path("disk.log"), bytes).unwrap();
    starts.len()
}

#[test]
fn when_data_leaves_a_log_is_changed_while_it_is_used() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let disk = attach(&world, &target.url(0));
    io(&disk, "write -P 0x5a 0 64k");
    world.run(["set", "disk", "log.destage-writes=0"]).failure(USAGE, &["log.destage-writes 0: it is 1 to 256"]);
    world.run(["set", "disk", "log.destage-start=half"]).failure(USAGE, &["half"]);
    world.run(["set", "disk", "cache.clean-above=0%"]).failure(USAGE, &["no cache"]);
    world
        .run([
            "set",
            "disk",
            "log.destage-start=10%",
            "log.destage-full-speed=80%",
            "log.destage-age=7s",
            "log.destage-batch=1MiB",
            "log.destage-writes=3",
        ])
        .success();
    let log = &world.status("disk")["log"];
    assert_eq!(log["dirty_bytes"], 65536, "it waits for an idle moment, which never comes: {log}");
    let expected = serde_json::json!({
        "start_percent": 10, "full_speed_percent": 80, "idle_ns": 100_000_000_000_000_u64, "age_max_ns": 7_000_000_000_u64,
        "batch_bytes": 1 << 20, "writes": 3
    });
    assert_eq!(log["destage"], expected);
    world.run(["set", "disk", "log.destage-idle=1ms"]).success();
    world.wait_for_status("disk", "all is destaged", |status| status["log"]["dirty_bytes"] == 0);
    disk.terminate().success();
    let disk = world.start(["attach", &target.url(0), "--name", "disk"]);
    world.run(["set", "disk", "log.destage-idle=1s"]).failure(USAGE, &["no write log"]);
    disk.terminate().success();
}

#[test]
fn what_a_killed_attachment_leaves_is_inspected_checked_and_replayed() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    let mut disk = attach(&world, &url);
    io(&disk, "write -P 0x5a 0 64k");
    io(&disk, "write -P 0x3c 1M 4k");
    let running = world.run(["status"]).success();
    assert!(running.contains("log 68KiB dirty"), "{running}");
    world.run(["log", "inspect", "disk.log"]).failure(6, &["disk.log"]);
    disk.kill();
    let left = inspect(&world);
    assert_eq!((&left["dirty_bytes"], &left["was_closed"]), (&69632.into(), &false.into()), "{left}");
    assert_eq!((&left["origin_target"], &left["damaged"]), (&IQN.into(), &Value::Array(vec![])), "{left}");
    let said = world.run(["log", "check", "disk.log"]).success();
    assert_eq!(said, "disk.log: no damage found\n");
    world
        .run(["bench", &url, "--rw", "read", "--seconds", "10ms"])
        .failure(WOULD_LOSE_DATA, &["disk.log", "forebay log discard"]);
    let replay = world.run(["log", "replay", "disk.log", &url]);
    assert!(!replay.stderr.contains("WARN"), "it went well: {}", replay.stderr);
    assert_eq!(replay.success(), "disk.log: 69632 bytes brought to the logical unit\n");
    let replayed = inspect(&world);
    assert_eq!((&replayed["dirty_bytes"], &replayed["was_closed"]), (&0.into(), &true.into()), "{replayed}");
    check_alone(&world, &url, &["read -P 0x5a 0 64k", "read -P 0x3c 1M 4k", "read -P 0 64k 64k"]);
    let said = world.run(["log", "replay", "disk.log", &url]).success();
    assert_eq!(said, "disk.log: 0 bytes brought to the logical unit\n");
    // Nothing is dirty, so nothing is asked.
    world.run(["log", "discard", "disk.log"]).success();
    world.run(["log", "check", "disk.log"]).failure(NOT_FOUND, &["there is no write log at disk.log"]);
}

/// Of the LUN, at the path, whole and closed in order; and not the one that has the newest data.
#[test]
fn an_older_log_of_the_lun_in_the_place_of_the_one_with_its_newest_data_is_refused() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    attach(&world, &url).terminate().success();
    fs::rename(world.path("disk.log"), world.path("older.log")).unwrap();
    write_and_kill(&world, &url);
    let newest = fs::read(world.path("disk.log")).unwrap();
    fs::copy(world.path("older.log"), world.path("disk.log")).unwrap();
    let attempt = [&["attach", &url, "--name", "disk"], &LOG[..]].concat();
    world.run(&attempt).failure(WOULD_LOSE_DATA, &["another log is there", "forebay log discard"]);
    world.run(["log", "replay", "disk.log", &url]).failure(WOULD_LOSE_DATA, &["another log is there"]);
    fs::write(world.path("disk.log"), newest).unwrap();
    world.run(["log", "replay", "disk.log", &url]).success();
    check_alone(&world, &url, &["read -P 0x5a 0 64k"]);
}

/// A log in a file that the process may not write to any more, as if its disk had failed. When the limit is lifted the
/// disk works again.
#[test]
fn a_log_that_failed_and_was_closed_with_nothing_in_it_leaves_the_lun_free() {
    for works_again in [true, false] {
        let world = World::new();
        let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
        let url = target.url(0);
        let disk = world.start([&["attach", &url, "--name", "disk"], &LOG[..]].concat());
        io(&disk, "write -P 0x5a 0 64k");
        let limit = |bytes: &str| tool("prlimit", ["--pid", &disk.id().to_string(), &format!("--fsize={bytes}:")]);
        limit("4096");
        io(&disk, "write -P 0x3c 1M 64k");
        assert!(world.status("disk")["log"]["failure"].is_string());
        if works_again {
            limit("unlimited");
        }
        let detached = world.run(["detach", "disk"]);
        disk.wait();
        assert_eq!(detached.code == Some(0), works_again, "{detached:?}");
        if works_again {
            check_alone(&world, &url, &["read -P 0x5a 0 64k", "read -P 0x3c 1M 64k"]);
        } else {
            // It may hold what is older than the LUN.
            world
                .run(["attach", &url, "--name", "disk"])
                .failure(WOULD_LOSE_DATA, &["disk.log", "forebay log discard"]);
            world.run([&["attach", &url, "--name", "disk"], &LOG[..]].concat()).failure(WOULD_LOSE_DATA, &["failed"]);
        }
    }
}

/// The cache of such an attachment is registered before the log is open, since the log may destage to it at once.
#[test]
fn a_log_that_cannot_be_opened_over_a_cache_leaves_the_lun_free() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    fs::write(world.path("disk.log"), vec![0x33; 8 << 20]).unwrap();
    let both = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-mode", "write-back", "--log", "disk.log"];
    let refused = world.run([&["attach", &url, "--name", "disk"], &both[..]].concat());
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("disk.log"), "{}", refused.stderr);
    check_alone(&world, &url, &["read 0 64k"]);
    // With a log that is one, the cache that it was given holds nothing against the LUN either.
    fs::remove_file(world.path("disk.log")).unwrap();
    let disk = world.start([&["attach", &url, "--name", "disk", "--log-size", "8MiB"], &both[..]].concat());
    io(&disk, "write -P 0x5a 0 64k");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    check_alone(&world, &url, &["read -P 0x5a 0 64k"]);
}

/// What is wrong with the log is found before there is a cache, or the cache under it is closed as in order.
#[test]
fn a_log_that_cannot_be_leaves_no_cache_as_after_a_crash() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    fs::write(world.path("strange"), vec![0x33; 8 << 20]).unwrap();
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let cache = ["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"];
        world.run([&cache[..], more].concat()).failure(code, words);
    };
    refused(&["--log", "disk.log"], NOT_FOUND, &["disk.log", "--log-size"]);
    refused(&["--log", "disk.log", "--log-size", "1KiB"], USAGE, &["1024", "it needs at least"]);
    refused(&["--log", "disk.cache", "--log-size", "8MiB"], USAGE, &["disk.cache", "a place of its own"]);
    refused(&["--log", "nowhere/disk.log", "--log-size", "8MiB"], NOT_FOUND, &["the directory ", "nowhere"]);
    assert!(!world.path("disk.cache").exists(), "nothing was made");
    let slots = ["--durability", "unsafe-volatile", "--log-ram", "1GiB"];
    let small = ["--log", "disk.log", "--log-size", "16MiB"];
    let nvram = ["--durability", "nvram", "--nvram", "none"];
    for (more, code, word) in [
        (&["--log", "strange"][..], MISMATCH, "strange"),
        (&["--log", "disk.log", "--log-size", "100KiB"], USAGE, "no room for a log"),
        (&[&small[..], &nvram].concat(), NOT_FOUND, "none"),
        (&[&small[..], &slots].concat(), USAGE, "too small"),
    ] {
        refused(more, code, &[word]);
        let cache = world.run(["cache", "inspect", "disk.cache", "--json"]).json();
        assert_eq!((&cache["was_closed"], &cache["dirty_bytes"]), (&true.into(), &0.into()), "{more:?}: {cache}");
        check_alone(&world, &url, &["read 0 64k"]);
    }
}

#[test]
fn a_striped_set_is_replayed_by_all_its_urls() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:a.img,size=8MiB", "--lun", "1=file:b.img,size=8MiB"]);
    let urls = format!("{},{}", target.url(0), target.url(1));
    let stripe = ["--stripe", "64KiB"];
    let mut disk = world.start([&["attach", &urls, "--name", "disk"], &stripe[..], &LOG].concat());
    io(&disk, "write -P 0x5a 32k 64k");
    disk.kill();
    world.run(["log", "replay", "disk.log", &target.url(0)]).failure(MISMATCH, &["disk.log"]);
    world.run([&["log", "replay", "disk.log", &urls], &stripe[..]].concat()).success();
    check_alone(&world, &target.url(0), &["read -P 0x5a 32k 32k"]);
    check_alone(&world, &target.url(1), &["read -P 0x5a 0 32k", "read -P 0 32k 32k"]);
}

#[test]
fn a_replay_that_fails_leaves_the_log_what_it_was() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    write_and_kill(&world, &target.url(0));
    target.process.terminate().success();
    let protected = world.target(["--lun", "0=file:disk.img,read-only"]);
    let replayed = world.run(["log", "replay", "disk.log", &protected.url(0)]);
    assert_ne!(replayed.code, Some(0));
    assert!(replayed.stderr.contains("65536 bytes stay dirty in"), "{}", replayed.stderr);
    protected.process.terminate().success();
    let target = world.target(["--lun", "0=file:disk.img"]);
    let url = target.url(0);
    world.run(["bench", &url, "--rw", "read", "--seconds", "10ms"]).failure(WOULD_LOSE_DATA, &["disk.log"]);
    world.run(["log", "replay", "disk.log", &url]).success();
    check_alone(&world, &url, &["read -P 0x5a 0 64k"]);
}

#[test]
fn dirty_data_in_a_log_is_not_given_up_by_accident() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    write_and_kill(&world, &url);
    world.run(["log", "discard", "disk.log"]).failure(WOULD_LOSE_DATA, &["64KiB", "--allow-data-loss"]);
    assert_eq!(inspect(&world)["dirty_bytes"], 65536);
    world.run(["log", "discard", "disk.log", "--allow-data-loss"]).success();
    assert!(!world.path("disk.log").exists());
    check_alone(&world, &url, &["read -P 0 0 64k"]);
    // One whose file is gone.
    write_and_kill(&world, &url);
    fs::remove_file(world.path("disk.log")).unwrap();
    world.run(["log", "discard", "disk.log"]).failure(WOULD_LOSE_DATA, &["is not there", "--allow-data-loss"]);
    world.run(["log", "discard", "disk.log", "--allow-data-loss"]).success();
    world.run(["log", "discard", "disk.log"]).failure(NOT_FOUND, &["there is no write log"]);
    check_alone(&world, &url, &["read -P 0 0 64k"]);
}

#[test]
fn a_bit_that_rots_behind_the_checkpoint_is_found_by_check() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    let mut disk = attach(&world, &url);
    io(&disk, "write -P 0x11 0 4k");
    io(&disk, "write -P 0x77 1M 4k");
    io(&disk, "write -P 0x22 2M 4k");
    disk.kill();
    checkpoint(&world, &url);
    world.run(["log", "check", "disk.log"]).success();
    assert_eq!(rot(&world, &[0x77; 4096]), 1, "the record is in the log once");
    world.run(["log", "check", "disk.log"]).failure(MISMATCH, &["disk.log", "bytes 1048576..1052672"]);
    let checked = world.run(["log", "check", "disk.log", "--json"]);
    assert_eq!(checked.code, Some(MISMATCH));
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(checked["damaged"], serde_json::json!([{ "offset_bytes": 1 << 20, "length_bytes": 4096 }]));
    assert_eq!(inspect(&world)["dirty_bytes"], 3 * 4096, "`inspect` does not read data");
    // The rest is brought to the LUN, the damaged data never, and it takes a word of the user to do without.
    let replayed = world.run(["log", "replay", "disk.log", &url]);
    assert_eq!(replayed.code, Some(MISMATCH));
    assert!(replayed.stderr.contains("4096 bytes stay dirty in"), "{}", replayed.stderr);
    world.run(["bench", &url, "--rw", "read", "--seconds", "10ms"]).failure(WOULD_LOSE_DATA, &["disk.log"]);
    world.run(["log", "discard", "disk.log"]).failure(WOULD_LOSE_DATA, &["4KiB"]);
    world.run(["log", "discard", "disk.log", "--allow-data-loss"]).success();
    check_alone(&world, &url, &["read -P 0x11 0 4k", "read -P 0 1M 4k", "read -P 0x22 2M 4k"]);
}

#[test]
fn a_damaged_log_or_cache_can_be_given_up_and_a_strange_file_cannot() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    write_and_kill(&world, &url);
    checkpoint(&world, &url);
    assert!(rot(&world, b"wckp") > 0, "it has a checkpoint");
    for command in ["inspect", "check"] {
        world.run(["log", command, "disk.log"]).failure(MISMATCH, &["disk.log", "checkpoint"]);
    }
    world
        .run(["log", "discard", "disk.log"])
        .failure(WOULD_LOSE_DATA, &["what would be lost with it cannot be told", "checkpoint", "--allow-data-loss"]);
    let said = world.run(["log", "discard", "disk.log", "--allow-data-loss"]).success();
    assert!(said.contains("discarded; what is lost cannot be told"), "{said}");
    check_alone(&world, &url, &["read -P 0 0 64k"]);

    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB"];
    let mut disk = world.start([&["attach", &url, "--name", "disk"], &cache[..]].concat());
    io(&disk, "write -P 0x5a 0 64k");
    disk.kill();
    fs::OpenOptions::new().write(true).open(world.path("disk.cache")).unwrap().set_len(4 << 20).unwrap();
    world.run(["cache", "discard", "disk.cache"]).failure(WOULD_LOSE_DATA, &["cannot be told", "was cut"]);
    let said = world.run(["cache", "discard", "disk.cache", "--allow-data-loss"]).success();
    assert!(said.contains("cannot be told"), "{said}");
    check_alone(&world, &url, &["read -P 0 0 64k"]);

    fs::write(world.path("letter"), vec![b'x'; 1 << 20]).unwrap();
    for kind in ["log", "cache"] {
        world.run([kind, "discard", "letter", "--allow-data-loss"]).failure(MISMATCH, &["letter"]);
    }
    assert_eq!(fs::read(world.path("letter")).unwrap(), vec![b'x'; 1 << 20], "somebody's file was changed");
}

/// What only the list could tell apart from a store that was lost would be gone.
#[test]
fn a_store_is_not_discarded_while_the_lists_cannot_be_written() {
    for (kind, list) in [("cache", "state/dirty"), ("log", "state/dirty"), ("cache", "state/caches")] {
        let world = World::new();
        let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
        let url = target.url(0);
        let (option, size) = (format!("--{kind}"), format!("--{kind}-size"));
        let mut disk = world.start(["attach", &url, "--name", "disk", &option, "disk.store", &size, "8MiB"]);
        io(&disk, "write -P 0x5a 0 64k");
        disk.kill();
        // A directory in the place of the file that is to be renamed.
        for entry in fs::read_dir(world.path(list)).unwrap().flatten() {
            let mut new = entry.path().into_os_string();
            new.push(".new");
            fs::create_dir(new).unwrap();
        }
        let refused = world.run([kind, "discard", "disk.store", "--allow-data-loss"]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(world.path("disk.store").exists(), "{kind}, {list}");
    }
}

#[test]
fn what_attach_takes_for_its_log() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let url = target.url(0);
    let log = ["attach", &url, "--name", "disk", "--log", "disk.log", "--log-size", "8MiB"];
    for (more, words) in [
        (&["--profile", "paper"][..], &["--durability unsafe-volatile", "--nvram PATH"][..]),
        (&["--log-ram", "1MiB"], &["--log-ram", "unsafe-volatile"]),
        (&["--log-segment-size", "1KiB"], &["--log-segment-size 1KiB", "64KiB to 4MiB"]),
        (&["--log-slot-size", "3KiB"], &["--log-slot-size 3KiB", "power of two"]),
        (&["--destage-batch", "1KiB"], &["--destage-batch 1KiB", "64KiB to 1GiB"]),
        (&["--destage-writes", "1000"], &["--destage-writes 1000", "1 to 256"]),
        (&["--destage-idle", "1us"], &["--destage-idle", "1ms or more"]),
    ] {
        world.run([&log[..], more].concat()).failure(USAGE, words);
        assert!(!world.path("disk.log").exists(), "{more:?} left a log behind");
    }
    let chosen = ["--profile", "paper", "--durability", "unsafe-volatile", "--destage-start", "50%"];
    let disk = world.start([&log[..], &chosen].concat());
    let status = world.status("disk");
    assert_eq!(status["log"]["slots"], 1024, "16 segments of RAM, 64 slots each");
    io(&disk, "write -P 0x5a 0 64k");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    assert_eq!(inspect(&world)["segment_bytes"], 65536);
    check_alone(&world, &url, &["read -P 0x5a 0 64k"]);
    world.run(["log", "discard", "disk.log"]).success();
    let chosen =
        ["--log-segment-size", "128KiB", "--log-slot-size", "4KiB", "--destage-batch", "1MiB", "--destage-writes", "2"];
    world.start([&log[..], &chosen].concat()).terminate().success();
    let made = inspect(&world);
    assert_eq!((&made["segment_bytes"], &made["slot_bytes"]), (&131072.into(), &4096.into()), "{made}");
}
