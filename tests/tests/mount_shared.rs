//! `forebay mount --shared`: several hosts have the ext2 of one LUN mounted at the same time, each a process with
//! directories of its own. Nothing that was acknowledged is lost, whatever becomes of one of them, and each sees at
//! once what the others did.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tests::{IQN, Process, Target, World, comes_true, tool, wait_until};

/// A LUN in a file that hosts may share, with an empty ext2.
struct Lun {
    world: World,
    target: Target,
    image: PathBuf,
}

impl Lun {
    fn new(size: &str) -> Self {
        let world = World::new();
        let image = world.path("lun.img");
        let target = world.target(["--lun", &format!("0=file:{},size={size},shared", image.display())]);
        world.run(["mkfs", &target.url(0), "--block-size", "4KiB"]).success();
        Self { world, target, image }
    }

    fn url(&self) -> String {
        self.target.url(0)
    }

    fn hosts<const COUNT: usize>(&self) -> [Host; COUNT] {
        std::array::from_fn(|_| Host::mount(&self.url()))
    }

    /// # Panics
    /// When `e2fsck` has anything to say.
    #[track_caller]
    fn check(&self) {
        tool("/usr/sbin/e2fsck", ["-fn".as_ref(), self.image.as_os_str()]);
    }
}

/// A host of its own, with the file system in a directory.
struct Host {
    world: World,
    directory: PathBuf,
    process: Option<Process>,
}

