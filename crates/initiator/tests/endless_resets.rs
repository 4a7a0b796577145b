//! A LUN that answers every write with a report of a reset (29h), or of an earlier write that
//! failed (a deferred error): requests end with an error after a bounded number of commands. What
//! was acknowledged and cannot be written again is reported as lost.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::vpd::{self, BlockLimits};
use scsi::{Cdb, Sense, Status};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

const DEFERRED: Sense = Sense { is_deferred: true, ..Sense::WRITE_ERROR };
const NEWS: [Sense; 3] = [Sense::POWER_ON_OR_RESET, Sense::BUS_DEVICE_RESET, DEFERRED];
/// Commands of one request, those included that read the unit's properties after each reset.
const COMMANDS_OF_A_REQUEST_MAX: u64 = 200;
/// Commands in a minute in which copies cannot be written again.
const COMMANDS_OF_A_MINUTE_MAX: u64 = 2500;

/// Commands in a minute with a unit that reports resets without end, for requests one after the other.
const COMMANDS_OF_TWO_TIMES_MAX: u64 = 10_000;

/// Counts the commands that come to the target from now on, which the script decides on.
fn count(target: &Scripted, mut script: impl FnMut(&Cdb) -> Reaction + Send + 'static) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    target.tell(move |_, cdb| {
        counted.fetch_add(1, Ordering::Relaxed);
        script(cdb)
    });
    count
}

fn attach(world: &mut World, is_cache_enabled: bool) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    target.disk().is_cache_enabled = is_cache_enabled;
    // The first parts of a larger request succeed.
    target.tell(|_, cdb| limited(cdb).unwrap_or(Reaction::Proper));
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(30), ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun)
}

/// Allows 4 KiB in one command.
fn limited(cdb: &Cdb) -> Option<Reaction> {
    let is_asked = matches!(cdb, Cdb::Inquiry { page: vpd::page::BLOCK_LIMITS, is_vpd: true, .. });
    let limits = BlockLimits { transfer_blocks_max: 8, ..BlockLimits::default() };
    is_asked.then(|| Reaction::Answer(Reply::data(limits.emit())))
}

#[test]
fn a_write_that_always_meets_a_reset_ends_with_an_error_after_few_commands() {
    for is_cache_enabled in [false, true] {
        for news in NEWS {
            let mut world = World::new(1);
            let (target, lun) = attach(&mut world, is_cache_enabled);
            let count = count(&target, move |cdb| match cdb {
                Cdb::Write(transfer) if transfer.blocks.lba >= 64 => Reaction::Answer(Reply::sense(news)),
                _ => limited(cdb).unwrap_or(Reaction::Proper),
            });
            let writing = lun.write(30 << 10, Buffer::copy_of(&[7; 32 << 10]), false);
            let error = world.run(writing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{news}: {error}");
            world.pass(Duration::from_secs(60));
            let sent = count.load(Ordering::Relaxed);
            assert!(
                sent < COMMANDS_OF_A_REQUEST_MAX,
                "{news}: {sent} commands for one write, cache: {is_cache_enabled}"
            );
            let reading = lun.read(0, Buffer::zeroed(512));
            world.run(reading).expect("others go on");
        }
    }
}

#[test]
fn copies_that_can_never_be_written_again_are_told_as_lost_when_the_time_of_requests_is_over() {
    for news in NEWS {
        let mut world = World::new(2);
        let (target, lun) = attach(&mut world, true);
        let events = lun.subscribe();
        let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
        world.run(writing).unwrap();
        let mut is_told = false;
        let count = count(&target, move |cdb| match cdb {
            Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
                Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
            }
            Cdb::Write(_) => Reaction::Answer(Reply::sense(news)),
            _ => limited(cdb).unwrap_or(Reaction::Proper),
        });
        // It waits as long as what is to be written again, which is as long as it has time.
        let reading = lun.read(8192, Buffer::zeroed(512));
        assert!(world.run(reading).is_err_and(|error| error.kind() == ErrorKind::TimedOut), "{news}");
        let reading = lun.read(8192, Buffer::zeroed(512));
        world.run(reading).expect("when nothing is to be written again any more");
        world.pass(Duration::from_secs(60));
        let sent = count.load(Ordering::Relaxed);
        assert!(sent < COMMANDS_OF_A_MINUTE_MAX, "{news}: {sent} commands");
        let flushing = lun.flush();
        assert_eq!(world.run(flushing).unwrap_err().kind(), ErrorKind::OutcomeUnknown, "{news}");
        assert_eq!(lun.status().retained_bytes, 0);
        let told: Vec<_> = std::iter::from_fn(|| events.try_receive()).collect();
        assert!(told.contains(&Event::WritesLost), "{news}: {told:?}");
    }
}

