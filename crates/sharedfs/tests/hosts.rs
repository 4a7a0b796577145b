//! Several hosts that change one file system by turns, or read it together: what one did the next
//! finds, whatever becomes of the first, and a host that has lost its lock changes nothing any more.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use base::clock::{Clock, Instant, VirtualClock};
use base::random::Random;
use block::completion::SlotSender;
use block::device::DeviceExt;
use block::grants::{Right, Standing, WHOLE_DEVICE};
use block::layer::crash::{CrashLayer, FlushEffect, Reported};
use block::{Completion, Copies, Device, ErrorKind, EventReceiver, Geometry, Grants, Identity};
use block::{Operation as BlockOperation, Request, SharedDevice};
use ext2::{Access, Blocks, Error, InodeNumber, NewNode, Object, Operation, Owner};
use futures_util::FutureExt;
use sharedfs::{Hold, Hosts, Mounted};
use tools::{Tree, assert_same, now, tree_of};

const CACHE_BYTES: u64 = 256 << 10;
const ROOT: InodeNumber = InodeNumber::ROOT;

/// The device as one host has it.
struct Path {
    disk: SharedDevice,
    copies: Copies,
    /// Whether the host was fenced, or killed: nothing of it has an effect any more.
    is_dead: AtomicBool,
    /// Changes of the device, from the next one on, of which it is not known whether they were done.
    doubtful: AtomicU64,
    /// How often the lock was asked for, and how much was asked of the disk.
    asked: AtomicU64,
    requests: AtomicU64,
    /// Whether the target is away: it answers no question.
    is_away: AtomicBool,
    /// Whether flushes are held back here before they reach the disk.
    holds_flushes: AtomicBool,
    held: Mutex<Vec<(SlotSender, Request)>>,
    /// The time that a read takes.
    read_time: Mutex<Option<(VirtualClock, Duration)>>,
}

impl Device for Path {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if self.is_dead.load(Ordering::Relaxed) {
            return Completion::ready(request.fail(ErrorKind::Gone));
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let is_read = matches!(request.operation, BlockOperation::Read { .. });
        if let Some((clock, time)) = self.read_time.lock().unwrap().as_ref().filter(|_| is_read) {
            clock.advance(*time);
        }
        if matches!(request.operation, BlockOperation::Flush) && self.holds_flushes.load(Ordering::Relaxed) {
            let (completion, sender) = Completion::slot();
            self.held.lock().unwrap().push((sender, request));
            return completion;
        }
        let doubtful = self.doubtful.load(Ordering::Relaxed);
        if is_read || doubtful == 0 {
            return self.disk.submit(request);
        }
        self.doubtful.store(doubtful - 1, Ordering::Relaxed);
        Completion::ready(request.fail(ErrorKind::OutcomeUnknown))
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        Some(self.copies.clone())
    }
}

impl Path {
    /// What the target says to a question.
    fn answer(&self) -> Result<(), Error> {
        let refused = |kind| Err(Error::new(ext2::ErrorKind::Device(kind), "the target says nothing else"));
        match (self.is_dead.load(Ordering::Relaxed), self.is_away.load(Ordering::Relaxed)) {
            (true, _) => refused(ErrorKind::Gone),
            (false, true) => refused(ErrorKind::TimedOut),
            (false, false) => Ok(()),
        }
    }

    fn grants(&self) -> &Grants {
        self.copies.grants().expect("it may be held as a whole")
    }
}

/// The target's side of the lock, turned by hand.
struct Target {
    disk: SharedDevice,
    clock: VirtualClock,
    paths: Vec<Arc<Path>>,
}

impl Target {
    fn of(disk: &SharedDevice, count: usize) -> Self {
        let clock = VirtualClock::new();
        let path = || {
            let copies = Copies::with_grants(Arc::new(clock.clone()), WHOLE_DEVICE);
            copies.allow_until(Some(hours_from(&clock)));
            Arc::new(Path {
                disk: Arc::clone(disk),
                copies,
                is_dead: AtomicBool::new(false),
                doubtful: AtomicU64::new(0),
                asked: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                is_away: AtomicBool::new(false),
                holds_flushes: AtomicBool::new(false),
                held: Mutex::default(),
                read_time: Mutex::default(),
            })
        };
        let paths = (0..count).map(|_| path()).collect();
        Self { disk: Arc::clone(disk), clock, paths }
    }

    fn made(count: usize) -> Self {
        Self::of(&tools::made(2 << 20, 1024), count)
    }

    /// Gives the lock to a host that wants it, and calls back whoever is in its way.
    fn turn(&self, to: usize) {
        self.ask(to);
        let right = self.paths[to].grants().asked_right(0);
        (0..self.paths.len()).filter(|host| *host != to).for_each(|host| self.call_back(host, right));
        self.grant(to);
    }

    fn ask(&self, host: usize) {
        assert_eq!(self.paths[host].grants().take_wanted(1, Waker::noop()), [0], "it wants the lock");
        self.paths[host].asked.fetch_add(1, Ordering::Relaxed);
    }

    fn grant(&self, host: usize) {
        let grants = self.paths[host].grants();
        match grants.standing(0) {
            Some(Standing::Held) => grants.raise(0),
            _ => grants.set(0, Standing::Held),
        }
    }

