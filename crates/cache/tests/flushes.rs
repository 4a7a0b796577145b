//! Which writes a flush of the cache covers, and which errors of the origin it returns.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{Device, ErrorKind, Event, Request, SharedDevice};
use cache::{CrashMode, FormatOptions, Mode, OpenOptions};
use common::{close, format, format_options, made, open, open_options, read, try_open, write};

const LINE: u64 = 4096;

/// The LUN keeps its power, and its volatile cache, while the cache's program is killed and started again.
#[test]
fn a_flush_covers_what_was_acknowledged_before_a_restart() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, CrashMode::default());
        let cache = open(&mut executor, &device, &origin, mode);
        write(&mut executor, &cache, 0, &[7; LINE as usize]);
        drop((cache, executor));
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &device, &origin, mode);
        executor.block_on(cache.flush()).unwrap();
        let after = medium.after_power_loss_as(Loss::All, &Power::new());
        assert_eq!(after.durable_bytes(0, LINE as usize), vec![7; LINE as usize], "{mode}");
    }
}

/// Clients of write-back need not flush: the cache flushes what was acknowledged before the mode
/// was set.
#[test]
fn what_was_acknowledged_before_a_restart_is_durable_when_the_cache_is_open_in_write_back() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let origin: SharedDevice = Arc::new(medium.clone());
    let device = made(&mut executor, &origin, CrashMode::default());
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[7; LINE as usize]);
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let _cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    let after = medium.after_power_loss_as(Loss::All, &Power::new());
    assert_eq!(after.durable_bytes(0, LINE as usize), vec![7; LINE as usize]);
}

/// The origin reports a failed flush once. The client whose write is at stake has to get the error.
#[test]
fn an_error_of_a_flush_that_nobody_asked_for_is_told_to_the_next_who_does() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let origin: SharedDevice = Arc::new(medium.clone());
    let device = made(&mut executor, &origin, CrashMode::Warm);
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    medium.fail_flush_once(medium.flushes_seen(), ErrorKind::Media);
    write(&mut executor, &cache, 0, &[7; LINE as usize]);
    // Clean lines are stored: the flush before that takes the error.
    executor.run();
    assert!(executor.block_on(cache.flush()).is_err(), "the write before it may be lost");
}

/// Clients of write-back do not flush: the error would never reach them.
#[test]
fn a_cache_does_not_change_to_write_back_before_a_client_has_been_told_what_a_flush_may_have_lost() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let origin: SharedDevice = Arc::new(medium.clone());
    let device = made(&mut executor, &origin, CrashMode::Warm);
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    medium.fail_flush_once(medium.flushes_seen(), ErrorKind::Media);
    write(&mut executor, &cache, 0, &[7; LINE as usize]);
    // Clean lines are stored: the flush before that takes the error.
    executor.run();
    let mut change = || {
        let changing = Arc::clone(&cache);
        executor.block_on(async move { changing.set_mode(Mode::WriteBack).await }).map_err(|error| error.kind())
    };
    assert_eq!([change(), change()], [Err(ErrorKind::Media), Err(ErrorKind::Media)]);
    assert!(executor.block_on(cache.flush()).is_err(), "now it is told");
    let changing = Arc::clone(&cache);
    executor.block_on(async move { changing.set_mode(Mode::WriteBack).await }).expect("and nothing is in the way");
}

/// After a close no client flushes: the error reaches whoever closes, once more if it is closed
/// twice. It does not keep the cache from being closed.
#[test]
fn a_close_tells_what_a_flush_may_have_lost_unless_a_client_has_been_told() {
    for is_told_before in [false, true] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, CrashMode::Warm);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        write(&mut executor, &cache, 0, &[7; LINE as usize]);
        // Clean lines are stored: the flush before that takes the error.
        executor.run();
        assert!(cache.untold_loss().is_none(), "it goes on");
        if is_told_before {
            assert!(executor.block_on(cache.flush()).is_err());
        }
        let expected = if is_told_before { Ok(()) } else { Err(ErrorKind::Media) };
        for nth in ["first", "second"] {
            let closing = Arc::clone(&cache);
            let closed = executor.block_on(async move { closing.close(false).await });
            assert_eq!(closed.map_err(|error| error.kind()), expected, "the {nth}, told before: {is_told_before}");
            let untold = cache.untold_loss().map_or(Ok(()), |error| Err(error.kind()));
            assert_eq!(untold, expected, "the {nth}, told before: {is_told_before}");
        }
        drop((cache, executor));
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        assert!(cache.status().recovery.was_closed, "told before: {is_told_before}");
        let held = read(&mut executor, &cache, 0, LINE);
        assert_eq!(held, medium.durable_bytes(0, LINE as usize), "told before: {is_told_before}");
    }
}

