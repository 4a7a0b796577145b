//! Changes that other hosts made while a cache was not open are never hidden by the cache
//! afterwards.
//!
//! A model knows of every sector its content, whether it is dirty in the cache, and whether it was
//! read through it. Other hosts change the origin while the cache is not open. The power fails at
//! each write of the open that gets the list of changes, and again after it.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{Error, ErrorKind, SharedDevice};
use cache::{
    Alignment, Cache, ConflictingChanges, CrashMode, DirtyLimits, FormatOptions, Freshness, LineSize, Mode,
    OpenOptions, Percent,
};
use common::{format, format_options, memory, open_options, read, try_open, write};

const SECTOR: u64 = 512;
const ORIGIN_SECTORS: u64 = 1024;

#[derive(Clone, Copy, Debug)]
struct Scenario {
    seed: u64,
    crash_mode: CrashMode,
    line_size: LineSize,
    /// Whether the cache was closed before other hosts changed the origin, or its program was
    /// killed.
    is_closed: bool,
    is_unknown: bool,
}

impl Scenario {
    fn mode(&self) -> Mode {
        let is_write_back = self.crash_mode != CrashMode::DiscardAll && !self.seed.is_multiple_of(3);
        if is_write_back { Mode::WriteBack } else { Mode::WriteThrough }
    }
}

struct World {
    medium: CrashLayer,
    origin: SharedDevice,
    /// The content that a read has to return, by sector.
    expected: Vec<u8>,
    dirty: BTreeSet<u64>,
    /// Sectors that the cache has read or written.
    touched: BTreeSet<u64>,
    /// Ranges that other hosts changed.
    changed: Vec<ByteRange>,
}

impl World {
    fn open(
        &self,
        scenario: &Scenario,
        freshness: Freshness,
        overwrites: bool,
    ) -> Result<(Executor, Arc<Cache>), Error> {
        let mut executor = Executor::new(scenario.seed);
        let options = OpenOptions {
            freshness,
            overwrites_changes: overwrites,
            dirty: DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL },
            ..open_options(&executor, scenario.mode())
        };
        let device: SharedDevice = Arc::new(self.medium.clone());
        let cache = try_open(&mut executor, &device, &self.origin, options)?;
        Ok((executor, cache))
    }

    /// A life of the cache: reads and writes of all sizes.
    fn new(scenario: &Scenario) -> Self {
        let mut random = Random::new(scenario.seed);
        let mut world = Self {
            medium: CrashLayer::new((1 << 20).max(34 * scenario.line_size.bytes()), scenario.seed),
            origin: memory(ORIGIN_SECTORS * SECTOR),
            expected: vec![0; ORIGIN_SECTORS as usize],
            dirty: BTreeSet::new(),
            touched: BTreeSet::new(),
            changed: Vec::new(),
        };
        let mut executor = Executor::new(scenario.seed);
        let device: SharedDevice = Arc::new(world.medium.clone());
        let options = FormatOptions {
            crash_mode: scenario.crash_mode,
            line_size: scenario.line_size,
            alignment: Alignment::At(scenario.seed % 8 * SECTOR),
            ..format_options()
        };
        format(&mut executor, &device, &world.origin, options);
        let (mut executor, cache) = world.open(scenario, Freshness::Unchanged, false).unwrap();
        for _ in 0..60 {
            let (first, count) = some_sectors(&mut random);
            if random.chance(0.4) {
                read(&mut executor, &cache, first * SECTOR, count * SECTOR);
            } else {
                let byte = 1 + random.below(120) as u8;
                write(&mut executor, &cache, first * SECTOR, &vec![byte; (count * SECTOR) as usize]);
                world.expected[first as usize..(first + count) as usize].fill(byte);
                if scenario.mode() == Mode::WriteBack {
                    world.dirty.extend(first..first + count);
                }
            }
            world.touched.extend(first..first + count);
            executor.run();
        }
        if scenario.is_closed {
            executor.block_on(async move { cache.close(true).await.unwrap() });
        } else {
            drop((cache, executor));
            world.lose_power(Loss::InFlightOnly);
        }
        world
    }

    fn lose_power(&mut self, loss: Loss) {
        self.medium = self.medium.after_power_loss_as(loss, &Power::new());
    }

    /// Changes the origin as another host does. Dirty data here overwrites that, if the scenario
    /// says so.
    fn change_by_others(&mut self, random: &mut Random) {
        for _ in 0..3 {
            let (first, count) = some_sectors(random);
            let byte = 128 + random.below(120) as u8;
            let mut executor = Executor::in_order();
            write(&mut executor, &self.origin, first * SECTOR, &vec![byte; (count * SECTOR) as usize]);
            for sector in first..first + count {
                if !self.dirty.contains(&sector) {
                    self.expected[sector as usize] = byte;
                }
            }
            self.changed.push(ByteRange { offset: first * SECTOR, length: count * SECTOR });
        }
    }

    fn is_changed(&self, sector: u64) -> bool {
        self.changed.iter().any(|range| range.contains(&ByteRange { offset: sector * SECTOR, length: SECTOR }))
    }

    fn check(&self, executor: &mut Executor, cache: &Arc<Cache>, context: &str) {
        let bytes = read(executor, cache, 0, ORIGIN_SECTORS * SECTOR);
        for (sector, bytes) in bytes.chunks(SECTOR as usize).enumerate() {
            assert!(
                bytes.iter().all(|&byte| byte == self.expected[sector]),
                "{context}: sector {sector} holds {} and not {}",
                bytes[0],
                self.expected[sector]
            );
        }
    }
}

