//! What takes long shows on a terminal how far it is.

use std::collections::BTreeSet;
use std::fmt::Write;

use tests::{World, tool};

/// A LUN that takes 10 ms for a request: a hundred of them take a second.
const SLOW: [&str; 2] = ["--lun", "0=file:disk.img,size=16MiB,seek=10ms,rotation=0s"];

/// What `forebay` shows on a terminal of 80 columns; `script` is one.
fn shown(world: &World, arguments: &str) -> String {
    let binary = tests::forebay_binary().display();
    let mut command = std::process::Command::new("script");
    command.args(["-q", "-e", "-c", &format!("stty cols 80; {binary} {arguments}"), "/dev/null"]);
    command.current_dir(world.path(""));
    command.env("FOREBAY_RUNTIME_DIR", world.path("run")).env("FOREBAY_STATE_DIR", world.path("state"));
    tests::finish(command.env("TERM", "xterm")).success()
}

/// The shares in percent that a bar with this label showed.
fn shares(shown: &str, label: &str) -> BTreeSet<u64> {
    let lines = shown.split(['\r', '\n']).filter(|line| line.contains(label));
    let share = |line: &str| line.split(" %").next()?.split_whitespace().last()?.parse().ok();
    lines.filter_map(share).collect()
}

#[track_caller]
fn assert_goes_on(text: &str, label: &str) {
    let shares = shares(text, label);
    assert!(
        shares.iter().filter(|&&share| 0 < share && share < 100).count() > 2,
        "\"{label}\": {shares:?} of {text:?}"
    );
}

#[test]
fn a_replayed_log_shows_how_much_of_it_is_replayed() {
    let world = World::new();
    let target = world.target(SLOW);
    let url = target.url(0);
    let log = ["--log", "disk.log", "--log-size", "8MiB", "--destage-idle", "600s", "--destage-age", "600s"];
    let mut disk = world.start([&["attach", &url, "--name", "disk"][..], &log].concat());
    // Neighbours would leave as one.
    let writes = (0..100).map(|number| format!("write -P 1 {}k 4k", number * 64));
    let commands: Vec<String> = writes.flat_map(|write| ["-c".to_owned(), write]).collect();
    tool("qemu-io", ["-f", "raw"].map(str::to_owned).into_iter().chain(commands).chain([disk.ready.clone()]));
    disk.kill();
    // It is counted by batches, and all of this is one.
    let text = shown(&world, &format!("log replay disk.log {url}"));
    assert!(shares(&text, "replaying").contains(&100), "{text:?}");
}

#[test]
fn a_replayed_trace_shows_how_much_of_it_is_replayed_and_read_back() {
    let world = World::new();
    let target = world.target(SLOW);
    let mut trace = String::new();
    // Of fio's iolog, version 2.
    trace.push_str("fio version 2 iolog\nx add\nx open\n");
    (0..100).for_each(|number| writeln!(trace, "x write {} 4096", number * 65536).expect("it is a text"));
    trace.push_str("x close\n");
    std::fs::write(world.path("trace"), trace).expect("the world is writable");
    let text = shown(&world, &format!("replay trace {} --allow-data-loss", target.url(0)));
    assert_goes_on(&text, "replaying");
    assert_goes_on(&text, "reading back what was written");
}
