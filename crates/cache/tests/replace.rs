//! A successor takes the place of a cache while requests go on: no acknowledged write is lost,
//! whatever fails, and warm lines stay warm.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::stats::StatsLayer;
use block::layer::switch::SwitchLayer;
use block::{Device, Error, ErrorKind, Event, Geometry, OperationKind, Request, SharedDevice};
use cache::{Alignment, Associativity, Cache, CrashMode, FormatOptions, Mode, OpenOptions, Replacement, Tuning};
use common::{format, format_options, memory, open, open_options, read, try_open, write};
use futures_util::FutureExt;

const LINE: u64 = 4096;
const ORIGIN_BYTES: u64 = 48 * LINE + 512;

fn options_of(number: u8, ways: u32, frames: u64) -> FormatOptions {
    FormatOptions {
        uuid: Some(uuid::Uuid::from_bytes([number; 16])),
        associativity: Associativity::Ways(ways),
        frames_max: Some(frames),
        // A successor's lines may begin elsewhere.
        alignment: Alignment::At(u64::from(number % 2) * 1536),
        log_bytes: Some(16 << 10),
        ..format_options()
    }
}

/// Opens a successor of `old`.
fn open_successor(
    executor: &mut Executor,
    old: &Arc<Cache>,
    device: &SharedDevice,
    origin: &SharedDevice,
    mode: Mode,
) -> Arc<Cache> {
    let (old, options) = (Arc::clone(old), open_options(executor, mode));
    let (device, origin) = (Arc::clone(device), Arc::clone(origin));
    let opened = executor.block_on(async move { old.open_successor(device, origin, options).await.unwrap() });
    executor.spawn(opened.run());
    opened
}

/// Copies, hands over, and sends requests to the successor.
async fn replace(old: Arc<Cache>, new: Arc<Cache>, switch: Arc<SwitchLayer>) -> Result<(), Error> {
    old.copy_to(&new, |_| {}).await?;
    switch.hold();
    match old.hand_over(&new).await {
        Ok(hand_over) => {
            switch.release(Some(new));
            hand_over.finish();
            Ok(())
        }
        Err(error) => {
            switch.release(None);
            Err(error)
        }
    }
}

#[test]
fn a_successor_is_warm_and_has_what_is_dirty() {
    for (frames, ways) in [(200, 10), (100, 100), (60, 4)] {
        let mut executor = Executor::in_order();
        let medium = memory(ORIGIN_BYTES);
        write(&mut executor, &medium, 0, &[7; ORIGIN_BYTES as usize]);
        let origin = Arc::new(StatsLayer::new(medium, Arc::new(executor.clock()), &Workers::new()));
        let shared: SharedDevice = origin.clone();
        let device = || memory(2 << 20);
        let (first, second) = (device(), device());
        format(&mut executor, &first, &shared, options_of(1, 8, 96));
        format(&mut executor, &second, &shared, options_of(2, ways, frames));
        let old = open(&mut executor, &first, &shared, Mode::WriteBack);
        old.set_replacement(Replacement::Clock);
        let switch = Arc::new(SwitchLayer::new(old.clone()));
        read(&mut executor, &switch, 0, 32 * LINE);
        executor.run();
        write(&mut executor, &switch, 3 * LINE + 512, &[9; 1024]);
        let new = open_successor(&mut executor, &old, &second, &shared, Mode::WriteThrough);
        let reads_before = origin.snapshot().of(OperationKind::Read).completed_count;
        let replacing = replace(Arc::clone(&old), Arc::clone(&new), Arc::clone(&switch));
        executor.block_on(replacing).unwrap();
        let status = new.status();
        assert_eq!((status.dirty_bytes, status.mode, status.replacement), (1024, Mode::WriteBack, Replacement::Clock));
        let mut expected = vec![7; 32 * LINE as usize];
        expected[3 * LINE as usize + 512..][..1024].fill(9);
        assert_eq!(read(&mut executor, &switch, 0, 32 * LINE), expected);
        assert_eq!(origin.snapshot().of(OperationKind::Read).completed_count, reads_before, "{frames} frames are warm");
        assert_eq!(executor.block_on(old.read(0, Buffer::zeroed(512))).unwrap_err().kind(), ErrorKind::Gone);
        executor.block_on(async move { new.close(false).await.unwrap() });
        assert_eq!(read(&mut executor, &shared, 3 * LINE + 512, 1024), vec![9; 1024]);
    }
}

