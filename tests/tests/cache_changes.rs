//! Caches that are made anew while they are used, and differences from a base that several hosts share.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::tgt::Tgt;
use tests::{IQN, Process, Target, World, tool};

const IN_USE: i32 = 6;
const MISMATCH: i32 = 7;
const NO_SPACE: i32 = 8;
const WOULD_LOSE_DATA: i32 = 9;

/// Two LUNs of 64 MiB in files, and how to attach the first.
struct Bench {
    world: World,
    target: Target,
}

impl Bench {
    fn new() -> Self {
        let world = World::new();
        let target = world.target(["--lun", "0=file:disk.img,size=64MiB", "--lun", "1=file:other.img,size=64MiB"]);
        Self { world, target }
    }

    fn attach(&self, name: &str, more: &[&str]) -> Process {
        let front = format!("nbd:unix:{}", self.world.path(&format!("{name}.nbd")).display());
        let url = self.target.url(0);
        let arguments = ["attach", &url, "--name", name, "--as", &front];
        self.world.start(arguments.iter().chain(more))
    }

    fn status(&self, name: &str) -> serde_json::Value {
        self.world.status(name)
    }

    fn detach(&self, name: &str, process: Process) {
        self.world.run(["detach", name]).success();
        process.wait().success();
    }

    fn set(&self, setting: &str) {
        self.world.run(["set", "disk", setting]).success();
    }
}

fn io(uri: &str, commands: &[&str]) {
    tool("qemu-io", ["-f", "raw"].into_iter().chain(commands.iter().flat_map(|command| ["-c", command])).chain([uri]));
}

#[test]
fn a_cache_grows_and_shrinks_while_it_is_used() {
    let bench = Bench::new();
    fs::write(bench.world.path("disk.cache.unfinished"), "left behind by a change that was interrupted").unwrap();
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB"];
    let process = bench.attach("disk", &cache);
    let uri = process.ready.clone();
    io(&uri, &["write -P 1 0 8M", "read -P 1 0 8M"]);
    let lines = |bench: &Bench| bench.status("disk")["cache"]["lines"].as_u64().unwrap();
    let lines_before = lines(&bench);
    for (setting, bytes) in [
        ("cache.size=48MiB", 48 << 20),
        ("cache.block-size=64KiB", 48 << 20),
        ("cache.associativity=full", 48 << 20),
        ("cache.size=16MiB", 16 << 20),
    ] {
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for byte in 2..12 {
                    let (write, read) = (format!("write -P {byte} 8M 2M"), format!("read -P {byte} 8M 2M"));
                    io(&uri, &[&write, &read]);
                }
            });
            bench.set(setting);
            writing.join().unwrap();
        });
        assert_eq!(fs::metadata(bench.world.path("disk.cache")).unwrap().len(), bytes, "{setting}");
        assert!(!bench.world.path("disk.cache.unfinished").exists());
        io(&uri, &["read -P 1 0 8M", "read -P 11 8M 2M"]);
    }
    let status = bench.status("disk");
    assert!(lines(&bench) < lines_before);
    assert_eq!(status["cache"]["ways"], status["cache"]["lines"]);
    assert_eq!(status["cache"]["line_bytes"], 65536);
    bench.world.run(["set", "disk", "cache.block-size=5KiB"]).failure(2, &["5KiB", "4KiB to 256KiB"]);
    bench.world.run(["set", "disk", "cache.size=4000"]).failure(2, &["4000", "4 KiB"]);
    bench.world.run(["set", "disk", "cache.size=64KiB"]).failure(2, &["too small"]);
    io(&uri, &["write -P 12 0 1M", "flush"]);
    // The one it has now is found again, dirty, by the next start.
    let mut process = process;
    process.kill();
    process.wait();
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    assert_eq!(bench.status("disk")["cache"]["lines"], status["cache"]["lines"]);
    assert!(bench.status("disk")["cache"]["dirty_bytes"].as_u64() >= Some(1 << 20));
    io(&process.ready, &["read -P 12 0 1M", "read -P 1 1M 7M", "read -P 11 8M 2M"]);
    bench.detach("disk", process);
    let disk = fs::read(bench.world.path("disk.img")).unwrap();
    assert!(disk[..1 << 20].iter().all(|&byte| byte == 12) && disk[1 << 20..8 << 20].iter().all(|&byte| byte == 1));
    bench.target.process.terminate().success();
}

/// Another one takes the place of a cache that is changed. A copy of the one before is not the cache of this host any
/// more: neither is it opened, nor does giving it up give up what the right one holds.
#[test]
fn a_copy_from_before_a_change_is_not_taken_for_the_cache_with_the_newest_data() {
    let bench = Bench::new();
    let (world, cache) = (&bench.world, ["--cache", "disk.cache"]);
    let process = bench.attach("disk", &["--cache", "disk.cache", "--cache-size", "8MiB"]);
    io(&process.ready, &["write -P 1 0 1M", "flush"]);
    bench.detach("disk", process);
    fs::copy(world.path("disk.cache"), world.path("copy")).unwrap();
    let process = bench.attach("disk", &cache);
    bench.set("cache.clean-above=100%");
    bench.set("cache.size=16MiB");
    io(&process.ready, &["write -P 2 0 1M", "flush"]);
    world.run(["detach", "disk", "--keep-dirty"]).success();
    process.wait().success();
    fs::rename(world.path("disk.cache"), world.path("right")).unwrap();
    fs::rename(world.path("copy"), world.path("disk.cache")).unwrap();
    let url = bench.target.url(0);
    let attach = |more: &[&str]| world.run([&["attach", &url, "--name", "disk"], more].concat());
    attach(&cache).failure(WOULD_LOSE_DATA, &["another cache is there", "bring the right one back"]);
    let said = world.run(["cache", "discard", "disk.cache"]).success();
    assert!(said.contains("not the cache that was used here last"), "{said}");
    attach(&[]).failure(WOULD_LOSE_DATA, &["disk.cache"]);
    fs::rename(world.path("right"), world.path("disk.cache")).unwrap();
    let process = bench.attach("disk", &cache);
    io(&process.ready, &["read -P 2 0 1M"]);
    bench.detach("disk", process);
    assert!(fs::read(world.path("disk.img")).unwrap()[..1 << 20].iter().all(|&byte| byte == 2));
}

