//! A device that loses its power: between commits it has the state of the last one; during a commit
//! it is marked not clean, or has the state before or after it.

mod tools;

use std::sync::Arc;

use base::random::Random;
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use block::{Buffer, SharedDevice};
use ext2::{Error, ErrorKind, InodeNumber, NewNode, Owner};
use tools::{Plain, Tree, assert_same, now, open, tree_of};

const SIZE: u64 = 2 << 20;

fn made(seed: u64) -> (CrashLayer, SharedDevice) {
    let layer = CrashLayer::new(SIZE, seed);
    let device: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&device, &tools::make_options())).unwrap();
    (layer, device)
}

/// A few operations that are drawn from the seed; they may fail.
fn operate(file_system: &Plain, random: &mut Random) -> Result<(), Error> {
    for _ in 0..8 {
        let name = format!("name {}", random.below(6)).into_bytes();
        let root = InodeNumber::ROOT;
        let node = if random.chance(0.5) { NewNode::File } else { NewNode::Directory };
        let result = match random.below(4) {
            0 => now(file_system.unlink(root, &name)),
            1 => now(file_system.remove_directory(root, &name)),
            2 => now(file_system.create(root, &name, node, Owner::default())).map(drop),
            _ => now(async {
                let file = file_system.lookup(root, &name).await?.inode;
                file_system.write_file(file, random.below(30_000), &vec![random.below(255) as u8; 9000]).await
            }),
        };
        if let Err(error) = result
            && matches!(error.kind(), ErrorKind::Device(_))
        {
            return Err(error);
        }
    }
    Ok(())
}

fn stored(layer: &CrashLayer) -> SharedDevice {
    Arc::new(layer.clone())
}

fn tree_on(device: &SharedDevice) -> Tree {
    tree_of(&open(device, true).unwrap())
}

#[test]
fn a_crash_leaves_the_last_commit_or_says_that_one_was_under_way() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 3, 1) {
        let mut in_commit = 0;
        test.crash_at_every(seed, 4000, |crash_at| {
            let (layer, device) = made(seed);
            let file_system = open(&device, false).unwrap();
            let mut random = Random::new(seed);
            layer.power().fail_write(layer.power().writes_seen() + crash_at);
            let (mut before, mut after) = (tree_of(&file_system), Tree::new());
            let mut has_crashed = false;
            for _ in 0..4 {
                operate(&file_system, &mut random).expect("nothing is written between commits");
                after = tree_of(&file_system);
                has_crashed = now(file_system.commit()).is_err();
                if has_crashed {
                    break;
                }
                before = after.clone();
            }
            let left = layer.after_power_loss();
            let device = stored(&left);
            match open(&device, false) {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotClean, "{error}");
                    assert!(has_crashed, "it is clean between commits");
                    in_commit += 1;
                }
                Ok(file_system) => {
                    let found = tree_of(&file_system);
                    assert!(found == before || (has_crashed && found == after), "neither before nor after");
                    tools::check_device(&device);
                }
            }
            has_crashed
        });
        assert!(in_commit > 0 || test.seeds(0, 3, 1).count() < 3, "no crash was in the middle of a commit");
    }
}

#[test]
fn what_was_not_committed_is_not_there_after_a_crash() {
    let (layer, device) = made(5);
    let file_system = open(&device, false).unwrap();
    let owner = Owner::default();
    now(file_system.create(InodeNumber::ROOT, b"kept", NewNode::File, owner)).unwrap();
    now(file_system.commit()).unwrap();
    let before = tree_of(&file_system);
    now(file_system.create(InodeNumber::ROOT, b"lost", NewNode::File, owner)).unwrap();
    layer.power().lose();
    let device = stored(&layer.after_power_loss());
    assert_same(&tree_on(&device), &before, "after the crash");
    tools::check_device(&device);
}

/// A file without a name that was open when the host failed is freed when the file system is
/// opened.
#[test]
fn files_without_names_are_freed_at_the_next_start() {
    let (layer, device) = made(6);
    let file_system = open(&device, false).unwrap();
    let before = now(file_system.statistics()).unwrap();
    for number in 0..5 {
        let name = format!("{number}").into_bytes();
        let file = now(file_system.create(InodeNumber::ROOT, &name, NewNode::File, Owner::default())).unwrap().inode;
        now(file_system.write_file(file, 0, &vec![1; 50_000])).unwrap();
        now(file_system.open_file(file)).unwrap();
        now(file_system.unlink(InodeNumber::ROOT, &name)).unwrap();
        assert_eq!(now(file_system.read_file(file, 49_990, 100)).unwrap(), [1; 10]);
    }
    now(file_system.commit()).unwrap();
    assert!(now(file_system.statistics()).unwrap().free_blocks + 200 < before.free_blocks);
    layer.power().lose();
    let device = stored(&layer.after_power_loss());
    let file_system = open(&device, false).unwrap();
    assert_eq!(now(file_system.statistics()).unwrap(), before);
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
}

#[test]
fn a_commit_that_failed_is_made_whole_by_the_next() {
    let (layer, device) = made(7);
    let file_system = open(&device, false).unwrap();
    now(file_system.create(InodeNumber::ROOT, b"a", NewNode::Directory, Owner::default())).unwrap();
    let tree = tree_of(&file_system);
    layer.fail_flush_as(layer.flushes_seen() + 1, block::ErrorKind::Media, FlushEffect::None, Reported::Once);
    assert_eq!(now(file_system.commit()).unwrap_err().kind(), ErrorKind::Device(block::ErrorKind::Media));
    assert_same(&tree_of(&file_system), &tree, "after a commit that failed");
    assert_eq!(open(&device, false).err().map(|error| error.kind()), Some(ErrorKind::NotClean));
    now(file_system.commit()).unwrap();
    layer.power().lose();
    let device = stored(&layer.after_power_loss());
    assert_same(&tree_on(&device), &tree, "after the next commit");
    tools::check_device(&device);
}

/// From the first moment on the old content is not a file system; the new one is valid only at the
/// end.
#[test]
fn a_file_system_that_is_made_half_is_none() {
    let test = block::crash_test!();
    test.crash_at_every(3, 200, |crash_at| {
        let layer = CrashLayer::new(SIZE, 3);
        let device = stored(&layer);
        let old = ext2::MakeOptions { label: b"old".to_vec(), ..tools::make_options() };
        now(ext2::make(&device, &old)).unwrap();
        layer.power().fail_write(layer.power().writes_seen() + crash_at);
        let has_crashed = now(ext2::make(&device, &tools::make_options())).is_err();
        let device = stored(&layer.after_power_loss());
        let bytes = now(block::device::DeviceExt::read(&device, 1024, Buffer::zeroed(1024))).unwrap();
        let is_old = &bytes[120..123] == b"old";
        if let Ok(file_system) = open(&device, false) {
            tree_of(&file_system);
            assert!(is_old || !has_crashed || crash_at > 0);
            tools::check_device(&device);
        }
        has_crashed
    });
}
