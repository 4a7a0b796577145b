//! `forebay mount`: an ext2 on a LUN through the real kernel, beside a folder of this machine that is done the same to;
//! killed, unmounted in every way, and looked at by `e2fsck` and by the kernel's own ext2.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::random::Random;
use rustix::fs::{CWD, fallocate, getxattr, renameat_with, setxattr};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use serde_json::json;
use tests::{IQN, Process, Target, World, comes_true, tool};

/// A LUN in a file, with an empty ext2.
struct Lun {
    world: World,
    target: Target,
    image: PathBuf,
}

impl Lun {
    fn new(size: &str) -> Self {
        let world = World::new();
        let image = world.path("lun.img");
        let target = world.target(["--lun", &format!("0=file:{},size={size}", image.display())]);
        world.run(["mkfs", &target.url(0), "--block-size", "4KiB"]).success();
        fs::create_dir(world.path("files")).unwrap();
        Self { world, target, image }
    }

    fn mount(&self, more: &[&str]) -> Mounted<'_> {
        let (url, directory) = (self.target.url(0), self.world.path("files"));
        let fixed = ["mount".to_owned(), url, directory.display().to_string()];
        let process = self.world.start(fixed.iter().map(String::as_str).chain(more.iter().copied()));
        assert_eq!(process.ready, directory.display().to_string());
        Mounted { lun: self, directory, process: Some(process) }
    }

    /// # Panics
    /// When `e2fsck` has anything to say.
    #[track_caller]
    fn check(&self) {
        tool("/usr/sbin/e2fsck", ["-fn".as_ref(), self.image.as_os_str()]);
    }
}

/// Whatever fails before, the directory is unmounted.
struct Mounted<'a> {
    lun: &'a Lun,
    directory: PathBuf,
    process: Option<Process>,
}

impl Mounted<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Unmounts it by SIGTERM; `e2fsck` finds nothing.
    #[track_caller]
    fn end(mut self) {
        self.process.take().expect("it runs").terminate().success();
        self.lun.check();
    }

    fn kill(mut self) {
        self.process.take().expect("it runs").kill();
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.process.is_some() && std::thread::panicking() {
            let _ = Command::new("umount").arg("--lazy").arg(&self.directory).output();
        }
    }
}

impl Drop for Lun {
    fn drop(&mut self) {
        // What was killed leaves a directory without a server.
        let _ = Command::new("umount").arg("--lazy").arg(self.world.path("files")).output();
    }
}

/// All of a folder by path: kind, permissions, links, content or target.
type Tree = BTreeMap<PathBuf, (char, u32, u64, Vec<u8>)>;

fn tree_of(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.unwrap();
        let found = entry.path().symlink_metadata().unwrap();
        let (kind, content) = match found.file_type() {
            kind if kind.is_dir() => ('d', Vec::new()),
            kind if kind.is_symlink() => {
                ('l', fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes())
            }
            _ => ('f', fs::read(entry.path()).unwrap()),
        };
        let path = entry.path().strip_prefix(folder).unwrap().to_owned();
        if path.as_os_str() == "lost+found" {
            continue;
        }
        // Links of a folder differ between file systems.
        let links = if kind == 'd' { 0 } else { found.nlink() };
        let mode = if path.as_os_str().is_empty() { 0 } else { found.mode() & 0o7777 };
        tree.insert(path, (kind, mode, links, content));
    }
    tree
}

#[track_caller]
fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (tree_of(left), tree_of(right));
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left), names(&right));
    for (path, node) in &left {
        let other = &right[path];
        assert_eq!((node.0, node.1, node.2), (other.0, other.1, other.2), "{}", path.display());
        assert!(node.3 == other.3, "the content of {} differs", path.display());
    }
}

/// One operation that is drawn, done below a folder. What the system says of it is its outcome.
fn operate(folder: &Path, random: &mut Random) -> io::Result<()> {
    let name = |random: &mut Random| {
        let place = ["", "d0/", "d1/", "d1/d2/"][random.below(4) as usize];
        let long = if random.chance(0.2) { "-long".repeat(30) } else { String::new() };
        folder.join(format!("{place}{}{}{long}", ["d", "n"][random.below(2) as usize], random.below(5)))
    };
    let (path, other) = (name(random), name(random));
    let (kind, at, length, byte) =
        (random.below(14), random.below(60_000), random.below(20_000), random.below(255) as u8 + 1);
    let open = || OpenOptions::new().write(true).open(&path);
    match kind {
        0 | 1 => File::create(&path).map(drop),
        2 | 3 => open()?.write_all_at(&vec![byte; length as usize], at),
        4 => OpenOptions::new().append(true).open(&path)?.write_all(&vec![byte; length as usize]),
        5 => open()?.set_len(at),
        6 => {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(open()?, punch, at, length + 1)?)
        }
        7 => fs::create_dir(&path),
        8 => fs::remove_dir(&path),
        9 => fs::remove_file(&path),
        10 => fs::rename(&path, &other),
        11 => fs::hard_link(&path, &other),
        12 => symlink(format!("to-{byte}"), &path),
        _ => fs::set_permissions(&path, Permissions::from_mode(0o600 | u32::from(byte & 0o77))),
    }
}

