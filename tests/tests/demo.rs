//! `forebay demo`, shortened: it runs as any user, verifies everything, and leaves nothing but its report.

use tests::World;

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

#[test]
fn an_interrupted_demo_leaves_nothing_behind_either() {
    let world = World::new();
    let temporary = world.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = world.forebay();
    command.args(["demo", "--json"]).env("TMPDIR", &temporary);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut demo = command.spawn().expect("the binary is there");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while std::fs::read_dir(&temporary).unwrap().count() == 0 {
        assert!(std::time::Instant::now() < deadline, "the demo does not begin");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    rustix::process::kill_process(rustix::process::Pid::from_child(&demo), rustix::process::Signal::TERM).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "files were left behind");
    assert!(!world.path("forebay-demo.html").exists());
}
