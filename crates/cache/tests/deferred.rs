//! Small writes whose data goes into the log, in one piece with its record, and only later to its frame: one durable
//! append each, and nothing lost whenever the power fails.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use base::checksum::crc32c;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::delay::Latency;
use block::{Error, ErrorKind, SharedDevice};
use cache::{Associativity, Cache, CrashMode, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent, check, inspect};
use common::{close, format, format_options, memory, open_options, read, try_open, write};
use futures_util::future::join_all;

const LINE: u64 = 4096;
const CACHE_BYTES: u64 = 1 << 20;
const ORIGIN_BYTES: u64 = 32 * LINE;
/// Writes of up to a line are deferred.
const DEFERRED_MAX: u64 = LINE;

struct Bench {
    executor: Executor,
    medium: CrashLayer,
    origin: SharedDevice,
    cache: Arc<Cache>,
}

impl Bench {
    fn new(options: FormatOptions) -> Self {
        let mut executor = Executor::in_order();
        let (medium, origin) = (CrashLayer::new(CACHE_BYTES, 1), memory(ORIGIN_BYTES));
        format(&mut executor, &shared(&medium), &origin, options);
        let cache = open(&mut executor, &medium, &origin).expect("nothing fails");
        Self { executor, medium, origin, cache }
    }

    /// Writes this byte, from sector `first` on.
    fn write(&mut self, first: u64, count: u64, byte: u8) {
        write(&mut self.executor, &self.cache, first * 512, &vec![byte; count as usize * 512]);
    }

    /// The first byte of each of these sectors.
    fn read(&mut self, first: u64, count: u64) -> Vec<u8> {
        firsts(&read(&mut self.executor, &self.cache, first * 512, count * 512))
    }

    /// The cache device loses its power, and all that was not flushed.
    fn lose_power(&mut self) {
        self.medium = self.medium.after_power_loss();
        self.executor = Executor::in_order();
        self.cache = open(&mut self.executor, &self.medium, &self.origin).expect("a cache opens after any crash");
    }
}

fn shared(medium: &CrashLayer) -> SharedDevice {
    Arc::new(medium.clone())
}

/// Opens without background placing or cleaning, except when they are due.
fn open(executor: &mut Executor, medium: &CrashLayer, origin: &SharedDevice) -> Result<Arc<Cache>, Error> {
    let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
    let lazy_interval = Duration::from_secs(3600);
    let options = open_options(executor, Mode::WriteBack);
    let options = OpenOptions { deferred_max: DEFERRED_MAX, dirty, lazy_interval, ..options };
    try_open(executor, &shared(medium), origin, options)
}

fn firsts(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(512).map(|sector| sector[0]).collect()
}

/// A log that takes a few lines.
fn roomy() -> FormatOptions {
    FormatOptions { log_bytes: Some(256 << 10), ..format_options() }
}

#[test]
fn a_small_write_is_one_write_of_the_cache_device_and_a_larger_one_is_two() {
    let mut bench = Bench::new(roomy());
    let before = bench.medium.writes_seen();
    bench.write(3, 5, 1);
    assert_eq!(bench.medium.writes_seen() - before, 1);
    let status = bench.cache.status();
    assert_eq!((status.writes_deferred, status.writes.misses), (1, 1));
    assert!(status.deferred_bytes >= 5 * 512);
    bench.write(64, 9, 2);
    assert_eq!((bench.medium.writes_seen() - before, bench.cache.status().writes_deferred), (3, 1));
    bench.cache.set_deferred_max(0);
    bench.write(128, 1, 3);
    assert_eq!((bench.medium.writes_seen() - before, bench.cache.status().writes_deferred), (5, 1));
}

#[test]
fn small_writes_at_the_same_time_share_their_append() {
    let mut bench = Bench::new(FormatOptions { log_bytes: Some(512 << 10), ..format_options() });
    let before = bench.medium.writes_seen();
    let writes: Vec<_> =
        (0..24).map(|line| bench.cache.write(line * LINE, Buffer::copy_of(&[7; LINE as usize]), true)).collect();
    bench
        .executor
        .block_on(async move { join_all(writes).await.into_iter().for_each(|written| drop(written.unwrap())) });
    let writes = bench.medium.writes_seen() - before;
    assert!(writes <= 3, "{writes} writes of the device");
    assert_eq!(bench.cache.status().writes_deferred, 24);
}

