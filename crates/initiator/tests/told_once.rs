//! An error that a unit reports once reaches a client's flush: a flush of the initiator's own, for
//! which no client waits, does not swallow it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::error::{ErrorLayer, ErrorRule, Trigger};
use block::{Buffer, ByteRange, Device, ErrorKind, Event, OperationKind};
use initiator::{InitiatorOptions, RemoteLun};
use support::World;

/// A unit with a volatile cache that fails on demand, and an initiator that keeps copies of at most 64 KiB.
fn attach(world: &mut World) -> (Arc<ErrorLayer>, Arc<RemoteLun>) {
    let device = Arc::new(ErrorLayer::new(Arc::new(CrashLayer::new(1 << 20, 1)), &world.workers, 1));
    world.serve(device.clone());
    let lun = world.connect(InitiatorOptions { retained_bytes_max: 64 << 10, ..world.options() }).unwrap();
    (device, lun)
}

fn write(world: &mut World, lun: &RemoteLun, offset: u64) -> Result<Buffer, block::Error> {
    let writing = lun.write(offset, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing)
}

/// Writes enough to make the initiator flush for room, at 64 KiB and beyond.
fn fill(world: &mut World, lun: &RemoteLun) {
    for block in 16..32 {
        write(world, lun, block * 4096).unwrap();
    }
    world.executor.run_until_stalled();
}

#[test]
fn a_flush_for_room_that_fails_fails_the_next_flush_of_a_client() {
    let mut world = World::new(1);
    let (device, lun) = attach(&mut world);
    device.add(ErrorRule::new(Trigger::Nth(0), ErrorKind::Media).on(&[OperationKind::Flush]));
    fill(&mut world, &lun);
    assert_eq!(device.failed_count(), 1, "it was ours that failed");
    let flush = lun.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media, "acknowledged data may be gone");
    let flush = lun.flush();
    world.run(flush).expect("it is told once");
}

/// Who only wants to know whether the unit is there may ask it at any time.
#[test]
fn a_question_whether_the_unit_answers_takes_no_error_from_the_next_flush() {
    let mut world = World::new(9);
    let (device, lun) = attach(&mut world);
    device.add(ErrorRule::new(Trigger::Nth(0), ErrorKind::Media).on(&[OperationKind::Flush]));
    fill(&mut world, &lun);
    let asked = lun.clone();
    world.run(async move { asked.check_answers().await }).expect("it answers");
    let flush = lun.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media, "acknowledged data may be gone");
    world.pass(Duration::from_secs(1));
}

/// A flush for room is not tried again and again on its own.
#[test]
fn flushes_for_room_that_fail_are_few() {
    let mut world = World::new(2);
    let (device, lun) = attach(&mut world);
    device.add(ErrorRule::new(Trigger::Always, ErrorKind::Media).on(&[OperationKind::Flush]));
    for block in 0..9 {
        write(&mut world, &lun, block * 4096).unwrap();
    }
    world.pass(Duration::from_secs(1));
    assert!(device.failed_count() < 4, "{} flushes failed", device.failed_count());
    let flush = lun.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media);
    device.clear();
    let flush = lun.flush();
    world.run(flush).unwrap();
    fill(&mut world, &lun);
    // Writes that fill the room again wait for another flush of the initiator's own.
    let more: Vec<_> = (0..16).map(|block| lun.write(block * 4096, Buffer::copy_of(&[7; 4096]), false)).collect();
    world.pass(Duration::from_secs(60));
    assert_eq!(lun.status().waiting, 0, "nobody waits for ever");
    more.into_iter().for_each(|writing| drop(world.run(writing).unwrap()));
}

/// The session is lost, and with it the flush that was to make room.
#[test]
fn a_flush_for_room_that_ends_with_its_session_is_followed_by_another() {
    let mut world = World::new(8);
    let delays = Delays { flush: Latency::Fixed(Duration::from_millis(100)), ..Delays::default() };
    let medium = Arc::new(CrashLayer::new(1 << 20, 1));
    let clock = Arc::new(world.clock.clone());
    world.serve(Arc::new(DelayLayer::new(medium, clock, &world.workers, delays, 1)));
    let lun = world.connect(InitiatorOptions { retained_bytes_max: 64 << 10, ..world.options() }).unwrap();
    for block in 0..9 {
        write(&mut world, &lun, block * 4096).unwrap();
    }
    world.pass(Duration::from_millis(50));
    world.network.cut();
    let more: Vec<_> = (16..48).map(|block| lun.write(block * 4096, Buffer::copy_of(&[7; 4096]), false)).collect();
    world.pass(Duration::from_secs(60));
    assert_eq!((lun.status().session_count, lun.status().waiting), (2, 0), "nobody waits for ever");
    more.into_iter().for_each(|writing| drop(world.run(writing).unwrap()));
}

#[test]
fn a_write_that_could_not_be_written_again_fails_a_flush_of_a_client_and_not_ours() {
    let mut world = World::new(3);
    let (device, lun) = attach(&mut world);
    write(&mut world, &lun, 0).unwrap();
    let events = lun.subscribe();
    let first_block = ByteRange { offset: 0, length: 4096 };
    device.add(ErrorRule::new(Trigger::Nth(0), ErrorKind::Media).on(&[OperationKind::Write]).within(first_block));
    world.network.cut();
    fill(&mut world, &lun);
    assert!(lun.status().retained_bytes < 64 << 10, "there was a flush of ours");
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost));
    let flush = lun.flush();
    assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media);
    let flush = lun.flush();
    world.run(flush).expect("it is told once");
}

/// The status shows the unit's error, though the session is well.
#[test]
fn an_error_of_the_unit_is_the_last_error() {
    let mut world = World::new(4);
    let (device, lun) = attach(&mut world);
    assert_eq!(lun.status().last_error, None);
    device.add(ErrorRule::new(Trigger::Always, ErrorKind::NoSpace).on(&[OperationKind::Write]));
    assert_eq!(write(&mut world, &lun, 0).unwrap_err().kind(), ErrorKind::NoSpace);
    let last_error = lun.status().last_error.expect("something went wrong");
    assert!(last_error.contains("writing"), "{last_error}");
}

/// No client flushes after the last flush: the caller of `close` gets the error.
#[test]
fn closing_tells_that_what_was_acknowledged_may_not_be_durable() {
    for is_told_before in [false, true] {
        let mut world = World::new(5);
        let (device, lun) = attach(&mut world);
        write(&mut world, &lun, 0).unwrap();
        device.add(ErrorRule::new(Trigger::Always, ErrorKind::Media).on(&[OperationKind::Flush]));
        if is_told_before {
            let flush = lun.flush();
            assert_eq!(world.run(flush).unwrap_err().kind(), ErrorKind::Media);
        }
        let closed = world.run(async move { lun.close().await });
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::Media, "told before: {is_told_before}");
    }
}

#[test]
fn closing_out_of_reach_tells_that_what_was_acknowledged_may_not_be_durable() {
    let mut world = World::new(6);
    let (_device, lun) = attach(&mut world);
    write(&mut world, &lun, 0).unwrap();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_secs(1));
    let closed = world.run(async move { lun.close().await });
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

#[test]
fn closing_after_a_flush_has_nothing_to_tell() {
    let mut world = World::new(7);
    let (_device, lun) = attach(&mut world);
    write(&mut world, &lun, 0).unwrap();
    let flush = lun.flush();
    world.run(flush).unwrap();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_secs(1));
    world.run(async move { lun.close().await }).unwrap();
}
