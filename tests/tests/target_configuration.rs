//! A target's configuration file as a user has it: who may log in and sees what, proof both ways, and changes while it
//! runs.

use std::fs;

use tests::{Process, World, tool, wait_until};

const DISKS: &str = "iqn.2026-11.org.example:disks";
const OTHERS: &str = "iqn.2026-11.org.example:others";
const DATABASE: &str = "iqn.2026-11.org.example:db";
const BACKUP: &str = "iqn.2026-11.org.example:backup-7";

struct Served {
    world: World,
    process: Process,
}

fn serve(text: &str) -> Served {
    let world = World::new();
    write(&world, text);
    let process = world.start(["target", "serve", "--config", "target.toml"]);
    Served { world, process }
}

fn write(world: &World, text: &str) {
    fs::write(world.path("target.toml"), text).expect("the world is writable");
}

impl Served {
    fn url(&self, iqn: &str, lun: u64) -> String {
        format!("iscsi://{}/{iqn}/{lun}", self.process.ready)
    }

    fn inquiry(&self, initiator: &str, iqn: &str, lun: u64) -> tests::Finished {
        self.world.run(["inquiry", &self.url(iqn, lun), "--initiator-name", initiator, "--json"])
    }

    fn size(&self, iqn: &str, lun: u64) -> u64 {
        let inquiry = self.world.run(["inquiry", &self.url(iqn, lun), "--json"]).json();
        inquiry["size_bytes"].as_u64().expect("a size")
    }
}

#[test]
fn initiators_see_what_the_file_shows_them() {
    let served = serve(&format!(
        r#"
        portals = ["127.0.0.1:0"]
        [[target]]
        iqn = "{DISKS}"
        luns = ["0=ram:1MiB", "1=ram:2MiB"]
        [[target.initiator]]
        names = ["iqn.2026-11.org.example:backup*"]
        luns = ["0=1"]
        read-only = true
        [[target.initiator]]
        names = ["{DATABASE}"]
        [[target]]
        iqn = "{OTHERS}"
        luns = ["0=ram:4MiB"]
        "#
    ));
    let size = |initiator: &str, lun: u64| served.inquiry(initiator, DISKS, lun).json()["size_bytes"].as_u64().unwrap();
    assert_eq!((size(DATABASE, 0), size(DATABASE, 1)), (1 << 20, 2 << 20));
    assert_eq!(size(BACKUP, 0), 2 << 20, "LUN 1 under the number 0");
    served.inquiry(BACKUP, DISKS, 1).failure(5, &["no LUN 1"]);
    let refused = served.inquiry("iqn.2026-11.org.example:web", DISKS, 0);
    assert!(refused.code != Some(0) && refused.stderr.contains("access list"), "{refused:?}");
    let write = ["bench", &served.url(DISKS, 0), "--rw", "randwrite", "--requests", "1", "--allow-data-loss"];
    let written = served.world.run(write.into_iter().chain(["--initiator-name", BACKUP]));
    assert!(written.code != Some(0) && written.stderr.contains("read-only"), "{written:?}");
    let discover = |initiator: &str| {
        served.world.run(["discover", &served.process.ready, "--initiator-name", initiator]).success()
    };
    assert!(discover(DATABASE).contains(DISKS) && discover(DATABASE).contains(OTHERS));
    let seen = discover("iqn.2026-11.org.example:web");
    assert!(!seen.contains(DISKS) && seen.contains(OTHERS), "{seen}");
}