/// The page of a dirty line has its checksum. A deferred write of part of the line changes neither
/// what is valid there nor what is dirty, and its record is released once its data is in the frame.
#[test]
fn a_deferred_write_into_a_dirty_line_is_no_damage_after_its_record_is_released() {
    let mut bench = Bench::new(FormatOptions { has_checksums: true, ..roomy() });
    bench.write(0, 8, 1);
    let fill = |bench: &mut Bench| {
        let before = bench.cache.status().checkpoints;
        for byte in 0..100 {
            bench.write(64, 8, byte);
        }
        assert!(bench.cache.status().checkpoints > before, "records are released");
    };
    fill(&mut bench);
    bench.write(7, 1, 2);
    fill(&mut bench);
    bench.lose_power();
    assert_eq!(bench.read(0, 8), [1, 1, 1, 1, 1, 1, 1, 2]);
    assert_eq!(bench.cache.status().checksum_errors, 0);
}

#[test]
fn a_read_sees_what_is_deferred_over_what_the_frame_and_the_origin_have() {
    let mut bench = Bench::new(roomy());
    write(&mut bench.executor, &bench.origin.clone(), 0, &[9; 2 * LINE as usize]);
    bench.cache.set_deferred_max(0);
    bench.write(2, 4, 1);
    bench.cache.set_deferred_max(DEFERRED_MAX);
    bench.write(3, 2, 2);
    bench.write(4, 5, 3);
    let expected = [9, 9, 1, 2, 3, 3, 3, 3, 3, 9, 9, 9, 9, 9, 9, 9];
    assert_eq!(bench.read(0, 16), expected);
    for sector in 0..16 {
        assert_eq!(bench.read(sector, 1), [expected[sector as usize]]);
    }
    assert_eq!(bench.read(3, 3), [2, 3, 3]);
    assert!(bench.cache.status().deferred_bytes > 0, "nobody had to wait for it to be placed");
}

#[test]
fn what_is_deferred_is_there_after_a_crash_and_after_one_of_the_recovery() {
    let mut bench = Bench::new(roomy());
    bench.cache.set_deferred_max(0);
    bench.write(0, 8, 1);
    bench.cache.set_deferred_max(DEFERRED_MAX);
    bench.write(2, 2, 2);
    bench.write(9, 1, 3);
    bench.write(2, 1, 4);
    for life in 0..3 {
        bench.lose_power();
        let recovery = bench.cache.status().recovery;
        assert_eq!(recovery.deferred_lines, if life == 0 { 2 } else { 0 }, "{recovery:?}");
        assert_eq!(bench.read(0, 10), [1, 1, 4, 2, 1, 1, 1, 1, 0, 3]);
        assert_eq!(bench.cache.status().dirty_bytes, 9 * 512);
    }
}

#[test]
fn a_check_of_a_cache_that_crashed_finds_deferred_data_in_its_log() {
    let mut bench = Bench::new(FormatOptions { has_checksums: true, ..roomy() });
    bench.cache.set_deferred_max(0);
    bench.write(0, 8, 1);
    bench.cache.set_deferred_max(DEFERRED_MAX);
    bench.write(0, 8, 2);
    bench.write(12, 1, 3);
    let device = shared(&bench.medium.after_power_loss());
    let checked = Executor::in_order().block_on(async move { check(&device).await.unwrap() });
    assert_eq!((checked.dirty_lines, checked.unreadable_lines, checked.recovery.deferred_lines), (2, 0, 2));
    bench.lose_power();
    assert_eq!(bench.read(0, 13), [2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 3]);
    assert_eq!(bench.cache.status().checksum_errors, 0);
}

/// The log wraps around many times, and the frames lose what was not flushed.
#[test]
fn the_log_keeps_deferred_data_until_it_is_in_its_frame_durably() {
    for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous] {
        let mut bench = Bench::new(FormatOptions { log_bytes: Some(32 << 10), crash_mode, ..format_options() });
        let mut expected = vec![0; 32 * 8];
        for nth in 0..300u64 {
            let (sector, byte) = (nth * 37 % 250, 1 + (nth % 250) as u8);
            bench.write(sector, 1 + nth % 6, byte);
            expected[sector as usize..(sector + 1 + nth % 6) as usize].fill(byte);
            if nth % 50 == 49 {
                assert!(bench.cache.status().checkpoints > 1, "the log was used again");
                bench.lose_power();
                assert_eq!(bench.read(0, 32 * 8), expected, "{crash_mode}, after {nth}");
            }
        }
    }
}

