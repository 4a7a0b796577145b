//! Tools for the tests of this crate: images in memory, the programs of e2fsprogs, and the content
//! of a file system as one value.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Identity, SharedDevice};
use ext2::{
    Blocks, Error, FileSystem, FileType, InodeNumber, MakeOptions, Metadata, OpenOptions, PlainBlocks, Timestamp, make,
};
use futures_util::FutureExt;
use tempfile::TempDir;

/// A file system on a plain device.
pub type Plain = FileSystem<PlainBlocks>;

/// The result of a future over a device in memory.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory lets nobody wait")
}

/// Runs a program of the system. Returns what it printed on both outputs.
///
/// # Panics
/// When it is missing, or ends with a status other than zero.
pub fn tool(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    let text = text_of(&output);
    assert!(output.status.success(), "{name} {arguments:?}: {}\n{text}", output.status);
    text
}

/// Like [`tool`], with any status.
pub fn run(name: &str, arguments: &[&str]) -> Output {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(arguments).env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC").output();
    output.unwrap_or_else(|error| panic!("{name}: {error}; it is in a package of tests/tools/install-packages"))
}

pub fn text_of(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// A folder for images.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room for a folder"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("names of tests are plain").to_owned()
    }

    /// An image made by mke2fs.
    pub fn mke2fs(&self, name: &str, size_bytes: u64, options: &[&str]) -> String {
        let path = self.path(name);
        fs::File::create(&path).and_then(|file| file.set_len(size_bytes)).expect("there is room for an image");
        tool("mke2fs", &[&["-q", "-F", "-t", "ext2"], options, &[path.as_str()]].concat());
        path
    }

    /// Stores the content of a device as a file.
    pub fn store(&self, name: &str, device: &SharedDevice) -> String {
        let path = self.path(name);
        fs::write(&path, bytes_of(device)).expect("there is room for an image");
        path
    }
}

/// A device of these bytes.
pub fn device_of(bytes: &[u8]) -> SharedDevice {
    let device: SharedDevice = empty_device(bytes.len() as u64);
    for (index, part) in bytes.chunks(1 << 20).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            now(device.write((index as u64) << 20, Buffer::copy_of(part), false)).unwrap();
        }
    }
    device
}

pub fn empty_device(size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, Identity::default()))
}

/// The content of a file, as a device.
pub fn load(path: &str) -> SharedDevice {
    device_of(&fs::read(path).expect("the image is there"))
}

pub fn bytes_of(device: &SharedDevice) -> Vec<u8> {
    let size = device.geometry().size_bytes;
    let mut bytes = Vec::with_capacity(size as usize);
    while (bytes.len() as u64) < size {
        let length = (size - bytes.len() as u64).min(1 << 20) as usize;
        bytes.extend_from_slice(&now(device.read(bytes.len() as u64, Buffer::zeroed(length))).unwrap());
    }
    bytes
}

/// # Panics
/// When e2fsck finds anything wrong with an image.
pub fn check(path: &str) {
    let output = run("e2fsck", &["-fn", path]);
    assert!(output.status.success(), "e2fsck: {}\n{}", output.status, text_of(&output));
}

/// Checks the file system of a device with e2fsck.
pub fn check_device(device: &SharedDevice) {
    let folder = Folder::new();
    check(&folder.store("image", device));
}

/// Options with a clock that advances by a second at each call.
pub fn options(is_read_only: bool) -> OpenOptions {
    let seconds = AtomicI64::new(1_600_000_000);
    let wall_clock =
        Arc::new(move || Timestamp { seconds: seconds.fetch_add(1, Ordering::Relaxed), nanoseconds: 123_456_789 });
    OpenOptions { is_read_only, may_use_reserved: true, wall_clock }
}

pub fn open(device: &SharedDevice, is_read_only: bool) -> Result<Plain, Error> {
    now(async {
        let blocks = PlainBlocks::new(Arc::clone(device)).await?;
        FileSystem::open(blocks, options(is_read_only)).await
    })
}

/// Options of a file system with a fixed identity.
pub fn make_options() -> MakeOptions {
    let id = uuid::Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
    MakeOptions::new(id, id, Timestamp { seconds: 1_600_000_000, nanoseconds: 0 })
}

/// A device with a new file system.
pub fn made(size_bytes: u64, block_bytes: usize) -> SharedDevice {
    let device = empty_device(size_bytes);
    let options = MakeOptions { block_bytes: Some(block_bytes), ..make_options() };
    now(make(&device, &options)).expect("there is room for a file system");
    device
}

