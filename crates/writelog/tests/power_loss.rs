//! Whatever write the power fails at, every acknowledged write is there, whole; others are old or new, sector by sector.
//!
//! For each write of a workload one run in which the power fails at exactly that write: of the log device (the program goes on for a
//! while, and the origin keeps all), of the origin (what it had not flushed is lost, wholly or in part), or of both. With NVRAM also at each time the
//! processor flushes its caches. Then the power fails again at each write of the recovery. Then a new program opens the log, everything is
//! compared with the model, and it works on.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use block::{ErrorKind, Geometry, SharedDevice};
use common::model::Lost;
use common::{CrashRegion, Kind, Model, Workload, drive, format, open_options, read, try_open};
use writelog::{DestageOrder, Durability, WriteLog};

const ORIGIN_BYTES: u64 = 48 * 4096 + 512;
const LOG_BYTES: u64 = 400 << 10;
const NVRAM_BYTES: usize = 24 << 10;
/// More writes than any workload here makes.
const WRITES_MAX: u64 = 5000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Log,
    Origin,
    Both,
    /// With both, at a flush of the processor's caches.
    Nvram,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    seed: u64,
    fails: Fails,
    kind: Kind,
    requests: usize,
    /// What the origin refuses before the power fails.
    origin_errors: OriginErrors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginErrors {
    None,
    /// A write here and there, and a flush.
    Transient,
    /// All writes from some moment on.
    Persistent,
}

/// The media without the time they take, so that they outlive their executor.
struct World {
    log_medium: CrashLayer,
    origin_medium: CrashLayer,
    nvram: Arc<CrashRegion>,
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
    fn new(scenario: &Scenario) -> Self {
        let log_power = Power::new();
        let origin_power = match scenario.fails {
            Fails::Both | Fails::Nvram => log_power.clone(),
            Fails::Log | Fails::Origin => Power::new(),
        };
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        Self {
            log_medium: CrashLayer::on(&log_power, LOG_BYTES, scenario.seed),
            origin_medium: CrashLayer::on(&origin_power, ORIGIN_BYTES, scenario.seed + 1).with_geometry(geometry),
            nvram: CrashRegion::new(&log_power, NVRAM_BYTES),
            model: Model::new(ORIGIN_BYTES),
        }
    }

    fn devices(&self, executor: &mut Executor) -> (SharedDevice, SharedDevice) {
        (timed(executor, &self.log_medium, 100), timed(executor, &self.origin_medium, 700))
    }

    fn fail_origin(&self, scenario: &Scenario) {
        let (origin, first) = (&self.origin_medium, scenario.seed % 5);
        let (writes, flushes) = (origin.writes_seen(), origin.flushes_seen());
        match scenario.origin_errors {
            OriginErrors::None => {}
            OriginErrors::Transient => {
                [1, 2, 9, 20]
                    .into_iter()
                    .for_each(|nth| origin.fail_write_once(writes + first + nth, ErrorKind::Media));
                origin.fail_flush_once(flushes + first, ErrorKind::OutcomeUnknown);
            }
            OriginErrors::Persistent => origin.fail_writes_from(writes + first, ErrorKind::Gone),
        }
    }

    fn try_open(&self, executor: &mut Executor, kind: Kind) -> Result<Arc<WriteLog>, block::Error> {
        let (log, origin) = self.devices(executor);
        let options = open_options(executor, kind, Some(self.nvram.clone()));
        try_open(executor, &log, &origin, options)
    }

    /// What the next program finds.
    fn after(self, scenario: &Scenario, nth: u64) -> (Self, Lost) {
        let (after, loss) = (Power::new(), Loss::Seeded(scenario.seed ^ nth));
        let (log_loss, nvram_seed) = match scenario.fails {
            // The program stops as well, the log device keeps its power.
            Fails::Origin => (Loss::InFlightOnly, None),
            _ => (loss, Some(scenario.seed ^ nth)),
        };
        let (origin_loss, lost) = match scenario.fails {
            Fails::Log => (Loss::InFlightOnly, Lost::Cache),
            _ => (loss, Lost::Origin),
        };
        let lost = if scenario.kind.durability == Durability::UnsafeVolatile { Lost::Origin } else { lost };
        let world = Self {
            nvram: self.nvram.after(&after, nvram_seed),
            log_medium: self.log_medium.after_power_loss_as(log_loss, &after),
            origin_medium: self.origin_medium.after_power_loss_as(origin_loss, &Power::new()),
            model: self.model,
        };
        (world, lost)
    }
}

fn workload(scenario: &Scenario, has_faults: bool) -> Workload {
    Workload {
        seed: scenario.seed,
        requests: scenario.requests,
        depth: 1 + (scenario.seed as usize * 5) % 9,
        sectors_max: 20,
        has_control: !scenario.seed.is_multiple_of(2),
        has_faults,
        has_zeroes: true,
        power: None,
    }
}

