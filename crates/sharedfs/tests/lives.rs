//! Hosts that mount, change, read, end and die at any moment, and a target whose power fails: what was
//! durable is there, whole, for whoever comes next.

mod common;
#[path = "common/interruption.rs"]
mod interruption;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use base::random::Random;
use block::device::DeviceExt;
use block::grants::{Right, Standing};
use block::layer::crash::CrashLayer;
use block::{Completion, Device, EventReceiver, Geometry, Identity, Request, SharedDevice};
use common::tools::{self, now};
use common::{ROOT, Target};
use ext2::{Access, Error, ErrorKind, NewNode, Owner};
use futures_util::FutureExt;
use interruption::Interruption;
use sharedfs::{Hold, Mounted};

const HOSTS: usize = 3;
const STEPS: u64 = 60;
const FILES: u64 = 4;
/// Of each file; all of them are the same. More than two blocks.
const FILE_BYTES: usize = 3000;

/// A disk in whose place there is another one after a loss of power.
struct Socket(Mutex<SharedDevice>);

impl Socket {
    fn disk(&self) -> SharedDevice {
        Arc::clone(&self.0.lock().unwrap())
    }
}

impl Device for Socket {
    fn geometry(&self) -> Geometry {
        self.disk().geometry()
    }

    fn identity(&self) -> Identity {
        self.disk().identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.disk().submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk().subscribe()
    }
}

/// The files, with the byte that fills each.
type Files = BTreeMap<String, u8>;

/// Reads all files of a mount.
fn files_of(mount: &Mounted) -> Result<Files, Error> {
    let mut named = Vec::new();
    now(mount.list(ROOT, |entry| {
        named.push((String::from_utf8_lossy(entry.name).into_owned(), entry.inode));
        Ok(())
    }))?;
    let mut files = Files::new();
    for (name, inode) in named.into_iter().filter(|(name, _)| name.starts_with("name")) {
        let bytes = now(mount.read_file(inode, 0, FILE_BYTES))?;
        let first = bytes.first().copied().unwrap_or(0);
        // One that was made and not written to is empty.
        let is_whole = bytes.is_empty() || bytes.len() == FILE_BYTES && bytes.iter().all(|byte| *byte == first);
        assert!(is_whole, "{name} is torn");
        files.insert(name, first);
    }
    Ok(files)
}

struct Lives {
    random: Random,
    layer: CrashLayer,
    socket: Arc<Socket>,
    target: Target,
    interruptions: Vec<Arc<Interruption>>,
    mounts: Vec<Option<Mounted>>,
    /// What is durable for certain.
    durable: Files,
    /// What hosts see.
    current: Files,
    /// Whether it is not known which of these is there: whoever had made the difference is dead.
    is_in_doubt: bool,
    /// The host that has made the difference.
    changer: Option<usize>,
}

impl Lives {
    fn begin(seed: u64) -> Self {
        let layer = CrashLayer::new(2 << 20, seed);
        let disk: SharedDevice = Arc::new(layer.clone());
        now(ext2::make(&disk, &tools::make_options())).unwrap();
        let socket = Arc::new(Socket(Mutex::new(disk)));
        let mut target = Target::of(&(Arc::clone(&socket) as SharedDevice), HOSTS);
        let interruptions = Interruption::below(&mut target);
        Self {
            random: Random::new(seed),
            layer,
            socket,
            target,
            interruptions,
            mounts: (0..HOSTS).map(|_| None).collect(),
            durable: Files::new(),
            current: Files::new(),
            is_in_doubt: false,
            changer: None,
        }
    }

    fn is_dead(&self, host: usize) -> bool {
        self.target.paths[host].is_dead.load(Ordering::Relaxed)
    }

