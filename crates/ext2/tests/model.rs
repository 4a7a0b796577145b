//! Random operations on a file system and on a slow, obvious model of one: both return the same,
//! both have the same content in the end, and e2fsck finds nothing.

mod tools;

use std::collections::{BTreeMap, BTreeSet};

use base::random::Random;
use block::SharedDevice;
use ext2::{ErrorKind, InodeNumber, MetadataChange, NewNode, Owner, RenameMode, SetMode};
use tools::{
    Content, Folder, Mounted, Node, Plain, Tree, assert_same, assert_same_for_view, is_root, now, open, tree_of,
    tree_of_folder,
};

type Outcome = Result<(), ErrorKind>;

#[derive(Clone, Default)]
struct ModelNode {
    kind: char,
    permissions: u16,
    owner: (u32, u32),
    content: Vec<u8>,
    device: Option<(u32, u32)>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    names: BTreeMap<Vec<u8>, usize>,
    parent: usize,
    links: u32,
    opens: u32,
}

/// Nodes by number; the root is 0. A node without links and users is gone.
struct Model {
    nodes: Vec<ModelNode>,
    inodes: Vec<InodeNumber>,
}

impl Model {
    fn new() -> Self {
        let root = ModelNode { kind: 'd', permissions: 0o755, links: 3, ..ModelNode::default() };
        Self { nodes: vec![root], inodes: vec![InodeNumber::ROOT] }
    }

    fn is_below(&self, at: usize, above: usize) -> bool {
        let mut at = at;
        loop {
            if at == above {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.nodes[at].parent;
        }
    }

    fn find(&self, directory: usize, name: &[u8]) -> Option<usize> {
        self.nodes[directory].names.get(name).copied()
    }

    fn removed(&mut self, node: usize) {
        let links = if self.nodes[node].kind == 'd' { 0 } else { self.nodes[node].links - 1 };
        self.nodes[node].links = links;
    }

    fn unlink(&mut self, parent: usize, name: &[u8]) -> Outcome {
        let node = self.find(parent, name).ok_or(ErrorKind::NotFound)?;
        if self.nodes[node].kind == 'd' {
            return Err(ErrorKind::IsDirectory);
        }
        self.nodes[parent].names.remove(name);
        self.removed(node);
        Ok(())
    }

    fn remove_directory(&mut self, parent: usize, name: &[u8]) -> Outcome {
        let node = self.find(parent, name).ok_or(ErrorKind::NotFound)?;
        self.check_removable(node)?;
        self.nodes[parent].names.remove(name);
        self.nodes[parent].links -= 1;
        self.removed(node);
        Ok(())
    }

    fn check_removable(&self, node: usize) -> Outcome {
        match &self.nodes[node] {
            node if node.kind != 'd' => Err(ErrorKind::NotDirectory),
            node if !node.names.is_empty() => Err(ErrorKind::NotEmpty),
            _ => Ok(()),
        }
    }

    fn put(&mut self, parent: usize, name: &[u8], node: usize) {
        self.nodes[parent].names.insert(name.to_vec(), node);
        if self.nodes[node].kind == 'd' {
            self.nodes[parent].links += 1;
            self.nodes[node].parent = parent;
        }
    }

    fn take(&mut self, parent: usize, name: &[u8]) -> usize {
        let node = self.nodes[parent].names.remove(name).expect("it was found");
        if self.nodes[node].kind == 'd' {
            self.nodes[parent].links -= 1;
        }
        node
    }

    fn rename(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), mode: RenameMode) -> Outcome {
        let moved = self.find(from.0, from.1).ok_or(ErrorKind::NotFound)?;
        let victim = self.find(to.0, to.1);
        let is_directory = |node: usize| self.nodes[node].kind == 'd';
        if from.0 != to.0 && is_directory(moved) && self.is_below(to.0, moved) {
            return Err(ErrorKind::Invalid);
        }
        match (victim, mode) {
            (Some(_), RenameMode::Keep) => return Err(ErrorKind::Exists),
            (None, RenameMode::Exchange) => return Err(ErrorKind::NotFound),
            (Some(victim), _) if victim == moved => return Ok(()),
            (Some(victim), RenameMode::Exchange) => {
                if from.0 != to.0 && is_directory(victim) && self.is_below(from.0, victim) {
                    return Err(ErrorKind::Invalid);
                }
                self.take(from.0, from.1);
                self.take(to.0, to.1);
                self.put(from.0, from.1, victim);
                self.put(to.0, to.1, moved);
                return Ok(());
            }
            (Some(victim), RenameMode::Replace) => {
                match (is_directory(moved), is_directory(victim)) {
                    (true, _) => self.check_removable(victim)?,
                    (false, true) => return Err(ErrorKind::IsDirectory),
                    (false, false) => {}
                }
                self.take(to.0, to.1);
                self.removed(victim);
            }
            (None, _) => {}
        }
        self.take(from.0, from.1);
        self.put(to.0, to.1, moved);
        Ok(())
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut todo = vec![(Vec::new(), 0)];
        while let Some((path, at)) = todo.pop() {
            let node = &self.nodes[at];
            for (name, child) in &node.names {
                todo.push(([path.as_slice(), b"/", name].concat(), *child));
            }
            let known = Node {
                kind: node.kind,
                permissions: node.permissions,
                owner: node.owner,
                links_count: node.links,
                modified: 0,
                device: node.device,
                content: Content(node.content.clone()),
                attributes: node.attributes.clone(),
            };
            tree.insert(path, known);
        }
        tree
    }
}

