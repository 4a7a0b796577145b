//! What is refused before anything happens, with the exit code that says whose mistake it is.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use tests::{IQN, World};

/// Exit codes, as documented.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const MISMATCH: i32 = 7;
const WOULD_LOSE_DATA: i32 = 9;

const LUN: [&str; 2] = ["--lun", "0=ram:16MiB"];

#[test]
fn a_target_that_cannot_serve_a_lun_is_told_the_same_by_check() {
    let world = World::new();
    fs::create_dir(world.path("folder")).unwrap();
    fs::write(world.path("disk.img"), vec![0; 1 << 20]).unwrap();
    fs::write(world.path("empty.img"), "").unwrap();
    for (lun, code, words) in [
        ("0=file:new.img,size=100", USAGE, "not whole blocks of 512"),
        ("0=ram:1000,block=4096", USAGE, "not whole blocks of 4096"),
        ("0=file:folder", USAGE, "neither a file nor a block device"),
        ("0=file:folder,size=1MiB", USAGE, "neither a file nor a block device"),
        ("0=file:/dev/null", USAGE, "neither a file nor a block device"),
        ("0=file:empty.img", USAGE, "is empty"),
        ("0=file:none.img", NOT_FOUND, "does not exist"),
        ("0=file:none.img,size=1MiB,read-only", NOT_FOUND, "does not exist"),
        ("0=file:disk.img,size=512KiB", MISMATCH, "has 1048576 bytes"),
        ("0=file:disk.img,size=2MiB", MISMATCH, "has 1048576 bytes"),
    ] {
        world.run(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", lun]).failure(code, &[words]);
        let text = format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{IQN}\"\nluns = [\"{lun}\"]\n");
        fs::write(world.path("target.toml"), text).unwrap();
        world.run(["target", "check", "target.toml"]).failure(code, &[words]);
        world.run(["target", "serve", "--config", "target.toml"]).failure(code, &[words]);
    }
    assert!(!world.path("new.img").exists() && !world.path("none.img").exists(), "nothing was made");
    let both = world.run(["target", "serve", "--iqn", IQN, "--lun", "0=ram:1MiB,thin,thick"]);
    assert_eq!(both.code, Some(USAGE), "{both:?}");
}

/// What a check is for before a reload: there the file may become larger.
#[test]
fn a_check_lets_a_lun_grow_that_is_served() {
    let world = World::new();
    let configure = |size: &str| {
        let text = format!("[[target]]\niqn = \"{IQN}\"\nluns = [\"0=file:disk.img,size={size}\"]\n");
        fs::write(world.path("target.toml"), text).unwrap();
    };
    configure("1MiB");
    let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--config", "target.toml"];
    let target = world.start(serve);
    configure("2MiB");
    world.run(["target", "check", "target.toml"]).success();
    configure("512KiB");
    world.run(["target", "check", "target.toml"]).failure(MISMATCH, &["has 1048576 bytes"]);
    target.terminate().success();
    configure("2MiB");
    world.run(["target", "check", "target.toml"]).failure(MISMATCH, &["has 1048576 bytes"]);
}

#[test]
fn values_that_make_no_sense_are_mistakes_of_the_command_line() {
    let world = World::new();
    let target = world.target(LUN);
    let url = target.url(0);
    fs::write(world.path("letter"), "dear").unwrap();
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB"];
    let log = ["--log", "disk.log", "--log-size", "8MiB"];
    let difference = ["--difference", "disk.difference", "--difference-size", "1MiB"];
    for arguments in [
        &["--cache", "disk.cache", "--cache-size", "100"][..],
        &["--log", "disk.log", "--log-size", "100"],
        &["--difference", "disk.difference", "--difference-size", "100"],
        &[&cache[..], &["--cache-alignment", "100"]].concat(),
        &[&cache[..], &["--cache-crash", "discard", "--cache-mode", "write-back"]].concat(),
        &[&log[..], &["--durability", "nvram", "--nvram", "disk.nvram", "--nvram-size", "100"]].concat(),
        &[&difference[..], &["--difference-chunk", "1000"]].concat(),
        &["--as", "nbd:unix:letter"],
    ] {
        let refused = world.run([&["attach", &url, "--name", "disk"], arguments].concat());
        refused.failure(USAGE, &[]);
    }
    assert_eq!(fs::read(world.path("letter")).unwrap(), b"dear", "it is somebody's");
}

/// A place for a store that is a link to nothing: it was tried for ever to put one there.
#[test]
fn a_link_to_nothing_is_no_place_for_a_store() {
    let world = World::new();
    let target = world.target(LUN);
    symlink("gone/disk", world.path("link")).unwrap();
    for what in ["cache", "log", "difference"] {
        let (place, size) = (format!("--{what}"), format!("--{what}-size"));
        let attach = ["attach", &target.url(0), "--name", "disk", &place, "link", &size, "8MiB"];
        world.run(attach).failure(NOT_FOUND, &["link", "is a symbolic link to gone/disk, which is not there"]);
    }
}

