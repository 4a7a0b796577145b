//! A host that reaches a shared LUN by two paths of one target, and another one that writes meanwhile: one of the paths
//! carries nothing for a while without anybody being told, and is then cut. No read is old, and no copy is dropped but
//! what others wrote.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::random::Random;
use block::SharedDevice;
use front::{ListenAddress, NbdClient};
use serde_json::Value;
use tests::forwarder::Forwarder;
use tests::register::{BLOCK_BYTES, History, Operation, Place, check_all};
use tests::{IQN, Process, World};

const BLOCKS: u64 = 24;
/// Requests of one host at a time.
const DEPTH: u64 = 3;

/// A target of two portal groups, between which no session can move.
fn serve(world: &World, name: &str, file: &str) -> (Process, Vec<String>) {
    let text = format!(
        r#"
        portals = ["127.0.0.1:0"]
        [[portal-group]]
        tag = 2
        portals = ["127.0.0.1:0"]
        [[target]]
        iqn = "{IQN}"
        luns = ["0=file:{file},size=1MiB,shared"]
        "#
    );
    let settings = format!("{name}.toml");
    std::fs::write(world.path(&settings), text).expect("there is room");
    let target = world.start(["target", "serve", "--config", &settings, "--name", name]);
    let served = world.status(name);
    let portals = served["address"].as_str().expect("it serves").split(' ').map(str::to_owned).collect();
    (target, portals)
}

fn url(portal: impl std::fmt::Display) -> String {
    format!("iscsi://{portal}/{IQN}/0")
}

async fn attach(world: &World, urls: &str, number: u64, more: &[&str]) -> (Process, SharedDevice) {
    let name = format!("host{number}");
    let (socket, cache) = (world.path(&format!("{name}.nbd")), format!("{name}.cache"));
    let front = format!("nbd:unix:{}", socket.display());
    let what = ["attach", urls, "--shared", "--name", &name, "--as", &front, "--cache", &cache, "--cache-size", "8MiB"];
    let process = world.start([&what[..], more].concat());
    let (device, driver) = NbdClient::connect(&ListenAddress::Unix(socket)).await.expect("it said ready");
    tokio::spawn(driver);
    (process, device)
}

/// Reads and writes at random until it is over.
async fn work(device: SharedDevice, host: u64, seed: u64, history: History) {
    let mut random = Random::new(seed);
    while !history.is_over() {
        let block = random.below(BLOCKS);
        let place = Place { block, offset: block * BLOCK_BYTES };
        // Writes that were under way on a path fail with it.
        let _ = match random.chance(0.3) {
            true => history.write(&device, host, place).await,
            false => history.read(&device, host, place).await,
        };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_two_paths_reads_nothing_old_when_one_is_cut() {
    for policy in ["round-robin", "failover"] {
        let world = World::new();
        let (_target, portals) = serve(&world, "target", "disk.img");
        let links: Vec<Forwarder> = portals.iter().map(|portal| Forwarder::to(portal)).collect();
        let urls: Vec<String> = links.iter().map(|link| url(link.address)).collect();
        let quick = ["--multipath", policy, "--set", "timeout.keepalive=1s"];
        let (one, paths) = attach(&world, &urls.join(","), 1, &quick).await;
        let (two, other) = attach(&world, &url(&portals[0]), 2, &[]).await;
        let (history, start) = (History::default(), Instant::now());
        let mut loads = Vec::new();
        for (device, host) in [(&paths, 1), (&other, 2)] {
            let start = |each| tokio::spawn(work(Arc::clone(device), host, host * 100 + each, history.clone()));
            loads.extend((0..DEPTH).map(start));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        links[0].freeze();
        tokio::time::sleep(Duration::from_secs(3)).await;
        links[0].cut();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let alone = Instant::now();
        history.until_all_wrote(&[1, 2], alone);
        history.end();
        for load in loads {
            load.await.expect("a load ends in order");
        }
        let all = history.all();
        check_all(&all, start);
        let is_late = |operation: &&Operation| operation.ended.is_some() && operation.began > alone;
        let late = |host| all.iter().filter(is_late).filter(|done| done.is_write && done.value >> 32 == host).count();
        assert!(late(1) > 0 && late(2) > 0, "{policy}: {} and {} writes with one path", late(1), late(2));
        let online = |status: &Value| {
            let paths = status["multipath"]["paths"].as_array().expect("there are two");
            paths.iter().map(|path| path["is_online"] == true).collect::<Vec<bool>>()
        };
        let status = world.wait_for_status("host1", "one path of two", |status| online(status) == [false, true]);
        let paths = &status["multipath"]["paths"];
        let sharing = &paths[1]["remote"]["sharing"];
        assert_eq!((&sharing["lives"], &sharing["is_alive"]), (&1_u64.into(), &true.into()), "{status}");
        assert_eq!(sharing["client"], paths[0]["remote"]["sharing"]["client"], "{status}");
        assert!(status["cache"]["reads"]["hits"].as_u64() > Some(0), "no copy was used: {status}");
        for (name, process) in [("host1", one), ("host2", two)] {
            world.run(["detach", name]).success();
            process.wait().success();
        }
    }
}

/// Nothing of the other target's clients is known to it.
#[test]
fn paths_to_targets_that_do_not_know_of_each_other_are_refused_with_words() {
    let world = World::new();
    let (_first, portals) = serve(&world, "first", "disk.img");
    // A copy of the disk, with its name: two processes do not open one file.
    for end in ["img", "img.forebay"] {
        std::fs::copy(world.path(&format!("disk.{end}")), world.path(&format!("copy.{end}"))).expect("it is there");
    }
    let (_second, others) = serve(&world, "second", "copy.img");
    let urls = format!("{},{}", url(&portals[0]), url(&others[0]));
    let attach = ["attach", &urls, "--shared", "--cache", "disk.cache", "--cache-size", "8MiB"];
    let refused = world.run([&attach[..], &["--as", "nbd:unix:disk.nbd"]].concat());
    let words = ["do not know of each other", "Give the URL of one of them"];
    assert!(refused.code != Some(0) && words.iter().all(|word| refused.stderr.contains(word)), "{refused:?}");
}
