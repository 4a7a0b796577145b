//! A host of a shared file system that has lost its lock, or the file system under it, changes nothing
//! any more; one that lost nothing by that goes on.

mod common;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use block::grants::{Right, Standing};
use block::{ErrorKind, SharedDevice};
use common::tools::{self, now, tree_of};
use common::{ROOT, Target, hours_from, names};
use ext2::{Access, Blocks, NewNode, Object, Operation, Owner};
use futures_util::FutureExt;
use sharedfs::Mounted;

/// Others may have changed anything since; what was done here would go over it.
#[test]
fn a_host_that_lost_its_lock_with_changes_does_nothing_any_more() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    assert!(target.paths[0].copies.are_dirty(target.paths[0].grants().range_of(0)));
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "another name").unwrap();
    target.turn_back_and_check(&mounts);
}

impl Target {
    fn turn_back_and_check(&self, mounts: &[Mounted; 2]) {
        let error = self.hold(0, &mounts[0]).err().expect("it conflicts");
        assert!(error.to_string().contains("conflicts with what others"), "{error}");
        assert!(mounts[0].blocks().loss().is_some());
        assert!(mounts[0].hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_err()));
        let bytes = tools::bytes_of(&self.disk);
        assert!(self.with_lock(0, sharedfs::close(&mounts[0])).is_err());
        // Nor when it gives the lock up.
        drop(self.hold(1, &mounts[1]).unwrap());
        assert!(tools::bytes_of(&self.disk) == bytes);
    }
}

#[test]
fn an_operation_under_which_the_lock_was_lost_has_no_effect() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let hold = target.hold(0, &mounts[0]).unwrap();
    let mut under_way = now(mounts[0].blocks().begin(Access::Change)).unwrap();
    now(under_way.change(ext2::BlockNumber(1500), Object::Attributes)).unwrap().fill(9);
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name").unwrap();
    drop(hold);
    let _again = target.hold(0, &mounts[0]).unwrap();
    assert!(now(under_way.end()).is_err());
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0);
    assert_eq!(names(&tree_of(&mounts[0])).len(), 1);
}

/// Nothing was changed here: what others did is read anew.
#[test]
fn a_host_that_lost_its_lock_without_changes_goes_on() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.tree(0, &mounts[0]);
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name").unwrap();
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 1);
}

#[test]
fn nothing_in_memory_is_used_when_the_lease_is_over() {
    let target = Target::made(1);
    let mount = target.mount(0);
    target.tree(0, &mount);
    target.paths[0].copies.allow_until(None);
    assert!(mount.hold(Access::Read).now_or_never().is_none());
    target.paths[0].copies.allow_until(Some(hours_from(&target.clock)));
    assert!(mount.hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_ok()));
}

/// The device writes nothing again by itself, for another host may have written there; but while this
/// one has the lock none has.
#[test]
fn what_is_lost_with_a_session_is_written_again_under_the_lock_and_only_there() {
    let target = Target::made(2);
    let mount = target.mount(0);
    for doubtful in 1..8 {
        target.create(0, &mount, &format!("name {doubtful}")).unwrap();
        target.paths[0].doubtful.store(doubtful, Ordering::Relaxed);
        let mut commit = pin!(mount.commit());
        while commit.as_mut().now_or_never().map(Result::unwrap).is_none() {
            target.clock.advance(Duration::from_millis(100));
            if target.paths[0].doubtful.load(Ordering::Relaxed) == 0 {
                now(commit).unwrap();
                break;
            }
        }
        assert_eq!(mount.blocks().counters().changed_blocks, 0);
    }
    target.create(0, &mount, "one more").unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mount.commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.paths[0].grants().remove(0, false);
    target.clock.advance(Duration::from_millis(100));
    assert!(now(commit).is_err());
    target.kill(0);
    let second = target.mount(1);
    assert_eq!(names(&target.tree(1, &second)).len(), 7);
    target.with_lock(1, sharedfs::close(&second)).unwrap();
    tools::check_device(&target.disk);
}

/// Another host may have had it between, whose changes would be written over.
#[test]
fn what_is_lost_with_a_session_is_not_written_again_under_a_lock_that_came_later() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mounts[0].commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "another name").unwrap();
    let mut hold = pin!(mounts[0].hold(Access::Change));
    assert!(hold.as_mut().now_or_never().is_none());
    target.turn(0);
    let bytes = tools::bytes_of(&target.disk);
    target.clock.advance(Duration::from_millis(100));
    assert!(now(commit).is_err());
    assert!(now(hold).is_err());
    assert!(tools::bytes_of(&target.disk) == bytes);
}

fn restore(disk: &SharedDevice, bytes: &[u8]) {
    let blocks = bytes.chunks_exact(1024).map(ext2::Block::copy_of);
    now(ext2::transfer::write_all(disk, 1024, (0..).map(ext2::BlockNumber).zip(blocks))).unwrap();
}

