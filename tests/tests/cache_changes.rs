//! Caches that are made anew while they are used, and differences from a base that several hosts share.

use std::fs;

use tests::{Process, Target, World, tool};

const IN_USE: i32 = 6;
const NO_SPACE: i32 = 8;

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
    bench.world.run(["set", "disk", "cache.size=5000"]).failure(2, &["5000", "4 KiB"]);
    bench.world.run(["set", "disk", "cache.size=64KiB"]).failure(NO_SPACE, &["too small"]);
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
    bench.world.run(["attach", &url, "--difference", "third"]).failure(5, &["third", "--difference-size"]);
    bench.target.process.terminate().success();
}

#[test]
fn caches_are_listed_moved_matched_by_generation_and_removed() {
    let bench = Bench::new();
    let cache = ["--cache", "disk.cache", "--cache-size", "24MiB", "--cache-generation", "5"];
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
    let again = ["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-generation", "6"];
    bench.world.run(again).failure(1, &["generation 5", "generation 6"]);
    let process = bench.attach("disk", &["--cache", "disk.cache"]);
    assert_eq!(bench.status("disk")["cache"]["generation"], 5);
    assert!(bench.status("disk")["cache"]["resident_lines"].as_u64() >= Some(2048));
    bench.detach("disk", process);
    assert_eq!(list()[0].0, "clean");
    let process = bench.attach("disk", &["--cache", "disk.cache", "--cache-generation", "6"]);
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
