//! A good status counts only for the bytes that were moved.

mod support;

use std::sync::Arc;

use block::device::DeviceExt;
use block::{Buffer, Error, ErrorKind};
use initiator::RemoteLun;
use iscsi::pdu::Residual;
use scsi::{Cdb, Sense, SenseKey};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

const CONDITION_MET: u8 = 0x04;

fn attach(world: &mut World) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    let (lun, driver) = world.run(initiator::connect(world.options(), Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun)
}

/// The replies besides GOOD that stand for success.
fn successes() -> Vec<Reply> {
    let with = |key: SenseKey| Reply { status: 2, sense: Some(Sense { key, ..Sense::NO_SENSE }), ..Reply::default() };
    let mut successes: Vec<Reply> =
        [SenseKey::NoSense, SenseKey::RecoveredError, SenseKey::Completed].map(with).to_vec();
    successes.push(Reply { status: CONDITION_MET, ..Reply::default() });
    successes
}

fn check_read(reply: Reply) -> Result<Buffer, Error> {
    let mut world = World::new(1);
    let (target, lun) = attach(&mut world);
    target.tell(move |_, cdb| match cdb {
        Cdb::Read(_) => Reaction::Answer(Some(reply.clone())),
        _ => Reaction::Proper,
    });
    let reading = lun.read(0, Buffer::zeroed(4096));
    world.run(reading)
}

fn check_write(reply: Reply) -> Result<(), Error> {
    let mut world = World::new(2);
    let (target, lun) = attach(&mut world);
    target.tell(move |_, cdb| match cdb {
        Cdb::Write(_) => Reaction::Answer(Some(reply.clone())),
        _ => Reaction::Proper,
    });
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).map(drop)
}

#[test]
fn a_read_that_brings_too_little_fails_whatever_it_is_called() {
    for success in successes() {
        for length in [0, 2048] {
            let data = vec![7; length];
            let missing = 4096 - length as u32;
            for residual in [Residual::None, Residual::Underflow(missing), Residual::Overflow(1)] {
                let reply = Reply { data: data.clone(), residual: Some(residual), ..success.clone() };
                assert!(check_read(reply).is_err(), "{length} bytes, {residual:?}, {success:?}");
            }
        }
    }
}

#[test]
fn a_write_of_which_something_was_not_taken_fails_whatever_it_is_called() {
    for success in successes() {
        let reply = Reply { residual: Some(Residual::Underflow(4096)), ..success.clone() };
        assert_eq!(check_write(reply).unwrap_err().kind(), ErrorKind::Media, "{success:?}");
    }
}

#[test]
fn what_moved_everything_is_done_though_there_was_something_to_say() {
    for success in successes() {
        let reply = Reply { data: vec![7; 4096], ..success.clone() };
        assert!(check_read(reply).unwrap()[..] == [7; 4096], "{success:?}");
        check_write(success).unwrap();
    }
}