#[test]
fn a_target_is_not_stopped_by_a_detach_that_means_a_cache() {
    let world = World::new();
    let target = world.target(LUN);
    for option in ["--keep-dirty", "--remove-cache"] {
        world.run(["detach", "target", option]).failure(USAGE, &["\"target\" is a target: it has no cache"]);
    }
    world.run(["inquiry", &target.url(0)]).success();
    world.run(["detach", "target"]).success();
    target.process.wait().success();
}

/// It would be another one for each command that is run in another folder.
#[test]
fn a_state_directory_by_a_relative_path_is_refused() {
    let world = World::new();
    for variable in ["FOREBAY_STATE_DIR", "FOREBAY_RUNTIME_DIR"] {
        let mut command = world.forebay();
        command.env(variable, "here").arg("status");
        tests::finish(&mut command).failure(USAGE, &[&format!("{variable}=here")]);
    }
    assert!(!world.path("here").exists());
}

/// A cache in write-back may hold something after a crash, and nobody has looked whether it does.
#[test]
fn a_lun_is_refused_without_a_cache_that_may_hold_its_data_in_words_that_are_true() {
    let world = World::new();
    let target = world.target(LUN);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-mode", "write-back"];
    let mut disk = world.start([&["attach", &target.url(0), "--name", "disk"][..], &cache].concat());
    disk.kill();
    let refused = world.run(["attach", &target.url(0), "--name", "disk"]);
    refused.failure(WOULD_LOSE_DATA, &["the newest data of", "may be in the cache"]);
}

/// A cache is bound to the target's name and the LUN's number; what it holds is of the disk behind them.
#[test]
fn a_lun_under_another_name_or_number_is_refused_without_its_cache_by_both_names() {
    let world = World::new();
    let serve =
        |iqn: &str, lun: &str| world.start(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", iqn, "--lun", lun]);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--set", "cache.clean-above=100%"];
    let attach = |url: &str, more: &[&str]| {
        let command = [&["attach", url, "--name", "disk"], more].concat();
        command.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let io = |place: &str, command: &str| drop(tests::tool("qemu-io", ["-f", "raw", "-c", command, place]));
    let first = serve(IQN, "0=file:disk.img,size=16MiB");
    let disk = world.start(attach(&format!("iscsi://{}/{IQN}/0", first.ready), &cache));
    io(&disk.ready, "write -P 7 0 1M");
    world.run(["detach", "disk", "--keep-dirty"]).success();
    disk.wait().success();
    first.terminate().success();
    let renamed = format!("{IQN}:renamed");
    for (iqn, lun) in [(renamed.as_str(), 0), (IQN, 5)] {
        let target = serve(iqn, &format!("{lun}=file:disk.img"));
        let url = format!("iscsi://{}/{iqn}/{lun}", target.ready);
        let words = ["disk.cache", "has the same serial number", "Serve it as it was", IQN, iqn];
        world.run(attach(&url, &[])).failure(WOULD_LOSE_DATA, &words);
        world.run(["bench", &url, "--rw", "read", "--seconds", "10ms"]).failure(WOULD_LOSE_DATA, &words);
        world.run(attach(&url, &cache)).failure(MISMATCH, &words);
        target.terminate().success();
    }
    // As the message says.
    let first = serve(IQN, "0=file:disk.img");
    let disk = world.start(attach(&format!("iscsi://{}/{IQN}/0", first.ready), &cache));
    io(&disk.ready, "read -P 7 0 1M");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    first.terminate().success();
    let target = serve(&renamed, "0=file:disk.img");
    let disk = world.start(attach(&format!("iscsi://{}/{renamed}/0", target.ready), &[]));
    io(&disk.ready, "read -P 7 0 1M");
    disk.terminate().success();
}

/// Its initiators wrote over what only the cache had.
#[test]
fn what_is_a_store_of_this_host_is_not_served_as_a_lun() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB", "--lun", "2=ram:16MiB"]);
    let attach = |lun: u64, name: &'static str, store: &[&str]| {
        world.start([&["attach", &target.url(lun), "--name", name][..], store].concat())
    };
    fs::write(world.path("shared"), vec![0; 32 << 20]).unwrap();
    let mut dirty =
        attach(0, "dirty", &["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-mode", "write-back"]);
    dirty.kill();
    let clean = attach(1, "clean", &["--log", "disk.log", "--log-size", "8MiB"]);
    clean.terminate().success();
    attach(2, "part", &["--cache", "shared", "--cache-offset", "8MiB", "--cache-size", "8MiB"]).terminate().success();
    symlink("disk.cache", world.path("link")).unwrap();
    fs::copy(world.path("disk.cache"), world.path("copy")).unwrap();
    let refused = |lun: &str, words: &[&str]| {
        let lun = format!("0=file:{lun}");
        let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--name", "other", "--lun", &lun];
        world.run(serve).failure(WOULD_LOSE_DATA, words);
        let text = format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{IQN}\"\nluns = [\"{lun}\"]\n");
        fs::write(world.path("target.toml"), text).unwrap();
        world.run(["target", "check", "target.toml"]).failure(WOULD_LOSE_DATA, words);
    };
    let served = |lun: &str| {
        let lun = format!("0=file:{lun}");
        let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--name", "other", "--lun", &lun];
        world.start(serve).terminate().success();
    };
    for name in ["disk.cache", "link"] {
        refused(name, &["is the cache of \"dirty\"", "data that the LUN lacks", "forebay cache discard"]);
    }
    refused("disk.log", &["is the log of \"clean\"", "forebay log discard"]);
    let has_part = ["has, at 8MiB, the cache of \"part\"", "--cache-offset 8MiB"];
    refused("shared", &has_part);
    // The last copy of its superblock still says what it is.
    let shared = fs::OpenOptions::new().read(true).write(true).open(world.path("shared")).unwrap();
    let mut first = [0; 512];
    shared.read_exact_at(&mut first, 8 << 20).unwrap();
    shared.write_all_at(&[0; 512], 8 << 20).unwrap();
    refused("shared", &has_part);
    shared.write_all_at(&first, 8 << 20).unwrap();
    assert!(!world.path("disk.cache.forebay").exists(), "nothing was made");
    // What no initiator can change, and what this host has not noted: a LUN whose own host keeps a store in it.
    served("disk.log,read-only");
    served("copy");
    // What has come to the place of a store since.
    fs::write(world.path("disk.log"), vec![0; 1 << 20]).unwrap();
    served("disk.log");
    world.run(["cache", "discard", "shared", "--cache-offset", "8MiB"]).success();
    served("shared");
}