/// The line's data was read for the copy already, and the successor has nothing yet that it could
/// forget.
#[test]
fn what_is_written_while_its_line_is_copied_is_what_the_successor_has() {
    let mut executor = Executor::in_order();
    let (workers, origin) = (Workers::new(), memory(ORIGIN_BYTES));
    let delays = Delays { read: Latency::Fixed(Duration::from_millis(10)), ..Delays::default() };
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let first: SharedDevice = Arc::new(DelayLayer::new(memory(2 << 20), Arc::clone(&clock), &workers, delays, 1));
    let second = memory(2 << 20);
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    write(&mut executor, &old, 0, &[1; LINE as usize]);
    executor.run_until_stalled();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    let (from, to) = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move {
        let writing = async {
            clock.sleep(Duration::from_millis(5)).await;
            from.write(0, Buffer::copy_of(&[2; LINE as usize]), false).await.expect("nothing fails");
        };
        let (copied, ()) = futures_util::future::join(from.copy_to(&to, |_| {}), writing).await;
        copied.expect("nothing fails");
        from.hand_over(&to).await.expect("nothing fails").finish();
    });
    assert_eq!(read(&mut executor, &new, 0, LINE), [2; LINE as usize]);
}

/// The line's data was read for the copy already. The event reaches the successor as well, which
/// has nothing yet that it could forget.
#[test]
fn what_others_change_while_its_line_is_copied_is_what_the_successor_has() {
    let mut executor = Executor::in_order();
    let (workers, medium) = (Workers::new(), CrashLayer::new(ORIGIN_BYTES, 3));
    let delays = Delays { read: Latency::Fixed(Duration::from_millis(10)), ..Delays::default() };
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let first: SharedDevice = Arc::new(DelayLayer::new(memory(2 << 20), Arc::clone(&clock), &workers, delays, 1));
    let (second, origin): (SharedDevice, SharedDevice) = (memory(2 << 20), Arc::new(medium.clone()));
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    write(&mut executor, &old, 0, &[1; LINE as usize]);
    executor.run_until_stalled();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    let to = Arc::clone(&new);
    executor.block_on(async move {
        let changing = async {
            clock.sleep(Duration::from_millis(5)).await;
            medium.write(0, Buffer::copy_of(&[2; LINE as usize]), true).await.expect("nothing fails");
            medium.publish(&Event::Invalidated(ByteRange { offset: 0, length: LINE }));
        };
        let (copied, ()) = futures_util::future::join(old.copy_to(&to, |_| {}), changing).await;
        copied.expect("nothing fails");
        old.hand_over(&to).await.expect("nothing fails").finish();
    });
    assert!(read(&mut executor, &new, 0, LINE) == [2; LINE as usize]);
}

/// A line is compared with its checksum before it is copied.
#[test]
fn what_the_origin_loses_while_its_line_is_checked_the_successor_does_not_have() {
    let mut executor = Executor::in_order();
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let (workers, medium) = (Workers::new(), CrashLayer::new(ORIGIN_BYTES, 3).with_geometry(geometry));
    let delays = Delays { read: Latency::Fixed(Duration::from_millis(10)), ..Delays::default() };
    let clock: Arc<dyn Clock> = Arc::new(executor.clock());
    let first: SharedDevice = Arc::new(DelayLayer::new(memory(2 << 20), Arc::clone(&clock), &workers, delays, 1));
    let (second, origin): (SharedDevice, SharedDevice) = (memory(2 << 20), Arc::new(medium.clone()));
    executor.spawn(async move { workers.run().await });
    let options = FormatOptions { alignment: Alignment::At(0), has_checksums: true, ..options_of(1, 8, 96) };
    format(&mut executor, &first, &origin, options);
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    executor.block_on(old.flush()).unwrap();
    write(&mut executor, &old, 0, &[1; LINE as usize]);
    executor.run_until_stalled();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    let (to, losing) = (Arc::clone(&new), medium.clone());
    executor.block_on(async move {
        let losing = async {
            clock.sleep(Duration::from_millis(5)).await;
            losing.lose_cache();
        };
        let (copied, ()) = futures_util::future::join(old.copy_to(&to, |_| {}), losing).await;
        copied.expect("nothing fails");
        old.hand_over(&to).await.expect("nothing fails").finish();
    });
    let there = read(&mut executor, &medium, 0, LINE);
    assert!(there.contains(&0), "some of it is lost");
    assert!(read(&mut executor, &new, 0, LINE) == there);
}

