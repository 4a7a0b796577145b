//! Failures of the log device, the order that `log` keeps at the origin, and destaging of data that
//! is being written.

mod common;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported, WriteEffect};
use block::layer::delay::Latency;
use block::{Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Request, SharedDevice};
use common::{Kind, format, open_options, read, try_open, write};
use futures_util::future::{Either, join, join_all, select};
use futures_util::stream::{self, StreamExt};
use writelog::options::Level2;
use writelog::{DestageOrder, Durability, OpenOptions, PersistentRegion, VolatileRegion, WriteLog};

const ORIGIN_BYTES: u64 = 64 * 4096;
const LOG_BYTES: u64 = 512 << 10;
const KIND: Kind = Kind { durability: Durability::Log, order: DestageOrder::Log };

struct Bench {
    executor: Executor,
    log_medium: CrashLayer,
    origin_medium: CrashLayer,
    log: Arc<WriteLog>,
}

impl Bench {
    fn new(change: impl FnOnce(&mut OpenOptions)) -> Self {
        let mut executor = Executor::in_order();
        let log_medium = CrashLayer::new(LOG_BYTES, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.clone()), Arc::new(origin_medium.clone()));
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, KIND, None);
        options.record_cache_bytes = 0;
        change(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        Self { executor, log_medium, origin_medium, log }
    }

    fn write(&mut self, offset: u64, byte: u8) -> Result<(), ErrorKind> {
        let writing = self.log.write(offset, Buffer::copy_of(&[byte; 4096]), false);
        self.executor.block_on(writing).map(drop).map_err(|error| error.kind())
    }

    fn close(&mut self, keep_dirty: bool) -> Result<(), ErrorKind> {
        let log = Arc::clone(&self.log);
        self.executor.block_on(async move { log.close(keep_dirty).await }).map_err(|error| error.kind())
    }

    fn reopen(&mut self) -> Result<Arc<WriteLog>, ErrorKind> {
        let medium = self.log_medium.clone();
        self.open_on(&medium)
    }

    fn open_on(&mut self, log_medium: &CrashLayer) -> Result<Arc<WriteLog>, ErrorKind> {
        let options = open_options(&self.executor, KIND, None);
        let (device, origin) = (Arc::new(log_medium.clone()), Arc::new(self.origin_medium.clone()));
        let (device, origin): (SharedDevice, SharedDevice) = (device, origin);
        try_open(&mut self.executor, &device, &origin, options).map_err(|error| error.kind())
    }
}

/// The end takes as long as its device takes.
#[test]
fn who_closes_a_log_that_another_is_closing_waits_for_the_end_and_is_told_the_same() {
    for is_failing in [false, true] {
        let mut executor = Executor::in_order();
        let (medium, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(10)));
        let slow = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(slow), Arc::new(origin));
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, KIND, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, &log, 0, &[1; 4096]);
        let (destaging, clock) = (Arc::clone(&log), executor.clock());
        executor.block_on(async move { destaging.destage(|_| {}).await }).expect("nothing fails");
        if is_failing {
            medium.fail_writes_from(medium.writes_seen(), ErrorKind::Media);
        }
        let told = Arc::new(std::sync::Mutex::new(None));
        let (first, tells) = (Arc::clone(&log), Arc::clone(&told));
        executor.spawn(async move {
            let result = first.close(false).await;
            *tells.lock().unwrap() = Some(result.is_err());
        });
        let second = Arc::clone(&log);
        let result = executor.block_on(async move {
            clock.sleep(Duration::from_millis(1)).await;
            second.close(true).await
        });
        assert_eq!(*told.lock().unwrap(), Some(is_failing), "the first has come to its end");
        assert_eq!(result.is_err(), is_failing, "{result:?}");
    }
}

#[test]
fn when_the_log_refuses_a_record_writes_go_to_the_origin_durably() {
    let mut bench = Bench::new(|_| {});
    bench.write(0, 1).unwrap();
    bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
    bench.write(4096, 2).expect("the origin takes it");
    assert_eq!(bench.origin_medium.durable_bytes(4096, 4096), [2; 4096]);
    bench.write(0, 3).expect("the origin takes it");
    assert!(bench.log.status().failure.is_some());
    assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 0, 8192), [[3; 4096], [2; 4096]].concat());
    // An open after a crash does not bring the first write back: the failure note knows what went
    // past the log.
    let after = CrashLayer::new(LOG_BYTES, 3);
    after.corrupt(0, &bench.log_medium.durable_bytes(0, LOG_BYTES as usize));
    let log = bench.open_on(&after).expect("the log device works again");
    assert_eq!(read(&mut bench.executor, log.as_ref(), 0, 8192), [[3; 4096], [2; 4096]].concat());
    assert_eq!(log.status().dirty_bytes, 0);
    bench.close(false).expect("nothing is dirty any more, and the device takes a checkpoint");
    let log = bench.reopen().expect("it begins anew");
    assert_eq!(read(&mut bench.executor, log.as_ref(), 0, 4096), [3; 4096]);
    assert_eq!(log.status().dirty_bytes, 0);
}

