//! An image that is restored from a copy while its target is away is noticed by every host that had the
//! lock, whatever that does first.

mod common;
#[path = "common/interruption.rs"]
mod interruption;

use std::sync::Arc;

use block::SharedDevice;
use block::grants::{Right, Standing};
use common::Target;
use common::tools::{self, now};
use ext2::{Block, BlockNumber, Error, transfer};
use futures_util::FutureExt;
use interruption::Interruption;

const BLOCK_BYTES: usize = 1024;

fn restore(disk: &SharedDevice, bytes: &[u8]) {
    let blocks = bytes.chunks_exact(BLOCK_BYTES).map(Block::copy_of);
    now(transfer::write_all(disk, BLOCK_BYTES, (0..).map(BlockNumber).zip(blocks))).unwrap();
}

/// The first thing that a host does, which has read, is a change.
#[test]
fn who_reads_and_then_changes_something_notices_an_image_that_was_restored() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    now(mounts[0].commit()).unwrap();
    let copy = tools::bytes_of(&target.disk);
    target.create(0, &mounts[0], "name 2").unwrap();
    target.tree(1, &mounts[1]);
    target.call_back(0, Right::Change);
    target.start_again(|disk| restore(disk, &copy));
    let changed = target.create(1, &mounts[1], "name 4");
    assert!(changed.is_err(), "{changed:?}");
    assert!(tools::bytes_of(&target.disk) == copy, "nothing was written there");
}

/// The first thing that a host does is to give the lock up.
#[test]
fn who_is_called_back_after_a_start_writes_nothing_into_an_image_that_was_restored() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    now(mounts[0].commit()).unwrap();
    let copy = tools::bytes_of(&target.disk);
    target.create(0, &mounts[0], "name 2").unwrap();
    now(mounts[0].commit()).unwrap();
    target.start_again(|disk| restore(disk, &copy));
    target.call_back(0, Right::Change);
    assert!(tools::bytes_of(&target.disk) == copy, "nothing was written there");
}

/// Host 1 has read, and changes something. At this request of that its target goes away, and comes back, with
/// `is_restored` with an older image. With `has_ended` the mount of host 0 had come to its end: host 1 marks it as in
/// use first. Returns whether the change came to that request, and what became of it and its commit.
fn change_over_a_start(count: u64, is_restored: bool, has_ended: bool) -> (bool, Result<(), Error>) {
    let mut target = Target::made(3);
    let interruptions = Interruption::below(&mut target);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    now(mounts[0].commit()).unwrap();
    target.tree(1, &mounts[1]);
    let copy = tools::bytes_of(&target.disk);
    target.create(0, &mounts[0], "name 2").unwrap();
    if has_ended {
        target.with_lock(0, sharedfs::close(&mounts[0])).unwrap();
    }
    target.tree(1, &mounts[1]);
    let (disk, path) = (Arc::clone(&target.disk), Arc::clone(&target.paths[1]));
    interruptions[1].set(count, move || {
        if is_restored {
            restore(&disk, &copy);
        }
        path.grants().turn(&[Standing::Held], Some(Standing::Claimed));
        // A client drops its copies when its target has started again.
        path.copies.revoke(path.grants().range_of(0)).now_or_never().expect("nothing is under way");
        path.grants().set(0, Standing::Held);
        true
    });
    let changed = target.create(1, &mounts[1], "name 4").map(drop);
    let was_there = interruptions[1].clear();
    (was_there, changed.and_then(|()| now(mounts[1].commit())))
}

/// At each request of a change, until there are no more.
fn at_every_request(is_restored: bool, has_ended: bool, check: impl Fn(u64, Result<(), Error>)) {
    for count in 0.. {
        let (was_there, changed) = change_over_a_start(count, is_restored, has_ended);
        if !was_there {
            assert!(count > 3 && changed.is_ok(), "{count} requests: {changed:?}");
            return;
        }
        check(count, changed);
    }
}

#[test]
fn an_image_that_is_restored_while_a_reader_becomes_a_writer_is_noticed() {
    for has_ended in [false, true] {
        at_every_request(true, has_ended, |count, changed| {
            assert!(changed.is_err(), "request {count}, ended {has_ended}: it goes on with an older image");
        });
    }
}

#[test]
fn a_reader_becomes_a_writer_while_its_target_starts_again_with_what_it_had() {
    for has_ended in [false, true] {
        at_every_request(false, has_ended, |count, changed| {
            assert!(changed.is_ok(), "request {count}, ended {has_ended}: {changed:?}");
        });
    }
}
