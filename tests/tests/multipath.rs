//! One LUN by several portals: a portal goes away, requests and sessions go elsewhere.

use tests::forwarder::Forwarder;
use tests::{Process, World, tool};

const IQN: &str = "iqn.2026-11.io.forebay:paths";
const WOULD_LOSE_DATA: i32 = 9;

#[test]
fn requests_go_on_when_a_portal_is_cut() {
    for policy in ["failover", "round-robin"] {
        let world = World::new();
        let lun = "0=file:disk.img,size=16MiB";
        let target = world.start(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", lun]);
        let (first, second) = (Forwarder::to(&target.ready), Forwarder::to(&target.ready));
        let urls = format!("iscsi://{}/{IQN}/0,iscsi://{}/{IQN}/0", first.address, second.address);
        let disk = world.start(["attach", &urls, "--multipath", policy, "--name", "disk"]);
        tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 64k", "-c", "write -P 2 64k 64k", &disk.ready]);
        let before = world.status("disk");
        let paths = before["multipath"]["paths"].as_array().unwrap();
        assert_eq!(before["multipath"]["policy"], policy);
        assert_eq!(paths.len(), if policy == "failover" { 1 } else { 2 }, "a portal group is one path: {before}");
        assert!(paths.iter().all(|path| path["requests"].as_u64().unwrap() > 0), "{before}");
        assert_eq!(paths[0]["portal"], first.address.to_string());
        first.cut();
        tool("qemu-io", ["-f", "raw", "-c", "read -P 1 0 64k", "-c", "write -P 3 0 64k", &disk.ready]);
        tool("qemu-io", ["-f", "raw", "-c", "read -P 3 0 64k", "-c", "read -P 2 64k 64k", &disk.ready]);
        let after = world.status("disk");
        let path = &after["multipath"]["paths"][0];
        assert_eq!(path["portal"], second.address.to_string(), "the session moved: {after}");
        assert_eq!(path["remote"]["sessions"], 2);
        assert_eq!(after["remote"]["state"], "online");
        world.run(["detach", "disk"]).success();
        disk.wait().success();
    }
}

#[test]
fn what_is_not_one_unit_is_refused() {
    let world = World::new();
    let luns = ["--lun", "0=ram:16MiB", "--lun", "1=ram:16MiB"];
    let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN];
    let target = world.start([&serve[..], &luns].concat());
    let url = |lun: u32| format!("iscsi://{}/{IQN}/{lun}", target.ready);
    let urls = format!("{},{}", url(0), url(1));
    world.run(["attach", &urls]).failure(2, &["different logical units", "--stripe 64KiB"]);
    world.run(["attach", &url(0), "--multipath", "failover"]).failure(2, &["two URLs"]);
    let both = ["attach", &urls, "--multipath", "failover", "--stripe", "64KiB"];
    assert_eq!(world.run(both).code, Some(2));
}

/// A target of two portal groups at these portals, named `target`.
fn two_groups(world: &World, portals: [&str; 2]) -> Process {
    let [first, second] = portals;
    let text = format!(
        r#"
        portals = ["{first}"]
        [[portal-group]]
        tag = 2
        portals = ["{second}"]
        [[target]]
        iqn = "{IQN}"
        luns = ["0=file:disk.img,size=16MiB"]
        "#
    );
    std::fs::write(world.path("target.toml"), text).unwrap();
    world.start(["target", "serve", "--config", "target.toml", "--name", "target"])
}

