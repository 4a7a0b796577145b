//! A LUN that is removed at its target and there again soon after (25h meanwhile): nothing that was acknowledged is
//! lost, and requests wait for it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, Instant};
use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::sharing::{Message, MessageBody, Support, action_out};
use scsi::{Cdb, Sense, vpd};
use support::World;
use support::scripted::{Disk, Reaction, Reply, Scripted};

const TIME: Duration = Duration::from_secs(12);
const BLOCK: usize = 4096;
const COUNT: u64 = 40;

/// The two lengths of an absence: the unit is there again when it is asked what it is, and not for some sessions.
const ABSENCES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(500)];

fn attach(world: &mut World, has_other_paths: bool) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    let options = InitiatorOptions { replacement_timeout: TIME, has_other_paths, ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun)
}

/// There is no unit for this long from the command on that `is_last`. What it had in its cache is gone with it. The
/// first read tells of a reset before, if `is_reset_before`.
fn remove(
    world: &World,
    target: &Scripted,
    (absence, is_reset_before): (Duration, bool),
    mut is_last: impl FnMut(&Cdb) -> bool + Send + 'static,
) {
    let clock = world.clock.clone();
    let (mut until, mut is_told): (Option<Instant>, bool) = (None, !is_reset_before);
    target.tell(move |disk, cdb| {
        if matches!(cdb, Cdb::Read(_)) && !std::mem::replace(&mut is_told, true) {
            disk.lose_cache();
            return Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET));
        }
        let is_removed = until.is_none() && is_last(cdb);
        if is_removed {
            disk.lose_cache();
            until = Some(clock.now() + absence);
        }
        match is_removed || until.is_some_and(|until| clock.now() < until) {
            true => Reaction::Answer(Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
            false => Reaction::Proper,
        }
    });
}

fn write_all(world: &mut World, lun: &RemoteLun) {
    for block in 0..COUNT {
        let writing = lun.write(block * BLOCK as u64, Buffer::copy_of(&[7; BLOCK]), false);
        world.run(writing).unwrap();
    }
}

fn read(world: &mut World, lun: &RemoteLun) -> Result<u8, ErrorKind> {
    let reading = lun.read(0, Buffer::zeroed(512));
    world.run(reading).map(|read| read[0]).map_err(|error| error.kind())
}

fn flush(world: &mut World, lun: &RemoteLun) -> Result<(), ErrorKind> {
    let flushing = lun.flush();
    world.run(flushing).map_err(|error| error.kind())
}

fn is_durable(target: &Scripted) -> bool {
    target.disk().durable(0, COUNT as usize * BLOCK).iter().all(|byte| *byte == 7)
}

/// The copies that are being written again are the only ones: the unit lost what it had before.
#[test]
fn a_replay_goes_on_when_the_unit_that_was_removed_under_it_is_there_again() {
    for absence in ABSENCES {
        for nth in [1, 17, COUNT] {
            for has_other_paths in [false, true] {
                let mut world = World::new(1);
                let (target, lun) = attach(&mut world, has_other_paths);
                let events = lun.subscribe();
                write_all(&mut world, &lun);
                let mut writes = 0;
                remove(&world, &target, (absence, true), move |cdb| {
                    writes += u64::from(matches!(cdb, Cdb::Write(_)));
                    writes == nth
                });
                assert_eq!(read(&mut world, &lun), Ok(7), "{absence:?}, {nth}");
                assert_eq!(flush(&mut world, &lun), Ok(()), "{absence:?}, {nth}");
                assert!(is_durable(&target), "{absence:?}, {nth}");
                let is_lost = std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost);
                assert!(!is_lost, "{absence:?}, {nth}");
            }
        }
    }
}

/// The request that hears of it is not worse off than those that come later; what was acknowledged is written again
/// before anything else, for the unit that comes may be one that never had it.
#[test]
fn a_request_that_finds_no_unit_waits_until_it_is_there_again() {
    type IsLast = fn(&Cdb) -> bool;
    let lasts: [IsLast; 3] = [
        |cdb| matches!(cdb, Cdb::Read(_)),
        |cdb| matches!(cdb, Cdb::Write(_)),
        |cdb| matches!(cdb, Cdb::SynchronizeCache(_)),
    ];
    for absence in ABSENCES {
        for is_last in lasts {
            let mut world = World::new(2);
            let (target, lun) = attach(&mut world, false);
            let events = lun.subscribe();
            write_all(&mut world, &lun);
            remove(&world, &target, (absence, false), is_last);
            let writing = lun.write(COUNT * BLOCK as u64, Buffer::copy_of(&[8; 3 * BLOCK]), false);
            let reading = lun.read(0, Buffer::zeroed(512));
            world.run(writing).unwrap();
            assert_eq!(world.run(reading).unwrap()[0], 7, "{absence:?}");
            assert_eq!(flush(&mut world, &lun), Ok(()), "{absence:?}");
            assert!(is_durable(&target), "{absence:?}");
            assert_eq!(target.disk().durable(COUNT as usize * BLOCK, 3 * BLOCK), [8; 3 * BLOCK], "{absence:?}");
            let is_lost = std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost);
            assert!(!is_lost, "{absence:?}");
        }
    }
}

