//! Whatever write the power fails at, every acknowledged write is there, whole; others are old or new, sector by sector.
//!
//! For each write of a workload one run in which the power fails at exactly that write: of the cache device (the program goes on for a
//! while, and the origin keeps all), of the origin (what it had not flushed is lost, wholly or in part), or of both. Then the power fails
//! again at each write of the recovery. Then a new program opens the cache, everything is compared with the model, and it works on.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{Device, Geometry, SharedDevice};
use cache::{Alignment, Associativity, Cache, CrashMode, FormatOptions, LineSize, Mode};
use common::model::Lost;
use common::{Model, Workload, drive, drive_while, format, format_options, open, open_options, read, try_open};

/// More writes than any workload here makes.
const WRITES_MAX: u64 = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    CacheDevice,
    Origin,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    seed: u64,
    fails: Fails,
    mode: Mode,
    crash_mode: CrashMode,
    associativity: Associativity,
    line_size: LineSize,
    frames: u64,
    has_control: bool,
    requests: usize,
}

impl Scenario {
    fn origin_bytes(&self) -> u64 {
        (48 * 4096).max(20 * self.line_size.bytes()) + 512
    }

    fn has_checksums(&self) -> bool {
        self.line_size == LineSize::default() && self.seed % 4 > 1
    }

    fn cache_bytes(&self) -> u64 {
        (1 << 20).max(18 * self.line_size.bytes())
    }
}

/// The media without the time they take, so that they outlive their executor.
struct World {
    cache_medium: CrashLayer,
    origin_medium: CrashLayer,
    model: Arc<Mutex<Model>>,
}

fn timed(executor: &mut Executor, medium: &CrashLayer, most: u64) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

impl World {
    fn devices(&self, executor: &mut Executor) -> (SharedDevice, SharedDevice) {
        (timed(executor, &self.cache_medium, 100), timed(executor, &self.origin_medium, 700))
    }

    fn open(&self, executor: &mut Executor, mode: Mode) -> Arc<Cache> {
        let (cache_device, origin) = self.devices(executor);
        open(executor, &cache_device, &origin, mode)
    }
}

fn new_world(scenario: &Scenario) -> World {
    let (cache_power, origin_power) = match scenario.fails {
        Fails::Both => {
            let power = Power::new();
            (power.clone(), power)
        }
        Fails::CacheDevice | Fails::Origin => (Power::new(), Power::new()),
    };
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(scenario.origin_bytes()) };
    World {
        cache_medium: CrashLayer::on(&cache_power, scenario.cache_bytes(), scenario.seed),
        origin_medium: CrashLayer::on(&origin_power, scenario.origin_bytes(), scenario.seed + 1)
            .with_geometry(geometry),
        model: Model::new(scenario.origin_bytes()),
    }
}

fn workload(scenario: &Scenario, has_faults: bool) -> Workload {
    Workload {
        seed: scenario.seed,
        requests: scenario.requests,
        depth: 1 + (scenario.seed as usize * 5) % 9,
        sectors_max: 20.max(u64::from(scenario.line_size.sector_count()) / 2 * 3),
        has_control: scenario.has_control,
        has_faults,
    }
}

/// Runs the workload with the power failing at write `nth`, and returns the media that the next program finds, or `None` when
/// the workload ended before that.
fn run_until_crash(scenario: &Scenario, nth: u64) -> (World, Option<Lost>) {
    let mut executor = Executor::new(scenario.seed);
    let world = new_world(scenario);
    let (cache_device, origin) = world.devices(&mut executor);
    let options = FormatOptions {
        line_size: scenario.line_size,
        has_checksums: scenario.has_checksums(),
        associativity: scenario.associativity,
        log_bytes: Some(16 << 10),
        frames_max: Some(scenario.frames),
        crash_mode: scenario.crash_mode,
        // Half of them have lines that begin elsewhere.
        alignment: Alignment::At(if scenario.seed.is_multiple_of(2) { 0 } else { scenario.seed % 8 * 512 }),
        ..format_options()
    };
    format(&mut executor, &cache_device, &origin, options);
    let power = match scenario.fails {
        Fails::Origin => world.origin_medium.power().clone(),
        Fails::CacheDevice | Fails::Both => world.cache_medium.power().clone(),
    };
    power.fail_write(power.writes_seen() + nth);
    let open_options = open_options(&executor, scenario.mode);
    if let Ok(cache) = try_open(&mut executor, &cache_device, &origin, open_options) {
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let has_both = scenario.fails == Fails::Both;
        let lost_power = power.clone();
        let goes_on = move || !(has_both && lost_power.is_lost());
        let driving = drive_while(cache, Arc::clone(&world.model), clock, workload(scenario, true), goes_on);
        executor.block_on(driving);
        if !power.is_lost() {
            return (world, None);
        }
    }
    drop(executor);
    let (after, loss) = (Power::new(), Loss::Seeded(scenario.seed ^ nth));
    let cache_medium = match scenario.fails {
        // The program stops as well, the cache device keeps its power.
        Fails::Origin => world.cache_medium.after_power_loss_as(Loss::InFlightOnly, &after),
        Fails::CacheDevice | Fails::Both => world.cache_medium.after_power_loss_as(loss, &after),
    };
    let (origin_medium, lost) = match scenario.fails {
        Fails::CacheDevice => (world.origin_medium.after_power_loss_as(Loss::InFlightOnly, &Power::new()), Lost::Cache),
        Fails::Origin | Fails::Both => (world.origin_medium.after_power_loss_as(loss, &Power::new()), Lost::Origin),
    };
    (World { cache_medium, origin_medium, model: world.model }, Some(lost))
}

