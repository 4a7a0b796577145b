//! A SYNCHRONIZE CACHE that follows one command also makes durable what other requests wrote: when
//! it fails, the next flush reports that, once. After a reset of the unit it makes nothing durable
//! that was carried out before.

mod support;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use initiator::RemoteLun;
use scsi::{Cdb, Sense};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

/// A unit without FUA fails its first SYNCHRONIZE CACHE. Its cache holds a write without `fua`.
fn attach(world: &mut World) -> Arc<RemoteLun> {
    let target = Scripted::new(world);
    let options = world.options();
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    let mut has_failed = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::SynchronizeCache(_) if !has_failed => {
            has_failed = true;
            Reaction::Answer(Reply::sense(Sense::WRITE_ERROR))
        }
        Cdb::CompareAndWrite { .. } => Reaction::Answer(Reply::data(Vec::new())),
        _ => Reaction::Proper,
    });
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
    lun
}

fn check_told_once(world: &mut World, lun: &RemoteLun) {
    let flush = lun.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media, "what was written before may be gone");
    let flush = lun.flush();
    world.run(flush).expect("it is told once");
}

#[test]
fn a_durable_write_whose_synchronize_fails_fails_the_next_flush() {
    let mut world = World::new(1);
    let lun = attach(&mut world);
    let writing = lun.write(8192, Buffer::copy_of(&[8; 4096]), true);
    assert_eq!(world.run(writing).unwrap_err().kind(), ErrorKind::Media);
    check_told_once(&mut world, &lun);
}

#[test]
fn a_compare_and_write_whose_synchronize_fails_fails_the_next_flush() {
    let mut world = World::new(2);
    let lun = attach(&mut world);
    let swapping = Arc::clone(&lun);
    let outcome = world.run(async move { swapping.compare_and_write(8192, &[0; 512], &[8; 512]).await });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown, "it was carried out, and may not last");
    check_told_once(&mut world, &lun);
}

/// The unit carries out a COMPARE AND WRITE, is reset, reports that with a read, and has nothing to
/// flush any more.
#[test]
fn a_compare_and_write_whose_synchronize_came_after_a_reset_has_an_unknown_outcome() {
    let mut world = World::new(3);
    let target = Scripted::new(&world);
    let options = world.options();
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    let mut is_reset = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::CompareAndWrite { .. } => Reaction::Hold(Reply::data(Vec::new())),
        Cdb::Read(_) if !std::mem::replace(&mut is_reset, true) => {
            Reaction::Hold(Reply::sense(Sense::POWER_ON_OR_RESET))
        }
        _ => Reaction::Proper,
    });
    let (swapping, swapped) = (Arc::clone(&lun), Arc::new(OnceLock::new()));
    let outcome = Arc::clone(&swapped);
    world.executor.spawn(async move {
        let _ = outcome.set(swapping.compare_and_write(8192, &[0; 512], &[8; 512]).await);
    });
    world.pass(Duration::from_millis(1));
    let reading = lun.read(0, Buffer::zeroed(512));
    world.run(reading).unwrap();
    world.pass(Duration::from_millis(1));
    let outcome = swapped.get().expect("it is answered").as_ref().map_err(block::Error::kind);
    assert_eq!(outcome, Err(ErrorKind::OutcomeUnknown));
}