#[test]
fn whatever_else_touches_the_line_finds_deferred_data() {
    type Touch = fn(&mut Bench);
    let touches: [(&str, Touch, [u8; 8]); 6] = [
        ("a larger write", |bench| write_in_frames(bench, 1, 4), [2, 4, 2, 2, 2, 2, 1, 1]),
        ("a larger write beside it", |bench| write_in_frames(bench, 6, 4), [2, 2, 2, 2, 2, 2, 4, 1]),
        (
            "a discard",
            |bench| run(bench, |cache| Box::pin(async move { cache.discard(0, 1024).await })),
            [0, 0, 2, 2, 2, 2, 1, 1],
        ),
        (
            "zeroes",
            |bench| run(bench, |cache| Box::pin(async move { cache.write_zeroes(0, 512, false, true).await })),
            [0, 2, 2, 2, 2, 2, 1, 1],
        ),
        (
            "cleaning",
            |bench| run(bench, |cache| Box::pin(async move { cache.clean(|_| {}).await })),
            [2, 2, 2, 2, 2, 2, 1, 1],
        ),
        (
            "another mode",
            |bench| run(bench, |cache| Box::pin(async move { cache.set_mode(Mode::WriteThrough).await })),
            [2, 2, 2, 2, 2, 2, 1, 1],
        ),
    ];
    for (name, touch, expected) in touches {
        let mut bench = Bench::new(roomy());
        bench.cache.set_deferred_max(0);
        bench.write(0, 8, 1);
        bench.cache.set_deferred_max(DEFERRED_MAX);
        bench.write(0, 6, 2);
        touch(&mut bench);
        assert_eq!(bench.read(0, 8), expected, "{name}");
        bench.lose_power();
        assert_eq!(bench.read(0, 8), expected, "{name}, and a crash");
        close(&mut bench.executor, &bench.cache.clone(), false);
        assert_eq!(firsts(&read(&mut bench.executor, &bench.origin.clone(), 0, LINE)), expected, "{name}: the origin");
    }
}

fn write_in_frames(bench: &mut Bench, sector: u64, byte: u8) {
    bench.cache.set_deferred_max(0);
    bench.write(sector, 1, byte);
    bench.cache.set_deferred_max(DEFERRED_MAX);
}

type Running = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

fn run(bench: &mut Bench, change: fn(Arc<Cache>) -> Running) {
    let changing = change(Arc::clone(&bench.cache));
    bench.executor.block_on(changing).expect("nothing fails");
}

#[test]
fn a_cache_that_is_closed_has_nothing_deferred_any_more() {
    let mut bench = Bench::new(roomy());
    bench.write(0, 6, 2);
    close(&mut bench.executor, &bench.cache.clone(), true);
    bench.lose_power();
    let recovery = bench.cache.status().recovery;
    assert!(recovery.was_closed && recovery.deferred_lines == 0 && recovery.log_records == 0, "{recovery:?}");
    assert_eq!(bench.read(0, 6), [2; 6]);
}

#[test]
fn a_successor_gets_what_is_deferred() {
    let mut bench = Bench::new(roomy());
    bench.cache.set_deferred_max(0);
    bench.write(0, 8, 1);
    bench.cache.set_deferred_max(DEFERRED_MAX);
    bench.write(2, 3, 2);
    let second = memory(CACHE_BYTES);
    let options = FormatOptions { uuid: Some(uuid::Uuid::from_bytes([8; 16])), ..roomy() };
    format(&mut bench.executor, &second, &bench.origin, options);
    let (old, origin) = (Arc::clone(&bench.cache), Arc::clone(&bench.origin));
    let options = open_options(&bench.executor, Mode::WriteBack);
    let new = bench.executor.block_on(async move { old.open_successor(second, origin, options).await.unwrap() });
    bench.executor.spawn(new.run());
    let (old, successor) = (Arc::clone(&bench.cache), Arc::clone(&new));
    bench.executor.block_on(async move {
        old.copy_to(&successor, |_| {}).await.unwrap();
        old.hand_over(&successor).await.unwrap().finish();
    });
    bench.cache = new;
    assert_eq!((bench.read(0, 8), bench.cache.deferred_max()), (vec![1, 1, 2, 2, 2, 1, 1, 1], DEFERRED_MAX));
}