/// One write of the log device fails, some newer data or zeroes go past it, and the power fails:
/// data that only the log has is there, and nothing older than what went past it.
#[test]
fn what_only_the_log_has_survives_an_error_of_its_device_and_a_crash() {
    let orders = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];
    for (order, are_zeroes) in orders.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        (0..4).for_each(|block| bench.write(block * 4096, block as u8 + 1).unwrap());
        // The LUN takes writes that go past the log, and for now no others.
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        let (executor, log) = (&mut bench.executor, &bench.log);
        let both = [(2, 13), (9, 19)].map(|(block, byte)| {
            let completion = log.submit(match are_zeroes {
                false => Request::write(block * 4096, Buffer::copy_of(&[byte; 4096]), false),
                true => Request::write_zeroes(block * 4096, 4096, false, false),
            });
            async move {
                let response = completion.await;
                response.result.map(|()| response.buffer)
            }
        });
        join_all_in(executor, both);
        // A record that was reported as failed, but landed, does not count.
        let after = bench.log_medium.after_power_loss();
        let [third, last] = if are_zeroes { [0, 0] } else { [13, 19] };
        let check = |executor: &mut Executor, log: &WriteLog| {
            let held = read(executor, log, 0, 10 * 4096);
            let firsts: Vec<u8> = held.chunks(4096).map(|block| block[0]).collect();
            assert_eq!(firsts, [1, 2, third, 4, 0, 0, 0, 0, 0, last], "{order}, zeroes: {are_zeroes}");
        };
        check(executor, log);
        bench.origin_medium.fail_writes_from(bench.origin_medium.writes_seen(), ErrorKind::Gone);
        bench.origin_medium = bench.origin_medium.after_power_loss();
        let log = bench.open_on(&after).expect("the log device works again");
        check(&mut bench.executor, &log);
    }
}

/// The log device takes a record and reports an error. Data that went past the log since is newer.
#[test]
fn a_record_that_was_told_to_have_failed_and_landed_never_counts() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        bench.write(0, 1).unwrap();
        let nth = bench.log_medium.writes_seen();
        bench.log_medium.fail_write_as(nth, ErrorKind::Media, WriteEffect::Whole, Reported::Once);
        (2..=3).for_each(|byte| bench.write(4096, byte).expect("the origin takes it"));
        let after = bench.log_medium.after_power_loss();
        let log = bench.open_on(&after).expect("the log device works again");
        let held = read(&mut bench.executor, log.as_ref(), 0, 8192);
        assert_eq!((held[0], held[4096]), (1, 3), "{order}");
    }
}

/// A batch has chosen and read its data, and sends one run after the other, when the log fails;
/// then newer data comes for all of it.
#[test]
fn what_goes_past_a_failed_log_is_not_written_over_by_a_batch_under_way() {
    for is_zeroing in [false, true] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, KIND, None);
        only_when_asked(&mut options);
        (options.level2.seek_bytes, options.level2.writes_in_flight) = (0, 1);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails yet");
        let offsets = (0..16).map(|index| index * 4 * 4096);
        offsets.clone().for_each(|offset| write(&mut executor, log.as_ref(), offset, &[1; 4096]));
        let seen = origin_medium.writes_seen();
        let destaging = Arc::clone(&log);
        executor.spawn(async move { drop(destaging.destage(|_| {}).await) });
        while origin_medium.writes_seen() == seen {
            executor.run_until_stalled();
            executor.clock().advance(Duration::from_micros(1));
        }
        log_medium.fail_write_once(log_medium.writes_seen(), ErrorKind::Media);
        let changes: Vec<_> = offsets
            .clone()
            .map(|offset| match is_zeroing {
                true => log.submit(Request::write_zeroes(offset, 4096, false, false)),
                false => log.submit(Request::write(offset, Buffer::copy_of(&[9; 4096]), false)),
            })
            .collect();
        let changed = executor.block_on(join_all(changes));
        assert!(changed.iter().all(|response| response.result.is_ok()), "the origin takes them");
        executor.run();
        let expected = if is_zeroing { [0; 4096] } else { [9; 4096] };
        for offset in offsets {
            assert_eq!(origin_medium.durable_bytes(offset, 4096), expected, "byte {offset}, zeroes: {is_zeroing}");
        }
    }
}

/// Like a write that goes past it.
#[test]
fn zeroes_that_go_past_a_failed_log_are_durable() {
    let mut bench = Bench::new(only_when_asked);
    bench.write(0, 1).unwrap();
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move { log.destage(|_| {}).await }).expect("nothing fails");
    assert_eq!(bench.origin_medium.durable_bytes(0, 1), [1]);
    bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
    let zeroing = bench.log.write_zeroes(0, 4096, false, false);
    bench.executor.block_on(zeroing).expect("the origin takes them");
    assert_eq!(bench.origin_medium.durable_bytes(0, 4096), [0; 4096]);
}

/// Without level 2, which would remove the log's data from the map by sending it.
#[test]
fn what_goes_past_a_failed_log_is_read_there_though_nobody_destages() {
    for are_zeroes in [false, true] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(LOG_BYTES, 1);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(medium.clone()), Arc::new(CrashLayer::new(ORIGIN_BYTES, 2)));
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, KIND, None);
        let log = executor.block_on(WriteLog::open(device, origin, options)).expect("nothing fails");
        executor.spawn(log.run_requests());
        write(&mut executor, log.as_ref(), 0, &[1; 4096]);
        medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
        let after = if are_zeroes { 0 } else { 2 };
        match are_zeroes {
            true => executor.block_on(log.write_zeroes(0, 4096, false, false)).expect("the origin takes them"),
            false => write(&mut executor, log.as_ref(), 0, &[2; 4096]),
        }
        assert!(log.status().failure.is_some());
        assert!(read(&mut executor, log.as_ref(), 0, 4096) == [after; 4096], "zeroes: {are_zeroes}");
    }
}

fn join_all_in<F: Future<Output = Result<Buffer, block::Error>> + Send + 'static>(
    executor: &mut Executor,
    writes: [F; 2],
) {
    let written = executor.block_on(join_all(writes));
    written.into_iter().for_each(|result| drop(result.expect("the origin takes it")));
}

