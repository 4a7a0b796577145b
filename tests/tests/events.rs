//! `forebay events`: what happened to attachments and mounts, and what the daemon did about it, in order.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::World;

/// What no machine is too slow for.
const PATIENCE: Duration = Duration::from_secs(60);

const NOT_FOUND: i32 = 5;

/// The events of `name`, or of all, as JSON.
fn events(world: &World, name: Option<&str>) -> Vec<Value> {
    let said = world.run(["events", "--json"].into_iter().chain(name)).json();
    assert_eq!(said["forgotten"], 0, "{said}");
    said["events"].as_array().expect("there is a list").clone()
}

fn kinds(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["event"].as_str().expect("it has a kind").to_owned()).collect()
}

/// Waits until the events of `name` are of these kinds, in this order, among others.
#[track_caller]
fn wait_for(world: &World, name: &str, expected: &[&str]) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let events = events(world, Some(name));
        let mut found = expected.iter().peekable();
        for kind in kinds(&events) {
            found.next_if(|expected| **expected == kind);
        }
        if found.peek().is_none() {
            return events;
        }
        assert!(Instant::now() < deadline, "it never came to {expected:?}: {events:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `forebay events --follow`, and its lines.
struct Follower {
    child: Child,
    /// `None` once nobody reads them any more.
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Follower {
    fn new(world: &World, arguments: &[&str]) -> Self {
        let mut command = world.forebay();
        command.args(["events", "--follow"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the binary is there");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines: Some(lines) }
    }

    /// The next line with this word; a test that hangs here is ended by the runner.
    fn line_with(&mut self, word: &str) -> String {
        let mut lines = self.lines.iter_mut().flatten().map(|line| line.expect("it is text"));
        lines.find(|line| line.contains(word)).unwrap_or_else(|| panic!("it ended without {word}"))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sessions_settings_and_ends_are_told_in_their_order_also_to_those_who_follow() {
    let world = World::new();
    let portal = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let serve = || {
        let serve =
            ["target", "serve", "--portal", &portal, "--iqn", tests::IQN, "--lun", "0=file:disk.img,size=16MiB"];
        world.start(serve)
    };
    let mut target = serve();
    let url = format!("iscsi://{portal}/{}/0", tests::IQN);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB"];
    let disk = world.start([&["attach", &url, "--name", "disk"][..], &cache].concat());
    let (mut text, mut json) = (Follower::new(&world, &["disk"]), Follower::new(&world, &["--json"]));
    assert!(text.line_with("disk started").contains(&disk.ready));
    world.run(["set", "disk", "cache.mode=write-through"]).success();
    text.line_with("disk set: cache.mode=write-through");
    target.kill();
    wait_for(&world, "disk", &["started", "set", "session-lost"]);
    let _target = serve();
    let all = wait_for(&world, "disk", &["started", "set", "session-lost", "session-back"]);
    assert!(all.iter().all(|event| event["name"] == "disk" && event["process"] == "disk"), "{all:?}");
    let times: Vec<u64> = all.iter().map(|event| event["at_ms"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{all:?}");
    assert!(text.line_with("session-lost").contains(&portal));
    text.line_with("session-back");
    let event: Value = serde_json::from_str(&json.line_with("session-back")).unwrap();
    assert_eq!((&event["name"], &event["event"]), (&Value::from("disk"), &Value::from("session-back")));
    // Of all there is the target as well, and of a name that nobody has an error.
    assert!(events(&world, None).iter().any(|event| event["name"] == "target" && event["event"] == "started"));
    world.run(["events", "other"]).failure(NOT_FOUND, &["nothing runs under the name \"other\""]);
    disk.terminate().success();
}

/// One line to the control socket of `name`, and its answer.
fn ask(world: &World, name: &str, line: &str) -> String {
    let mut stream = UnixStream::connect(world.path("run").join(format!("{name}.sock"))).expect("it runs");
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn who_follows_and_reads_nothing_keeps_nobody_waiting_and_finds_the_oldest_forgotten() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let _disk =
        world.start(["attach", &target.url(0), "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"]);
    // One that nobody reads, and one whose reader has gone.
    let _slow = Follower::new(&world, &["disk"]);
    let mut gone = Follower::new(&world, &["disk"]);
    gone.line_with("disk started");
    gone.lines = None;
    for number in 0..2000 {
        let value = if number % 2 == 0 { "50%" } else { "60%" };
        let said = ask(
            &world,
            "disk",
            &format!("{{\"command\":\"set\",\"key\":\"cache.clean-above\",\"value\":\"{value}\"}}"),
        );
        assert!(said.contains("ok"), "{said}");
    }
    let said = world.run(["events", "disk", "--json"]).json();
    let all = said["events"].as_array().unwrap();
    assert_eq!((all.len(), said["forgotten"].as_u64()), (1024, Some(977)), "one was that it started");
    assert_eq!(all.last().unwrap()["words"], "cache.clean-above=60%");
    let ended = gone.child.wait().expect("it is our child");
    assert!(ended.success(), "{ended}");
    let words = world.run(["events", "disk"]).success();
    assert!(words.starts_with("977 earlier events are forgotten\n"), "{words}");
}