    /// Takes from a host what is in the way of another one that is to get this.
    fn call_back(&self, host: usize, right: Right) {
        let path = &self.paths[host];
        let (grants, range) = (path.grants(), path.grants().range_of(0));
        let is_beside = right == Right::Read && grants.right(0) == Some(Right::Read);
        if grants.standing(0) != Some(Standing::Held) || is_beside {
            return;
        }
        if !path.is_dead.load(Ordering::Relaxed) {
            grants.set(0, Standing::Leaving);
            let is_lowered = right == Right::Read;
            let left = if is_lowered { path.copies.clean(range) } else { path.copies.release(range) };
            // Whoever cannot bring out what it has is fenced.
            let is_clean = left.now_or_never().is_some();
            path.is_dead.store(!is_clean, Ordering::Relaxed);
            if is_clean && is_lowered {
                return grants.lower(0);
            }
        }
        grants.remove(0, false);
    }

    /// Calls back a host that has the lock, for nobody who wants it. `None` when it cannot bring out what it has.
    fn give_up(&self, host: usize) -> Option<()> {
        let path = &self.paths[host];
        path.grants().set(0, Standing::Leaving);
        path.copies.release(path.grants().range_of(0)).now_or_never()?;
        path.grants().remove(0, false);
        Some(())
    }

    /// Does what needs the lock.
    fn with_lock<T>(&self, host: usize, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            if let Some(done) = what.as_mut().now_or_never() {
                return done;
            }
            self.turn(host);
        }
    }

    /// How often each host has asked for the lock.
    fn asked(&self) -> Vec<u64> {
        self.paths.iter().map(|path| path.asked.load(Ordering::Relaxed)).collect()
    }

    /// How much each host has asked of the disk.
    fn requests(&self) -> Vec<u64> {
        self.paths.iter().map(|path| path.requests.load(Ordering::Relaxed)).collect()
    }

    fn mount(&self, host: usize) -> Mounted {
        self.try_mount(host).unwrap()
    }

    fn try_mount(&self, host: usize) -> Result<Mounted, Error> {
        let has_others = self.paths.len() > 1;
        let others = move || std::future::ready(Ok(has_others)).boxed();
        let path = Arc::clone(&self.paths[host]);
        let probe = move || std::future::ready(path.answer()).boxed();
        let hosts = Hosts { clock: Arc::new(self.clock.clone()), others: Arc::new(others), probe: Arc::new(probe) };
        let device: SharedDevice = self.paths[host].clone();
        self.with_lock(host, sharedfs::open(device, tools::options(false), CACHE_BYTES, Some(hosts)))
    }

    fn hold(&self, host: usize, file_system: &Mounted) -> Result<Hold, Error> {
        self.with_lock(host, file_system.hold(Access::Change))
    }

    fn create(&self, host: usize, file_system: &Mounted, name: &str) -> Result<InodeNumber, Error> {
        let _hold = self.hold(host, file_system)?;
        now(file_system.create(ROOT, name.as_bytes(), NewNode::File, Owner::default())).map(|made| made.inode)
    }

    fn tree(&self, host: usize, file_system: &Mounted) -> Tree {
        let _hold = self.with_lock(host, file_system.hold(Access::Read)).unwrap();
        tree_of(file_system)
    }

    /// The target starts again, with what `image` puts in the place of the disk's content; the hosts claim back what
    /// they have.
    fn start_again(&self, image: impl FnOnce(&SharedDevice)) {
        let all_held = [Standing::Held, Standing::Leaving];
        self.paths.iter().for_each(|path| path.grants().turn(&all_held, Some(Standing::Claimed)));
        image(&self.disk);
        for grants in self.paths.iter().map(|path| path.grants()) {
            grants.all(&[Standing::Claimed]).into_iter().for_each(|part| grants.set(part, Standing::Held));
        }
    }

    /// The host dies: what it does has no effect from now on.
    fn kill(&self, host: usize) {
        self.paths[host].is_dead.store(true, Ordering::Relaxed);
    }
}

fn hours_from(clock: &VirtualClock) -> Instant {
    clock.now() + Duration::from_secs(36_000)
}

fn names(tree: &Tree) -> Vec<String> {
    let names = tree.keys().map(|name| String::from_utf8_lossy(name).into_owned());
    names.filter(|name| name.contains("name")).collect()
}

#[test]
fn hosts_see_at_once_what_others_did_and_the_device_is_whole_at_every_turn() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let mut expected = Vec::new();
    for round in 0..6 {
        let (host, other) = (round % 2, (round + 1) % 2);
        let name = format!("name {round}");
        let file = target.create(host, &mounts[host], &name).unwrap();
        let hold = target.hold(host, &mounts[host]).unwrap();
        now(mounts[host].write_file(file, 0, name.as_bytes())).unwrap();
        drop(hold);
        expected.push(name);
        let mut found = names(&target.tree(other, &mounts[other]));
        found.sort();
        assert_eq!(found.iter().map(|name| name.trim_start_matches('/')).collect::<Vec<_>>(), expected);
        // The other has the lock, and has changed nothing.
        tools::check_device(&target.disk);
        let plain = tools::open(&target.disk, true).unwrap();
        assert_same(&tree_of(&plain), &target.tree(other, &mounts[other]), "in their places");
    }
}