#[test]
fn a_failure_that_nobody_could_note_keeps_writes_from_going_past_the_log() {
    for (can_note, are_zeroes) in [(false, false), (false, true), (true, false), (true, true)] {
        let was_asked = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&was_asked);
        let mut bench = Bench::new(|options| {
            options.failure_note = Some(Arc::new(move || {
                asked.store(true, Ordering::Relaxed);
                can_note
            }));
        });
        let (before, after) = if are_zeroes { (1, 0) } else { (0, 1) };
        write(&mut bench.executor, &bench.origin_medium, 0, &[before; 4096]);
        bench.log_medium.fail_writes_from(bench.log_medium.writes_seen(), ErrorKind::Media);
        let zeroing = are_zeroes.then(|| bench.log.write_zeroes(0, 4096, false, false));
        let changed = match zeroing {
            None => bench.write(0, after),
            Some(zeroing) => bench.executor.block_on(zeroing).map_err(|error| error.kind()),
        };
        assert_eq!(changed.is_ok(), can_note, "zeroes: {are_zeroes}");
        assert_eq!(bench.log.status().refuses_writes, !can_note, "as it is said to users");
        assert!(was_asked.load(Ordering::Relaxed));
        let there = read(&mut bench.executor, &bench.origin_medium, 0, 4096);
        assert!(there == [if can_note { after } else { before }; 4096], "zeroes: {are_zeroes}");
    }
}

/// A log device and an origin that take time.
fn slow_devices(
    executor: &mut Executor,
    log_medium: &CrashLayer,
    origin_medium: &CrashLayer,
) -> (SharedDevice, SharedDevice) {
    let workers = Workers::new();
    let slow = |medium: &CrashLayer, executor: &Executor, most| -> SharedDevice {
        let latency = Latency::Between(Duration::ZERO, Duration::from_micros(most));
        Arc::new(medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers))
    };
    let devices = (slow(log_medium, executor, 100), slow(origin_medium, executor, 700));
    executor.spawn(async move { workers.run().await });
    devices
}

/// Runs 300 writes, 7 at a time, on devices that take time; the log device refuses its `nth` write.
/// Returns whether it got there.
fn writes_with_a_failure(seed: u64, nth: u64, is_for_good: bool) -> bool {
    let mut executor = Executor::new(seed);
    let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(ORIGIN_BYTES, seed));
    let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
    format(&mut executor, &device, &origin);
    let options = open_options(&executor, KIND, None);
    let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails yet");
    let at = log_medium.writes_seen() + nth;
    match is_for_good {
        false => log_medium.fail_write_once(at, ErrorKind::Media),
        true => log_medium.fail_writes_from(at, ErrorKind::Media),
    }
    let writing = Arc::clone(&log);
    executor.block_on(async move {
        let write = |index: u64| writing.write(index * 7 % 64 * 4096, Buffer::copy_of(&[1; 4096]), false);
        // If the failure could not be noted, no write may go past the log.
        let is_written =
            |result: Result<Buffer, block::Error>| async move { assert!(result.is_ok() || is_for_good, "{result:?}") };
        stream::iter(0..300).map(write).buffer_unordered(7).for_each(is_written).await;
    });
    let has_failed = log.status().failure.is_some();
    if has_failed {
        let destaging = Arc::clone(&log);
        executor.block_on(async move { destaging.destage(|_| {}).await }).expect("what the log has can be read");
        let is_there = origin_medium.durable_bytes(0, ORIGIN_BYTES as usize).iter().all(|&byte| byte == 1);
        assert!(is_there || is_for_good, "the origin lacks what was acknowledged");
    }
    has_failed
}

/// Records, checkpoints, superblocks: the log device refuses any of its writes, once or from then
/// on. A request that is never answered ends the executor.
#[test]
fn nobody_waits_for_ever_whichever_write_of_the_log_fails() {
    let test = block::crash_test!().of_few_crashes(30);
    for seed in test.seeds(1, 3, 1) {
        test.crash_at_every(seed, 1000, |nth| writes_with_a_failure(seed, nth, seed % 2 == 0));
    }
}

/// A program is killed at write `nth` of a checkpoint, which the device carries out in its volatile
/// cache. The next opening loses its power at write `opening_nth`. Returns whether the kill was
/// reached.
fn is_killed_and_then_loses_power(seed: u64, nth: u64, opening_nth: u64) -> bool {
    let mut executor = Executor::in_order();
    let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(ORIGIN_BYTES, seed));
    let origin: SharedDevice = Arc::new(origin_medium);
    let mut options = open_options(&executor, KIND, None);
    only_when_asked(&mut options);
    let device: SharedDevice = Arc::new(log_medium.clone());
    format(&mut executor, &device, &origin);
    let log = try_open(&mut executor, &device, &origin, options.clone()).expect("nothing fails yet");
    (0..4).for_each(|block| write(&mut executor, log.as_ref(), block * 4096, &[block as u8 + 1; 4096]));
    let power = log_medium.power().clone();
    power.fail_write(log_medium.writes_seen() + nth);
    let closing = Arc::clone(&log);
    drop(executor.block_on(async move { closing.close(true).await }));
    let is_killed = power.is_lost();
    drop((log, executor));
    let power = Power::new();
    let killed = log_medium.after_restart_as(Loss::Seeded(seed), &power);
    power.fail_write(opening_nth);
    let device: SharedDevice = Arc::new(killed.clone());
    drop(try_open(&mut Executor::in_order(), &device, &origin, options.clone()));
    let (mut executor, device): (_, SharedDevice) = (Executor::in_order(), Arc::new(killed.after_power_loss()));
    let context = format!("seed {seed}, killed at {nth}, power lost at {opening_nth} of the opening");
    let log = try_open(&mut executor, &device, &origin, options).unwrap_or_else(|error| panic!("{context}: {error}"));
    for block in 0..4 {
        let bytes = read(&mut executor, log.as_ref(), block * 4096, 4096);
        assert!(bytes == [block as u8 + 1; 4096], "{context}: block {block}");
    }
    is_killed
}

#[test]
fn what_a_killed_program_left_in_the_cache_of_the_logs_device_is_durable_before_an_opening_relies_on_it() {
    let test = block::crash_test!().of_few_crashes(2);
    for seed in test.seeds(1, 60, 1) {
        test.crash_at_every(seed, 100, |nth| (0..2).all(|at| is_killed_and_then_loses_power(seed, nth, at)));
    }
}

