//! What an administrator meets when something stands still, is away or was removed: what runs stays visible, says what
//! it waits for, and ends when told to.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::{IQN, Process, Underway, World, finish, tool};

const LUN: [&str; 2] = ["--lun", "0=file:disk.img,size=16MiB"];

const CACHE: [&str; 6] = ["--cache", "disk.cache", "--cache-size", "8MiB", "--cache-clean-above", "100%"];

/// A log from which nothing leaves by itself.
const LOG: [&str; 8] =
    ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "100000s", "--destage-age", "100000s"];

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const DAMAGE: i32 = 7;
const WOULD_LOSE_DATA: i32 = 9;

fn attach(world: &World, url: &str, flags: &[&str]) -> Process {
    world.start([&["attach", url, "--name", "disk"][..], flags].concat())
}

fn io(uri: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    tool("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([uri]));
}

/// The LUN without cache and log.
#[track_caller]
fn check_alone(world: &World, url: &str, command: &str) {
    let disk = attach(world, url, &[]);
    io(&disk.ready, &[command]);
    disk.terminate().success();
}

fn signal(id: u32, signal: Signal) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(id, signal).expect("it is our child");
}

#[test]
fn a_process_that_is_stopped_is_named_and_the_others_are_listed() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &[]);
    signal(target.process.id(), Signal::STOP);
    let all = world.run(["status"]).success();
    assert!(all.contains(&format!("`kill -CONT {}`", target.process.id())), "{all}");
    assert!(all.lines().any(|line| line.starts_with(" disk") && line.contains(&disk.ready)), "{all}");
    let all = world.run(["status", "--json"]).json();
    let silent = all["running"].as_array().unwrap().iter().find(|each| each["name"] == "target").unwrap();
    assert_eq!(silent["pid"], target.process.id(), "{all}");
    world.run(["target", "status"]).failure(3, &["\"target\" does not answer", "is stopped"]);
    world.run(["detach", "target"]).failure(3, &["\"target\" does not answer"]);
    signal(target.process.id(), Signal::CONT);
    // It does not stop now, either, because somebody asked for that once.
    world.run(["target", "status"]).success();
    std::thread::sleep(Duration::from_millis(200));
    world.run(["target", "status"]).success();
}

#[test]
fn a_detach_that_waits_for_its_target_says_so_and_can_be_told_to_keep_what_is_dirty() {
    let world = World::new();
    let mut target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    target.process.kill();
    let first = Underway::start(world.forebay().args(["detach", "disk"]));
    let status =
        world.wait_for_status("disk", "a detach that waits", |status| status["detaching"]["waits_for"].is_string());
    assert!(status["detaching"]["waits_for"].as_str().unwrap().contains(target.portal()), "{status}");
    let table = world.run(["status"]).success();
    assert!(table.contains("being detached, waits for"), "{table}");
    // The first one may have been interrupted: the second one waits with it, and has its result.
    let second = Underway::start(world.forebay().args(["detach", "disk"]));
    for detach in [&first, &second] {
        detach.wait_for_words("is waited for");
    }
    world.run(["clean", "disk"]).failure(6, &["being detached", "--keep-dirty", "leaves 65536 bytes dirty"]);
    let said = world.run(["detach", "disk", "--keep-dirty"]).success();
    assert!(said.contains("65536 bytes stay dirty"), "{said}");
    // It was to write everything back, and did not: a script that goes on to remove the cache must not take that for
    // success.
    for detach in [first, second] {
        let detach = detach.finish();
        assert_eq!(detach.code, Some(3), "{detach:?}");
        for words in ["65536 bytes stay dirty", "ended at once", "is waited for"] {
            assert!(detach.stderr.contains(words), "{words}: {detach:?}");
        }
    }
    let disk = disk.wait();
    assert_eq!(disk.stderr.matches("ends without its target").count(), 1, "{}", disk.stderr);
    assert!(!world.run(["status"]).success().contains("being detached"));
}