/// The data is in the log and in memory: it is not lost, nor forgotten in silence.
#[test]
fn a_frame_that_refuses_deferred_data_ends_write_back_and_the_next_opening_has_the_data() {
    let mut bench = Bench::new(roomy());
    bench.write(0, 6, 2);
    bench.medium.fail_writes_from(bench.medium.writes_seen(), ErrorKind::Media);
    let cleaning = Arc::clone(&bench.cache);
    let error = bench.executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Media);
    assert!(bench.cache.status().failure.is_some());
    assert_eq!(bench.read(0, 8), [2, 2, 2, 2, 2, 2, 0, 0]);
    let writing = bench.cache.write(0, Buffer::zeroed(512), false);
    assert!(bench.executor.block_on(writing).is_err(), "what is dirty cannot be replaced");
    bench.medium.heal();
    bench.lose_power();
    assert_eq!((bench.read(0, 8), bench.cache.status().recovery.deferred_lines), (vec![2, 2, 2, 2, 2, 2, 0, 0], 1));
}

/// Such a flush may drop what a placing has written by then; the placing's own flush comes later,
/// and succeeds.
#[test]
fn a_flush_of_a_checkpoint_that_fails_takes_nothing_that_is_being_placed_beside_it() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 100, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::in_order();
        let (workers, clock) = (Workers::new(), executor.clock());
        let (plain, origin) = (CrashLayer::new(CACHE_BYTES, seed), memory(ORIGIN_BYTES));
        let log = FormatOptions { log_bytes: Some(32 << 10), ..format_options() };
        format(&mut executor, &shared(&plain), &origin, log);
        let latency = Latency::Between(Duration::from_millis(1), Duration::from_millis(20));
        let medium = plain.with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let cache = open(&mut executor, &medium, &origin).expect("nothing fails");
        let mut random = Random::new(seed);
        let failing = medium.flushes_seen() + random.below(8);
        medium.fail_flush_as(failing, ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        // A discard has all deferred data placed, and does so while other requests go on.
        let discarding = Arc::clone(&cache);
        executor.spawn(async move {
            for _ in 0..60 {
                let placed = discarding.write(30 * LINE, Buffer::copy_of(&[1; 512]), false).await;
                if placed.is_err() || discarding.discard(30 * LINE, LINE).await.is_err() {
                    return;
                }
            }
        });
        let writing = Arc::clone(&cache);
        let written = executor.block_on(async move {
            let mut written = [vec![0], vec![0], vec![0], vec![0], vec![0], vec![0], vec![0], vec![0]];
            for byte in 1..60 {
                let line = random.below(8);
                // Lines apart, so that each is a write of its own when it is placed.
                let result = writing.write(2 * line * LINE, Buffer::copy_of(&[byte; LINE as usize]), false).await;
                match result {
                    Ok(_) => written[line as usize] = vec![byte],
                    Err(_) => {
                        written[line as usize].push(byte);
                        break;
                    }
                }
            }
            clock.sleep(Duration::from_secs(1)).await;
            written
        });
        for (line, bytes) in written.iter().enumerate() {
            let there = firsts(&read(&mut executor, &cache, 2 * line as u64 * LINE, LINE));
            let is_one = bytes.iter().any(|&byte| there == [byte; 8]);
            assert!(is_one, "seed {seed}, line {line}: {there:?} in place of {bytes:?}");
        }
    }
}