/// The number of an error; which of two is told where both hold is each file system's choice for folders that are
/// replaced.
fn number(outcome: &io::Result<()>) -> Option<i32> {
    let number = outcome.as_ref().err().and_then(io::Error::raw_os_error);
    let (exists, not_empty) = (rustix::io::Errno::EXIST.raw_os_error(), rustix::io::Errno::NOTEMPTY.raw_os_error());
    number.map(|number| if number == exists { not_empty } else { number })
}

#[test]
fn what_is_done_in_a_mount_is_what_is_done_in_a_folder() {
    let lun = Lun::new("64MiB");
    let twin = lun.world.path("twin");
    fs::create_dir(&twin).unwrap();
    for round in 0..3 {
        let mounted = lun.mount(&[]);
        let (mut ours, mut theirs) = (Random::new(round), Random::new(round));
        for step in 0..1500 {
            let (left, right) = (operate(&mounted.directory, &mut ours), operate(&twin, &mut theirs));
            assert_eq!(number(&left), number(&right), "step {step}: {left:?}, {right:?}");
        }
        assert_same(&mounted.directory, &twin);
        mounted.end();
    }
    let mounted = lun.mount(&["--read-only"]);
    assert_same(&mounted.directory, &twin);
    assert_eq!(File::create(mounted.path("x")).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    mounted.end();
    // The kernel's own ext2 sees the same.
    let kernel = lun.world.path("kernel");
    fs::create_dir(&kernel).unwrap();
    tool(
        "mount",
        ["-t".as_ref(), "ext2".as_ref(), "-o".as_ref(), "loop,ro".as_ref(), lun.image.as_os_str(), kernel.as_os_str()],
    );
    let seen = std::panic::catch_unwind(|| assert_same(&kernel, &twin));
    tool("umount", [&kernel]);
    seen.unwrap();
}

/// Of `fsx`: reads, writes, holes, lengths of one file, held against bytes in memory.
fn exercise(path: &Path, seed: u64, operations: u32) {
    const SIZE_MAX: u64 = 256 << 10;
    let mut random = Random::new(seed);
    let mut expected: Vec<u8> = Vec::new();
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let mut file = open();
    for operation in 0..operations {
        let at = random.below(SIZE_MAX);
        let length = random.below(64 << 10).min(SIZE_MAX - at) as usize;
        match random.below(12) {
            0..=3 => {
                let mut bytes = vec![0; length];
                random.fill(&mut bytes);
                file.write_all_at(&bytes, at).unwrap();
                expected.resize(expected.len().max(at as usize + length), 0);
                expected[at as usize..at as usize + length].copy_from_slice(&bytes);
            }
            4..=7 => {
                let mut bytes = vec![0; length];
                let mut found = 0;
                while let Ok(more @ 1..) = file.read_at(&mut bytes[found..], at + found as u64) {
                    found += more;
                }
                let end = (at as usize + length).min(expected.len());
                let wanted = expected.get(at as usize..end).unwrap_or_default();
                assert!(&bytes[..found] == wanted, "operation {operation} of seed {seed}: {length} bytes at {at}");
            }
            8 => {
                file.set_len(at).unwrap();
                expected.resize(at as usize, 0);
            }
            9 if length > 0 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, punch, at, length as u64).unwrap();
                let end = (at as usize + length).min(expected.len());
                if let Some(hole) = expected.get_mut(at as usize..end) {
                    hole.fill(0);
                }
            }
            10 if random.chance(0.1) => file.sync_all().unwrap(),
            _ if random.chance(0.05) => file = open(),
            _ => assert_eq!(file.metadata().unwrap().len(), expected.len() as u64, "operation {operation}"),
        }
    }
    assert!(fs::read(path).unwrap() == expected);
}

