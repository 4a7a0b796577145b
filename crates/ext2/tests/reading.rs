//! Images made by mke2fs and debugfs: reading them returns what was put in.

mod tools;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use ext2::{ErrorKind, InodeNumber};
use tools::{
    Folder, Mounted, Tree, assert_same, assert_same_for_view, is_root, load, now, open, run, tool, tree_of,
    tree_of_folder,
};

const MIB: u64 = 1 << 20;
const LONG: usize = 180;

fn long_name(number: usize) -> String {
    format!("{}{number:05}", "long name ".repeat(LONG / 10))
}

/// Files with holes, indirect blocks at two levels, links, and a directory of many blocks.
fn fill(folder: &Path, links: usize) {
    let bytes: Vec<u8> = (0..300_000_u32).map(|index| (index * 7 + index / 1000) as u8).collect();
    fs::write(folder.join("plain"), &bytes).unwrap();
    fs::write(folder.join("empty"), b"").unwrap();
    fs::set_permissions(folder.join("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    for (offset, length) in [(0, 10), (20_000, 5000), (290_000, 4096), (5_000_000, 100_000)] {
        sparse.write_all_at(&bytes[..length], offset).unwrap();
    }
    sparse.set_len(6_000_001).unwrap();
    symlink("plain", folder.join("short link")).unwrap();
    symlink("x".repeat(59), folder.join("link of 59")).unwrap();
    symlink("y".repeat(60), folder.join("link of 60")).unwrap();
    symlink("z/".repeat(400), folder.join("long link")).unwrap();
    fs::create_dir_all(folder.join("a/b/c")).unwrap();
    fs::write(folder.join("a/b/c/deep"), b"deep").unwrap();
    let many = folder.join("many");
    fs::create_dir(&many).unwrap();
    let first = many.join(long_name(0));
    fs::write(&first, b"one file").unwrap();
    (1..links).for_each(|number| fs::hard_link(&first, many.join(long_name(number))).unwrap());
}

/// Inodes that only debugfs can make without being root.
const COMMANDS: &str = "mknod old b 8 1\nmknod new c 200 7\nmknod pipe p\n";
const ATTRIBUTES: &str = "ea_set plain user.small value\nea_set plain user.other 0123456789\n\
    ea_set many trusted.t xyz\nea_set sparse user.large LARGE\n";

fn change_with_debugfs(image: &str, folder: &Folder, has_attributes: bool) {
    let commands = folder.path("commands");
    let attributes = if has_attributes { ATTRIBUTES.replace("LARGE", &"v".repeat(700)) } else { String::new() };
    fs::write(&commands, [COMMANDS, &attributes].concat()).unwrap();
    let text = tool("debugfs", &["-w", "-f", &commands, image]);
    assert!(!text.contains("ea_set:") && !text.contains("mknod:"), "{text}");
}

/// The folder that an image was made of, as expected in the image; what debugfs added is taken from
/// `ours`.
fn expected(folder: &Path, ours: &Tree) -> Tree {
    let mut tree = tree_of_folder(folder);
    for path in [&b"/old"[..], b"/new", b"/pipe", b"/lost+found", b""] {
        tree.insert(path.to_vec(), ours[path].clone());
    }
    for (path, node) in &mut tree {
        node.attributes.clone_from(&ours[path].attributes);
        if node.kind == 'd' {
            node.links_count = ours[path].links_count;
        }
    }
    tree
}

fn check_special(ours: &Tree, has_attributes: bool) {
    let node = |path: &str| &ours[path.as_bytes()];
    assert_eq!((node("/old").kind, node("/old").device), ('b', Some((8, 1))));
    assert_eq!((node("/new").kind, node("/new").device), ('c', Some((200, 7))));
    assert_eq!(node("/pipe").kind, 'p');
    if !has_attributes {
        return;
    }
    let value = |path: &str, name: &str| node(path).attributes.get(name.as_bytes()).cloned();
    assert_eq!(value("/plain", "user.small"), Some(b"value".to_vec()));
    assert_eq!(value("/plain", "user.other"), Some(b"0123456789".to_vec()));
    assert_eq!(value("/many", "trusted.t"), Some(b"xyz".to_vec()));
    assert_eq!(value("/sparse", "user.large"), Some(vec![b'v'; 700]));
}

/// Makes an image with all of it, with these options, and compares it as read by us, by ext4-view
/// and by the kernel.
fn compare(options: &[&str], also: impl Fn(&str)) {
    let (images, source) = (Folder::new(), tempfile::tempdir().unwrap());
    fill(source.path(), 900);
    let from = ["-d", source.path().to_str().unwrap()];
    let image = images.mke2fs("image", 24 * MIB, &[options, &from].concat());
    let has_attributes = !options.contains(&"none");
    change_with_debugfs(&image, &images, has_attributes);
    also(&image);
    let what = options.join(" ");
    let ours = tree_of(&open(&load(&image), true).unwrap_or_else(|error| panic!("{what}: {error}")));
    check_special(&ours, has_attributes);
    assert_same(&ours, &expected(source.path(), &ours), &what);
    assert_same_for_view(&image, &ours, &what);
    if is_root() {
        let mounted = Mounted::new(&image, "loop,ro");
        let mut theirs = tree_of_folder(&mounted.folder);
        // The kernel's ext2 does not see attributes inside inodes.
        theirs.iter_mut().for_each(|(path, node)| node.attributes.clone_from(&ours[path].attributes));
        assert_same(&ours, &theirs, &what);
    }
}

#[test]
fn images_of_every_size_of_block_and_inode_are_read() {
    for block in ["1024", "2048", "4096"] {
        for inode in ["128", "256"] {
            compare(&["-b", block, "-I", inode], |_| ());
        }
    }
}

#[test]
fn images_with_few_features_and_of_revision_0_are_read() {
    compare(&["-b", "1024", "-O", "none"], |_| ());
    compare(&["-b", "1024", "-O", "^sparse_super,^filetype,^resize_inode", "-g", "4096"], |_| ());
    compare(&["-b", "2048", "-O", "meta_bg,^resize_inode", "-g", "256", "-N", "2048"], |_| ());
    compare(&["-b", "1024", "-r", "0", "-O", "none"], |_| ());
}

/// Two levels of index: 900 names of 185 bytes in blocks of 1 KiB.
#[test]
fn directories_with_an_index_of_any_hash_are_read() {
    for hash in ["legacy", "half_md4", "tea"] {
        for flags in ["1", "2"] {
            compare(&["-b", "1024"], |image| {
                tool("tune2fs", &["-E", &format!("hash_alg={hash}"), image]);
                tool("debugfs", &["-w", "-R", &format!("set_super_value flags {flags}"), image]);
                let output = run("e2fsck", &["-fyD", image]);
                assert!(output.status.code() <= Some(1), "{}", tools::text_of(&output));
                let text = tool("debugfs", &["-R", "htree_dump /many", image]);
                assert!(text.contains("Indirect levels: 1"), "{text}");
            });
        }
    }
}

/// A name is found without reading all blocks only if the index leads to it.
#[test]
fn a_name_is_looked_for_where_the_index_says() {
    let (images, source) = (Folder::new(), tempfile::tempdir().unwrap());
    fill(source.path(), 900);
    let image = images.mke2fs("image", 24 * MIB, &["-b", "1024", "-d", source.path().to_str().unwrap()]);
    let output = run("e2fsck", &["-fyD", &image]);
    assert!(output.status.code() <= Some(1), "{}", tools::text_of(&output));
    let device = load(&image);
    let file_system = open(&device, true).unwrap();
    let many = now(file_system.lookup(InodeNumber::ROOT, b"many")).unwrap();
    // Its blocks become unreadable, one after the other: most names are still found.
    let blocks = tool("debugfs", &["-R", "blocks /many", &image]);
    let number: u64 = blocks.split_whitespace().filter_map(|word| word.parse().ok()).nth(50).unwrap();
    let rubbish = block::Buffer::copy_of(&[0xff; 1024]);
    now(block::device::DeviceExt::write(&device, number * 1024, rubbish, false)).unwrap();
    let file_system = open(&device, true).unwrap();
    let found = (0..900).filter(|number| now(file_system.lookup(many.inode, long_name(*number).as_bytes())).is_ok());
    assert!(found.count() > 880);
}

#[test]
fn a_file_that_needs_three_levels_is_read() {
    let (images, source) = (Folder::new(), tempfile::tempdir().unwrap());
    let file = File::create(source.path().join("large")).unwrap();
    for (offset, byte) in [(0, 1), (60 * MIB, 2), (66 * MIB, 3), (200 * MIB, 4)] {
        file.write_all_at(&[byte; 3000], offset).unwrap();
    }
    let image = images.mke2fs("image", 8 * MIB, &["-b", "1024", "-d", source.path().to_str().unwrap()]);
    let file_system = open(&load(&image), true).unwrap();
    let large = now(file_system.lookup(InodeNumber::ROOT, b"large")).unwrap();
    assert_eq!(large.size_bytes, 200 * MIB + 3000);
    for (offset, byte) in [(0, 1), (60 * MIB, 2), (66 * MIB, 3), (200 * MIB, 4)] {
        let bytes = now(file_system.read_file(large.inode, offset.max(10) - 10, 4000)).unwrap();
        assert_eq!(bytes.iter().filter(|found| **found == byte).count(), 3000);
        let next = now(file_system.seek(large.inode, offset + 100_000, false)).unwrap();
        let expected = [60 * MIB, 66 * MIB, 200 * MIB].into_iter().find(|next| *next > offset + 100_000);
        assert_eq!(next, expected, "data behind {offset}");
        let hole = now(file_system.seek(large.inode, offset, true)).unwrap();
        assert_eq!(hole, Some((offset + 3 * 1024).min(large.size_bytes)));
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let images = Folder::new();
    let refused = |options: &[&str], is_read_only| {
        let path = images.path("image");
        File::create(&path).and_then(|file| file.set_len(16 * MIB)).unwrap();
        tool("mke2fs", &[&["-q", "-F"], options, &[path.as_str()]].concat());
        match open(&load(&path), is_read_only) {
            Ok(_) => None,
            Err(error) => Some((error.kind(), error.to_string())),
        }
    };
    let (kind, words) = refused(&["-t", "ext4"], true).unwrap();
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(words.contains("extent") && words.contains("64bit") && words.contains("flex_bg"), "{words}");
    let options = ["-t", "ext2", "-O", "huge_file,metadata_csum"];
    let (kind, words) = refused(&options, false).unwrap();
    assert_eq!(kind, ErrorKind::ReadOnly);
    assert!(words.contains("huge_file") && words.contains("metadata_csum"), "{words}");
    assert_eq!(refused(&options, true), None);
    assert_eq!(refused(&["-t", "ext3"], false), None, "a journal that is clean is not in the way");
    assert_eq!(refused(&["-t", "ext2", "-r", "0", "-O", "none"], false).unwrap().0, ErrorKind::ReadOnly);
    let (kind, words) = refused(&["-t", "ext2", "-b", "8192"], true).unwrap();
    assert_eq!((kind, words.contains("1024 << 3")), (ErrorKind::Unsupported, true));
}

#[test]
fn a_file_system_that_is_not_clean_is_only_read() {
    let images = Folder::new();
    let image = images.mke2fs("image", MIB, &[]);
    for state in ["0", "3"] {
        tool("debugfs", &["-w", "-R", &format!("set_super_value state {state}"), &image]);
        assert_eq!(open(&load(&image), false).err().map(|error| error.kind()), Some(ErrorKind::NotClean));
        assert!(open(&load(&image), true).is_ok());
    }
    assert_eq!(open(&tools::empty_device(MIB), true).err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
    assert_eq!(open(&tools::empty_device(512), true).err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
}
