//! A write-back cache on a local medium in front of a 7200 rpm disk behind a link, in virtual time:
//! the run is repeatable from its seed, it is faster than the disk alone, and acknowledged writes
//! survive a power loss in the middle.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::histogram::LatencyHistogram;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::disk::{DiskLayer, DiskModel};
use block::{Device, SharedDevice};
use cache::{Cache, FormatOptions, Mode, OpenOptions};

const ORIGIN_BYTES: u64 = 32 << 20;
const CACHE_BYTES: u64 = 16 << 20;
const REQUEST_BYTES: usize = 2048;
const DEPTH: u64 = 4;

/// The parts of the stack that survive a power loss.
struct Media {
    local: CrashLayer,
    remote: CrashLayer,
}

impl Media {
    fn new(seed: u64) -> Self {
        Self {
            local: CrashLayer::new(CACHE_BYTES, seed),
            remote: CrashLayer::new(ORIGIN_BYTES, seed + 1).write_through(),
        }
    }

    /// The local medium as a flash disk, and the remote one as a disk behind a link of 1 ms round trip.
    fn devices(&self, executor: &mut Executor) -> (SharedDevice, SharedDevice) {
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let workers = Workers::new();
        let flash = Latency::Between(Duration::from_micros(20), Duration::from_micros(120));
        let local = self.local.clone().with_latency(Arc::clone(&clock), flash, &workers);
        let disk = DiskLayer::new(Arc::new(self.remote.clone()), Arc::clone(&clock), &workers, DiskModel::rpm_7200());
        let link = Delays::all(Latency::Fixed(Duration::from_millis(1)));
        let remote = DelayLayer::new(Arc::new(disk), clock, &workers, link, 1);
        executor.spawn(async move { workers.run().await });
        (Arc::new(local), Arc::new(remote))
    }

    fn after_power_loss(&self, seed: u64) -> Self {
        Self {
            local: self.local.after_power_loss_as(Loss::Seeded(seed), &Power::new()),
            remote: self.remote.after_power_loss_as(Loss::Seeded(seed), &Power::new()),
        }
    }
}

/// The knowledge of the clients: for each slot of `REQUEST_BYTES` the last stamp acknowledged and
/// the last submitted.
type Known = Arc<Mutex<Vec<(u64, u64)>>>;

struct Results {
    latencies: LatencyHistogram,
    requests: u64,
}

/// One closed-loop client on its own slots: 89 % writes, skewed.
async fn client(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    known: Known,
    results: Arc<Mutex<Results>>,
    seed: u64,
    number: u64,
    until: Duration,
) {
    let mut random = Random::new(seed * 31 + number);
    let slots = ORIGIN_BYTES / REQUEST_BYTES as u64 / DEPTH;
    let start = clock.now();
    let mut stamp = 0;
    while clock.now().since(start) < until {
        let slot = ((random.unit().powi(4) * slots as f64) as u64) * DEPTH + number;
        let offset = slot * REQUEST_BYTES as u64;
        let began = clock.now();
        if random.chance(0.89) {
            stamp += 1;
            let value = stamp << 8 | number;
            known.lock().unwrap()[slot as usize].1 = value;
            let bytes: Vec<u8> = value.to_le_bytes().into_iter().cycle().take(REQUEST_BYTES).collect();
            if device.write(offset, Buffer::copy_of(&bytes), false).await.is_err() {
                return;
            }
            known.lock().unwrap()[slot as usize].0 = value;
        } else {
            let Ok(buffer) = device.read(offset, Buffer::zeroed(REQUEST_BYTES)).await else { return };
            let expected = known.lock().unwrap()[slot as usize].0;
            assert_eq!(stamp_of(&buffer), expected, "seed {seed}: slot {slot}");
        }
        let mut results = results.lock().unwrap();
        results.latencies.record(clock.now().since(began));
        results.requests += 1;
    }
}

fn stamp_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    assert!(words.iter().all(|word| *word == words[0]), "a request is torn");
    u64::from_le_bytes(words[0])
}

/// Runs the clients for a time; with `None` until the device fails.
fn run_clients(executor: &mut Executor, device: &Arc<dyn Device>, known: &Known, seed: u64, time: Duration) -> Results {
    let results = Arc::new(Mutex::new(Results { latencies: LatencyHistogram::new(), requests: 0 }));
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let clients = (0..DEPTH).map(|number| {
        let (device, clock) = (Arc::clone(device), Arc::clone(&clock));
        client(device, clock, Arc::clone(known), Arc::clone(&results), seed, number, time)
    });
    executor.block_on(futures_util::future::join_all(clients));
    let results = results.lock().unwrap();
    Results { latencies: results.latencies.clone(), requests: results.requests }
}

fn no_one_knows() -> Known {
    Arc::new(Mutex::new(vec![(0, 0); (ORIGIN_BYTES as usize) / REQUEST_BYTES]))
}