    /// What a host did; `None` if it died in that.
    fn unless_dead<T>(&self, host: usize, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(_) if self.is_dead(host) => None,
            Err(error) => panic!("host {host}: {error}"),
        }
    }

    /// The host dies after fewer requests than these.
    fn die_within(&mut self, host: usize, requests_max: u64) {
        let requests = self.random.below(requests_max);
        println!("host {host} dies after {requests} requests");
        self.interruptions[host].kill(requests, &self.target.paths[host]);
    }

    fn check(&mut self, found: Files) {
        if found != self.current {
            let (durable, current) = (&self.durable, &self.current);
            assert!(self.is_in_doubt && found == *durable, "{found:?}, durable {durable:?}, current {current:?}");
            self.current = found;
        }
        if std::mem::take(&mut self.is_in_doubt) {
            self.durable = self.current.clone();
        }
    }

    fn note_durable(&mut self) {
        if !self.is_in_doubt {
            self.durable = self.current.clone();
        }
    }

    /// Another host has got the lock: whoever had changed something has brought it out, or died in that.
    fn note_passed_on(&mut self, to: usize) {
        let Some(before) = self.changer.filter(|before| *before != to) else { return };
        let grants = self.target.paths[before].grants();
        if self.is_dead(before) {
            self.is_in_doubt = true;
        } else if grants.standing(0) == Some(Standing::Held) && grants.right(0) == Some(Right::Change) {
            return;
        } else {
            self.note_durable();
        }
        self.changer = None;
    }

    fn hold(&mut self, host: usize, access: Access) -> Option<Hold> {
        let held = {
            let mount = self.mounts[host].as_ref().expect("it is mounted");
            let mut held = pin!(mount.hold(access));
            loop {
                if let Some(held) = held.as_mut().now_or_never() {
                    break held;
                }
                self.target.ask(host);
                let right = self.target.paths[host].grants().asked_right(0);
                (0..HOSTS).filter(|other| *other != host).for_each(|other| self.target.call_back(other, right));
                // The target makes durable what a dead one wrote before anything passes on.
                now(self.socket.flush()).unwrap();
                self.target.grant(host);
            }
        };
        self.note_passed_on(host);
        self.unless_dead(host, held)
    }

    /// What others left is there. `None` if the host died.
    fn look(&mut self, host: usize) -> Option<()> {
        let found = files_of(self.mounts[host].as_ref().expect("it is mounted"));
        let found = self.unless_dead(host, found)?;
        self.check(found);
        Some(())
    }

    fn read(&mut self, host: usize) -> Option<()> {
        println!("host {host} reads");
        let _hold = self.hold(host, Access::Read)?;
        self.look(host)
    }

    fn write(&mut self, host: usize) -> Option<()> {
        let name = format!("name {}", self.random.below(FILES));
        let value = (!self.random.chance(0.2)).then(|| 1 + self.random.below(250) as u8);
        println!("host {host} writes {name}: {value:?}");
        let _hold = self.hold(host, Access::Change)?;
        self.look(host)?;
        let written = now(write(self.mounts[host].as_ref().expect("it is mounted"), &name, value));
        self.changer = Some(host);
        self.unless_dead(host, written)?;
        match value {
            Some(value) => drop(self.current.insert(name, value)),
            None => drop(self.current.remove(&name)),
        }
        Some(())
    }

    fn commit(&mut self, host: usize) -> Option<()> {
        println!("host {host} commits");
        let committed = now(self.mounts[host].as_ref().expect("it is mounted").commit());
        self.unless_dead(host, committed)?;
        if self.changer == Some(host) {
            self.note_durable();
        }
        Some(())
    }

    fn mount(&mut self, host: usize) -> Option<()> {
        println!("host {host} mounts");
        let mounted = self.target.try_mount(host);
        self.note_passed_on(host);
        self.mounts[host] = Some(self.unless_dead(host, mounted)?);
        Some(())
    }

    fn end(&mut self, host: usize) -> Option<()> {
        println!("host {host} ends");
        drop(self.hold(host, Access::Change)?);
        if self.random.chance(0.4) {
            self.die_within(host, 14);
        }
        let mount = self.mounts[host].take().expect("it is mounted");
        let closed = self.target.with_lock(host, sharedfs::close(&mount));
        self.unless_dead(host, closed)?;
        self.note_durable();
        self.changer = self.changer.filter(|changer| *changer != host);
        // Called back before it leaves, or not.
        if !self.random.chance(0.5) || self.target.give_up(host).is_none() {
            self.target.paths[host].grants().remove(0, false);
        }
        Some(())
    }

    fn lose_power(&mut self) {
        println!("the target loses its power");
        self.layer.power().lose();
        self.layer = self.layer.after_power_loss();
        let disk: SharedDevice = Arc::new(self.layer.clone());
        self.target.start_again(|_| *self.socket.0.lock().unwrap() = disk);
    }

    /// What the dead had passes on, and another host comes in the place of each.
    fn bury(&mut self) {
        for host in (0..HOSTS).filter(|host| self.is_dead(*host)).collect::<Vec<_>>() {
            if self.changer == Some(host) {
                (self.is_in_doubt, self.changer) = (true, None);
            }
            self.mounts[host] = None;
            self.target.paths[host].grants().remove(0, false);
            if self.random.chance(0.2) {
                self.lose_power();
            }
            now(self.socket.flush()).unwrap();
            self.interruptions[host].clear();
            self.target.paths[host].is_dead.store(false, Ordering::Relaxed);
        }
    }

    fn step(&mut self) {
        let host = self.random.below(HOSTS as u64) as usize;
        if self.random.chance(0.15) {
            self.die_within(host, 40);
        }
        if self.random.chance(0.07) {
            self.lose_power();
        }
        if self.mounts[host].is_none() {
            self.mount(host);
            return self.bury();
        }
        let _died = match self.random.below(10) {
            0..=2 => self.write(host),
            3..=4 => self.commit(host),
            5..=7 => self.read(host),
            8 => self.end(host),
            _ => {
                println!("host {host} is killed");
                self.target.kill(host);
                None
            }
        };
        self.bury();
    }

    /// All hosts die, and the target loses its power.
    fn finish(mut self) {
        self.layer.power().lose();
        self.is_in_doubt |= self.changer.is_some();
        let left: SharedDevice = Arc::new(self.layer.after_power_loss());
        let next = Target::of(&left, 1);
        let mount = next.mount(0);
        let hold = next.with_lock(0, mount.hold(Access::Read)).unwrap();
        self.check(files_of(&mount).unwrap());
        drop(hold);
        next.with_lock(0, sharedfs::close(&mount)).unwrap();
        tools::check_device(&left);
    }
}

/// Fills a file; without a value it is removed, if it is there.
async fn write(mount: &Mounted, name: &str, value: Option<u8>) -> Result<(), Error> {
    let name = name.as_bytes();
    let found = match mount.lookup(ROOT, name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        found => Some(found?.inode),
    };
    match (value, found) {
        (None, None) => Ok(()),
        (None, Some(_)) => mount.unlink(ROOT, name).await.map(drop),
        (Some(value), Some(file)) => mount.write_file(file, 0, &[value; FILE_BYTES]).await,
        (Some(value), None) => {
            let made = mount.create(ROOT, name, NewNode::File, Owner::default()).await?;
            mount.write_file(made.inode, 0, &[value; FILE_BYTES]).await
        }
    }
}

#[test]
fn lives_of_hosts_that_end_and_die_at_any_moment() {
    let test = block::crash_test!();
    // 475: the end of a mount is interrupted between its last record and its place.
    for seed in test.seeds(400, 100, 1) {
        let _printed = test.on_panic(seed, None);
        println!("seed {seed}");
        let mut lives = Lives::begin(seed);
        (0..STEPS).for_each(|_| lives.step());
        lives.finish();
    }
}