/// The successor has counted a loss that the old cache has not noted yet: the lines copied then are
/// lost ones.
#[test]
fn what_the_origin_lost_before_a_line_is_copied_the_successor_does_not_have_though_it_heard_of_it_first() {
    let mut executor = Executor::in_order();
    let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
    let medium = CrashLayer::new(ORIGIN_BYTES, 3).with_geometry(geometry);
    let (first, second, origin): (_, _, SharedDevice) = (memory(2 << 20), memory(2 << 20), Arc::new(medium.clone()));
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    executor.block_on(old.flush()).unwrap();
    write(&mut executor, &old, 0, &[1; LINE as usize]);
    executor.run_until_stalled();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    let (to, losing) = (Arc::clone(&new), medium.clone());
    executor.block_on(async move {
        losing.lose_cache();
        // A flush looks for events first; no other task has had a turn.
        drop(to.submit(Request::flush()));
        old.copy_to(&to, |_| {}).await.expect("nothing fails");
        old.hand_over(&to).await.expect("nothing fails").finish();
    });
    let there = read(&mut executor, &medium, 0, LINE);
    assert!(there.contains(&0), "some of it is lost");
    assert!(read(&mut executor, &new, 0, LINE) == there);
}

/// A write of the old cache under way would arrive after those of the successor.
#[test]
fn a_cache_that_is_handed_over_has_nothing_on_its_way() {
    let mut executor = Executor::in_order();
    let (workers, slow) = (Workers::new(), Latency::Fixed(Duration::from_millis(50)));
    let delayed = CrashLayer::new(ORIGIN_BYTES, 3).with_latency(Arc::new(executor.clock()), slow, &workers);
    let origin = Arc::new(StatsLayer::new(Arc::new(delayed), Arc::new(executor.clock()), &workers));
    executor.spawn(async move { workers.run().await });
    let shared: SharedDevice = origin.clone();
    let (first, second) = (memory(2 << 20), memory(2 << 20));
    format(&mut executor, &first, &shared, options_of(1, 8, 96));
    format(&mut executor, &second, &shared, options_of(2, 40, 40));
    let old = open(&mut executor, &first, &shared, Mode::WriteBack);
    let new = open_successor(&mut executor, &old, &second, &shared, Mode::WriteBack);
    for line in 0..32 {
        write(&mut executor, &old, line * LINE, &[1; 512]);
    }
    let cleaning = Arc::clone(&old);
    executor.spawn(async move { drop(cleaning.clean(|_| {}).await) });
    let (clock, looking) = (executor.clock(), Arc::clone(&origin));
    let handing_over = async move {
        old.copy_to(&new, |_| {}).await.expect("nothing fails");
        clock.sleep(Duration::from_millis(20)).await;
        assert!(looking.snapshot().in_flight_count > 0, "a line is on its way");
        old.hand_over(&new).await.expect("nothing fails")
    };
    let hand_over = executor.block_on(handing_over);
    assert_eq!(origin.snapshot().in_flight_count, 0);
    hand_over.finish();
}