impl Host {
    fn mount(url: &str) -> Self {
        let world = World::new();
        let directory = world.path("files");
        fs::create_dir(&directory).unwrap();
        let process = world.start(["mount", "--shared", url, directory.to_str().unwrap()]);
        Self { world, directory, process: Some(process) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn end(mut self) {
        self.process.take().expect("it runs").terminate().success();
    }

    /// How often it asked for the lock, and how often it was called back.
    fn traffic(&self) -> (u64, u64) {
        let sharing = &self.world.status("files")["remote"]["sharing"];
        (sharing["asks"].as_u64().unwrap(), sharing["callbacks"].as_u64().unwrap())
    }

    /// Requests of the kernel so far.
    fn requests(&self) -> u64 {
        self.world.status("files")["mount"]["requests"].as_u64().unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().expect("it runs").id();
        rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    }

    fn troubles(&self) -> String {
        self.world.status("files")["troubles"].to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.process.take());
        // What was killed leaves a directory without a server.
        let _ = Command::new("umount").arg("--lazy").arg(&self.directory).output();
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Files below a directory, each with its content.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(directory).into_iter().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_file());
    files
        .map(|file| (file.path().strip_prefix(directory).unwrap().to_owned(), fs::read(file.path()).unwrap()))
        .collect()
}

/// New names move others to other places in their directory.
#[test]
fn a_listing_has_each_name_once_that_was_there_all_the_time_while_another_host_makes_others() {
    let lun = Lun::new("64MiB");
    let hosts = lun.hosts::<2>();
    let make = |host: &Host, prefix: &str| {
        (0..700).for_each(|number| drop(File::create(host.path(&format!("{prefix}{number:05}"))).unwrap()));
    };
    make(&hosts[0], "stay");
    let mut listed = fs::read_dir(&hosts[0].directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names = vec![listed.next().unwrap()];
    make(&hosts[1], "made");
    fs::rename(hosts[1].path("made00001"), hosts[1].path("stay00001")).unwrap();
    names.extend(listed);
    let mut stay: Vec<_> =
        names.iter().map(|name| name.to_str().unwrap()).filter(|name| name.starts_with("stay")).collect();
    stay.sort_unstable();
    let expected: Vec<_> = (0..700).map(|number| format!("stay{number:05}")).collect();
    assert!(stay == expected, "{} of {} names", stay.len(), expected.len());
    hosts.into_iter().for_each(Host::end);
    lun.check();
}

#[test]
fn what_one_host_did_the_other_sees_at_once() {
    let lun = Lun::new("64MiB");
    let [one, two] = lun.hosts();
    fs::create_dir(one.path("d")).unwrap();
    for round in 0..20 {
        let (host, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let name = format!("d/{round}");
        assert!(!other.path(&name).exists());
        fs::write(host.path(&name), name.repeat(500)).unwrap();
        assert_eq!(fs::read_to_string(other.path(&name)).unwrap(), name.repeat(500));
        assert_eq!(fs::read_dir(other.path("d")).unwrap().count(), 1 + round / 2 + round % 2);
        if round % 2 == 1 {
            fs::rename(host.path(&name), host.path(&format!("d/{round}-moved"))).unwrap();
            assert!(!other.path(&name).exists() && other.path(&format!("d/{round}-moved")).exists());
            fs::remove_file(other.path(&format!("d/{round}-moved"))).unwrap();
            assert!(!host.path(&format!("d/{round}-moved")).exists());
        }
        // What a program has read before is not what it reads now.
        fs::write(other.path("d/0"), format!("round {round}")).unwrap();
        assert_eq!(fs::read_to_string(host.path("d/0")).unwrap(), format!("round {round}"));
        assert_eq!(host.path("d/0").metadata().unwrap().len(), format!("round {round}").len() as u64);
    }
    assert_eq!(contents(&one.directory), contents(&two.directory));
    one.end();
    two.end();
    lun.check();
}

/// However long they read, nobody asks for the lock and nobody is called back.
#[test]
fn hosts_that_only_read_do_not_take_turns() {
    let lun = Lun::new("64MiB");
    let hosts: [Host; 4] = lun.hosts();
    (0..20).for_each(|number: u8| fs::write(hosts[0].path(&number.to_string()), [number; 9000]).unwrap());
    let found = hosts.each_ref().map(|host| contents(&host.directory));
    let before = hosts.each_ref().map(Host::traffic);
    let first = &found[0];
    std::thread::scope(|scope| {
        for directory in hosts.each_ref().map(|host| &host.directory) {
            scope.spawn(move || (0..20).for_each(|_| assert!(contents(directory) == *first)));
        }
    });
    assert_eq!(hosts.each_ref().map(Host::traffic), before);
    fs::write(hosts[2].path("more"), "more").unwrap();
    for host in &hosts {
        assert_eq!(fs::read_to_string(host.path("more")).unwrap(), "more");
        assert_eq!(contents(&host.directory).len(), 21);
    }
    // Who changed it reads on by what it has.
    assert_eq!(hosts[2].traffic(), (before[2].0 + 1, before[2].1 + 1));
    hosts.into_iter().for_each(Host::end);
    lun.check();
}

/// As long as the host has the lock, and no longer.
#[test]
fn the_kernel_keeps_attributes_until_another_host_changes_them() {
    let lun = Lun::new("64MiB");
    let [one, two] = lun.hosts();
    fs::write(one.path("name"), "").unwrap();
    let open = File::open(one.path("name")).unwrap();
    for round in 1..20 {
        assert_eq!(open.metadata().unwrap().len(), round - 1);
        let requests = one.requests();
        (0..200).for_each(|_| assert_eq!(open.metadata().unwrap().len(), round - 1));
        assert!(one.requests() < requests + 100, "the kernel has them");
        fs::write(two.path("name"), vec![0; round as usize]).unwrap();
        assert_eq!(open.metadata().unwrap().len(), round);
        assert_eq!(one.path("name").metadata().unwrap().len(), round);
    }
    one.end();
    two.end();
    lun.check();
}

/// Neither its kernel nor it says what was there before.
#[test]
fn a_frozen_host_shows_nothing_old_when_its_lease_is_over() {
    let lun = Lun::new("64MiB");
    let [one, two] = lun.hosts();
    fs::write(one.path("name"), "old").unwrap();
    let open = File::open(one.path("name")).unwrap();
    open.sync_all().unwrap();
    assert_eq!(open.metadata().unwrap().len(), 3);
    one.signal(Signal::STOP);
    fs::write(two.path("name"), "a new content").unwrap();
    let look = std::thread::spawn(move || open.metadata().map(|found| found.len()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!look.is_finished(), "the kernel asks");
    one.signal(Signal::CONT);
    assert!(!matches!(look.join().unwrap(), Ok(3)));
    assert_eq!(fs::read_to_string(two.path("name")).unwrap(), "a new content");
    drop(one);
    two.end();
    lun.check();
}

/// Both hosts had the lock, or one of them: what they have in memory is of another file system, and is not written.
#[test]
fn an_image_that_is_restored_while_its_target_is_away_is_noticed_by_the_hosts_that_had_the_lock() {
    let world = World::new();
    let image = world.path("lun.img");
    let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let lun = format!("0=file:{},size=64MiB,shared", image.display());
    let serve = || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", &lun]);
    let mut target = serve();
    let url = format!("iscsi://{portal}/{IQN}/0");
    world.run(["mkfs", &url, "--block-size", "4KiB"]).success();
    let hosts = [Host::mount(&url), Host::mount(&url)];
    fs::write(hosts[0].path("first"), "first").unwrap();
    File::open(hosts[0].path("first")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(hosts[1].path("first")).unwrap(), "first");
    let copy = fs::read(&image).unwrap();
    fs::write(hosts[0].path("second"), "second").unwrap();
    File::open(hosts[0].path("second")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(hosts[1].path("second")).unwrap(), "second");
    assert_eq!(fs::read_to_string(hosts[0].path("second")).unwrap(), "second");
    target.kill();
    fs::write(&image, &copy).unwrap();
    let target = serve();
    for host in &hosts {
        // What only reads goes on by what is in memory until the target is there again.
        assert_eq!(errno(fs::write(host.path("third"), "third")), Some(Errno::IO.raw_os_error()));
        assert_eq!(errno(fs::read_to_string(host.path("second"))), Some(Errno::IO.raw_os_error()));
        assert!(host.troubles().contains("restored or replaced"), "{}", host.troubles());
    }
    drop(hosts);
    target.terminate().success();
    assert!(fs::read(&image).unwrap() == copy, "nothing was written there");
}

#[test]
fn what_hosts_append_to_one_file_at_the_same_time_is_all_there() {
    let lun = Lun::new("64MiB");
    let hosts: [Host; 2] = lun.hosts();
    let append = |host: usize, path: PathBuf| {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        (0..150).for_each(|line| file.write_all(format!("{host} {line:06}\n").as_bytes()).unwrap());
    };
    let paths = hosts.each_ref().map(|host| host.path("log"));
    std::thread::scope(|scope| {
        for (host, path) in paths.into_iter().enumerate() {
            scope.spawn(move || append(host, path));
        }
    });
    for host in &hosts {
        let text = fs::read_to_string(host.path("log")).unwrap();
        for own in ["0 ", "1 "] {
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(own)).collect();
            let expected: Vec<String> = (0..150).map(|line| format!("{own}{line:06}")).collect();
            assert_eq!(lines, expected);
        }
        assert_eq!(text.lines().count(), 300);
    }
    hosts.into_iter().for_each(Host::end);
    lun.check();
}

/// Both open it, whoever makes it.
#[test]
fn a_name_that_two_hosts_make_at_the_same_time_is_one_file() {
    let lun = Lun::new("64MiB");
    let hosts: [Host; 2] = lun.hosts();
    for round in 0..20 {
        let (made, paths) = (Mutex::new(0), hosts.each_ref().map(|host| host.path(&format!("new {round}"))));
        std::thread::scope(|scope| {
            for path in &paths {
                let made = &made;
                scope.spawn(move || {
                    let open = |exclusive: bool| {
                        let mut options = OpenOptions::new();
                        options.write(true).create(true).create_new(exclusive).truncate(false).open(path)
                    };
                    match round % 2 {
                        0 => drop(open(false).unwrap()),
                        _ => *made.lock().unwrap() += i32::from(open(true).is_ok()),
                    }
                });
            }
        });
        assert_eq!(*made.lock().unwrap(), round % 2, "who makes it is one of them");
    }
    assert_eq!(fs::read_dir(&hosts[0].directory).unwrap().count(), 21);
    hosts.into_iter().for_each(Host::end);
    lun.check();
}

/// Whatever file has its number since.
#[test]
fn a_file_that_another_host_removed_is_stale_and_the_next_one_is_not_taken_for_it() {
    let lun = Lun::new("64MiB");
    let [one, two] = lun.hosts();
    fs::write(one.path("old"), "old").unwrap();
    let mut open = OpenOptions::new().read(true).write(true).open(one.path("old")).unwrap();
    fs::remove_file(two.path("old")).unwrap();
    fs::write(two.path("new"), "new").unwrap();
    let stale = Some(Errno::STALE.raw_os_error());
    assert_eq!(errno(open.write_at(b"over", 0)), stale);
    assert_eq!(errno(open.read_to_string(&mut String::new())), stale);
    assert_eq!(errno(open.set_len(0)), stale);
    assert_eq!(fs::read_to_string(one.path("new")).unwrap(), "new");
    // What this host removed itself it goes on with.
    let mut own = OpenOptions::new().read(true).write(true).open(one.path("new")).unwrap();
    fs::remove_file(one.path("new")).unwrap();
    let third = Host::mount(&lun.url());
    fs::write(third.path("more"), "more").unwrap();
    own.write_at(b"N", 0).unwrap();
    let mut text = String::new();
    own.read_to_string(&mut text).unwrap();
    assert_eq!(text, "New");
    drop((own, open));
    third.end();
    one.end();
    two.end();
    lun.check();
}

/// One host's part in a storm: files in one directory that all use, each durable when it is noted; names that move and
/// go; lines in one file.
fn storm(host: &Path, number: usize, rounds: u32, is_over: &AtomicBool, noted: &Mutex<BTreeMap<String, String>>) {
    let work = |round: u32| -> io::Result<()> {
        let (name, content) = (format!("{number}-{round}"), format!("content {number} {round} ").repeat(40));
        let mut file = File::create(host.join("all").join(&name))?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        noted.lock().unwrap().insert(format!("all/{name}"), content);
        let mut log = OpenOptions::new().append(true).open(host.join("log"))?;
        log.write_all(format!("{number} {round}\n").as_bytes())?;
        log.sync_all()?;
        match round % 4 {
            0 => {
                // Between these two it may have either name.
                let content = noted.lock().unwrap().remove(&format!("all/{name}"));
                fs::rename(host.join("all").join(&name), host.join("moved").join(&name))?;
                File::open(host.join("moved"))?.sync_all()?;
                noted.lock().unwrap().extend(content.map(|content| (format!("moved/{name}"), content)));
            }
            1 => {
                noted.lock().unwrap().remove(&format!("all/{name}"));
                fs::remove_file(host.join("all").join(&name))?;
            }
            2 => fs::hard_link(host.join("all").join(&name), host.join("moved").join(format!("{name}-link")))?,
            _ => fs::create_dir(host.join("all").join(format!("{name}-folder")))?,
        }
        Ok(())
    };
    for round in 0..rounds {
        match work(round) {
            Ok(()) => {}
            Err(error) if is_over.load(Ordering::Acquire) => return drop(error),
            Err(error) => panic!("host {number}, round {round}: {error}"),
        }
    }
}

fn storm_and_kill<const COUNT: usize>(rounds: u32) {
    let lun = Lun::new("128MiB");
    let mut hosts: [Host; COUNT] = lun.hosts();
    fs::create_dir(hosts[0].path("all")).unwrap();
    fs::create_dir(hosts[0].path("moved")).unwrap();
    File::create(hosts[0].path("log")).unwrap().sync_all().unwrap();
    let (noted, is_over): (Mutex<BTreeMap<String, String>>, _) = (Mutex::default(), AtomicBool::new(false));
    let never = AtomicBool::new(false);
    // Whatever it comes to, the host is killed: its part in the storm does not end otherwise.
    let mut was_busy = false;
    let mut killed = hosts[COUNT - 1].process.take().unwrap();
    let directories: Vec<PathBuf> = hosts.iter().map(|host| host.directory.clone()).collect();
    std::thread::scope(|scope| {
        for (number, directory) in directories.iter().enumerate() {
            let is_killed = number == COUNT - 1;
            let (noted, is_over) = (&noted, if is_killed { &is_over } else { &never });
            scope.spawn(move || storm(directory, number, if is_killed { u32::MAX } else { rounds }, is_over, noted));
        }
        let of_killed = format!("/{}-", COUNT - 1);
        let durable = || noted.lock().unwrap().keys().filter(|name| name.contains(&of_killed)).count();
        was_busy = comes_true(|| durable() >= 5);
        is_over.store(true, Ordering::Release);
        killed.kill();
    });
    assert!(was_busy, "the host that is killed never had five files that are durable");
    let found = contents(&hosts[0].directory);
    for (name, content) in noted.lock().unwrap().iter() {
        let found = found.get(Path::new(name)).unwrap_or_else(|| panic!("{name} is lost"));
        assert!(found == content.as_bytes(), "{name} has another content");
    }
    let log = String::from_utf8(found[Path::new("log")].clone()).unwrap();
    for number in 0..COUNT - 1 {
        let own = log.lines().filter(|line| line.starts_with(&format!("{number} ")));
        assert!(own.eq((0..rounds).map(|round| format!("{number} {round}"))), "lines of host {number} are lost");
    }
    let again = Host::mount(&lun.url());
    assert!(contents(&again.directory) == found, "another mount has something else");
    again.end();
    hosts.into_iter().filter(|host| host.process.is_some()).for_each(Host::end);
    lun.check();
}

#[test]
fn two_hosts_lose_nothing_that_is_acknowledged_when_one_is_killed() {
    storm_and_kill::<2>(60);
}

#[test]
fn four_hosts_lose_nothing_that_is_acknowledged_when_one_is_killed() {
    storm_and_kill::<4>(40);
}

/// Who has the lock claims it back, and what is lost with its sessions is written again.
#[test]
fn a_target_that_is_killed_and_starts_again_loses_nothing() {
    let world = World::new();
    let image = world.path("lun.img");
    let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let lun = format!("0=file:{},size=64MiB,shared", image.display());
    let serve = || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", &lun]);
    let mut target = serve();
    let url = format!("iscsi://{portal}/{IQN}/0");
    world.run(["mkfs", &url, "--block-size", "4KiB"]).success();
    let hosts = [Host::mount(&url), Host::mount(&url)];
    let directories = hosts.each_ref().map(|host| host.directory.clone());
    fs::create_dir(hosts[0].path("all")).unwrap();
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (host, directory) in directories.iter().enumerate() {
            let count = &count;
            scope.spawn(move || {
                for number in 0..60 {
                    let mut file = File::create(directory.join(format!("all/{host}-{number}"))).unwrap();
                    file.write_all(&[number; 3000]).unwrap();
                    file.sync_all().unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("a part of the files is durable", || count.load(Ordering::Relaxed) >= 20);
        target.kill();
        target = serve();
    });
    let found = contents(&hosts[1].directory);
    for host in 0..2 {
        for number in 0..60 {
            assert_eq!(found[Path::new(&format!("all/{host}-{number}"))], [number; 3000], "{host}-{number}");
        }
    }
    hosts.into_iter().for_each(Host::end);
    tool("/usr/sbin/e2fsck", ["-fn".as_ref(), image.as_os_str()]);
}

/// Nobody knows of it when another host, which is back, ends.
#[test]
fn a_file_without_a_name_stays_for_a_host_that_is_not_back_yet_behind_a_start() {
    let world = World::new();
    let image = world.path("lun.img");
    let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let lun = format!("0=file:{},size=64MiB,shared", image.display());
    let serve = || world.start(["target", "serve", "--portal", &portal, "--iqn", IQN, "--lun", &lun]);
    let mut target = serve();
    let url = format!("iscsi://{portal}/{IQN}/0");
    world.run(["mkfs", &url, "--block-size", "4KiB"]).success();
    let (one, two) = (Host::mount(&url), Host::mount(&url));
    fs::write(one.path("name"), [7; 100_000]).unwrap();
    // Not a file of this process: one that it starts meanwhile would close it, and wait for the host that is stopped.
    let script = "exec 3<\"$1\"; rm \"$1\"; echo; read -r _; exec cat <&3";
    let mut program = Command::new("sh");
    program.args(["-c", script, "sh"]).arg(one.path("name")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let (mut go_on, mut told) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    told.read_exact(&mut [0]).unwrap();
    File::open(&one.directory).unwrap().sync_all().unwrap();
    fs::write(two.path("other"), "content").unwrap();
    target.kill();
    one.signal(Signal::STOP);
    let _target = serve();
    two.end();
    one.signal(Signal::CONT);
    go_on.write_all(b"\n").unwrap();
    let mut found = Vec::new();
    told.read_to_end(&mut found).unwrap();
    assert!(found == [7; 100_000]);
    assert!(program.wait().unwrap().success());
    one.end();
    tool("/usr/sbin/e2fsck", ["-fn".as_ref(), image.as_os_str()]);
}

/// Nothing that it does has an effect any more, and it says so.
#[test]
fn a_fenced_host_gets_errors_and_writes_nothing() {
    let lun = Lun::new("64MiB");
    let [one, two] = lun.hosts();
    fs::write(one.path("name"), "durable").unwrap();
    File::open(one.path("name")).unwrap().sync_all().unwrap();
    let client = one.world.status("files")["remote"]["sharing"]["client"].as_str().unwrap().to_owned();
    fs::write(one.path("later"), "not durable").unwrap();
    lun.world.run(["locks", "fence", &client, &lun.url()]).success();
    let eio = Some(Errno::IO.raw_os_error());
    assert_eq!(fs::read_to_string(two.path("name")).unwrap(), "durable");
    assert_eq!(errno(fs::write(one.path("more"), "")), eio);
    assert_eq!(errno(fs::read(one.path("name"))), eio);
    assert_eq!(errno(fs::read_dir(&one.directory)), eio);
    assert!(one.troubles().contains("fenced"), "{}", one.troubles());
    assert!(!two.path("more").exists());
    two.end();
    drop(one);
    lun.check();
}

#[test]
fn what_nobody_keeps_apart_is_refused_with_advice() {
    let lun = Lun::new("16MiB");
    let directory = lun.world.path("files");
    fs::create_dir(&directory).unwrap();
    let mount = |arguments: &[&str]| {
        let fixed = ["mount", directory.to_str().unwrap()];
        lun.world.run(fixed[..1].iter().chain(arguments).chain(&fixed[1..]))
    };
    mount(&[&lun.url()]).failure(2, &["option \"shared\"", "Mount it with --shared"]);
    mount(&["--shared", lun.image.to_str().unwrap()]).failure(2, &["--shared takes the URL"]);
    mount(&["--shared", "--read-only", &lun.url()]).failure(2, &["--read-only"]);
    let alone = lun.world.target(["--lun", "0=ram:16MiB", "--name", "alone"]);
    mount(&["--shared", &alone.url(0)]).failure(1, &["cannot be shared", "option \"shared\""]);
}
