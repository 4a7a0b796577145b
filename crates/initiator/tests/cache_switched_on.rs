//! A unit without a write cache, until another host switches it on (MODE SELECT) with our commands
//! in flight: they are answered before the unit attention (2Ah/01h) reports the switch. What was
//! answered is durable, or flushed as soon as the switch is known; a loss before that is reported.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event, Request};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::{Cdb, Sense, Status};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

fn attach(world: &mut World, has_fua: bool) -> (Scripted, Arc<RemoteLun>) {
    attach_to(world, has_fua, true)
}

fn attach_to(world: &mut World, has_fua: bool, is_changeable: bool) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    {
        let mut disk = target.disk();
        (disk.is_cache_enabled, disk.has_fua, disk.is_cache_changeable) = (false, has_fua, is_changeable);
    }
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(30), ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    assert!(!lun.geometry().is_write_cache_volatile);
    (target, lun)
}

fn write(world: &mut World, lun: &RemoteLun) {
    let writing = lun.write(0, Buffer::copy_of(&[7; 4096]), false);
    world.run(writing).unwrap();
}

/// The cache is switched on just before the next write; the first command after that write reports
/// it.
fn switch_on_at_a_write(target: &Scripted) {
    let mut is_told = true;
    target.tell(move |disk, cdb| match cdb {
        Cdb::Write(_) if !disk.is_cache_enabled => {
            (disk.is_cache_enabled, is_told) = (true, false);
            Reaction::Proper
        }
        _ if !std::mem::replace(&mut is_told, true) => Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED)),
        _ => Reaction::Proper,
    });
}

#[test]
fn a_write_under_which_the_cache_is_switched_on_is_durable_when_it_is_answered() {
    let mut world = World::new(1);
    let (target, lun) = attach(&mut world, true);
    switch_on_at_a_write(&target);
    write(&mut world, &lun);
    assert_eq!(target.disk().durable(0, 4096), [7; 4096], "nobody has told that it may be lost");
}

/// Both are under way when the cache is switched on, and the read's answer reports it.
fn is_kept_when_answered_after_the_switch(seed: u64, has_fua: bool, is_changeable: bool) {
    let mut world = World::new(seed);
    let (target, lun) = attach_to(&mut world, has_fua, is_changeable);
    target.tell(|disk, cdb| match cdb {
        Cdb::Read(_) if !disk.is_cache_enabled => {
            disk.is_cache_enabled = true;
            Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED))
        }
        _ => Reaction::Proper,
    });
    let reading = lun.submit(Request::read(8192, Buffer::zeroed(4096)));
    let writing = lun.submit(Request::write(0, Buffer::copy_of(&[7; 4096]), false));
    world.run(async move { (reading.await, writing.await) });
    assert_eq!(lun.status().retained_bytes, 4096);
    let flushing = lun.flush();
    world.run(flushing).unwrap();
    assert_eq!(target.disk().durable(0, 4096), [7; 4096]);
}

/// The unit has no FUA.
#[test]
fn of_a_write_that_is_answered_after_the_switch_was_told_a_copy_is_kept() {
    is_kept_when_answered_after_the_switch(2, false, true);
}

/// No host may switch the cache, so writes have no FUA. Still it comes on: by the unit's own
/// operator, or because its battery is loaded again.
#[test]
fn a_copy_is_kept_also_where_no_host_may_switch_the_cache() {
    for has_fua in [false, true] {
        is_kept_when_answered_after_the_switch(12, has_fua, false);
    }
}

#[test]
fn what_was_answered_before_the_switch_was_told_is_flushed_at_once() {
    let mut world = World::new(3);
    let (target, lun) = attach(&mut world, false);
    switch_on_at_a_write(&target);
    write(&mut world, &lun);
    let reading = lun.read(8192, Buffer::zeroed(4096));
    world.run(reading).unwrap();
    world.pass(Duration::from_millis(10));
    assert_eq!(target.disk().durable(0, 4096), [7; 4096], "no client has asked for a flush");
}

