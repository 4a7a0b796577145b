//! Clients we did not write, in front of `forebay target serve`: libiscsi's tools and QEMU.

use std::fs;
use std::process::Command;

use tests::iscsi_test_cu::{Verdict, verdicts};
use tests::{IQN, World, finish, tool};

#[test]
fn iscsi_ls_lists_targets_and_luns() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:64MiB", "--lun", "1=file:disk.img,size=1GiB"]);
    let listed = tool("iscsi-ls", ["-s", &format!("iscsi://{}", target.portal())]);
    assert!(listed.contains(&format!("Target:{IQN} Portal:{},1", target.portal())), "{listed}");
    for lun in ["Lun:0", "Lun:1"] {
        assert!(listed.contains(lun), "{listed}");
    }
    assert!(fs::metadata(world.path("disk.img")).unwrap().len() == 1 << 30, "the file was made with its size");
}

#[test]
fn iscsi_ls_reaches_ipv6_portals() {
    let world = World::new();
    let target = world.start(["target", "serve", "--portal", "[::1]:0", "--iqn", IQN, "--lun", "0=ram:64MiB"]);
    let listed = tool("iscsi-ls", ["-s", &format!("iscsi://{}", target.ready)]);
    assert!(listed.contains("Lun:0"), "{listed}");
}

/// Some 30 KiB of SendTargets, which come in several Text Responses (RFC 7143 11.11.2).
#[test]
fn hundreds_of_targets_are_discovered() {
    const COUNT: usize = 400;
    let world = World::new();
    let targets: String =
        (0..COUNT).map(|number| format!("[[target]]\niqn = \"{IQN}{number}\"\nluns = [\"0=ram:1MiB\"]\n\n")).collect();
    fs::write(world.path("target.toml"), format!("portals = [\"127.0.0.1:0\"]\n\n{targets}")).unwrap();
    let target = world.start(["target", "serve", "--config", "target.toml"]);
    let ours = world.run(["discover", &target.ready]).success();
    assert_eq!(ours.matches(IQN).count(), COUNT, "{ours}");
    let theirs = tool("iscsi-ls", [&format!("iscsi://{}", target.ready)]);
    assert_eq!(theirs.matches(&format!("Target:{IQN}")).count(), COUNT, "{theirs}");
}

#[test]
fn iscsi_inq_shows_the_serial_number_of_a_file_again_after_a_restart() {
    let world = World::new();
    let serial = || {
        let target = world.target(["--lun", "0=file:disk.img,size=16MiB", "--lun", "1=ram:16MiB"]);
        let page = |lun| tool("iscsi-inq", ["-e", "1", "-c", "128", &target.url(lun)]);
        let (file, ram) = (page(0), page(1));
        target.process.terminate().success();
        (file, ram)
    };
    let (first, second) = (serial(), serial());
    assert!(first.0.contains("Unit Serial Number"), "{}", first.0);
    assert_eq!(first.0, second.0, "a file LUN stays the same");
    assert_ne!(first.1, second.1, "a RAM LUN is a new one at every start");
}

#[test]
fn chap_lets_in_who_knows_the_secret() {
    let world = World::new();
    let secret = "a-secret-of-18-byte";
    fs::write(world.path("secret"), secret).unwrap();
    let target = world.target(["--lun", "0=ram:16MiB", "--chap-user", "alice", "--chap-file", "secret"]);
    let with = |user: &str, password: &str| {
        let url = format!("iscsi://{user}%{password}@{}/{IQN}/0", target.portal());
        finish(Command::new("iscsi-inq").arg(url)).code
    };
    assert_eq!(with("alice", secret), Some(0));
    assert_ne!(with("alice", "another-secret-here"), Some(0));
    assert_ne!(with("bob", secret), Some(0));
    assert_ne!(finish(Command::new("iscsi-inq").arg(target.url(0))).code, Some(0));
}

#[test]
fn credentials_that_nobody_asks_for_do_no_harm() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    tool("iscsi-inq", [&format!("iscsi://alice%a-secret-of-18-byte@{}/{IQN}/0", target.portal())]);
}