#[test]
fn twenty_thousand_operations_on_a_file_are_what_they_say() {
    let lun = Lun::new("64MiB");
    let mounted = lun.mount(&[]);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let path = mounted.path(&format!("file {seed}"));
            scope.spawn(move || exercise(&path, seed, 5000));
        }
    });
    mounted.end();
}

#[test]
fn what_was_synced_is_there_after_a_kill_and_nothing_has_to_be_repaired() {
    let lun = Lun::new("64MiB");
    let mut random = Random::new(7);
    let mut synced: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 0..6 {
        let mounted = lun.mount(&[]);
        for (name, content) in &synced {
            assert!(&fs::read(mounted.path(name)).unwrap() == content, "{name}, round {round}");
        }
        for number in 0..40 {
            let name = format!("{round}-{number}");
            let content = vec![random.below(255) as u8; random.below(100_000) as usize];
            fs::write(mounted.path(&name), &content).unwrap();
            if number % 5 == 0 {
                File::open(mounted.path(&name)).unwrap().sync_all().unwrap();
                synced.insert(name, content);
            } else if number % 3 == 0 {
                fs::remove_file(mounted.path(&name)).unwrap();
            }
        }
        // In the middle of what is not synced.
        let busy = {
            let directory = mounted.path(&format!("busy-{round}"));
            std::thread::spawn(move || {
                let _ = fs::create_dir(&directory);
                for number in 0..100_000 {
                    if fs::write(directory.join(number.to_string()), [1; 9000]).is_err() {
                        return;
                    }
                    if number % 7 == 0
                        && File::open(directory.join(number.to_string())).is_ok_and(|file| file.sync_all().is_err())
                    {
                        return;
                    }
                }
            })
        };
        std::thread::sleep(std::time::Duration::from_millis(20 + random.below(150)));
        mounted.kill();
        busy.join().unwrap();
        if round % 2 == 1 {
            lun.mount(&[]).end();
        }
    }
    lun.mount(&[]).end();
}

/// What is done becomes durable within five seconds although nobody asks for it.
#[test]
fn what_nobody_synced_is_there_after_a_kill_some_seconds_later() {
    let lun = Lun::new("16MiB");
    let mounted = lun.mount(&[]);
    fs::write(mounted.path("a"), b"nobody synced it").unwrap();
    lun.world.wait_for_status("files", "nothing left to commit", |status| status["mount"]["changed_blocks"] == 0);
    mounted.kill();
    let mounted = lun.mount(&[]);
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"nobody synced it");
    mounted.end();
}

#[test]
fn what_a_killed_mount_left_there_is_in_nobodys_way() {
    let lun = Lun::new("16MiB");
    let mounted = lun.mount(&[]);
    fs::write(mounted.path("a"), b"a").unwrap();
    File::open(mounted.path("a")).unwrap().sync_all().unwrap();
    mounted.kill();
    let mounted = lun.mount(&[]);
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"a");
    mounted.end();
}

/// A way in which a mount ends.
type Way = fn(&Lun, &OsStr);

#[test]
fn every_way_to_unmount_leaves_everything_where_it_belongs() {
    let lun = Lun::new("16MiB");
    let ways: [(&str, Way); 4] = [
        ("umount", |_, directory| drop(tool("umount", [directory]))),
        ("fusermount3", |_, directory| drop(tool("fusermount3", ["-u".as_ref(), directory]))),
        ("detach", |lun, _| drop(lun.world.run(["detach", "files"]).success())),
        ("busy", |lun, directory| {
            // Whoever has it open is no reason to stay.
            let _open = File::open(directory).unwrap();
            lun.world.run(["detach", "files"]).success();
        }),
    ];
    for (name, unmount) in ways {
        let mut mounted = lun.mount(&[]);
        fs::write(mounted.path(name), name).unwrap();
        unmount(&lun, mounted.directory.as_os_str());
        mounted.process.take().unwrap().wait().success();
        lun.check();
        drop(mounted);
    }
    let mounted = lun.mount(&[]);
    for (name, _) in ways {
        assert_eq!(fs::read_to_string(mounted.path(name)).unwrap(), name);
    }
    mounted.end();
}