#[test]
fn bytes_only_the_log_had_are_an_error_and_never_the_origins_old_ones() {
    let mut bench = Bench::new(|options| {
        options.level2.idle = std::time::Duration::from_secs(3600);
        options.level2.age_max = std::time::Duration::from_secs(3600);
        options.level2.share_start = 0.9;
    });
    bench.write(0, 1).unwrap();
    bench.write(8192, 2).unwrap();
    bench.log_medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
    let reading = bench.log.read(0, Buffer::zeroed(4096));
    let error = bench.executor.block_on(reading).expect_err("it cannot be read");
    assert_eq!(error.kind(), ErrorKind::Media);
    assert!(error.to_string().contains("bytes 0..4096"), "{error}");
    bench.write(0, 3).expect("what is written again is there again");
    bench.log_medium.heal();
    assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 0, 4096), [3; 4096]);
    assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 8192, 4096), [2; 4096]);
}

/// Whenever the origin is flushed it holds exactly what was acknowledged at some moment: of every
/// sector the last write until then.
#[test]
fn order_log_leaves_the_origin_a_prefix_at_each_flush() {
    let mut bench = Bench::new(|options| options.level2.is_interruptible = false);
    let mut random = Random::new(3);
    // By block, the numbers of the writes to it; write n fills with n.
    let mut history: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut prefixes = 0;
    for number in 1..=200u8 {
        let block = random.below(24);
        bench.write(block * 4096, number).unwrap();
        history.entry(block).or_default().push(number);
        if random.chance(0.3) {
            bench.executor.run_until_stalled();
            let clock = bench.executor.clock();
            clock.advance(std::time::Duration::from_micros(random.below(1500)));
            bench.executor.run_until_stalled();
        }
        let held: Vec<u8> = (0..24).map(|block| bench.origin_medium.durable_bytes(block * 4096, 1)[0]).collect();
        let newest = held.iter().copied().max().unwrap_or(0);
        prefixes += usize::from(newest > 0);
        for (block, &held) in (0..24).zip(&held) {
            let writes = history.get(&block).map_or(&[][..], Vec::as_slice);
            let expected = writes.iter().copied().filter(|&number| number <= newest).max().unwrap_or(0);
            assert_eq!(held, expected, "block {block} when the origin has got write {newest} of {number}");
        }
    }
    assert!(prefixes > 20, "{prefixes} prefixes");
    write(&mut bench.executor, bench.log.as_ref(), 0, &[7; 512]);
}

const WRITERS: u64 = 3;
const BLOCKS: u64 = 48;
const ROUNDS: u8 = 30;

/// Writes each block over and over, and destages meanwhile.
async fn write_and_destage(log: Arc<WriteLog>, clock: impl Clock) {
    let is_written = AtomicBool::new(false);
    let write = async |writer: u64| {
        for round in 1..=ROUNDS {
            for block in (writer..BLOCKS).step_by(WRITERS as usize) {
                log.write(block * 4096, Buffer::copy_of(&[round; 4096]), false).await.expect("nothing fails");
            }
        }
    };
    let writes = async {
        join_all((0..WRITERS).map(write)).await;
        is_written.store(true, Ordering::Relaxed);
    };
    let destage = async {
        while !is_written.load(Ordering::Relaxed) {
            log.destage(|_| {}).await.expect("nothing fails");
            clock.sleep(Duration::from_micros(50)).await;
        }
    };
    join(writes, destage).await;
    log.close(false).await.expect("nothing fails");
}

/// A batch reads several segments, the last of them still being written: the newest data of a
/// sector when the first was read is not the newest when the last is.
#[test]
fn what_is_written_while_a_batch_is_read_reaches_the_origin_in_its_order() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(ORIGIN_BYTES, seed));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, Kind { order: DestageOrder::LastWriteFirst, ..KIND }, None);
        options.record_cache_bytes = 0;
        // Only the batches asked for, which take the oldest segments first, one after the other.
        let hour = Duration::from_secs(3600);
        options.level2 = Level2 {
            idle: hour,
            age_max: hour,
            share_start: 0.9,
            share_slow: 0.95,
            batch_bytes: LOG_BYTES,
            writes_in_flight: 1,
            ..options.level2
        };
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        let clock = executor.clock();
        executor.block_on(write_and_destage(log, clock));
        for block in 0..BLOCKS {
            assert_eq!(origin_medium.durable_bytes(block * 4096, 1), [ROUNDS], "block {block}, seed {seed}");
        }
    }
}

/// After a power loss the origin has, of every sector, a version that was written: all writes up to
/// some moment, and of later ones only those that one batch sends.
fn check_prefix(history: &HashMap<u64, Vec<u8>>, bytes: &[u8], batch_writes: u8, context: &str) {
    let (mut prefix, mut newest) = (u8::MAX, 0);
    for (index, sector) in bytes.chunks(512).enumerate() {
        let held = sector[0];
        let writes = history.get(&(index as u64 / 8)).map_or(&[][..], Vec::as_slice);
        assert!(
            held == 0 || writes.contains(&held),
            "{context}: sector {index} has {held}, which was never written there"
        );
        let next = writes.iter().copied().filter(|&number| number > held).min();
        prefix = prefix.min(next.map_or(u8::MAX, |next| next - 1));
        newest = newest.max(held);
    }
    assert!(
        newest <= prefix.saturating_add(batch_writes),
        "{context}: write {newest} is there, and {} is not",
        prefix + 1
    );
}

#[test]
fn order_log_leaves_the_origin_a_prefix_and_part_of_one_batch_when_the_power_fails() {
    let test = block::crash_test!().of_few_crashes(50);
    for seed in test.seeds(0, 1, 1) {
        test.crash_at_every(seed, 1000, |nth| leaves_a_prefix(seed, nth));
    }
}