fn format(executor: &mut Executor, media: &Media) {
    let (local, remote) = media.devices(executor);
    let options = FormatOptions { uuid: Some(uuid::Uuid::from_bytes([1; 16])), ..FormatOptions::default() };
    executor.block_on(async move { Cache::format(&local, &remote, options).await.unwrap() });
}

fn open(executor: &mut Executor, media: &Media) -> Arc<Cache> {
    let (local, remote) = media.devices(executor);
    let options = OpenOptions::new(Mode::WriteBack, Arc::new(executor.clock()));
    let cache = executor.block_on(Cache::open(local, remote, options)).unwrap();
    executor.spawn(cache.run());
    cache
}

/// All visible results of a run: time, requests, latency and the cache's status.
fn fingerprint(seed: u64) -> (u64, u64, Option<Duration>, String) {
    let mut executor = Executor::new(seed);
    let media = Media::new(seed);
    format(&mut executor, &media);
    let cache = open(&mut executor, &media);
    let device: Arc<dyn Device> = cache.clone();
    let results = run_clients(&mut executor, &device, &no_one_knows(), seed, Duration::from_millis(300));
    let now = executor.clock().now().as_nanoseconds();
    (now, results.requests, results.latencies.mean(), format!("{:?}", cache.status()))
}

#[test]
fn one_seed_is_one_run() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 2, 1) {
        let _printed = test.on_panic(seed, None);
        assert_eq!(fingerprint(seed), fingerprint(seed), "seed {seed}");
    }
    assert_ne!(fingerprint(1), fingerprint(2));
}

#[test]
fn a_remote_disk_becomes_nearly_as_fast_as_a_local_one() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 2, 1) {
        let _printed = test.on_panic(seed, None);
        let time = Duration::from_secs(2);
        let mut executor = Executor::new(seed);
        let media = Media::new(seed);
        let (_, remote) = media.devices(&mut executor);
        let plain = run_clients(&mut executor, &remote, &no_one_knows(), seed, time);
        let mut executor = Executor::new(seed);
        let media = Media::new(seed);
        format(&mut executor, &media);
        let cache = open(&mut executor, &media);
        let device: Arc<dyn Device> = cache.clone();
        let cached = run_clients(&mut executor, &device, &no_one_knows(), seed, time);
        // The rest are reads by the disk, of data that was not read or written before.
        assert!(cached.requests > 10 * plain.requests, "seed {seed}: {} against {}", cached.requests, plain.requests);
        let share = cached.latencies.share_within(Duration::from_millis(1)).unwrap();
        assert!(share > 0.8, "seed {seed}: only {share:.3} under 1 ms");
        assert_eq!(cache.status().origin_reads_before_write_ack, 0);
    }
}

#[test]
fn what_was_acknowledged_survives_a_power_loss_in_the_middle() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 6, 1) {
        let _printed = test.on_panic(seed, None);
        let media = Media::new(seed);
        let mut executor = Executor::new(seed);
        format(&mut executor, &media);
        let known = no_one_knows();
        let mut media = media;
        for round in 0..3u64 {
            let power = media.local.power().clone();
            let cache = open(&mut executor, &media);
            power.fail_write(power.writes_seen() + 200 + seed * 37 + round * 501);
            let device: Arc<dyn Device> = cache;
            run_clients(&mut executor, &device, &known, seed + round, Duration::from_secs(3600));
            assert!(power.is_lost(), "seed {seed}: the clients end with the power");
            media = media.after_power_loss(seed ^ round);
            executor = Executor::new(seed + round + 1);
            check(&mut executor, &media, &known, seed);
        }
    }
}

/// Checks that every slot has its last acknowledged content, or a mixture with writes under way.
fn check(executor: &mut Executor, media: &Media, known: &Known, seed: u64) {
    let cache = open(executor, media);
    let used: Vec<usize> = {
        let known = known.lock().unwrap();
        (0..known.len()).filter(|&slot| known[slot].1 != 0).collect()
    };
    for slot in used {
        let reading = cache.read((slot * REQUEST_BYTES) as u64, Buffer::zeroed(REQUEST_BYTES));
        let bytes = executor.block_on(reading).expect("everything can be read after a power loss");
        let (acknowledged, submitted) = known.lock().unwrap()[slot];
        for sector in bytes.chunks(512) {
            let stamp = stamp_of(sector);
            assert!(
                stamp == acknowledged || stamp == submitted,
                "seed {seed}: slot {slot} holds {stamp}, acknowledged {acknowledged}, submitted {submitted}"
            );
        }
        // Writes it whole again, so that the next round can compare.
        let writing = cache.write((slot * REQUEST_BYTES) as u64, Buffer::copy_of(&whole(submitted)), false);
        executor.block_on(writing).expect("nothing fails");
        known.lock().unwrap()[slot] = (submitted, submitted);
    }
    let closing = Arc::clone(&cache);
    executor.block_on(async move { closing.close(true).await.expect("nothing fails") });
}

fn whole(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().into_iter().cycle().take(REQUEST_BYTES).collect()
}
