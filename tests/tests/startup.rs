//! Attaching before the target is there, looking for it at once, and the name of a session that stays.

use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tests::{IQN, Process, World, finish, tool};

fn unused_portal() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn url(portal: &str) -> String {
    format!("iscsi://{portal}/{IQN}/0")
}

fn serve(world: &World, portal: &str) -> Process {
    world.start(["target", "serve", "--portal", portal, "--iqn", IQN, "--lun", "0=file:disk.img,size=16MiB"])
}

/// An application that comes while there is nothing to answer it.
fn application(uri: &str) -> Child {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-c", "write -P 5 0 64k", "-c", "read -P 5 0 64k", "-c", "flush", uri]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("qemu-io is installed")
}

/// Whether everything that it did worked, and what it said.
fn outcome(application: Child) -> (bool, String) {
    let output = application.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success() && !said.contains("failed"), said)
}

#[test]
fn an_absent_target_is_an_error_at_once() {
    let world = World::new();
    let portal = unused_portal();
    for command in [&["attach", &url(&portal)][..], &["attach", &url(&portal), "--cache", "c", "--cache-size", "8MiB"]]
    {
        world.run(command).failure(3, &["cannot connect", &portal, "is the target running"]);
    }
    assert!(!world.path("c").exists());
}

#[test]
fn applications_wait_for_a_target_that_comes_later() {
    for cache in
        [&[][..], &["--cache", "disk.cache", "--cache-size", "8MiB"], &["--log", "disk.log", "--log-size", "8MiB"]]
    {
        let world = World::new();
        let portal = unused_portal();
        let attach = ["attach", &url(&portal), "--name", "disk", "--wait"];
        let disk = world.start([&attach[..], cache].concat());
        let mut early = application(&disk.ready);
        let waiting =
            world.wait_for_remote("disk", "attempts", |remote| remote["reconnect_attempts"].as_u64() > Some(2));
        assert_eq!((&waiting["state"], &waiting["sessions"]), (&"reconnecting".into(), &0.into()), "{waiting}");
        assert!(waiting["reconnect_wait_ms"].as_u64() > Some(0), "{waiting}");
        assert!(waiting["last_error"].as_str().is_some_and(|error| error.contains("cannot connect")), "{waiting}");
        assert!(world.run(["status"]).success().contains("reconnecting"));
        world.run(attach).failure(6, &["running already"]);
        world.run(["clean", "disk"]).failure(3, &["is not there yet"]);
        world.run(["set", "disk", "connections=2"]).failure(3, &["is not there yet"]);
        assert!(early.try_wait().unwrap().is_none(), "it waits");
        assert!(!world.path("disk.cache").exists() && !world.path("disk.log").exists(), "nothing is made before");
        let _target = serve(&world, &portal);
        world.run(["set", "disk", "reconnect=now"]).success();
        let (is_fine, said) = outcome(early);
        assert!(is_fine, "{said}");
        world.wait_for_remote("disk", "online", |remote| remote["state"] == "online" && remote["sessions"] == 1);
        tool("qemu-io", ["-f", "raw", "-c", "read -P 5 0 64k", &disk.ready]);
        world.run(["detach", "disk"]).success();
        disk.wait().success();
        assert!(std::fs::read(world.path("disk.img")).unwrap()[..64 << 10].iter().all(|&byte| byte == 5));
    }
}

#[test]
fn applications_are_turned_away_after_the_replacement_timeout_and_let_in_later() {
    let world = World::new();
    let portal = unused_portal();
    let attach = ["attach", &url(&portal), "--name", "disk", "--wait", "--replacement-timeout", "1s"];
    let disk = world.start(attach);
    for _ in 0..2 {
        let (is_fine, said) = outcome(application(&disk.ready));
        assert!(!is_fine, "there is no target: {said}");
    }
    assert_eq!(world.status("disk")["remote"]["state"], "failing");
    let _target = serve(&world, &portal);
    world.run(["set", "disk", "reconnect=later"]).failure(2, &["reconnect later: it is now"]);
    world.run(["set", "disk", "reconnect=now"]).success();
    world.wait_for_remote("disk", "online", |remote| remote["state"] == "online");
    let (is_fine, said) = outcome(application(&disk.ready));
    assert!(is_fine, "{said}");
    disk.terminate().success();
}