/// A unit that does not come back, and one that says what it is and carries out nothing.
#[test]
fn a_request_that_finds_no_unit_has_its_time() {
    for is_absent in [true, false] {
        let mut world = World::new(3);
        let (target, lun) = attach(&mut world, false);
        target.tell(move |_, cdb| match is_absent || matches!(cdb, Cdb::Read(_) | Cdb::Write(_)) {
            true => Reaction::Answer(Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
            false => Reaction::Proper,
        });
        let began = world.clock.now();
        assert_eq!(read(&mut world, &lun), Err(ErrorKind::TimedOut));
        let took = world.clock.now().since(began);
        assert!(took <= TIME && (took == TIME) == is_absent, "{took:?}");
        target.tell(|_, _| Reaction::Proper);
        world.pass(TIME);
        assert_eq!(read(&mut world, &lun), Ok(0));
    }
}

/// Another path may lead to the unit, and is not to wait for this one.
#[test]
fn a_request_that_finds_no_unit_on_one_of_several_paths_goes_to_another_at_once() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world, true);
    remove(&world, &target, (TIME, false), |cdb| matches!(cdb, Cdb::Read(_)));
    let began = world.clock.now();
    assert_eq!(read(&mut world, &lun), Err(ErrorKind::Gone));
    assert!(world.clock.now().since(began) < TIME / 4);
}

/// A unit that hosts share and that registers this one.
fn shared() -> impl FnMut(&mut Disk, &Cdb) -> Option<Reaction> + Send {
    const CLIENT: u64 = 1 << 32 | 1;
    const LEASE_MS: u32 = 300_000;
    let support = Support {
        is_paper_profile: false,
        locks_max: 64,
        lease_ms: LEASE_MS,
        callback_ms: 10_000,
        callback_ms_max: 60_000,
        hold_ms_min: 20,
        block_bytes: 4096,
        untaken_max: 4096,
        prefetch_registers: true,
        withholds: true,
    };
    move |disk, cdb| match *cdb {
        Cdb::Inquiry { is_vpd: true, page: vpd::page::SUPPORTED_PAGES, .. } => {
            Some(Reaction::Answer(Reply::data(vpd::emit_supported_pages(&[0, vpd::page::SHARING]))))
        }
        Cdb::Inquiry { is_vpd: true, page: vpd::page::SHARING, .. } => {
            Some(Reaction::Answer(Reply::data(support.emit())))
        }
        Cdb::SharingOut { service_action: action_out::REGISTER, .. } => {
            let key = *disk.data_out.first_chunk().unwrap();
            let body = MessageBody::Registered { lease_ms: LEASE_MS, grace_ms: 0, key, proof: [9; 32] };
            Some(Reaction::Tell(Box::new(std::iter::once(Message { lun: 0, client: CLIENT, number: 1, body }))))
        }
        _ => None,
    }
}

/// A shared unit says itself what it lost. Reads wait for it; a write is not made again unasked, and is told to have
/// failed, as is a flush.
#[test]
fn a_host_that_shares_a_unit_does_not_take_its_removal_for_a_loss() {
    type IsLast = fn(&Cdb) -> bool;
    let lasts: [(IsLast, usize); 3] = [
        (|cdb| matches!(cdb, Cdb::Read(_)), 3),
        (|cdb| matches!(cdb, Cdb::Write(_)), 0),
        (|cdb| matches!(cdb, Cdb::SynchronizeCache(_)), 1),
    ];
    for (is_last, failing) in lasts {
        let mut world = World::new(5);
        let target = Scripted::new(&world);
        let mut sharing = shared();
        target.tell(move |disk, cdb| sharing(disk, cdb).unwrap_or(Reaction::Proper));
        let options = InitiatorOptions { replacement_timeout: TIME, is_shared: true, ..world.options() };
        let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
        world.executor.spawn(driver);
        let events = lun.subscribe();
        write_all(&mut world, &lun);
        let (mut sharing, mut is_told) = (shared(), false);
        target.tell(move |disk, cdb| {
            let is_removed = is_last(cdb) && !std::mem::replace(&mut is_told, true);
            match sharing(disk, cdb) {
                Some(reaction) => reaction,
                None if is_removed => Reaction::Answer(Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
                None => Reaction::Proper,
            }
        });
        let writing = lun.write(0, Buffer::copy_of(&[7; BLOCK]), false);
        let written = world.run(writing).map(drop).map_err(|error| error.kind());
        let flushed = flush(&mut world, &lun);
        let mut expected = [Ok(()); 2];
        expected.iter_mut().skip(failing).take(1).for_each(|told| *told = Err(ErrorKind::Gone));
        assert_eq!([written, flushed], expected);
        assert_eq!(read(&mut world, &lun), Ok(7));
        assert_eq!(flush(&mut world, &lun), Ok(()));
        assert!(std::iter::from_fn(|| events.try_receive()).all(|event| event != Event::WritesLost));
    }
}