#[test]
fn a_request_goes_on_under_one_lock_until_it_ends() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let hold = target.hold(0, &mounts[0]).unwrap();
    let grants = target.paths[0].grants();
    grants.set(0, Standing::Leaving);
    let mut release = target.paths[0].copies.release(grants.range_of(0));
    assert!((&mut release).now_or_never().is_none());
    now(mounts[0].create(ROOT, b"name", NewNode::File, Owner::default())).unwrap();
    for access in [Access::Read, Access::Change] {
        assert!(mounts[0].hold(access).now_or_never().is_none(), "another request waits");
    }
    drop(hold);
    assert!((&mut release).now_or_never().is_some());
    grants.remove(0, false);
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0);
    assert!(now(mounts[0].blocks().begin(Access::Read)).is_err(), "nothing is done without the lock");
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 1);
}

#[test]
fn hosts_that_only_read_have_the_lock_at_the_same_time_and_ask_for_it_once() {
    let target = Target::made(4);
    let mounts: Vec<Mounted> = (0..4).map(|host| target.mount(host)).collect();
    target.create(0, &mounts[0], "name").unwrap();
    let trees: Vec<Tree> = (0..4).map(|host| target.tree(host, &mounts[host])).collect();
    let (asked, requests) = (target.asked(), target.requests());
    for _ in 0..10 {
        for (host, tree) in trees.iter().enumerate() {
            assert_same(&target.tree(host, &mounts[host]), tree, "as before");
            assert_same(tree, &trees[0], "as each other");
        }
    }
    assert_eq!((target.asked(), target.requests()), (asked.clone(), requests), "all of it is in memory");
    // One to mount and one to read, and the first to make the name; what it had to change it reads on.
    assert_eq!(asked, [2, 2, 2, 2]);
    target.create(3, &mounts[3], "another name").unwrap();
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
    assert_eq!(target.asked(), [3, 2, 2, 3]);
}

/// Nobody has it between.
#[test]
fn a_host_that_has_read_and_changes_something_keeps_what_it_has_read() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(1, &mounts[1], "name").unwrap();
    target.tree(0, &mounts[0]);
    target.tree(1, &mounts[1]);
    let misses = |host: usize| mounts[host].blocks().counters().misses;
    let before = misses(0);
    let hold = target.hold(0, &mounts[0]).unwrap();
    now(mounts[0].metadata(ROOT)).unwrap();
    assert_eq!(misses(0), before);
    assert!(target.paths[1].grants().standing(0).is_none(), "it is called back");
    assert!(mounts[1].hold(Access::Read).now_or_never().is_none());
    now(mounts[0].create(ROOT, b"name 2", NewNode::File, Owner::default())).unwrap();
    drop(hold);
    // What is read by another host is read on here.
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 2);
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0, "it is in its place");
    let (before, asked) = (misses(0), target.asked());
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
    assert_eq!((misses(0), target.asked()), (before, asked));
    tools::check_device(&target.disk);
}

/// Both go on reading until one of them is called back; that one drops what it has read.
#[test]
fn two_hosts_that_read_and_both_want_to_change_are_served_one_after_the_other() {
    for has_refused in [false, true] {
        let target = Target::made(2);
        let mounts = [target.mount(0), target.mount(1)];
        target.tree(0, &mounts[0]);
        target.tree(1, &mounts[1]);
        let mut holds = [pin!(mounts[0].hold(Access::Change)), pin!(mounts[1].hold(Access::Change))];
        for (host, hold) in holds.iter_mut().enumerate() {
            assert!(hold.as_mut().now_or_never().is_none());
            target.ask(host);
            assert!(mounts[host].hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_ok()), "it reads on");
        }
        let [first, second] = &mut holds;
        if has_refused {
            // As a lock manager does that cannot know whether what it was asked for is needed to give up the other.
            target.paths[1].grants().refuse(0, false);
        }
        target.call_back(1, Right::Change);
        target.grant(0);
        let hold = first.as_mut().now_or_never().unwrap().unwrap();
        now(mounts[0].create(ROOT, b"name 0", NewNode::File, Owner::default())).unwrap();
        assert!(second.as_mut().now_or_never().is_none());
        drop(hold);
        if has_refused {
            target.ask(1);
        }
        target.call_back(0, Right::Change);
        target.grant(1);
        let hold = second.as_mut().now_or_never().unwrap().unwrap();
        now(mounts[1].create(ROOT, b"name 1", NewNode::File, Owner::default())).unwrap();
        drop(hold);
        assert_eq!(names(&target.tree(0, &mounts[0])).len(), 2);
        tools::check_device(&target.disk);
    }
}

/// It would be written by a host that is not the only one.
#[test]
fn a_host_that_has_the_lock_to_read_changes_nothing() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.tree(1, &mounts[1]);
    let bytes = tools::bytes_of(&target.disk);
    let hold = target.with_lock(0, mounts[0].hold(Access::Read)).unwrap();
    assert!(now(mounts[0].blocks().begin(Access::Read)).is_ok());
    assert!(now(mounts[0].blocks().begin(Access::Change)).is_err());
    assert!(now(mounts[0].create(ROOT, b"name", NewNode::File, Owner::default())).is_err());
    drop(hold);
    for host in [0, 1] {
        target.call_back(host, Right::Change);
    }
    assert!(tools::bytes_of(&target.disk) == bytes, "nothing is written to give it up, either");
}

