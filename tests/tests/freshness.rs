//! A clean line is served only if nobody can have changed its block since: whoever wrote to the LUN while its cache was
//! away, and with whatever target.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::tgt::Tgt;
use tests::{IQN, Process, Target, World, finish, tool};

const WOULD_LOSE_DATA: i32 = 9;
/// What no machine is too slow for.
const PATIENCE: Duration = Duration::from_secs(60);
const CACHE: [&str; 4] = ["--cache", "disk.cache", "--cache-size", "16MiB"];

fn attach(world: &World, urls: &str, more: &[&str]) -> Process {
    world.start([&["attach", urls, "--name", "disk"], more].concat())
}

fn detach(world: &World, process: Process) {
    world.run(["detach", "disk"]).success();
    process.wait().success();
}

fn io(place: &str, commands: &[&str]) {
    tool(
        "qemu-io",
        ["-f", "raw"].into_iter().chain(commands.iter().flat_map(|command| ["-c", command])).chain([place]),
    );
}

/// Attaches, does this, and detaches.
fn session(world: &World, urls: &str, more: &[&str], commands: &[&str]) -> Value {
    let process = attach(world, urls, more);
    let freshness = world.status("disk")["freshness"].clone();
    io(&process.ready, commands);
    detach(world, process);
    freshness
}

/// An initiator that is not ours, of another host.
fn foreign(url: &str, commands: &[&str]) {
    io(url, commands);
}

fn target(world: &World, more: &[&str]) -> Target {
    world.target([&["--lun", "0=file:disk.img,size=64MiB"], more].concat())
}

/// What an administrator does who attaches with the cache, without it, and with it again.
#[test]
fn a_cache_does_not_serve_what_was_changed_without_it() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    session(&world, &url, &CACHE, &["write -P 1 0 64k", "write -P 1 8M 64k", "read -P 1 0 64k"]);
    session(&world, &url, &[], &["write -P 2 0 64k", "flush"]);
    let freshness = session(&world, &url, &CACHE, &["read -P 2 0 64k", "read -P 1 8M 64k"]);
    assert_eq!((&freshness["cache"]["state"], &freshness["cache"]["changed_ranges"]), (&"partly".into(), &1.into()));
    assert_eq!(freshness["cache"]["changed_by_others_bytes"], 1 << 20, "{freshness}");
    // Nobody else was there: what it holds counts, and is served from it.
    let process = attach(&world, &url, &CACHE);
    let freshness = world.status("disk")["freshness"]["cache"].clone();
    assert_eq!((&freshness["state"], &freshness["changed_by_others_bytes"]), (&"kept".into(), &0.into()));
    io(&process.ready, &["read -P 2 0 64k", "read -P 1 8M 64k"]);
    let status = world.status("disk");
    assert_eq!(status["cache"]["reads"]["misses"].as_u64().unwrap_or(0), 0, "{}", status["cache"]["reads"]);
    detach(&world, process);
}

#[test]
fn a_cache_sees_what_another_cache_a_log_and_a_foreign_initiator_wrote() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    let other = ["--cache", "other.cache", "--cache-size", "16MiB"];
    session(&world, &url, &CACHE, &["write -P 1 0 8M", "read -P 1 0 8M"]);
    session(&world, &url, &other, &["read -P 1 0 1M", "write -P 2 0 64k"]);
    session(&world, &url, &CACHE, &["read -P 2 0 64k", "read -P 1 1M 1M", "write -P 3 1M 64k"]);
    session(&world, &url, &other, &["read -P 2 0 64k", "read -P 3 1M 64k"]);

    // A log that was left behind, brought to the LUN by the command of the recovery guide.
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];
    let mut killed = attach(&world, &url, &log);
    io(&killed.ready, &["write -P 4 2M 64k", "flush"]);
    killed.kill();
    world.run(["log", "replay", "disk.log", &url]).success();
    session(&world, &url, &CACHE, &["read -P 4 2M 64k", "read -P 3 1M 64k"]);

    foreign(&url, &["write -P 5 3M 64k", "discard 4M 64k", "write -z 5M 64k"]);
    let checks = ["read -P 5 3M 64k", "read -P 0 4M 64k", "read -P 0 5M 64k", "read -P 4 2M 64k"];
    let freshness = session(&world, &url, &CACHE, &checks);
    assert_eq!(freshness["cache"]["state"], "partly", "{freshness}");

    // What `bench` writes. It asks for the same blocks that the cache has.
    let bench = ["bench", &url, "--rw", "randwrite", "--bs", "64KiB", "--footprint", "64KiB", "--requests", "4"];
    world.run([&bench[..], &["--allow-data-loss"]].concat()).success();
    let now = fs::read(world.path("disk.img")).unwrap()[..65536].to_vec();
    fs::write(world.path("now"), &now).unwrap();
    let process = attach(&world, &url, &CACHE);
    tool(
        "qemu-img",
        [
            "dd",
            "-f",
            "raw",
            "-O",
            "raw",
            "bs=64k",
            "count=1",
            &format!("if={}", process.ready),
            &format!("of={}", world.path("seen").display()),
        ],
    );
    assert!(fs::read(world.path("seen")).unwrap() == now, "the cache has what was there before bench");
    detach(&world, process);
}

