//! Several hosts that change one file system by turns, or read it together: what one did the next
//! finds, whatever becomes of the first.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::clock::Clock;
use base::random::Random;
use block::device::DeviceExt;
use block::grants::{Right, Standing};
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use block::{Device, ErrorKind, SharedDevice};
use common::tools::{self, Tree, assert_same, now, tree_of};
use common::{ROOT, Target, names};
use ext2::{Access, Blocks, Error, NewNode, Owner};
use futures_util::FutureExt;
use sharedfs::Mounted;

#[test]
fn hosts_see_at_once_what_others_did_and_the_device_is_whole_at_every_turn() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let mut expected = Vec::new();
    for round in 0..6 {
        let (host, other) = (round % 2, (round + 1) % 2);
        let name = format!("name {round}");
        let file = target.create(host, &mounts[host], &name).unwrap();
        let hold = target.hold(host, &mounts[host]).unwrap();
        now(mounts[host].write_file(file, 0, name.as_bytes())).unwrap();
        drop(hold);
        expected.push(name);
        let mut found = names(&target.tree(other, &mounts[other]));
        found.sort();
        assert_eq!(found.iter().map(|name| name.trim_start_matches('/')).collect::<Vec<_>>(), expected);
        // The other has the lock, and has changed nothing.
        tools::check_device(&target.disk);
        let plain = tools::open(&target.disk, true).unwrap();
        assert_same(&tree_of(&plain), &target.tree(other, &mounts[other]), "in their places");
    }
}

#[test]
fn a_request_goes_on_under_one_lock_until_it_ends() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let hold = target.hold(0, &mounts[0]).unwrap();
    let grants = target.paths[0].grants();
    grants.set(0, Standing::Leaving);
    let mut release = target.paths[0].copies.release(grants.range_of(0));
    assert!((&mut release).now_or_never().is_none());
    now(mounts[0].create(ROOT, b"name", NewNode::File, Owner::default())).unwrap();
    for access in [Access::Read, Access::Change] {
        assert!(mounts[0].hold(access).now_or_never().is_none(), "another request waits");
    }
    drop(hold);
    assert!((&mut release).now_or_never().is_some());
    grants.remove(0, false);
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0);
    assert!(now(mounts[0].blocks().begin(Access::Read)).is_err(), "nothing is done without the lock");
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 1);
}

#[test]
fn hosts_that_only_read_have_the_lock_at_the_same_time_and_ask_for_it_once() {
    let target = Target::made(4);
    let mounts: Vec<Mounted> = (0..4).map(|host| target.mount(host)).collect();
    target.create(0, &mounts[0], "name").unwrap();
    let trees: Vec<Tree> = (0..4).map(|host| target.tree(host, &mounts[host])).collect();
    let (asked, requests) = (target.asked(), target.requests());
    for _ in 0..10 {
        for (host, tree) in trees.iter().enumerate() {
            assert_same(&target.tree(host, &mounts[host]), tree, "as before");
            assert_same(tree, &trees[0], "as each other");
        }
    }
    assert_eq!((target.asked(), target.requests()), (asked.clone(), requests), "all of it is in memory");
    // One to mount and one to read, and the first to make the name; what it had to change it reads on.
    assert_eq!(asked, [2, 2, 2, 2]);
    target.create(3, &mounts[3], "another name").unwrap();
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
    assert_eq!(target.asked(), [3, 2, 2, 3]);
}

/// Nobody has it between.
#[test]
fn a_host_that_has_read_and_changes_something_keeps_what_it_has_read() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(1, &mounts[1], "name").unwrap();
    target.tree(0, &mounts[0]);
    target.tree(1, &mounts[1]);
    let misses = |host: usize| mounts[host].blocks().counters().misses;
    let before = misses(0);
    let hold = target.hold(0, &mounts[0]).unwrap();
    now(mounts[0].metadata(ROOT)).unwrap();
    assert_eq!(misses(0), before);
    assert!(target.paths[1].grants().standing(0).is_none(), "it is called back");
    assert!(mounts[1].hold(Access::Read).now_or_never().is_none());
    now(mounts[0].create(ROOT, b"name 2", NewNode::File, Owner::default())).unwrap();
    drop(hold);
    // What is read by another host is read on here.
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 2);
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0, "it is in its place");
    let (before, asked) = (misses(0), target.asked());
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
    assert_eq!((misses(0), target.asked()), (before, asked));
    tools::check_device(&target.disk);
}