/// File system and model, and the random numbers.
struct Pair {
    device: SharedDevice,
    file_system: Plain,
    model: Model,
    random: Random,
}

impl Pair {
    fn new(device: SharedDevice, seed: u64) -> Self {
        let file_system = open(&device, false).unwrap();
        Self { device, file_system, model: Model::new(), random: Random::new(seed) }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Few names, so that they meet; some long, so that directories have several blocks.
    fn name(&mut self) -> Vec<u8> {
        let number = self.below(14);
        if self.random.chance(0.3) {
            let length = 40 + self.below(200);
            return [format!("{number}-").as_bytes(), &vec![b'n'; length]].concat();
        }
        format!("name {number}").into_bytes()
    }

    fn bytes(&mut self, bound: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(bound)];
        self.random.fill(&mut bytes);
        bytes
    }

    fn pick(&mut self, is_wanted: impl Fn(&ModelNode) -> bool) -> Option<usize> {
        let known: Vec<usize> = (0..self.model.nodes.len()).filter(|at| is_wanted(&self.model.nodes[*at])).collect();
        if known.is_empty() { None } else { Some(known[self.below(known.len())]) }
    }

    fn directory(&mut self) -> usize {
        self.pick(|node| node.kind == 'd' && node.links > 0).expect("there is the root")
    }