#[test]
fn hosts_share_a_base_and_each_has_its_own_difference() {
    let bench = Bench::new();
    let process = bench.attach("make", &[]);
    io(&process.ready, &["write -P 1 0 16M", "flush"]);
    bench.detach("make", process);
    let base = fs::read(bench.world.path("disk.img")).unwrap();
    let difference = |name: &'static str, cache: &'static str| {
        let more = ["--difference", name, "--difference-size", "8MiB", "--cache", cache, "--cache-size", "24MiB"];
        bench.attach(name, &more)
    };
    let (first, second) = (difference("first", "1.cache"), difference("second", "2.cache"));
    let url = bench.target.url(0);
    bench.world.run(["attach", &url, "--name", "writer"]).failure(IN_USE, &["attached on this host already"]);
    io(&first.ready, &["write -P 2 1000k 100k", "read -P 1 0 1000k", "read -P 2 1000k 100k", "flush"]);
    io(&second.ready, &["read -P 1 0 16M", "write -P 3 1000k 100k", "discard 2M 1M", "read -P 0 2M 1M", "flush"]);
    io(&first.ready, &["read -P 2 1000k 100k", "read -P 1 2M 1M"]);
    let status = bench.status("second");
    assert_eq!((&status["cache"]["mode"], &status["difference"]["chunk_bytes"]), (&"read-only".into(), &65536.into()));
    assert!(status["difference"]["used_bytes"].as_u64().unwrap() <= 3 * 65536);
    assert_eq!(bench.status("first")["cache"]["dirty_bytes"], 0);
    // What was flushed is there after a crash, too.
    let mut first = first;
    first.kill();
    first.wait();
    let first = bench.attach("first", &["--difference", "first"]);
    io(&first.ready, &["read -P 2 1000k 100k", "read -P 1 1100k 900k"]);
    bench.detach("first", first);
    bench.detach("second", second);
    assert!(fs::read(bench.world.path("disk.img")).unwrap() == base, "nobody has changed the base");
    let of_another = bench.world.run(["attach", &url, "--difference", "first", "--generation", "2"]);
    of_another.failure(7, &["first", "generation 2"]);
    bench.world.run(["attach", &url, "--difference", "third"]).failure(5, &["third", "--difference-size"]);
    bench.target.process.terminate().success();
}

/// What no machine is too slow for.
const PATIENCE: Duration = Duration::from_secs(60);
const OWN: [&str; 4] = ["--difference", "own", "--difference-size", "8MiB"];

/// A base of 16 MiB, whose bytes are all this one.
fn provision(world: &World, byte: u8) {
    fs::write(world.path("base.img"), vec![byte; 16 << 20]).unwrap();
}

fn serve_base(world: &World, portal: &str, options: &str) -> Process {
    let lun = format!("0=file:base.img{options}");
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", &lun])
}

/// Attaches with a difference, does this, and detaches. Returns what was known of the base.
fn over_base(world: &World, url: &str, more: &[&str], commands: &[&str]) -> Value {
    let process = world.start([&["attach", url, "--name", "disk"], more].concat());
    let base = world.status("disk")["freshness"]["difference"].clone();
    io(&process.ready, commands);
    world.run(["detach", "disk"]).success();
    process.wait().success();
    base
}

/// In place, in another file under the same name, by another host while nothing is attached, and while the target is
/// killed: what is in the difference would lie among what it does not belong to.
#[test]
fn a_difference_is_not_laid_over_a_base_that_was_changed_while_it_was_away() {
    for way in ["in place", "anew", "through the target", "anew after a crash"] {
        let world = World::new();
        provision(&world, 1);
        let mut target = serve_base(&world, "127.0.0.1:0", "");
        let (portal, url) = (target.ready.clone(), format!("iscsi://{}/{IQN}/0", target.ready));
        let first = over_base(&world, &url, &OWN, &["write -P 66 1M 4k", "flush"]);
        assert_eq!(first["state"], "noted", "{first}");
        if way == "through the target" {
            io(&url, &["write -P 2 0 16M", "flush"]);
        } else {
            if way == "anew after a crash" {
                target.kill();
            } else {
                target.terminate().success();
            }
            if way != "in place" {
                fs::remove_file(world.path("base.img")).unwrap();
            }
            provision(&world, 2);
            target = serve_base(&world, &portal, "");
        }
        let own = fs::read(world.path("own")).unwrap();
        let attach = || world.run([&["attach", &url, "--name", "disk"], &OWN[..]].concat());
        let words = ["own", "the base of the difference", "was changed", "--set overwrite-changes=on", "remove "];
        for _ in 0..2 {
            attach().failure(WOULD_LOSE_DATA, &words);
        }
        assert!(fs::read(world.path("own")).unwrap() == own, "{way}: it stays as it was");
        // Another one goes on, and so does this one if the user says so.
        let other = ["--difference", "other", "--difference-size", "8MiB"];
        assert_eq!(over_base(&world, &url, &other, &["read -P 2 0 16M"])["state"], "noted");
        let told = [&OWN[..], &["--set", "overwrite-changes=on"]].concat();
        let told = over_base(&world, &url, &told, &["read -P 66 1M 4k", "read -P 2 0 1M"]);
        assert_eq!(told["state"], "changed", "{told}");
        assert_eq!(over_base(&world, &url, &OWN, &["read -P 66 1M 4k"])["state"], "kept");
        assert_eq!(over_base(&world, &url, &other, &["read -P 2 0 16M"])["state"], "kept");
        target.terminate().success();
    }
}