/// Returns whether the origin gets to that write.
fn leaves_a_prefix(seed: u64, nth: u64) -> bool {
    // A batch is a segment of 64 KiB here, of records of 4.5 KiB; one more may be needed to its end.
    const BATCH_WRITES: u8 = 15;
    let mut bench = Bench::new(|options| options.level2.share_start = 0.0);
    let power = bench.origin_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let (mut random, mut history) = (Random::new(seed << 32 | nth), HashMap::<u64, Vec<u8>>::new());
    for number in 1..=200u8 {
        let block = random.below(24);
        history.entry(block).or_default().push(number);
        bench.write(block * 4096, number).unwrap();
        let clock = bench.executor.clock();
        clock.advance(Duration::from_micros(random.below(400)));
        bench.executor.run_until_stalled();
        if power.is_lost() {
            break;
        }
    }
    if !power.is_lost() {
        return false;
    }
    let after = bench.origin_medium.after_power_loss_as(Loss::Seeded(seed << 32 | nth), &Power::new());
    let bytes = after.durable_bytes(0, 24 * 4096);
    check_prefix(&history, &bytes, BATCH_WRITES, &format!("power lost at write {nth} of the origin"));
    true
}

#[test]
fn force_unit_access_goes_past_volatile_ram() {
    let mut bench = Bench::new(|options| options.durability = Durability::UnsafeVolatile);
    bench.write(0, 1).unwrap();
    let writing = bench.log.write(4096, Buffer::copy_of(&[2; 4096]), true);
    bench.executor.block_on(writing).unwrap();
    bench.log_medium = bench.log_medium.after_power_loss();
    let log = bench.reopen().unwrap();
    assert_eq!(read(&mut bench.executor, log.as_ref(), 4096, 4096), [2; 4096]);
}

/// A flush moves the data of a slot of volatile RAM; before that is in the log, newer data of the
/// same block comes into another slot.
#[test]
fn what_was_flushed_is_there_after_a_crash_though_newer_data_came_into_ram_meanwhile() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let kind = Kind { durability: Durability::UnsafeVolatile, order };
        let mut options = open_options(&executor, kind, None);
        only_when_asked(&mut options);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        write(&mut executor, log.as_ref(), 0, &[1; 512]);
        let flushing = log.submit(Request::flush());
        // The record is on its way.
        executor.run_until_stalled();
        let writing = log.submit(Request::write(0, Buffer::copy_of(&[2; 512]), false));
        let answers = executor.block_on(join_all([flushing, writing]));
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
        // A checkpoint stores it: the record itself is not replayed any more.
        let invalidating = Arc::clone(&log);
        executor.block_on(async move { invalidating.invalidate(&[], true).await }).expect("nothing fails");
        assert_eq!(read(&mut executor, log.as_ref(), 0, 512), [2; 512], "{order}");
        drop((log, executor));
        let mut executor = Executor::in_order();
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(log_medium.after_power_loss()), Arc::new(origin_medium.after_power_loss()));
        let options = open_options(&executor, kind, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        assert_eq!(read(&mut executor, log.as_ref(), 0, 512), [1; 512], "{order}");
    }
}

/// A LUN that publishes events.
struct Eventful {
    medium: CrashLayer,
    events: EventHub,
}

impl Device for Eventful {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn identity(&self) -> Identity {
        self.medium.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.medium.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }
}

/// The log is full, and no batch will ever make room.
#[test]
fn writes_that_wait_for_room_are_refused_when_the_lun_becomes_another_disk() {
    for durability in [Durability::Log, Durability::UnsafeVolatile] {
        let mut executor = Executor::in_order();
        let origin = Arc::new(Eventful { medium: CrashLayer::new(16 * ORIGIN_BYTES, 2), events: EventHub::new() });
        let (device, below): (SharedDevice, SharedDevice) = (Arc::new(CrashLayer::new(LOG_BYTES, 1)), origin.clone());
        format(&mut executor, &device, &below);
        let mut options = open_options(&executor, Kind { durability, ..KIND }, None);
        options.level2.pause_max = Duration::ZERO;
        let log = try_open(&mut executor, &device, &below, options).expect("nothing fails");
        origin.medium.fail_writes_from(0, ErrorKind::Gone);
        let writes = (0..300).map(|block| log.write(block * 8192, Buffer::copy_of(&[1; 4096]), false));
        let writes = writes.collect::<Vec<_>>();
        executor.run_until_stalled();
        origin.events.publish(&Event::IdentityChanged);
        let written = executor.block_on(join_all(writes));
        let refused = written.iter().filter(|result| result.is_err()).count();
        assert!((1..300).contains(&refused), "{durability}: {refused} of 300 found no room");
    }
}

/// The log is full of data that its device does not return: room can never be made, and none of the
/// data is dropped.
#[test]
fn writes_that_wait_for_room_are_refused_when_what_fills_the_log_cannot_be_read() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        for durability in [Durability::Log, Durability::UnsafeVolatile] {
            let kind = Kind { durability, order };
            let mut executor = Executor::in_order();
            let (medium, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(16 * ORIGIN_BYTES, 2));
            let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium.clone()), Arc::new(origin));
            format(&mut executor, &device, &origin);
            let mut options = open_options(&executor, kind, None);
            options.record_cache_bytes = 0;
            let log = try_open(&mut executor, &device, &origin, options.clone()).expect("nothing fails");
            medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
            let writes = (0..300).map(|block| log.write(block * 8192, Buffer::copy_of(&[1; 4096]), true));
            let (writes, clock) = (join_all(writes.collect::<Vec<_>>()), executor.clock());
            let written = executor.block_on(async move {
                let too_long = clock.sleep(Duration::from_secs(3600));
                match select(writes, pin!(too_long)).await {
                    Either::Left((written, _)) => Some(written),
                    Either::Right(_) => None,
                }
            });
            let written = written.unwrap_or_else(|| panic!("{kind:?}: somebody waits for ever"));
            let refused = written.iter().filter(|result| result.is_err()).count();
            assert!((1..300).contains(&refused), "{kind:?}: {refused} of 300 found no room");
            medium.heal();
            let mut executor = Executor::in_order();
            options.clock = Arc::new(executor.clock());
            let device: SharedDevice = Arc::new(medium.after_restart());
            let log = try_open(&mut executor, &device, &origin, options).expect("its device returns what it has");
            for (block, _) in (0..).zip(&written).filter(|(_, result)| result.is_ok()) {
                assert!(read(&mut executor, log.as_ref(), block * 8192, 4096) == [1; 4096], "{kind:?}: block {block}");
            }
        }
    }
}