fn some_sectors(random: &mut Random) -> (u64, u64) {
    let count = 1 + random.below(40);
    (random.below(ORIGIN_SECTORS - count + 1), count)
}

/// Returns whether the power was lost.
fn others_change_it(scenario: &Scenario, nth: u64) -> bool {
    let context = format!("{scenario:?}, power lost at write {nth} of an open");
    let mut world = World::new(scenario);
    let mut random = Random::new(scenario.seed + 7);
    world.change_by_others(&mut random);
    let freshness = match scenario.is_unknown {
        true => Freshness::Unknown,
        false => Freshness::Changed(world.changed.clone()),
    };
    let conflict = world.dirty.iter().filter(|&&sector| world.is_changed(sector)).count() as u64 * SECTOR;
    if conflict > 0 && !scenario.is_unknown {
        let error = world.open(scenario, freshness.clone(), false).err().expect("both have changed the same bytes");
        assert_eq!(ConflictingChanges::of(&error), Some(&ConflictingChanges { bytes: conflict }), "{context}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let power = world.medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let opened = world.open(scenario, freshness.clone(), true);
    let has_opened = opened.is_ok();
    if let Ok((_, cache)) = &opened {
        let is_kept = |sector: &u64| {
            let can_stay = scenario.is_closed && !scenario.is_unknown && !world.is_changed(*sector);
            world.dirty.contains(sector) || can_stay
        };
        if scenario.is_closed || scenario.is_unknown {
            let kept = world.touched.iter().filter(|sector| is_kept(sector)).count() as u64;
            assert_eq!(cache.status().valid_bytes, kept * SECTOR, "{context}");
        }
    }
    drop(opened);
    // A caller whose open succeeded forgets the list of changes; otherwise it passes it again.
    let again = if has_opened { Freshness::Unchanged } else { freshness };
    world.lose_power(Loss::Seeded(scenario.seed ^ nth));
    let (mut executor, cache) = world.open(scenario, again, true).expect("it opens after any crash");
    world.check(&mut executor, &cache, &context);
    executor.block_on(async move { cache.close(true).await.unwrap() });
    let (mut executor, cache) = world.open(scenario, Freshness::Unchanged, false).unwrap();
    world.check(&mut executor, &cache, &context);
    !has_opened
}

/// Bits of the seed give the rest of the scenario: whether the cache was closed, whether the
/// changes are known, and the size of lines.
fn others_change_it_in(crash_mode: CrashMode) {
    const LINE_BYTES: [u64; 4] = [4 << 10, 4 << 10, 16 << 10, 64 << 10];
    let test = block::crash_test!().of_few_crashes(1);
    for seed in test.seeds(0, 16, 1) {
        let line_size = LineSize::new(LINE_BYTES[seed as usize / 4 % 4]).unwrap();
        let (is_closed, is_unknown) = (seed % 2 == 0, seed / 2 % 2 == 1);
        let scenario = Scenario { seed, crash_mode, line_size, is_closed, is_unknown };
        test.crash_at_every(seed, 1000, |nth| others_change_it(&scenario, nth));
    }
}

#[test]
fn what_others_changed_is_forgotten_in_crash_mode_discard() {
    others_change_it_in(CrashMode::DiscardAll);
}

#[test]
fn what_others_changed_is_forgotten_in_crash_mode_dirty() {
    others_change_it_in(CrashMode::DirtySynchronous);
}

#[test]
fn what_others_changed_is_forgotten_in_crash_mode_warm() {
    others_change_it_in(CrashMode::Warm);
}

#[test]
fn what_others_changed_is_forgotten_in_crash_mode_all() {
    others_change_it_in(CrashMode::AllSynchronous);
}

#[test]
fn a_conflict_leaves_the_cache_as_it_is() {
    let scenario = Scenario {
        seed: 1,
        crash_mode: CrashMode::Warm,
        line_size: LineSize::default(),
        is_closed: true,
        is_unknown: false,
    };
    let world = World::new(&scenario);
    let writes = world.medium.writes_seen();
    let everything = Freshness::Changed(vec![ByteRange { offset: 0, length: u64::MAX }]);
    let error = world.open(&scenario, everything, false).err().expect("something is dirty");
    let bytes = world.dirty.len() as u64 * SECTOR;
    assert_eq!(ConflictingChanges::of(&error), Some(&ConflictingChanges { bytes }));
    assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    assert_eq!(world.medium.writes_seen(), writes);
    let (mut executor, cache) = world.open(&scenario, Freshness::Unchanged, false).unwrap();
    world.check(&mut executor, &cache, "nobody had changed anything");
}

/// Whatever others are known to have changed, the origin may be older than all clean lines.
#[test]
fn of_an_origin_that_may_be_older_than_its_cache_only_what_is_dirty_counts() {
    let scenario = Scenario {
        seed: 1,
        crash_mode: CrashMode::Warm,
        line_size: LineSize::default(),
        is_closed: true,
        is_unknown: false,
    };
    let world = World::new(&scenario);
    let sector = *world.dirty.iter().next().unwrap();
    let changed = ByteRange { offset: sector * SECTOR, length: SECTOR };
    let error = world.open(&scenario, Freshness::Outdated(vec![changed]), false).err().expect("it is dirty");
    assert_eq!(ConflictingChanges::of(&error), Some(&ConflictingChanges { bytes: SECTOR }));
    let (mut executor, cache) = world.open(&scenario, Freshness::Outdated(Vec::new()), false).unwrap();
    assert_eq!(cache.status().valid_bytes, world.dirty.len() as u64 * SECTOR);
    world.check(&mut executor, &cache, "nobody had changed anything");
}

/// Other hosts change the origin after an open, before any request to the cache: the result is that
/// of an open that got the changes. Returns whether the power was lost at write `nth`.
fn others_change_it_behind_an_open(scenario: &Scenario, nth: u64) -> bool {
    let context = format!("{scenario:?}, power lost at write {nth} behind an open");
    let mut world = World::new(scenario);
    let (mut executor, cache) = world.open(scenario, Freshness::Unchanged, false).unwrap();
    world.change_by_others(&mut Random::new(scenario.seed + 7));
    let conflict = world.dirty.iter().filter(|&&sector| world.is_changed(sector)).count() as u64 * SECTOR;
    let invalidate = |executor: &mut Executor, is_overwritten| {
        let (cache, changed) = (Arc::clone(&cache), world.changed.clone());
        executor.block_on(async move { cache.invalidate(&changed, is_overwritten).await })
    };
    if conflict > 0 {
        let error = invalidate(&mut executor, false).expect_err("both have changed the same bytes");
        assert_eq!(ConflictingChanges::of(&error), Some(&ConflictingChanges { bytes: conflict }), "{context}");
    }
    let power = world.medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let is_invalidated = invalidate(&mut executor, true).is_ok();
    drop((cache, executor));
    // A caller whose call succeeded forgets the list of changes; otherwise it passes it again.
    let again = if is_invalidated { Freshness::Unchanged } else { Freshness::Changed(world.changed.clone()) };
    world.lose_power(Loss::Seeded(scenario.seed ^ nth));
    let (mut executor, cache) = world.open(scenario, again, true).expect("it opens after any crash");
    world.check(&mut executor, &cache, &context);
    !is_invalidated
}

#[test]
fn what_others_change_behind_an_open_is_forgotten_durably_as_well() {
    const LINE_BYTES: [u64; 4] = [64 << 10, 4 << 10, 4 << 10, 16 << 10];
    let test = block::crash_test!().of_few_crashes(0);
    for crash_mode in [CrashMode::DiscardAll, CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
        for seed in test.seeds(1, 4, 1) {
            let line_size = LineSize::new(LINE_BYTES[seed as usize % 4]).unwrap();
            for is_closed in [true, false] {
                let scenario = Scenario { seed, crash_mode, line_size, is_closed, is_unknown: false };
                test.crash_at_every(seed, 1000, |nth| others_change_it_behind_an_open(&scenario, nth));
            }
        }
    }
}

/// The record that a line is clean is written some time after it was cleaned: after a crash without
/// it the line would be sent again, over the changes of other hosts.
#[test]
fn what_was_cleaned_before_others_changed_it_is_not_sent_again_after_a_crash() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm] {
        let scenario =
            Scenario { seed: 1, crash_mode, line_size: LineSize::default(), is_closed: true, is_unknown: false };
        let mut world = World::new(&scenario);
        let (mut executor, cache) = world.open(&scenario, Freshness::Unchanged, false).unwrap();
        let cleaning = Arc::clone(&cache);
        executor.block_on(async move { cleaning.clean(|_| {}).await }).unwrap();
        world.dirty.clear();
        world.change_by_others(&mut Random::new(5));
        let (invalidating, changed) = (Arc::clone(&cache), world.changed.clone());
        executor.block_on(async move { invalidating.invalidate(&changed, false).await }).expect("nothing is dirty");
        drop((cache, executor));
        world.lose_power(Loss::InFlightOnly);
        let (mut executor, cache) = world.open(&scenario, Freshness::Unchanged, false).unwrap();
        let cleaning = Arc::clone(&cache);
        executor.block_on(async move { cleaning.clean(|_| {}).await }).unwrap();
        world.check(&mut executor, &cache, &format!("{crash_mode:?}"));
    }
}