/// The whole content of a file system, by path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// The inode of a name. Names of one inode have equal nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: char,
    pub permissions: u16,
    pub owner: (u32, u32),
    pub links_count: u32,
    pub modified: i64,
    pub device: Option<(u32, u32)>,
    /// Bytes of a file, or the target of a link.
    pub content: Content,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Bytes with a short debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(pub Vec<u8>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = self.0.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        write!(f, "{} bytes, sum {sum:x}", self.0.len())
    }
}

pub fn kind_of(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::SymbolicLink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    }
}

/// The whole content of a file system read by us.
///
/// # Panics
/// When any of it cannot be read, or a directory is reached twice.
pub fn tree_of<B: Blocks>(file_system: &FileSystem<B>) -> Tree {
    let mut tree = Tree::new();
    let mut seen = BTreeSet::new();
    let mut todo = vec![(Vec::new(), InodeNumber::ROOT)];
    while let Some((path, inode)) = todo.pop() {
        let metadata = now(file_system.metadata(inode)).unwrap();
        if metadata.file_type == FileType::Directory {
            assert!(seen.insert(inode), "a directory with two names");
            for (name, inode) in names_of(file_system, inode) {
                todo.push(([path.as_slice(), b"/", &name].concat(), inode));
            }
        }
        tree.insert(path, node_of(file_system, &metadata));
    }
    tree
}

/// Names of a directory except "." and ".."; each must be found by a lookup.
pub fn names_of<B: Blocks>(file_system: &FileSystem<B>, directory: InodeNumber) -> Vec<(Vec<u8>, InodeNumber)> {
    let mut entries = Vec::new();
    let list = file_system.list(directory, |entry| {
        entries.push((entry.name.to_vec(), entry.inode, entry.file_type));
        Ok(())
    });
    now(list).unwrap();
    entries.retain(|(name, ..)| name != b"." && name != b"..");
    let check = |(name, inode, listed): (Vec<u8>, InodeNumber, Option<FileType>)| {
        let found = now(file_system.lookup(directory, &name)).unwrap();
        assert_eq!(found.inode, inode, "{:?}", String::from_utf8_lossy(&name));
        assert!(listed.is_none_or(|file_type| file_type == found.file_type));
        (name, inode)
    };
    entries.into_iter().map(check).collect()
}

pub fn content_of<B: Blocks>(file_system: &FileSystem<B>, metadata: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < metadata.size_bytes {
        let part = now(file_system.read_file(metadata.inode, bytes.len() as u64, 3 << 20)).unwrap();
        assert!(!part.is_empty(), "a file ends before its size");
        bytes.extend(part);
    }
    bytes
}

pub fn node_of<B: Blocks>(file_system: &FileSystem<B>, metadata: &Metadata) -> Node {
    let content = match metadata.file_type {
        FileType::Regular => content_of(file_system, metadata),
        FileType::SymbolicLink => now(file_system.read_link(metadata.inode)).unwrap(),
        _ => Vec::new(),
    };
    let names = now(file_system.attribute_names(metadata.inode)).unwrap();
    let value = |name: Vec<u8>| {
        let value = now(file_system.attribute(metadata.inode, &name)).unwrap();
        (name, value)
    };
    Node {
        kind: kind_of(metadata.file_type),
        permissions: metadata.permissions,
        owner: (metadata.uid, metadata.gid),
        links_count: u32::from(metadata.links_count),
        modified: metadata.modified.seconds,
        device: metadata.device,
        content: Content(content),
        attributes: names.into_iter().map(value).collect(),
    }
}

/// The whole content of a folder of this system.
pub fn tree_of_folder(folder: &Path) -> Tree {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mut tree = Tree::new();
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.unwrap();
        let metadata = entry.path().symlink_metadata().unwrap();
        let file_type = metadata.file_type();
        let kinds = [
            (file_type.is_file(), '-'),
            (file_type.is_dir(), 'd'),
            (file_type.is_symlink(), 'l'),
            (file_type.is_char_device(), 'c'),
            (file_type.is_block_device(), 'b'),
            (file_type.is_fifo(), 'p'),
            (file_type.is_socket(), 's'),
        ];
        let kind = kinds.iter().find(|(is, _)| *is).expect("there are no other kinds").1;
        let content = match kind {
            '-' => fs::read(entry.path()).unwrap(),
            'l' => fs::read_link(entry.path()).unwrap().as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let number = metadata.rdev();
        let node = Node {
            kind,
            permissions: (metadata.mode() & 0o7777) as u16,
            owner: (metadata.uid(), metadata.gid()),
            links_count: metadata.nlink() as u32,
            modified: metadata.mtime(),
            device: matches!(kind, 'c' | 'b').then(|| (rustix::fs::major(number), rustix::fs::minor(number))),
            content: Content(content),
            attributes: if kind == 'l' { BTreeMap::new() } else { attributes_of(entry.path()) },
        };
        let name = entry.path().strip_prefix(folder).unwrap().as_os_str().as_bytes();
        let path = if name.is_empty() { Vec::new() } else { [b"/", name].concat() };
        tree.insert(path, node);
    }
    tree
}