/// Neither end gets to say goodbye.
#[test]
fn marks_outlive_sigkill_of_target_and_attachment() {
    let world = World::new();
    let mut first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    // Its clean lines count after a crash.
    let cache = [&CACHE[..], &["--cache-mode", "write-through", "--cache-crash", "all"]].concat();
    let mut killed = attach(&world, &url, &cache);
    io(&killed.ready, &["write -P 1 0 4M", "read -P 1 0 4M", "flush"]);
    killed.kill();
    foreign(&url, &["write -P 2 1M 64k"]);
    first.process.kill();
    let again = || {
        let fixed = ["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=64MiB"];
        world.start(fixed)
    };
    let mut second = again();
    session(&world, &url, &cache, &["read -P 2 1M 64k", "read -P 1 2M 64k"]);
    foreign(&url, &["write -P 3 2M 64k"]);
    second.kill();
    let _third = again();
    let freshness = session(&world, &url, &cache, &["read -P 3 2M 64k", "read -P 2 1M 64k"]);
    assert_eq!(freshness["cache"]["state"], "partly", "{freshness}");
}

#[test]
fn a_file_that_was_changed_while_it_was_not_served_has_changed_everywhere() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    session(&world, &url, &CACHE, &["write -P 1 0 1M", "read -P 1 0 1M"]);
    first.process.terminate().success();
    let serve =
        || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=64MiB"]);
    let second = serve();
    assert_eq!(session(&world, &url, &CACHE, &["read -P 1 0 1M"])["cache"]["state"], "kept");
    second.terminate().success();
    let image = world.path("disk.img");
    let modified = fs::metadata(&image).unwrap().modified().unwrap();
    io(image.to_str().unwrap(), &["write -P 2 0 64k"]);
    // As a restored copy has it.
    fs::File::options().write(true).open(&image).unwrap().set_modified(modified).unwrap();
    let _third = serve();
    let freshness = session(&world, &url, &CACHE, &["read -P 2 0 64k", "read -P 1 64k 64k"]);
    assert_eq!(freshness["cache"]["state"], "cold", "{freshness}");
}

/// A copy is restored by renaming it over the image that is served, and then the target is started anew, in order or
/// not.
#[test]
fn an_image_that_took_the_place_of_the_one_that_is_served_has_changed_everywhere() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let (image, restored) = (world.path("disk.img"), world.path("restored.img"));
    let mut process = first.process;
    for (pattern, is_in_order) in [(2, true), (3, false)] {
        session(&world, &url, &CACHE, &["write -P 1 0 1M", "read -P 1 0 1M"]);
        fs::File::create(&restored).unwrap().set_len(64 << 20).unwrap();
        io(restored.to_str().unwrap(), &[&format!("write -P {pattern} 0 1M")]);
        fs::rename(&restored, &image).unwrap();
        if is_in_order {
            process.terminate().success();
        } else {
            process.kill();
        }
        process =
            world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=64MiB"]);
        let freshness = session(&world, &url, &CACHE, &[&format!("read -P {pattern} 0 1M")]);
        assert_eq!(freshness["cache"]["state"], "cold", "{freshness}");
    }
}

/// Both have changed the same place: one of the two is lost, and it is for the user to say which.
#[test]
fn dirty_data_where_others_wrote_is_refused_and_elsewhere_is_not() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    let cache = [&CACHE[..], &["--cache-mode", "write-back", "--cache-clean-above", "100%"]].concat();
    let mut killed = attach(&world, &url, &cache);
    io(&killed.ready, &["write -P 1 0 64k", "flush"]);
    killed.kill();
    foreign(&url, &["write -P 2 9M 64k"]);
    let mut killed = attach(&world, &url, &cache);
    io(&killed.ready, &["read -P 1 0 64k", "read -P 2 9M 64k"]);
    killed.kill();
    foreign(&url, &["write -P 3 0 4k"]);
    let refused = ["attach", &url, "--name", "disk"];
    let words = ["disk.cache", "--overwrite-changes", "cache discard"];
    world.run([&refused[..], &cache].concat()).failure(WOULD_LOSE_DATA, &words);
    world.run([&refused[..], &cache].concat()).failure(WOULD_LOSE_DATA, &words);
    session(&world, &url, &[&cache[..], &["--overwrite-changes"]].concat(), &["read -P 1 0 64k"]);
    session(&world, &url, &[], &["read -P 1 0 64k", "read -P 2 9M 64k"]);
    // Likewise what is in a log.
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];
    session(&world, &url, &log, &["read -P 1 0 4k"]);
    let mut killed = attach(&world, &url, &log);
    io(&killed.ready, &["write -P 4 1M 64k", "flush"]);
    killed.kill();
    foreign(&url, &["write -P 5 1M 4k"]);
    let words = ["disk.log", "--overwrite-changes", "log discard"];
    world.run([&refused[..], &log].concat()).failure(WOULD_LOSE_DATA, &words);
    world.run(["log", "replay", "disk.log", &url]).failure(WOULD_LOSE_DATA, &words);
    world.run(["log", "replay", "disk.log", &url, "--overwrite-changes"]).success();
    session(&world, &url, &[], &["read -P 4 1M 64k"]);
}