/// More hosts than a LUN has marks for who may only read it. The target stops in order and is killed.
#[test]
fn any_number_of_hosts_go_on_with_their_differences_over_a_base_that_nobody_changed() {
    let world = World::new();
    provision(&world, 1);
    let mut target = serve_base(&world, "127.0.0.1:0", ",read-only");
    let (portal, url) = (target.ready.clone(), format!("iscsi://{}/{IQN}/0", target.ready));
    for (round, state) in ["noted", "kept", "kept"].into_iter().enumerate() {
        for host in 0..6 {
            let (own, name) = (format!("own{host}"), format!("iqn.2026-11.org.example:host{host}"));
            let more = ["--difference", &own, "--difference-size", "4MiB", "--initiator-name", &name];
            let (read, write) =
                (format!("read -P {} 0 4k", 1 + host * round.min(1)), format!("write -P {} 0 4k", 1 + host));
            let base = over_base(&world, &url, &more, &[&read, &write, "flush"]);
            assert_eq!(base["state"], state, "{host}: {base}");
        }
        if round == 0 {
            target.terminate().success();
        } else {
            target.kill();
        }
        target = serve_base(&world, &portal, ",read-only");
    }
    let two = ["a", "b"].map(|name| {
        let own = ["--difference", name, "--difference-size", "4MiB"];
        let process = world.start([&["attach", &url, "--name", name], &own[..]].concat());
        io(&process.ready, &["read -P 1 1M 1M", "write -P 7 0 4k", "flush"]);
        process
    });
    target.terminate().success();
    let target = serve_base(&world, &portal, ",read-only");
    for (process, name) in two.into_iter().zip(["a", "b"]) {
        io(&process.ready, &["read -P 7 0 4k", "read -P 1 1M 1M"]);
        assert_eq!(world.status(name)["troubles"], serde_json::json!([]));
        world.run(["detach", name]).success();
        process.wait().success();
    }
    target.terminate().success();
    assert!(fs::read(world.path("base.img")).unwrap().iter().all(|&byte| byte == 1));
}

/// From then on reads would mix both. What was written before is durable.
#[test]
fn a_base_that_is_changed_while_its_target_is_away_ends_what_uses_a_difference_from_it() {
    let world = World::new();
    provision(&world, 1);
    let target = serve_base(&world, "127.0.0.1:0", "");
    let (portal, url) = (target.ready.clone(), format!("iscsi://{}/{IQN}/0", target.ready));
    let attached = world.start([&["attach", &url, "--name", "disk"], &OWN[..]].concat());
    io(&attached.ready, &["write -P 66 1M 4k", "flush"]);
    target.terminate().success();
    provision(&world, 2);
    let target = serve_base(&world, &portal, "");
    let deadline = Instant::now() + PATIENCE;
    let words = ["the base of the difference was changed", "forebay detach disk"];
    loop {
        let troubles = world.status("disk")["troubles"].to_string();
        if words.iter().all(|word| troubles.contains(word)) {
            break;
        }
        assert!(Instant::now() < deadline, "{troubles}");
        std::thread::sleep(Duration::from_millis(50));
    }
    for request in ["read 0 4k", "read 1M 4k", "write 0 4k"] {
        let done = std::process::Command::new("qemu-io").args(["-f", "raw", "-c", request, &attached.ready]).output();
        let done = done.unwrap();
        assert!(!done.status.success(), "{request}: {}", String::from_utf8_lossy(&done.stdout));
    }
    world.run(["detach", "disk"]).success();
    attached.wait().success();
    let again = [&["attach", &url, "--name", "disk"], &OWN[..]].concat();
    world.run(&again).failure(WOULD_LOSE_DATA, &["own", "was changed"]);
    let told = [&OWN[..], &["--set", "overwrite-changes=on"]].concat();
    over_base(&world, &url, &told, &["read -P 66 1M 4k"]);
    target.terminate().success();
}

/// There the user says by a generation which base it is.
#[test]
fn over_a_target_that_cannot_tell_a_difference_is_as_the_user_says() {
    let world = World::new();
    let tgt = Tgt::start(&world);
    for _ in 0..2 {
        let base = over_base(&world, &tgt.url(), &OWN, &["write -P 66 0 4k"]);
        assert_eq!(base["state"], "unknown", "{base}");
    }
    io(&tgt.url(), &["write -P 2 1M 4k"]);
    over_base(&world, &tgt.url(), &OWN, &["read -P 66 0 4k", "read -P 2 1M 4k"]);
}