/// Later data went to the origin all the same, and a checkpoint records that.
#[test]
fn what_was_not_returned_in_its_turn_is_there_when_a_later_opening_reads_it() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        bench.write(0, 1).unwrap();
        bench.log_medium.fail_reads_of(ByteRange { offset: 0, length: LOG_BYTES });
        let log = Arc::clone(&bench.log);
        bench.executor.block_on(async move { log.destage(|_| {}).await }).expect_err("it cannot be read");
        bench.log_medium.heal();
        bench.write(8192, 2).unwrap();
        assert_eq!(bench.close(false), Err(ErrorKind::Media), "{order}: it is lost until then");
        assert_eq!(bench.origin_medium.durable_bytes(8192, 1), [2], "{order}");
        bench.close(true).expect("it keeps what it has");
        bench.log = bench.reopen().expect("nothing fails");
        assert!(read(&mut bench.executor, bench.log.as_ref(), 0, 4096) == [1; 4096], "{order}");
        bench.close(false).expect("nothing fails");
        assert_eq!(bench.origin_medium.durable_bytes(0, 1), [1], "{order}");
    }
}

/// Write `failed_nth` of a checkpoint fails and does nothing: one of its pieces or of the copies of
/// the superblock. The failure is noted, and the power fails at write `lost_nth` of that. Returns
/// whether it got so far.
fn loses_power_while_a_failure_is_noted(seed: u64, failed_nth: u64, lost_nth: u64) -> bool {
    let mut executor = Executor::in_order();
    let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(ORIGIN_BYTES, seed));
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(log_medium.clone()), Arc::new(origin_medium));
    format(&mut executor, &device, &origin);
    let mut options = open_options(&executor, KIND, None);
    only_when_asked(&mut options);
    let log = try_open(&mut executor, &device, &origin, options.clone()).expect("nothing fails yet");
    (0..4).for_each(|block| write(&mut executor, log.as_ref(), block * 4096, &[block as u8 + 1; 4096]));
    let (failed_at, power) = (log_medium.writes_seen() + failed_nth, log_medium.power().clone());
    log_medium.fail_write_once(failed_at, ErrorKind::Media);
    // The two are apart by what failed: everything up to it has ended.
    power.fail_write(failed_at + 1 + lost_nth);
    let checkpointing = Arc::clone(&log);
    let noted = executor.block_on(async move { checkpointing.invalidate(&[], true).await });
    assert!(noted.is_err(), "no checkpoint has a write {failed_nth}");
    executor.run_until_stalled();
    let is_lost = power.is_lost();
    drop((log, executor));
    let (mut executor, device): (_, SharedDevice) = (Executor::in_order(), Arc::new(log_medium.after_power_loss()));
    let context = format!("seed {seed}, write {failed_nth} failed, power lost at {lost_nth} behind it");
    let log = try_open(&mut executor, &device, &origin, options).unwrap_or_else(|error| panic!("{context}: {error}"));
    for block in 0..4 {
        let bytes = read(&mut executor, log.as_ref(), block * 4096, 4096);
        assert!(bytes == [block as u8 + 1; 4096], "{context}: block {block}");
    }
    is_lost
}

/// Until a superblock is known to be durable either of the two checkpoints may be the one that counts.
#[test]
fn a_failure_is_noted_over_no_checkpoint_that_may_count() {
    let test = block::crash_test!().of_few_crashes(3);
    for seed in test.seeds(1, 10, 1) {
        test.crash_at_every(seed, 100, |lost_nth| {
            let lost = (0..3).map(|failed_nth| loses_power_while_a_failure_is_noted(seed, failed_nth, lost_nth));
            lost.fold(false, |any, is_lost| any | is_lost)
        });
    }
}

/// Destages only when asked to.
fn only_when_asked(options: &mut OpenOptions) {
    let hour = Duration::from_secs(3600);
    options.level2 = Level2 { idle: hour, age_max: hour, share_start: 0.9, share_slow: 0.95, ..options.level2 };
}

#[test]
fn a_damaged_record_is_lost_by_name_and_never_sent() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.order = order;
        });
        (0..5).for_each(|block| bench.write(block * 4096, block as u8 + 1).unwrap());
        let bytes = bench.log_medium.durable_bytes(0, LOG_BYTES as usize);
        let damaged = bytes.windows(4096).position(|window| window == [3; 4096]).expect("it is in the log");
        bench.log_medium.corrupt(damaged as u64 + 1000, &[0xff]);
        assert_eq!(bench.close(false), Err(ErrorKind::Media), "{order}");
        let at_origin = (0..5).map(|block| bench.origin_medium.durable_bytes(block * 4096, 1)[0]).collect::<Vec<_>>();
        assert_eq!(at_origin, [1, 2, 0, 4, 5], "{order}");
        assert_eq!(bench.log.status().lost_bytes, 4096);
        let reading = bench.log.read(2 * 4096, Buffer::zeroed(4096));
        assert_eq!(bench.executor.block_on(reading).expect_err("it is lost").kind(), ErrorKind::Media);
    }
}