/// The target should know the mark of a store with dirty data, and does not: others may have written anywhere, and
/// nobody would say so.
#[test]
fn dirty_data_whose_mark_is_lost_is_refused_until_it_may_overwrite() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let mut server = Some(first.process);
    // The LUN is served elsewhere, written, and brought back without its marks.
    let mut lose_marks = |pattern: u8| {
        server.take().unwrap().terminate().success();
        fs::remove_file(world.path("disk.img.forebay-marks")).unwrap();
        io(world.path("disk.img").to_str().unwrap(), &[&format!("write -P {pattern} 0 4k")]);
        let fixed = ["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=64MiB"];
        server = Some(world.start(fixed));
    };
    let cache = [&CACHE[..], &["--cache-mode", "write-back", "--cache-clean-above", "100%"]].concat();
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];
    for (what, store) in [("cache", &cache[..]), ("log", &log)] {
        let mut killed = attach(&world, &url, store);
        io(&killed.ready, &["write -P 1 0 64k", "flush"]);
        killed.kill();
        // Its own record lost, as after a move to another host.
        let attempt = [&["attach", &url, "--name", "disk"], store].concat();
        let discard = format!("{what} discard");
        let words = ["65536 bytes", "nobody can say what others wrote", "--overwrite-changes", &discard];
        let mut elsewhere = world.forebay();
        finish(elsewhere.env("FOREBAY_STATE_DIR", world.path("elsewhere")).args(&attempt))
            .failure(WOULD_LOSE_DATA, &words);
        lose_marks(2);
        // And again: that it was refused makes it no safer.
        (0..2).for_each(|_| {
            world.run(&attempt).failure(WOULD_LOSE_DATA, &["65536 bytes", "--overwrite-changes", &discard])
        });
        session(&world, &url, &[store, &["--overwrite-changes"]].concat(), &["read -P 1 0 64k"]);
        session(&world, &url, &[], &["read -P 1 0 64k"]);
        // Nothing dirty is left: there is nothing to refuse.
        lose_marks(3);
        session(&world, &url, store, &["read -P 3 0 4k", "read -P 1 4k 60k"]);
    }
    assert_eq!(session(&world, &url, &cache, &["read -P 3 0 4k"])["cache"]["state"], "cold");
}

/// How many marks the target keeps for the LUN: flags of pages 1 to 16 of its file (docs/formats/change-marks.md).
fn marks_kept(world: &World) -> usize {
    let file = fs::read(world.path("disk.img.forebay-marks")).unwrap_or_default();
    file.chunks(4096).skip(1).take(16).filter(|page| page[12] & 1 != 0).count()
}

#[test]
fn a_store_that_is_given_up_leaves_no_mark_at_its_target() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    let log = ["--log", "disk.log", "--log-size", "8MiB"];
    let process = attach(&world, &url, &[&CACHE[..], &log].concat());
    io(&process.ready, &["write -P 1 0 64k"]);
    assert_eq!(marks_kept(&world), 2);
    world.run(["detach", "disk", "--remove-cache"]).success();
    process.wait().success();
    assert_eq!(marks_kept(&world), 1, "the log's");
    // Without the target at hand: it is told the next time that it is.
    world.run(["log", "discard", "disk.log"]).success();
    session(&world, &url, &CACHE, &["read -P 1 0 64k"]);
    assert_eq!(marks_kept(&world), 1, "the new cache's");
    let mut killed = attach(&world, &url, &QUIET_LOG);
    io(&killed.ready, &["write -P 2 0 64k", "flush"]);
    killed.kill();
    world.run(["cache", "discard", "disk.cache"]).success();
    assert_eq!(marks_kept(&world), 2);
    world.run(["log", "replay", "disk.log", &url]).success();
    assert_eq!(marks_kept(&world), 1, "the log's, by whatever command the LUN is at hand");
    world.run(["log", "discard", "disk.log"]).success();
    session(&world, &url, &[], &["read -P 2 0 64k"]);
    assert_eq!(marks_kept(&world), 0);
}

/// The target keeps 16 marks: each that stays behind takes the place of one that is needed.
#[test]
fn an_attach_that_is_refused_leaves_no_mark_at_its_target() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    fs::write(world.path("none.cache"), [7; 8192]).unwrap();
    for stores in [&["--cache", "none.cache"][..], &["--cache", "none.cache", "--log", "new.log", "--log-size", "8MiB"]]
    {
        let refused = world.run([&["attach", &url, "--name", "disk"], stores].concat());
        assert!(refused.code != Some(0), "{refused:?}");
        assert_eq!(marks_kept(&world), 0, "{refused:?}");
    }
    session(&world, &url, &CACHE, &["write -P 1 0 64k", "read -P 1 0 64k"]);
    assert_eq!(session(&world, &url, &CACHE, &["read -P 1 0 64k"])["cache"]["state"], "kept");
}

#[test]
fn a_stripe_sees_what_was_written_to_one_of_its_members() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:a.img,size=16MiB", "--lun", "1=file:b.img,size=16MiB"]);
    let urls = format!("{},{}", target.url(0), target.url(1));
    let stripe = [&CACHE[..], &["--stripe", "64KiB"]].concat();
    session(&world, &urls, &stripe, &["write -P 1 0 16M", "read -P 1 0 8M"]);
    // The second unit of the stripe is the first of the second LUN, and so on: the changed range of that LUN reaches
    // over many of the stripe.
    foreign(&target.url(1), &["write -P 2 0 64k", "write -P 3 512k 64k"]);
    let checks = ["read -P 1 0 64k", "read -P 2 64k 64k", "read -P 3 1088k 64k", "read -P 1 6M 64k"];
    let freshness = session(&world, &urls, &stripe, &checks);
    assert_eq!(freshness["cache"]["state"], "partly", "{freshness}");
    assert_eq!(session(&world, &urls, &stripe, &["read -P 2 64k 64k"])["cache"]["state"], "kept");
}