/// What would be refused is not advised.
#[test]
fn a_detach_that_waits_does_not_advise_to_keep_what_is_in_a_file_that_was_removed() {
    let world = World::new();
    let mut target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    target.process.kill();
    let first = Underway::start(world.forebay().args(["detach", "disk"]));
    world.wait_for_status("disk", "a detach that waits", |status| status["detaching"]["waits_for"].is_string());
    fs::remove_file(world.path("disk.cache")).unwrap();
    let refused = ["disk.cache was removed", "is being detached", "once", target.portal()];
    world.run(["detach", "disk", "--keep-dirty"]).failure(WOULD_LOSE_DATA, &refused);
    first.wait_for_words("cannot stay here");
    let portal = target.portal().to_owned();
    let again = ["target", "serve", "--iqn", IQN, "--portal", &portal, "--name", "again"];
    let _target = world.start(again.iter().chain(&LUN));
    let first = first.finish();
    assert_eq!(first.code, Some(0), "{first:?}");
    let last = first.stderr.lines().rfind(|line| line.contains("is waited for")).unwrap_or_default();
    assert!(last.contains("cannot stay here") && !last.contains("--keep-dirty"), "{first:?}");
    disk.wait().success();
}

#[test]
fn a_detach_whose_target_stays_away_ends_with_what_to_do() {
    let world = World::new();
    let mut target = world.target(LUN);
    let impatient = ["--replacement-timeout", "1s"];
    let disk = attach(&world, &target.url(0), &[&CACHE[..], &impatient].concat());
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    target.process.kill();
    let said = world.run(["detach", "disk"]);
    let last = said.stderr.lines().last().unwrap_or_default();
    assert_eq!(said.code, Some(3), "{said:?}");
    for words in ["is detached, but 65536 bytes stay dirty here", "--cache ", "disk.cache to write them back"] {
        assert!(last.contains(words), "\"{words}\" is missing in {last}");
    }
    assert!(!last.contains("still looked for"), "{last}");
    disk.wait();
}

#[test]
fn a_signal_ends_a_login_at_once() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/{IQN}/0", silent.local_addr().unwrap());
    for which in [Signal::TERM, Signal::INT] {
        let attach = ["attach", &url, "--name", "disk", "--login-timeout", "600s"];
        let child = Underway::start(world.forebay().args(attach));
        let (_connection, _) = silent.accept().unwrap();
        signal(child.id(), which);
        // Nothing was attached, and a script should not go on as if.
        child.finish().failure(1, &["ended by a signal before anything was attached"]);
    }
}

#[test]
fn a_lun_stays_locked_when_the_run_time_directory_is_gone() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &[]);
    fs::remove_dir_all(world.path("run")).unwrap();
    world.run(["attach", &target.url(0), "--name", "other"]).failure(6, &["attached on this host already", "\"disk\""]);
    disk.terminate().success();
}

/// RFC 7143 4.2.7.2: names are compared without their capitals.
#[test]
fn a_lun_is_the_same_in_whatever_case_its_target_is_written() {
    let world = World::new();
    let target = world.target(LUN);
    let url = target.url(0);
    let otherwise = url.replace(IQN, &IQN.replace("test", "Test").replace("forebay", "ForeBay"));
    let refuse = |command: &[&str], code: i32, words: &[&str]| {
        let ended = Process::start(world.forebay().args(command)).err().expect("it is refused, and does not serve");
        ended.failure(code, words);
    };
    let attached = ["attached on this host already", "\"disk\""];
    let disk = attach(&world, &otherwise, &[]);
    let lun = world.status("disk")["lun"].clone();
    refuse(&["attach", &url, "--name", "other"], 6, &attached);
    disk.terminate().success();
    let disk = attach(&world, &url, &CACHE);
    assert_eq!(world.status("disk")["lun"], lun);
    refuse(&["attach", &otherwise, "--name", "other"], 6, &attached);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    disk.terminate().success();
    refuse(&["attach", &otherwise, "--name", "other"], WOULD_LOSE_DATA, &["the newest data of", "disk.cache"]);
    let disk = attach(&world, &otherwise, &CACHE);
    io(&disk.ready, &["read -P 5 0 64k"]);
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}