#[test]
fn caches_are_listed_moved_matched_by_generation_and_removed() {
    let bench = Bench::new();
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB", "--generation", "5"];
    let process = bench.attach("disk", &cache);
    let front = format!("nbd:unix:{}", bench.world.path("other.nbd").display());
    let other_url = bench.target.url(1);
    let arguments =
        ["attach", &other_url, "--name", "other", "--as", &front, "--cache", "other.cache", "--cache-size", "24MiB"];
    // One file is one cache, whatever it is called.
    fs::hard_link(bench.world.path("disk.cache"), bench.world.path("same.cache")).unwrap();
    bench
        .world
        .run(["attach", &other_url, "--name", "other", "--cache", "same.cache"])
        .failure(IN_USE, &["same.cache"]);
    let second = bench.world.start(arguments);
    io(&process.ready, &["write -P 1 0 4M", "read 4M 4M"]);
    let loads = bench.world.run(["cache", "list", "--load", "1", "--json"]).json();
    let idle =
        serde_json::json!({"reads_per_second": 0.0, "writes_per_second": 0.0, "hit_ratio": null, "in_flight": 0.0});
    assert!(loads["caches"].as_array().unwrap().iter().all(|cache| cache["load"] == idle), "{loads}");
    assert!(bench.status("disk")["cache"]["load"]["writes"].as_u64() > Some(0));
    let list = || -> Vec<(String, u64)> {
        let list = bench.world.run(["cache", "list", "--json"]).json();
        let caches = list["caches"].as_array().unwrap().iter();
        caches
            .map(|cache| (cache["state"].as_str().unwrap().to_owned(), cache["bytes"].as_u64().unwrap_or(0)))
            .collect()
    };
    assert_eq!(list(), [("attached".to_owned(), 24 << 20), ("attached".to_owned(), 24 << 20)]);
    bench.world.run(["cache", "move", "8MiB", "--from", "other", "--to", "disk"]).success();
    assert_eq!(list(), [("attached".to_owned(), 32 << 20), ("attached".to_owned(), 16 << 20)]);
    bench.world.run(["cache", "move", "1GiB", "--from", "other", "--to", "disk"]).failure(2, &["16MiB", "1GiB"]);
    io(&process.ready, &["read -P 1 0 4M", "write -P 2 0 64k"]);
    bench.world.run(["detach", "disk", "--keep-dirty"]).success();
    process.wait().success();
    assert_eq!(list()[0].0, "dirty");
    // Of another generation: refused while it is dirty, and empty once it is clean.
    let url = bench.target.url(0);
    let again = ["attach", &url, "--name", "disk", "--cache", "disk.cache", "--generation", "6"];
    bench.world.run(again).failure(1, &["generation 5", "generation 6"]);
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    assert_eq!(bench.status("disk")["cache"]["generation"], 5);
    assert!(bench.status("disk")["cache"]["resident_lines"].as_u64() >= Some(2048));
    bench.detach("disk", process);
    assert_eq!(list()[0].0, "clean");
    let process = bench.attach("disk", &["--cache", "disk.cache", "--generation", "6"]);
    assert_eq!(bench.status("disk")["cache"]["resident_lines"], 0);
    io(&process.ready, &["read -P 2 0 64k", "write -P 3 0 64k"]);
    bench.world.run(["detach", "disk", "--remove-cache"]).success();
    process.wait().success();
    assert!(!bench.world.path("disk.cache").exists());
    assert_eq!(list(), [("attached".to_owned(), 16 << 20)]);
    let disk = fs::read(bench.world.path("disk.img")).unwrap();
    assert!(disk[..64 << 10].iter().all(|&byte| byte == 3), "clean before it was removed");
    bench.world.run(["detach", "other"]).success();
    second.wait().success();
    bench.target.process.terminate().success();
}

/// What is dirty in it would be cleaned, and the LUN is to stay as it is.
#[test]
fn a_cache_with_dirty_data_is_not_put_under_a_difference() {
    let bench = Bench::new();
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB"];
    let mut process = bench.attach("disk", &cache);
    io(&process.ready, &["write -P 1 0 1M", "flush"]);
    process.kill();
    process.wait();
    let url = bench.target.url(0);
    let difference = ["--difference", "its.difference", "--difference-size", "8MiB", "--cache", "disk.cache"];
    let arguments = ["attach", &url, "--name", "disk"].into_iter().chain(difference);
    bench.world.run(arguments).failure(WOULD_LOSE_DATA, &["disk.cache", "1048576 bytes", "--difference"]);
    assert!(fs::read(bench.world.path("disk.img")).unwrap()[..1 << 20].iter().all(|&byte| byte == 0));
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    bench.detach("disk", process);
    let process = bench.attach("disk", &difference);
    io(&process.ready, &["read -P 1 0 1M"]);
    bench.detach("disk", process);
    bench.target.process.terminate().success();
}