#[test]
fn a_reload_changes_what_changed_and_nothing_else() {
    let disks = |luns: &str| format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{DISKS}\"\nluns = [{luns}]\n");
    let served = serve(&disks(r#""0=file:a.img,size=8MiB", "1=ram:1MiB""#));
    let url = served.url(DISKS, 0);
    let socket = served.world.path("disk.nbd");
    let front = format!("nbd:unix:{}", socket.display());
    let attached = served.world.start(["attach", &url, "--name", "disk", "--as", &front]);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 8M", &uri]);

    // A third LUN, the first one larger, the second gone; the session stays.
    write(&served.world, &disks(r#""0=file:a.img,size=16MiB", "2=ram:4MiB""#));
    let said = served.world.run(["target", "reload"]).success();
    assert!(said.contains("1 LUNs added, 1 removed, 1 resized; 0 portals added, 0 removed; 0 sessions"), "{said}");
    assert_eq!((served.size(DISKS, 0), served.size(DISKS, 2)), (16 << 20, 4 << 20));
    served.world.run(["inquiry", &served.url(DISKS, 1)]).failure(5, &["no LUN 1"]);
    tool("qemu-io", ["-f", "raw", "-c", "read -P 7 0 8M", &uri]);
    let status = served.world.status("disk");
    assert_eq!(status["remote"]["sessions"], 1, "the attachment's session went on");
    assert_eq!(status["size_bytes"], 16 << 20, "and it saw the LUN grow");

    // What makes no sense changes nothing and says why.
    for (text, words) in [
        (disks(r#""0=tape:x""#), "no backend"),
        (disks(r#""0=file:a.img,size=1MiB", "2=ram:4MiB""#), "cannot become"),
        (disks(r#""0=file:a.img,size=16MiB", "2=ram:8MiB""#), "cannot change its size"),
        (disks(r#""0=file:a.img,size=16MiB,read-only", "2=ram:4MiB""#), "only its size"),
        (disks(r#""0=file:a.img,size=16MiB", "3=file:missing.img""#), "missing.img"),
        (disks(r#""0=file:a.img,size=16MiB""#).replace("127.0.0.1:0", "192.0.2.1:0"), "--allow-remote"),
    ] {
        write(&served.world, &text);
        let refused = served.world.run(["target", "reload"]);
        assert!(refused.code != Some(0) && refused.stderr.contains(words), "{words}: {refused:?}");
        assert_eq!((served.size(DISKS, 0), served.size(DISKS, 2)), (16 << 20, 4 << 20), "{words}");
    }
    tool("qemu-io", ["-f", "raw", "-c", "read -P 7 0 8M", &uri]);

    // A file grown from outside, seen at the next reload; SIGHUP asks for one, too.
    write(&served.world, &disks(r#""0=file:a.img", "2=ram:4MiB""#));
    fs::OpenOptions::new().write(true).open(served.world.path("a.img")).unwrap().set_len(32 << 20).unwrap();
    tool("kill", ["-HUP", &served.process.id().to_string()]);
    wait_until("SIGHUP asks for a reload", || served.size(DISKS, 0) == 32 << 20);
    attached.terminate().success();
}

/// The mark is in the first block of a file LUN.
fn pattern_is(served: &Served, iqn: &str, lun: u64, pattern: &str) {
    let verify = format!("read -P {pattern} 0 4k");
    tool("qemu-io", ["-f", "raw", "-c", &verify, &served.url(iqn, lun)]);
}

fn refused(served: &Served, words: &str) {
    let refused = served.world.run(["target", "reload"]);
    assert!(refused.code != Some(0) && refused.stderr.contains(words), "{words}: {refused:?}");
}

/// A file that moves to another target, or to another number, is another unit (its designators are), so it goes in two
/// steps; in one step nothing happens.
#[test]
fn a_file_moves_between_targets_in_two_reloads() {
    let config = |disks: &str, others: &str| {
        format!(
            "portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{DISKS}\"\nluns = [\"1=ram:1MiB\"{disks}]\n\
             [[target]]\niqn = \"{OTHERS}\"\nluns = [\"1=ram:2MiB\"{others}]\n"
        )
    };
    let file = ", \"0=file:a.img,size=8MiB\"";
    let served = serve(&config(file, ""));
    tool("qemu-io", ["-f", "raw", "-c", "write -P 9 0 4k", &served.url(DISKS, 0)]);
    let front = format!("nbd:unix:{}", served.world.path("disk.nbd").display());
    let _attached = served.world.start(["attach", &served.url(DISKS, 1), "--name", "disk", "--as", &front]);

    write(&served.world, &config("", file));
    refused(&served, "is served as LUN 0 of");
    pattern_is(&served, DISKS, 0, "9");
    write(&served.world, &config(", \"5=file:./a.img\"", ""));
    refused(&served, "is served as LUN 0 of");
    pattern_is(&served, DISKS, 0, "9");

    // Out of one and into the other, as fast as the reloads go, under a session that sees the first.
    for _ in 0..3 {
        write(&served.world, &config("", ""));
        assert!(served.world.run(["target", "reload"]).success().contains("0 LUNs added, 1 removed"));
        write(&served.world, &config("", file));
        assert!(served.world.run(["target", "reload"]).success().contains("1 LUNs added, 0 removed"));
        pattern_is(&served, OTHERS, 0, "9");
        write(&served.world, &config("", ""));
        served.world.run(["target", "reload"]).success();
        write(&served.world, &config(file, ""));
        served.world.run(["target", "reload"]).success();
        pattern_is(&served, DISKS, 0, "9");
    }
}

/// Its sessions have a few seconds to go; a reload that wants the file back waits for them.
#[test]
fn a_target_is_removed_under_its_sessions_and_comes_back() {
    let rest = format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{OTHERS}\"\nluns = [\"0=ram:1MiB\"]\n");
    let both = format!("{rest}[[target]]\niqn = \"{DISKS}\"\nluns = [\"0=file:a.img,size=8MiB\"]\n");
    let served = serve(&both);
    tool("qemu-io", ["-f", "raw", "-c", "write -P 9 0 4k", &served.url(DISKS, 0)]);
    // QEMU knows nothing of being asked to log out.
    let mut busy = std::process::Command::new("qemu-img")
        .args(["bench", "-f", "raw", "-t", "none", "-c", "100000000", "-d", "8", "-s", "4096", &served.url(DISKS, 0)])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("qemu-img is installed");
    let sessions =
        || served.world.run(["target", "status", "--json"]).json()["sessions"].as_array().expect("a list").len();
    wait_until("qemu-img has logged in", || sessions() > 0);
    write(&served.world, &rest);
    assert!(served.world.run(["target", "reload"]).success().contains("1 sessions asked to end"));
    write(&served.world, &both);
    assert!(served.world.run(["target", "reload"]).success().contains("1 LUNs added"));
    busy.kill().unwrap();
    busy.wait().unwrap();
    pattern_is(&served, DISKS, 0, "9");
}

#[test]
fn a_reload_that_is_refused_changes_no_size() {
    let disks = |luns: &str| format!("portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{DISKS}\"\nluns = [{luns}]\n");
    let served = serve(&disks(r#""0=file:a.img,size=8MiB", "1=ram:1MiB""#));
    fs::write(served.world.path("b.img"), vec![0; 4096]).unwrap();
    fs::write(served.world.path("b.img.forebay"), "no record").unwrap();
    for (luns, words) in [
        (r#""0=file:a.img,size=16MiB", "1=ram:2MiB""#, "cannot change its size"),
        (r#""0=file:a.img,size=16MiB", "1=ram:1MiB,read-only""#, "only its size"),
        (r#""0=file:a.img,size=16MiB", "2=file:b.img""#, "is damaged"),
        (r#""0=file:a.img,size=16MiB", "2=file:a.img""#, "the same file"),
    ] {
        write(&served.world, &disks(luns));
        refused(&served, words);
        assert_eq!((served.size(DISKS, 0), served.size(DISKS, 1)), (8 << 20, 1 << 20), "{luns}");
        assert_eq!(fs::metadata(served.world.path("a.img")).unwrap().len(), 8 << 20, "{luns}");
    }
}

#[test]
fn limits_change_while_sessions_go_on() {
    let disks = |limits: &str| {
        format!(
            "portals = [\"127.0.0.1:0\"]\n[limits]\n{limits}\n[[target]]\niqn = \"{DISKS}\"\nluns = [\"0=ram:1MiB\"]\n"
        )
    };
    let served = serve(&disks(""));
    let socket = served.world.path("disk.nbd");
    let front = format!("nbd:unix:{}", socket.display());
    let _attached = served.world.start(["attach", &served.url(DISKS, 0), "--name", "disk", "--as", &front]);
    write(&served.world, &disks("sessions = 1\ndata-out = \"64KiB\"\ndata-in-per-session = \"64KiB\""));
    served.world.run(["target", "reload"]).success();
    let full = served.inquiry(DATABASE, DISKS, 0);
    assert!(full.code != Some(0) && full.stderr.contains("resources"), "{full:?}");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", &uri]);
    write(&served.world, &disks("sessions = 2"));
    served.world.run(["target", "reload"]).success();
    served.inquiry(DATABASE, DISKS, 0).success();
    write(&served.world, &disks("sessions = 0"));
    refused(&served, "line 3");
    served.inquiry(DATABASE, DISKS, 0).success();
}

/// What stays listens on, even in another group; what goes takes no more connections, and its sessions go on.
#[test]
fn portals_come_and_go() {
    let config = |portals: &str| format!("{portals}\n[[target]]\niqn = \"{DISKS}\"\nluns = [\"0=ram:1MiB\"]\n");
    let of_group = |tag: u16, portals: &str| format!("[[portal-group]]\ntag = {tag}\nportals = [{portals}]\n");
    let served = serve(&config(&of_group(1, "\"127.0.0.1:0\"")));
    let first = served.process.ready.clone();
    let socket = served.world.path("disk.nbd");
    let front = format!("nbd:unix:{}", socket.display());
    let _attached = served.world.start(["attach", &served.url(DISKS, 0), "--name", "disk", "--as", &front]);
    let found = |portal: &str| served.world.run(["discover", portal]).success();
    assert!(found(&first).contains(&format!("{first},1")), "{}", found(&first));

    // One more, in another group; the first by the number it got.
    let both = of_group(1, &format!("\"{first}\"")) + &of_group(2, "\"[::1]:0\"");
    write(&served.world, &config(&both));
    let said = served.world.run(["target", "reload"]).success();
    assert!(said.contains("1 portals added, 0 removed"), "{said}");
    let status = served.world.run(["target", "status", "--json"]).json();
    let second = status["address"].as_str().unwrap().strip_prefix(&format!("{first} ")).expect("both").to_owned();
    assert!(found(&second).contains(&format!("{second},2")), "{}", found(&second));

    // One that cannot be had: nothing changes.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let third = taken.local_addr().unwrap();
    write(&served.world, &config(&of_group(1, &format!("\"{third}\""))));
    refused(&served, &third.to_string());
    found(&first);
    write(&served.world, &config(&of_group(1, "\"192.0.2.1:0\"")));
    refused(&served, "--allow-remote");
    write(&served.world, &(config(&of_group(7, &format!("\"{first}\""))) + "portal-groups = [1]\n"));
    refused(&served, "has no portals");

    // The first goes under its session, the second changes its group.
    write(&served.world, &config(&(of_group(1, &format!("\"{second}\"")) + &of_group(2, "\"127.0.0.1:0\""))));
    let said = served.world.run(["target", "reload"]).success();
    assert!(said.contains("1 portals added, 1 removed"), "{said}");
    assert!(found(&second).contains(&format!("{second},1")), "{}", found(&second));
    let gone = served.world.run(["discover", &first]);
    assert!(gone.code != Some(0) && gone.stderr.contains("refused"), "{gone:?}");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", &uri]);

    // A file that says nothing of portals leaves them.
    write(&served.world, &config(""));
    assert!(served.world.run(["target", "reload"]).success().contains("0 portals added, 0 removed"));
    found(&second);
}

#[test]
fn a_session_that_is_not_allowed_any_more_ends() {
    let only = |name: &str| {
        format!(
            "portals = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"{DISKS}\"\nluns = \
             [\"0=ram:1MiB\"]\n[[target.initiator]]\nnames = [\"{name}\"]\n"
        )
    };
    let served = serve(&only(DATABASE));
    let front = format!("nbd:unix:{}", served.world.path("disk.nbd").display());
    let url = served.url(DISKS, 0);
    let attach = ["attach", &url, "--name", "disk", "--as", &front, "--initiator-name", DATABASE];
    let _attached = served.world.start(attach);
    write(&served.world, &only(BACKUP));
    let said = served.world.run(["target", "reload"]).success();
    assert!(said.contains("1 sessions asked to end"), "{said}");
    served.inquiry(BACKUP, DISKS, 0).success();
    let refused = served.inquiry(DATABASE, DISKS, 0);
    assert!(refused.stderr.contains("access list"), "{refused:?}");
}

#[test]
fn proof_goes_both_ways() {
    let world = World::new();
    for (name, secret) in
        [("alice", "alice's secret words"), ("disks", "the disks' secret words"), ("wrong", "somebody else's words")]
    {
        fs::write(world.path(name), format!("{secret}\n")).unwrap();
    }
    let chap = ["--chap-user", "alice", "--chap-file", "alice"];
    let mutual = ["--mutual-chap-user", "disks", "--mutual-chap-file", "disks"];
    let target = world.target(["--lun", "0=ram:1MiB"].into_iter().chain(chap).chain(mutual));
    let inquiry =
        |more: &[&str]| world.run(["inquiry", &target.url(0)].into_iter().chain(chap).chain(more.iter().copied()));
    inquiry(&[]).success();
    inquiry(&mutual).success();
    let wrong = inquiry(&["--mutual-chap-user", "disks", "--mutual-chap-file", "wrong"]);
    assert!(wrong.code != Some(0) && wrong.stderr.contains("authentication"), "{wrong:?}");
    world.run(["discover", target.portal()]).success();
    world.run(["inquiry", &target.url(0), mutual[0], mutual[1], mutual[2], mutual[3]]).failure(2, &["--chap-user"]);
}

#[test]
fn a_file_is_checked_without_being_served() {
    let world = World::new();
    write(&world, &format!("[[target]]\niqn = \"{DISKS}\"\nluns = [\"0=file:not-there.img,size=1MiB\"]\n"));
    let said = world.run(["target", "check", "target.toml"]).success();
    assert!(said.contains("1 targets, 1 LUNs"), "{said}");
    assert!(!world.path("not-there.img").exists(), "it is made by who serves it");
    let rest = "[[target.initiator]]\nnames = [\"*\"]\nluns = [\"0=5\"]\n";
    write(&world, &format!("[[target]]\niqn = \"{DISKS}\"\nluns = [\"0=ram:1MiB\"]\n{rest}"));
    world.run(["target", "check", "target.toml"]).failure(2, &["LUN 5"]);
    write(&world, "[[target]]\niqn = 5\n");
    world.run(["target", "check", "target.toml"]).failure(2, &["line 2"]);
    fs::write(world.path("a.img"), vec![0; 4096]).unwrap();
    std::os::unix::fs::symlink(world.path("a.img"), world.path("link.img")).unwrap();
    for luns in [r#""0=file:a.img", "1=file:link.img""#, r#""0=file:new.img,size=1MiB", "1=file:./new.img,size=1MiB""#]
    {
        write(&world, &format!("[[target]]\niqn = \"{DISKS}\"\nluns = [{luns}]\n"));
        world.run(["target", "check", "target.toml"]).failure(2, &["the same file"]);
    }
}