#[test]
fn a_successor_that_fails_is_left_behind() {
    let mut executor = Executor::in_order();
    let origin = memory(ORIGIN_BYTES);
    let first = memory(2 << 20);
    let medium = CrashLayer::new(2 << 20, 1);
    let second: SharedDevice = Arc::new(medium.clone());
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteBack);
    let switch = Arc::new(SwitchLayer::new(old.clone()));
    for line in 0..20 {
        write(&mut executor, &switch, line * LINE, &[line as u8; 512]);
    }
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteBack);
    let copying = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move { copying.0.copy_to(&copying.1, |_| {}).await.unwrap() });
    medium.fail_writes_from(medium.writes_seen() + 7, ErrorKind::Media);
    let handing = (Arc::clone(&old), Arc::clone(&new));
    assert!(executor.block_on(async move { handing.0.hand_over(&handing.1).await.is_err() }));
    assert_eq!(old.status().dirty_lines, 20, "nothing was lost");
    write(&mut executor, &switch, 0, &[77; 512]);
    let handing = (Arc::clone(&old), new);
    let again = executor.block_on(async move { handing.0.hand_over(&handing.1).await.is_err() });
    assert!(again, "it has not been told of what came since");
    let cleaning = Arc::clone(&old);
    executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    assert_eq!(read(&mut executor, &origin, 0, 512), vec![77; 512]);
    // For another disk, or the same cache: the copying is not even begun.
    let copying = Arc::clone(&old);
    let error = executor.block_on(async move { copying.copy_to(&copying, |_| {}).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// Until the hand-over is finished the old cache may go on, and what the successor had sent could
/// overtake later writes.
#[test]
fn a_successor_sends_nothing_to_the_origin_before_it_is_in_place() {
    for cutoff_bytes in [None, Some(0)] {
        let mut executor = Executor::in_order();
        let medium = memory(ORIGIN_BYTES);
        let origin = Arc::new(StatsLayer::new(Arc::clone(&medium), Arc::new(executor.clock()), &Workers::new()));
        let shared: SharedDevice = origin.clone();
        let device = || memory(2 << 20);
        let (first, second) = (device(), device());
        format(&mut executor, &first, &shared, options_of(1, 8, 96));
        format(&mut executor, &second, &shared, options_of(2, 40, 40));
        let old = open(&mut executor, &first, &shared, Mode::WriteBack);
        let new = open_successor(&mut executor, &old, &second, &shared, Mode::WriteBack);
        for line in 0..32 {
            write(&mut executor, &old, line * LINE, &[1; 512]);
        }
        old.set_tuning(Tuning { cutoff_bytes, ..Tuning::default() });
        let written = || origin.snapshot().of(OperationKind::Write).completed_count;
        let handing = (Arc::clone(&old), Arc::clone(&new));
        let hand_over = executor.block_on(async move {
            handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
            handing.0.hand_over(&handing.1).await.unwrap()
        });
        // Any notification that wakes its cleaner.
        new.set_dirty_limits(new.dirty_limits());
        executor.run();
        assert_eq!((written(), new.status().dirty_lines), (0, 32), "more is dirty than it would leave so");
        drop(hand_over);
        // The successor was not put in place: the old cache goes on, and what it sends is the
        // newest.
        write(&mut executor, &old, 0, &[2; 512]);
        let cleaning = Arc::clone(&old);
        executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
        executor.run();
        assert_eq!(read(&mut executor, &medium, 0, 512), vec![2; 512]);
        // The next one is finished, and cleans.
        let third = device();
        format(&mut executor, &third, &shared, options_of(3, 40, 40));
        let new = open_successor(&mut executor, &old, &third, &shared, Mode::WriteBack);
        old.set_tuning(Tuning::default());
        for line in 0..32 {
            write(&mut executor, &old, line * LINE, &[3; 512]);
        }
        let handing = (Arc::clone(&old), Arc::clone(&new));
        executor.block_on(async move {
            handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
            handing.0.hand_over(&handing.1).await.unwrap().finish();
        });
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_secs(5)).await });
        assert!(new.status().dirty_lines <= 20, "half of its lines, as usual");
    }
}