/// Deferred data may have what the frames leave of the memory.
#[test]
fn writes_for_which_there_is_no_memory_go_to_their_frames() {
    let mut executor = Executor::in_order();
    let (device, origin) = (memory(CACHE_BYTES), memory(ORIGIN_BYTES));
    format(&mut executor, &device, &origin, roomy());
    let options = OpenOptions { deferred_max: DEFERRED_MAX, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &origin, options.clone()).unwrap();
    let memory_bytes = cache.status().memory_bytes;
    close(&mut executor, &cache, true);
    let mut executor = Executor::in_order();
    let clock = Arc::new(executor.clock());
    let options = OpenOptions { clock, memory_max: Some(memory_bytes + 2000), ..options };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    let writes: Vec<_> = (0..4).map(|line| cache.write(line * LINE, Buffer::copy_of(&[1; 1024]), false)).collect();
    executor.block_on(async move { join_all(writes).await.into_iter().for_each(|written| drop(written.unwrap())) });
    assert_eq!(cache.status().writes_deferred, 1);
    assert!(cache.status().deferred_bytes <= 2000);
}

/// The cache was written by a program without deferred writes.
#[test]
fn a_cache_of_version_1_opens_with_what_it_has_and_is_of_version_2_from_then_on() {
    let mut bench = Bench::new(roomy());
    bench.cache.set_deferred_max(0);
    bench.write(0, 8, 1);
    let device = shared(&bench.medium.after_power_loss());
    let version = |executor: &mut Executor, device: &SharedDevice| {
        let device = Arc::clone(device);
        executor.block_on(async move { inspect(&device).await.unwrap().version })
    };
    let mut executor = Executor::in_order();
    for offset in [0, CACHE_BYTES - 4096] {
        let mut superblock = read(&mut executor, &device, offset, 4096);
        assert_eq!(superblock[24..28], [2, 0, 0, 0]);
        superblock[24] = 1;
        let checksum = crc32c(&superblock[4..]);
        superblock[..4].copy_from_slice(&checksum.to_le_bytes());
        write(&mut executor, &device, offset, &superblock);
    }
    assert_eq!(version(&mut executor, &device), 1);
    let options = OpenOptions { deferred_max: DEFERRED_MAX, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &device, &bench.origin, options).unwrap();
    assert_eq!(version(&mut executor, &device), 2);
    write(&mut executor, &cache, 0, &[2; 512]);
    assert_eq!(cache.status().writes_deferred, 1);
    assert_eq!(firsts(&read(&mut executor, &cache, 0, LINE)), [2, 1, 1, 1, 1, 1, 1, 1]);
}

/// One request after the other, of all kinds, and the power fails at one of the writes of the cache device: all that
/// was acknowledged is there, and of the last request all, some or none.
fn crash_run(seed: u64, crash_at: u64) -> bool {
    let mut random = Random::new(seed);
    let mut executor = Executor::new(seed);
    let (medium, origin) = (CrashLayer::new(CACHE_BYTES, seed), memory(ORIGIN_BYTES));
    let options = FormatOptions {
        associativity: Associativity::Ways(8),
        frames_max: Some(24),
        log_bytes: Some([16 << 10, 40 << 10][seed as usize % 2]),
        crash_mode: [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous][seed as usize % 3],
        has_checksums: seed.is_multiple_of(4),
        ..format_options()
    };
    format(&mut executor, &shared(&medium), &origin, options);
    let options = OpenOptions { deferred_max: 2048, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &shared(&medium), &origin, options).unwrap();
    medium.power().fail_write(medium.power().writes_seen() + crash_at);
    let mut known = vec![0u8; (ORIGIN_BYTES / 512) as usize];
    let mut doubtful = (0..0, 0);
    for nth in 0..120u64 {
        let byte = 1 + (nth % 250) as u8;
        let count = if random.chance(0.3) { 1 + random.below(20) } else { 1 + random.below(4) };
        let span = if random.chance(0.5) { 24 } else { ORIGIN_BYTES / 512 - count };
        let first = random.below(span);
        let range = first as usize..(first + count) as usize;
        let acting = Arc::clone(&cache);
        let (kind, data) = (random.below(20), vec![byte; count as usize * 512]);
        let (result, byte) = executor.block_on(async move {
            match kind {
                0 => (acting.discard(first * 512, count * 512).await, 0),
                1 => (acting.write_zeroes(first * 512, count * 512, false, true).await, 0),
                2 => (acting.clean(|_| {}).await.map_err(|_| ErrorKind::Media.into()), byte),
                _ => (acting.write(first * 512, Buffer::copy_of(&data), false).await.map(drop), byte),
            }
        });
        let range = if kind == 2 { 0..0 } else { range };
        if medium.power().is_lost() {
            doubtful = (range, byte);
            break;
        }
        result.expect("nothing fails before the power does");
        known[range].fill(byte);
    }
    let is_lost = medium.power().is_lost();
    drop((cache, executor));
    let loss = if crash_at.is_multiple_of(2) { Loss::All } else { Loss::Seeded(seed + crash_at) };
    let mut medium = medium.after_power_loss_as(loss, &Power::new());
    // The first opening may be cut off, too.
    for cut_at in [Some(seed % 11), None] {
        let mut executor = Executor::new(seed);
        if let Some(cut_at) = cut_at {
            medium.power().fail_write(medium.power().writes_seen() + cut_at);
        }
        let options = OpenOptions { deferred_max: 2048, ..open_options(&executor, Mode::WriteBack) };
        let opened = try_open(&mut executor, &shared(&medium), &origin, options);
        if cut_at.is_some() {
            drop((opened, executor));
            medium = medium.after_power_loss_as(loss, &Power::new());
            continue;
        }
        let cache = opened.expect("a cache opens after any crash");
        let found = firsts(&read(&mut executor, &cache, 0, ORIGIN_BYTES));
        for (sector, (&found, &known)) in found.iter().zip(&known).enumerate() {
            let may_be_new = doubtful.0.contains(&sector) && found == doubtful.1;
            assert!(
                found == known || may_be_new,
                "seed {seed}, crash at {crash_at}: sector {sector} is {found}, not {known}"
            );
        }
        assert_eq!(cache.status().checksum_errors, 0);
    }
    is_lost
}