/// Each of the two keeps marks of its own for the LUN, which they take to be theirs alone.
#[test]
fn a_write_through_the_other_target_of_a_lun_is_noticed() {
    let (world, other) = (World::new(), World::new());
    let first = target(&world, &[]);
    // One LUN has one serial number, whoever serves it.
    fs::copy(world.path("disk.img.forebay"), other.path("disk.img.forebay")).unwrap();
    fs::File::create(other.path("disk.img")).unwrap().set_len(64 << 20).unwrap();
    let second = target(&other, &[]);
    let urls = format!("{},{}", first.url(0), second.url(0));
    // Of one portal group failover would use one session: these are used side by side.
    let paths = [&CACHE[..], &["--multipath", "round-robin", "--cache-mode", "write-through"]].concat();
    session(&world, &urls, &paths, &["read -P 0 0 8M"]);
    let look = || session(&world, &urls, &paths, &["read -P 0 0 64k"])["cache"].clone();
    assert_eq!(look()["state"], "kept");
    for url in [second.url(0), first.url(0)] {
        foreign(&url, &["write -P 0 3M 64k"]);
        let freshness = look();
        assert_eq!((&freshness["state"], &freshness["changed_ranges"]), (&"partly".into(), &1.into()), "{freshness}");
    }
    // Used by one path alone, the store has no mark at the other target that tells.
    session(&world, &first.url(0), &CACHE, &["read -P 0 0 64k"]);
    foreign(&second.url(0), &["write -P 0 5M 64k"]);
    assert_eq!(look()["state"], "cold");
    assert_eq!(look()["state"], "kept");
}

#[test]
fn with_a_target_that_cannot_tell_a_cache_begins_cold_unless_it_is_promised_to_be_alone() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    let state = |more: &[&str], commands: &[&str]| {
        let freshness = session(&world, &url, &[&CACHE[..], more].concat(), commands);
        freshness["cache"]["state"].as_str().unwrap_or_default().to_owned()
    };
    state(&[], &["write -P 1 0 64k", "read -P 1 0 64k"]);
    foreign(&url, &["write -P 2 0 64k", "flush"]);
    assert_eq!(state(&[], &["read -P 2 0 64k"]), "cold");
    // The promise is remembered; what this host does itself is known in any case.
    assert_eq!(state(&["--cache-exclusive"], &["read -P 2 0 64k"]), "kept");
    assert_eq!(state(&[], &["read -P 2 0 64k"]), "kept");
    session(&world, &url, &[], &["write -P 3 0 64k", "flush"]);
    assert_eq!(state(&[], &["read -P 3 0 64k"]), "cold");
    assert_eq!(state(&[], &["read -P 3 0 64k"]), "kept");
    let bench = ["bench", &url, "--rw", "write", "--bs", "64KiB", "--footprint", "64KiB", "--requests", "1"];
    world.run([&bench[..], &["--allow-data-loss"]].concat()).success();
    assert_eq!(state(&[], &["read 0 64k"]), "cold");
    assert_eq!(state(&["--cache-exclusive=no"], &["read 0 64k"]), "cold");
    assert_eq!(state(&[], &["read 0 64k"]), "cold");
    let refused = world.run(["attach", &url, "--cache", "disk.cache", "--cache-exclusive=perhaps"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}

fn serve_again(world: &World, portal: &str) -> Process {
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=64MiB"])
}

/// The files of a LUN: its own, its sidecar and its marks.
fn lun_files(world: &World) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![world.path("")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with("disk.img") {
                found.push(path);
            }
        }
    }
    found
}

/// The files of a LUN and copies of them.
struct Backup(Vec<(PathBuf, PathBuf)>);

impl Backup {
    fn of(world: &World) -> Self {
        let copied = lun_files(world).into_iter().map(|path| {
            let copy = PathBuf::from(format!("{}-backup", path.display()));
            tool("cp", ["-p".as_ref(), path.as_os_str(), copy.as_os_str()]);
            (path, copy)
        });
        Self(copied.collect())
    }

    fn restore(&self) {
        self.0.iter().for_each(|(path, copy)| {
            tool("cp", ["-p".as_ref(), copy.as_os_str(), path.as_os_str()]);
        });
    }
}

/// A backup of the target is made while a host is attached, as any nightly one is. The token of its mark is that of the
/// attachment, which goes on.
#[test]
fn a_lun_restored_to_a_backup_made_during_an_attachment_is_not_taken_for_unchanged() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let through = [&CACHE[..], &["--cache-mode", "write-through"]].concat();
    let attached = attach(&world, &url, &through);
    io(&attached.ready, &["write -P 1 0 64k", "flush"]);
    // The backup, of a target that was stopped in order.
    first.process.terminate().success();
    let backup = Backup::of(&world);
    let second = serve_again(&world, &portal);
    io(&attached.ready, &["write -P 2 0 64k", "flush", "read -P 2 0 64k"]);
    detach(&world, attached);
    second.terminate().success();
    backup.restore();
    let _third = serve_again(&world, &portal);
    foreign(&url, &["read -P 1 0 64k"]);
    session(&world, &url, &through, &["read -P 1 0 64k"]);
}