/// Lets the power fail at write `nth` of the recovery. Whether it did.
fn crash_in_recovery(world: &mut World, scenario: &Scenario, nth: u64) -> bool {
    let mut executor = Executor::new(scenario.seed ^ nth);
    let power = world.cache_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let (cache_device, origin) = world.devices(&mut executor);
    let options = open_options(&executor, scenario.mode);
    let opened = try_open(&mut executor, &cache_device, &origin, options);
    assert_eq!(opened.is_err(), power.is_lost(), "{scenario:?}, {:?}", opened.as_ref().err());
    drop(executor);
    let loss = Loss::Seeded(scenario.seed ^ (nth << 20));
    world.cache_medium = world.cache_medium.after_power_loss_as(loss, &Power::new());
    opened.is_err()
}

/// All that `device` holds, in requests of which few would pass through more memory than a processor has at hand.
fn read_all(executor: &mut Executor, device: &impl Device, length: u64) -> Vec<u8> {
    const REQUEST_BYTES: u64 = 256 << 10;
    let parts = (0..length).step_by(REQUEST_BYTES as usize);
    let mut all = Vec::with_capacity(length as usize);
    for offset in parts {
        all.extend(read(executor, device, offset, REQUEST_BYTES.min(length - offset)));
    }
    all
}

/// Opens, compares, works on, closes and compares the origin.
fn check_and_work_on(world: &World, scenario: &Scenario, lost: Lost, context: &str) {
    let mut executor = Executor::new(scenario.seed + 17);
    let cache = world.open(&mut executor, scenario.mode);
    assert_eq!(cache.status().recovery.lost_lines, 0, "{context}");
    let bytes = read_all(&mut executor, &cache, scenario.origin_bytes());
    world.model.lock().unwrap().check_after_crash(&bytes, lost, context);
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let small = Scenario { requests: 20, seed: scenario.seed + 1000, ..*scenario };
    executor.block_on(drive(Arc::clone(&cache), Arc::clone(&world.model), clock, workload(&small, false)));
    assert_eq!(cache.status().checksum_errors, 0, "{context}");
    executor.block_on(async move { cache.close(false).await.expect("nothing fails any more") });
    let (_, origin) = world.devices(&mut executor);
    let bytes = read_all(&mut executor, &origin, scenario.origin_bytes());
    world.model.lock().unwrap().check_exact(&bytes, context);
}

fn crash_at_every_write(scenario: &Scenario) {
    for nth in 0..WRITES_MAX {
        let (mut world, lost) = run_until_crash(scenario, nth);
        let Some(lost) = lost else {
            // Among the seeds of a soak there are some that hardly write, and many that do.
            assert!(nth > 10 || soak_seeds().is_some(), "a workload with so few writes tests nothing");
            return;
        };
        // Every other crash is followed by crashes in the recovery, at its first write, its second ...
        if nth % 2 == 0 {
            for recovery_nth in 0.. {
                if !crash_in_recovery(&mut world, scenario, recovery_nth) {
                    break;
                }
                assert!(recovery_nth < WRITES_MAX, "recovery never completes");
            }
        }
        check_and_work_on(&world, scenario, lost, &format!("{scenario:?}, power lost at write {nth}"));
    }
    panic!("the workload never completed: raise WRITES_MAX or look for a write loop");
}

