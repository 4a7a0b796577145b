//! A LUN that answers every write with a report of a reset (29h), or of an earlier write that
//! failed (a deferred error): requests end with an error after a bounded number of commands. What
//! was acknowledged and cannot be written again is reported as lost.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::vpd::{self, BlockLimits};
use scsi::{Cdb, Sense};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

const DEFERRED: Sense = Sense { is_deferred: true, ..Sense::WRITE_ERROR };
const NEWS: [Sense; 3] = [Sense::POWER_ON_OR_RESET, Sense::BUS_DEVICE_RESET, DEFERRED];
/// Commands of one request, those included that read the unit's properties after each reset.
const COMMANDS_OF_A_REQUEST_MAX: u64 = 200;
/// Commands in a minute in which copies cannot be written again.
const COMMANDS_OF_A_MINUTE_MAX: u64 = 2500;

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