/// What it had committed and not written to its place is written there before anything is read.
#[test]
fn what_a_host_that_died_with_the_lock_had_committed_is_there_and_nothing_later() {
    for commits in 1..4 {
        let target = Target::made(2);
        let mounts = [target.mount(0), target.mount(1)];
        target.tree(1, &mounts[1]);
        let mut expected = Vec::new();
        for commit in 0..commits {
            target.create(0, &mounts[0], &format!("name {commit}")).unwrap();
            now(mounts[0].commit()).unwrap();
            expected.push(format!("name {commit}"));
        }
        target.create(0, &mounts[0], "a later name").unwrap();
        target.kill(0);
        let found = names(&target.tree(1, &mounts[1]));
        assert_eq!(found.iter().map(|name| name.trim_start_matches('/')).collect::<Vec<_>>(), expected);
        tools::check_device(&target.disk);
        // The record of the dead is not taken for one of the living.
        target.create(1, &mounts[1], "one more").unwrap();
        now(mounts[1].commit()).unwrap();
        assert!(now(mounts[0].commit()).is_err());
        let tree = target.tree(1, &mounts[1]);
        target.with_lock(1, sharedfs::close(&mounts[1])).unwrap();
        tools::check_device(&target.disk);
        assert_same(&tree_of(&tools::open(&target.disk, true).unwrap()), &tree, "without the area");
    }
}

/// Others may have changed anything since; what was done here would go over it.
#[test]
fn a_host_that_lost_its_lock_with_changes_does_nothing_any_more() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    assert!(target.paths[0].copies.are_dirty(target.paths[0].grants().range_of(0)));
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "another name").unwrap();
    target.turn_back_and_check(&mounts);
}

impl Target {
    fn turn_back_and_check(&self, mounts: &[Mounted; 2]) {
        let error = self.hold(0, &mounts[0]).err().expect("it conflicts");
        assert!(error.to_string().contains("conflicts with what others"), "{error}");
        assert!(mounts[0].blocks().loss().is_some());
        assert!(mounts[0].hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_err()));
        let bytes = tools::bytes_of(&self.disk);
        assert!(self.with_lock(0, sharedfs::close(&mounts[0])).is_err());
        // Nor when it gives the lock up.
        drop(self.hold(1, &mounts[1]).unwrap());
        assert!(tools::bytes_of(&self.disk) == bytes);
    }
}

#[test]
fn an_operation_under_which_the_lock_was_lost_has_no_effect() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let hold = target.hold(0, &mounts[0]).unwrap();
    let mut under_way = now(mounts[0].blocks().begin(Access::Change)).unwrap();
    now(under_way.change(ext2::BlockNumber(1500), Object::Attributes)).unwrap().fill(9);
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name").unwrap();
    drop(hold);
    let _again = target.hold(0, &mounts[0]).unwrap();
    assert!(now(under_way.end()).is_err());
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0);
    assert_eq!(names(&tree_of(&mounts[0])).len(), 1);
}

/// Nothing was changed here: what others did is read anew.
#[test]
fn a_host_that_lost_its_lock_without_changes_goes_on() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.tree(0, &mounts[0]);
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name").unwrap();
    assert_eq!(names(&target.tree(0, &mounts[0])).len(), 1);
}

#[test]
fn nothing_in_memory_is_used_when_the_lease_is_over() {
    let target = Target::made(1);
    let mount = target.mount(0);
    target.tree(0, &mount);
    target.paths[0].copies.allow_until(None);
    assert!(mount.hold(Access::Read).now_or_never().is_none());
    target.paths[0].copies.allow_until(Some(hours_from(&target.clock)));
    assert!(mount.hold(Access::Read).now_or_never().is_some_and(|hold| hold.is_ok()));
}

/// The device writes nothing again by itself, for another host may have written there; but while this
/// one has the lock none has.
#[test]
fn what_is_lost_with_a_session_is_written_again_under_the_lock_and_only_there() {
    let target = Target::made(2);
    let mount = target.mount(0);
    for doubtful in 1..8 {
        target.create(0, &mount, &format!("name {doubtful}")).unwrap();
        target.paths[0].doubtful.store(doubtful, Ordering::Relaxed);
        let mut commit = pin!(mount.commit());
        while commit.as_mut().now_or_never().map(Result::unwrap).is_none() {
            target.clock.advance(Duration::from_millis(100));
            if target.paths[0].doubtful.load(Ordering::Relaxed) == 0 {
                now(commit).unwrap();
                break;
            }
        }
        assert_eq!(mount.blocks().counters().changed_blocks, 0);
    }
    target.create(0, &mount, "one more").unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mount.commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.paths[0].grants().remove(0, false);
    target.clock.advance(Duration::from_millis(100));
    assert!(now(commit).is_err());
    target.kill(0);
    let second = target.mount(1);
    assert_eq!(names(&target.tree(1, &second)).len(), 7);
    target.with_lock(1, sharedfs::close(&second)).unwrap();
    tools::check_device(&target.disk);
}

/// Another host may have had it between, whose changes would be written over.
#[test]
fn what_is_lost_with_a_session_is_not_written_again_under_a_lock_that_came_later() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mounts[0].commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "another name").unwrap();
    let mut hold = pin!(mounts[0].hold(Access::Change));
    assert!(hold.as_mut().now_or_never().is_none());
    target.turn(0);
    let bytes = tools::bytes_of(&target.disk);
    target.clock.advance(Duration::from_millis(100));
    assert!(now(commit).is_err());
    assert!(now(hold).is_err());
    assert!(tools::bytes_of(&target.disk) == bytes);
}