/// The mode would be set in a cache without users.
#[test]
fn a_mode_that_is_set_while_requests_wait_for_a_successor_is_refused() {
    let mut executor = Executor::in_order();
    let origin = memory(ORIGIN_BYTES);
    let device = || memory(2 << 20);
    let (first, second) = (device(), device());
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteBack);
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteBack);
    let handing = (Arc::clone(&old), Arc::clone(&new));
    let hand_over = executor.block_on(async move {
        handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
        handing.0.hand_over(&handing.1).await.unwrap()
    });
    let mut setting = Box::pin(async move { old.set_mode(Mode::WriteThrough).await });
    assert!((&mut setting).now_or_never().is_none());
    hand_over.finish();
    assert_eq!(executor.block_on(setting).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(new.mode(), Mode::WriteBack);
}

/// The caller of a hand-over may be stopped. What the successor sent to make room must not arrive
/// after later writes.
#[test]
fn a_successor_that_is_left_behind_has_nothing_on_its_way() {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let slow = Latency::Between(Duration::from_millis(50), Duration::from_millis(50));
    let delayed = CrashLayer::new(ORIGIN_BYTES, 3).with_latency(Arc::new(executor.clock()), slow, &workers);
    let origin = Arc::new(StatsLayer::new(Arc::new(delayed), Arc::new(executor.clock()), &workers));
    executor.spawn(async move { workers.run().await });
    let shared: SharedDevice = origin.clone();
    let device = || memory(2 << 20);
    let (first, second) = (device(), device());
    format(&mut executor, &first, &shared, options_of(1, 8, 96));
    format(&mut executor, &second, &shared, options_of(2, 16, 16));
    let old = open(&mut executor, &first, &shared, Mode::WriteBack);
    let new = open_successor(&mut executor, &old, &second, &shared, Mode::WriteBack);
    for line in 0..32 {
        write(&mut executor, &old, line * LINE, &[1; 512]);
    }
    let (handing, clock) = ((Arc::clone(&old), Arc::clone(&new)), executor.clock());
    let told_to_stop = executor.block_on(async move {
        handing.0.copy_to(&handing.1, |_| {}).await.unwrap();
        let handing_over = Box::pin(handing.0.hand_over(&handing.1));
        // In the middle of the first write that makes room.
        let stop = Box::pin(clock.sleep(Duration::from_millis(20)));
        matches!(futures_util::future::select(handing_over, stop).await, futures_util::future::Either::Right(_))
    });
    assert!(told_to_stop && origin.snapshot().in_flight_count > 0);
    let leaving = Arc::clone(&new);
    executor.block_on(async move { leaving.leave().await });
    assert_eq!(origin.snapshot().in_flight_count, 0);
    assert_eq!(executor.block_on(new.read(0, Buffer::zeroed(512))).unwrap_err().kind(), ErrorKind::Gone);
    let written = origin.snapshot().of(OperationKind::Write).completed_count;
    write(&mut executor, &old, 0, &[2; 512]);
    let closing = Arc::clone(&old);
    executor.block_on(async move { closing.close(false).await.unwrap() });
    assert!(origin.snapshot().of(OperationKind::Write).completed_count > written);
    assert_eq!(read(&mut executor, &shared, 0, 512), vec![2; 512]);
}

/// Data that the origin had not flushed when it was copied: the origin could lose it.
#[test]
fn a_successor_does_not_keep_what_the_origin_could_lose() {
    let mut executor = Executor::in_order();
    let device = || memory(2 << 20);
    let medium = CrashLayer::new(1 << 20, 2);
    let (first, second, origin): (_, _, SharedDevice) = (device(), device(), Arc::new(medium.clone()));
    let options = |number: u8| FormatOptions {
        crash_mode: CrashMode::Warm,
        uuid: Some(uuid::Uuid::from_bytes([number; 16])),
        ..format_options()
    };
    format(&mut executor, &first, &origin, options(1));
    format(&mut executor, &second, &origin, options(2));
    let slow = OpenOptions { lazy_interval: Duration::from_secs(3600), ..open_options(&executor, Mode::WriteThrough) };
    let old = try_open(&mut executor, &first, &origin, slow).unwrap();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    // The successor owes the origin no flush of its own any more.
    executor.block_on(new.flush()).unwrap();
    write(&mut executor, &old, 0, &[7; LINE as usize]);
    let clock = executor.clock();
    let (from, to) = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move {
        clock.sleep(Duration::from_millis(1)).await;
        from.copy_to(&to, |_| {}).await.unwrap();
        // The successor stores what is clean, without hurry.
        clock.sleep(Duration::from_millis(100)).await;
    });
    drop((old, new, executor));
    let after = medium.after_power_loss_as(Loss::All, &Power::new());
    let origin: SharedDevice = Arc::new(after);
    let mut executor = Executor::in_order();
    let cache = open(&mut executor, &second, &origin, Mode::WriteThrough);
    let there = read(&mut executor, &origin, 0, LINE);
    assert_eq!(read(&mut executor, &cache, 0, LINE), there, "cache and origin agree");
}