/// Both go on reading until one of them is called back; that one drops what it has read.
#[test]
fn two_hosts_that_read_and_both_want_to_change_are_served_one_after_the_other() {
    for has_refused in [false, true] {
        let target = Target::made(2);
        let mounts = [target.mount(0), target.mount(1)];
        target.tree(0, &mounts[0]);
        target.tree(1, &mounts[1]);
        let mut holds = [pin!(mounts[0].hold(Access::Change)), pin!(mounts[1].hold(Access::Change))];
        for (host, hold) in holds.iter_mut().enumerate() {
            assert!(hold.as_mut().now_or_never().is_none());
            target.ask(host);
            assert!(mounts[host].hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_ok()), "it reads on");
        }
        let [first, second] = &mut holds;
        if has_refused {
            // As a lock manager does that cannot know whether what it was asked for is needed to give up the other.
            target.paths[1].grants().refuse(0, false);
        }
        target.call_back(1, Right::Change);
        target.grant(0);
        let hold = first.as_mut().now_or_never().unwrap().unwrap();
        now(mounts[0].create(ROOT, b"name 0", NewNode::File, Owner::default())).unwrap();
        assert!(second.as_mut().now_or_never().is_none());
        drop(hold);
        if has_refused {
            target.ask(1);
        }
        target.call_back(0, Right::Change);
        target.grant(1);
        let hold = second.as_mut().now_or_never().unwrap().unwrap();
        now(mounts[1].create(ROOT, b"name 1", NewNode::File, Owner::default())).unwrap();
        drop(hold);
        assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
        tools::check_device(&target.disk);
    }
}

/// It would be written by a host that is not the only one.
#[test]
fn a_host_that_has_the_lock_to_read_changes_nothing() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.tree(1, &mounts[1]);
    let bytes = tools::bytes_of(&target.disk);
    let hold = target.with_lock(0, mounts[0].hold(Access::Read)).unwrap();
    assert!(now(mounts[0].blocks().begin(Access::Read)).is_ok());
    assert!(now(mounts[0].blocks().begin(Access::Change)).is_err());
    assert!(now(mounts[0].create(ROOT, b"name", NewNode::File, Owner::default())).is_err());
    drop(hold);
    for host in [0, 1] {
        target.call_back(host, Right::Change);
    }
    assert!(tools::bytes_of(&target.disk) == bytes, "nothing is written to give it up, either");
}

/// What it had committed and not written to its place is written there before anything is read.
#[test]
fn what_a_host_that_died_with_the_lock_had_committed_is_there_and_nothing_later() {
    for commits in 1..4 {
        let target = Target::made(2);
        let mounts = [target.mount(0), target.mount(1)];
        target.tree(1, &mounts[1]);
        let mut expected = Vec::new();
        for commit in 0..commits {
            target.create(0, &mounts[0], &format!("name {commit}")).unwrap();
            now(mounts[0].commit()).unwrap();
            expected.push(format!("name {commit}"));
        }
        target.create(0, &mounts[0], "a later name").unwrap();
        target.kill(0);
        let found = names(&target.tree(1, &mounts[1]));
        assert_eq!(found.iter().map(|name| name.trim_start_matches('/')).collect::<Vec<_>>(), expected);
        tools::check_device(&target.disk);
        // The record of the dead is not taken for one of the living.
        target.create(1, &mounts[1], "one more").unwrap();
        now(mounts[1].commit()).unwrap();
        assert!(now(mounts[0].commit()).is_err());
        let tree = target.tree(1, &mounts[1]);
        target.with_lock(1, sharedfs::close(&mounts[1])).unwrap();
        tools::check_device(&target.disk);
        assert_same(&tree_of(&tools::open(&target.disk, true).unwrap()), &tree, "without the area");
    }
}

/// A file without a name belongs to who has it open: another host that comes leaves it, and the last
/// one frees it.
#[test]
fn what_a_host_has_open_without_a_name_stays_while_others_mount() {
    let target = Target::made(2);
    let first = target.mount(0);
    let file = target.create(0, &first, "name").unwrap();
    let hold = target.hold(0, &first).unwrap();
    now(first.open_file(file)).unwrap();
    now(first.write_file(file, 0, b"content")).unwrap();
    now(first.unlink(ROOT, b"name")).unwrap();
    drop(hold);
    let second = target.mount(1);
    target.with_lock(1, sharedfs::close(&second)).unwrap();
    let hold = target.hold(0, &first).unwrap();
    assert_eq!(now(first.read_file(file, 0, 99)).unwrap(), b"content");
    drop(hold);
    target.kill(0);
    target.paths[0].grants().remove(0, false);
    let alone = Target::of(&target.disk, 1);
    let last = alone.mount(0);
    alone.with_lock(0, sharedfs::close(&last)).unwrap();
    tools::check_device(&target.disk);
}