fn attributes_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0_u8; 65536];
    let length = rustix::fs::listxattr(path, &mut names).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0_u8; 65536];
        let length = rustix::fs::getxattr(path, std::ffi::OsStr::from_bytes(name), &mut value).unwrap();
        (name.to_vec(), value[..length].to_vec())
    };
    names.map(value).collect()
}

/// # Panics
/// When ext4-view reads an image differently. It does not support every ext2; then it says so.
pub fn assert_same_for_view(image: &str, ours: &Tree, what: &str) {
    match tree_of_view(image, ours) {
        Ok(theirs) => assert_same(ours, &theirs, what),
        Err(ext4_view::Ext4Error::Incompatible(_)) => {}
        Err(error) => panic!("ext4-view, {what}: {error}"),
    }
}

/// The whole content of an image as ext4-view reads it; attributes, links and devices, which it
/// does not know, are taken from `like`.
fn tree_of_view(path: &str, like: &Tree) -> Result<Tree, ext4_view::Ext4Error> {
    let view = ext4_view::Ext4::load_from_path(path)?;
    let mut tree = Tree::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let at = ext4_view::PathBuf::try_from([b"/", path.strip_prefix(b"/").unwrap_or(&path)].concat()).unwrap();
        let metadata = view.symlink_metadata(&at)?;
        let file_type = metadata.file_type();
        let kinds = [
            (file_type.is_regular_file(), '-'),
            (file_type.is_dir(), 'd'),
            (file_type.is_symlink(), 'l'),
            (file_type.is_char_dev(), 'c'),
            (file_type.is_block_dev(), 'b'),
            (file_type.is_fifo(), 'p'),
            (file_type.is_socket(), 's'),
        ];
        let kind = kinds.iter().find(|(is, _)| *is).expect("there are no other kinds").1;
        let content = match kind {
            // It takes a hole for damage.
            '-' => view.read(&at).unwrap_or_else(|_| like[&path].content.0.clone()),
            'l' => AsRef::<[u8]>::as_ref(&view.read_link(&at)?).to_vec(),
            _ => Vec::new(),
        };
        if kind == 'd' {
            for entry in view.read_dir(&at)? {
                let entry = entry?;
                let name: Vec<u8> = AsRef::<[u8]>::as_ref(&entry.file_name()).to_vec();
                if name != b"." && name != b".." {
                    todo.push([path.as_slice(), b"/", &name].concat());
                }
            }
        }
        let known = like.get(&path);
        let node = Node {
            kind,
            permissions: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            links_count: known.map_or(0, |node| node.links_count),
            modified: known.map_or(0, |node| node.modified),
            device: known.and_then(|node| node.device),
            content: Content(content),
            attributes: known.map_or_else(BTreeMap::new, |node| node.attributes.clone()),
        };
        tree.insert(path, node);
    }
    Ok(tree)
}

/// # Panics
/// With the first few paths at which two trees differ.
pub fn assert_same(left: &Tree, right: &Tree, what: &str) {
    let paths: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differences: Vec<String> = paths
        .into_iter()
        .filter(|path| left.get(*path) != right.get(*path))
        .take(5)
        .map(|path| format!("{}:\n  {:?}\n  {:?}", String::from_utf8_lossy(path), left.get(path), right.get(path)))
        .collect();
    assert!(differences.is_empty(), "{what}: {}", differences.join("\n"));
}

/// An image that the kernel has mounted, until this is dropped. Requires root.
pub struct Mounted {
    pub folder: PathBuf,
    _place: TempDir,
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Mounted {
    pub fn new(image: &str, options: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().to_owned();
        tool("mount", &["-t", "ext2", "-o", options, image, folder.to_str().unwrap()]);
        Self { folder, _place: place }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that another test is just starting may still have a file open here.
        let folder = self.folder.to_str().unwrap();
        let is_gone = (0..100).any(|_| {
            let is_gone = run("umount", &[folder]).status.success();
            if !is_gone {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            is_gone
        });
        if !is_gone {
            let _ = run("umount", &["--lazy", folder]);
        }
    }
}
