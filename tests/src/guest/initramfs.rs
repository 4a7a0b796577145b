//! The root file system of a guest: a folder that is filled, then packed as the kernel wants it (newc, not compressed:
//! an emulated processor takes longer to unpack than this one to read).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tool;

/// Folders that programs take for granted.
const FOLDERS: &[&str] = &["bin", "dev", "proc", "sys", "tmp", "mnt", "etc", "run/lock", "var/lib", "modules"];

/// A root file system in the making.
pub(super) struct Initramfs {
    root: PathBuf,
    /// Modules in the order of loading.
    modules: Vec<String>,
}

impl Initramfs {
    /// An empty one with busybox in it.
    pub(super) fn new(root: PathBuf) -> Self {
        let made = Self { root, modules: Vec::new() };
        FOLDERS.iter().for_each(|folder| fs::create_dir_all(made.root.join(folder)).expect("it is a new folder"));
        std::os::unix::fs::symlink("../run", made.root.join("var/run")).expect("it is a new folder");
        made.add_copy(&which("busybox"), "/bin/busybox");
        made.add_file("/etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644);
        made
    }

    /// A file with this content.
    pub(super) fn add_file(&self, path: &str, content: &[u8], mode: u32) {
        let path = self.inside(path);
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it was just written");
    }

    /// A program of this machine, at the same place, with the libraries it wants.
    pub(super) fn add_program(&self, name: &str) {
        let path = which(name);
        self.add_copy(&path, &path.display().to_string());
        for library in tool("ldd", [&path]).split_whitespace().filter(|word| word.starts_with('/')) {
            self.add_copy(Path::new(library), library);
        }
    }

    /// A kernel module and what it depends on, unpacked. One that is built in needs nothing.
    pub(super) fn add_module(&mut self, kernel: &Path, version: &str, name: &str) {
        let modprobe = which("modprobe").display().to_string();
        let kernel = kernel.display().to_string();
        let listed = tool(&modprobe, ["--dirname", &kernel, "--set-version", version, "--show-depends", name]);
        // A path, and perhaps options of this machine's configuration, which are none of the guest's.
        let paths = listed.lines().filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
        for packed in paths {
            let module = Path::new(packed).file_stem().expect("a module is a file").to_string_lossy().into_owned();
            if self.modules.contains(&module) {
                continue;
            }
            let output =
                Command::new("xz").args(["--decompress", "--stdout", packed]).output().expect("xz is installed");
            assert!(output.status.success(), "{packed} is not what xz packs");
            self.add_file(&format!("/modules/{module}"), &output.stdout, 0o644);
            self.modules.push(module);
        }
    }

    /// Packs it into `archive`.
    pub(super) fn pack(self, archive: &Path) {
        self.add_file("/modules/order", (self.modules.join("\n") + "\n").as_bytes(), 0o644);
        let mut names = BTreeSet::new();
        list(&self.root, &self.root, &mut names);
        let mut packing = Command::new("cpio")
            .args(["--create", "--format=newc", "--null", "--quiet", "--owner=+0:+0"])
            .current_dir(&self.root)
            .stdin(Stdio::piped())
            .stdout(fs::File::create(archive).expect("the folder is ours"))
            .spawn()
            .expect("cpio is installed: tests/tools/install-packages installs it");
        let names: Vec<u8> = names.into_iter().flat_map(|name| [name.into_bytes(), vec![0]].concat()).collect();
        packing.stdin.take().expect("it is piped").write_all(&names).expect("cpio reads it all");
        assert!(packing.wait().expect("it is our child").success(), "cpio failed");
    }

    /// Where a path of the guest is here, in a folder that exists.
    fn inside(&self, path: &str) -> PathBuf {
        let inside = self.root.join(path.trim_start_matches('/'));
        fs::create_dir_all(inside.parent().expect("it is below the root")).expect("the folder is ours");
        inside
    }

    fn add_copy(&self, from: &Path, to: &str) {
        fs::copy(from, self.inside(to)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
}

/// Names of everything below `folder`, each folder before what is in it.
fn list(root: &Path, folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("the folder is ours") {
        let entry = entry.expect("the folder is ours");
        let path = entry.path();
        names.insert(path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned());
        if entry.file_type().expect("it was just listed").is_dir() {
            list(root, &path, names);
        }
    }
}

/// The path of a program, which may be one of the administrator's.
fn which(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin:/bin";
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: tests/tools/install-packages installs it"))
}