    /// A name that the directory has, more often than not.
    fn known_name(&mut self, directory: usize) -> Vec<u8> {
        let names: Vec<Vec<u8>> = self.model.nodes[directory].names.keys().cloned().collect();
        if names.is_empty() || self.random.chance(0.2) {
            return self.name();
        }
        names[self.below(names.len())].clone()
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=4 => self.create(),
            5..=7 => self.write(),
            8 => self.resize(),
            9 => self.unlink(),
            10 => self.remove_directory(),
            11..=12 => self.rename(),
            13 => self.link(),
            14 => self.set_metadata(),
            15 => self.set_attribute(),
            16 => self.punch(),
            17 => self.open_or_close(),
            18 => self.read(),
            _ => self.commit(),
        }
    }

    fn create(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let target = b"t/".repeat(150)[..1 + self.below(300)].to_vec();
        let (node, kind, device) = match self.below(8) {
            0..=3 => (NewNode::File, '-', None),
            4..=5 => (NewNode::Directory, 'd', None),
            6 => (NewNode::SymbolicLink(&target), 'l', None),
            _ => (NewNode::BlockDevice(259, 5), 'b', Some((259, 5))),
        };
        let owner = Owner { uid: self.below(1 << 20) as u32, gid: self.below(1 << 17) as u32, permissions: 0o640 };
        let created = now(self.file_system.create(self.model.inodes[parent], &name, node, owner));
        if self.model.find(parent, &name).is_some() {
            assert_eq!(created.unwrap_err().kind(), ErrorKind::Exists);
            return;
        }
        let at = self.model.nodes.len();
        self.model.nodes.push(ModelNode {
            kind,
            device,
            permissions: 0o640,
            owner: (owner.uid, owner.gid),
            content: if kind == 'l' { target } else { Vec::new() },
            links: if kind == 'd' { 2 } else { 1 },
            ..ModelNode::default()
        });
        self.model.inodes.push(created.unwrap().inode);
        self.model.put(parent, &name, at);
    }

    fn file(&mut self) -> Option<usize> {
        self.pick(|node| node.kind == '-' && node.links + node.opens > 0)
    }

    fn write(&mut self) {
        let Some(file) = self.file() else { return };
        let offset = if self.random.chance(0.2) { self.below(700_000) } else { self.below(40_000) };
        let bytes = self.bytes(9000);
        now(self.file_system.write_file(self.model.inodes[file], offset as u64, &bytes)).unwrap();
        let content = &mut self.model.nodes[file].content;
        if !bytes.is_empty() {
            content.resize(content.len().max(offset + bytes.len()), 0);
            content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn resize(&mut self) {
        let Some(file) = self.file() else { return };
        let bound = if self.random.chance(0.3) { 800_000 } else { 30_000 };
        let size = self.below(bound);
        now(self.file_system.set_size(self.model.inodes[file], size as u64)).unwrap();
        self.model.nodes[file].content.resize(size, 0);
    }

    fn punch(&mut self) {
        let Some(file) = self.file() else { return };
        let (start, length) = (self.below(50_000), self.below(300_000));
        now(self.file_system.punch_hole(self.model.inodes[file], start as u64..(start + length) as u64)).unwrap();
        let content = &mut self.model.nodes[file].content;
        let end = (start + length).min(content.len());
        content[start.min(end)..end].fill(0);
    }

    fn read(&mut self) {
        let Some(file) = self.file() else { return };
        let (offset, length) = (self.below(60_000), self.below(90_000));
        let bytes = now(self.file_system.read_file(self.model.inodes[file], offset as u64, length)).unwrap();
        let content = &self.model.nodes[file].content;
        assert!(bytes == content[offset.min(content.len())..(offset + length).min(content.len())]);
    }

    fn unlink(&mut self) {
        let parent = self.directory();
        let name = self.known_name(parent);
        let ours = now(self.file_system.unlink(self.model.inodes[parent], &name));
        assert_eq!(ours.map_err(|error| error.kind()), self.model.unlink(parent, &name));
    }

    fn remove_directory(&mut self) {
        let parent = self.directory();
        let name = self.known_name(parent);
        let ours = now(self.file_system.remove_directory(self.model.inodes[parent], &name));
        assert_eq!(ours.map_err(|error| error.kind()), self.model.remove_directory(parent, &name));
    }

    fn rename(&mut self) {
        let (from, to) = (self.directory(), self.directory());
        let (old, new) = (self.known_name(from), self.known_name(to));
        let mode = [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange][self.below(3)];
        let inodes = &self.model.inodes;
        let ours = now(self.file_system.rename((inodes[from], &old), (inodes[to], &new), mode));
        assert_eq!(ours.map_err(|error| error.kind()), self.model.rename((from, &old), (to, &new), mode));
    }

    fn link(&mut self) {
        let (Some(node), parent) = (self.pick(|node| node.links > 0), self.directory()) else { return };
        let name = self.name();
        let ours = now(self.file_system.link(self.model.inodes[node], self.model.inodes[parent], &name));
        let expected = match self.model.find(parent, &name) {
            _ if self.model.nodes[node].kind == 'd' => Err(ErrorKind::IsDirectory),
            Some(_) => Err(ErrorKind::Exists),
            None => Ok(()),
        };
        assert_eq!(ours.map(|_| ()).map_err(|error| error.kind()), expected);
        if expected.is_ok() {
            self.model.nodes[node].links += 1;
            self.model.put(parent, &name, node);
        }
    }

    fn set_metadata(&mut self) {
        let Some(node) = self.pick(|node| node.links + node.opens > 0) else { return };
        let change = MetadataChange {
            permissions: Some(self.below(0o10000) as u16),
            uid: Some(self.below(1 << 31) as u32),
            gid: None,
            ..MetadataChange::default()
        };
        now(self.file_system.set_metadata(self.model.inodes[node], &change)).unwrap();
        let node = &mut self.model.nodes[node];
        (node.permissions, node.owner.0) = (change.permissions.unwrap(), change.uid.unwrap());
    }

    fn set_attribute(&mut self) {
        // The kernel allows user attributes only for files and directories.
        let is_wanted = |node: &ModelNode| "-d".contains(node.kind) && node.links + node.opens > 0;
        let Some(node) = self.pick(is_wanted) else { return };
        let (inode, name) = (self.model.inodes[node], format!("user.{}", self.below(4)).into_bytes());
        let value = self.bytes(120);
        let attributes = &mut self.model.nodes[node].attributes;
        let is_there = attributes.contains_key(&name);
        let (ours, expected) = match self.random.below(4) {
            0 => {
                attributes.remove(&name);
                let expected = if is_there { Ok(()) } else { Err(ErrorKind::NoAttribute) };
                (now(self.file_system.remove_attribute(inode, &name)), expected)
            }
            mode => {
                let mode = [SetMode::Any, SetMode::Create, SetMode::Replace][mode as usize - 1];
                let expected = match mode {
                    SetMode::Create if is_there => Err(ErrorKind::Exists),
                    SetMode::Replace if !is_there => Err(ErrorKind::NoAttribute),
                    _ => Ok(()),
                };
                if expected.is_ok() {
                    attributes.insert(name.clone(), value.clone());
                }
                (now(self.file_system.set_attribute(inode, &name, &value, mode)), expected)
            }
        };
        assert_eq!(ours.map_err(|error| error.kind()), expected);
    }

    fn open_or_close(&mut self) {
        if self.random.chance(0.5)
            && let Some(node) = self.pick(|node| node.opens > 0)
        {
            now(self.file_system.close_file(self.model.inodes[node])).unwrap();
            self.model.nodes[node].opens -= 1;
        } else if let Some(node) = self.pick(|node| node.links > 0) {
            now(self.file_system.open_file(self.model.inodes[node])).unwrap();
            self.model.nodes[node].opens += 1;
        }
    }

    fn commit(&mut self) {
        now(self.file_system.commit()).unwrap();
        // All users are gone; so are the inodes that only they kept.
        if self.random.chance(0.3) {
            self.file_system = open(&self.device, false).unwrap();
            self.model.nodes.iter_mut().for_each(|node| node.opens = 0);
        }
    }

    /// Checks that both have the same content, also for ext4-view and the kernel, and that e2fsck
    /// finds nothing.
    fn check(&mut self) {
        now(self.file_system.commit()).unwrap();
        self.file_system = open(&self.device, false).unwrap();
        self.model.nodes.iter_mut().for_each(|node| node.opens = 0);
        now(self.file_system.commit()).unwrap();
        let folder = Folder::new();
        let path = folder.store("image", &self.device);
        tools::check(&path);
        let found = tree_of(&self.file_system);
        let ours = without_times(found.clone());
        assert_same(&ours, &self.model.tree(), "the model");
        assert_same_for_view(&path, &found, "a random file system");
        if is_root() {
            let mounted = Mounted::new(&path, "loop,ro");
            assert_same(&ours, &without_times(tree_of_folder(&mounted.folder)), "the kernel");
        }
    }
}

fn without_times(mut tree: Tree) -> Tree {
    tree.remove(&b"/lost+found"[..]);
    tree.values_mut().for_each(|node| node.modified = 0);
    tree
}

fn run(device: SharedDevice, seed: u64, steps: usize) {
    let mut pair = Pair::new(device, seed);
    for part in 0..2 {
        (0..steps).for_each(|_| pair.step());
        if part == 0 {
            pair.check();
        }
    }
    pair.check();
}

#[test]
fn random_operations_leave_what_the_model_says_on_file_systems_of_our_own() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 6, 1) {
        let _printed = test.on_panic(seed, None);
        let device = tools::made(96 << 20, [1024, 2048, 4096][seed as usize % 3]);
        run(device, seed, 400);
    }
}

