//! Persistent reservations through the binary: kept over a SIGKILL where APTPL was asked for (SPC-4 5.12.5), for files
//! and block devices, and told to the others.

#[allow(dead_code, reason = "shared with the tests of block devices, which use more of it")]
#[path = "../../crates/file/tests/loop_device/mod.rs"]
mod loop_device;

use conformance::bench::Bench;
use conformance::wire::Wire;
use iscsi::pdu::Bhs;
use loop_device::{LoopDevice, may_make_devices};
use tests::{IQN, Target, World};

const KEY: u64 = 0x1122_3344_5566_7788;
const RESERVATION_CONFLICT: u8 = 0x18;
/// Write exclusive, registrants only.
const KIND: u8 = 5;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;

/// A session of the one initiator port that each bench begins with.
fn log_in(target: &Target) -> (Bench, Wire) {
    let bench = Bench::new(target.portal().parse().expect("an address"), IQN.to_owned(), 0, true);
    let wire = bench.log_in(&[]).expect("it logs in");
    (bench, wire)
}

/// PERSISTENT RESERVE OUT; its status.
fn out(wire: &mut Wire, action: u8, key: u64, service_key: u64, aptpl: bool) -> u8 {
    let mut parameters = [0; 24];
    parameters[..8].copy_from_slice(&key.to_be_bytes());
    parameters[8..16].copy_from_slice(&service_key.to_be_bytes());
    parameters[20] = u8::from(aptpl);
    let command = wire.command(&[0x5f, action, KIND, 0, 0, 0, 0, 0, 24, 0], true, 24);
    wire.send(&command, parameters.to_vec()).unwrap();
    wire.status(command.initiator_task_tag).unwrap()
}

/// PERSISTENT RESERVE IN; its data.
fn read_in(wire: &mut Wire, action: u8) -> Vec<u8> {
    let command = wire.command(&[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0], false, 256);
    wire.send(&command, Vec::new()).unwrap();
    let mut data = Vec::new();
    loop {
        let pdu = wire.receive().unwrap();
        data.extend_from_slice(pdu.data.bytes());
        match pdu.header.bhs {
            Ok(Bhs::DataIn(header)) if header.status.is_none() => {}
            Ok(Bhs::DataIn(_) | Bhs::ScsiResponse(_)) => return data,
            other => panic!("{other:?} is no answer to a read"),
        }
    }
}

/// The registered keys, without the generation.
fn keys(wire: &mut Wire) -> Vec<u64> {
    read_in(wire, 0)[8..].as_chunks::<8>().0.iter().map(|key| u64::from_be_bytes(*key)).collect()
}

/// Holder's key and type, if anybody holds it.
fn holder(wire: &mut Wire) -> Option<(u64, u8)> {
    let data = read_in(wire, 1);
    let key = data.get(8..16)?.try_into().ok().map(u64::from_be_bytes)?;
    Some((key, data.get(21)? & 0x0f))
}

fn write_status(wire: &mut Wire) -> u8 {
    let command = wire.write10(1);
    wire.send(&command, vec![7; 512]).unwrap();
    wire.status(command.initiator_task_tag).unwrap()
}

fn survives(world: &World, lun: &str) {
    let mut target = world.target(["--lun", lun]);
    let (_, mut wire) = log_in(&target);
    assert_eq!(out(&mut wire, REGISTER, 0, KEY, true), 0);
    assert_eq!(out(&mut wire, RESERVE, KEY, 0, true), 0);
    target.process.kill();
    target = world.target(["--lun", lun]);
    let (bench, mut wire) = log_in(&target);
    assert_eq!(keys(&mut wire), [KEY], "{lun}");
    assert_eq!(holder(&mut wire), Some((KEY, KIND)), "{lun}");
    assert_eq!(write_status(&mut wire), 0, "the holder writes");
    let mut other = bench.log_in(&[]).expect("another initiator port logs in");
    assert_eq!(write_status(&mut other), RESERVATION_CONFLICT, "{lun}: others do not");
    let read = other.read10(1);
    other.send(&read, Vec::new()).unwrap();
    assert_eq!(other.read_all(read.initiator_task_tag).unwrap().1, 0, "but they read");
    assert_eq!(out(&mut wire, CLEAR, KEY, 0, false), 0);
    target.process.kill();
    target = world.target(["--lun", lun]);
    let (_, mut wire) = log_in(&target);
    assert!(keys(&mut wire).is_empty(), "{lun}: what was cleared stays cleared");
    assert_eq!(holder(&mut wire), None);
    // Without APTPL it is gone with the process.
    assert_eq!(out(&mut wire, REGISTER, 0, KEY, false), 0);
    target.process.kill();
    target = world.target(["--lun", lun]);
    let (_, mut wire) = log_in(&target);
    assert!(keys(&mut wire).is_empty(), "{lun}");
}

#[test]
fn reservations_of_a_file_survive_kill_nine() {
    survives(&World::new(), "0=file:disk.img,size=16MiB");
}

#[test]
fn reservations_of_a_block_device_survive_kill_nine() {
    if !may_make_devices() {
        return;
    }
    let world = World::new();
    let disk = LoopDevice::new(&world.path("disk.img"), 16 << 20, 512);
    survives(&world, &format!("0=file:{}", disk.path.display()));
}

/// A RAM LUN keeps nothing and says so.
#[test]
fn a_ram_unit_refuses_to_keep_reservations() {
    let world = World::new();
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let (_, mut wire) = log_in(&target);
    assert_eq!(out(&mut wire, REGISTER, 0, KEY, true), 2, "CHECK CONDITION");
    assert_eq!(read_in(&mut wire, 2)[3] & 0x01, 0, "PTPL_C");
    assert_eq!(out(&mut wire, REGISTER, 0, KEY, false), 0);
}

/// The medium of a removable unit is loaded again at the next start: whether it was ejected is not kept.
#[test]
fn an_ejected_medium_is_loaded_at_the_next_start() {
    let world = World::new();
    let lun = "0=file:disk.img,size=16MiB,removable";
    let mut target = world.target(["--lun", lun]);
    let (_, mut wire) = log_in(&target);
    let eject = wire.command(&[0x1b, 0, 0, 0, 0x02, 0], false, 0);
    wire.send(&eject, Vec::new()).unwrap();
    wire.expect_good(eject.initiator_task_tag).unwrap();
    let command = wire.test_unit_ready();
    wire.send(&command, Vec::new()).unwrap();
    assert_eq!(wire.status(command.initiator_task_tag).unwrap(), 2, "there is no medium");
    target.process.kill();
    target = world.target(["--lun", lun]);
    let (_, mut wire) = log_in(&target);
    wire.check_alive().unwrap();
    drop(target);
}