/// What it has in memory is of another file system by now.
#[test]
fn an_image_that_was_restored_or_replaced_while_its_target_was_away_is_noticed_and_not_written() {
    let another = tools::bytes_of(&tools::made(2 << 20, 1024));
    for (has_changes, is_replaced) in [(false, false), (true, false), (false, true), (true, true)] {
        for reads in [false, true] {
            let target = Target::made(2);
            let mounts = [target.mount(0), target.mount(1)];
            target.create(0, &mounts[0], "name").unwrap();
            now(mounts[0].commit()).unwrap();
            let copy = tools::bytes_of(&target.disk);
            target.create(0, &mounts[0], "name 2").unwrap();
            now(mounts[0].commit()).unwrap();
            if reads {
                target.tree(1, &mounts[1]);
            } else if has_changes {
                target.create(0, &mounts[0], "name 3").unwrap();
            }
            let image = if is_replaced { &another } else { &copy };
            target.start_again(|disk| restore(disk, image));
            for (host, mount) in mounts.iter().enumerate().take(1 + usize::from(reads)) {
                assert!(now(mount.commit()).is_err() || !has_changes || reads);
                let error = mount.hold(Access::Read).now_or_never().expect("it says so at once").err().unwrap();
                assert!(error.to_string().contains("restored or replaced"), "{error}");
                assert!(mount.blocks().loss().is_some());
                assert!(target.create(host, mount, "name 4").is_err());
                // Nor when it gives the lock up, which it does at once.
                target.call_back(host, Right::Change);
                assert!(!target.paths[host].is_dead.load(Ordering::Relaxed));
                assert!(now(sharedfs::close(mount)).is_err());
            }
            assert!(tools::bytes_of(&target.disk) == *image, "nothing was written there");
        }
    }
}

#[test]
fn a_target_that_starts_again_with_what_it_had_is_gone_on_with() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    for round in 0..4 {
        target.create(0, &mounts[0], &format!("name {round}")).unwrap();
        if round % 2 == 0 {
            now(mounts[0].commit()).unwrap();
        }
        if round == 2 {
            target.tree(1, &mounts[1]);
        }
        target.start_again(|_| ());
        target.tree(0, &mounts[0]);
        now(mounts[0].commit()).unwrap();
    }
    // A request goes on over it, and a record that was under way is written again.
    let hold = target.hold(0, &mounts[0]).unwrap();
    now(mounts[0].create(ROOT, b"name 4", NewNode::File, Owner::default())).unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mounts[0].commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.start_again(|_| ());
    target.clock.advance(Duration::from_millis(100));
    now(commit).unwrap();
    now(mounts[0].create(ROOT, b"name 5", NewNode::File, Owner::default())).unwrap();
    drop(hold);
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 6);
    assert!(mounts.iter().all(|mount| mount.blocks().loss().is_none()));
    tools::check_device(&target.disk);
}

/// It does not know of the others, and they do not know what it did.
#[test]
fn a_file_system_that_somebody_else_mounted_meanwhile_is_left_to_e2fsck() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    target.tree(1, &mounts[1]);
    let number = ext2::mount_state::block(1024);
    let mut block = ext2::Block::copy_of(&now(ext2::transfer::read_run(&target.disk, 1024, number, 1)).unwrap());
    ext2::mount_state::begin(block.to_mut(), ext2::Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }).unwrap();
    now(ext2::transfer::write_all(&target.disk, 1024, [(number, block)])).unwrap();
    assert_eq!(target.hold(0, &mounts[0]).err().map(|error| error.kind()), Some(ext2::ErrorKind::NotClean));
    assert!(mounts[0].blocks().loss().is_some_and(|error| error.to_string().contains("e2fsck")));
}

/// Its lock counts as held, and its lease is over; nobody has told it more.
#[test]
fn a_host_whose_target_is_away_tells_programs_so_and_goes_on_when_it_is_back() {
    for was_claimed in [false, true] {
        let target = Target::made(2);
        let (path, mount) = (&target.paths[0], target.mount(0));
        target.create(0, &mount, "name 0").unwrap();
        let hold = was_claimed.then(|| target.hold(0, &mount).unwrap());
        path.is_away.store(true, Ordering::Relaxed);
        match was_claimed {
            true => path.grants().set(0, Standing::Claimed),
            false => path.copies.allow_until(None),
        }
        let mut waits = pin!(async {
            match was_claimed {
                true => mount.create(ROOT, b"name 1", NewNode::File, Owner::default()).await.map(drop),
                false => mount.hold(Access::Change).await.map(drop),
            }
        });
        let mut ended = None;
        for _ in 0..50 {
            ended = waits.as_mut().now_or_never();
            if ended.is_some() {
                break;
            }
            target.clock.advance(Duration::from_millis(100));
        }
        let error = ended.expect("it waits for a target that is away").unwrap_err();
        assert_eq!(error.kind(), ext2::ErrorKind::Device(ErrorKind::TimedOut));
        // It is back within its lease: nothing is lost.
        path.is_away.store(false, Ordering::Relaxed);
        path.copies.allow_until(Some(hours_from(&target.clock)));
        path.grants().set(0, Standing::Held);
        drop(hold);
        assert!(mount.blocks().loss().is_none());
        target.create(0, &mount, "name 2").unwrap();
        now(mount.commit()).unwrap();
        target.kill(0);
        path.grants().remove(0, false);
        assert_eq!(names(&target.tree(1, &target.mount(1))).len(), 2);
    }
}