#[test]
fn random_operations_leave_what_the_model_says_on_file_systems_of_mke2fs() {
    let test = block::crash_test!();
    let options: [&[&str]; 5] = [
        &["-b", "1024", "-I", "128"],
        &["-b", "1024", "-O", "^filetype,^dir_index,^sparse_super,^resize_inode"],
        &["-b", "2048", "-O", "meta_bg,^resize_inode", "-g", "1024"],
        &["-b", "4096", "-O", "^ext_attr"],
        &["-b", "1024", "-E", "hash_seed=01234567-89ab-cdef-0123-456789abcdef"],
    ];
    for seed in test.seeds(100, 5, 1) {
        let _printed = test.on_panic(seed, None);
        let folder = Folder::new();
        let image = folder.mke2fs("image", 96 << 20, options[seed as usize % options.len()]);
        run(tools::load(&image), seed, 400);
    }
}

/// With every hash an index grows to two levels, and shrinks to one name.
#[test]
fn a_directory_of_thousands_of_names_has_an_index_that_e2fsck_and_the_kernel_follow() {
    let folder = Folder::new();
    for (hash, flags, count) in
        [("half_md4", "1", 4000), ("tea", "1", 1200), ("legacy", "2", 1200), ("tea", "2", 300), ("half_md4", "2", 1200)]
    {
        let image = folder.mke2fs("image", 16 << 20, &["-b", "1024"]);
        tools::tool("tune2fs", &["-E", &format!("hash_alg={hash}"), &image]);
        tools::tool("debugfs", &["-w", "-R", &format!("set_super_value flags {flags}"), &image]);
        let pair = Pair::new(tools::load(&image), 7);
        let owner = Owner { uid: 0, gid: 0, permissions: 0o700 };
        let many = now(pair.file_system.create(InodeNumber::ROOT, b"many", NewNode::Directory, owner)).unwrap().inode;
        let file = now(pair.file_system.create(InodeNumber::ROOT, b"file", NewNode::File, owner)).unwrap().inode;
        let name = |number: usize| format!("{}é{number}", "x".repeat(number % 190)).into_bytes();
        for number in 0..count {
            now(pair.file_system.link(file, many, &name(number))).unwrap();
        }
        now(pair.file_system.commit()).unwrap();
        let path = folder.store("after", &pair.device);
        tools::check(&path);
        let text = tools::tool("debugfs", &["-R", "htree_dump /many", &path]);
        let levels = usize::from(count > 1000);
        assert!(text.contains(&format!("Indirect levels: {levels}")), "{text}");
        if is_root() {
            let mounted = Mounted::new(&path, "loop,ro");
            let theirs = std::fs::read_dir(mounted.folder.join("many")).unwrap().count();
            assert_eq!(theirs, count);
        }
        assert_eq!(tools::names_of(&pair.file_system, many).len(), count);
        // In another order than they were created.
        (0..count).for_each(|number| {
            now(pair.file_system.unlink(many, &name(number * 7 % count)))
                .unwrap_or_else(|error| panic!("{number}: {error}"));
        });
        now(pair.file_system.remove_directory(InodeNumber::ROOT, b"many")).unwrap();
        now(pair.file_system.commit()).unwrap();
        tools::check_device(&pair.device);
    }
}

