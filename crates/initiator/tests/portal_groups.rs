//! A login ends what an older session of the same name left behind in the same portal group, and nothing elsewhere.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use initiator::{InitiatorOptions, RemoteLun, State};
use scsi::Cdb;
use support::World;
use support::scripted::{Reaction, Scripted};

const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A target that redirects to its other portal group after the first command of a kind, which it
/// does not answer. Counts the writes.
fn attach(
    world: &mut World,
    is_last: impl Fn(&Cdb) -> bool + Send + 'static,
) -> (Scripted, Arc<RemoteLun>, Arc<Mutex<u32>>) {
    let target = Scripted::new(world);
    let writes = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&writes);
    target.tell(move |disk, cdb| {
        *counted.lock().unwrap() += u32::from(matches!(cdb, Cdb::Write(_)));
        if disk.group == "1" && is_last(cdb) {
            disk.group = "2";
            return Reaction::Leave;
        }
        Reaction::Proper
    });
    let options = InitiatorOptions { replacement_timeout: REPLACEMENT_TIMEOUT, ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun, writes)
}

/// The write may land after a newer one that was sent through the other group. So it is not issued
/// again there, and fails with an unknown outcome. After that no write is in doubt, and the other group
/// is used.
#[test]
fn a_write_in_doubt_is_not_issued_again_through_another_portal_group() {
    let mut world = World::new(1);
    let (_target, lun, writes) = attach(&mut world, |cdb| matches!(cdb, Cdb::Write(_)));
    let older = lun.write(0, Buffer::copy_of(&[1; 512]), false);
    world.pass(REPLACEMENT_TIMEOUT / 2);
    assert_eq!((lun.status().state, *writes.lock().unwrap()), (State::Reconnecting, 1));
    let words = lun.status().last_error.unwrap();
    assert!(words.contains("portal group 1 to 2"), "{words}");
    assert_eq!(world.run(older).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    world.pass(REPLACEMENT_TIMEOUT);
    assert_eq!((lun.status().state, lun.status().portal_group_tag), (State::Online, Some(2)));
    let newer = lun.write(0, Buffer::copy_of(&[2; 512]), false);
    world.run(newer).unwrap();
}

#[test]
fn where_no_write_is_in_doubt_another_portal_group_is_as_good() {
    let mut world = World::new(2);
    let (_target, lun, _writes) = attach(&mut world, |cdb| matches!(cdb, Cdb::Read(_)));
    let writing = lun.write(0, Buffer::copy_of(&[1; 512]), false);
    world.run(writing).unwrap();
    let reading = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(reading).unwrap()[..], [1; 512]);
    assert_eq!((lun.status().session_count, lun.status().portal_group_tag), (2, Some(2)));
}
