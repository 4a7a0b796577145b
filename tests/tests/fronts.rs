//! Several fronts over one stack: each at a place of its own, all of one device.

use tests::{World, tool};

#[test]
fn a_stack_is_offered_at_several_places_and_each_sees_what_the_others_wrote() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let unix = format!("nbd:unix:{}", world.path("disk.nbd").display());
    let stores = ["--cache", "c", "--cache-size", "8MiB", "--log", "l", "--log-size", "16MiB"];
    let attach = ["attach", &target.url(0), "--name", "disk", "--as", &unix, "--as", "nbd:127.0.0.1:0"];
    let disk = world.start([&attach[..], &stores].concat());
    let status = world.status("disk");
    let addresses: Vec<String> = status["fronts"]
        .as_array()
        .expect("there are some")
        .iter()
        .map(|front| front["address"].as_str().expect("it has an address").to_owned())
        .collect();
    assert_eq!(addresses.len(), 2, "{status}");
    assert_eq!(disk.ready, addresses[0], "the first is said first");
    assert_eq!(status["address"], addresses.join(" "));
    for (round, (writer, reader)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        let pattern = format!("-P {} 0 64k", round + 5);
        tool("qemu-io", ["-f", "raw", "-c", &format!("write {pattern}"), &addresses[writer]]);
        tool("qemu-io", ["-f", "raw", "-c", &format!("read {pattern}"), &addresses[reader]]);
    }
    assert_eq!(world.status("disk")["nbd"]["write"]["requests"], 2, "of both together");
    world.run(["detach", "disk"]).success();
    disk.wait().success();
}

#[test]
fn a_front_that_there_is_not_is_refused_with_those_there_are() {
    let world = World::new();
    let url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:disks/0";
    world
        .run(["attach", url, "--as", "ublk:/dev/ublkb0"])
        .failure(2, &["--as ublk:/dev/ublkb0", "nbd:unix:PATH", "auto"]);
    let nine = ["--as", "nbd:127.0.0.1:0"].repeat(9);
    world.run([&["attach", url][..], &nine].concat()).failure(2, &["1 to 8 fronts"]);
}