/// The unit is reset a few times while it is written again, as a target may be that starts: nothing is lost.
#[test]
fn copies_are_written_again_when_resets_come_to_an_end() {
    let mut world = World::new(3);
    let (target, lun) = attach(&mut world, true);
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    let mut resets = 0;
    target.tell(move |disk, cdb| {
        let is_reset = matches!(cdb, Cdb::Read(_) | Cdb::Write(_)) && resets < 20;
        if is_reset {
            resets += 1;
            disk.lose_cache();
            return Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET));
        }
        limited(cdb).unwrap_or(Reaction::Proper)
    });
    let reading = lun.read(0, Buffer::zeroed(4096));
    assert_eq!(world.run(reading).unwrap()[..], [7; 4096]);
    let flushing = lun.flush();
    world.run(flushing).expect("nothing is lost");
    assert_eq!(target.disk().durable(0, 4096), [7; 4096]);
}

/// What was written again is in the cache once more, and may be lost from there once more.
#[test]
fn copies_that_were_written_again_are_kept_until_they_are_flushed() {
    let mut world = World::new(5);
    let (target, lun) = attach(&mut world, true);
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    for _ in 0..2 {
        let mut is_told = false;
        target.tell(move |disk, cdb| match cdb {
            Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
                disk.lose_cache();
                Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
            }
            _ => limited(cdb).unwrap_or(Reaction::Proper),
        });
        let reading = lun.read(0, Buffer::zeroed(4096));
        assert_eq!(world.run(reading).unwrap()[..], [7; 4096]);
    }
}

/// TASK ABORTED says nothing of why, and may pass.
#[test]
fn a_command_that_is_aborted_again_and_again_is_tried_eight_times() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world, true);
    let count = count(&target, |cdb| match cdb {
        Cdb::Write(_) => Reaction::Answer(Some(Reply { status: 0x40, ..Reply::default() })),
        _ => limited(cdb).unwrap_or(Reaction::Proper),
    });
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap_err();
    assert_eq!(count.load(Ordering::Relaxed), 8);
    let reading = lun.read(0, Buffer::zeroed(512));
    world.run(reading).expect("others go on");
}

/// The unit reports a reset with each of so many commands for blocks, the first one included.
fn reporting(every: u64) -> impl FnMut(&Cdb) -> Reaction + Send + 'static {
    let mut count = 0;
    move |cdb| {
        let counts = matches!(cdb, Cdb::Read(_) | Cdb::Write(_) | Cdb::SynchronizeCache(_));
        // Comes to an end, for an initiator that does not.
        let reports = counts && count % every == 0 && count < 100_000;
        count += u64::from(counts);
        match reports {
            true => Reaction::Report(Sense::POWER_ON_OR_RESET),
            false => limited(cdb).unwrap_or(Reaction::Proper),
        }
    }
}

/// The reset is reported by a message, and what it makes void is answered well.
#[test]
fn what_is_answered_again_and_again_after_a_report_of_a_reset_ends_after_eight_times() {
    type Ask = fn(&RemoteLun) -> block::Completion;
    let asks: [(&str, Ask); 3] = [
        ("a read", |lun| lun.submit(block::Request::read(4096, Buffer::zeroed(8192)))),
        ("a flush", |lun| lun.submit(block::Request::flush())),
        ("a durable write", |lun| lun.submit(block::Request::write(0, Buffer::copy_of(&[8; 4096]), true))),
    ];
    for (words, ask) in asks {
        let mut world = World::new(6);
        let (target, lun) = attach(&mut world, true);
        let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
        world.run(writing).unwrap();
        let mut reporting = reporting(1);
        let count = count(&target, move |cdb| match cdb {
            Cdb::Write(_) => limited(cdb).unwrap_or(Reaction::Proper),
            _ => reporting(cdb),
        });
        let asking = ask(&lun);
        let error = world.run(asking).result.expect_err(words);
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::OutcomeUnknown), "{words}: {error}");
        let sent = count.load(Ordering::Relaxed);
        assert!(sent < COMMANDS_OF_A_REQUEST_MAX, "{words}: {sent} commands");
        target.tell(|_, cdb| limited(cdb).unwrap_or(Reaction::Proper));
        let flushing = lun.flush();
        world.run(flushing).expect("the copies are there still");
        // The copy is older than the write whose outcome is unknown.
        assert_eq!(target.disk().durable(0, 1), [7], "{words}");
    }
}