#[test]
fn qemu_img_converts_a_gigabyte_in_and_out() {
    let world = World::new();
    let target = world.target(["--lun", "0=file:disk.img,size=1GiB"]);
    let (source, back) = (world.path("source.img"), world.path("back.img"));
    write_mixed_image(&source, 1 << 30);
    let url = target.url(0);
    let source = source.display().to_string();
    let back = back.display().to_string();
    tool("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &source, &url]);
    tool("qemu-img", ["convert", "-f", "raw", "-O", "raw", &url, &back]);
    assert_eq!(checksum(&source), checksum(&back));
    assert_eq!(checksum(&source), checksum(&world.path("disk.img").display().to_string()));
}

/// An image with random parts, zero parts and holes, from a fixed seed.
fn write_mixed_image(path: &std::path::Path, size: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let mut random = base::random::Random::new(3);
    let mut chunk = vec![0; 1 << 20];
    for index in 0..size >> 20 {
        match index % 4 {
            0 | 1 => random.fill(&mut chunk),
            2 => chunk.fill(0),
            _ => continue,
        }
        file.write_all_at(&chunk, index << 20).unwrap();
    }
}

fn checksum(path: &str) -> String {
    tool("sha256sum", [path]).split_whitespace().next().unwrap().to_owned()
}

#[test]
fn many_initiators_at_once() {
    let world = World::new();
    let target =
        world.target(["--lun", "0=ram:64MiB", "--lun", "1=ram:64MiB", "--lun", "2=ram:64MiB", "--lun", "3=ram:64MiB"]);
    let run = |lun: u64, part: u64| {
        let (offset, pattern) = (part * 16, lun * 4 + part + 1);
        let url = target.url(lun);
        move || {
            let write = format!("write -P {pattern} {offset}M 16M");
            let read = format!("read -P {pattern} {offset}M 16M");
            tool("qemu-io", ["-f", "raw", "-c", &write, "-c", "flush", "-c", &read, &url]);
        }
    };
    std::thread::scope(|scope| {
        for lun in 0..4 {
            for part in 0..4 {
                scope.spawn(run(lun, part));
            }
        }
    });
}

#[test]
fn conformance_families_really_pass() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:256MiB"]);
    for family in ["Read10", "Write10", "Inquiry", "ReadCapacity16", "TestUnitReady"] {
        let finished = finish(Command::new("iscsi-test-cu").args([
            "--dataloss",
            "--verbose",
            "--test",
            &format!("SCSI.{family}.*"),
            &target.url(0),
        ]));
        let log = format!("{}{}", finished.stdout, finished.stderr);
        let verdicts = verdicts(&log);
        assert!(!verdicts.is_empty(), "{family}: no test ran:\n{log}");
        let others: Vec<_> = verdicts.iter().filter(|(_, verdict)| **verdict != Verdict::Passed).collect();
        assert!(others.is_empty(), "{family}: {others:?}\n{log}");
        println!("iscsi-test-cu {family}: {} passed, none skipped", verdicts.len());
    }
}

#[test]
fn garbage_on_the_wire_is_answered_or_hung_up_on_and_nobody_else_notices() {
    use std::io::{Read, Write};
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let mut random = base::random::Random::new(11);
    for length in [1usize, 47, 48, 512, 70_000] {
        let mut garbage = vec![0; length];
        random.fill(&mut garbage);
        let mut stream = std::net::TcpStream::connect(target.portal()).unwrap();
        // The target may hang up before it has heard it all.
        let _ = stream.write_all(&garbage).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        // A reset is an answer, too.
        let _ = stream.read_to_end(&mut answer);
    }
    tool("iscsi-inq", [&target.url(0)]);
}

#[test]
fn sigterm_ends_a_target_with_clients_connected() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:64MiB"]);
    let mut client = Command::new("qemu-img")
        .args(["bench", "-f", "raw", "-t", "none", "-c", "100000000", "-d", "8", "-s", "4096", &target.url(0)])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("qemu-img is installed");
    world.wait_for_status("target", "a client that reads", |status| status["luns"][0]["reads"].as_u64() > Some(100));
    let finished = target.process.terminate();
    client.kill().unwrap();
    client.wait().unwrap();
    finished.success();
}
