//! New file systems: e2fsprogs and the kernel find nothing wrong, and the layout is that of mke2fs.

mod tools;

use ext2::{ErrorKind, MakeOptions, make};
use tools::{Folder, Mounted, check, empty_device, is_root, make_options, now, open, tool, tree_of, tree_of_folder};

const MIB: u64 = 1 << 20;

#[test]
fn a_new_file_system_passes_e2fsck_at_any_size() {
    let folder = Folder::new();
    for (size, block_bytes, inode_bytes) in [
        (64 << 10, 1024, 128),
        (100 << 10, 1024, 256),
        (MIB + 512, 1024, 256),
        (8 * MIB, 1024, 256),
        (8 * MIB + 17 * 1024, 1024, 128),
        (33 * MIB, 2048, 256),
        (65 * MIB, 1024, 256),
        (128 * MIB + 100 * 4096, 4096, 256),
        (129 * MIB, 4096, 128),
        (700 * MIB, 4096, 256),
    ] {
        let device = empty_device(size);
        let options = MakeOptions { block_bytes: Some(block_bytes), inode_bytes, ..make_options() };
        let made = now(make(&device, &options)).unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        let path = folder.store("image", &device);
        check(&path);
        let file_system = open(&device, false).unwrap();
        assert_eq!(tools::names_of(&file_system, ext2::InodeNumber::ROOT).len(), 1);
        let statistics = now(file_system.statistics()).unwrap();
        assert_eq!(statistics.inode_count, made.inode_count);
        assert!(u64::from(statistics.free_blocks) * 2 > size / block_bytes as u64 || size < MIB);
    }
}

#[test]
fn what_is_too_small_or_makes_no_sense_is_refused() {
    let refused = |size, options: MakeOptions| now(make(&empty_device(size), &options)).unwrap_err().kind();
    assert_eq!(refused(32 << 10, make_options()), ErrorKind::NoSpace);
    assert_eq!(refused(512, make_options()), ErrorKind::NoSpace);
    assert_eq!(refused(MIB, MakeOptions { block_bytes: Some(512), ..make_options() }), ErrorKind::Invalid);
    assert_eq!(refused(MIB, MakeOptions { inode_bytes: 512, ..make_options() }), ErrorKind::Invalid);
    assert_eq!(refused(MIB, MakeOptions { label: vec![b'x'; 17], ..make_options() }), ErrorKind::Invalid);
    assert_eq!(refused(MIB, MakeOptions { reserved_percent: 51, ..make_options() }), ErrorKind::Invalid);
    let options = MakeOptions { block_bytes: Some(1024), ..make_options() };
    assert_eq!(refused(5 << 40, options), ErrorKind::TooLarge);
}

#[test]
fn a_device_with_large_blocks_gets_blocks_as_large() {
    let geometry = block::Geometry { logical_block_bytes: 4096, ..block::Geometry::plain(8 * MIB) };
    let device: block::SharedDevice =
        std::sync::Arc::new(block::memory::MemoryDevice::with_geometry(geometry, block::Identity::default()));
    let small = MakeOptions { block_bytes: Some(1024), ..make_options() };
    assert_eq!(now(make(&device, &small)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(now(make(&device, &make_options())).unwrap().block_bytes, 4096);
    tools::check_device(&device);
    assert!(open(&device, false).is_ok());
    // As if the image had been copied from a disk with small blocks.
    let other = tools::bytes_of(&tools::made(8 * MIB, 1024));
    let copy = |part: usize| device_write(&device, part, &other[part * 4096..][..4096]);
    (0..2048).for_each(copy);
    assert_eq!(open(&device, true).err().map(|error| error.kind()), Some(ErrorKind::Unsupported));
}

fn device_write(device: &block::SharedDevice, part: usize, bytes: &[u8]) {
    let write = block::device::DeviceExt::write(device, part as u64 * 4096, block::Buffer::copy_of(bytes), false);
    now(write).unwrap();
}

/// A line in the output of `dumpe2fs`.
fn line<'a>(dump: &'a str, name: &str) -> &'a str {
    let found = dump.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{name} in {dump}")).trim()
}

#[test]
fn a_new_file_system_is_as_large_as_that_of_mke2fs() {
    let folder = Folder::new();
    for (size, options) in [
        (8 * MIB, &["-b", "1024"][..]),
        (100 * MIB, &["-b", "1024"]),
        (100 * MIB, &["-b", "4096"]),
        (600 * MIB, &[]),
        (2 * MIB, &[]),
    ] {
        let theirs = folder.mke2fs("theirs", size, &[options, &["-O", "^resize_inode"]].concat());
        let device = empty_device(size);
        let block_bytes = options.get(1).map(|bytes| bytes.parse().unwrap());
        now(make(&device, &MakeOptions { block_bytes, label: b"forebay".to_vec(), ..make_options() })).unwrap();
        let ours = folder.store("ours", &device);
        let [theirs, ours] = [theirs, ours].map(|path| tool("dumpe2fs", &[&path]));
        for name in [
            "Block size",
            "Block count",
            "Inode count",
            "Free inodes",
            "Free blocks",
            "Reserved block count",
            "Inodes per group",
            "Blocks per group",
            "First inode",
            "Inode size",
            "Default mount options",
            "Filesystem state",
            "Default directory hash",
        ] {
            assert_eq!(line(&ours, name), line(&theirs, name), "{name}, {size} bytes, {options:?}");
        }
        assert_eq!(line(&ours, "Filesystem volume name"), "forebay");
        assert_eq!(line(&ours, "Filesystem UUID"), "12345678-9abc-4def-8123-456789abcdef");
        let groups = |dump: &str| -> Vec<String> {
            let lines = dump.lines().map(str::trim);
            let wanted =
                ["Block bitmap at", "Inode bitmap at", "Inode table at", "Primary superblock", "Backup superblock"];
            lines.filter(|line| wanted.iter().any(|start| line.starts_with(start))).map(str::to_owned).collect()
        };
        assert_eq!(groups(&ours), groups(&theirs), "{size} bytes, {options:?}");
    }
}

/// The copies of the superblock can be used for repair.
#[test]
fn e2fsck_repairs_a_new_file_system_from_a_copy_of_its_superblock() {
    let folder = Folder::new();
    let device = tools::made(20 * MIB, 1024);
    let path = folder.store("image", &device);
    tool("dd", &["if=/dev/zero", &format!("of={path}"), "bs=1024", "seek=1", "count=2", "conv=notrunc"]);
    let output = tools::run("e2fsck", &["-fy", "-b", "8193", "-B", "1024", &path]);
    assert!(output.status.code().is_some_and(|code| code <= 1), "{}", tools::text_of(&output));
    check(&path);
}

#[test]
fn the_kernel_mounts_a_new_file_system_and_writes_to_it() {
    if !is_root() {
        println!("skipped: only root can mount");
        return;
    }
    let folder = Folder::new();
    for block_bytes in [1024, 2048, 4096] {
        let path = folder.store("image", &tools::made(24 * MIB, block_bytes));
        let mounted = Mounted::new(&path, "loop");
        std::fs::create_dir(mounted.folder.join("a")).unwrap();
        for number in 0..300 {
            std::fs::write(mounted.folder.join(format!("a/file {number}")), vec![number as u8; number * 100]).unwrap();
        }
        let theirs = tree_of_folder(&mounted.folder);
        drop(mounted);
        check(&path);
        let ours = tree_of(&open(&tools::load(&path), true).unwrap());
        tools::assert_same(&ours, &theirs, "the kernel's files");
    }
}
