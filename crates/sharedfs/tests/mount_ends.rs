//! How the mounts of hosts end, and what that leaves to those that go on.

mod common;
#[path = "common/interruption.rs"]
mod interruption;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use block::ErrorKind;
use common::tools::now;
use common::{ROOT, Target, names};
use ext2::{Access, Blocks, mount_state};
use futures_util::FutureExt;
use interruption::Interruption;

/// Host 0 ends its mount, and dies after `count` requests of that. Host 1 goes on, and commits; then it dies as well.
/// Returns whether host 0 came to its end, and what the next mount finds.
fn end_interrupted_after(count: u64) -> (bool, Vec<String>) {
    let mut target = Target::made(2);
    let interruptions = Interruption::below(&mut target);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(1, &mounts[1], "name 1").unwrap();
    target.create(0, &mounts[0], "name 0").unwrap();
    interruptions[0].kill(count, &target.paths[0]);
    let has_ended = target.with_lock(0, sharedfs::close(&mounts[0])).is_ok();
    target.kill(0);
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name 2").unwrap();
    now(mounts[1].commit()).unwrap();
    target.kill(1);
    let next = Target::of(&target.disk, 1);
    let mut found = names(&next.tree(0, &next.mount(0)));
    found.sort();
    (has_ended, found)
}

/// The last that host 0 commits says *clean*. Host 1 brings that to its place, and what it commits then must not be
/// taken for what was there before an orderly end.
#[test]
fn a_host_at_work_goes_on_when_the_end_of_another_mount_is_interrupted() {
    for count in 0.. {
        let (has_ended, found) = end_interrupted_after(count);
        assert!(found.iter().any(|name| name.ends_with("name 2")), "after {count} requests: {found:?}");
        if has_ended {
            return;
        }
    }
}

/// They are another host's.
#[test]
fn a_mount_that_ends_beside_files_without_names_does_not_mark_it_as_clean() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let file = target.create(0, &mounts[0], "name").unwrap();
    let hold = target.hold(0, &mounts[0]).unwrap();
    now(mounts[0].open_file(file)).unwrap();
    now(mounts[0].unlink(ROOT, b"name")).unwrap();
    drop(hold);
    target.with_lock(1, sharedfs::close(&mounts[1])).unwrap();
    assert!(!now(mount_state::read(&target.disk)).unwrap().is_clean);
}

/// Another host has the lock, and the target says that this one is not served any more. Nobody who asks later is told
/// otherwise.
#[test]
fn a_host_that_is_not_served_any_more_has_lost_the_file_system_for_good() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let hold = target.hold(1, &mounts[1]).unwrap();
    let path = &target.paths[0];
    path.is_dead.store(true, Ordering::Relaxed);
    let mut waits = pin!(mounts[0].hold(Access::Change));
    let mut ended = None;
    while ended.is_none() {
        ended = waits.as_mut().now_or_never();
        target.clock.advance(Duration::from_millis(100));
    }
    let error = ended.unwrap().err().expect("it is told so");
    assert_eq!(error.kind(), ext2::ErrorKind::Device(ErrorKind::Gone));
    path.is_dead.store(false, Ordering::Relaxed);
    assert!(mounts[0].blocks().loss().is_some());
    assert!(mounts[0].hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_err()));
    drop(hold);
}

/// Nobody asks anything of it meanwhile: the commits that nobody asks for find that out.
#[test]
fn a_commit_of_a_host_that_is_not_served_any_more_is_its_last() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    target.kill(0);
    now(mounts[0].commit()).unwrap_err();
    assert!(mounts[0].blocks().loss().is_some());
}