#[test]
fn a_full_file_system_refuses_and_stays_whole_and_all_of_it_comes_back() {
    for block_bytes in [1024, 4096] {
        let device = tools::made(3 << 20, block_bytes);
        let file_system = open(&device, false).unwrap();
        let before = now(file_system.statistics()).unwrap();
        let owner = Owner::default();
        let mut made = Vec::new();
        let refused = (0_usize..).find_map(|number| {
            let name = format!("{number}-{}", "n".repeat(number % 100)).into_bytes();
            let result = now(async {
                let file = file_system.create(InodeNumber::ROOT, &name, NewNode::File, owner).await?;
                made.push(name.clone());
                file_system.write_file(file.inode, number as u64 * 1000, &vec![1; number * 60]).await?;
                file_system.set_attribute(file.inode, b"user.a", b"b", SetMode::Any).await
            });
            result.err()
        });
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::NoSpace));
        now(file_system.commit()).unwrap();
        tools::check_device(&device);
        made.iter().for_each(|name| now(file_system.unlink(InodeNumber::ROOT, name)).unwrap());
        now(file_system.commit()).unwrap();
        tools::check_device(&device);
        let after = now(file_system.statistics()).unwrap();
        assert_eq!(after.free_inodes, before.free_inodes);
        // The root directory stays as large as it was.
        assert!(before.free_blocks - after.free_blocks < 40, "{before:?} {after:?}");
    }
}