/// A file without a name belongs to who has it open: another host that comes leaves it, and the last
/// one frees it.
#[test]
fn what_a_host_has_open_without_a_name_stays_while_others_mount() {
    let target = Target::made(2);
    let first = target.mount(0);
    let file = target.create(0, &first, "name").unwrap();
    let hold = target.hold(0, &first).unwrap();
    now(first.open_file(file)).unwrap();
    now(first.write_file(file, 0, b"content")).unwrap();
    now(first.unlink(ROOT, b"name")).unwrap();
    drop(hold);
    let second = target.mount(1);
    target.with_lock(1, sharedfs::close(&second)).unwrap();
    let hold = target.hold(0, &first).unwrap();
    assert_eq!(now(first.read_file(file, 0, 99)).unwrap(), b"content");
    drop(hold);
    target.kill(0);
    target.paths[0].grants().remove(0, false);
    let alone = Target::of(&target.disk, 1);
    let last = alone.mount(0);
    alone.with_lock(0, sharedfs::close(&last)).unwrap();
    tools::check_device(&target.disk);
}

fn restore(disk: &SharedDevice, bytes: &[u8]) {
    let blocks = bytes.chunks_exact(1024).map(ext2::Block::copy_of);
    now(ext2::transfer::write_all(disk, 1024, (0..).map(ext2::BlockNumber).zip(blocks))).unwrap();
}

/// What it has in memory is of another file system by now.
#[test]
fn an_image_that_was_restored_or_replaced_while_its_target_was_away_is_noticed_and_not_written() {
    let another = tools::bytes_of(&tools::made(2 << 20, 1024));
    for (has_changes, is_replaced) in [(false, false), (true, false), (false, true), (true, true)] {
        for reads in [false, true] {
            let target = Target::made(2);
            let mounts = [target.mount(0), target.mount(1)];
            target.create(0, &mounts[0], "name").unwrap();
            now(mounts[0].commit()).unwrap();
            let copy = tools::bytes_of(&target.disk);
            target.create(0, &mounts[0], "name 2").unwrap();
            now(mounts[0].commit()).unwrap();
            if reads {
                target.tree(1, &mounts[1]);
            } else if has_changes {
                target.create(0, &mounts[0], "name 3").unwrap();
            }
            let image = if is_replaced { &another } else { &copy };
            target.start_again(|disk| restore(disk, image));
            for (host, mount) in mounts.iter().enumerate().take(1 + usize::from(reads)) {
                assert!(now(mount.commit()).is_err() || !has_changes || reads);
                let error = mount.hold(Access::Read).now_or_never().expect("it says so at once").err().unwrap();
                assert!(error.to_string().contains("restored or replaced"), "{error}");
                assert!(mount.blocks().loss().is_some());
                assert!(target.create(host, mount, "name 4").is_err());
                // Nor when it gives the lock up, which it does at once.
                target.call_back(host, Right::Change);
                assert!(!target.paths[host].is_dead.load(Ordering::Relaxed));
                assert!(now(sharedfs::close(mount)).is_err());
            }
            assert!(tools::bytes_of(&target.disk) == *image, "nothing was written there");
        }
    }
}

#[test]
fn a_target_that_starts_again_with_what_it_had_is_gone_on_with() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    for round in 0..4 {
        target.create(0, &mounts[0], &format!("name {round}")).unwrap();
        if round % 2 == 0 {
            now(mounts[0].commit()).unwrap();
        }
        if round == 2 {
            target.tree(1, &mounts[1]);
        }
        target.start_again(|_| ());
        target.tree(0, &mounts[0]);
        now(mounts[0].commit()).unwrap();
    }
    // A request goes on over it, and a record that was under way is written again.
    let hold = target.hold(0, &mounts[0]).unwrap();
    now(mounts[0].create(ROOT, b"name 4", NewNode::File, Owner::default())).unwrap();
    target.paths[0].doubtful.store(1, Ordering::Relaxed);
    let mut commit = pin!(mounts[0].commit());
    assert!(commit.as_mut().now_or_never().is_none());
    target.start_again(|_| ());
    target.clock.advance(Duration::from_millis(100));
    now(commit).unwrap();
    now(mounts[0].create(ROOT, b"name 5", NewNode::File, Owner::default())).unwrap();
    drop(hold);
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 6);
    assert!(mounts.iter().all(|mount| mount.blocks().loss().is_none()));
    tools::check_device(&target.disk);
}

/// It does not know of the others, and they do not know what it did.
#[test]
fn a_file_system_that_somebody_else_mounted_meanwhile_is_left_to_e2fsck() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name").unwrap();
    target.tree(1, &mounts[1]);
    let number = ext2::mount_state::block(1024);
    let mut block = ext2::Block::copy_of(&now(ext2::transfer::read_run(&target.disk, 1024, number, 1)).unwrap());
    ext2::mount_state::begin(block.to_mut(), ext2::Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }).unwrap();
    now(ext2::transfer::write_all(&target.disk, 1024, [(number, block)])).unwrap();
    assert_eq!(target.hold(0, &mounts[0]).err().map(|error| error.kind()), Some(ext2::ErrorKind::NotClean));
    assert!(mounts[0].blocks().loss().is_some_and(|error| error.to_string().contains("e2fsck")));
}

