//! Failures of the log device: what it refuses is not acknowledged, and what only it has is not lost.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power, Reported, WriteEffect};
use block::{Device, ErrorKind, Request, SharedDevice};
use common::bench::{Bench, KIND, LOG_BYTES, ORIGIN_BYTES, only_when_asked, slow_devices};
use common::{format, open_options, read, try_open, write};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use writelog::{DestageOrder, Durability, VolatileRegion, WriteLog};

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

fn join_all_in<F: Future<Output = Result<Buffer, block::Error>> + Send + 'static>(
    executor: &mut Executor,
    writes: [F; 2],
) {
    let written = executor.block_on(join_all(writes));
    written.into_iter().for_each(|result| drop(result.expect("the origin takes it")));
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

/// Records, checkpoints, superblocks: the log device refuses any of its writes, once or from then
/// on. A request that is never answered ends the executor.
#[test]
fn nobody_waits_for_ever_whichever_write_of_the_log_fails() {
    let test = block::crash_test!().of_few_crashes(30);
    for seed in test.seeds(1, 3, 1) {
        test.crash_at_every(seed, 1000, |nth| writes_with_a_failure(seed, nth, seed % 2 == 0));
    }
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

#[test]
fn what_a_killed_program_left_in_the_cache_of_the_logs_device_is_durable_before_an_opening_relies_on_it() {
    let test = block::crash_test!().of_few_crashes(2);
    for seed in test.seeds(1, 60, 1) {
        test.crash_at_every(seed, 100, |nth| (0..2).all(|at| is_killed_and_then_loses_power(seed, nth, at)));
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