#[test]
fn what_waiting_does_not_help_with_ends_it() {
    let world = World::new();
    let portal = unused_portal();
    let wrong = format!("iscsi://{portal}/{IQN}-other/0");
    let disk = world.start(["attach", &wrong, "--name", "disk", "--wait"]);
    let early = application(&disk.ready);
    world.wait_for_remote("disk", "attempts", |remote| remote["reconnect_attempts"].as_u64() > Some(1));
    let _target = serve(&world, &portal);
    let ended = disk.wait();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("there is no target"), "{ended:?}");
    assert!(!outcome(early).0);
}

#[test]
fn waiting_is_ended_by_a_detach_or_a_signal() {
    let world = World::new();
    let attach = ["attach", &url(&unused_portal()), "--name", "disk", "--wait"];
    let disk = world.start(attach);
    world.run(["detach", "disk"]).success();
    disk.wait().success();
    world.start(attach).terminate().success();
    let disk = world.start([&attach[..], &["--cache", "disk.cache", "--cache-size", "8MiB"]].concat());
    world.run(["detach", "disk"]).failure(3, &["is not there yet", "--keep-dirty"]);
    world.run(["detach", "disk", "--keep-dirty"]).success();
    disk.wait().success();
}

#[test]
fn a_word_ends_the_wait_for_a_target_that_went_away() {
    let world = World::new();
    let portal = unused_portal();
    let mut target = serve(&world, &portal);
    let disk = world.start(["attach", &url(&portal), "--name", "disk"]);
    world.run(["set", "disk", "reconnect=now"]).success();
    assert_eq!(world.status("disk")["remote"]["sessions"], 1, "there is a session already");
    target.kill();
    let long = |remote: &Value| remote["reconnect_wait_ms"].as_u64() >= Some(1600);
    world.wait_for_remote("disk", "a long wait", long);
    world.run(["set", "disk", "reconnect=now"]).success();
    let after = world.wait_for_remote("disk", "short waits again", |remote| !long(remote));
    assert_eq!(after["state"], "reconnecting");
    world.wait_for_remote("disk", "a long wait again", long);
    let _target = serve(&world, &portal);
    world.run(["set", "disk", "reconnect=now"]).success();
    world.wait_for_remote("disk", "online", |remote| remote["state"] == "online" && remote["sessions"] == 2);
    disk.terminate().success();
}

/// The ISIDs of the sessions that the target has, sorted.
fn isids(world: &World) -> Vec<String> {
    let status = world.run(["target", "status", "--json"]).json();
    let sessions = status["sessions"].as_array().expect("there is a list");
    let mut isids: Vec<String> =
        sessions.iter().map(|session| session["isid"].as_str().unwrap_or_default().to_owned()).collect();
    isids.sort();
    isids
}

#[test]
fn an_attachment_is_the_same_initiator_port_at_every_start() {
    let world = World::new();
    let portal = unused_portal();
    let _target = serve(&world, &portal);
    let url = url(&portal);
    let mut first = world.start(["attach", &url, "--name", "disk"]);
    let isid = isids(&world);
    assert_eq!(isid.len(), 1);
    assert_eq!(world.status("disk")["remote"]["isid"], isid[0], "both ends say the same");
    // A look at the LUN is another session, and does not end this one.
    world.run(["inquiry", &url]).success();
    assert_eq!(world.status("disk")["remote"]["sessions"], 1);
    first.kill();
    let again = world.start(["attach", &url, "--name", "disk"]);
    assert!(isids(&world).contains(&isid[0]));
    // Who comes by its name takes its place (RFC 7143 6.3.5), and it comes back, perhaps before the other has got its
    // answers.
    world.run(["inquiry", &url, "--isid", &isid[0]]);
    let is_back = |remote: &Value| remote["state"] == "online" && remote["sessions"].as_u64() > Some(1);
    world.wait_for_remote("disk", "a new session", is_back);
    again.terminate().success();
    let other = world.start(["attach", &url, "--name", "other"]);
    assert!(isids(&world).iter().any(|other| *other != isid[0]));
    other.terminate().success();
}