/// One that ends marks the file system as clean, and the next one that changes it as in use.
#[test]
fn a_mount_that_ends_leaves_the_others_at_work() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name 0").unwrap();
    target.with_lock(0, sharedfs::close(&mounts[0])).unwrap();
    assert!(now(ext2::mount_state::read(&target.disk)).unwrap().is_clean);
    target.create(1, &mounts[1], "name 1").unwrap();
    now(mounts[1].commit()).unwrap();
    assert!(!now(ext2::mount_state::read(&target.disk)).unwrap().is_clean);
    target.kill(1);
    target.paths[1].grants().remove(0, false);
    let next = Target::of(&target.disk, 1);
    let mount = next.mount(0);
    assert_eq!(names(&next.tree(0, &mount)).len(), 2);
}

/// A disk that loses what it had not made durable says so to one flush only.
#[test]
fn who_waits_for_the_lock_takes_no_error_from_the_commit_under_way() {
    let layer = CrashLayer::new(2 << 20, 1);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    let file = target.create(0, &mount, "name").unwrap();
    for byte in 1..3 {
        let _hold = target.hold(0, &mount).unwrap();
        now(mount.write_file(file, 0, &[byte; 3000])).unwrap();
        now(mount.commit()).unwrap();
    }
    // The next commit brings this to its place.
    target.create(0, &mount, "another name").unwrap();
    path.holds_flushes.store(true, Ordering::Relaxed);
    path.grants().set(0, Standing::Leaving);
    let mut release = path.copies.release(path.grants().range_of(0));
    assert!((&mut release).now_or_never().is_none(), "its flush is under way");
    let mut waits = pin!(mount.hold(Access::Change));
    for _ in 0..10 {
        assert!(waits.as_mut().now_or_never().is_none(), "another request waits");
        target.clock.advance(Duration::from_secs(1));
    }
    path.holds_flushes.store(false, Ordering::Relaxed);
    layer.fail_flush_as(layer.flushes_seen(), ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    // What came last is first.
    let held = std::mem::take(&mut *path.held.lock().unwrap());
    for (sender, request) in held.into_iter().rev() {
        sender.complete(disk.submit(request).try_take().unwrap());
    }
    for _ in 0..20 {
        if (&mut release).now_or_never().is_some() {
            break;
        }
        target.clock.advance(Duration::from_millis(100));
    }
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    let mount = next.mount(0);
    let _hold = next.hold(0, &mount).unwrap();
    assert_eq!(now(mount.read_file(file, 0, 3000)).unwrap(), [2; 3000], "it was durable");
}

/// Its lock counts as held, and its lease is over; nobody has told it more.
#[test]
fn a_host_whose_target_is_away_tells_programs_so_and_goes_on_when_it_is_back() {
    for was_claimed in [false, true] {
        let target = Target::made(2);
        let (path, mount) = (&target.paths[0], target.mount(0));
        target.create(0, &mount, "name 0").unwrap();
        let hold = was_claimed.then(|| target.hold(0, &mount).unwrap());
        path.is_away.store(true, Ordering::Relaxed);
        match was_claimed {
            true => path.grants().set(0, Standing::Claimed),
            false => path.copies.allow_until(None),
        }
        let mut waits = pin!(async {
            match was_claimed {
                true => mount.create(ROOT, b"name 1", NewNode::File, Owner::default()).await.map(drop),
                false => mount.hold(Access::Change).await.map(drop),
            }
        });
        let mut ended = None;
        for _ in 0..50 {
            ended = waits.as_mut().now_or_never();
            if ended.is_some() {
                break;
            }
            target.clock.advance(Duration::from_millis(100));
        }
        let error = ended.expect("it waits for a target that is away").unwrap_err();
        assert_eq!(error.kind(), ext2::ErrorKind::Device(ErrorKind::TimedOut));
        // It is back within its lease: nothing is lost.
        path.is_away.store(false, Ordering::Relaxed);
        path.copies.allow_until(Some(hours_from(&target.clock)));
        path.grants().set(0, Standing::Held);
        drop(hold);
        assert!(mount.blocks().loss().is_none());
        target.create(0, &mount, "name 2").unwrap();
        now(mount.commit()).unwrap();
        target.kill(0);
        path.grants().remove(0, false);
        assert_eq!(names(&target.tree(1, &target.mount(1))).len(), 2);
    }
}

/// Also where nobody asks for the lock any more: a program's fsync, or the timer.
#[test]
fn what_conflicts_with_what_others_may_have_done_is_not_committed() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    target.create(0, &mounts[0], "name 0").unwrap();
    target.paths[0].grants().remove(0, false);
    target.create(1, &mounts[1], "name 1").unwrap();
    assert!(target.hold(0, &mounts[0]).is_err(), "it was done under a lock that is lost");
    let bytes = tools::bytes_of(&target.disk);
    assert!(now(mounts[0].commit()).is_err());
    // Nor when it gives up the lock that it asked for, which it does at once.
    target.paths[0].grants().set(0, Standing::Leaving);
    assert!(target.paths[0].copies.release(target.paths[0].grants().range_of(0)).now_or_never().is_some());
    assert!(tools::bytes_of(&target.disk) == bytes, "it wrote");
}