#[test]
fn lines_that_cannot_have_checksums_are_refused_as_a_mistake_of_who_asks_for_them() {
    let world = World::new();
    let target = world.target(LUN);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-checksums"];
    let disk = world.start([&["attach", &target.url(0), "--name", "disk"][..], &cache].concat());
    world.run(["set", "disk", "cache.block-size=16KiB"]).failure(USAGE, &["have checksums"]);
    disk.terminate().success();
    fs::remove_file(world.path("disk.cache")).unwrap();
    let url = target.url(0);
    let lines = [&["attach", &url][..], &cache, &["--cache-block-size"]].concat();
    let mistaken = world.run([&lines[..], &["16KiB"]].concat());
    mistaken.failure(USAGE, &["--cache-checksums", "--cache-block-size"]);
    // Those of 4 KiB can, also when somebody says that this is their size.
    world.start([&lines[..], &["4KiB"]].concat()).terminate().success();
}

#[test]
fn of_a_file_that_is_no_store_nothing_is_said_as_if_it_were_one() {
    let world = World::new();
    let target = world.target(LUN);
    fs::write(world.path("letter"), vec![b'x'; 1 << 20]).unwrap();
    for what in ["cache", "log", "difference"] {
        let (place, size) = (format!("--{what}"), format!("--{what}-size"));
        let refused = world.run(["attach", &target.url(0), "--name", "disk", &place, "letter", &size, "64MiB"]);
        assert!(!refused.stderr.contains("is for one that is made"), "{refused:?}");
        refused.failure(MISMATCH, &["letter"]);
    }
}

#[test]
fn a_size_that_is_too_small_is_refused_with_the_least_that_is_not() {
    let world = World::new();
    let target = world.target(LUN);
    for (what, size) in [("cache", "1"), ("cache", "64KiB"), ("log", "1"), ("log", "64KiB")] {
        let (place, size_option) = (format!("--{what}"), format!("--{what}-size"));
        let attach =
            |size: &str| world.run(["attach", &target.url(0), "--name", "disk", &place, "it", &size_option, size]);
        let refused = attach(size);
        let least = refused.stderr.split("at least ").nth(1).and_then(|rest| rest.split(',').next());
        let least = least.unwrap_or_else(|| panic!("{refused:?}")).replace(' ', "");
        refused.failure(USAGE, &["sensibly some MiB"]);
        let made = ["attach", &target.url(0), "--name", "disk", &place, "it", &size_option, &least];
        world.start(made).terminate().success();
        fs::remove_file(world.path("it")).unwrap();
        world.run([what, "discard", "it"]);
    }
}