/// Discards at distinct places until a checkpoint has no room for another: batches of nothing but
/// zeroes make room.
#[test]
fn changes_that_wait_for_room_in_the_checkpoint_go_on() {
    for order in [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst] {
        let mut executor = Executor::new(1);
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(16 * ORIGIN_BYTES, 1));
        let (device, origin) = slow_devices(&mut executor, &log_medium, &origin_medium);
        format(&mut executor, &device, &origin);
        let options = open_options(&executor, Kind { order, ..KIND }, None);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        executor.block_on(async move {
            let discard = |index: u64| log.write_zeroes(index * 1024, 512, false, true);
            stream::iter(0..4000).map(discard).buffer_unordered(64).for_each(|result| async { result.unwrap() }).await;
            log.close(false).await.expect("nothing fails");
        });
    }
}

/// The slots of a round are lost; the part of it that had reached the log is an epoch without an
/// end.
#[test]
fn an_epoch_that_was_cut_off_with_volatile_ram_is_destaged() {
    let test = block::crash_test!().of_few_crashes(2);
    for seed in test.seeds(0, 1, 1) {
        test.crash_at_every(seed, 100, |nth| cuts_an_epoch_off(seed, nth));
    }
}

/// Returns whether the log device gets to that write.
fn cuts_an_epoch_off(seed: u64, nth: u64) -> bool {
    let mut bench = Bench::new(|options| {
        only_when_asked(options);
        options.durability = Durability::UnsafeVolatile;
        options.volatile_bytes = 160 << 10;
    });
    let power = bench.log_medium.power().clone();
    power.fail_write(power.writes_seen() + nth);
    let log = Arc::clone(&bench.log);
    bench.executor.block_on(async move {
        for block in 0..30 {
            let _ = log.write(block * 4096, Buffer::copy_of(&[7; 4096]), false).await;
        }
        let _ = log.flush().await;
    });
    if !power.is_lost() {
        return false;
    }
    bench.log_medium = bench.log_medium.after_power_loss_as(Loss::Seeded(seed << 32 | nth), &Power::new());
    let log = bench.reopen().unwrap();
    let bytes = read(&mut bench.executor, log.as_ref(), 0, ORIGIN_BYTES);
    bench.executor.block_on(async move { log.close(false).await }).expect("all of it can be brought to the origin");
    assert_eq!(bench.origin_medium.durable_bytes(0, ORIGIN_BYTES as usize), bytes);
    true
}

const ORDERS: [DestageOrder; 3] = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst];

/// The log has an older copy of data that a flush brings past it.
#[test]
fn what_is_flushed_past_a_failed_log_is_not_undone_by_the_next_start() {
    for order in ORDERS {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            (options.durability, options.order) = (Durability::UnsafeVolatile, order);
            // Otherwise a write is too large for slots.
            options.volatile_bytes = 128 << 10;
        });
        let flush = |bench: &mut Bench| bench.executor.block_on(bench.log.flush()).expect("the origin takes it");
        bench.write(0, 1).unwrap();
        flush(&mut bench);
        bench.write(0, 2).unwrap();
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        flush(&mut bench);
        assert!(bench.log.status().failure.is_some(), "{order}");
        bench.origin_medium = bench.origin_medium.after_power_loss();
        assert_eq!(bench.origin_medium.durable_bytes(0, 1), [2], "{order}");
        let after = bench.log_medium.after_power_loss();
        let log = bench.open_on(&after).expect("the log device works again");
        assert_eq!(read(&mut bench.executor, log.as_ref(), 0, 4096), [2; 4096], "{order}");
    }
}

#[test]
fn a_failed_log_that_has_what_the_lun_lacks_says_so_when_it_is_closed() {
    let mut bench = Bench::new(only_when_asked);
    bench.write(0, 1).unwrap();
    bench.origin_medium.fail_writes_from(bench.origin_medium.writes_seen(), ErrorKind::Gone);
    bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
    assert!(bench.write(4096, 2).is_err(), "nobody takes it");
    assert_eq!(bench.close(true), Err(ErrorKind::Media));
}

/// No client flushes or writes any more.
#[test]
fn what_is_in_slots_when_the_log_fails_is_brought_to_the_origin() {
    for durability in [Durability::Nvram, Durability::UnsafeVolatile] {
        let mut bench = Bench::new(|options| {
            options.durability = durability;
            options.nvram = (durability == Durability::Nvram).then(|| Arc::new(VolatileRegion::new(64 << 10)) as _);
        });
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        bench.write(0, 1).unwrap();
        for _ in 0..1000 {
            bench.executor.run_until_stalled();
            bench.executor.clock().advance(Duration::from_millis(1));
        }
        assert!(bench.log.status().failure.is_some(), "level 1 has met it");
        assert_eq!(bench.origin_medium.durable_bytes(0, 4096), [1; 4096], "{durability}");
    }
}

