//! A loss that the next flush is to tell, where that flush ends with an error which says that nothing was done.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::layer::multipath::{Multipath, Policy};
use block::{Buffer, Device, ErrorKind, Event, SharedDevice};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::{Cdb, Sense, Status};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

fn attach(world: &mut World, target: &Scripted, has_other_paths: bool) -> Arc<RemoteLun> {
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(30), has_other_paths, ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    lun
}

/// A write is acknowledged, the unit is reset and refuses to have it again: it is lost.
fn lose(world: &mut World, target: &Scripted, lun: &RemoteLun) {
    lose_with(world, target, lun, Reply::sense(Sense::WRITE_ERROR));
}

/// The same, where it refuses with this.
fn lose_with(world: &mut World, target: &Scripted, lun: &RemoteLun, refusal: Option<Reply>) {
    let events = lun.subscribe();
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    let mut is_told = false;
    target.tell(move |disk, cdb| match cdb {
        Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
            disk.lose_cache();
            Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
        }
        Cdb::Write(_) => Reaction::Answer(refusal.clone()),
        _ => Reaction::Proper,
    });
    // What finds no unit is written again for as long as requests wait.
    let reading = lun.read(8192, Buffer::zeroed(512));
    drop(world.run(reading));
    world.pass(Duration::from_secs(1));
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost), "it is lost");
}

/// The next SYNCHRONIZE CACHEs are answered so, `count` of them.
fn refuse_flushes(target: &Scripted, mut count: usize, reply: Option<Reply>) {
    target.tell(move |_, cdb| match cdb {
        Cdb::SynchronizeCache(_) if count > 0 => {
            count -= 1;
            Reaction::Answer(reply.clone())
        }
        _ => Reaction::Proper,
    });
}

fn status(status: Status) -> Option<Reply> {
    Some(Reply { status: status.code(), ..Reply::default() })
}

fn flush(world: &mut World, device: &dyn Device) -> Result<(), ErrorKind> {
    let flushing = device.flush();
    world.run(flushing).map_err(|error| error.kind())
}

#[test]
fn a_flush_that_is_aborted_again_and_again_tells_of_the_loss_all_the_same() {
    let mut world = World::new(1);
    let target = Scripted::new(&world);
    let lun = attach(&mut world, &target, false);
    lose(&mut world, &target, &lun);
    refuse_flushes(&target, 8, status(Status::TaskAborted));
    let told = [flush(&mut world, &*lun), flush(&mut world, &*lun)];
    assert_eq!(told, [Err(ErrorKind::Media), Ok(())]);
}

#[test]
fn a_flush_that_finds_its_path_in_standby_tells_of_the_loss_all_the_same() {
    let mut world = World::new(2);
    let target = Scripted::new(&world);
    let lun = attach(&mut world, &target, true);
    lose(&mut world, &target, &lun);
    refuse_flushes(&target, 1, Reply::sense(Sense::PORT_IN_STANDBY));
    let told = [flush(&mut world, &*lun), flush(&mut world, &*lun)];
    assert_eq!(told, [Err(ErrorKind::Media), Ok(())]);
}

/// With some errors a request is made again, here or on another path, and nobody hears of them.
#[test]
fn a_loss_is_told_with_an_error_that_nobody_answers_by_asking_again() {
    let refusals = [
        Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
        Reply::sense(Sense::PORT_IN_STANDBY),
        status(Status::Busy),
        status(Status::TaskAborted),
    ];
    for refusal in refusals {
        let mut world = World::new(4);
        let target = Scripted::new(&world);
        let lun = attach(&mut world, &target, true);
        lose_with(&mut world, &target, &lun, refusal.clone());
        target.tell(|_, _| Reaction::Proper);
        let told = [flush(&mut world, &*lun), flush(&mut world, &*lun)];
        assert_eq!(told, [Err(ErrorKind::OutcomeUnknown), Ok(())], "{refusal:?}");
    }
}

/// What the unit says of the flush itself goes to whoever asked for it, as it is: another path may still do it.
#[test]
fn a_flush_that_finds_no_unit_says_so() {
    let mut world = World::new(5);
    let target = Scripted::new(&world);
    let lun = attach(&mut world, &target, true);
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    refuse_flushes(&target, 1, Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    let told = [flush(&mut world, &*lun), flush(&mut world, &*lun)];
    assert_eq!(told, [Err(ErrorKind::Gone), Ok(())]);
}

/// A flush of the initiator's own: the copies are still there, and the next flush has it all.
#[test]
fn a_flush_for_room_that_was_not_done_is_no_loss() {
    let mut world = World::new(6);
    let target = Scripted::new(&world);
    let options = InitiatorOptions { retained_bytes_max: 64 << 10, ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    refuse_flushes(&target, 8, status(Status::TaskAborted));
    for block in 0..9 {
        let writing = lun.write(block * 4096, Buffer::copy_of(&[7; 4096]), false);
        world.run(writing).unwrap();
    }
    world.pass(Duration::from_secs(1));
    assert!(lun.status().last_error.is_some(), "it was not done");
    assert_eq!(flush(&mut world, &*lun), Ok(()));
    assert_eq!(target.disk().durable(0, 9 * 4096), [7; 9 * 4096]);
}

/// Two paths to one unit with a cache: writes have FUA, and one that was acknowledged turns out lost (a deferred
/// error).
#[test]
fn several_paths_tell_of_a_loss_though_the_flush_goes_from_one_to_the_other() {
    let mut world = World::new(3);
    let targets = [Scripted::new(&world), Scripted::new(&world)];
    let luns = targets.each_ref().map(|target| attach(&mut world, target, true));
    let paths = luns.iter().map(|lun| Arc::clone(lun) as SharedDevice).collect();
    let device = Arc::new(
        Multipath::new(paths, Policy::Failover, Duration::from_secs(30), Arc::new(world.clock.clone())).unwrap(),
    );
    let running = Arc::clone(&device);
    world.executor.spawn(async move { running.run().await });
    let events = device.subscribe();
    let writing = device.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    let mut is_told = false;
    targets[0].tell(move |_, cdb| match cdb {
        Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
            Reaction::Answer(Reply::sense(Sense { is_deferred: true, ..Sense::WRITE_ERROR }))
        }
        _ => Reaction::Proper,
    });
    let reading = device.read(8192, Buffer::zeroed(512));
    world.run(reading).unwrap();
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost), "it is lost");
    refuse_flushes(&targets[0], 1, Reply::sense(Sense::PORT_IN_STANDBY));
    let flushed = flush(&mut world, &*device);
    assert!(flushed.is_err(), "a flush ends well though an acknowledged write is lost");
}
