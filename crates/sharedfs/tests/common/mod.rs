//! The target of a shared ext2 and the device as each host has it, turned by hand.

#![allow(dead_code, reason = "each test file uses its part")]

#[path = "../../../ext2/tests/tools/mod.rs"]
pub(crate) mod tools;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use base::clock::{Clock, Instant, VirtualClock};
use block::completion::SlotSender;
use block::grants::{Right, Standing, WHOLE_DEVICE};
use block::{Completion, Copies, Device, ErrorKind, EventReceiver, Geometry, Grants, Identity};
use block::{Operation as BlockOperation, Request, Response, SharedDevice};
use ext2::{Access, Error, InodeNumber, NewNode, Owner};
use futures_util::FutureExt;
use sharedfs::{Hold, Hosts, Mounted};
use tools::{Tree, now, tree_of};

pub(crate) const CACHE_BYTES: u64 = 256 << 10;
pub(crate) const ROOT: InodeNumber = InodeNumber::ROOT;

/// The device as one host has it.
pub(crate) struct Path {
    pub(crate) disk: SharedDevice,
    pub(crate) copies: Copies,
    /// Whether the host was fenced, or killed: nothing of it has an effect any more.
    pub(crate) is_dead: AtomicBool,
    /// Changes of the device, from the next one on, of which it is not known whether they were done.
    pub(crate) doubtful: AtomicU64,
    /// How often the lock was asked for, and how much was asked of the disk.
    pub(crate) asked: AtomicU64,
    pub(crate) requests: AtomicU64,
    /// Whether the target is away: it answers no question.
    pub(crate) is_away: AtomicBool,
    /// Whether flushes are held back here before they reach the disk.
    pub(crate) holds_flushes: AtomicBool,
    pub(crate) held: Mutex<Vec<(SlotSender, Request)>>,
    /// How many more reads are answered at once, if not all.
    pub(crate) reads_at_once: Mutex<Option<u64>>,
    /// The others, with what was in their place then.
    pub(crate) held_reads: Mutex<VecDeque<(SlotSender, Response)>>,
    /// The time that a read takes.
    pub(crate) read_time: Mutex<Option<(VirtualClock, Duration)>>,
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
        if is_read && self.is_read_held() {
            let (completion, sender) = Completion::slot();
            let response = self.disk.submit(request).try_take().expect("the disk answers at once");
            self.held_reads.lock().unwrap().push_back((sender, response));
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
    fn is_read_held(&self) -> bool {
        match self.reads_at_once.lock().unwrap().as_mut() {
            None => false,
            Some(0) => true,
            Some(count) => {
                *count -= 1;
                false
            }
        }
    }

    /// After this many more reads, those that come are held back.
    pub(crate) fn hold_reads_after(&self, count: u64) {
        *self.reads_at_once.lock().unwrap() = Some(count);
    }

    /// Answers the first read that is held back, and holds no more.
    pub(crate) fn answer_first_read(&self) {
        *self.reads_at_once.lock().unwrap() = None;
        let (sender, response) = self.held_reads.lock().unwrap().pop_front().expect("it is held back");
        sender.complete(response);
    }

    /// Answers all reads that are held back.
    pub(crate) fn answer_reads(&self) {
        *self.reads_at_once.lock().unwrap() = None;
        let held = std::mem::take(&mut *self.held_reads.lock().unwrap());
        held.into_iter().for_each(|(sender, response)| sender.complete(response));
    }

    /// What the target says to a question.
    pub(crate) fn answer(&self) -> Result<(), Error> {
        let refused = |kind| Err(Error::new(ext2::ErrorKind::Device(kind), "the target says nothing else"));
        match (self.is_dead.load(Ordering::Relaxed), self.is_away.load(Ordering::Relaxed)) {
            (true, _) => refused(ErrorKind::Gone),
            (false, true) => refused(ErrorKind::TimedOut),
            (false, false) => Ok(()),
        }
    }

    pub(crate) fn grants(&self) -> &Grants {
        self.copies.grants().expect("it may be held as a whole")
    }
}

/// The target's side of the lock, turned by hand.
pub(crate) struct Target {
    pub(crate) disk: SharedDevice,
    pub(crate) clock: VirtualClock,
    pub(crate) paths: Vec<Arc<Path>>,
}

impl Target {
    pub(crate) fn of(disk: &SharedDevice, count: usize) -> Self {
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
                reads_at_once: Mutex::default(),
                held_reads: Mutex::default(),
                read_time: Mutex::default(),
            })
        };
        let paths = (0..count).map(|_| path()).collect();
        Self { disk: Arc::clone(disk), clock, paths }
    }

    pub(crate) fn made(count: usize) -> Self {
        Self::of(&tools::made(2 << 20, 1024), count)
    }

    /// Gives the lock to a host that wants it, and calls back whoever is in its way.
    pub(crate) fn turn(&self, to: usize) {
        self.ask(to);
        let right = self.paths[to].grants().asked_right(0);
        (0..self.paths.len()).filter(|host| *host != to).for_each(|host| self.call_back(host, right));
        self.grant(to);
    }

    pub(crate) fn ask(&self, host: usize) {
        assert_eq!(self.paths[host].grants().take_wanted(1, Waker::noop()), [0], "it wants the lock");
        self.paths[host].asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn grant(&self, host: usize) {
        let grants = self.paths[host].grants();
        match grants.standing(0) {
            Some(Standing::Held) => grants.raise(0),
            _ => grants.set(0, Standing::Held),
        }
    }

    /// Takes from a host what is in the way of another one that is to get this.
    pub(crate) fn call_back(&self, host: usize, right: Right) {
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
    pub(crate) fn give_up(&self, host: usize) -> Option<()> {
        let path = &self.paths[host];
        path.grants().set(0, Standing::Leaving);
        path.copies.release(path.grants().range_of(0)).now_or_never()?;
        path.grants().remove(0, false);
        Some(())
    }

    /// Does what needs the lock.
    pub(crate) fn with_lock<T>(&self, host: usize, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            if let Some(done) = what.as_mut().now_or_never() {
                return done;
            }
            self.turn(host);
        }
    }

    /// How often each host has asked for the lock.
    pub(crate) fn asked(&self) -> Vec<u64> {
        self.paths.iter().map(|path| path.asked.load(Ordering::Relaxed)).collect()
    }

    /// How much each host has asked of the disk.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.paths.iter().map(|path| path.requests.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn mount(&self, host: usize) -> Mounted {
        self.try_mount(host).unwrap()
    }

    pub(crate) fn try_mount(&self, host: usize) -> Result<Mounted, Error> {
        let has_others = self.paths.len() > 1;
        let others = move || std::future::ready(Ok(has_others)).boxed();
        let path = Arc::clone(&self.paths[host]);
        let probe = move || std::future::ready(path.answer()).boxed();
        let hosts = Hosts { clock: Arc::new(self.clock.clone()), others: Arc::new(others), probe: Arc::new(probe) };
        let device: SharedDevice = self.paths[host].clone();
        self.with_lock(host, sharedfs::open(device, tools::options(false), CACHE_BYTES, Some(hosts)))
    }

    pub(crate) fn hold(&self, host: usize, file_system: &Mounted) -> Result<Hold, Error> {
        self.with_lock(host, file_system.hold(Access::Change))
    }

    pub(crate) fn create(&self, host: usize, file_system: &Mounted, name: &str) -> Result<InodeNumber, Error> {
        let _hold = self.hold(host, file_system)?;
        now(file_system.create(ROOT, name.as_bytes(), NewNode::File, Owner::default())).map(|made| made.inode)
    }

    pub(crate) fn tree(&self, host: usize, file_system: &Mounted) -> Tree {
        let _hold = self.with_lock(host, file_system.hold(Access::Read)).unwrap();
        tree_of(file_system)
    }

    /// The target starts again, with what `image` puts in the place of the disk's content; the hosts claim back what
    /// they have.
    pub(crate) fn start_again(&self, image: impl FnOnce(&SharedDevice)) {
        let all_held = [Standing::Held, Standing::Leaving];
        self.paths.iter().for_each(|path| path.grants().turn(&all_held, Some(Standing::Claimed)));
        image(&self.disk);
        for grants in self.paths.iter().map(|path| path.grants()) {
            grants.all(&[Standing::Claimed]).into_iter().for_each(|part| grants.set(part, Standing::Held));
        }
    }

    /// The host dies: what it does has no effect from now on.
    pub(crate) fn kill(&self, host: usize) {
        self.paths[host].is_dead.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn hours_from(clock: &VirtualClock) -> Instant {
    clock.now() + Duration::from_secs(36_000)
}

pub(crate) fn names(tree: &Tree) -> Vec<String> {
    let names = tree.keys().map(|name| String::from_utf8_lossy(name).into_owned());
    names.filter(|name| name.contains("name")).collect()
}