/// Written by a later program. A list that cannot be read may say that the newest data is elsewhere, or that the store
/// is an older copy.
#[test]
fn nothing_is_attached_served_or_discarded_over_lists_of_another_version() {
    let bench = Bench::new();
    let process = bench.attach("disk", &["--cache", "disk.cache", "--cache-size", "24MiB"]);
    io(&process.ready, &["write -P 1 0 1M", "flush"]);
    bench.world.run(["detach", "disk", "--keep-dirty"]).success();
    process.wait().success();
    fs::write(bench.world.path("third.img"), vec![0; 1 << 20]).unwrap();
    let (url, other) = (bench.target.url(0), bench.target.url(1));
    let serve = [
        "target",
        "serve",
        "--portal",
        "127.0.0.1:0",
        "--iqn",
        "iqn.2026-11.org.example:third",
        "--name",
        "third",
        "--lun",
    ];
    for list in ["dirty", "caches"] {
        let folder = bench.world.path("state").join(list);
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let file = files.find(|path| path.extension().is_some_and(|found| found == "json")).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"version\": 1", "\"version\": 99")).unwrap();
        let words = ["version 99 is not 1", file.to_str().unwrap()];
        let attaches = [
            &["attach", &url, "--name", "disk"][..],
            &["attach", &url, "--name", "disk", "--cache", "disk.cache"],
            &["attach", &other, "--name", "other"],
            &["cache", "list"],
            &["cache", "discard", "disk.cache", "--allow-data-loss"],
            &[&serve[..], &["0=file:third.img"]].concat(),
        ];
        // The list of dirty stores alone is reason enough to refuse the first.
        for attach in attaches.into_iter().skip(usize::from(list == "caches")) {
            bench.world.run(attach).failure(MISMATCH, &words);
        }
        fs::write(&file, text).unwrap();
    }
    bench.detach("disk", bench.attach("disk", &["--cache", "disk.cache"]));
    assert!(fs::read(bench.world.path("disk.img")).unwrap()[..1 << 20].iter().all(|&byte| byte == 1));
    bench.target.process.terminate().success();
}

/// A difference that is new, and its place.
const OWN_FILE: [&str; 4] = ["--difference", "own", "--difference-size", "8MiB"];

/// A bench with the attachment "disk", which has 4 MiB of twos in its difference.
fn bench_with_difference() -> (Bench, Process) {
    let bench = Bench::new();
    let process = bench.attach("disk", &OWN_FILE);
    io(&process.ready, &["write -P 2 0 4M", "flush"]);
    (bench, process)
}

/// Runs `commands`, which fail, and return nothing that was not written.
fn io_fails(uri: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let output = std::process::Command::new("qemu-io").args(["-f", "raw"]).args(commands).arg(uri).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !said.contains("verification"), "{said}");
}

impl Bench {
    /// Waits until the status of "disk" has a trouble with these words.
    fn wait_for_trouble(&self, words: &str) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let status = self.status("disk");
            if status["troubles"][0].as_str().is_some_and(|trouble| trouble.contains(words)) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "no trouble \"{words}\" in {status}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// The attach of the difference is refused in these words until the loss is accepted.
    fn accept_loss(&self, words: &[&str]) {
        let url = self.target.url(0);
        let attach = ["attach", &url, "--name", "disk"].into_iter().chain(OWN_FILE);
        self.world.run(attach.clone()).failure(WOULD_LOSE_DATA, words);
        self.world.run(attach).failure(WOULD_LOSE_DATA, words);
        let accepting = [&OWN_FILE[..], &["--set", "difference.accept-loss=on"]].concat();
        self.detach("disk", self.attach("disk", &accepting));
        self.detach("disk", self.attach("disk", &OWN_FILE));
    }
}

/// Its file reads as zeroes there, and takes writes, without an error.
#[test]
fn a_difference_that_is_cut_while_it_is_used_serves_no_zeroes_and_is_refused_afterwards() {
    for (is_punched, is_read) in [(true, true), (false, true), (false, false)] {
        let (bench, process) = bench_with_difference();
        let path = bench.world.path("own");
        let set_length = |bytes| fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        if is_punched {
            tool("fallocate", ["-p", "-o", "1MiB", "-l", "2MiB", path.to_str().unwrap()]);
        } else {
            set_length(2 << 20);
        }
        if is_read {
            set_length(8 << 20);
            io_fails(&process.ready, &["read -P 2 1M 1M"]);
            io_fails(&process.ready, &["read -P 2 3M 1M"]);
            io_fails(&process.ready, &["write -P 3 5M 64k", "flush"]);
            bench.wait_for_trouble("own was cut, or holes made in it, while it is in use");
        }
        bench.world.run(["detach", "disk"]).failure(MISMATCH, &["is detached, but", "4194304 bytes", "own", "was cut"]);
        assert_eq!(process.wait().code, Some(MISMATCH));
        set_length(8 << 20);
        bench.accept_loss(&["own was cut, or holes made in it, while \"disk\" used it", "difference.accept-loss=on"]);
        bench.target.process.terminate().success();
    }
}

/// There is no other copy of what it holds.
#[test]
fn a_difference_that_is_removed_while_it_is_used_can_be_read_and_is_not_ended_in_silence() {
    let (bench, process) = bench_with_difference();
    fs::remove_file(bench.world.path("own")).unwrap();
    bench.wait_for_trouble("own was removed while it is in use");
    io_fails(&process.ready, &["write -P 3 0 64k", "flush"]);
    io(&process.ready, &["read -P 2 0 4M"]);
    let refused = ["own was removed while \"disk\" uses it", "4194304 bytes", "stays attached", "SIGTERM"];
    for end in [&["detach", "disk"][..], &["detach", "disk", "--keep-dirty"]] {
        bench.world.run(end).failure(WOULD_LOSE_DATA, &refused);
    }
    io(&process.ready, &["read -P 2 0 4M"]);
    let ended = process.terminate();
    assert_eq!(ended.code, Some(MISMATCH), "{ended:?}");
    assert!(ended.stderr.contains("4194304 bytes are lost") && ended.stderr.contains("was removed"), "{ended:?}");
    bench.accept_loss(&["own was removed while \"disk\" used it", "difference.accept-loss=on"]);
    bench.target.process.terminate().success();
}