/// Commands after the last write reported no switch: the write was durable by then.
#[test]
fn nothing_is_flushed_where_nothing_can_have_been_in_flight() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world, false);
    write(&mut world, &lun);
    let read = |world: &mut World| {
        let reading = lun.read(8192, Buffer::zeroed(4096));
        world.run(reading).unwrap();
    };
    read(&mut world);
    let mut is_told = false;
    target.tell(move |disk, cdb| match cdb {
        Cdb::SynchronizeCache(_) => panic!("there is nothing to flush"),
        Cdb::Read(_) if !std::mem::replace(&mut is_told, true) => {
            disk.is_cache_enabled = true;
            Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED))
        }
        _ => Reaction::Proper,
    });
    read(&mut world);
    world.pass(Duration::from_millis(10));
    assert!(lun.geometry().is_write_cache_volatile);
}

/// The unit loses its power after it reported the switch, and before a flush. It reports that, or
/// ends the session.
#[test]
fn a_loss_between_the_switch_and_the_flush_is_told() {
    for ends_session in [true, false] {
        let mut world = World::new(5);
        let (target, lun) = attach(&mut world, false);
        let events = lun.subscribe();
        switch_on_at_a_write(&target);
        write(&mut world, &lun);
        let (mut is_told, mut is_lost) = (false, false);
        target.tell(move |disk, cdb| match cdb {
            _ if !std::mem::replace(&mut is_told, true) => {
                Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED))
            }
            Cdb::SynchronizeCache(_) if !std::mem::replace(&mut is_lost, true) => {
                disk.lose_cache();
                let reset = Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET));
                if ends_session { Reaction::Leave } else { reset }
            }
            _ => Reaction::Proper,
        });
        let reading = lun.read(8192, Buffer::zeroed(4096));
        world.run(reading).unwrap();
        let flushing = lun.flush();
        assert_eq!(world.run(flushing).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        let flushing = lun.flush();
        world.run(flushing).expect("it is told once");
        let told: Vec<_> = std::iter::from_fn(|| events.try_receive()).collect();
        assert!(told.contains(&Event::WritesLost), "{told:?}");
        assert_eq!(lun.status().session_count > 1, ends_session);
    }
}

/// The flush that the switch calls for is made once: what it did not reach may be lost at any time.
#[test]
fn a_flush_for_the_switch_that_is_not_carried_out_is_told_as_a_loss() {
    let mut world = World::new(13);
    let (target, lun) = attach(&mut world, false);
    let events = lun.subscribe();
    switch_on_at_a_write(&target);
    write(&mut world, &lun);
    let (mut is_told, mut aborted) = (false, 0);
    target.tell(move |_, cdb| match cdb {
        Cdb::SynchronizeCache(_) if aborted < 8 => {
            aborted += 1;
            Reaction::Answer(Some(Reply { status: Status::TaskAborted.code(), ..Reply::default() }))
        }
        _ if !std::mem::replace(&mut is_told, true) => Reaction::Answer(Reply::sense(Sense::MODE_PARAMETERS_CHANGED)),
        _ => Reaction::Proper,
    });
    let reading = lun.read(8192, Buffer::zeroed(4096));
    world.run(reading).unwrap();
    world.pass(Duration::from_secs(1));
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost));
    let flushing = lun.flush();
    assert_eq!(world.run(flushing).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    let flushing = lun.flush();
    world.run(flushing).expect("it is told once");
}

/// Of a MODE SELECT only other initiators are told.
#[test]
fn a_cache_that_our_own_user_switches_on_is_known_at_once() {
    let mut world = World::new(6);
    let (target, lun) = attach(&mut world, false);
    target.tell(|disk, cdb| match cdb {
        Cdb::ModeSelect(_) => {
            disk.is_cache_enabled = true;
            Reaction::Answer(Reply::data(Vec::new()))
        }
        _ => Reaction::Proper,
    });
    let raw = Arc::clone(&lun);
    world.run(async move { raw.execute(&[0x15, 0x10, 0, 0, 24, 0], &[0; 24], 0).await }).unwrap();
    write(&mut world, &lun);
    assert_eq!(lun.status().retained_bytes, 4096);
}
