//! Images damaged at random: every operation on them ends, and returns a value.

mod tools;
mod walk;

use base::random::Random;
use ext2::{InodeNumber, MetadataChange, NewNode, Owner, RenameMode, SetMode};
use tools::{Folder, Plain, bytes_of, device_of, now, open};
use walk::{entries_of, walk};

const BLOCK_BYTES: usize = 1024;
/// Directories and files that one walk looks at.
const INODES_MAX: usize = 1000;

/// A small file system with inodes of all kinds.
fn image(block_bytes: usize, inode_bytes: usize) -> Vec<u8> {
    let device = tools::empty_device(1 << 20);
    let options = ext2::MakeOptions { block_bytes: Some(block_bytes), inode_bytes, ..tools::make_options() };
    now(ext2::make(&device, &options)).unwrap();
    let file_system = open(&device, false).unwrap();
    let owner = Owner { uid: 1, gid: 2, permissions: 0o755 };
    let create = |parent, name: &[u8], node| now(file_system.create(parent, name, node, owner)).unwrap().inode;
    let many = create(InodeNumber::ROOT, b"many", NewNode::Directory);
    let deep = create(many, b"deep", NewNode::Directory);
    let file = create(deep, b"file", NewNode::File);
    create(deep, b"short", NewNode::SymbolicLink(b"target"));
    create(deep, b"long", NewNode::SymbolicLink(&[b'l'; 100]));
    create(deep, b"device", NewNode::CharacterDevice(1, 3));
    for number in 0..60 {
        let name = [format!("{number}").as_bytes(), &[b'n'; 150]].concat();
        now(file_system.link(file, many, &name)).unwrap();
    }
    for offset in [0, 20_000, 400_000, 70 << 20] {
        now(file_system.write_file(file, offset, &[7; 3000])).unwrap();
    }
    now(file_system.set_attribute(file, b"user.a", &[1; 100], SetMode::Any)).unwrap();
    now(file_system.set_attribute(deep, b"user.b", b"", SetMode::Any)).unwrap();
    let open_file = create(deep, b"gone", NewNode::File);
    now(file_system.open_file(open_file)).unwrap();
    now(file_system.write_file(open_file, 0, &[1; 5000])).unwrap();
    now(file_system.unlink(deep, b"gone")).unwrap();
    now(file_system.commit()).unwrap();
    bytes_of(&device)
}

/// Makes changes of all kinds.
fn change(file_system: &Plain, random: &mut Random) {
    let owner = Owner::default();
    let mut directories = vec![InodeNumber::ROOT];
    for (_, inode) in entries_of(file_system, InodeNumber::ROOT) {
        directories.push(inode);
        directories.extend(entries_of(file_system, inode).iter().map(|(_, inode)| *inode));
    }
    for step in 0..60 {
        let directory = directories[random.below(directories.len() as u64) as usize];
        let entries = entries_of(file_system, directory);
        let Some((name, inode)) = entries.get(random.below(entries.len().max(1) as u64) as usize) else { continue };
        let inode = *inode;
        let new = [format!("new {step} ").as_bytes(), &[b'x'; 120]].concat();
        let _ = match random.below(11) {
            0 => now(file_system.unlink(directory, name)),
            1 => now(file_system.remove_directory(directory, name)),
            2 => now(file_system.create(directory, &new, NewNode::Directory, owner)).map(drop),
            3 => now(file_system.create(directory, &new, NewNode::SymbolicLink(&[b's'; 90]), owner)).map(drop),
            4 => now(file_system.rename((directory, name), (directories[0], &new), RenameMode::Replace)),
            5 => now(file_system.write_file(inode, random.below(500_000), &[9; 4000])),
            6 => now(file_system.set_size(inode, random.below(100_000))),
            7 => now(file_system.punch_hole(inode, random.below(9000)..random.below(800_000))),
            8 => now(file_system.set_attribute(inode, b"user.a", &[3; 50], SetMode::Any)),
            9 => now(file_system.remove_attribute(inode, b"user.a")),
            _ => now(file_system.set_metadata(inode, &MetadataChange { uid: Some(4), ..MetadataChange::default() }))
                .map(drop),
        };
    }
    let _ = now(file_system.commit());
}