/// Each read takes as long as over a very long way: the request takes far longer than a callback
/// may without progress.
#[test]
fn a_request_that_takes_long_is_seen_to_get_on() {
    let target = Target::of(&tools::made(16 << 20, 1024), 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    let file = target.create(0, &mount, "name").unwrap();
    let hold = target.hold(0, &mount).unwrap();
    now(mount.write_file(file, 0, &vec![7; 8 << 20])).unwrap();
    now(mount.commit()).unwrap();
    path.grants().set(0, Standing::Leaving);
    let begin = target.clock.now();
    let seen = path.grants().progress();
    let step = Duration::from_millis(500);
    *path.read_time.lock().unwrap() = Some((target.clock.clone(), step));
    now(mount.unlink(ROOT, b"name")).unwrap();
    let taken = target.clock.now().since(begin);
    assert!(taken > Duration::from_secs(10), "it took {taken:?}");
    let steps = path.grants().progress() - seen;
    assert!(steps >= taken.as_millis() as u64 / step.as_millis() as u64, "{steps} in {taken:?}");
    drop(hold);
}

/// It had committed them, and another host brought them to their places and changed them.
#[test]
fn blocks_that_were_not_in_their_places_when_the_lock_was_lost_are_read_anew() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let file = target.create(0, &mounts[0], "name").unwrap();
    let write = |host: usize, byte| {
        let _hold = target.hold(host, &mounts[host]).unwrap();
        now(mounts[host].write_file(file, 0, &[byte; 3000])).unwrap();
        now(mounts[host].commit()).unwrap();
    };
    write(0, 1);
    // Its lease was over with nothing to be made durable.
    target.paths[0].grants().remove(0, false);
    write(1, 2);
    let _hold = target.hold(0, &mounts[0]).unwrap();
    assert_eq!(now(mounts[0].read_file(file, 0, 3000)).unwrap(), [2; 3000]);
}

#[test]
fn the_lock_is_not_given_up_before_all_is_in_its_place() {
    let layer = CrashLayer::new(2 << 20, 1);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let (path, mount) = (&target.paths[0], target.mount(0));
    target.create(0, &mount, "name").unwrap();
    for number in 0..3 {
        layer.fail_flush_as(layer.flushes_seen() + number, ErrorKind::Media, FlushEffect::DropsUnseen, Reported::Once);
    }
    path.grants().set(0, Standing::Leaving);
    let mut release = path.copies.release(path.grants().range_of(0));
    assert!((&mut release).now_or_never().is_none(), "nothing is durable");
    for _ in 0..30 {
        if (&mut release).now_or_never().is_some() {
            break;
        }
        target.clock.advance(Duration::from_millis(100));
    }
    assert_eq!(mount.blocks().counters().changed_blocks, 0);
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    assert_eq!(names(&next.tree(0, &next.mount(0))).len(), 1);
}

/// The lock was another host's between two steps of it.
#[test]
fn a_request_over_two_tenures_has_no_effect() {
    let target = Target::made(2);
    let mounts = [target.mount(0), target.mount(1)];
    let file = target.create(0, &mounts[0], "name").unwrap();
    let _hold = target.hold(0, &mounts[0]).unwrap();
    let block = ext2::BlockNumber(1500);
    let mut operation = now(mounts[0].blocks().begin(Access::Change)).unwrap();
    now(operation.change(block, Object::Attributes)).unwrap().fill(9);
    now(mounts[0].commit()).unwrap();
    target.paths[0].grants().remove(0, false);
    let hold = target.hold(1, &mounts[1]).unwrap();
    now(mounts[1].write_file(file, 0, &[2; 3000])).unwrap();
    drop(hold);
    // The lock is its own again.
    let again = target.hold(0, &mounts[0]).unwrap();
    assert!(now(operation.end()).is_err());
    assert_eq!(now(mounts[0].read_file(file, 0, 3000)).unwrap(), [2; 3000]);
    let mut later = now(mounts[0].blocks().begin(Access::Read)).unwrap();
    assert_eq!(now(later.read(block, Object::Attributes)).unwrap()[..], [0; 1024]);
    drop(again);
}

/// More writes than a mount here has.
const MOUNT_WRITES_MAX: u64 = 16;

/// Mounts of others are killed before these of their writes, of which the record and the stamp are the last. Then the
/// power fails at this write of who goes on.
fn go_on_after(kills: [u64; 2], power_fails_at: u64) {
    let layer = CrashLayer::new(2 << 20, power_fails_at);
    let disk: SharedDevice = Arc::new(layer.clone());
    now(ext2::make(&disk, &tools::make_options())).unwrap();
    let target = Target::of(&disk, 2);
    let at_work = target.mount(0);
    target.create(0, &at_work, "name 0").unwrap();
    now(at_work.commit()).unwrap();
    target.give_up(0).expect("it can bring out what it has");
    for kill in kills {
        layer.fail_writes_from(layer.writes_seen() + kill, ErrorKind::Gone);
        // One that has fewer writes is killed after it.
        let _ = Target::of(&disk, 1).try_mount(0);
        layer.heal();
        // The target does so before the lock of a dead client passes on.
        now(disk.flush()).unwrap();
    }
    let case = format!("killed before writes {kills:?}, no power from write {power_fails_at}");
    if let Err(error) = target.hold(0, &at_work) {
        panic!("{case}: {error}");
    }
    layer.power().fail_write(layer.power().writes_seen() + power_fails_at);
    let _ = target.create(0, &at_work, "name 1");
    let _ = now(at_work.commit());
    layer.power().lose();
    let left: SharedDevice = Arc::new(layer.after_power_loss());
    let next = Target::of(&left, 1);
    let mount = next.try_mount(0).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(names(&next.tree(0, &mount)).iter().any(|name| name.ends_with("name 0")), "{case}");
}

