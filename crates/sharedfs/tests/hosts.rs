//! Several hosts that have one file system by turns: what one did the next finds, whatever becomes
//! of the first, and a host that has lost its lock changes nothing any more.

#[path = "../../ext2/tests/tools/mod.rs"]
mod tools;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use base::clock::{Clock, Instant, VirtualClock};
use base::random::Random;
use block::device::DeviceExt;
use block::grants::{Standing, WHOLE_DEVICE};
use block::layer::crash::CrashLayer;
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
        let is_read = matches!(request.operation, BlockOperation::Read { .. });
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
            })
        };
        let paths = (0..count).map(|_| path()).collect();
        Self { disk: Arc::clone(disk), clock, paths }
    }

    fn made(count: usize) -> Self {
        Self::of(&tools::made(2 << 20, 1024), count)
    }

    /// Calls back whoever has the lock, and gives it to a host that wants it.
    fn turn(&self, to: usize) {
        for path in &self.paths {
            if path.grants().standing(0) != Some(Standing::Held) {
                continue;
            }
            if !path.is_dead.load(Ordering::Relaxed) {
                path.grants().set(0, Standing::Leaving);
                let has_released = path.copies.release(path.grants().range_of(0)).now_or_never().is_some();
                // Whoever cannot bring out what it has is fenced.
                path.is_dead.store(!has_released, Ordering::Relaxed);
            }
            path.grants().remove(0, false);
        }
        let grants = self.paths[to].grants();
        assert_eq!(grants.take_wanted(1, Waker::noop()), [0], "it wants the lock");
        grants.set(0, Standing::Held);
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
        if let Some(done) = what.as_mut().now_or_never() {
            return done;
        }
        self.turn(host);
        now(what)
    }

    fn mount(&self, host: usize) -> Mounted {
        self.try_mount(host).unwrap()
    }

    fn try_mount(&self, host: usize) -> Result<Mounted, Error> {
        let has_others = self.paths.len() > 1;
        let others = move || std::future::ready(Ok(has_others)).boxed();
        let hosts = Hosts { clock: Arc::new(self.clock.clone()), others: Arc::new(others) };
        let device: SharedDevice = self.paths[host].clone();
        self.with_lock(host, sharedfs::open(device, tools::options(false), CACHE_BYTES, Some(hosts)))
    }

    fn hold(&self, host: usize, file_system: &Mounted) -> Result<Hold, Error> {
        self.with_lock(host, file_system.hold())
    }

    fn create(&self, host: usize, file_system: &Mounted, name: &str) -> Result<InodeNumber, Error> {
        let _hold = self.hold(host, file_system)?;
        now(file_system.create(ROOT, name.as_bytes(), NewNode::File, Owner::default())).map(|made| made.inode)
    }

    fn tree(&self, host: usize, file_system: &Mounted) -> Tree {
        let _hold = self.hold(host, file_system).unwrap();
        tree_of(file_system)
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
    assert!(mounts[0].hold().now_or_never().is_none(), "another request waits");
    drop(hold);
    assert!((&mut release).now_or_never().is_some());
    grants.remove(0, false);
    assert_eq!(mounts[0].blocks().counters().changed_blocks, 0);
    assert!(now(mounts[0].blocks().begin(Access::Read)).is_err(), "nothing is done without the lock");
    assert_eq!(names(&target.tree(1, &mounts[1])).len(), 1);
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
        assert!(mounts[0].hold().now_or_never().is_some_and(|hold| hold.is_err()));
        let bytes = tools::bytes_of(&self.disk);
        assert!(self.with_lock(0, sharedfs::close(&mounts[0])).is_err());
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
    assert!(mount.hold().now_or_never().is_none());
    target.paths[0].copies.allow_until(Some(hours_from(&target.clock)));
    assert!(mount.hold().now_or_never().is_some_and(|hold| hold.is_ok()));
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
