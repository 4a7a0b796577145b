//! Which sessions bring requests nearer to their end, so that those that wait have their whole time again once such a
//! session is lost; and that requests end in their time at a target whose sessions are of no use.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use initiator::{Compared, InitiatorOptions, RemoteLun};
use scsi::Cdb;
use scsi::capacity::Capacity;
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

const TIME: Duration = Duration::from_secs(6);
const BLOCK: usize = 512;

/// What a session answers, once; other commands wait without an end.
#[derive(Clone, Copy, Debug)]
enum Answered {
    Read,
    Flush,
    Extents,
    CompareAndWrite,
    TestUnitReady,
}

fn attach(world: &mut World, target: &Scripted) -> Arc<RemoteLun> {
    let command_timeout = Duration::from_secs(600);
    let options = InitiatorOptions { command_timeout, replacement_timeout: TIME, ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    lun
}

/// Thin, so that it is asked for extents.
fn thin() -> Reaction {
    let capacity = Capacity {
        last_lba: 2047,
        block_bytes: BLOCK as u32,
        physical_block_exponent: 0,
        is_thin: true,
        unmapped_reads_zeroes: true,
        lowest_aligned_lba: 0,
    };
    Reaction::Answer(Reply::data(capacity.emit_16().to_vec()))
}

/// Has the target end the session.
fn lose_session(world: &mut World, lun: &Arc<RemoteLun>, is_leaving: &AtomicBool) {
    is_leaving.store(true, Ordering::Relaxed);
    let asking = Arc::clone(lun);
    let lost = world.run(async move { asking.execute(&[0; 6], &[], 0).await });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    is_leaving.store(false, Ordering::Relaxed);
}

fn ask(world: &mut World, lun: &Arc<RemoteLun>, what: Answered) {
    let asking = Arc::clone(lun);
    match what {
        Answered::Read => drop(world.run(lun.read(0, Buffer::zeroed(BLOCK))).unwrap()),
        Answered::Flush => world.run(lun.flush()).unwrap(),
        Answered::Extents => drop(world.run(lun.extents(0, BLOCK as u64)).unwrap()),
        Answered::CompareAndWrite => {
            let bytes = [7; BLOCK];
            let compared = world.run(async move { asking.compare_and_write(0, &bytes, &bytes).await });
            assert_eq!(compared.unwrap(), Compared::Written);
        }
        Answered::TestUnitReady => {
            assert_eq!(world.run(async move { asking.execute(&[0; 6], &[], 0).await }).unwrap().status, 0);
        }
    }
}

/// Whether writes that waited longer than their time are carried out after the loss of a session that answered `what`.
/// It was not the first to be lost.
fn has_whole_time_after(what: Answered) -> bool {
    let mut world = World::new(1);
    let target = Scripted::new(&world);
    let (is_leaving, is_stuck) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (leaves, sticks) = (Arc::clone(&is_leaving), Arc::clone(&is_stuck));
    target.tell(move |_, cdb| match cdb {
        Cdb::TestUnitReady if leaves.load(Ordering::Relaxed) => Reaction::Leave,
        Cdb::Write(transfer) if transfer.blocks.lba >= 64 && sticks.load(Ordering::Relaxed) => Reaction::Answer(None),
        Cdb::CompareAndWrite { .. } | Cdb::GetLbaStatus { .. } => Reaction::Answer(Reply::data(Vec::new())),
        Cdb::ReadCapacity16 { .. } => thin(),
        _ => Reaction::Proper,
    });
    let lun = attach(&mut world, &target);
    // Written again in the second session, and there to be flushed.
    world.run(lun.write(0, Buffer::copy_of(&[7; BLOCK]), false)).unwrap();
    lose_session(&mut world, &lun, &is_leaving);
    world.pass(TIME / 2);
    is_stuck.store(true, Ordering::Relaxed);
    let writes: Vec<_> = (0..2).map(|_| lun.write(64 * BLOCK as u64, Buffer::zeroed(BLOCK), false)).collect();
    ask(&mut world, &lun, what);
    world.pass(TIME + Duration::from_secs(1));
    lose_session(&mut world, &lun, &is_leaving);
    is_stuck.store(false, Ordering::Relaxed);
    writes.into_iter().all(|write| world.run(write).is_ok())
}

#[test]
fn requests_have_their_whole_time_after_a_session_that_did_something_with_blocks_and_not_after_mere_answers() {
    for what in [Answered::Read, Answered::Flush, Answered::Extents, Answered::CompareAndWrite] {
        assert!(has_whole_time_after(what), "{what:?}");
    }
    assert!(!has_whole_time_after(Answered::TestUnitReady), "it is as good as a login");
}

/// Each session takes a few of the copies, begins with the first of them, and breaks off.
#[test]
fn requests_end_in_their_time_at_a_target_that_takes_copies_and_never_all_of_them() {
    let mut world = World::new(2);
    let target = Scripted::new(&world);
    let lun = attach(&mut world, &target);
    for block in 0..64 {
        world.run(lun.write(block * 8192, Buffer::copy_of(&[7; BLOCK]), false)).unwrap();
    }
    let (mut writes, mut is_left) = (0, false);
    target.tell(move |_, cdb| match cdb {
        Cdb::Write(_) => {
            writes += 1;
            if writes % 16 == 0 { Reaction::Leave } else { Reaction::Proper }
        }
        // The first session ends by it; each one asks it at its login.
        Cdb::TestUnitReady if !std::mem::replace(&mut is_left, true) => Reaction::Leave,
        _ => Reaction::Proper,
    });
    let began = base::clock::Clock::now(&world.clock);
    let asking = Arc::clone(&lun);
    world.run(async move { asking.execute(&[0; 6], &[], 0).await }).unwrap_err();
    world.pass(Duration::from_millis(1));
    let ended = Arc::new(AtomicBool::new(false));
    let (reading, ends) = (lun.read(0, Buffer::zeroed(BLOCK)), Arc::clone(&ended));
    world.executor.spawn(async move {
        let error = reading.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        ends.store(true, Ordering::Relaxed);
    });
    world.pass(TIME + Duration::from_millis(100));
    let took = base::clock::Clock::now(&world.clock).since(began);
    assert!(ended.load(Ordering::Relaxed), "it waits still, after {took:?}");
}

/// The session before was lost longer ago than requests wait.
#[test]
fn a_request_that_came_late_in_a_session_of_no_use_has_its_whole_time() {
    let mut world = World::new(3);
    let target = Scripted::new(&world);
    let (is_leaving, is_stuck) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (leaves, sticks) = (Arc::clone(&is_leaving), Arc::clone(&is_stuck));
    target.tell(move |_, cdb| match cdb {
        Cdb::TestUnitReady if leaves.load(Ordering::Relaxed) => Reaction::Leave,
        Cdb::Read(_) if sticks.load(Ordering::Relaxed) => Reaction::Answer(None),
        _ => Reaction::Proper,
    });
    let lun = attach(&mut world, &target);
    lose_session(&mut world, &lun, &is_leaving);
    world.pass(2 * TIME);
    is_stuck.store(true, Ordering::Relaxed);
    let reading = lun.read(0, Buffer::zeroed(BLOCK));
    world.pass(Duration::from_millis(1));
    lose_session(&mut world, &lun, &is_leaving);
    is_stuck.store(false, Ordering::Relaxed);
    world.run(reading).expect("it waited for a millisecond");
}