#[test]
fn files_are_what_programs_expect_of_them() {
    let lun = Lun::new("16MiB");
    let mounted = lun.mount(&[]);
    let free = rustix::fs::statvfs(&mounted.directory).unwrap().f_bfree;
    // Without a name, and open.
    let path = mounted.path("open");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(&[5; 300_000]).unwrap();
    file.seek(SeekFrom::Start(299_990)).unwrap();
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!((end, file.metadata().unwrap().nlink()), (vec![5; 10], 0));
    drop(file);
    // A sparse file: where its content is.
    let file = File::create(mounted.path("sparse")).unwrap();
    file.write_all_at(b"x", 100_000).unwrap();
    let seek = |from| rustix::fs::seek(&file, from).map_err(|errno| errno == rustix::io::Errno::NXIO);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(98_304));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(98_304)), Ok(100_001));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(100_001)), Err(true));
    assert_eq!(file.metadata().unwrap().blocks(), 16, "a block of content, and one that says where it is");
    // Attributes, links, names that are exchanged.
    setxattr(mounted.path("sparse"), "user.colour", b"red", XattrFlags::empty()).unwrap();
    let mut value = [0; 8];
    assert_eq!(getxattr(mounted.path("sparse"), "user.colour", &mut value), Ok(3));
    fs::hard_link(mounted.path("sparse"), mounted.path("other")).unwrap();
    assert_eq!(fs::metadata(mounted.path("sparse")).unwrap().nlink(), 2);
    fs::write(mounted.path("b"), b"b").unwrap();
    renameat_with(CWD, mounted.path("other"), CWD, mounted.path("b"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(mounted.path("other")).unwrap(), b"b");
    let kept = renameat_with(CWD, mounted.path("other"), CWD, mounted.path("b"), RenameFlags::NOREPLACE);
    assert_eq!(kept, Err(rustix::io::Errno::EXIST));
    // Times, and what a set-group-ID directory hands down.
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 123_456_789);
    File::options().write(true).open(mounted.path("b")).unwrap().set_modified(time).unwrap();
    assert_eq!(fs::metadata(mounted.path("b")).unwrap().modified().unwrap(), time);
    fs::create_dir(mounted.path("group")).unwrap();
    std::os::unix::fs::chown(mounted.path("group"), None, Some(1234)).unwrap();
    fs::set_permissions(mounted.path("group"), Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(mounted.path("group/below")).unwrap();
    let below = fs::metadata(mounted.path("group/below")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (1234, 0o2000));
    drop(file);
    // Full, and room again.
    let full = fs::write(mounted.path("full"), vec![1; 20 << 20]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    for name in ["full", "sparse", "b", "other", "group/below", "group"] {
        let path = mounted.path(name);
        if path.is_dir() { fs::remove_dir(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let status = lun.world.status("files");
    assert_eq!((&status["kind"], &status["is_read_only"]), (&"mount".into(), &false.into()), "{status}");
    // What the kernel forgot is freed.
    let all_free = comes_true(|| rustix::fs::statvfs(&mounted.directory).unwrap().f_bfree == free);
    assert!(all_free, "{} of {free} blocks are free", rustix::fs::statvfs(&mounted.directory).unwrap().f_bfree);
    mounted.end();
}

/// Who waits answers meanwhile: what it waits for, and that it is not wanted any more.
#[test]
fn a_mount_that_waits_for_its_target_can_be_asked_and_detached() {
    let world = World::new();
    let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let url = format!("iscsi://{portal}/{IQN}/0");
    let files = world.path("files");
    fs::create_dir(&files).unwrap();
    let mount = ["mount", &url, files.to_str().unwrap(), "--wait"];
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.run(mount));
        let asked = world.run(["status", "files", "--wait", "10s", "--json"]).json();
        assert_eq!((&asked["kind"], &asked["remote"]["state"]), (&json!("mount"), &json!("reconnecting")), "{asked}");
        assert_eq!(asked["address"], json!(files));
        world.run(["detach", "files"]).success();
        let ended = waiting.join().unwrap();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        // Behind the warnings that the target is not there yet.
        assert!(ended.stderr.ends_with("ended before anything was mounted\n"), "{}", ended.stderr);
    });
    let image = format!("0=file:{},size=16MiB", world.path("lun.img").display());
    let serve = ["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", &image];
    let target = world.start(serve);
    world.run(["mkfs", &url]).success();
    target.terminate().success();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.start(mount));
        world.run(["status", "files", "--wait", "10s"]).success();
        let target = world.start(serve);
        let mounted = waiting.join().unwrap();
        assert_eq!(mounted.ready, files.display().to_string());
        world.run(["detach", "files"]).success();
        mounted.wait().success();
        target.terminate().success();
    });
}