#[test]
fn a_flush_of_a_successor_covers_what_the_old_cache_acknowledged() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let device = || memory(2 << 20);
    let (first, second, origin): (_, _, SharedDevice) = (device(), device(), Arc::new(medium.clone()));
    format(&mut executor, &first, &origin, options_of(1, 8, 96));
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteAround);
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteAround);
    for cache in [&old, &new] {
        executor.block_on(cache.flush()).unwrap();
    }
    write(&mut executor, &old, 0, &[7; LINE as usize]);
    let (from, to) = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move {
        from.copy_to(&to, |_| {}).await.unwrap();
        from.hand_over(&to).await.unwrap().finish();
        to.flush().await.unwrap();
    });
    assert_eq!(medium.durable_bytes(0, LINE as usize), vec![7; LINE as usize]);
}

/// A client wrote through the old cache and flushes through the new one.
#[test]
fn a_successor_tells_of_a_flush_that_failed_before() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let device = || memory(2 << 20);
    let (first, second, origin): (_, _, SharedDevice) = (device(), device(), Arc::new(medium.clone()));
    format(&mut executor, &first, &origin, FormatOptions { crash_mode: CrashMode::Warm, ..options_of(1, 8, 96) });
    format(&mut executor, &second, &origin, options_of(2, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    medium.fail_flush_once(medium.flushes_seen(), ErrorKind::Media);
    write(&mut executor, &old, 0, &[7; LINE as usize]);
    // Clean lines are stored without hurry, and a flush goes before that.
    executor.run();
    let (from, to) = (Arc::clone(&old), Arc::clone(&new));
    executor.block_on(async move {
        from.copy_to(&to, |_| {}).await.unwrap();
        from.hand_over(&to).await.unwrap().finish();
    });
    assert_eq!(executor.block_on(new.flush()).unwrap_err().kind(), ErrorKind::Media);
    executor.block_on(new.flush()).expect("it has been told");
}

/// Both use the LUN. What it drops while the successor flushes it may be a write of a client of the
/// old cache, which does not know the successor.
#[test]
fn what_a_flush_of_a_successor_dropped_is_told_to_the_client_of_the_old_cache_and_not_served() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 3);
    let device = || memory(2 << 20);
    let (first, second, origin): (_, _, SharedDevice) = (device(), device(), Arc::new(medium.clone()));
    format(&mut executor, &first, &origin, options_of(2, 8, 96));
    format(&mut executor, &second, &origin, options_of(4, 8, 96));
    let old = open(&mut executor, &first, &origin, Mode::WriteThrough);
    executor.block_on(old.flush()).unwrap();
    let new = open_successor(&mut executor, &old, &second, &origin, Mode::WriteThrough);
    (0..8).for_each(|line| write(&mut executor, &old, line * LINE, &[7; LINE as usize]));
    medium.fail_flush_as(medium.flushes_seen(), ErrorKind::Media, FlushEffect::Drops, Reported::Once);
    let setting = Arc::clone(&new);
    executor.block_on(async move { setting.set_mode(Mode::WriteBack).await.unwrap_err() });
    let left = read(&mut executor, &origin, 0, 8 * LINE);
    assert_ne!(left, vec![7; 8 * LINE as usize], "something was dropped");
    assert!(read(&mut executor, &old, 0, 8 * LINE) == left, "the old cache has what the LUN has");
    assert!(executor.block_on(old.flush()).is_err(), "who wrote is told");
}