#[test]
fn a_host_at_work_goes_on_when_mounts_of_others_are_interrupted() {
    for first in 0..MOUNT_WRITES_MAX {
        // The second one has nothing to bring to its place.
        for (second, power_fails_at) in (0..12).map(|case| (case % 3, case / 3)) {
            go_on_after([first, second], power_fails_at);
        }
    }
}

/// It need not live until another one has the lock.
#[test]
fn a_host_that_has_given_the_lock_up_has_left_everything_in_its_place() {
    let target = Target::made(2);
    let mount = target.mount(0);
    for name in ["name 0", "name 1"] {
        target.create(0, &mount, name).unwrap();
        now(mount.commit()).unwrap();
    }
    let tree = target.tree(0, &mount);
    target.give_up(0).expect("it can bring out what it has");
    tools::check_device(&target.disk);
    assert_same(&tree_of(&tools::open(&target.disk, true).unwrap()), &tree, "without the area");
}

/// As where the file of the LUN is replaced.
#[test]
fn another_file_system_in_the_place_of_the_one_that_was_mounted_is_left_alone() {
    let target = Target::made(1);
    let mount = target.mount(0);
    target.create(0, &mount, "name 0").unwrap();
    target.give_up(0).expect("it can bring out what it has");
    let options = ext2::MakeOptions { uuid: uuid::Uuid::from_u128(77), ..tools::make_options() };
    now(ext2::make(&target.disk, &options)).unwrap();
    let bytes = tools::bytes_of(&target.disk);
    assert_eq!(target.hold(0, &mount).err().map(|error| error.kind()), Some(ext2::ErrorKind::NotClean));
    assert!(tools::bytes_of(&target.disk) == bytes, "nothing was written");
}

/// A few operations that are drawn from the seed; they may fail.
fn operate(file_system: &Mounted, random: &mut Random) -> Result<(), Error> {
    for _ in 0..4 {
        let name = format!("name {}", random.below(6)).into_bytes();
        let result = match random.below(3) {
            0 => now(file_system.unlink(ROOT, &name)),
            1 => now(file_system.create(ROOT, &name, NewNode::File, Owner::default())).map(drop),
            _ => now(async {
                let file = file_system.lookup(ROOT, &name).await?.inode;
                file_system.write_file(file, random.below(30_000), &vec![random.below(255) as u8; 5000]).await
            }),
        };
        if let Err(error) = result
            && matches!(error.kind(), ext2::ErrorKind::Device(_))
        {
            return Err(error);
        }
    }
    Ok(())
}

/// The state that is durable for certain, and that of the commit under way.
struct Promise {
    before: Tree,
    after: Tree,
}

/// Two hosts, some turns of each, until the power fails.
fn live(target: &Target, seed: u64, promise: &mut Promise) -> Result<(), Error> {
    let mut random = Random::new(seed);
    let mounts = [target.try_mount(0)?, target.try_mount(1)?];
    let mut last = 1;
    for _ in 0..8 {
        let host = random.below(2) as usize;
        let hold = target.hold(host, &mounts[host])?;
        if host != last {
            promise.before = promise.after.clone();
        }
        last = host;
        operate(&mounts[host], &mut random)?;
        promise.after = tree_of(&mounts[host]);
        drop(hold);
        if random.chance(0.5) {
            let reader = 1 - host;
            let hold = target.with_lock(reader, mounts[reader].hold(Access::Read))?;
            assert_same(&tree_of(&mounts[reader]), &promise.after, "as the other host reads it");
            drop(hold);
            promise.before = promise.after.clone();
        }
        if random.chance(0.5) {
            now(mounts[host].commit())?;
            promise.before = promise.after.clone();
        }
    }
    Ok(())
}

/// The power of the target fails, and with it what was not flushed: none of the hosts lives on.
#[test]
fn whatever_write_a_crash_comes_at_the_next_mount_has_what_a_turn_left() {
    let test = block::crash_test!();
    for seed in test.seeds(0, 3, 1) {
        test.crash_at_every(seed, 4000, |crash_at| {
            let layer = CrashLayer::new(2 << 20, seed);
            let disk: SharedDevice = Arc::new(layer.clone());
            now(ext2::make(&disk, &tools::make_options())).unwrap();
            layer.power().fail_write(layer.power().writes_seen() + crash_at);
            let empty = tree_of(&tools::open(&disk, true).unwrap());
            let mut promise = Promise { before: empty.clone(), after: empty };
            let target = Target::of(&disk, 2);
            let has_crashed = live(&target, seed, &mut promise).is_err();
            let left: SharedDevice = Arc::new(layer.after_power_loss());
            let next = Target::of(&left, 1);
            let mount = next.mount(0);
            let found = next.tree(0, &mount);
            if found != promise.before {
                assert_same(&found, &promise.after, "neither the last commit nor the one under way");
            }
            next.with_lock(0, sharedfs::close(&mount)).unwrap();
            tools::check_device(&left);
            has_crashed
        });
    }
}
