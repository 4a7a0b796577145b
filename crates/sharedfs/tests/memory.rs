//! What is kept in memory, and when a commit comes by itself.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::sync::Arc;

use block::SharedDevice;
use ext2::{Access, Blocks, InodeNumber, NewNode, Object, Operation, Owner};
use sharedfs::Mounted;
use tools::now;

const CACHE_BYTES: u64 = 256 << 10;

fn mount(device: &SharedDevice) -> Mounted {
    now(sharedfs::open(Arc::clone(device), tools::options(false), CACHE_BYTES, None)).unwrap()
}

fn file(file_system: &Mounted, name: &[u8]) -> InodeNumber {
    now(file_system.create(InodeNumber::ROOT, name, NewNode::File, Owner::default())).unwrap().inode
}

#[test]
fn more_than_a_transaction_may_have_is_committed_on_the_way() {
    let device = tools::made(16 << 20, 1024);
    let file_system = mount(&device);
    let inode = file(&file_system, b"a");
    let content: Vec<u8> = (0..6 << 20).map(|at: u32| (at % 251) as u8).collect();
    now(file_system.write_file(inode, 777, &content)).unwrap();
    let counters = file_system.blocks().counters();
    // 16 MiB have an area of 1 MiB, of which a transaction may be half.
    assert!(counters.commits >= 12, "{counters:?}");
    assert!(counters.changed_blocks <= 512, "{counters:?}");
    let metadata = now(file_system.metadata(inode)).unwrap();
    assert!(tools::content_of(&file_system, &metadata)[777..] == content);
    now(file_system.set_size(inode, 5)).unwrap();
    now(sharedfs::close(&file_system)).unwrap();
    tools::check_device(&device);
}

#[test]
fn unchanged_blocks_stay_up_to_the_quota_and_changed_ones_whatever_it_is() {
    let device = tools::made(16 << 20, 1024);
    let file_system = mount(&device);
    let inode = file(&file_system, b"a");
    now(file_system.write_file(inode, 0, &vec![7; 400 << 10])).unwrap();
    let changed = file_system.blocks().counters().changed_blocks;
    assert!(changed > 400, "{changed}");
    now(file_system.commit()).unwrap();
    for _ in 0..2 {
        let metadata = now(file_system.metadata(inode)).unwrap();
        assert!(tools::content_of(&file_system, &metadata) == vec![7; 400 << 10]);
        let counters = file_system.blocks().counters();
        assert!(counters.cached_blocks as u64 <= CACHE_BYTES / 1024, "{counters:?}");
    }
}

#[test]
fn a_commit_with_nothing_to_commit_writes_nothing() {
    let device = tools::made(4 << 20, 1024);
    let file_system = mount(&device);
    file(&file_system, b"a");
    now(file_system.commit()).unwrap();
    let (bytes, counters) = (tools::bytes_of(&device), file_system.blocks().counters());
    now(file_system.commit()).unwrap();
    assert!(tools::bytes_of(&device) == bytes);
    assert_eq!(file_system.blocks().counters().commits, counters.commits);
}

/// The redo area is a file: its blocks count as used, and it is made once.
#[test]
fn the_area_is_made_once_and_takes_a_sixteenth() {
    let device = tools::made(16 << 20, 1024);
    let before = now(tools::open(&device, true).unwrap().statistics()).unwrap().free_blocks;
    for _ in 0..3 {
        let file_system = mount(&device);
        let taken = before - now(file_system.statistics()).unwrap().free_blocks;
        // With indirect blocks.
        assert!((1024..1024 + 8).contains(&taken), "{taken}");
        now(sharedfs::close(&file_system)).unwrap();
        tools::check_device(&device);
    }
}

/// A dropped operation has no effect, whatever was read for it.
#[test]
fn an_operation_that_does_not_end_changes_nothing() {
    let device = tools::made(4 << 20, 1024);
    let file_system = mount(&device);
    let blocks = file_system.blocks();
    let number = ext2::BlockNumber(1500);
    let mut dropped = now(blocks.begin(Access::Change)).unwrap();
    now(dropped.change(number, Object::Attributes)).unwrap().fill(9);
    assert_eq!(now(dropped.read(number, Object::Attributes)).unwrap()[..], [9; 1024]);
    drop(dropped);
    let mut ended = now(blocks.begin(Access::Change)).unwrap();
    assert_eq!(now(ended.read(number, Object::Attributes)).unwrap()[..], [0; 1024]);
    now(ended.replace(number, Object::Attributes)).unwrap()[0] = 1;
    now(ended.end()).unwrap();
    let mut later = now(blocks.begin(Access::Read)).unwrap();
    assert_eq!(now(later.read(number, Object::Attributes)).unwrap()[..2], [1, 0]);
}

#[test]
fn nothing_is_begun_after_the_end() {
    let device = tools::made(4 << 20, 1024);
    let file_system = mount(&device);
    now(sharedfs::close(&file_system)).unwrap();
    let bytes = tools::bytes_of(&device);
    assert!(now(file_system.create(InodeNumber::ROOT, b"a", NewNode::File, Owner::default())).is_err());
    assert!(now(file_system.metadata(InodeNumber::ROOT)).is_err());
    assert!(tools::bytes_of(&device) == bytes);
}