/// Nothing is lost, and the next attach would not find it.
#[test]
fn a_difference_that_is_moved_while_it_is_used_goes_on_and_is_missed_until_it_is_back() {
    let (bench, process) = bench_with_difference();
    let (path, moved) = (bench.world.path("own"), bench.world.path("moved"));
    fs::rename(&path, &moved).unwrap();
    bench.wait_for_trouble("own was moved away while it is in use");
    io(&process.ready, &["write -P 3 4M 1M", "flush"]);
    bench.world.run(["detach", "disk"]).failure(MISMATCH, &["is detached, but", "own, which was moved away"]);
    assert_eq!(process.wait().code, Some(MISMATCH));
    let url = bench.target.url(0);
    let attach = ["attach", &url, "--name", "disk"].into_iter().chain(OWN_FILE);
    bench.world.run(attach).failure(WOULD_LOSE_DATA, &["own was moved away", "bring it back"]);
    fs::rename(&moved, &path).unwrap();
    let process = bench.attach("disk", &OWN_FILE);
    io(&process.ready, &["read -P 2 0 4M", "read -P 3 4M 1M"]);
    bench.detach("disk", process);
    bench.target.process.terminate().success();
}

/// A bound for all caches of the host: the second gets what the first leaves, and the advice is good.
#[test]
fn caches_share_a_bound_of_memory() {
    let bench = Bench::new();
    let (url, other_url) = (bench.target.url(0), bench.target.url(1));
    let cache = ["--cache", "disk.cache", "--cache-size", "48MiB"];
    let attach = |more: &'static [&'static str]| {
        let arguments: Vec<String> = ["attach", &url, "--name", "disk"].map(str::to_owned).into();
        bench.world.run(arguments.into_iter().chain(cache.iter().chain(more).map(|&word| word.to_owned())))
    };
    attach(&["--cache-memory", "64KiB"]).failure(NO_SPACE, &["of memory", "make its lines larger, 16KiB", "smaller"]);
    assert!(!bench.world.path("disk.cache").exists() && !bench.world.path("disk.cache.unfinished").exists());
    let process = bench.attach("disk", &["--cache", "disk.cache", "--cache-size", "48MiB", "--cache-memory", "256KiB"]);
    let taken = bench.status("disk")["cache"]["memory_bytes"].as_u64().unwrap();
    assert!((100 << 10..200 << 10).contains(&taken), "{taken}");
    let other = ["attach", &other_url, "--name", "other", "--cache", "other.cache", "--cache-size", "48MiB"];
    let other = other.into_iter().chain(["--cache-memory", "256KiB"]);
    bench.world.run(other.clone()).failure(NO_SPACE, &["of memory", "make its lines larger"]);
    let front = format!("nbd:unix:{}", bench.world.path("other.nbd").display());
    let second = bench.world.start(other.chain(["--cache-block-size", "64KiB", "--as", &front]));
    // A change is bounded likewise, and what is there goes on.
    bench.world.run(["set", "disk", "cache.size=128MiB"]).failure(NO_SPACE, &["of memory"]);
    io(&process.ready, &["write -P 1 0 1M", "read -P 1 0 1M"]);
    bench.world.run(["detach", "other"]).success();
    second.wait().success();
    bench.detach("disk", process);
    bench.target.process.terminate().success();
}

/// SIGKILL at some moment of a change: the next start finds the old cache or the new one, whole, and nothing beside it.
#[test]
fn a_change_that_is_killed_is_finished_or_undone() {
    let bench = Bench::new();
    let mut process = bench.attach("disk", &["--cache", "disk.cache", "--cache-size", "24MiB"]);
    io(&process.ready, &["write -P 1 0 8M", "flush"]);
    let folder = bench.world.path("disk.cache").parent().expect("it is in a folder").to_owned();
    let is_unfinished = || {
        let names = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with("disk.cache.unfinished"))
    };
    let mut killed_half_way = 0;
    let mut round = 0;
    // On a busy machine a change may be over whenever the kill comes: then it is tried again, from the first moment.
    while round < 8 || killed_half_way == 0 && round < 40 {
        let (write, read) = (format!("write -P {} 8M 4M", 10 + round), format!("read -P {} 8M 4M", 10 + round));
        io(&process.ready, &[&write, "flush"]);
        let setting = if round % 2 == 0 { "cache.size=40MiB" } else { "cache.size=24MiB" };
        std::thread::scope(|scope| {
            // It may be killed, too.
            let changing = scope.spawn(|| drop(bench.world.run(["set", "disk", setting])));
            while !is_unfinished() && !changing.is_finished() {
                std::thread::yield_now();
            }
            // From the first moment of the change to well behind its end.
            std::thread::sleep(std::time::Duration::from_millis(if round < 8 { round * round * 4 } else { 0 }));
            process.kill();
        });
        killed_half_way += u32::from(is_unfinished());
        process.wait();
        process = bench.attach("disk", &["--cache", "disk.cache"]);
        let bytes = fs::metadata(bench.world.path("disk.cache")).unwrap().len();
        assert!(bytes == 24 << 20 || bytes == 40 << 20, "{bytes}");
        assert!(!is_unfinished());
        io(&process.ready, &["read -P 1 0 8M", &read]);
        round += 1;
    }
    assert!(killed_half_way >= 1, "no kill met a change");
    bench.detach("disk", process);
    let disk = fs::read(bench.world.path("disk.img")).unwrap();
    assert!(
        disk[..8 << 20].iter().all(|&byte| byte == 1)
            && disk[8 << 20..12 << 20].iter().all(|&byte| u64::from(byte) == 9 + round)
    );
    bench.target.process.terminate().success();
}