/// Runs the workload with the power failing at write `nth`, and returns what the next program finds, or `None` when the workload ended before
/// that.
fn run_until_crash(scenario: &Scenario, nth: u64) -> Option<(World, Lost)> {
    let mut executor = Executor::new(scenario.seed);
    let world = World::new(scenario);
    let (log_device, origin) = world.devices(&mut executor);
    format(&mut executor, &log_device, &origin);
    let power = match scenario.fails {
        Fails::Origin => world.origin_medium.power().clone(),
        Fails::Log | Fails::Both | Fails::Nvram => world.log_medium.power().clone(),
    };
    match scenario.fails {
        Fails::Nvram => world.nvram.fail_persist(nth),
        _ => power.fail_write(power.writes_seen() + nth),
    }
    world.fail_origin(scenario);
    let options = open_options(&executor, scenario.kind, Some(world.nvram.clone()));
    if let Ok(log) = try_open(&mut executor, &log_device, &origin, options) {
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let workload = Workload { power: Some(power.clone()), ..workload(scenario, true) };
        executor.block_on(drive(log, Arc::clone(&world.model), clock, workload));
        if !power.is_lost() {
            return None;
        }
    }
    drop(executor);
    Some(world.after(scenario, nth))
}

/// Lets the power fail at write `nth` of the recovery. Whether it did.
fn crash_in_recovery(world: &mut World, scenario: &Scenario, nth: u64) -> bool {
    let mut executor = Executor::new(scenario.seed ^ nth);
    let power = world.log_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let has_failed = world.try_open(&mut executor, scenario.kind).is_err();
    assert_eq!(has_failed, power.is_lost());
    drop(executor);
    let after = Power::new();
    world.nvram = world.nvram.after(&after, Some(scenario.seed ^ nth));
    world.log_medium = world.log_medium.after_power_loss_as(Loss::Seeded(scenario.seed ^ (nth << 20)), &after);
    has_failed
}

/// Opens, compares, works on, closes and compares the origin.
fn check_and_work_on(world: &World, scenario: &Scenario, lost: Lost, context: &str) {
    let mut executor = Executor::new(scenario.seed + 17);
    let log = match world.try_open(&mut executor, scenario.kind) {
        Ok(log) => log,
        Err(error) => panic!("{context}: a log can be opened after any crash: {error}"),
    };
    let bytes = read(&mut executor, log.as_ref(), 0, ORIGIN_BYTES);
    world.model.lock().unwrap().check_after_crash(&bytes, lost, context);
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let small = Scenario { requests: 20, seed: scenario.seed + 1000, ..*scenario };
    executor.block_on(drive(Arc::clone(&log), Arc::clone(&world.model), clock, workload(&small, false)));
    executor.block_on(async move { log.close(false).await.expect("nothing fails any more") });
    let (_, origin) = world.devices(&mut executor);
    let bytes = read(&mut executor, &origin, 0, ORIGIN_BYTES);
    world.model.lock().unwrap().check_exact(&bytes, context);
}

fn crash_at_every_write(scenario: &Scenario) {
    for nth in 0..WRITES_MAX {
        let Some((mut world, lost)) = run_until_crash(scenario, nth) else {
            assert!(nth > 10, "a workload with so few writes tests nothing");
            return;
        };
        // Every third crash is followed by crashes in the recovery, at its first write, its second ...
        if nth % 3 == 0 {
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

/// `count` seeds from `first` on, and more of them in a soak.
fn crash_seeds(first: u64, count: u64, fails: Fails, durability: Durability) {
    let wanted = std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok());
    let orders = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];
    for index in 0..wanted.unwrap_or(count) {
        let kind = Kind { durability, order: orders[index as usize % 3] };
        let seed = first + index * 101;
        let origin_errors = OriginErrors::None;
        crash_at_every_write(&Scenario { seed, fails, kind, requests: 110, origin_errors });
    }
}

#[test]
fn a_log_survives_a_power_loss_of_its_device_at_every_write() {
    crash_seeds(0, 6, Fails::Log, Durability::Log);
}

#[test]
fn a_log_survives_a_power_loss_of_the_origin_at_every_write() {
    crash_seeds(11, 6, Fails::Origin, Durability::Log);
}

#[test]
fn a_log_survives_a_power_loss_of_both_at_every_write() {
    crash_seeds(20, 6, Fails::Both, Durability::Log);
}

#[test]
fn nvram_survives_a_power_loss_of_both_at_every_write() {
    crash_seeds(30, 6, Fails::Both, Durability::Nvram);
}

#[test]
fn nvram_survives_a_power_loss_at_every_flush_of_the_processor() {
    crash_seeds(40, 3, Fails::Nvram, Durability::Nvram);
}

#[test]
fn volatile_ram_keeps_what_was_flushed() {
    crash_seeds(50, 3, Fails::Both, Durability::UnsafeVolatile);
}

/// Level 2 cannot send, or not now: what it could not send stays in the log, whatever the power does.
#[test]
fn an_origin_that_refuses_writes_costs_nothing_that_was_acknowledged() {
    for (seed, durability) in [(60, Durability::Log), (61, Durability::Nvram)] {
        for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
            for origin_errors in [OriginErrors::Transient, OriginErrors::Persistent] {
                let kind = Kind { durability, order };
                crash_at_every_write(&Scenario { seed, fails: Fails::Both, kind, requests: 60, origin_errors });
            }
        }
    }
}
