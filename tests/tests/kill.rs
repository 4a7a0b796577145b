//! SIGKILL under load: every write that was acknowledged over NBD is there after the cache is attached again.
//!
//! The client records each acknowledgement durably before it counts it: an append to a journal file, synced, one line a
//! write. A round ends in a SIGKILL of the attached process at a random moment; after the next attach everything the
//! journal knows is read back. Writes that were under way have either content, per 512-byte unit. 20 rounds;
//! `FOREBAY_KILL_ROUNDS` makes more.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use front::{ListenAddress, NbdClient};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tests::{World, comes_true};

const UNIT: u64 = 512;
const FOOTPRINT_UNITS: u64 = 8 * 2048;
const DEPTH: usize = 8;
/// Nobody is killed before so many writes were acknowledged in its round, however slow the machine is.
const ACKNOWLEDGED_MIN: u64 = 2;

/// What each unit may hold: the version last acknowledged, and those that were under way later.
#[derive(Default)]
struct Journal {
    acknowledged: HashMap<u64, u64>,
    under_way: HashMap<u64, Vec<u64>>,
    file: Option<std::fs::File>,
}

impl Journal {
    fn record(&mut self, unit: u64, count: u64, version: u64) {
        let file = self.file.as_mut().expect("the journal is open");
        writeln!(file, "{unit} {count} {version}").and_then(|()| file.sync_data()).expect("the journal can be written");
        for unit in unit..unit + count {
            self.acknowledged.insert(unit, version);
            self.under_way.remove(&unit);
        }
    }

    fn doubt(&mut self, unit: u64, count: u64, version: u64) {
        for unit in unit..unit + count {
            self.under_way.entry(unit).or_default().push(version);
        }
    }

    fn allows(&self, unit: u64, version: u64) -> bool {
        let acknowledged = self.acknowledged.get(&unit).copied().unwrap_or(0);
        version == acknowledged || self.under_way.get(&unit).is_some_and(|versions| versions.contains(&version))
    }
}

fn content(unit: u64, version: u64) -> [u8; UNIT as usize] {
    let mut bytes = [0; UNIT as usize];
    if version > 0 {
        Random::new(unit << 32 | version).fill(&mut bytes);
        bytes[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

async fn connect(path: &Path) -> SharedDevice {
    let (client, driver) = NbdClient::connect(&ListenAddress::Unix(path.to_owned())).await.expect("it said ready");
    tokio::spawn(driver);
    client
}

/// Writes at random places until the device fails.
async fn write_until_killed(
    device: SharedDevice,
    journal: &mut Journal,
    random: &mut Random,
    version: &mut u64,
    acknowledged: &AtomicU64,
) {
    let mut in_flight = FuturesUnordered::new();
    let mut busy: Vec<(u64, u64)> = Vec::new();
    let mut is_failing = false;
    loop {
        while in_flight.len() < DEPTH && !is_failing {
            let count = 1 + random.below(16);
            let unit = random.below(FOOTPRINT_UNITS - count);
            if busy.iter().any(|&(other, length)| unit < other + length && other < unit + count) {
                continue;
            }
            *version += 1;
            let bytes: Vec<u8> = (unit..unit + count).flat_map(|unit| content(unit, *version)).collect();
            let write = device.write(unit * UNIT, Buffer::copy_of(&bytes), random.chance(0.2));
            journal.doubt(unit, count, *version);
            busy.push((unit, count));
            let version = *version;
            in_flight.push(async move { (unit, count, version, write.await) });
        }
        let Some((unit, count, version, result)) = in_flight.next().await else { return };
        busy.retain(|&(other, _)| other != unit);
        match result {
            Ok(_) => {
                journal.record(unit, count, version);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => is_failing = true,
        }
    }
}

async fn check(device: &SharedDevice, journal: &mut Journal) {
    for unit in (0..FOOTPRINT_UNITS).step_by(256) {
        let bytes = device.read(unit * UNIT, Buffer::zeroed(256 * UNIT as usize)).await.expect("the device is back");
        for (unit, found) in (unit..).zip(bytes.chunks_exact(UNIT as usize)) {
            let version = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            assert!(journal.allows(unit, version), "unit {unit} holds version {version}, not the one acknowledged");
            assert_eq!(found, content(unit, version), "unit {unit} is torn");
            // From now on this is what it holds.
            if version > 0 {
                journal.acknowledged.insert(unit, version);
            }
            journal.under_way.remove(&unit);
        }
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_kill_nine() {
    kill_again_and_again(["--cache", "disk.cache", "--cache-size", "8MiB"]).await;
}

#[tokio::test]
async fn writes_acknowledged_by_a_log_survive_kill_nine() {
    kill_again_and_again(["--log", "disk.log", "--log-size", "8MiB"]).await;
}

/// The log recovers first, over a cache that recovers below it; what the log destages to the cache is durable there.
#[tokio::test]
async fn writes_acknowledged_by_a_log_over_a_cache_survive_kill_nine() {
    let cache = ["--cache", "disk.cache", "--cache-size", "8MiB"];
    kill_again_and_again([&cache[..], &["--log", "disk.log", "--log-size", "8MiB"]].concat()).await;
}

async fn kill_again_and_again(place: impl AsRef<[&'static str]>) {
    let rounds: u64 = std::env::var("FOREBAY_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let socket = world.path("disk.nbd");
    let front = format!("nbd:unix:{}", socket.display());
    let url = target.url(0);
    let attach = ["attach", &url, "--name", "disk", "--as", &front];
    let arguments: Vec<String> = attach.iter().chain(place.as_ref()).map(|&word| word.to_owned()).collect();
    let mut journal =
        Journal { file: Some(std::fs::File::create(world.path("journal")).unwrap()), ..Journal::default() };
    let (mut random, mut version) = (Random::new(7), 0);
    for round in 0..rounds {
        let process = world.start(&arguments);
        let device = connect(&socket).await;
        check(&device, &mut journal).await;
        let id = process.id();
        let delay = Duration::from_millis(20 + random.below(300));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&acknowledged);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            // Killed in any case: else the writes would go on.
            let has_acknowledged = comes_true(|| counted.load(Ordering::Relaxed) >= ACKNOWLEDGED_MIN);
            let status = Command::new("kill").args(["-KILL", &id.to_string()]).status().expect("kill is there");
            assert!(status.success(), "round {round}");
            assert!(has_acknowledged, "round {round}: no writes were acknowledged");
        });
        write_until_killed(device, &mut journal, &mut random, &mut version, &acknowledged).await;
        killer.join().expect("the killer does its work");
        drop(process);
    }
    // What holds the newest data is named, whichever it is.
    world.run(["bench", &url, "--rw", "read", "--seconds", "10ms"]).failure(9, &["attach it with --"]);
    let process = world.start(&arguments);
    let device = connect(&socket).await;
    check(&device, &mut journal).await;
    drop(device);
    world.run(["detach", "disk"]).success();
    process.wait().success();
    // What was written back is on the LUN itself.
    let plain = world.start(["attach", &url, "--name", "plain", "--as", &front]);
    check(&connect(&socket).await, &mut journal).await;
    plain.terminate().success();
}