#[test]
fn callers_who_say_nothing_keep_no_process_from_its_end() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &[]);
    let crowd = |name: &str| -> Vec<UnixStream> {
        (0..20).map(|_| UnixStream::connect(world.path("run").join(format!("{name}.sock"))).unwrap()).collect()
    };
    for name in ["disk", "target"] {
        let mode = fs::metadata(world.path("run").join(format!("{name}.sock"))).expect("it is attached").mode();
        assert_eq!(mode & 0o777, 0o600, "{name}: whoever may write to its control socket may end it");
    }
    let silent = [crowd("disk"), crowd("target")];
    assert!(world.run(["status", "disk"]).success().starts_with("attachment "));
    let silent = [silent, [crowd("disk"), crowd("target")]];
    disk.terminate().success();
    target.process.terminate().success();
    drop(silent);
}

#[test]
fn a_cache_that_is_removed_while_it_is_dirty_is_missed() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    fs::remove_file(world.path("disk.cache")).unwrap();
    let status = world.wait_for_status("disk", "trouble", |status| status["troubles"][0].is_string());
    assert!(status["troubles"][0].as_str().unwrap().contains("disk.cache was removed"), "{status}");
    assert!(world.run(["status"]).success().contains("disk.cache was removed"));
    disk.wait_for_words("was removed while it is in use");
    let ended = disk.terminate();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line = ended.stderr.lines().find(|line| line.contains("was removed while it is in use")).unwrap_or_default();
    assert!(line.contains("attachment{name=disk}"), "the log says whose: {ended:?}");
    // A signal keeps what is dirty. Here there was nothing to keep it in.
    assert!(!ended.stderr.contains("stay dirty"), "{ended:?}");
    check_alone(&world, &target.url(0), "read -P 5 0 64k");
}

#[test]
fn the_last_copy_of_what_is_dirty_is_written_back_and_not_kept() {
    let world = World::new();
    let target = world.target(LUN);
    for (number, (flags, path)) in [(&CACHE[..], "disk.cache"), (&LOG[..], "disk.log")].into_iter().enumerate() {
        for is_emptied in [false, true] {
            let disk = attach(&world, &target.url(0), flags);
            let pattern = format!("-P {} 0 64k", 1 + 2 * number + usize::from(is_emptied));
            io(&disk.ready, &[&format!("write {pattern}"), "flush"]);
            fs::remove_file(world.path(path)).unwrap();
            if is_emptied {
                fs::write(world.path(path), "").unwrap();
            }
            world.run(["detach", "disk", "--keep-dirty"]).failure(
                WOULD_LOSE_DATA,
                &[path, "was removed", "65536 bytes", "stays attached", "`forebay detach disk`"],
            );
            io(&disk.ready, &[&format!("read {pattern}")]);
            world.run(["detach", "disk"]).success();
            disk.wait().success();
            check_alone(&world, &target.url(0), &format!("read {pattern}"));
            let _ = fs::remove_file(world.path(path));
        }
    }
}

#[test]
fn the_last_copy_of_what_is_dirty_is_not_given_up_while_its_target_is_away_and_a_signal_says_that_it_is_lost() {
    let world = World::new();
    let mut target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &[&CACHE[..], &["--replacement-timeout", "1s"]].concat());
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    fs::remove_file(world.path("disk.cache")).unwrap();
    target.process.kill();
    world.wait_for_remote("disk", "a loss that is noticed", |remote| remote["state"] != "online");
    for flags in [&["detach", "disk"][..], &["detach", "disk", "--keep-dirty"]] {
        world.run(flags).failure(WOULD_LOSE_DATA, &["disk.cache was removed", "stays attached", target.portal()]);
    }
    let ended = disk.terminate();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("65536 bytes are lost") && !last.contains("stay dirty"), "{ended:?}");
}