fn scenario(seed: u64, fails: Fails, mode: Mode) -> Scenario {
    let associativity = match seed % 3 {
        0 => Associativity::Full,
        1 => Associativity::Ways(4),
        _ => Associativity::Ways(16),
    };
    // Few frames make writes wait for them; many make a table page long enough to tear.
    let frames = if seed % 4 < 2 { 20 + seed % 20 } else { 160 };
    let has_control = !seed.is_multiple_of(2);
    let crash_mode = CrashMode::default();
    let line_size = LineSize::default();
    Scenario { seed, fails, mode, crash_mode, associativity, line_size, frames, has_control, requests: 80 }
}

/// How many seeds a soak asks for.
fn soak_seeds() -> Option<u64> {
    std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok())
}

/// `count` seeds from `first` on, and more of them in a soak.
fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..soak_seeds().unwrap_or(count)).map(move |index| first + index * 100 + index)
}

#[test]
fn write_back_survives_a_power_loss_of_the_cache_device_at_every_write() {
    for seed in seeds(0, 4) {
        crash_at_every_write(&scenario(seed, Fails::CacheDevice, Mode::WriteBack));
    }
}

#[test]
fn write_back_survives_a_power_loss_of_the_origin_at_every_write() {
    for seed in seeds(10, 3) {
        // Only cleaning writes to the origin, so there is much of it.
        let scenario = scenario(seed, Fails::Origin, Mode::WriteBack);
        crash_at_every_write(&Scenario { has_control: true, requests: 120, ..scenario });
    }
}

#[test]
fn write_back_survives_a_power_loss_of_both_at_every_write() {
    for seed in seeds(20, 4) {
        crash_at_every_write(&scenario(seed, Fails::Both, Mode::WriteBack));
    }
}

#[test]
fn write_through_survives_a_power_loss_at_every_write() {
    for seed in seeds(30, 2) {
        crash_at_every_write(&scenario(seed, Fails::CacheDevice, Mode::WriteThrough));
        crash_at_every_write(&scenario(seed + 4, Fails::Both, Mode::WriteThrough));
    }
}

/// Clean lines that count after a crash must be what the origin has, whatever changed or took their place meanwhile.
fn clean_lines_survive(crash_mode: CrashMode, first: u64) {
    for seed in seeds(first, 3) {
        for (nth, (fails, mode)) in [
            (Fails::CacheDevice, Mode::WriteBack),
            (Fails::Both, Mode::WriteBack),
            (Fails::CacheDevice, Mode::WriteThrough),
            (Fails::Both, Mode::WriteThrough),
            (Fails::Origin, Mode::WriteThrough),
        ]
        .into_iter()
        .enumerate()
        {
            let scenario = scenario(seed + nth as u64, fails, mode);
            crash_at_every_write(&Scenario { crash_mode, requests: 60, ..scenario });
        }
    }
}

#[test]
fn warm_lines_survive_a_power_loss_at_every_write() {
    clean_lines_survive(CrashMode::Warm, 40);
}

#[test]
fn synchronous_lines_survive_a_power_loss_at_every_write() {
    clean_lines_survive(CrashMode::AllSynchronous, 50);
}

fn lines_survive(bytes: u64, first: u64) {
    let line_size = LineSize::new(bytes).unwrap();
    for (nth, (fails, mode, crash_mode)) in [
        (Fails::CacheDevice, Mode::WriteBack, CrashMode::DirtySynchronous),
        (Fails::Both, Mode::WriteBack, CrashMode::Warm),
        (Fails::Origin, Mode::WriteBack, CrashMode::DirtySynchronous),
        (Fails::CacheDevice, Mode::WriteThrough, CrashMode::Warm),
    ]
    .into_iter()
    .enumerate()
    {
        for seed in seeds(first + nth as u64, 1) {
            let scenario = scenario(seed, fails, mode);
            // Large lines are cleaned in few writes.
            let requests = if bytes > 64 << 10 { 120 } else { 40 };
            crash_at_every_write(&Scenario { line_size, crash_mode, has_control: true, requests, ..scenario });
        }
    }
}

#[test]
fn lines_of_8_kib_survive_a_power_loss_at_every_write() {
    lines_survive(8 << 10, 60);
}

#[test]
fn lines_of_64_kib_survive_a_power_loss_at_every_write() {
    lines_survive(64 << 10, 70);
}

#[test]
fn lines_of_256_kib_survive_a_power_loss_at_every_write() {
    lines_survive(256 << 10, 80);
}