/// What the LUN lost may have been acknowledged by it, and from now on no client flushes.
#[test]
fn a_loss_that_is_told_while_the_mode_changes_to_write_back_is_told_to_clients() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 20, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let medium = CrashLayer::new(1 << 20, 2);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, CrashMode::default());
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        let events = cache.subscribe();
        write(&mut executor, &cache, 0, &[7; LINE as usize]);
        medium.lose_cache();
        let changing = Arc::clone(&cache);
        executor.block_on(async move { changing.set_mode(Mode::WriteBack).await }).expect("nothing fails");
        executor.run_until_stalled();
        let mut told = std::iter::from_fn(|| events.try_receive());
        assert!(told.any(|event| event == Event::WritesLost), "seed {seed}");
    }
}

/// The flush was under way when the line became valid, so it may not have covered it. Everything
/// else is flushed, and no client asks for another flush.
#[test]
fn a_line_that_became_valid_during_a_flush_is_stored_behind_another_one() {
    let mut executor = Executor::in_order();
    let (workers, ms) = (Workers::new(), Duration::from_millis);
    let (device_medium, origin_medium) = (CrashLayer::new(1 << 20, 1), CrashLayer::new(1 << 20, 2));
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let over = |medium: &CrashLayer, delays| -> SharedDevice {
        Arc::new(DelayLayer::new(Arc::new(medium.clone()), Arc::clone(&clock), &workers, delays, 1))
    };
    let device = over(&device_medium, Delays { write: Latency::Fixed(ms(10)), ..Delays::default() });
    let origin = over(&origin_medium, Delays { flush: Latency::Fixed(ms(50)), ..Delays::default() });
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    format(&mut executor, &device, &origin, FormatOptions { crash_mode: CrashMode::Warm, ..format_options() });
    let options = OpenOptions { lazy_interval: ms(100), ..open_options(&executor, Mode::WriteThrough) };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    write(&mut executor, &cache, 0, &[7; LINE as usize]);
    let flushed = Arc::clone(&cache);
    executor.block_on(async move {
        clock.sleep(ms(5)).await;
        assert_eq!(flushed.status().valid_bytes, 0, "it is on its way to the device");
        flushed.flush().await.expect("nothing fails");
        clock.sleep(ms(1000)).await;
    });
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let survivor =
        |medium: CrashLayer| -> SharedDevice { Arc::new(medium.after_power_loss_as(Loss::All, &Power::new())) };
    let cache = open(&mut executor, &survivor(device_medium), &survivor(origin_medium), Mode::WriteThrough);
    assert_eq!(cache.status().valid_bytes, LINE, "it is warm");
    assert_eq!(read(&mut executor, &cache, 0, LINE), [7; LINE as usize]);
}

/// The cache sends a dirty line, which takes 10 ms, and flushes the LUN, which takes 10 ms and
/// fails. The flush may have dropped a client's change that the LUN acknowledged meanwhile, or had
/// in flight; no other client data is at stake.
#[test]
fn a_change_under_way_while_a_flush_of_the_cache_fails_is_told_to_whoever_flushes_it() {
    let changes: [fn() -> Request; 3] = [
        || Request::write(8 * LINE, Buffer::copy_of(&[7; LINE as usize]), false),
        || Request::write_zeroes(8 * LINE, LINE, false, true),
        || Request::discard(8 * LINE, LINE),
    ];
    for (change, submitted_ms) in changes.into_iter().flat_map(|change| [(change, 5), (change, 15)]) {
        let mut executor = Executor::in_order();
        let clock = executor.clock();
        let workers = Workers::new();
        let latency = Latency::Fixed(Duration::from_millis(10));
        let medium = CrashLayer::new(1 << 20, 2).with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, CrashMode::default());
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        write(&mut executor, &cache, 0, &[1; LINE as usize]);
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        let cleaning = Arc::clone(&cache);
        executor.spawn(async move { drop(cleaning.set_mode(Mode::WriteThrough).await.unwrap_err()) });
        executor.block_on(async move { clock.sleep(Duration::from_millis(submitted_ms)).await });
        let request = change();
        let kind = request.operation.kind();
        executor.block_on(cache.submit(request)).result.expect("nothing else fails");
        executor.run_until_stalled();
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_millis(10)).await });
        assert!(executor.block_on(cache.flush()).is_err(), "{kind:?} submitted after {submitted_ms} ms");
    }
}