/// Peers go on and notice nothing: who looks after the host is told.
#[test]
fn a_served_file_that_is_removed_or_replaced_is_said_in_the_status_and_once_in_the_log() {
    let world = World::new();
    let target = world.target(LUN);
    let (path, aside) = (world.path("disk.img"), world.path("aside.img"));
    let none = |status: &Value| status["troubles"] == serde_json::json!([]);
    world.wait_for_status("target", "nothing to say", none);
    // The log is written by who looks from time to time, and then again: it is not said twice.
    let said_in_log = |news: &str| {
        target.process.wait_for_words(news);
        std::thread::sleep(Duration::from_millis(1500));
        world.status("target")["troubles"].clone()
    };
    fs::rename(&path, &aside).unwrap();
    let said = said_in_log("disk.img was removed");
    assert!(said[0].as_str().is_some_and(|said| said.contains("disk.img was removed")), "{said}");
    for command in [&["status"][..], &["status", "target"], &["target", "status"]] {
        let shown = world.run(command).success();
        assert!(shown.contains("disk.img was removed"), "{command:?}: {shown}");
    }
    fs::write(&path, "another").unwrap();
    let said = said_in_log("disk.img is another file now");
    assert!(said[0].as_str().is_some_and(|said| said.contains("disk.img is another file now")), "{said}");
    fs::rename(&aside, &path).unwrap();
    world.wait_for_status("target", "nothing to say any more", none);
    let log = target.process.terminate().stderr;
    for news in ["disk.img was removed", "disk.img is another file now"] {
        assert_eq!(log.matches(news).count(), 1, "{log}");
    }
}

/// Its rest reads as zeroes, and a write behind it would make it long again.
#[test]
fn a_served_file_that_is_cut_is_said_and_nothing_behind_its_end_is_served() {
    let world = World::new();
    let target = world.target(LUN);
    let url = target.url(0);
    let file = fs::OpenOptions::new().write(true).open(world.path("disk.img")).unwrap();
    file.set_len(1 << 20).unwrap();
    target.process.wait_for_words("was cut to 1048576 bytes");
    let status = world.status("target");
    let said = status["troubles"][0].as_str().unwrap_or_default();
    assert!(said.contains("disk.img was cut to 1048576 bytes while it is served"), "{status}");
    let disk = attach(&world, &url, &[]);
    for refused in ["read 2M 64k", "write 2M 64k"] {
        let tried = finish(Command::new("qemu-io").args(["-f", "raw", "-c", refused, &disk.ready]));
        assert_ne!(tried.code, Some(0), "{refused}: {tried:?}");
    }
    io(&disk.ready, &["write -P 5 0 64k", "flush", "read -P 5 0 64k"]);
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    disk.terminate();
    let log = target.process.terminate().stderr;
    assert_eq!(log.matches("was cut to 1048576 bytes while it is served").count(), 1, "{log}");
}

#[test]
fn who_asks_what_runs_without_the_run_time_directory_is_told_which_is_not_there() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    let elsewhere = world.path("elsewhere");
    let status = |arguments: &[&str]| {
        finish(world.forebay().env("FOREBAY_RUNTIME_DIR", &elsewhere).arg("status").args(arguments))
    };
    let words = ["the run-time directory", "elsewhere", "FOREBAY_RUNTIME_DIR names another"];
    status(&["disk"]).failure(NOT_FOUND, &words);
    status(&["disk", "--wait", "100ms"]).failure(NOT_FOUND, &words);
    let said = status(&[]).success();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(said.contains("not known to be attached: \"disk\""), "{said}");
    assert!(!elsewhere.exists(), "nothing runs in a new one");
    disk.terminate().success();
}

#[test]
fn a_cache_that_was_not_closed_is_listed_as_clean_unless_something_in_it_is_dirty() {
    let world = World::new();
    let target = world.target(LUN);
    let state = || world.run(["cache", "list", "--json"]).json()["caches"][0]["state"].clone();
    let mut disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["read 0 64k"]);
    disk.kill();
    assert_eq!(state(), "clean");
    let mut disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    disk.kill();
    assert_eq!(state(), "dirty");
}

#[test]
fn a_mode_that_goes_not_with_the_cache_is_a_wrong_use() {
    let world = World::new();
    let target = world.target(LUN);
    let flags = ["--cache-crash", "discard", "--cache-mode", "write-through"];
    let _disk = attach(&world, &target.url(0), &[&CACHE[..], &flags].concat());
    let words = ["write-back is excluded", "\"discard\""];
    world.run(["set", "disk", "cache.mode=write-back"]).failure(USAGE, &words);
    assert_eq!(world.status("disk")["cache"]["mode"], "write-through");
}