/// The same where the session is never lost: a snapshot below the target, made while it serves. The token is another
/// one since the detach.
#[test]
fn a_lun_restored_to_a_backup_made_while_it_was_served_is_not_taken_for_unchanged() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let through = [&CACHE[..], &["--cache-mode", "write-through"]].concat();
    let attached = attach(&world, &url, &through);
    io(&attached.ready, &["write -P 1 0 64k", "flush"]);
    let backup = Backup::of(&world);
    io(&attached.ready, &["write -P 2 0 64k", "flush", "read -P 2 0 64k"]);
    detach(&world, attached);
    first.process.terminate().success();
    backup.restore();
    let _second = serve_again(&world, &portal);
    foreign(&url, &["read -P 1 0 64k"]);
    session(&world, &url, &through, &["read -P 1 0 64k"]);
}

/// The same where the attachment never detaches: the token is another one since the session came back.
#[test]
fn a_lun_restored_to_a_backup_made_before_a_reconnection_is_not_taken_for_unchanged() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    // Its clean lines count after a crash.
    let through = [&CACHE[..], &["--cache-mode", "write-through", "--cache-crash", "all"]].concat();
    let mut attached = attach(&world, &url, &through);
    io(&attached.ready, &["write -P 1 0 64k", "flush"]);
    first.process.terminate().success();
    let backup = Backup::of(&world);
    let token = || record(&world).1["luns"][0]["mark"].clone();
    let before = token();
    let second = serve_again(&world, &portal);
    io(&attached.ready, &["write -P 2 0 64k", "flush", "read -P 2 0 64k"]);
    let deadline = Instant::now() + PATIENCE;
    let is_renewed = |mark: &Value| mark["token"] != before["token"] && mark["candidate"].is_null();
    while !is_renewed(&token()) {
        assert!(Instant::now() < deadline, "the mark keeps its token: {}", token());
        std::thread::sleep(Duration::from_millis(20));
    }
    attached.kill();
    second.terminate().success();
    backup.restore();
    let _third = serve_again(&world, &portal);
    foreign(&url, &["read -P 1 0 64k"]);
    session(&world, &url, &through, &["read -P 1 0 64k"]);
}

/// The same where the target is away at the detach: its mark keeps a token that the backup has as well.
#[test]
fn a_lun_restored_to_a_backup_made_before_a_detach_without_its_target_is_not_taken_for_unchanged() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let through = [&CACHE[..], &["--cache-mode", "write-through"]].concat();
    let attached = attach(&world, &url, &through);
    io(&attached.ready, &["write -P 1 0 64k", "flush"]);
    let backup = Backup::of(&world);
    io(&attached.ready, &["write -P 2 0 64k", "flush", "read -P 2 0 64k"]);
    first.process.terminate().success();
    detach(&world, attached);
    backup.restore();
    let second = serve_again(&world, &portal);
    foreign(&url, &["read -P 1 0 64k"]);
    let freshness = session(&world, &url, &through, &["read -P 1 0 64k"]);
    assert_eq!(freshness["cache"]["state"], "cold", "{freshness}");
    // With its target it is warm again.
    assert_eq!(session(&world, &url, &through, &["read -P 1 0 64k"])["cache"]["state"], "kept");
    second.terminate().success();
}

/// The target was killed, the image is removed and a copy put there, which has the same number in many file systems.
#[test]
fn an_image_that_was_removed_and_copied_anew_has_changed_everywhere() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    session(&world, &url, &CACHE, &["write -P 1 0 1M", "read -P 1 0 1M"]);
    let (image, restored) = (world.path("disk.img"), world.path("restored.img"));
    fs::File::create(&restored).unwrap().set_len(64 << 20).unwrap();
    io(restored.to_str().unwrap(), &["write -P 2 0 1M"]);
    let mut process = first.process;
    process.kill();
    fs::remove_file(&image).unwrap();
    tool("cp", [restored.as_os_str(), image.as_os_str()]);
    let _second = serve_again(&world, &portal);
    let freshness = session(&world, &url, &CACHE, &["read -P 2 0 1M"]);
    assert_eq!(freshness["cache"]["state"], "cold", "{freshness}");
}