#[test]
fn an_isid_is_counted_up_where_there_are_several_sessions() {
    let world = World::new();
    let portal = unused_portal();
    let _target = serve(&world, &portal);
    let url = url(&portal);
    let isid = ["--isid", "80abcdef00ff"];
    let paths = format!("{url},{url}");
    let disk = world.start([&["attach", &paths, "--name", "disk", "--multipath", "round-robin"][..], &isid].concat());
    assert_eq!(isids(&world), ["80abcdef00ff", "80abcdef0100"]);
    disk.terminate().success();
    let bench =
        ["bench", &url, "--jobs", "3", "--requests", "300", "--rw", "randwrite", "--verify", "--allow-data-loss"];
    let finished = world.run([&bench[..], &isid].concat());
    assert_eq!(finished.stderr, "", "no session ended another");
    finished.success();
    world.run([&["discover", &portal][..], &isid].concat()).success();
    for wrong in ["", "80abcdef", "c0abcdef00ff", "80abcdef00fg"] {
        let refused = finish(world.forebay().args(["inquiry", &url, "--isid", wrong]));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("twelve hexadecimal digits"), "{refused:?}");
    }
}

/// The registry of the host says which LUN is not to be used without its cache. One that cannot be written refuses the
/// attach, and the LUN is as free as before.
#[test]
fn an_attach_that_cannot_be_recorded_leaves_its_luns_free_and_its_stores_in_order() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:a.img,size=16MiB", "--lun", "1=file:b.img,size=16MiB"]);
    let urls = format!("{},{}", target.url(0), target.url(1));
    let plain = ["attach", &urls, "--stripe", "64KiB", "--name", "disk"];
    let stores = |name: &str| {
        let (cache, log) = (format!("{name}.cache"), format!("{name}.log"));
        ["--cache", &cache, "--cache-size", "16MiB", "--cache-mode", "write-back", "--log", &log, "--log-size", "8MiB"]
            .map(str::to_owned)
    };
    let with = |stores: &[String]| {
        plain.iter().map(|word| (*word).to_owned()).chain(stores.iter().cloned()).collect::<Vec<_>>()
    };
    let succeed = |arguments: &[String]| {
        let attached = world.start(arguments);
        let records = records_in(&world.path("state/dirty"));
        world.run(["detach", "disk"]).success();
        attached.wait().success();
        records
    };
    // One for the stripe, one for each of its members, of the cache and of the log: which of them comes first nobody
    // says.
    let (of_log, of_cache): (Vec<_>, Vec<_>) =
        succeed(&with(&stores("other"))).into_iter().partition(|name| name.ends_with(".log.json"));
    assert_eq!((of_cache.len(), of_log.len(), records_in(&world.path("state/dirty")).len()), (3, 3, 0));
    let disk = stores("disk");
    for (stores, records, what) in
        [(&disk[..6], &of_cache, "cache"), (&disk[..], &of_cache, "cache"), (&disk[..], &of_log, "log")]
    {
        for record in records {
            let in_the_way = world.path("state/dirty").join(format!("{record}.new"));
            std::fs::create_dir(&in_the_way).unwrap();
            let refused = world.run(with(stores));
            let recorded = format!("cannot record the {what} {}", world.path(&format!("disk.{what}")).display());
            refused.failure(1, &[&recorded]);
            std::fs::remove_dir(&in_the_way).unwrap();
            assert_eq!(records_in(&world.path("state/dirty")), [""; 0]);
            succeed(&with(&[]));
            assert_eq!(world.run(["cache", "inspect", "disk.cache", "--json"]).json()["was_closed"], true);
        }
    }
}

/// Names of the files in there.
fn records_in(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
