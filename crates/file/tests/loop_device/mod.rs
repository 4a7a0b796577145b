//! Loop devices and full file systems for tests: real block devices, made by `losetup` and `mount`, which need root.
//!
//! Without root a test that needs one prints `skipped:` and its reason, and is counted as such. A missing tool fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether devices can be made here; prints the reason if not.
pub fn may_make_devices() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let is_there = Path::new("/dev/loop-control").exists();
    if !is_root || !is_there {
        println!("skipped: a loop device needs root and /dev/loop-control");
    }
    is_root && is_there
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {wrong}");
    said.trim().to_owned()
}

/// A loop device, detached when it is dropped.
pub struct LoopDevice {
    pub path: PathBuf,
}

impl LoopDevice {
    /// A loop device over a new sparse file of `size` bytes at `backing`, with sectors of
    /// `sector_bytes`.
    pub fn new(backing: &Path, size: u64, sector_bytes: u32) -> Self {
        File::create(backing).and_then(|file| file.set_len(size)).expect("the backing file can be made");
        Self::over(backing, &["--sector-size", &sector_bytes.to_string()])
    }

    /// A loop device over the file at `backing`, with more arguments for `losetup`.
    pub fn over(backing: &Path, arguments: &[&str]) -> Self {
        let backing = backing.to_str().expect("paths of tests are text");
        let path = run("losetup", &[&["--find", "--show"], arguments, &[backing]].concat());
        Self { path: PathBuf::from(path) }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A second failure while a test fails would hide the first.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// A small file system in memory, which gets full soon; unmounted when it is dropped.
pub struct SmallFileSystem {
    pub path: PathBuf,
}

impl SmallFileSystem {
    /// A file system of `size` bytes, mounted on a new folder at `path`.
    pub fn new(path: &Path, size: u64) -> Self {
        std::fs::create_dir(path).expect("the folder can be made");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", path.to_str().expect("text")]);
        Self { path: path.to_owned() }
    }

    /// Grows it to `size` bytes.
    pub fn grow(&self, size: u64) {
        run("mount", &["-o", &format!("remount,size={size}"), self.path.to_str().expect("text")]);
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy"]).arg(&self.path).status();
    }
}

/// A disk whose flush fails once when its writes find no room: it is in a file on an ext2 on a
/// sparse disk on a small file system. Its writes succeed, since they end in the page cache of the
/// ext2, whose `fsync` reports the loss to one flush.
pub struct FlushFailingDisk {
    pub disk: LoopDevice,
    _ext2: SmallFileSystem,
    _outer: LoopDevice,
    memory: SmallFileSystem,
}

impl FlushFailingDisk {
    /// A disk of `size` bytes below the new folder `folder`, with room for `room` bytes.
    pub fn new(folder: &Path, size: u64, room: u64) -> Self {
        std::fs::create_dir(folder).expect("the folder can be made");
        let memory = SmallFileSystem::new(&folder.join("memory"), room);
        let outer = LoopDevice::new(&memory.path.join("outer"), 2 * size, 512);
        let (device, mounted) = (outer.path.to_str().expect("text"), folder.join("ext2"));
        run("mkfs.ext2", &["-q", "-F", "-m", "0", "-N", "16", "-b", "4096", device]);
        std::fs::create_dir(&mounted).expect("the folder can be made");
        run("mount", &["-t", "ext2", device, mounted.to_str().expect("text")]);
        let ext2 = SmallFileSystem { path: mounted };
        let disk = LoopDevice::new(&ext2.path.join("disk"), size, 512);
        Self { disk, _ext2: ext2, _outer: outer, memory }
    }

    /// Makes room for everything.
    pub fn heal(&self) {
        self.memory.grow(1 << 30);
    }
}