/// The image is restored while the target stands still, and a host with dirty data stays attached. It decides as its
/// attach would have. What cleaning had under way waits for the target, and does not get there either.
#[test]
fn what_is_dirty_is_not_written_over_an_image_that_was_restored_during_the_attachment() {
    let cache = [&CACHE[..], &["--cache-mode", "write-back", "--cache-clean-above", "0%"]].concat();
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "1ms", "--destage-age", "1ms"];
    for (what, store) in [("cache", &cache[..]), ("log", &log)] {
        let world = World::new();
        let first = target(&world, &[]);
        let url = first.url(0);
        let portal = first.portal().to_owned();
        let attached = attach(&world, &url, store);
        io(&attached.ready, &["write -P 1 0 1M", "flush"]);
        world.run(["clean", "disk"]).success();
        first.process.terminate().success();
        io(&attached.ready, &["write -P 3 0 1M", "write -P 4 8M 1M", "flush"]);
        io(world.path("disk.img").to_str().unwrap(), &["write -P 2 0 64M"]);
        let second = serve_again(&world, &portal);
        let discard = format!("{what} discard");
        let words = ["nobody can say what others changed", "2097152 bytes", "overwrite-changes=on", &discard];
        let deadline = Instant::now() + PATIENCE;
        let trouble = loop {
            let troubles = world.status("disk")["troubles"].to_string();
            if words.iter().all(|word| troubles.contains(word)) {
                break troubles;
            }
            assert!(Instant::now() < deadline, "{troubles}");
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(trouble.contains("forebay detach disk --keep-dirty"), "{trouble}");
        // It goes on: what is written here stays here.
        io(&attached.ready, &["read -P 3 0 1M", "write -P 7 32M 64k", "flush", "read -P 7 32M 64k"]);
        world.run(["clean", "disk"]).failure(WOULD_LOSE_DATA, &["overwrite-changes=on"]);
        world.run(["detach", "disk"]).failure(WOULD_LOSE_DATA, &["--keep-dirty", "overwrite-changes=on"]);
        io(&attached.ready, &["read -P 2 16M 64k", "read -P 7 32M 64k"]);
        world.run(["detach", "disk", "--keep-dirty"]).success();
        attached.wait().success();
        foreign(&url, &["read -P 2 0 64M"]);
        let again = [&["attach", &url, "--name", "disk"], store].concat();
        world.run(&again).failure(WOULD_LOSE_DATA, &["--overwrite-changes", &discard]);
        session(&world, &url, &[store, &["--overwrite-changes"]].concat(), &["read -P 3 0 1M"]);
        foreign(&url, &["read -P 3 0 1M", "read -P 2 1M 7M", "read -P 4 8M 1M", "read -P 7 32M 64k"]);
        second.terminate().success();
    }
}

/// The target has said that its file was cut, and it is long again when the target ends.
#[test]
fn a_cache_does_not_serve_what_a_cut_took_from_the_image() {
    let world = World::new();
    let first = target(&world, &[]);
    let (url, portal) = (first.url(0), first.portal().to_owned());
    session(&world, &url, &CACHE, &["write -P 1 0 4M", "read -P 1 0 4M"]);
    let file = fs::OpenOptions::new().write(true).open(world.path("disk.img")).unwrap();
    let size_bytes = file.metadata().unwrap().len();
    file.set_len(1 << 20).unwrap();
    let troubles = world.status("target")["troubles"].to_string();
    assert!(troubles.contains("was cut"), "{troubles}");
    file.set_len(size_bytes).unwrap();
    first.process.terminate().success();
    let second = serve_again(&world, &portal);
    session(&world, &url, &CACHE, &["read -P 1 0 1M", "read -P 0 1M 3M"]);
    second.terminate().success();
}

/// The image is restored while nothing is dirty. What is written afterwards is newer, and no restart of the target
/// makes it a conflict.
#[test]
fn what_was_written_after_an_image_was_restored_is_not_taken_for_older_at_the_next_reconnection() {
    let cache = [&CACHE[..], &["--cache-mode", "write-back", "--cache-clean-above", "100%"]].concat();
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let attached = attach(&world, &url, &cache);
    io(&attached.ready, &["write -P 1 0 1M", "flush"]);
    world.run(["clean", "disk"]).success();
    let mut server = first.process;
    for (is_restored, pattern) in [(true, 3), (false, 4)] {
        let token = record(&world).1["luns"][0]["mark"]["token"].clone();
        server.terminate().success();
        if is_restored {
            io(world.path("disk.img").to_str().unwrap(), &["write -P 2 0 64M"]);
        }
        server = serve_again(&world, &portal);
        let deadline = Instant::now() + PATIENCE;
        while record(&world).1["luns"][0]["mark"]["token"] == token {
            assert!(Instant::now() < deadline, "the mark keeps its token");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(world.status("disk")["troubles"], Value::Array(Vec::new()));
        let seen = if is_restored { "read -P 2 0 1M" } else { "read -P 3 0 1M" };
        io(&attached.ready, &[seen, "read -P 2 1M 1M", &format!("write -P {pattern} 0 1M"), "flush"]);
    }
    detach(&world, attached);
    foreign(&url, &["read -P 4 0 1M", "read -P 2 1M 63M"]);
    server.terminate().success();
}

/// What this host remembers of its only store, and where.
fn record(world: &World) -> (PathBuf, Value) {
    let files = fs::read_dir(world.path("state/caches")).unwrap().flatten().map(|entry| entry.path());
    let records: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    let [path] = &records[..] else { panic!("{records:?}") };
    (path.clone(), serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
}

const DIRTY_CACHE: [&str; 6] = ["--cache", "disk.cache", "--cache-size", "16MiB", "--cache-clean-above", "100%"];

const QUIET_LOG: [&str; 8] =
    ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];

/// An attach that makes a new mark for the log, and then fails for a reason of its own.
fn fail_behind_the_mark(world: &World, url: &str) {
    fs::write(world.path("none.cache"), [7; 8192]).unwrap();
    let command = [&["attach", url, "--name", "disk", "--cache", "none.cache"], &QUIET_LOG[..]].concat();
    let failed = world.run(command);
    assert!(failed.code != Some(0) && failed.code != Some(WOULD_LOSE_DATA), "{failed:?}");
}

/// A replay lets go of the LUN as an attachment does: what others had changed is settled with it, and no mark stays
/// behind that nobody knows.
#[test]
fn a_log_that_was_replayed_is_not_told_again_of_what_it_has_heeded() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    session(&world, &url, &CACHE, &["write -P 1 0 4M", "read -P 1 0 4M"]);
    let mut killed = attach(&world, &url, &QUIET_LOG);
    io(&killed.ready, &["write -P 2 1M 64k", "flush"]);
    killed.kill();
    foreign(&url, &["write -P 3 1M 4k"]);
    world.run(["log", "replay", "disk.log", &url]).failure(WOULD_LOSE_DATA, &["disk.log", "--overwrite-changes"]);
    let replay = ["log", "replay", "disk.log", &url, "--overwrite-changes"];
    world.run(replay).success();
    assert_eq!(session(&world, &url, &QUIET_LOG, &["read -P 2 1M 64k"])["log"]["state"], "kept");
    assert_eq!(session(&world, &url, &CACHE, &["read -P 2 1M 64k"])["cache"]["state"], "partly");
    // By a host that knows nothing of the log.
    let count = marks_kept(&world);
    for _ in 0..2 {
        let mut elsewhere = world.forebay();
        finish(elsewhere.env("FOREBAY_STATE_DIR", world.path("elsewhere")).args(replay)).success();
        assert_eq!(marks_kept(&world), count + 1, "the one of the other host");
    }
    // Here it is not the copy any more that was used last; with nothing in it, nothing is lost with it.
    world.run(&replay[..4]).failure(WOULD_LOSE_DATA, &["another copy", "log discard"]);
    world.run(["log", "discard", "disk.log"]).success();
    let mut killed = attach(&world, &url, &QUIET_LOG);
    io(&killed.ready, &["write -P 4 1M 64k", "flush"]);
    killed.kill();
    let mut elsewhere = world.forebay();
    let refused = elsewhere.env("FOREBAY_STATE_DIR", world.path("third")).args(&replay[..4]);
    finish(refused).failure(WOULD_LOSE_DATA, &["nobody can say"]);
    assert_eq!(marks_kept(&world), count + 1, "none of one that was refused");
}

