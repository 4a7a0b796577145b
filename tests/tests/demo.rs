//! `forebay demo`, shortened: it runs as any user, verifies everything, and leaves nothing but its report.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tests::{Underway, World, wait_until};

#[test]
fn the_demo_shows_the_gain_and_leaves_nothing_behind() {
    let world = World::new();
    let temporary = world.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = world.forebay();
    command.args(["demo", "--run-time", "2s", "--json"]).env("TMPDIR", &temporary);
    let printed = tests::finish(&mut command).json();
    let operations = |run: &str| printed[run]["operations"].as_u64().unwrap();
    assert!(operations("cached") > operations("plain"), "{printed}");
    assert!(printed["recovery_ms"].as_f64().unwrap() > 0.0);
    assert!(printed["verified_bytes"]["cached"].as_u64().unwrap() > 0);
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "files were left behind");
    let report = std::fs::read_to_string(world.path("forebay-demo.html")).unwrap();
    assert!(report.contains("<svg"), "there are plots");
    for outside in ["src=\"http", "href=\"http", "url(http", "<script"] {
        assert!(!report.contains(outside), "the report refers to something outside: {outside}");
    }
}

/// Whether a process below `directory` answers on a control socket.
fn has_socket(directory: &Path) -> bool {
    let mut entries = walkdir::WalkDir::new(directory).into_iter().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "sock"))
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind_either() {
    let world = World::new();
    let temporary = world.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = world.forebay();
    command.args(["demo", "--json"]).env("TMPDIR", &temporary);
    let demo = Underway::start(&mut command);
    wait_until("the demo has a process that it has to end", || has_socket(&temporary));
    let id = i32::try_from(demo.id()).ok().and_then(Pid::from_raw).expect("it is a process");
    kill_process(id, Signal::TERM).unwrap();
    assert_eq!(demo.finish().code, Some(1));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "files were left behind");
    assert!(!world.path("forebay-demo.html").exists());
}