/// Structure is at the front of the image: most damage goes there, and much of it looks like a
/// valid number.
fn damage(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let front = if random.chance(0.7) { 200 * BLOCK_BYTES } else { bytes.len() };
        let at = random.below((front - 4) as u64) as usize;
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at..at + 4].copy_from_slice(&(random.below(1100) as u32).to_le_bytes()),
            2 => bytes[at..at + 4].fill(0xff),
            _ => {
                let (from, to) = (random.below(1024) as usize * BLOCK_BYTES, at / BLOCK_BYTES * BLOCK_BYTES);
                bytes.copy_within(from..from + BLOCK_BYTES, to);
            }
        }
    }
}

#[test]
fn a_damaged_image_ends_in_errors() {
    let test = block::crash_test!();
    let images = [(1024, 256), (1024, 128), (2048, 256), (4096, 256)].map(|(block, inode)| image(block, inode));
    let mut opened = 0;
    for seed in test.seeds(0, 300, 1) {
        let _printed = test.on_panic(seed, None);
        let mut random = Random::new(seed);
        let mut bytes = images[seed as usize % images.len()].clone();
        damage(&mut bytes, &mut random);
        if let Ok(file_system) = open(&device_of(&bytes), true) {
            walk(&file_system, INODES_MAX);
        }
        if let Ok(file_system) = open(&device_of(&bytes), false) {
            opened += 1;
            walk(&file_system, INODES_MAX);
            change(&file_system, &mut random);
            walk(&file_system, INODES_MAX);
        }
    }
    assert!(
        opened > 20 || test.seeds(0, 300, 1).count() < 300,
        "{opened} images were opened: the damage is too great to see anything"
    );
}

#[test]
fn the_image_is_whole_before_it_is_damaged() {
    let device = device_of(&image(1024, 256));
    let folder = Folder::new();
    // One inode is an orphan: e2fsck would free it, and finds nothing else.
    let file_system = open(&device, false).unwrap();
    now(file_system.commit()).unwrap();
    tools::check(&folder.store("image", &device));
    assert_eq!(tools::tree_of(&file_system).len(), 68);
}

/// Circles that only an attacker makes: each walk ends.
#[test]
fn circles_end() {
    let device = tools::made(1 << 20, 1024);
    let file_system = open(&device, false).unwrap();
    let owner = Owner::default();
    let a = now(file_system.create(InodeNumber::ROOT, b"a", NewNode::Directory, owner)).unwrap().inode;
    let b = now(file_system.create(a, b"b", NewNode::Directory, owner)).unwrap().inode;
    let c = now(file_system.create(InodeNumber::ROOT, b"c", NewNode::Directory, owner)).unwrap().inode;
    let file = now(file_system.create(InodeNumber::ROOT, b"f", NewNode::File, owner)).unwrap().inode;
    now(file_system.write_file(file, 70 << 20, b"x")).unwrap();
    now(file_system.commit()).unwrap();
    let folder = Folder::new();
    let path = folder.store("image", &device);
    // "a" is below "b", which is below "a"; the tables of the file lead to themselves; so does the
    // list of orphans.
    let root_of = |inode: InodeNumber| format!("<{}>", inode.0);
    let text = tools::tool("debugfs", &["-R", &format!("blocks {}", root_of(a)), &path]);
    let block: u64 = text.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let parent = block as usize * 1024 + 12;
    assert_eq!(bytes[parent..parent + 4], 2_u32.to_le_bytes());
    bytes[parent..parent + 4].copy_from_slice(&b.0.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let text = tools::tool("debugfs", &["-R", &format!("blocks {}", root_of(file)), &path]);
    let table: u32 = text.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for slot in bytes[table as usize * 1024..][..1024].as_chunks_mut::<4>().0 {
        *slot = table.to_le_bytes();
    }
    let file_system = open(&device_of(&bytes), false).unwrap();
    let moved = now(file_system.rename((InodeNumber::ROOT, b"c"), (b, b"c"), RenameMode::Replace));
    assert_eq!(moved.unwrap_err().kind(), ext2::ErrorKind::Corrupt);
    assert_eq!(now(file_system.metadata(c)).unwrap().links_count, 2, "what fails changes nothing");
    assert!(now(file_system.seek(file, 65 << 20, true)).is_err());
    assert!(now(file_system.set_size(file, 0)).is_err());
    tools::tool("debugfs", &["-w", "-R", &format!("set_super_value last_orphan {}", file.0), &path]);
    tools::tool("debugfs", &["-w", "-R", &format!("set_inode_field {} dtime {}", root_of(file), file.0), &path]);
    let _ = open(&tools::load(&path), false);
    tools::tool("debugfs", &["-w", "-R", &format!("set_inode_field {} links_count 0", root_of(file)), &path]);
    assert!(open(&tools::load(&path), false).is_err());
}
