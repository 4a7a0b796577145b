//! A device that loses its power: after the next mount the file system has the state of some
//! commit, the last acknowledged one or one after it.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::sync::Arc;

use base::random::Random;
use block::SharedDevice;
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use ext2::{Blocks, Error, ErrorKind, FileSystem, InodeNumber, NewNode, Owner};
use sharedfs::Mounted;
use tools::{Tree, assert_same, now, tree_of};

const SIZE: u64 = 2 << 20;
const CACHE_BYTES: u64 = 256 << 10;

fn made(seed: u64) -> (CrashLayer, SharedDevice) {
    let layer = CrashLayer::new(SIZE, seed);
    let device: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&device, &tools::make_options())).unwrap();
    (layer, device)
}

fn mount(device: &SharedDevice, is_read_only: bool) -> Result<Mounted, Error> {
    now(sharedfs::open(Arc::clone(device), tools::options(is_read_only), CACHE_BYTES, None))
}

fn after_crash(layer: &CrashLayer) -> (CrashLayer, SharedDevice) {
    let left = layer.after_power_loss();
    (left.clone(), Arc::new(left))
}

/// A few operations that are drawn from the seed; they may fail.
fn operate<B: Blocks>(file_system: &FileSystem<B>, random: &mut Random) -> Result<(), Error> {
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

/// The state that is durable for certain, and the states that may be since: at most one commit is
/// under way.
struct Promise {
    before: Tree,
    after: Tree,
}

/// Two mounts, each with some commits and an end, until the power fails.
fn live(device: &SharedDevice, seed: u64, promise: &mut Promise) -> Result<(), Error> {
    let mut random = Random::new(seed);
    for _ in 0..2 {
        let file_system = mount(device, false)?;
        for _ in 0..4 {
            operate(&file_system, &mut random)?;
            promise.after = tree_of(&file_system);
            now(file_system.commit())?;
            promise.before = promise.after.clone();
        }
        operate(&file_system, &mut random)?;
        promise.after = tree_of(&file_system);
        now(sharedfs::close(&file_system))?;
        promise.before = promise.after.clone();
    }
    Ok(())
}

#[test]
fn whatever_write_a_crash_comes_at_the_next_mount_has_what_a_commit_left() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 2, 1) {
        test.crash_at_every(seed, 4000, |crash_at| {
            let (layer, device) = made(seed);
            layer.power().fail_write(layer.power().writes_seen() + crash_at);
            let empty = tree_of(&tools::open(&device, true).unwrap());
            let mut promise = Promise { before: empty.clone(), after: empty };
            let has_crashed = live(&device, seed, &mut promise).is_err();
            let (mut layer, mut device) = after_crash(&layer);
            // The recovery may be interrupted as well.
            for again in [crash_at % 5, crash_at % 11] {
                layer.power().fail_write(layer.power().writes_seen() + again);
                let _ = mount(&device, false);
                (layer, device) = after_crash(&layer);
            }
            let looked_at = tree_of(&mount(&device, true).unwrap());
            let file_system = mount(&device, false).unwrap();
            let found = tree_of(&file_system);
            assert_same(&found, &looked_at, "read-only, and mounted");
            if found != promise.before {
                assert!(has_crashed, "nothing was lost without a crash");
                assert_same(&found, &promise.after, "neither the last commit nor the one under way");
            }
            now(sharedfs::close(&file_system)).unwrap();
            tools::check_device(&device);
            assert_same(&tree_of(&tools::open(&device, true).unwrap()), &found, "without the area");
            has_crashed
        });
    }
}

#[test]
fn what_was_committed_is_there_after_a_crash_and_nothing_later() {
    let (layer, device) = made(5);
    let file_system = mount(&device, false).unwrap();
    let owner = Owner::default();
    for name in [b"first", b"other", b"third"] {
        now(file_system.create(InodeNumber::ROOT, name, NewNode::File, owner)).unwrap();
        now(file_system.commit()).unwrap();
    }
    let before = tree_of(&file_system);
    now(file_system.create(InodeNumber::ROOT, b"lost", NewNode::File, owner)).unwrap();
    layer.power().lose();
    let (_, device) = after_crash(&layer);
    assert_same(&tree_of(&mount(&device, false).unwrap()), &before, "after the crash");
}