/// Also where nobody asks for the lock any more: a program's fsync, or the timer.
#[test]
fn what_conflicts_with_what_others_may_have_done_is_not_committed() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name 0").unwrap();
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name 1").unwrap();
    assert!(target.hold(0, &mounts[0]).is_err(), "it was done under a lock that is lost");
    let bytes = tools::bytes_of(&target.disk);
    assert!(now(mounts[0].commit()).is_err());
    // Nor when it gives up the lock that it asked for, which it does at once.
    target.paths[0].grants().set(0, Standing::Leaving);
    assert!(target.paths[0].copies.release(target.paths[0].grants().range_of(0)).now_or_never().is_some());
    assert!(tools::bytes_of(&target.disk) == bytes, "it wrote");
}

/// It had committed them, and another host brought them to their places and changed them.
#[test]
fn blocks_that_were_not_in_their_places_when_the_lock_was_lost_are_read_anew() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let file = target.create(0, &mounts[0], "name").unwrap();
    let write = |host: usize, byte| {
        let _hold = target.hold(host, &mounts[host]).unwrap();
        now(mounts[host].write_file(file, 0, &[byte; 3000])).unwrap();
        now(mounts[host].commit()).unwrap();
    };
    write(0, 1);
    // Its lease was over with nothing to be made durable.
    target.paths[0].grants().remove(0, false);
    write(1, 2);
    let _hold = target.hold(0, &mounts[0]).unwrap();
    assert_eq!(now(mounts[0].read_file(file, 0, 3000)).unwrap(), [2; 3000]);
}

/// Its answer comes when the lock is there again, and what was read is another host's by now.
#[test]
fn what_was_read_under_a_lock_that_was_lost_meanwhile_is_not_kept() {
    let target = Target::made(2);
    let (path, mounts) = (&target.paths[0], [target.mount(0), target.mount(1)]);
    let block = ext2::BlockNumber(1500);
    let _hold = target.hold(0, &mounts[0]).unwrap();
    let mut before = now(mounts[0].blocks().begin(Access::Read)).unwrap();
    path.hold_reads_after(0);
    let mut reading = pin!(before.read(block, Object::Attributes));
    assert!(reading.as_mut().now_or_never().is_none(), "it is under way");
    *path.reads_at_once.lock().unwrap() = None;
    path.grants().remove(0, false);
    let hold = target.hold(1, &mounts[1]).unwrap();
    let mut operation = now(mounts[1].blocks().begin(Access::Change)).unwrap();
    now(operation.change(block, Object::Attributes)).unwrap().fill(9);
    now(operation.end()).unwrap();
    drop(hold);
    let again = target.hold(0, &mounts[0]).unwrap();
    path.answer_reads();
    assert!(reading.as_mut().now_or_never().is_some(), "it is answered");
    let mut later = now(mounts[0].blocks().begin(Access::Read)).unwrap();
    assert_eq!(now(later.read(block, Object::Attributes)).unwrap()[..], [9; 1024]);
    drop(again);
}

/// The lock was another host's between two steps of it.
#[test]
fn a_request_over_two_tenures_has_no_effect() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let file = target.create(0, &mounts[0], "name").unwrap();
    let _hold = target.hold(0, &mounts[0]).unwrap();
    let block = ext2::BlockNumber(1500);
    let mut operation = now(mounts[0].blocks().begin(Access::Change)).unwrap();
    now(operation.change(block, Object::Attributes)).unwrap().fill(9);
    now(mounts[0].commit()).unwrap();
    target.paths[0].grants().remove(0, false);
    let hold = target.hold(1, &mounts[1]).unwrap();
    now(mounts[1].write_file(file, 0, &[2; 3000])).unwrap();
    drop(hold);
    // The lock is its own again.
    let again = target.hold(0, &mounts[0]).unwrap();
    assert!(now(operation.end()).is_err());
    assert_eq!(now(mounts[0].read_file(file, 0, 3000)).unwrap(), [2; 3000]);
    let mut later = now(mounts[0].blocks().begin(Access::Read)).unwrap();
    assert_eq!(now(later.read(block, Object::Attributes)).unwrap()[..], [0; 1024]);
    drop(again);
}

/// As where the file of the LUN is replaced.
#[test]
fn another_file_system_in_the_place_of_the_one_that_was_mounted_is_left_alone() {
    let target = Target::made(1);
    let mount = target.mount(0);
    target.create(0, &mount, "name 0").unwrap();
    target.give_up(0).expect("it can bring out what it has");
    let options = ext2::MakeOptions { uuid: uuid::Uuid::from_u128(77), ..tools::make_options() };
    now(ext2::make(&target.disk, &options)).unwrap();
    let bytes = tools::bytes_of(&target.disk);
    assert_eq!(target.hold(0, &mount).err().map(|error| error.kind()), Some(ext2::ErrorKind::NotClean));
    assert!(tools::bytes_of(&target.disk) == bytes, "nothing was written");
}