#[test]
fn what_cannot_be_mounted_is_refused_in_a_line() {
    let lun = Lun::new("16MiB");
    let world = &lun.world;
    let files = world.path("files").display().to_string();
    let url = lun.target.url(0);
    world.run(["mount", &format!("{url},{url}"), &files]).failure(2, &["one logical unit"]);
    let file = world.path("nothing");
    File::create(&file).unwrap().set_len(1 << 20).unwrap();
    world.run(["mount", file.to_str().unwrap(), &files]).failure(7, &["no ext2"]);
    tool("/usr/sbin/mke2fs", ["-q".as_ref(), "-F".as_ref(), "-t".as_ref(), "ext4".as_ref(), file.as_os_str()]);
    world.run(["mount", file.to_str().unwrap(), &files]).failure(7, &["extent"]);
    world.run(["mount", "no-such-file", &files]).failure(5, &["no-such-file"]);
    world.run(["mount", &url, &world.path("nowhere").display().to_string()]).failure(5, &["nowhere"]);
    let mounted = lun.mount(&[]);
    world.run(["mount", &url, &files, "--name", "second"]).failure(6, &["files"]);
    world.run(["attach", &url]).failure(6, &["files"]);
    mounted.end();
    // Somebody else's crash is for e2fsck.
    tool("/usr/sbin/debugfs", ["-w", "-R", "set_super_value state 0", lun.image.to_str().unwrap()]);
    tool("/usr/sbin/debugfs", ["-w", "-R", "set_super_value mnt_count 77", lun.image.to_str().unwrap()]);
    world.run(["mount", &url, &files]).failure(7, &["e2fsck"]);
}

/// Blocks of 4096 bytes hold no ext2 of blocks of 1024.
#[test]
fn blocks_of_the_lun_are_not_larger_than_those_of_the_file_system() {
    let world = World::new();
    let image = world.path("lun.img");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    tool("/usr/sbin/mke2fs", ["-q", "-F", "-t", "ext2", "-b", "1024", image.to_str().unwrap()]);
    let target = world.target(["--lun", &format!("0=file:{},block=4096", image.display())]);
    fs::create_dir(world.path("files")).unwrap();
    let files = world.path("files").display().to_string();
    world.run(["mount", &target.url(0), &files]).failure(7, &["1024", "4096"]);
}

#[test]
fn an_image_is_mounted_without_a_target() {
    let lun = Lun::new("16MiB");
    let copy = lun.world.path("copy.img");
    fs::copy(&lun.image, &copy).unwrap();
    let directory = lun.world.path("files");
    let process = lun.world.start(["mount".as_ref(), copy.as_os_str(), directory.as_os_str()]);
    fs::write(directory.join("a"), b"a").unwrap();
    process.terminate().success();
    tool("/usr/sbin/e2fsck", ["-fn".as_ref(), copy.as_os_str()]);
    assert!(tool("/usr/sbin/debugfs", ["-R", "stat a", copy.to_str().unwrap()]).contains("Size: 1"));
}

/// The image is restored while the target stands still and the file system is mounted: what the mount has in memory is
/// of another file system, and is not written over that one.
#[test]
fn a_mount_writes_nothing_over_an_image_that_was_restored_meanwhile() {
    let lun = Lun::new("32MiB");
    let mut mounted = lun.mount(&[]);
    fs::write(mounted.path("first"), "first").unwrap();
    File::open(mounted.path("first")).unwrap().sync_all().unwrap();
    // A restart that loses nothing is none of its business.
    let portal = lun.target.portal().to_owned();
    let serve = || {
        let spec = format!("0=file:{},size=32MiB", lun.image.display());
        lun.world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", &spec])
    };
    lun.world.run(["detach", "target"]).success();
    let second = serve();
    fs::write(mounted.path("second"), "second").unwrap();
    File::open(mounted.path("second")).unwrap().sync_all().unwrap();
    assert_eq!(lun.world.status("files")["troubles"], json!([]));
    second.terminate().success();
    let restored = vec![0x5a; 32 << 20];
    fs::write(&lun.image, &restored).unwrap();
    let third = serve();
    fs::write(mounted.path("third"), "third").unwrap();
    let refused = File::open(mounted.path("third")).unwrap().sync_all().expect_err("it is not written any more");
    assert_eq!(refused.raw_os_error(), Some(5), "EIO: {refused}");
    let trouble = lun.world.status("files")["troubles"].to_string();
    assert!(trouble.contains("nothing is written there any more"), "{trouble}");
    lun.world.run(["detach", "files"]).failure(9, &["not durable", "another one by now"]);
    let ended = mounted.process.take().expect("it runs").wait();
    assert_eq!(ended.code, Some(9), "{}", ended.stderr);
    let told = ended.stderr.lines().last().unwrap_or_default();
    assert!(told.contains("another one by now"), "{told}");
    third.terminate().success();
    assert!(fs::read(&lun.image).unwrap() == restored);
}