/// Writers side by side, each in a line of its own, while the log is used again and again: what is deferred while
/// something is placed, and while a checkpoint notes how far the log is needed, is in neither. Of each line all that
/// was acknowledged is there, or the one write that was under way.
fn writers_run(seed: u64, crash_at: u64) -> bool {
    const WRITERS: u64 = 8;
    let mut executor = Executor::new(seed);
    let (medium, origin) = (CrashLayer::new(CACHE_BYTES, seed), memory(ORIGIN_BYTES));
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(200));
    let timed: SharedDevice = Arc::new(medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers));
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &timed, &origin, FormatOptions { log_bytes: Some(24 << 10), ..format_options() });
    let options = OpenOptions { deferred_max: 2048, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &timed, &origin, options).unwrap();
    medium.power().fail_write(medium.power().writes_seen() + crash_at);
    let acknowledged = Arc::new(Mutex::new([0u8; WRITERS as usize]));
    let writers = (0..WRITERS).map(|line| {
        let (cache, acknowledged) = (Arc::clone(&cache), Arc::clone(&acknowledged));
        async move {
            for byte in 1..=40 {
                if cache.write(line * LINE, Buffer::copy_of(&[byte; 1024]), false).await.is_err() {
                    return;
                }
                acknowledged.lock().unwrap()[line as usize] = byte;
            }
        }
    });
    executor.block_on(join_all(writers.collect::<Vec<_>>()));
    let is_lost = medium.power().is_lost();
    drop((cache, executor));
    let loss = if crash_at.is_multiple_of(2) { Loss::All } else { Loss::Seeded(seed + crash_at) };
    let medium = medium.after_power_loss_as(loss, &Power::new());
    let mut executor = Executor::new(seed);
    let options = OpenOptions { deferred_max: 2048, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &shared(&medium), &origin, options).expect("a cache opens after any crash");
    for (line, &known) in acknowledged.lock().unwrap().iter().enumerate() {
        let found = firsts(&read(&mut executor, &cache, line as u64 * LINE, 1024));
        let is_whole = found[0] == found[1] && (found[0] == known || found[0] == known + 1);
        assert!(is_whole, "seed {seed}, crash at {crash_at}: line {line} is {found:?}, not {known}");
    }
    is_lost
}

#[test]
fn whatever_write_the_power_fails_at_what_writers_side_by_side_were_told_is_there() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 6, 1) {
        test.crash_at_every(seed, 2000, |index| writers_run(seed, seed % 3 + index * 3));
    }
}

#[test]
fn whatever_write_the_power_fails_at_what_was_acknowledged_is_there() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 12, 1) {
        test.crash_at_every(seed, 2000, |index| crash_run(seed, seed % 7 + index * 7));
    }
}
