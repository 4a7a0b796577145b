//! The target goes away and comes back under load: applications wait, nothing is lost.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tests::{IQN, World, tool};

fn unused_portal() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// fio writes and verifies over NBD while the target is killed and started again, twice.
#[test]
fn a_target_restarted_under_load_loses_nothing() {
    for cache in [&[][..], &["--cache", "disk.cache", "--cache-size", "32MiB", "--cache-mode", "write-through"]] {
        let world = World::new();
        let portal = unused_portal();
        let lun = "0=file:disk.img,size=64MiB,write-cache";
        let serve = || world.start(["target", "serve", "--portal", portal.as_str(), "--iqn", IQN, "--lun", lun]);
        let mut target = serve();
        let url = format!("iscsi://{portal}/{IQN}/0");
        let front = format!("nbd:unix:{}", world.path("disk.nbd").display());
        let disk = world.start([&["attach", &url, "--name", "disk", "--as", &front], cache].concat());
        let fio = Command::new("fio")
            .args([
                "--name=verify",
                "--ioengine=nbd",
                &format!("--uri={}", disk.ready),
                "--rw=randwrite",
                "--bs=4k",
                "--size=32m",
                "--iodepth=8",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--rate_iops=2000",
                "--randseed=9",
                "--verify_state_save=0",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fio is installed");
        for before in 1..=2 {
            std::thread::sleep(Duration::from_millis(900));
            target.kill();
            std::thread::sleep(Duration::from_millis(300));
            target = serve();
            let has_come_back = |remote: &Value| remote["sessions"].as_u64() > Some(before);
            world.wait_for_remote("disk", "another session", has_come_back);
        }
        let output = fio.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_ram_lun_that_comes_back_is_another_one() {
    let world = World::new();
    let portal = unused_portal();
    let serve = || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", "0=ram:16MiB"]);
    let mut target = serve();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let disk = world.start(["attach", &url, "--name", "disk"]);
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 64k", &disk.ready]);
    target.kill();
    let _target = serve();
    let read = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "read -P 7 0 64k", &disk.ready])
        .output()
        .expect("qemu-io is installed");
    let said = format!("{}{}", String::from_utf8_lossy(&read.stdout), String::from_utf8_lossy(&read.stderr));
    assert!(said.contains("failed"), "data that is gone must be an error: {said}");
    let status = world.run(["status", "disk", "--json"]).success();
    assert!(status.contains("replaced"), "{status}");
}

/// The mode is another one at once; what is dirty from before is cleaned as soon as it can be.
#[test]
fn a_change_of_the_mode_without_the_target_says_that_it_is_made_and_what_is_still_to_be_cleaned() {
    let world = World::new();
    let mut target = world.target(["--lun", "0=file:disk.img,size=16MiB"]);
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB", "--set", "cache.clean-above=100%"];
    let attach = ["attach", &target.url(0), "--name", "disk", "--set", "timeout.replacement=1s"];
    let disk = world.start([&attach[..], &cache].concat());
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 64k", &disk.ready]);
    target.process.kill();
    let words = ["cache.mode is write-around now", "65536 bytes from before are still to be cleaned"];
    world.run(["set", "disk", "cache.mode=write-around"]).failure(3, &words);
    assert_eq!(world.status("disk")["settings"]["cache.mode"], "write-around");
    assert_eq!(world.status("disk")["cache"]["mode"], "write-around");
}

/// A detach that waits for a target that is away does not stand in the way of SIGTERM, which keeps dirty data.
#[test]
fn sigterm_ends_a_detach_that_waits_for_the_target() {
    let world = World::new();
    let portal = unused_portal();
    let lun = "0=file:disk.img,size=16MiB";
    let serve = || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", lun]);
    let mut target = serve();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let attach = ["attach", &url, "--name", "disk", "--cache", "disk.cache", "--cache-size", "8MiB"];
    let disk = world.start(attach);
    tool("qemu-io", ["-f", "raw", "-c", "write -P 7 0 64k", &disk.ready]);
    target.kill();
    let mut detach = world.forebay().args(["detach", "disk"]).stdout(Stdio::null()).spawn().unwrap();
    world.wait_for_status("disk", "a detach that waits", |status| status["detaching"]["waits_for"].is_string());
    assert!(detach.try_wait().unwrap().is_none(), "there is nowhere to write the dirty data to");
    disk.terminate().success();
    assert_eq!(detach.wait().unwrap().code(), Some(3), "it is detached, and was to leave nothing dirty");
    let _target = serve();
    let disk = world.start(attach);
    tool("qemu-io", ["-f", "raw", "-c", "read -P 7 0 64k", &disk.ready]);
}