/// What it has room for it gets, and what it has none for is named, and given up only when somebody says so.
#[test]
fn a_lun_that_became_smaller_gets_what_it_has_room_for() {
    let Bench { world, target } = Bench::new();
    let front = format!("nbd:unix:{}", world.path("disk.nbd").display());
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB"];
    let attach = |target: &Target| {
        world.start([&["attach", &target.url(0), "--name", "disk", "--as", &front][..], &cache].concat())
    };
    let mut process = attach(&target);
    io(&process.ready, &["write -P 1 0 1M", "write -P 2 47M 2M", "flush"]);
    process.kill();
    process.wait();
    target.process.terminate().success();
    fs::OpenOptions::new().write(true).open(world.path("disk.img")).and_then(|disk| disk.set_len(48 << 20)).unwrap();
    let target = world.target(["--lun", "0=file:disk.img"]);
    // The target cannot know who cut its file, and what else they did.
    let url = target.url(0);
    let overwriting =
        [&["attach", &url, "--name", "disk", "--as", &front][..], &cache, &["--overwrite-changes"]].concat();
    world.run(&overwriting[..overwriting.len() - 1]).failure(WOULD_LOSE_DATA, &["--overwrite-changes"]);
    let process = world.start(overwriting);
    io(&process.ready, &["read -P 1 0 1M", "read -P 2 47M 1M", "write -P 3 2M 1M"]);
    let where_it_is = format!("{}..{}", 48 << 20, 49 << 20);
    world.run(["clean", "disk"]).failure(1, &["1048576 bytes", &where_it_is, "beyond the end"]);
    let status = world.status("disk");
    let cache = &status["cache"];
    assert_eq!((&cache["stranded_bytes"], &cache["dirty_bytes"]), (&(1 << 20).into(), &(1 << 20).into()));
    let range = serde_json::json!([{ "offset": 48 << 20, "length": 1 << 20 }]);
    assert_eq!(cache["stranded"], range);
    let disk = fs::read(world.path("disk.img")).unwrap();
    assert!(disk[..1 << 20].iter().all(|&byte| byte == 1) && disk[47 << 20..].iter().all(|&byte| byte == 2));
    assert!(disk[2 << 20..3 << 20].iter().all(|&byte| byte == 3));
    world.run(["detach", "disk"]).failure(1, &["is detached, but 1048576 bytes stay dirty"]);
    process.wait();
    world.run(["attach", &url, "--name", "disk"]).failure(WOULD_LOSE_DATA, &["disk.cache"]);
    assert!(world.run(["cache", "inspect", "disk.cache"]).success().contains(&where_it_is));
    let discard = ["cache", "discard", "disk.cache", "--beyond-end"];
    world.run(discard).failure(WOULD_LOSE_DATA, &["1048576 bytes", &where_it_is, "in the last", "50331648"]);
    let said = world.run(discard.iter().chain(&["--allow-data-loss"])).success();
    assert!(said.contains("1048576 bytes discarded, 0 stay dirty"), "{said}");
    world.run(discard).success();
    // Nothing is missing any more, so the LUN is to be had without it, and the cache is warm.
    let process = world.start(["attach", &url, "--name", "disk"]);
    world.run(["detach", "disk"]).success();
    process.wait().success();
    let process = attach(&target);
    assert!(world.status("disk")["cache"]["resident_lines"].as_u64() >= Some(700));
    world.run(["detach", "disk"]).success();
    process.wait().success();
    target.process.terminate().success();
}