/// Each replay comes to its end, and nothing else does.
#[test]
fn requests_and_copies_at_a_unit_that_reports_resets_without_end_have_one_time_in_all() {
    const TIME: Duration = Duration::from_secs(30);
    let mut world = World::new(7);
    let (target, lun) = attach(&mut world, true);
    let events = lun.subscribe();
    for block in 0..24 {
        let writing = lun.write(block * 8192, Buffer::copy_of(&[7; 4096]), false);
        world.run(writing).unwrap();
    }
    let count = count(&target, reporting(25));
    let began = world.clock.now();
    let mut told = Vec::new();
    while world.clock.now().since(began) < 2 * TIME {
        let asked = world.clock.now();
        let reads: Vec<_> = (0..8).map(|block| lun.read(block * 8192, Buffer::zeroed(4096))).collect();
        let flushing = lun.flush();
        reads.into_iter().for_each(|read| drop(world.run(read)));
        told.extend(world.run(flushing).err().map(|error| error.kind()));
        let took = world.clock.now().since(asked);
        assert!(took <= TIME + Duration::from_secs(2), "{took:?}");
        world.pass(Duration::from_millis(300));
    }
    let sent = count.load(Ordering::Relaxed);
    assert!(sent < COMMANDS_OF_TWO_TIMES_MAX, "{sent} commands");
    assert_eq!(lun.status().retained_bytes, 0);
    let lost = std::iter::from_fn(|| events.try_receive()).filter(|event| *event == Event::WritesLost).count();
    assert_eq!(lost, 1);
    assert_eq!(told.iter().filter(|kind| **kind == ErrorKind::OutcomeUnknown).count(), 1, "{told:?}");
}

/// Sixteen are written again at a time, and each of them has its time.
#[test]
fn requests_behind_a_replay_that_does_not_come_to_its_end_have_their_time() {
    const TIME: Duration = Duration::from_secs(30);
    let mut world = World::new(8);
    let (target, lun) = attach(&mut world, true);
    for block in 0..64 {
        let writing = lun.write(block * 8192, Buffer::copy_of(&[7; 4096]), false);
        world.run(writing).unwrap();
    }
    let mut is_told = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
            Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
        }
        Cdb::Write(_) => Reaction::Answer(Some(Reply { status: Status::Busy.code(), ..Reply::default() })),
        _ => limited(cdb).unwrap_or(Reaction::Proper),
    });
    let began = world.clock.now();
    let reading = lun.read(0, Buffer::zeroed(512));
    world.pass(Duration::from_secs(10));
    let second = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(reading).map(drop).unwrap_err().kind(), ErrorKind::TimedOut);
    let took = world.clock.now().since(began);
    assert!(took < TIME + Duration::from_secs(1), "{took:?}");
    assert_eq!(world.run(second).map(drop).unwrap_err().kind(), ErrorKind::TimedOut);
    let took = world.clock.now().since(began);
    assert!(took < Duration::from_secs(10) + TIME + Duration::from_secs(1), "{took:?}");
    target.tell(|_, cdb| limited(cdb).unwrap_or(Reaction::Proper));
    world.pass(Duration::from_secs(2));
    let reading = lun.read(0, Buffer::zeroed(512));
    world.run(reading).expect("the rest is written again");
}

/// What a flush has made durable is not lost by what comes after it, however often.
#[test]
fn a_unit_that_is_reset_often_loses_nothing_while_flushes_end_well() {
    let mut world = World::new(9);
    let (target, lun) = attach(&mut world, true);
    let events = lun.subscribe();
    for number in 0..200u8 {
        let writing = lun.write(0, Buffer::copy_of(&[number; 4096]), false);
        world.run(writing).unwrap();
        let mut is_told = false;
        target.tell(move |disk, cdb| match cdb {
            Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
                disk.lose_cache();
                Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
            }
            _ => limited(cdb).unwrap_or(Reaction::Proper),
        });
        let reading = lun.read(0, Buffer::zeroed(4096));
        assert_eq!(world.run(reading).unwrap()[..], [number; 4096]);
        let flushing = lun.flush();
        world.run(flushing).expect("nothing is lost");
        world.pass(Duration::from_millis(400));
    }
    assert!(std::iter::from_fn(|| events.try_receive()).all(|event| event != Event::WritesLost));
}
