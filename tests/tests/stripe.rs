//! LUNs of several targets as one device: where the bytes lie, a cache in front, a member that is down.

use std::process::Command;

use serde_json::Value;
use tests::{World, finish, tool};

const UNIT: usize = 64 << 10;

/// Three targets of one file LUN each.
struct Members {
    processes: Vec<tests::Process>,
    urls: Vec<String>,
}

fn members(world: &World) -> Members {
    let (mut processes, mut urls) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let iqn = format!("iqn.2026-11.io.forebay:{name}");
        let lun = format!("0=file:{name}.img,size=8MiB");
        let serve = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", &iqn, "--lun", &lun, "--name", name];
        let process = world.start(serve);
        urls.push(format!("iscsi://{}/{iqn}/0", process.ready));
        processes.push(process);
    }
    Members { processes, urls }
}

#[test]
fn bytes_lie_where_the_format_says() {
    let world = World::new();
    let members = members(&world);
    let urls = members.urls.join(",");
    let cache = ["--cache", "wide.cache", "--cache-size", "8MiB"];
    let wide = world.start([&["attach", &urls, "--stripe", "64KiB", "--name", "wide"], &cache[..]].concat());
    for command in ["write -P 1 0 64k", "write -P 2 64k 64k", "write -P 3 128k 64k", "write -P 4 192k 64k"] {
        tool("qemu-io", ["-f", "raw", "-c", command, &wide.ready]);
    }
    tool("qemu-io", ["-f", "raw", "-c", "read -P 2 64k 64k", "-c", "write -P 9 60k 8k", &wide.ready]);
    let before = world.status("wide");
    assert_eq!(before["size_bytes"], 24 << 20);
    assert_eq!(before["stripe"]["unit_bytes"], UNIT);
    let online = |status: &Value| -> Vec<bool> {
        let members = status["stripe"]["members"].as_array().expect("there are members");
        members.iter().map(|member| member["is_online"] == true).collect()
    };
    assert_eq!(online(&before), [true; 3]);
    assert!(before["cache"]["dirty_bytes"].as_u64().unwrap() > 0);
    // A member alone would be without what is dirty in the cache, and it is in use.
    world.run(["attach", &members.urls[1]]).failure(6, &["attached on this host already"]);
    wide.terminate().success();
    world.run(["attach", &members.urls[1]]).failure(9, &["wide.cache"]);
    let reversed: Vec<&str> = members.urls.iter().rev().map(String::as_str).collect();
    let reversed = reversed.join(",");
    world.run([&["attach", &reversed, "--stripe", "64KiB"], &cache[..]].concat()).failure(7, &["another"]);
    let wide = world.start([&["attach", &urls, "--stripe", "64KiB", "--name", "wide"], &cache[..]].concat());
    world.run(["detach", "wide"]).success();
    wide.wait().success();
    let image = |name: &str| std::fs::read(world.path(name)).expect("the target made it");
    let (a, b, c) = (image("a.img"), image("b.img"), image("c.img"));
    assert!(a[..60 << 10].iter().all(|&byte| byte == 1) && a[60 << 10..UNIT].iter().all(|&byte| byte == 9));
    assert!(b[..4 << 10].iter().all(|&byte| byte == 9) && b[4 << 10..UNIT].iter().all(|&byte| byte == 2));
    assert!(c[..UNIT].iter().all(|&byte| byte == 3));
    assert!(a[UNIT..2 * UNIT].iter().all(|&byte| byte == 4) && b[UNIT..2 * UNIT].iter().all(|&byte| byte == 0));
}

#[test]
fn requests_fail_where_a_member_is_down_and_nowhere_else() {
    let world = World::new();
    let mut members = members(&world);
    let urls = members.urls.join(",");
    let attach = ["attach", &urls, "--stripe", "64KiB", "--name", "wide", "--replacement-timeout", "1s"];
    let wide = world.start(attach);
    members.processes[1].kill();
    tool("qemu-io", ["-f", "raw", "-c", "write -P 1 0 64k", "-c", "read -P 1 0 64k", &wide.ready]);
    let read = |command: &str| {
        let read = finish(Command::new("qemu-io").args(["-f", "raw", "-r", "-c", command, &wide.ready]));
        !read.stdout.contains("failed") && !read.stderr.contains("failed")
    };
    assert!(read("read 128k 64k"), "the third member is there");
    assert!(!read("read 64k 64k"), "the second is down");
    let now = world.status("wide");
    let state = |member: usize| now["stripe"]["members"][member]["is_online"].as_bool();
    assert_eq!([state(0), state(1), state(2)], [Some(true), Some(false), Some(true)]);
    assert_ne!(now["remote"]["state"], "online");
    assert!(now["stripe"]["members"][1]["remote"]["last_error"].is_string());
}

#[test]
fn what_makes_no_stripe_is_refused() {
    let world = World::new();
    let members = members(&world);
    let urls = members.urls.join(",");
    world.run(["attach", &urls]).failure(2, &["--stripe 64KiB"]);
    world.run(["attach", &members.urls[0], "--stripe", "64KiB"]).failure(2, &["two URLs"]);
    world.run(["attach", &urls, "--stripe", "5KiB"]).failure(2, &["no power of two"]);
    let twice = format!("{},{}", members.urls[0], members.urls[0]);
    world.run(["attach", &twice, "--stripe", "64KiB"]).failure(6, &["members 1 and 2", "one device"]);
}