/// By whatever it is changed, and after a crash, when nobody says any of it again.
#[test]
fn what_a_cache_was_made_with_survives_changes_and_restarts() {
    let bench = Bench::new();
    let made_with =
        ["--cache-lines", "1000", "--cache-associativity", "128", "--cache-checksums", "--cache-crash", "warm"];
    let set_later = ["--cache-replacement", "s3-fifo", "--cache-cutoff", "2MiB", "--cache-clean-max", "64MiB"];
    let place = ["--cache", "disk.cache", "--cache-size", "24MiB"];
    let mut process = bench.attach("disk", &[&place[..], &made_with, &set_later].concat());
    let check = |lines: u64, ways: u64, lines_max: serde_json::Value| {
        let status = bench.status("disk");
        let cache = &status["cache"];
        assert_eq!((&cache["lines"], &cache["ways"]), (&lines.into(), &ways.into()), "{cache}");
        assert_eq!((&cache["lines_max"], &cache["line_bytes"]), (&lines_max, &4096.into()));
        assert_eq!((&cache["has_checksums"], &cache["crash_mode"]), (&true.into(), &"warm".into()));
        status
    };
    check(896, 128, 1000.into());
    bench.set("cache.mode=write-through");
    bench.set("cache.dirty-max=40%");
    for (setting, lines, ways) in
        [("cache.size=48MiB", 896, 128), ("cache.size=16MiB", 896, 128), ("cache.associativity=64", 960, 64)]
    {
        bench.set(setting);
        let status = check(lines, ways, 1000.into());
        let cache = &status["cache"];
        assert_eq!((&cache["mode"], &cache["replacement"]), (&"write-through".into(), &"s3-fifo".into()));
        assert_eq!((&cache["cutoff_bytes"], &cache["dirty_max_percent"]), (&(2 << 20).into(), &40.into()));
        assert_eq!(cache["clean_max_bytes_per_second"], 64 << 20);
    }
    io(&process.ready, &["write -P 1 0 1M", "flush"]);
    process.kill();
    process.wait();
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    check(960, 64, 1000.into());
    assert_eq!(bench.status("disk")["cache"]["mode"], "write-back", "as the last attach says");
    bench.set("cache.lines=all");
    assert!(bench.status("disk")["cache"]["lines"].as_u64() > Some(3000));
    bench.set("cache.lines=640");
    check(640, 64, 640.into());
    bench.world.run(["set", "disk", "cache.lines=few"]).failure(2, &["few"]);
    bench.world.run(["set", "disk", "cache.lines=1"]).failure(2, &["16 lines at least"]);
    io(&process.ready, &["read -P 1 0 1M"]);
    bench.detach("disk", process);
    bench.target.process.terminate().success();
}

#[test]
fn larger_lines_begin_where_the_partition_does() {
    let bench = Bench::new();
    // An MBR with one partition, from sector 63 on, as they were made for long.
    let mut mbr = [0; 512];
    (mbr[450], mbr[454], mbr[510], mbr[511]) = (0x83, 63, 0x55, 0xaa);
    let file = bench.world.path("mbr");
    fs::write(&file, mbr).unwrap();
    let process = bench.attach("disk", &[]);
    io(&process.ready, &[&format!("write -s {} 0 512", file.display())]);
    bench.detach("disk", process);
    let begins = |at: u64| assert_eq!(bench.status("disk")["cache"]["alignment_bytes"], at);
    for (given, small, large) in [(None, 63 * 512 % 4096, 63 * 512), (Some("1KiB"), 1024, 1024)] {
        let cache = ["--cache", "disk.cache", "--cache-size", "24MiB"];
        let alignment = given.map(|given| ["--cache-alignment", given]);
        let process = bench.attach("disk", &[&cache[..], alignment.as_ref().map_or(&[], |words| &words[..])].concat());
        begins(small);
        bench.set("cache.block-size=64KiB");
        begins(large);
        bench.set("cache.block-size=4KiB");
        begins(small);
        bench.set("cache.block-size=32KiB");
        begins(large);
        bench.world.run(["detach", "disk", "--remove-cache"]).success();
        process.wait().success();
    }
    bench.target.process.terminate().success();
}

/// What opening refuses is not made: the next attempt finds nothing in its way.
#[test]
fn a_cache_that_would_not_be_opened_is_not_made() {
    let bench = Bench::new();
    let url = bench.target.url(0);
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB"];
    let contradiction = ["--cache-mode", "write-back", "--cache-crash", "discard"];
    let arguments = ["attach", &url, "--name", "disk"].into_iter().chain(cache).chain(contradiction);
    bench.world.run(arguments).failure(2, &["write-back is excluded by crash mode"]);
    assert!(!bench.world.path("disk.cache").exists());
    let process = bench.attach("disk", &cache);
    assert_eq!(bench.status("disk")["cache"]["crash_mode"], "dirty");
    bench.detach("disk", process);
    bench.target.process.terminate().success();
}

/// While the target stands still cleaning for another mode goes on and on; whoever comes then is told so, and the end
/// does not wait for it.
#[test]
fn a_mode_is_set_by_one_at_a_time_and_given_up_at_the_end() {
    let bench = Bench::new();
    let process = bench.attach("disk", &["--cache", "disk.cache", "--cache-size", "24MiB"]);
    io(&process.ready, &["write -P 1 0 1M", "flush"]);
    let target = rustix::process::Pid::from_raw(bench.target.process.id() as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| bench.world.run(["set", "disk", "cache.mode=write-through"]));
        let is_changed = |status: &Value| status["cache"]["mode"] == "write-through";
        bench.world.wait_for_status("disk", "the new mode", is_changed);
        bench.world.run(["set", "disk", "cache.mode=write-back"]).failure(IN_USE, &["being changed already"]);
        bench.world.run(["detach", "disk", "--keep-dirty"]).success();
        setting.join().unwrap().failure(IN_USE, &["is being detached"]);
    });
    process.wait().success();
    rustix::process::kill_process(target, rustix::process::Signal::CONT).unwrap();
    // It is known that its data is in the cache.
    let url = bench.target.url(0);
    bench.world.run(["attach", &url, "--name", "disk"]).failure(WOULD_LOSE_DATA, &["disk.cache"]);
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    io(&process.ready, &["read -P 1 0 1M"]);
    bench.detach("disk", process);
    assert!(fs::read(bench.world.path("disk.img")).unwrap()[..1 << 20].iter().all(|&byte| byte == 1));
    bench.target.process.terminate().success();
}