/// With portal groups of their own the paths are sessions that cannot move: the second serves until the first is back.
#[test]
fn requests_come_back_with_their_path() {
    let world = World::new();
    let _target = two_groups(&world, ["127.0.0.1:0"; 2]);
    let served = world.status("target");
    let portals: Vec<Forwarder> = served["address"].as_str().unwrap().split(' ').map(Forwarder::to).collect();
    let urls: Vec<String> = portals.iter().map(|portal| format!("iscsi://{}/{IQN}/0", portal.address)).collect();
    let disk = world.start(["attach", &urls.join(","), "--multipath", "failover", "--name", "disk"]);
    let serving = |pattern: u8| {
        let counts = || -> Vec<u64> {
            let paths = world.status("disk")["multipath"]["paths"].as_array().unwrap().clone();
            paths.iter().map(|path| path["requests"].as_u64().unwrap()).collect()
        };
        let before = counts();
        let (write, read) = (format!("write -P {pattern} 0 64k"), format!("read -P {pattern} 0 64k"));
        tool("qemu-io", ["-f", "raw", "-c", &write, "-c", &read, &disk.ready]);
        counts().iter().zip(before).map(|(after, before)| *after > before).collect::<Vec<bool>>()
    };
    let wait_for = |is_online: bool| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while world.status("disk")["multipath"]["paths"][0]["is_online"] != is_online {
            assert!(std::time::Instant::now() < deadline, "never: {}", world.status("disk"));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    assert_eq!(serving(1), [true, false]);
    portals[0].cut();
    wait_for(false);
    assert_eq!(serving(2), [false, true]);
    portals[0].mend();
    wait_for(true);
    assert_eq!(serving(3), [true, false], "back to the first");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}

/// The image is restored while its target does not run. One path is back first. The other has not noticed yet that its
/// connection is gone, and is no reason to think that its target was there all the time.
#[test]
fn a_path_that_has_not_noticed_its_end_says_nothing_about_a_restored_image() {
    for policy in ["failover", "round-robin"] {
        let world = World::new();
        let mut first = two_groups(&world, ["127.0.0.1:0"; 2]);
        let served = world.status("target");
        let portals: Vec<&str> = served["address"].as_str().unwrap().split(' ').collect();
        let links: Vec<Forwarder> = portals.iter().copied().map(Forwarder::to).collect();
        let urls: Vec<String> = links.iter().map(|link| format!("iscsi://{}/{IQN}/0", link.address)).collect();
        let cache = ["--cache", "disk.cache", "--cache-size", "16MiB", "--cache-mode", "write-back"];
        let attach = ["attach", &urls.join(","), "--multipath", policy, "--name", "disk"];
        let disk = world.start([&attach[..], &cache, &["--cache-clean-above", "100%"]].concat());
        tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 64k", "-c", "flush", &disk.ready]);
        world.run(["clean", "disk"]).success();
        std::fs::copy(world.path("disk.img"), world.path("backup.img")).unwrap();
        tool("qemu-io", ["-f", "raw", "-c", "write -P 2 0 64k", "-c", "flush", &disk.ready]);
        links[1].freeze();
        first.kill();
        std::fs::rename(world.path("backup.img"), world.path("disk.img")).unwrap();
        let second = two_groups(&world, [portals[0], portals[1]]);
        wait_for_trouble(&world, "nobody can say what others changed");
        links[1].cut();
        links[1].mend();
        world.run(["clean", "disk"]).failure(WOULD_LOSE_DATA, &["overwrite-changes=on"]);
        world.run(["detach", "disk", "--keep-dirty"]).success();
        disk.wait().success();
        let direct = format!("iscsi://{}/{IQN}/0", portals[0]);
        tool("qemu-io", ["-f", "raw", "-c", "read -P 1 0 64k", &direct]);
        second.terminate().success();
    }
}

/// One path is cut while somebody else writes into each range of the LUN that the target tells apart. The other path
/// was there all the time, and what this host wrote by it is no change by others.
#[test]
fn what_is_dirty_is_not_written_over_changes_of_the_whole_lun_that_one_path_hears_of() {
    for is_changed in [false, true] {
        let world = World::new();
        let target = two_groups(&world, ["127.0.0.1:0"; 2]);
        let served = world.status("target");
        let portals: Vec<&str> = served["address"].as_str().unwrap().split(' ').collect();
        let links: Vec<Forwarder> = portals.iter().copied().map(Forwarder::to).collect();
        let urls: Vec<String> = links.iter().map(|link| format!("iscsi://{}/{IQN}/0", link.address)).collect();
        let cache = ["--cache", "disk.cache", "--cache-size", "32MiB", "--cache-mode", "write-back"];
        let attach = ["attach", &urls.join(","), "--multipath", "round-robin", "--name", "disk"];
        let disk = world.start([&attach[..], &cache, &["--cache-clean-above", "100%"]].concat());
        links[0].cut();
        let is_online = || world.status("disk")["multipath"]["paths"][0]["is_online"] == true;
        wait(|| !is_online());
        let everywhere: Vec<String> = (0..16).map(|range| format!("write -P 1 {range}m 4k")).collect();
        let ours: Vec<&str> = everywhere.iter().flat_map(|write| ["-c", write]).collect();
        tool("qemu-io", [&["-f", "raw"][..], &ours, &["-c", "flush", &disk.ready]].concat());
        world.run(["clean", "disk"]).success();
        tool("qemu-io", ["-f", "raw", "-c", "write -P 2 5m 4k", "-c", "flush", &disk.ready]);
        if is_changed {
            let direct = format!("iscsi://{}/{IQN}/0", portals[1]);
            let theirs: Vec<String> = everywhere.iter().map(|write| write.replace("-P 1", "-P 3")).collect();
            let theirs: Vec<&str> = theirs.iter().flat_map(|write| ["-c", write]).collect();
            tool("qemu-io", [&["-f", "raw"][..], &theirs, &["-c", "flush", &direct]].concat());
        }
        links[0].mend();
        world.run(["set", "disk", "reconnect=now"]).success();
        wait(is_online);
        let pattern = match is_changed {
            true => {
                wait_for_trouble(&world, "others changed the logical unit while it was out of reach");
                world.run(["clean", "disk"]).failure(WOULD_LOSE_DATA, &["4096 bytes", "overwrite-changes=on"]);
                world.run(["detach", "disk", "--keep-dirty"]).success();
                3
            }
            false => {
                world.run(["clean", "disk"]).success();
                world.run(["detach", "disk"]).success();
                2
            }
        };
        disk.wait().success();
        let direct = format!("iscsi://{}/{IQN}/0", portals[0]);
        tool("qemu-io", ["-f", "raw", "-c", &format!("read -P {pattern} 5m 4k"), &direct]);
        target.terminate().success();
    }
}

fn wait(is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "never");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn wait_for_trouble(world: &World, words: &str) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let troubles = world.status("disk")["troubles"].to_string();
        if troubles.contains(words) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "never: {troubles}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