#[test]
fn settings_are_changed_all_or_none() {
    let world = World::new();
    let target = world.target(LUN);
    let _disk = attach(&world, &target.url(0), &CACHE);
    world.run(["set", "disk", "cache.mode=write-through", "bogus=1"]).failure(2, &["\"bogus\"", "nothing was changed"]);
    world.run(["set", "disk", "cache.mode=write-through", "bogus"]).failure(2, &["\"bogus\" is no KEY=VALUE"]);
    let bad_value = ["set", "disk", "cache.mode=write-through", "cache.cutoff=much"];
    world.run(bad_value).failure(USAGE, &["cache.cutoff much", "nothing was changed"]);
    assert_eq!(world.status("disk")["cache"]["mode"], "write-back");
    world.run(["set", "disk", "cache.mode=write-through", "cache.cutoff=1MiB"]).success();
    assert_eq!(world.status("disk")["cache"]["mode"], "write-through");
}

#[test]
fn what_a_crash_leaves_dirty_is_listed_and_what_is_missing_can_be_struck() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:a.img,size=16MiB", "--lun", "1=file:b.img,size=16MiB"]);
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "600s", "--destage-age", "600s"];
    let mut disk = attach(&world, &target.url(0), &log);
    io(&disk.ready, &["write -P 5 0 64k", "flush"]);
    let state = |world: &World, list: &str| {
        let listed = world.run([list, "list", "--json"]).json();
        listed[format!("{list}s")].as_array().unwrap().iter().map(|each| each["state"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(state(&world, "log"), ["attached"]);
    disk.kill();
    assert_eq!(state(&world, "log"), ["dirty"]);
    assert!(world.run(["log", "list"]).success().contains("disk.log"));
    let said = world.run(["status"]).success();
    assert!(said.contains("disk.log") && said.contains("--log"), "{said}");
    let said = world.run(["status", "--json"]).json();
    assert_eq!((&said["dirty"][0]["store"], &said["dirty"][0]["name"]), (&"log".into(), &"disk".into()), "{said}");
    fs::remove_file(world.path("disk.log")).unwrap();
    assert_eq!(state(&world, "log"), ["lost"]);
    world.run(["log", "discard", "disk.log", "--allow-data-loss"]).success();
    assert_eq!(state(&world, "log"), [] as [Value; 0]);
    // A cache that is clean, one with dirty data.
    for (lun, is_dirty, expected) in [(0, false, "missing"), (1, true, "lost")] {
        let mut disk = attach(&world, &target.url(lun), &CACHE);
        if is_dirty {
            io(&disk.ready, &["write -P 5 0 64k", "flush"]);
            disk.kill();
        } else {
            world.run(["detach", "disk"]).success();
            disk.wait().success();
        }
        fs::remove_file(world.path("disk.cache")).unwrap();
        assert_eq!(state(&world, "cache"), [expected]);
        let discard = ["cache", "discard", "disk.cache"];
        if is_dirty {
            world.run(discard).failure(9, &["is not there"]);
            world.run(discard.iter().chain(&["--allow-data-loss"])).success();
        } else {
            world.run(discard).success();
        }
        assert_eq!(state(&world, "cache"), [] as [Value; 0]);
        world.run(discard).failure(5, &["there is no cache"]);
    }
}

#[test]
fn a_cache_whose_file_is_gone_is_pruned_unless_it_was_dirty() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:a.img,size=16MiB", "--lun", "1=file:b.img,size=16MiB"]);
    for (lun, cache) in [(0, "clean"), (1, "dirty"), (0, "here")] {
        let options = ["--cache", cache, "--cache-size", "8MiB", "--cache-clean-above", "100%"];
        let mut disk = attach(&world, &target.url(lun), &options);
        if cache == "dirty" {
            io(&disk.ready, &["write -P 5 0 64k", "flush"]);
            disk.kill();
        } else {
            world.run(["detach", "disk"]).success();
            disk.wait().success();
        }
    }
    fs::remove_file(world.path("clean")).unwrap();
    fs::remove_file(world.path("dirty")).unwrap();
    let states = |options: &[&str]| {
        let listed = world.run([&["cache", "list", "--json"][..], options].concat()).json();
        listed["caches"].as_array().unwrap().iter().map(|each| each["state"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(states(&[]), ["missing", "lost", "clean"]);
    assert_eq!(states(&["--prune"]), ["pruned", "lost", "clean"]);
    assert_eq!(states(&[]), ["lost", "clean"]);
}

#[test]
fn what_is_no_cache_is_said_to_be_none_and_stays() {
    let world = World::new();
    let target = world.target(LUN);
    fs::write(world.path("f"), "precious").unwrap();
    let attach = ["attach", &target.url(0), "--cache", "f", "--cache-size", "16MiB"];
    for command in [&attach[..], &["cache", "discard", "f"], &["cache", "inspect", "f"], &["log", "inspect", "f"]] {
        world.run(command).failure(7, &["has 8 bytes", "is no"]);
    }
    assert_eq!(fs::read(world.path("f")).unwrap(), b"precious");
}

#[test]
fn a_cache_says_who_it_is_and_that_its_size_is_another_one_than_asked_for() {
    let world = World::new();
    let target = world.target(LUN);
    let attach =
        |size: &str| world.start(["attach", &target.url(0), "--name", "disk", "--cache", "c", "--cache-size", size]);
    // Sizes are rounded down to what a cache can have.
    let disk = attach("9000000");
    let status = world.status("disk");
    assert_eq!(status["cache_bytes"], 9_000_000 / 4096 * 4096, "{status}");
    let uuid = status["cache_uuid"].as_str().unwrap().to_owned();
    assert_eq!(world.run(["cache", "list", "--json"]).json()["caches"][0]["uuid"], *uuid);
    assert_eq!(disk.terminate().stderr, "");
    let disk = attach("16MiB");
    let ended = disk.terminate();
    for words in ["--cache-size 16MiB", "cache.size=16MiB"] {
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
}

#[test]
fn a_cache_that_failed_is_a_trouble_that_status_names() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 1 0 64k"]);
    fs::File::options().write(true).open(world.path("disk.cache")).unwrap().set_len(4096).unwrap();
    // The one that meets it fails, since nobody knows what its record has become; later ones go to the LUN.
    let writing = Command::new("qemu-io").args(["-f", "raw", "-c", "write 1M 64k", &disk.ready]).output().unwrap();
    assert!(!writing.status.success(), "{writing:?}");
    io(&disk.ready, &["write 2M 64k"]);
    let has_failed = |status: &Value| {
        let mut troubles = status["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str);
        troubles.any(|trouble| trouble.contains("the cache has failed"))
    };
    world.wait_for_status("disk", "trouble", has_failed);
    let table = world.run(["status"]).success();
    assert!(table.contains("the cache has failed"), "{table}");
    // What was dirty cannot be written again: the LUN has older data there.
    assert!(table.contains("those fail until \"disk\" is attached anew"), "{table}");
    let writing = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 64k", &disk.ready]).output().unwrap();
    assert!(!writing.status.success(), "{writing:?}");
    // What it held is gone, and both who detaches it and who runs it are told.
    let words = ["\"disk\" is detached, but ", " bytes are lost: ", "disk.cache, which held them, was cut"];
    world.run(["detach", "disk"]).failure(DAMAGE, &words);
    let ended = disk.wait();
    assert_eq!(ended.code, Some(DAMAGE), "{}", ended.stderr);
    assert!(words.iter().all(|word| ended.stderr.contains(word)), "{}", ended.stderr);
}

/// Its holes read as zeroes, which the next attach would send over what is there.
#[test]
fn a_cache_that_was_punched_in_use_is_refused_from_then_on_however_its_attachment_ended() {
    let words = ["disk.cache", "was cut, or holes made in it", "forebay cache discard"];
    for end in ["detach", "keep", "terminate", "kill"] {
        let world = World::new();
        fs::write(world.path("disk.img"), vec![1; 16 << 20]).unwrap();
        let target = world.target(["--lun", "0=file:disk.img"]);
        let url = target.url(0);
        let mut disk = attach(&world, &url, &CACHE);
        io(&disk.ready, &["write -P 2 0 4M", "flush"]);
        let cache = world.path("disk.cache");
        let path = cache.to_str().expect("it is text");
        tool("fallocate", ["--punch-hole", "--offset", "3M", "--length", "1M", path]);
        let reading = ["-f", "raw", "-c", "read -P 2 0 4M", &disk.ready];
        let reading = Command::new("qemu-io").args(reading).output().unwrap();
        assert!(!reading.status.success(), "{reading:?}");
        let troubles = world.status("disk")["troubles"].to_string();
        assert!(words.iter().all(|word| troubles.contains(word)), "{troubles}");
        let lost = ["bytes are lost", words[0], words[1], words[2]];
        match end {
            "detach" => world.run(["detach", "disk"]).failure(DAMAGE, &lost),
            "keep" => world.run(["detach", "disk", "--keep-dirty"]).failure(DAMAGE, &lost),
            _ => {}
        }
        match end {
            "kill" => disk.kill(),
            "terminate" => {
                let ended = disk.terminate();
                assert_eq!(ended.code, Some(DAMAGE), "{ended:?}");
                assert!(lost.iter().all(|word| ended.stderr.contains(word)), "{ended:?}");
            }
            _ => assert_eq!(disk.wait().code, Some(DAMAGE)),
        }
        world.run([&["attach", &url, "--name", "disk"][..], &CACHE].concat()).failure(WOULD_LOSE_DATA, &words);
        world.run(["attach", &url, "--name", "disk"]).failure(WOULD_LOSE_DATA, &words);
        world.run(["cache", "check", "disk.cache"]).failure(DAMAGE, &words);
        assert!(world.run(["cache", "list"]).success().starts_with("failed"), "{end}");
        let overview = world.run(["status"]).success();
        assert!(words.iter().all(|word| overview.contains(word)), "{overview}");
        let image = fs::read(world.path("disk.img")).unwrap();
        assert!(image.iter().all(|byte| [1, 2].contains(byte)), "{end}: what nobody wrote got there");
        world.run(["cache", "discard", "disk.cache", "--allow-data-loss"]).success();
        check_alone(&world, &url, "read -P 1 8M 64k");
    }
}

/// It has nothing that is missed; what its holes read as is no data all the same.
#[test]
fn a_clean_cache_that_was_punched_in_use_begins_without_clean_lines() {
    for mode in ["write-through", "write-back"] {
        let world = World::new();
        fs::write(world.path("disk.img"), vec![1; 16 << 20]).unwrap();
        let target = world.target(["--lun", "0=file:disk.img"]);
        let url = target.url(0);
        let cache = [&CACHE[..], &["--set", "cache.crash=warm", "--cache-mode", mode]].concat();
        let disk = attach(&world, &url, &cache);
        (0..3).for_each(|_| io(&disk.ready, &["read -P 1 0 4M"]));
        let path = world.path("disk.cache");
        tool("fallocate", ["--punch-hole", "--offset", "3M", "--length", "1M", path.to_str().expect("it is text")]);
        io(&disk.ready, &["read -P 1 0 4M"]);
        world.run(["detach", "disk"]).failure(1, &["was cut, or holes made in it"]);
        drop(disk.wait());
        if mode == "write-back" {
            // Nobody knows whether the last records of its log are there.
            let attach = [&["attach", &url, "--name", "disk"], &cache[..]].concat();
            world.run(attach).failure(WOULD_LOSE_DATA, &["cache discard"]);
            world.run(["cache", "discard", "disk.cache"]).success();
        }
        let disk = attach(&world, &url, &cache);
        let freshness = world.status("disk")["freshness"].clone();
        io(&disk.ready, &["read -P 1 0 4M"]);
        assert_eq!(freshness["cache"]["state"], "cold", "{freshness}");
        disk.terminate().success();
    }
}

/// Writes that a cache has no room for, as its file may not grow into what the limit takes: an application is told, and
/// status says it.
#[test]
fn a_limit_of_file_sizes_ends_nobody_and_status_names_what_it_refused() {
    let world = World::new();
    let target = world.target(LUN);
    let disk = attach(&world, &target.url(0), &CACHE);
    io(&disk.ready, &["write -P 1 0 64k"]);
    tool("prlimit", ["--pid", &disk.id().to_string(), "--fsize=4096:"]);
    let _ = Command::new("qemu-io").args(["-f", "raw", "-c", "write 1M 64k", &disk.ready]).output().unwrap();
    let is_refused = |status: &Value| {
        let mut troubles = status["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str);
        troubles.any(|trouble| trouble.contains("File too large"))
    };
    world.wait_for_status("disk", "trouble", is_refused);
    assert!(world.run(["status"]).success().contains("File too large"));
    tool("prlimit", ["--pid", &disk.id().to_string(), "--fsize=unlimited:"]);
    world.run(["detach", "disk", "--keep-dirty"]);
    disk.wait();
    // The target's file, likewise.
    let disk = attach(&world, &target.url(0), &["--cache", "disk.cache"]);
    tool("prlimit", ["--pid", &target.process.id().to_string(), "--fsize=4096:"]);
    let _ = Command::new("qemu-io").args(["-f", "raw", "-c", "write 1M 64k", "-c", "flush", &disk.ready]).output();
    assert_ne!(world.run(["clean", "disk"]).code, Some(0));
    tool("prlimit", ["--pid", &target.process.id().to_string(), "--fsize=unlimited:"]);
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}

#[test]
fn cleaning_that_fails_is_a_trouble_that_status_names() {
    let lazy = ["--destage-idle", "600s", "--destage-age", "1s"];
    for store in [
        &["--cache", "c", "--cache-size", "8MiB", "--cache-clean-above", "0%"][..],
        &["--log", "l", "--log-size", "8MiB"],
    ] {
        let flags = if store[0] == "--log" { [store, &lazy].concat() } else { store.to_vec() };
        let world = World::new();
        let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let file = |luns: &str| {
            let text = format!("portals = [\"{portal}\"]\n[[target]]\niqn = \"{IQN}\"\nluns = [{luns}]\n");
            fs::write(world.path("target.toml"), text).unwrap();
        };
        file("\"0=file:a.img,size=16MiB\", \"1=ram:16MiB\"");
        let _target = world.start(["target", "serve", "--config", "target.toml"]);
        let disk = attach(
            &world,
            &format!("iscsi://{portal}/{IQN}/0"),
            &[&flags[..], &["--replacement-timeout", "1s"]].concat(),
        );
        io(&disk.ready, &["read 0 64k"]);
        file("\"1=ram:16MiB\"");
        world.run(["target", "reload"]).success();
        io(&disk.ready, &["write -P 5 0 64k", "flush"]);
        let is_stuck = |status: &Value| {
            let troubles = status["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str);
            troubles.into_iter().any(|trouble| trouble.contains("cannot be written back"))
        };
        world.wait_for_status("disk", "trouble", is_stuck);
        for said in [world.run(["status"]).success(), world.run(["status", "disk"]).success()] {
            assert!(said.contains("cannot be written back"), "{said}");
        }
    }
}

#[test]
fn the_nbd_socket_has_the_mode_and_the_group_that_were_asked_for() {
    let world = World::new();
    let target = world.target(LUN);
    let group = rustix::process::getegid().as_raw().to_string();
    let attached = attach(&world, &target.url(0), &["--socket-mode", "0640", "--socket-group", &group]);
    let path = attached.ready.split_once("socket=").expect("it listens on a socket file").1;
    let metadata = fs::metadata(path).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.gid().to_string()), (0o640, group));
    for (option, value, word) in [("--socket-mode", "999", "octal"), ("--socket-group", "no-such-group", "no group")] {
        let arguments = ["attach", &target.url(0), "--name", "other", option, value];
        let refused = world.run(arguments);
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
    world.run(["detach", "disk"]).success();
    attached.wait().success();
}