/// Data that a flush has dropped is no longer on the origin: no line may go on serving it, in any
/// crash mode, and none is warm with it after a close.
#[test]
fn what_a_failed_flush_dropped_is_not_served_from_clean_lines() {
    // The fourth crash mode flushes by itself.
    for crash_mode in [CrashMode::DiscardAll, CrashMode::DirtySynchronous, CrashMode::Warm] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 3);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, crash_mode);
        let slow =
            OpenOptions { lazy_interval: Duration::from_secs(3600), ..open_options(&executor, Mode::WriteThrough) };
        let cache = try_open(&mut executor, &device, &origin, slow).unwrap();
        executor.block_on(cache.flush()).unwrap();
        (0..8).for_each(|line| write(&mut executor, &cache, line * LINE, &[7; LINE as usize]));
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        assert!(executor.block_on(cache.flush()).is_err(), "whoever wrote is told");
        let there = read(&mut executor, &origin, 0, 8 * LINE);
        assert_ne!(there, vec![7; 8 * LINE as usize], "something was dropped");
        assert_eq!(read(&mut executor, &cache, 0, 8 * LINE), there, "crash mode {crash_mode}");
        close(&mut executor, &cache, false);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        assert_eq!(read(&mut executor, &cache, 0, 8 * LINE), there, "crash mode {crash_mode}, opened again");
    }
}

/// A LUN that fails a flush may drop what it had acknowledged. A copy of that is no copy of the LUN any more, whatever
/// the cache keeps over a crash.
#[test]
fn what_a_flush_that_failed_may_have_dropped_is_not_served_as_if_the_lun_had_it() {
    const LINES: u64 = 16;
    for crash_mode in CrashMode::ALL {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, crash_mode);
        let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
        read(&mut executor, &cache, 0, LINES / 2 * LINE);
        executor.run();
        executor.block_on(cache.flush()).unwrap();
        // With "all" every write is durable on the LUN, and nothing is left to lose.
        let has_stake = crash_mode != CrashMode::AllSynchronous;
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::Drops, Reported::Once);
        // One half goes into resident lines, the other into new ones.
        for line in 0..LINES {
            write(&mut executor, &cache, line * LINE, &[7; LINE as usize]);
        }
        executor.run_until_stalled();
        assert_eq!(executor.block_on(cache.flush()).is_err(), has_stake, "{crash_mode}");
        let left = read(&mut executor, &origin, 0, LINES * LINE);
        let is_something_lost = left.iter().any(|&byte| byte != 7);
        assert_eq!(is_something_lost, has_stake, "{crash_mode}");
        let differs = |found: Vec<u8>| found.iter().zip(&left).position(|(found, left)| found != left);
        assert_eq!(differs(read(&mut executor, &cache, 0, LINES * LINE)), None, "{crash_mode}");
        executor.run();
        assert_eq!(differs(read(&mut executor, &cache, 0, LINES * LINE)), None, "{crash_mode}: read again");
    }
}

/// The flush of a write fails and drops its data. The LUN shows the data until it loses its power,
/// and later flushes succeed, as with pages that Linux could not write. The cache reads it
/// meanwhile.
#[test]
fn what_the_lun_shows_after_a_flush_that_failed_is_not_clean_over_a_restart() {
    for (mode, crash_mode) in [
        (Mode::WriteThrough, CrashMode::Warm),
        (Mode::WriteAround, CrashMode::Warm),
        (Mode::WriteAround, CrashMode::DirtySynchronous),
    ] {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let origin: SharedDevice = Arc::new(medium.clone());
        let device = made(&mut executor, &origin, crash_mode);
        let cache = open(&mut executor, &device, &origin, mode);
        executor.block_on(cache.flush()).unwrap();
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
        write(&mut executor, &cache, 0, &[7; LINE as usize]);
        executor.block_on(cache.flush()).unwrap_err();
        for _ in 0..3 {
            assert_eq!(read(&mut executor, &cache, 0, LINE), [7; LINE as usize], "the LUN shows it");
        }
        executor.block_on(cache.flush()).unwrap();
        executor.run();
        close(&mut executor, &cache, false);
        drop((cache, executor));

        let after: SharedDevice = Arc::new(medium.after_power_loss_as(Loss::All, &Power::new()));
        let mut executor = Executor::in_order();
        let there = read(&mut executor, &after, 0, LINE);
        assert!(there.contains(&0), "some of it was dropped");
        let cache = open(&mut executor, &device, &after, mode);
        assert!(read(&mut executor, &cache, 0, LINE) == there, "{mode} {crash_mode}");
    }
}