/// One that ends marks the file system as clean, and the next one that changes it as in use.
#[test]
fn a_mount_that_ends_leaves_the_others_at_work() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name 0").unwrap();
    target.with_lock(0, sharedfs::close(&mounts[0])).unwrap();
    assert!(now(ext2::mount_state::read(&target.disk)).unwrap().is_clean);
    target.create(1, &mounts[1], "name 1").unwrap();
    now(mounts[1].commit()).unwrap();
    assert!(!now(ext2::mount_state::read(&target.disk)).unwrap().is_clean);
    target.kill(1);
    target.paths[1].grants().remove(0, false);
    let next = Target::of(&target.disk, 1);
    let mount = next.mount(0);
    assert_eq!(names(&next.tree(0, &mount)).len(), 2);
}

/// A disk that loses what it had not made durable says so to one flush only.
#[test]
fn who_waits_for_the_lock_takes_no_error_from_the_commit_under_way() {
    let layer = CrashLayer::new(2 << 20, 1);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    let file = target.create(0, &mount, "name").unwrap();
    for byte in 1..3 {
        let _hold = target.hold(0, &mount).unwrap();
        now(mount.write_file(file, 0, &[byte; 3000])).unwrap();
        now(mount.commit()).unwrap();
    }
    // The next commit brings this to its place.
    target.create(0, &mount, "another name").unwrap();
    path.holds_flushes.store(true, Ordering::Relaxed);
    path.grants().set(0, Standing::Leaving);
    let mut release = path.copies.release(path.grants().range_of(0));
    assert!((&mut release).now_or_never().is_none(), "its flush is under way");
    let mut waits = pin!(mount.hold(Access::Change));
    for _ in 0..10 {
        assert!(waits.as_mut().now_or_never().is_none(), "another request waits");
        target.clock.advance(Duration::from_secs(1));
    }
    path.holds_flushes.store(false, Ordering::Relaxed);
    layer.fail_flush_as(layer.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    // What came last is first.
    let held = std::mem::take(&mut *path.held.lock().unwrap());
    for (sender, request) in held.into_iter().rev() {
        sender.complete(disk.submit(request).try_take().unwrap());
    }
    for _ in 0..20 {
        if (&mut release).now_or_never().is_some() {
            break;
        }
        target.clock.advance(Duration::from_millis(100));
    }
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    let mount = next.mount(0);
    let _hold = next.hold(0, &mount).unwrap();
    assert_eq!(now(mount.read_file(file, 0, 3000)).unwrap(), [2; 3000], "it was durable");
}

/// Each read takes as long as over a very long way: the request takes far longer than a callback
/// may without progress.
#[test]
fn a_request_that_takes_long_is_seen_to_get_on() {
    let target = Target::of(&tools::made(16 << 20, 1024), 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    let file = target.create(0, &mount, "name").unwrap();
    let hold = target.hold(0, &mount).unwrap();
    now(mount.write_file(file, 0, &vec![7; 8 << 20])).unwrap();
    now(mount.commit()).unwrap();
    path.grants().set(0, Standing::Leaving);
    let begin = target.clock.now();
    let seen = path.grants().progress();
    let step = Duration::from_millis(500);
    *path.read_time.lock().unwrap() = Some((target.clock.clone(), step));
    now(mount.unlink(ROOT, b"name")).unwrap();
    let taken = target.clock.now().since(begin);
    assert!(taken > Duration::from_secs(10), "it took {taken:?}");
    let steps = path.grants().progress() - seen;
    assert!(steps >= taken.as_millis() as u64 / step.as_millis() as u64, "{steps} in {taken:?}");
    drop(hold);
}

#[test]
fn the_lock_is_not_given_up_before_all_is_in_its_place() {
    let layer = CrashLayer::new(2 << 20, 1);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    target.create(0, &mount, "name").unwrap();
    for number in 0..3 {
        layer.fail_flush_as(layer.flushes_seen() + number, ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    }
    path.grants().set(0, Standing::Leaving);
    let mut release = path.copies.release(path.grants().range_of(0));
    assert!((&mut release).now_or_never().is_none(), "nothing is durable");
    for _ in 0..30 {
        if (&mut release).now_or_never().is_some() {
            break;
        }
        target.clock.advance(Duration::from_millis(100));
    }
    assert_eq!(mount.blocks().counters().changed_blocks, 0);
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    assert_eq!(names(&next.tree(0, &next.mount(0))).len(), 1);
}

/// More writes than a mount here has.
const MOUNT_WRITES_MAX: u64 = 16;

/// Mounts of others are killed before these of their writes, of which the record and the stamp are the last. Then the
/// power fails at this write of who goes on.
fn go_on_after(kills: [u64; 2], power_fails_at: u64) {
    let layer = CrashLayer::new(2 << 20, power_fails_at);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let at_work = target.mount(0);
    target.create(0, &at_work, "name 0").unwrap();
    now(at_work.commit()).unwrap();
    target.give_up(0).expect("it can bring out what it has");
    for kill in kills {
        layer.fail_writes_from(layer.writes_seen() + kill, ErrorKind::Gone);
        // One that has fewer writes is killed after it.
        let _ = Target::of(&disk, 1).try_mount(0);
        layer.heal();
        // The target does so before the lock of a dead client passes on.
        now(disk.flush()).unwrap();
    }
    let case = format!("killed before writes {kills:?}, no power from write {power_fails_at}");
    if let Err(error) = target.hold(0, &at_work) {
        panic!("{case}: {error}");
    }
    layer.power().fail_write(layer.power().writes_seen() + power_fails_at);
    let _ = target.create(0, &at_work, "name 1");
    let _ = now(at_work.commit());
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    let mount = next.try_mount(0).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(names(&next.tree(0, &mount)).iter().any(|name| name.ends_with("name 0")), "{case}");
}

#[test]
fn a_host_at_work_goes_on_when_mounts_of_others_are_interrupted() {
    for first in 0..MOUNT_WRITES_MAX {
        // The second one has nothing to bring to its place.
        for (second, power_fails_at) in (0..12).map(|case| (case % 3, case / 3)) {
            go_on_after([first, second], power_fails_at);
        }
    }
}

#[test]
fn the_lock_is_not_given_up_while_a_commit_is_under_way() {
    let target = Target::made(2);
    let (path, mounts) = (&target.paths[0], [target.mount(0), target.mount(1)]);
    target.create(0, &mounts[0], "name").unwrap();
    path.holds_flushes.store(true, Ordering::Relaxed);
    let mut commit = pin!(mounts[0].commit());
    assert!(commit.as_mut().now_or_never().is_none(), "its flush is under way");
    path.holds_flushes.store(false, Ordering::Relaxed);
    path.grants().set(0, Standing::Leaving);
    let mut release = path.copies.release(path.grants().range_of(0));
    assert!((&mut release).now_or_never().is_none(), "what is committed is not durable");
    for (sender, request) in std::mem::take(&mut *path.held.lock().unwrap()) {
        sender.complete(target.disk.submit(request).try_take().unwrap());
    }
    now(commit).unwrap();
    assert!((&mut release).now_or_never().is_some());
    path.grants().remove(0, false);
    target.kill(0);
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 1);
}

/// More reads than it takes to begin anew under a lock.
const RENEWAL_READS_MAX: u64 = 12;

/// Two requests that come when the lock is back: the second one does not begin anew over what the first one does then.
#[test]
fn a_host_begins_anew_once_under_a_lock_that_others_had_meanwhile() {
    for reads in 0..RENEWAL_READS_MAX {
        let target = Target::made(2);
        let (path, mounts) = (&target.paths[0], [target.mount(0), target.mount(1)]);
        let file = target.create(0, &mounts[0], "name 0").unwrap();
        target.create(1, &mounts[1], "name 1").unwrap();
        path.hold_reads_after(0);
        let [mut one, mut two] = [(); 2].map(|()| Box::pin(mounts[0].hold(Access::Change)));
        assert!(one.as_mut().now_or_never().is_none(), "it waits for the lock");
        target.turn(0);
        assert!(one.as_mut().now_or_never().is_none(), "it looks at what is there");
        path.hold_reads_after(reads);
        assert!(two.as_mut().now_or_never().is_none(), "it waits for the first one");
        path.answer_first_read();
        let hold = one.as_mut().now_or_never().expect("all of its reads are answered").unwrap();
        now(mounts[0].write_file(file, 0, &[7; 3000])).unwrap();
        now(mounts[0].commit()).unwrap();
        path.answer_reads();
        let second = two.as_mut().now_or_never().expect("all of its reads are answered").unwrap();
        now(mounts[0].create(ROOT, b"name 2", NewNode::File, Owner::default())).unwrap();
        now(mounts[0].commit()).unwrap();
        drop((hold, second));
        target.kill(0);
        path.grants().remove(0, false);
        let _hold = target.hold(1, &mounts[1]).unwrap();
        assert_eq!(now(mounts[1].read_file(file, 0, 3000)).unwrap(), [7; 3000], "after {reads} reads");
    }
}

/// It need not live until another one has the lock.
#[test]
fn a_host_that_has_given_the_lock_up_has_left_everything_in_its_place() {
    let target = Target::made(2);
    let mount = target.mount(0);
    for name in ["name 0", "name 1"] {
        target.create(0, &mount, name).unwrap();
        now(mount.commit()).unwrap();
    }
    let tree = target.tree(0, &mount);
    target.give_up(0).expect("it can bring out what it has");
    tools::check_device(&target.disk);
    assert_same(&tree_of(&tools::open(&target.disk, true).unwrap()), &tree, "without the area");
}

/// A few operations that are drawn from the seed; they may fail.
fn operate(file_system: &Mounted, random: &mut Random) -> Result<(), Error> {
    for _ in 0..4 {
        let name = format!("name {}", random.below(6)).into_bytes();
        let result = match random.below(3) {
            0 => now(file_system.unlink(ROOT, &name)),
            1 => now(file_system.create(ROOT, &name, NewNode::File, Owner::default())).map(drop),
            _ => now(async {
                let file = file_system.lookup(ROOT, &name).await?.inode;
                file_system.write_file(file, random.below(30_000), &vec![random.below(255) as u8; 5000]).await
            }),
        };
        if let Err(error) = result
            && matches!(error.kind(), ext2::ErrorKind::Device(_))
        {
            return Err(error);
        }
    }
    Ok(())
}

/// The state that is durable for certain, and that of the commit under way.
struct Promise {
    before: Tree,
    after: Tree,
}

/// Two hosts, some turns of each, until the power fails.
fn live(target: &Target, seed: u64, promise: &mut Promise) -> Result<(), Error> {
    let mut random = Random::new(seed);
    let mounts = [target.try_mount(0)?, target.try_mount(1)?];
    let mut last = 1;
    for _ in 0..8 {
        let host = random.below(2) as usize;
        let hold = target.hold(host, &mounts[host])?;
        if host != last {
            promise.before = promise.after.clone();
        }
        last = host;
        operate(&mounts[host], &mut random)?;
        promise.after = tree_of(&mounts[host]);
        drop(hold);
        if random.chance(0.5) {
            let reader = 1 - host;
            let hold = target.with_lock(reader, mounts[reader].hold(Access::Read))?;
            assert_same(&tree_of(&mounts[reader]), &promise.after, "as the other host reads it");
            drop(hold);
            promise.before = promise.after.clone();
        }
        if random.chance(0.5) {
            now(mounts[host].commit())?;
            promise.before = promise.after.clone();
        }
    }
    Ok(())
}

/// The power of the target fails, and with it what was not flushed: none of the hosts lives on.
#[test]
fn whatever_write_a_crash_comes_at_the_next_mount_has_what_a_turn_left() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 3, 1) {
        test.crash_at_every(seed, 4000, |crash_at| {
            let layer = CrashLayer::new(2 << 20, seed);
            let disk: SharedDevice = Arc::new(layer.clone());
            now(ext2::make(&disk, &tools::make_options())).unwrap();
            layer.power().fail_write(layer.power().writes_seen() + crash_at);
            let empty = tree_of(&tools::open(&disk, true).unwrap());
            let mut promise = Promise { before: empty.clone(), after: empty };
            let target = Target::of(&disk, 2);
            let has_crashed = live(&target, seed, &mut promise).is_err();
            let left: SharedDevice = Arc::new(layer.after_power_loss());
            let next = Target::of(&left, 1);
            let mount = next.mount(0);
            let found = next.tree(0, &mount);
            if found != promise.before {
                assert_same(&found, &promise.after, "neither the last commit nor the one under way");
            }
            next.with_lock(0, sharedfs::close(&mount)).unwrap();
            tools::check_device(&left);
            has_crashed
        });
    }
}