/// The state directory alone is one from before, and what the store got since is acknowledged.
#[test]
fn a_list_that_is_older_than_a_store_is_said_and_the_store_is_taken_where_the_user_wants_it() {
    for (kind, store) in [("cache", &DIRTY_CACHE[..]), ("log", &QUIET_LOG)] {
        let world = World::new();
        let target = target(&world, &[]);
        let url = target.url(0);
        let [state, before] = ["state", "before"].map(|name| world.path(name).display().to_string());
        session(&world, &url, store, &["write -P 7 0 1M", "write -P 7 8M 1M"]);
        tool("cp", ["-a", &state, &before]);
        let mut killed = attach(&world, &url, store);
        io(&killed.ready, &["write -P 8 0 1M", "flush"]);
        killed.kill();
        fs::remove_dir_all(&state).unwrap();
        tool("cp", ["-a", &before, &state]);
        let words = ["the list is the older one", "overwrite-changes=on", "discard"];
        world.run([&["attach", &url, "--name", "disk"], store].concat()).failure(WOULD_LOSE_DATA, &words);
        // It would show what was there before.
        world.run(["attach", &url, "--name", "disk"]).failure(WOULD_LOSE_DATA, &words);
        world.run(["bench", &url, "--rw", "read", "--seconds", "10ms"]).failure(WOULD_LOSE_DATA, &words);
        if kind == "log" {
            let replay = ["log", "replay", "disk.log", &url, "--overwrite-changes"];
            world.run(&replay[..4]).failure(WOULD_LOSE_DATA, &words);
            world.run(replay).success();
        } else {
            let taken = [store, &["--set", "overwrite-changes=on"]].concat();
            let freshness = session(&world, &url, &taken, &["read -P 8 0 1M", "read -P 7 8M 1M"]);
            assert_eq!(freshness["cache"]["state"], "cold", "it may be an older copy as well: {freshness}");
        }
        session(&world, &url, &[], &["read -P 8 0 1M", "read -P 7 8M 1M"]);
        session(&world, &url, store, &["read -P 8 0 1M"]);
    }
}