/// After a crash a slot comes back as a whole, also where the rest of it alone is still needed.
#[test]
fn what_goes_past_a_failed_log_is_not_undone_by_a_slot_of_which_it_is_a_part() {
    let kind = Kind { durability: Durability::Nvram, order: DestageOrder::Lba };
    for is_zeroed in [false, true] {
        let region = Arc::new(VolatileRegion::new(64 << 10));
        let nvram = || Some(Arc::clone(&region) as Arc<dyn PersistentRegion>);
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            (options.durability, options.order, options.nvram) = (kind.durability, kind.order, nvram());
        });
        bench.write(0, 1).unwrap();
        bench.log_medium.fail_write_once(bench.log_medium.writes_seen(), ErrorKind::Media);
        // Too large for slots.
        let large = bench.log.write(128 << 10, Buffer::copy_of(&[7; 16 << 10]), true);
        // The origin refuses the slots, which are brought there first, once.
        bench.origin_medium.fail_write_once(bench.origin_medium.writes_seen(), ErrorKind::Gone);
        bench.executor.block_on(large).expect("the origin takes it");
        assert!(bench.log.status().failure.is_some());
        assert!(bench.log.status().dirty_bytes >= 4096, "they are still there");
        if is_zeroed {
            let zeroing = bench.log.write_zeroes(512, 512, true, false);
            bench.executor.block_on(zeroing).expect("the origin takes it");
        } else {
            let writing = bench.log.write(512, Buffer::copy_of(&[2; 512]), true);
            bench.executor.block_on(writing).map(drop).expect("the origin takes it");
        }
        let expected = |at: usize| if at / 512 == 1 { if is_zeroed { 0 } else { 2 } } else { 1 };
        bench.origin_medium = bench.origin_medium.after_power_loss();
        let after = bench.log_medium.after_power_loss();
        let (device, origin) = (Arc::new(after), Arc::new(bench.origin_medium.clone()));
        let (device, origin): (SharedDevice, SharedDevice) = (device, origin);
        let options = open_options(&bench.executor, kind, nvram());
        let log = try_open(&mut bench.executor, &device, &origin, options).expect("the log device works again");
        let found = read(&mut bench.executor, log.as_ref(), 0, 4096);
        let sectors: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
        let expected: Vec<u8> = (0..8).map(|sector| expected(sector * 512)).collect();
        assert_eq!(sectors, expected, "zeroed: {is_zeroed}");
    }
}

#[test]
fn a_close_that_the_origin_tells_of_an_earlier_write_tries_again() {
    let mut bench = Bench::new(|_| {});
    // The background task has met the failure already, and waits.
    bench.origin_medium.fail_flush_as(0, ErrorKind::Media, FlushEffect::None, Reported::ForGood);
    bench.write(0, 1).unwrap();
    assert_eq!(bench.log.status().dirty_bytes, 4096);
    bench.origin_medium.heal();
    bench.origin_medium.fail_flush_once(bench.origin_medium.flushes_seen(), ErrorKind::Media);
    bench.close(false).expect("the second time it is flushed");
    assert_eq!(bench.log.status().dirty_bytes, 0);
    assert_eq!(bench.origin_medium.durable_bytes(0, 4096), [1; 4096]);
}

/// One close waits until all is destaged; another that keeps dirty data overtakes it. Of a batch of
/// many writes that are sent one after the other some are not sent yet then.
#[test]
fn nothing_is_sent_behind_a_close_that_keeps_what_is_dirty() {
    const ONE: u64 = 4096;
    const MANY: u64 = 64 << 10;
    for (order, is_close, batch_bytes) in [
        (DestageOrder::Log, false, ONE),
        (DestageOrder::Lba, false, ONE),
        (DestageOrder::Lba, true, ONE),
        (DestageOrder::Lba, false, MANY),
        (DestageOrder::LastWriteFirst, true, MANY),
    ] {
        let mut executor = Executor::in_order();
        let (log_medium, origin_medium) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(ORIGIN_BYTES, 2));
        let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(5)));
        let slow = origin_medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(log_medium.clone()), Arc::new(slow));
        format(&mut executor, &device, &origin);
        let mut options = open_options(&executor, Kind { order, ..KIND }, None);
        only_when_asked(&mut options);
        (options.level2.batch_bytes, options.level2.seek_bytes) = (batch_bytes, 0);
        let log = try_open(&mut executor, &device, &origin, options).expect("nothing fails");
        // Not adjacent in the batch of many: each is a write of its own.
        let stride = if batch_bytes == ONE { 1 } else { 2 };
        (0..60 / stride).for_each(|block| write(&mut executor, log.as_ref(), block * stride * 4096, &[1; 4096]));
        let (asked, clock) = (Arc::clone(&log), executor.clock());
        executor.spawn(async move {
            let asked = if is_close { asked.close(false).await } else { asked.destage(|_| {}).await };
            assert!(asked.is_err(), "some of it stays dirty");
        });
        executor.block_on(async move { clock.sleep(Duration::from_millis(12)).await });
        let closing = Arc::clone(&log);
        executor.block_on(async move { closing.close(true).await }).expect("nothing fails");
        let sent = origin_medium.writes_seen();
        executor.run();
        let context = format!("{order}, batches of {batch_bytes} bytes");
        assert!(log.status().dirty_bytes > 0, "{context}");
        assert_eq!(origin_medium.writes_seen(), sent, "{context}: the log may be open elsewhere by now");
        let refused = executor.block_on(log.read(0, Buffer::zeroed(4096))).map(drop);
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Gone), "{context}");
    }
}

#[test]
fn what_others_change_is_read_anew_where_only_a_clean_copy_is_here() {
    let range = ByteRange { offset: 0, length: 8192 };
    for (event, record_cache_bytes) in
        [(Event::Invalidated(range), 0), (Event::Invalidated(range), 48 << 10), (Event::Missed, 0)]
    {
        let mut bench = Bench::new(|options| {
            only_when_asked(options);
            options.record_cache_bytes = record_cache_bytes;
        });
        bench.write(0, 1).unwrap();
        let destaging = Arc::clone(&bench.log);
        bench.executor.block_on(async move { destaging.destage(|_| {}).await }).unwrap();
        bench.write(4096, 3).unwrap();
        let medium = bench.origin_medium.clone();
        bench.executor.block_on(medium.write(0, Buffer::copy_of(&[9; 8192]), true)).unwrap();
        assert_eq!(read(&mut bench.executor, bench.log.as_ref(), 0, 512), [1; 512], "nobody said anything yet");
        medium.publish(&event);
        bench.executor.run_until_stalled();
        let found = read(&mut bench.executor, bench.log.as_ref(), 0, 8192);
        assert_eq!((found[0], found[4096]), (9, 3), "{event:?}: what is dirty stays");
    }
}