#[test]
fn a_look_at_what_a_crash_left_changes_nothing() {
    let (layer, device) = made(6);
    let file_system = mount(&device, false).unwrap();
    now(file_system.create(InodeNumber::ROOT, b"a", NewNode::Directory, Owner::default())).unwrap();
    now(file_system.commit()).unwrap();
    let tree = tree_of(&file_system);
    layer.power().lose();
    let (_, device) = after_crash(&layer);
    let bytes = tools::bytes_of(&device);
    let looked_at = mount(&device, true).unwrap();
    assert_same(&tree_of(&looked_at), &tree, "what was committed is seen");
    let refused = now(looked_at.create(InodeNumber::ROOT, b"b", NewNode::File, Owner::default())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    now(sharedfs::close(&looked_at)).unwrap();
    assert!(tools::bytes_of(&device) == bytes, "nothing was written");
}

/// Another program that mounts or checks it in between changes a time or a count in the superblock:
/// the records in the area are outdated then.
#[test]
fn what_others_had_mounted_since_a_crash_is_left_to_e2fsck() {
    let (layer, device) = made(7);
    let file_system = mount(&device, false).unwrap();
    now(file_system.create(InodeNumber::ROOT, b"a", NewNode::Directory, Owner::default())).unwrap();
    now(file_system.commit()).unwrap();
    layer.power().lose();
    let folder = tools::Folder::new();
    let path = folder.store("image", &after_crash(&layer).1);
    for (field, value) in [("mtime", "20260101"), ("mnt_count", "7"), ("wtime", "20260101"), ("lastcheck", "20260101")]
    {
        let copy = folder.store("copy", &tools::load(&path));
        tools::tool("debugfs", &["-w", "-R", &format!("set_super_value {field} {value}"), &copy]);
        let device = tools::load(&copy);
        for is_read_only in [false, true] {
            let refused = mount(&device, is_read_only).err().map(|error| error.kind());
            assert_eq!(refused, Some(ErrorKind::NotClean), "{field}");
        }
        tools::run("e2fsck", &["-fy", &copy]);
        let repaired = tools::load(&copy);
        now(sharedfs::close(&mount(&repaired, false).unwrap())).unwrap();
        tools::check_device(&repaired);
    }
}

/// As by `debugfs`, which changes no time in the superblock: what the area still has is older.
#[test]
fn what_was_changed_since_an_orderly_end_stays() {
    let (_, device) = made(10);
    let file_system = mount(&device, false).unwrap();
    let file = now(file_system.create(InodeNumber::ROOT, b"a", NewNode::File, Owner::default())).unwrap().inode;
    now(file_system.write_file(file, 0, &[7; 1024])).unwrap();
    now(file_system.commit()).unwrap();
    now(sharedfs::close(&file_system)).unwrap();
    let area = now(tools::open(&device, true).unwrap().reserved_file()).unwrap().expect("it is there").content;
    let is_of_area = |number: usize| area.iter().any(|block| block.0 as usize == number);
    let mut bytes = tools::bytes_of(&device);
    let blocks = bytes.chunks_mut(1024).enumerate().filter(|(_, block)| block.iter().all(|byte| *byte == 7));
    let (recorded, in_place): (Vec<_>, Vec<_>) = blocks.partition(|(number, _)| is_of_area(*number));
    assert_eq!((recorded.len(), in_place.len()), (1, 1), "the record is still there");
    in_place.into_iter().for_each(|(_, block)| block.fill(8));
    let device = tools::device_of(&bytes);
    let file_system = mount(&device, false).unwrap();
    assert_eq!(now(file_system.read_file(file, 0, 1024)).unwrap(), [8; 1024]);
}

#[test]
fn a_commit_that_failed_is_made_whole_by_the_next() {
    let (layer, device) = made(8);
    let file_system = mount(&device, false).unwrap();
    now(file_system.create(InodeNumber::ROOT, b"a", NewNode::Directory, Owner::default())).unwrap();
    let tree = tree_of(&file_system);
    layer.fail_flush_as(layer.flushes_seen(), block::ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    assert_eq!(now(file_system.commit()).unwrap_err().kind(), ErrorKind::Device(block::ErrorKind::Media));
    assert_same(&tree_of(&file_system), &tree, "after a commit that failed");
    now(file_system.commit()).unwrap();
    layer.power().lose();
    let (_, device) = after_crash(&layer);
    assert_same(&tree_of(&mount(&device, false).unwrap()), &tree, "after the next commit");
}

/// A file without a name that was open when the host failed has no user.
#[test]
fn files_without_names_are_freed_at_the_next_mount() {
    let (layer, device) = made(9);
    let file_system = mount(&device, false).unwrap();
    let before = now(file_system.statistics()).unwrap();
    let file = now(file_system.create(InodeNumber::ROOT, b"a", NewNode::File, Owner::default())).unwrap().inode;
    now(file_system.write_file(file, 0, &[1; 50_000])).unwrap();
    now(file_system.open_file(file)).unwrap();
    now(file_system.unlink(InodeNumber::ROOT, b"a")).unwrap();
    now(file_system.commit()).unwrap();
    layer.power().lose();
    let (_, device) = after_crash(&layer);
    assert_eq!(now(mount(&device, false).unwrap().statistics()).unwrap(), before);
}

#[test]
fn what_is_no_ext2_or_has_no_room_is_refused_and_left_as_it_was() {
    let refused = |device: &SharedDevice| {
        let bytes = tools::bytes_of(device);
        let kind = mount(device, false).err().map(|error| error.kind());
        assert!(tools::bytes_of(device) == bytes, "it was left as it was");
        kind
    };
    assert_eq!(refused(&(tools::empty_device(1 << 20) as SharedDevice)), Some(ErrorKind::Corrupt));
    assert_eq!(refused(&tools::made(512 << 10, 1024)), Some(ErrorKind::Unsupported), "too small for an area");
    let device = tools::made(2 << 20, 1024);
    let plain = tools::open(&device, false).unwrap();
    let file = now(plain.create(InodeNumber::ROOT, b"a", NewNode::File, Owner::default())).unwrap().inode;
    now(plain.write_file(file, 0, &vec![1; 1800 << 10])).unwrap();
    now(plain.commit()).unwrap();
    assert_eq!(refused(&device), Some(ErrorKind::NoSpace));
    let folder = tools::Folder::new();
    for (features, kind) in [("extent", ErrorKind::Unsupported), ("metadata_csum", ErrorKind::ReadOnly)] {
        let device = tools::load(&folder.mke2fs(features, 4 << 20, &["-O", features]));
        assert_eq!(refused(&device), Some(kind), "{features}");
    }
}