/// The one that the state directory names was given up after the day that it is from.
#[test]
fn a_store_in_the_place_of_a_listed_one_is_taken_where_the_user_wants_it_and_said_before_it_is_discarded() {
    for (kind, store) in [("cache", &DIRTY_CACHE[..]), ("log", &QUIET_LOG)] {
        let world = World::new();
        let target = target(&world, &[]);
        let url = target.url(0);
        let [state, before] = ["state", "before"].map(|name| world.path(name).display().to_string());
        let place = format!("disk.{kind}");
        let write = |command: &str| {
            let mut killed = attach(&world, &url, store);
            io(&killed.ready, &[command, "flush"]);
            killed.kill();
        };
        write("write -P 7 0 1M");
        tool("cp", ["-a", &state, &before]);
        world.run([kind, "discard", &place, "--allow-data-loss"]).success();
        write("write -P 8 0 1M");
        fs::remove_dir_all(&state).unwrap();
        tool("cp", ["-a", &before, &state]);
        let words = ["overwrite-changes=on", "bring the right one back"];
        world.run([&["attach", &url, "--name", "disk"], store].concat()).failure(WOULD_LOSE_DATA, &words);
        let words = ["it is not the", "the list is the older one", "overwrite-changes=on"];
        world.run([kind, "discard", &place]).failure(WOULD_LOSE_DATA, &words);
        if kind == "log" {
            let replay = ["log", "replay", "disk.log", &url, "--overwrite-changes"];
            world.run(&replay[..4]).failure(WOULD_LOSE_DATA, &["bring the right one back"]);
            world.run(replay).success();
        } else {
            let taken = attach(&world, &url, &[store, &["--set", "overwrite-changes=on"]].concat());
            io(&taken.ready, &["read -P 8 0 1M"]);
            let status = world.status("disk");
            assert_eq!(status["freshness"]["cache"]["overwritten_bytes"], 1 << 20, "{status}");
            assert!(status["troubles"].to_string().contains("overwrite-changes"), "{status}");
            detach(&world, taken);
        }
        session(&world, &url, &[], &["read -P 8 0 1M"]);
    }
}

/// An older copy of a store that was given up by a replay elsewhere has nothing: the LUN is free without it.
#[test]
fn an_older_copy_of_a_store_without_dirty_data_keeps_nobody_from_the_lun() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    session(&world, &url, &CACHE, &["write -P 7 0 1M"]);
    fs::copy(world.path("disk.cache"), world.path("older.cache")).unwrap();
    session(&world, &url, &CACHE, &["write -P 8 0 1M"]);
    fs::copy(world.path("older.cache"), world.path("disk.cache")).unwrap();
    session(&world, &url, &[], &["read -P 8 0 1M"]);
}

/// The mark was new, so it began with everything changed, and the attach that made it came to nothing. That the one
/// before was lost is still true; that others have written is not.
#[test]
fn an_attach_that_made_a_new_mark_and_came_to_nothing_does_not_say_that_others_have_written() {
    let world = World::new();
    let first = target(&world, &[]);
    let url = first.url(0);
    let portal = first.portal().to_owned();
    let mut killed = attach(&world, &url, &QUIET_LOG);
    io(&killed.ready, &["write -P 4 1M 64k", "flush"]);
    killed.kill();
    // The target forgets the mark, as one that was held longest ago or is damaged.
    first.process.terminate().success();
    fs::remove_file(world.path("disk.img.forebay-marks")).unwrap();
    let _second = serve_again(&world, &portal);
    fail_behind_the_mark(&world, &url);
    let command = [&["attach", &url, "--name", "disk"], &QUIET_LOG[..]].concat();
    world.run(&command).failure(WOULD_LOSE_DATA, &["nobody can say what others wrote"]);
    session(&world, &url, &[&QUIET_LOG[..], &["--overwrite-changes"]].concat(), &["read -P 4 1M 64k"]);
}

/// Nobody expects a mark of a store that was last used with a target that could not tell, whatever attaches came to
/// nothing since.
#[test]
fn dirty_data_is_not_refused_because_an_attach_that_made_a_first_mark_came_to_nothing() {
    let world = World::new();
    let target = target(&world, &[]);
    let url = target.url(0);
    let mut killed = attach(&world, &url, &QUIET_LOG);
    io(&killed.ready, &["write -P 4 1M 64k", "flush"]);
    killed.kill();
    // The host's record as a target leaves it that cannot tell.
    let (path, mut content) = record(&world);
    assert!(content["luns"][0].as_object_mut().unwrap().remove("mark").is_some());
    fs::write(path, content.to_string()).unwrap();
    fail_behind_the_mark(&world, &url);
    session(&world, &url, &QUIET_LOG, &["read -P 4 1M 64k"]);
}

/// What this host did itself is known, it says, whatever was promised of others.
#[test]
fn a_cache_that_was_moved_does_not_forget_that_this_host_used_the_lun_without_it() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    session(&world, &url, &[&CACHE[..], &["--cache-exclusive"]].concat(), &["write -P 1 0 64k", "read -P 1 0 64k"]);
    session(&world, &url, &[], &["write -P 2 0 64k", "flush"]);
    fs::rename(world.path("disk.cache"), world.path("moved.cache")).unwrap();
    session(&world, &url, &["--cache", "moved.cache", "--cache-exclusive"], &["read -P 2 0 64k"]);
}

/// Nor where the user's word on the content is a generation, which nobody raised for what this host did.
#[test]
fn a_cache_that_was_moved_does_not_count_by_its_generation_if_this_host_used_the_lun_without_it() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    let url = tgt.url();
    let generation = ["--generation", "7"];
    session(&world, &url, &[&CACHE[..], &generation].concat(), &["write -P 1 0 64k", "read -P 1 0 64k"]);
    let known = session(&world, &url, &[&CACHE[..], &generation].concat(), &["read -P 1 0 64k"]);
    assert_eq!(known["cache"]["state"], "kept", "{known}");
    session(&world, &url, &[], &["write -P 2 0 64k", "flush"]);
    fs::rename(world.path("disk.cache"), world.path("moved.cache")).unwrap();
    session(&world, &url, &[&["--cache", "moved.cache"][..], &generation].concat(), &["read -P 2 0 64k"]);
}