#[test]
fn reserved_blocks_are_for_those_who_may_use_them() {
    let device = tools::made(4 << 20, 1024);
    let blocks = now(ext2::PlainBlocks::new(device.clone())).unwrap();
    let options = ext2::OpenOptions { may_use_reserved: false, ..tools::options(false) };
    let file_system = now(ext2::FileSystem::open(blocks, options)).unwrap();
    let file = now(file_system.create(InodeNumber::ROOT, b"f", NewNode::File, Owner::default())).unwrap().inode;
    let refused = (0..).find_map(|at| now(file_system.write_file(file, at * 1024, &[1; 1024])).err());
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::NoSpace));
    let statistics = now(file_system.statistics()).unwrap();
    assert_eq!((statistics.available_blocks, statistics.free_blocks), (0, 4096 / 20));
}

/// Offsets within the reach of three levels, the largest size, and a file that is noted in the
/// superblock.
#[test]
fn files_reach_as_far_as_the_format_allows() {
    for (block_bytes, largest) in [(1024, 16_843_020_u64 * 1024), (4096, 536_346_108 * 4096)] {
        let device = tools::made(8 << 20, block_bytes);
        let file_system = open(&device, false).unwrap();
        let file = now(file_system.create(InodeNumber::ROOT, b"f", NewNode::File, Owner::default())).unwrap().inode;
        for offset in [0, 1 << 20, 100 << 20, (3 << 30) + 5, largest - 10] {
            now(file_system.write_file(file, offset, b"0123456789"))
                .unwrap_or_else(|error| panic!("{offset}: {error}"));
            assert_eq!(now(file_system.read_file(file, offset, 100)).unwrap(), b"0123456789");
        }
        assert_eq!(now(file_system.write_file(file, largest, b"x")).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(now(file_system.set_size(file, largest + 1)).unwrap_err().kind(), ErrorKind::TooLarge);
        now(file_system.commit()).unwrap();
        tools::check_device(&device);
        now(file_system.punch_hole(file, 5..largest)).unwrap();
        assert_eq!(now(file_system.read_file(file, 0, 8)).unwrap(), b"01234\0\0\0");
        now(file_system.set_size(file, 3)).unwrap();
        assert_eq!(now(file_system.metadata(file)).unwrap().sectors as usize, block_bytes / 512);
        now(file_system.unlink(InodeNumber::ROOT, b"f")).unwrap();
        now(file_system.commit()).unwrap();
        tools::check_device(&device);
    }
}

/// Files are near their directory, directories are spread, blocks of a file are next to each other.
#[test]
fn what_belongs_together_is_near_each_other() {
    let device = tools::made(64 << 20, 1024);
    let file_system = open(&device, false).unwrap();
    let owner = Owner::default();
    let mut groups = BTreeSet::new();
    let per_group = now(file_system.statistics()).unwrap().inode_count / 8;
    for number in 0..8 {
        let name = format!("directory {number}").into_bytes();
        let directory = now(file_system.create(InodeNumber::ROOT, &name, NewNode::Directory, owner)).unwrap().inode;
        let group = (directory.0 - 1) / per_group;
        groups.insert(group);
        let file = now(file_system.create(directory, b"file", NewNode::File, owner)).unwrap().inode;
        assert_eq!((file.0 - 1) / per_group, group, "a file is in the group of its directory");
        now(file_system.write_file(file, 0, &vec![1; 200_000])).unwrap();
    }
    assert_eq!(groups.len(), 8, "each directory has a group of its own");
    now(file_system.commit()).unwrap();
    let folder = Folder::new();
    let path = folder.store("image", &device);
    for number in 0..8 {
        let text = tools::tool("debugfs", &["-R", &format!("blocks \"/directory {number}/file\""), &path]);
        let blocks: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(blocks.len(), 200_000_usize.div_ceil(1024) + 1);
        assert!(blocks.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{blocks:?}");
    }
}

/// More changes than are kept in memory: commits come by themselves, and evicted blocks are read
/// again.
#[test]
fn changes_beyond_the_bound_are_committed() {
    let device = tools::made(64 << 20, 1024);
    let file_system = open(&device, false).unwrap();
    let file = now(file_system.create(InodeNumber::ROOT, b"f", NewNode::File, Owner::default())).unwrap().inode;
    let bytes: Vec<u8> = (0..30_u32 << 20).map(|at| (at / 1000) as u8).collect();
    now(file_system.write_file(file, 0, &bytes)).unwrap();
    let stored = now(open(&device, true).unwrap().lookup(InodeNumber::ROOT, b"f")).unwrap();
    assert!(stored.size_bytes > 10 << 20, "{} bytes are durable", stored.size_bytes);
    assert!(tools::content_of(&file_system, &now(file_system.metadata(file)).unwrap()) == bytes);
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
}

/// The kernel gives files with the same attributes one block, where inodes have no room for them.
#[test]
fn attributes_that_two_files_share_are_changed_for_one() {
    if !is_root() {
        println!("skipped: only root can mount");
        return;
    }
    let folder = Folder::new();
    let path = folder.mke2fs("image", 4 << 20, &["-b", "1024", "-I", "128"]);
    let mounted = Mounted::new(&path, "loop,user_xattr");
    for name in ["a", "b", "c"] {
        std::fs::write(mounted.folder.join(name), b"").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mounted.folder.join(name), "user.shared", b"value", flags).unwrap();
    }
    drop(mounted);
    let device = tools::load(&path);
    let file_system = open(&device, false).unwrap();
    let before = now(file_system.statistics()).unwrap().free_blocks;
    let inode = |name: &[u8]| now(file_system.lookup(InodeNumber::ROOT, name)).unwrap().inode;
    let (a, b, c) = (inode(b"a"), inode(b"b"), inode(b"c"));
    now(file_system.set_attribute(a, b"user.shared", b"other", SetMode::Replace)).unwrap();
    assert_eq!(now(file_system.statistics()).unwrap().free_blocks, before - 1, "they did share a block");
    now(file_system.remove_attribute(b, b"user.shared")).unwrap();
    assert_eq!(now(file_system.attribute(c, b"user.shared")).unwrap(), b"value");
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
    let free = || now(file_system.statistics()).unwrap().free_blocks;
    assert_eq!(free(), before - 1);
    now(file_system.unlink(InodeNumber::ROOT, b"c")).unwrap();
    assert_eq!(free(), before, "the last of the block's inodes is gone");
    now(file_system.unlink(InodeNumber::ROOT, b"a")).unwrap();
    assert_eq!(free(), before + 1);
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
}

/// debugfs keeps small ones in the inode.
#[test]
fn attributes_inside_inodes_are_replaced_by_those_in_the_block() {
    let folder = Folder::new();
    let path = folder.store("image", &tools::made(4 << 20, 1024));
    let commands = folder.path("commands");
    std::fs::write(&commands, "ea_set lost+found user.a first\nea_set lost+found user.b second\n").unwrap();
    tools::tool("debugfs", &["-w", "-f", &commands, &path]);
    let device = tools::load(&path);
    let file_system = open(&device, false).unwrap();
    let found = now(file_system.lookup(InodeNumber::ROOT, b"lost+found")).unwrap();
    let (inode, sectors) = (found.inode, found.sectors);
    let value = |name: &[u8]| now(file_system.attribute(inode, name)).map_err(|error| error.kind());
    assert_eq!(value(b"user.a"), Ok(b"first".to_vec()));
    let exists = now(file_system.set_attribute(inode, b"user.a", b"x", SetMode::Create)).unwrap_err();
    assert_eq!((exists.kind(), value(b"user.a")), (ErrorKind::Exists, Ok(b"first".to_vec())));
    now(file_system.set_attribute(inode, b"user.a", b"new", SetMode::Replace)).unwrap();
    assert_eq!((value(b"user.a"), value(b"user.b")), (Ok(b"new".to_vec()), Ok(b"second".to_vec())));
    assert_eq!(now(file_system.metadata(inode)).unwrap().sectors, sectors + 2);
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
    now(file_system.remove_attribute(inode, b"user.b")).unwrap();
    now(file_system.remove_attribute(inode, b"user.a")).unwrap();
    assert_eq!(value(b"user.b"), Err(ErrorKind::NoAttribute));
    assert_eq!(now(file_system.metadata(inode)).unwrap().sectors, sectors);
    now(file_system.commit()).unwrap();
    tools::check_device(&device);
}
