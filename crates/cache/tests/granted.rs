//! An origin that several hosts share, of which each may hold ranges alone: a write there is
//! delayed until the range is called back, and no read returns anything older than the last
//! acknowledged write.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::grants::Standing;
use block::{Completion, Copies, Device, Error, ErrorKind, Event, EventHub, EventReceiver};
use block::{Geometry, Identity, Operation, Request, Response, SharedDevice};
use cache::{Cache, CrashMode, Freshness, Mode, OpenOptions};
use common::{close, made, memory, open_options, read, try_open, write};

const LINE: u64 = 4096;
const PART: u64 = 8 * LINE;
const SIZE: u64 = 8 * PART;

/// The target: which host holds which range, and which has to give one up.
struct Unit {
    disk: SharedDevice,
    workers: Workers,
    clock: Arc<dyn Clock>,
    /// Delay of each request.
    delay_ms: AtomicU64,
    hosts: Mutex<Vec<Copies>>,
}

impl Unit {
    /// All other hosts give up what they hold of a range.
    async fn call_back(&self, host: usize, range: ByteRange) {
        let hosts = self.hosts.lock().unwrap().clone();
        for (_, copies) in hosts.iter().enumerate().filter(|(other, _)| *other != host) {
            let grants = copies.grants().unwrap();
            for part in range.offset / PART..range.end().div_ceil(PART) {
                if matches!(grants.standing(part), Some(Standing::Held)) {
                    grants.set(part, Standing::Leaving);
                    copies.release(grants.range_of(part)).await;
                    grants.remove(part, false);
                }
            }
        }
    }

    async fn revoke(&self, host: usize, range: ByteRange) {
        let hosts = self.hosts.lock().unwrap().clone();
        for (_, copies) in hosts.iter().enumerate().filter(|(other, _)| *other != host) {
            copies.revoke(range).await;
        }
    }

    /// Grants a host what it wants.
    async fn grant(&self, host: usize) {
        let grants = self.hosts.lock().unwrap()[host].grants().unwrap().clone();
        for part in grants.take_wanted(usize::MAX, Waker::noop()) {
            self.call_back(host, grants.range_of(part)).await;
            self.revoke(host, grants.range_of(part)).await;
            grants.set(part, Standing::Held);
        }
    }
}

/// The unit as one host sees it.
struct Path {
    unit: Arc<Unit>,
    host: usize,
    copies: Copies,
    events: EventHub,
    reads: AtomicU64,
    /// Whether its host was killed.
    is_dead: AtomicBool,
}

impl Device for Path {
    fn geometry(&self) -> Geometry {
        self.unit.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.unit.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = self.geometry().check(&request).unwrap();
        let is_read = matches!(request.operation, Operation::Read { .. });
        self.reads.fetch_add(u64::from(is_read), Ordering::Relaxed);
        if self.is_dead.load(Ordering::Relaxed) {
            return Completion::ready(request.fail(ErrorKind::Gone));
        }
        let (unit, host) = (Arc::clone(&self.unit), self.host);
        Completion::task(&self.unit.workers, async move {
            unit.clock.sleep(Duration::from_millis(unit.delay_ms.load(Ordering::Relaxed))).await;
            unit.call_back(host, range).await;
            if request.is_mutation() {
                unit.revoke(host, range).await;
            }
            unit.disk.submit(request).await
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.events.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        Some(self.copies.clone())
    }
}

impl Path {
    fn new(executor: &Executor, unit: &Arc<Unit>, host: usize) -> Arc<Self> {
        let copies = Copies::with_grants(Arc::new(executor.clock()), PART);
        copies.allow_until(Some(executor.clock().now() + Duration::from_secs(36000)));
        let (reads, is_dead) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { unit: Arc::clone(unit), host, copies, events: EventHub::new(), reads, is_dead })
    }
}

struct Host {
    path: Arc<Path>,
    cache_device: SharedDevice,
    cache: Arc<Cache>,
}

struct World {
    executor: Executor,
    unit: Arc<Unit>,
    hosts: Vec<Host>,
}

fn options(executor: &Executor) -> OpenOptions {
    OpenOptions { delays_shared: true, ..open_options(executor, Mode::WriteBack) }
}

impl World {
    fn new(hosts: usize, seed: u64) -> Self {
        let mut executor = Executor::new(seed);
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let (clock, delay_ms) = (Arc::new(executor.clock()), AtomicU64::new(0));
        let unit = Arc::new(Unit { disk: memory(SIZE), workers, clock, delay_ms, hosts: Mutex::default() });
        let mut all = Vec::new();
        for host in 0..hosts {
            let path = Path::new(&executor, &unit, host);
            unit.hosts.lock().unwrap().push(path.copies.clone());
            let origin: SharedDevice = path.clone();
            let cache_device = made(&mut executor, &origin, CrashMode::Warm);
            let opening = options(&executor);
            let cache = try_open(&mut executor, &cache_device, &origin, opening).unwrap();
            all.push(Host { path, cache_device, cache });
        }
        Self { executor, unit, hosts: all }
    }

    fn write(&mut self, host: usize, offset: u64, bytes: &[u8]) {
        write(&mut self.executor, &self.hosts[host].cache, offset, bytes);
    }

    fn read(&mut self, host: usize, offset: u64, length: u64) -> Vec<u8> {
        read(&mut self.executor, &self.hosts[host].cache, offset, length)
    }

    fn on_disk(&mut self, offset: u64) -> u8 {
        read(&mut self.executor, &self.unit.disk, offset, 512)[0]
    }

    fn grant(&mut self, host: usize) {
        let unit = Arc::clone(&self.unit);
        self.executor.block_on(async move { unit.grant(host).await });
    }

    fn standing(&self, host: usize, part: u64) -> Option<Standing> {
        self.hosts[host].path.copies.grants().unwrap().standing(part)
    }

    fn set(&self, host: usize, part: u64, standing: Standing) {
        self.hosts[host].path.copies.grants().unwrap().set(part, standing);
    }

    /// A host is killed, its lease ends, and it comes back, perhaps after others wrote. Returns how
    /// much of its dirty data came back; an error where that was refused, and given up.
    fn crash(&mut self, host: usize, random: &mut Random, expected: &mut [u8]) -> Result<u64, ()> {
        self.executor.run_until_stalled();
        let dirty = self.hosts[host].cache.dirty_ranges();
        self.hosts[host].path.is_dead.store(true, Ordering::Relaxed);
        let path = Path::new(&self.executor, &self.unit, host);
        self.unit.hosts.lock().unwrap()[host] = path.copies.clone();
        let grants = path.copies.grants().unwrap().clone();
        // What is left of the process writes to another device.
        let left = read(&mut self.executor, &self.hosts[host].cache_device, 0, 1 << 20);
        let device = memory(1 << 20);
        write(&mut self.executor, &device, 0, &left);
        self.hosts[host].cache_device = Arc::clone(&device);
        self.hosts[host].path = Arc::clone(&path);
        let on_disk = read(&mut self.executor, &self.unit.disk, 0, SIZE);
        let had: Vec<(ByteRange, Vec<u8>)> = dirty
            .iter()
            .map(|range| (*range, expected[range.offset as usize..range.end() as usize].to_vec()))
            .collect();
        for range in &dirty {
            let at = range.offset as usize..range.end() as usize;
            expected[at.clone()].copy_from_slice(&on_disk[at]);
        }
        let other = (host + 1) % self.hosts.len();
        let written = ByteRange { offset: LINE * random.below(SIZE / LINE), length: LINE };
        let changed = if random.chance(0.5) { vec![written] } else { Vec::new() };
        for range in &changed {
            self.write(other, range.offset, &[251; LINE as usize]);
            expected[range.offset as usize..range.end() as usize].fill(251);
        }
        let origin: SharedDevice = path;
        // A mark covers whole parts.
        let parts: Vec<ByteRange> = changed.iter().map(|range| grants.range_of(range.offset / PART)).collect();
        let is_conflict = dirty.iter().any(|dirty| parts.iter().any(|part| dirty.overlaps(part)));
        let opening = OpenOptions { freshness: Freshness::Changed(parts), ..options(&self.executor) };
        let opened = try_open(&mut self.executor, &device, &origin, opening);
        assert_eq!(opened.is_err(), is_conflict);
        if let Ok(cache) = opened {
            for (range, bytes) in &had {
                grants.want(*range);
                expected[range.offset as usize..range.end() as usize].copy_from_slice(bytes);
            }
            self.hosts[host].cache = cache;
            self.grant(host);
            return Ok(dirty.iter().map(|range| range.length).sum());
        }
        let cache_device = made(&mut self.executor, &origin, CrashMode::Warm);
        let opening = options(&self.executor);
        self.hosts[host].cache = try_open(&mut self.executor, &cache_device, &origin, opening).unwrap();
        self.hosts[host].cache_device = cache_device;
        Err(())
    }

    fn dirty_lines(&self, host: usize) -> u64 {
        self.hosts[host].cache.status().dirty_lines
    }

    /// One host that holds the first part, and a write of it that is delayed.
    fn with_dirty(seed: u64) -> Self {
        let mut world = Self::new(1, seed);
        world.write(0, 0, &[1; LINE as usize]);
        world.grant(0);
        world.write(0, 0, &[2; LINE as usize]);
        assert_eq!((world.on_disk(0), world.dirty_lines(0)), (1, 1));
        world
    }
}

#[test]
fn a_write_waits_for_no_grant_and_is_delayed_under_one() {
    let mut world = World::new(2, 1);
    world.write(0, 0, &[1; 512]);
    assert_eq!(world.on_disk(0), 1, "it went through");
    world.grant(0);
    assert_eq!(world.standing(0, 0), Some(Standing::Held));
    world.write(0, 0, &[2; 512]);
    world.write(0, LINE, &[3; 512]);
    assert_eq!((world.on_disk(0), world.on_disk(LINE)), (1, 0));
    assert_eq!(world.read(0, 0, 512)[0], 2);
    // Beside it no range is held.
    world.write(0, PART, &[4; 512]);
    assert_eq!(world.on_disk(PART), 4);
    assert_eq!(world.read(1, 0, 512)[0], 2, "before anybody else reads it is there");
    assert_eq!((world.on_disk(0), world.on_disk(LINE), world.dirty_lines(0)), (2, 3, 0));
    assert_eq!(world.standing(0, 0), None);
}

/// No copy of what was written was registered.
#[test]
fn what_was_held_alone_is_forgotten_when_it_is_given_up() {
    let mut world = World::with_dirty(2);
    let cleaning = Arc::clone(&world.hosts[0].cache);
    world.executor.block_on(async move { cleaning.clean(|_| {}).await }).unwrap();
    let before = world.hosts[0].path.reads.load(Ordering::Relaxed);
    assert_eq!(world.read(0, 0, LINE)[0], 2);
    assert_eq!(world.hosts[0].path.reads.load(Ordering::Relaxed), before, "it is kept while it is held");
    let unit = Arc::clone(&world.unit);
    world.executor.block_on(async move { unit.call_back(9, ByteRange { offset: 0, length: 512 }).await });
    write(&mut world.executor, &world.unit.disk, 0, &[5; LINE as usize]);
    assert_eq!(world.read(0, 0, LINE)[0], 5);
}

#[test]
fn nothing_is_sent_of_what_is_being_claimed_back_and_all_of_it_when_it_is() {
    let mut world = World::with_dirty(3);
    world.set(0, 0, Standing::Claimed);
    let cleaning = Arc::clone(&world.hosts[0].cache);
    let clean = Completion::task(&world.unit.workers, async move {
        Response { result: cleaning.clean(|_| {}).await, ..Response::done(Buffer::empty()) }
    });
    world.executor.run_until_stalled();
    world.executor.clock().advance(Duration::from_secs(5));
    world.executor.run_until_stalled();
    assert_eq!((world.on_disk(0), world.dirty_lines(0)), (1, 1));
    world.set(0, 0, Standing::Held);
    world.executor.block_on(clean).result.unwrap();
    assert_eq!((world.on_disk(0), world.dirty_lines(0)), (2, 0));
}

/// Another host may have the range by now.
#[test]
fn nothing_that_is_dirty_is_read_or_acknowledged_when_the_lease_is_over() {
    let mut world = World::with_dirty(4);
    let cache = Arc::clone(&world.hosts[0].cache);
    world.hosts[0].path.copies.allow_until(None);
    let reading = cache.read(0, Buffer::zeroed(512));
    let writing = cache.write(512, Buffer::copy_of(&[9; 512]), false);
    world.executor.run_until_stalled();
    world.set(0, 0, Standing::Lost);
    world.hosts[0].path.events.publish(&Event::IdentityChanged);
    world.executor.run_until_stalled();
    assert_eq!(world.executor.block_on(reading).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(world.executor.block_on(writing).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(world.on_disk(0), 1);
    // The data is not lost: the cache has it.
    let closing = Arc::clone(&cache);
    world.executor.block_on(async move { closing.close(true).await }).unwrap();
    assert_eq!((world.dirty_lines(0), world.on_disk(0)), (1, 1));
}

/// The process stood still while the write was on its way to the cache device.
#[test]
fn a_write_that_outlasts_its_lease_is_not_acknowledged() {
    let mut world = World::with_dirty(5);
    let cache = Arc::clone(&world.hosts[0].cache);
    let copies = world.hosts[0].path.copies.clone();
    let writing = cache.write(LINE, Buffer::copy_of(&[9; LINE as usize]), false);
    copies.allow_until(None);
    let result = world.executor.block_on(writing);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Gone);
}

/// Dirty data after a crash may be sent where no other host has written, and is refused otherwise.
#[test]
fn what_a_crash_leaves_is_refused_where_others_wrote() {
    let mut world = World::with_dirty(6);
    let origin: SharedDevice = world.hosts[0].path.clone();
    let device = Arc::clone(&world.hosts[0].cache_device);
    world.hosts[0].path.copies.grants().unwrap().remove(0, false);
    let changed = |range: ByteRange, executor: &Executor| OpenOptions {
        freshness: Freshness::Changed(vec![range]),
        ..options(executor)
    };
    let there = changed(ByteRange { offset: 0, length: PART }, &world.executor);
    let refused: Error = try_open(&mut world.executor, &device, &origin, there).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let elsewhere = changed(ByteRange { offset: PART, length: PART }, &world.executor);
    let cache = try_open(&mut world.executor, &device, &origin, elsewhere).unwrap();
    assert_eq!(cache.dirty_ranges(), [ByteRange { offset: 0, length: LINE }]);
    cache.begin_cleaning();
    world.executor.run_until_stalled();
    assert_eq!(world.on_disk(0), 1, "it is not held");
    let grants = world.hosts[0].path.copies.grants().unwrap().clone();
    grants.want(ByteRange { offset: 0, length: LINE });
    world.grant(0);
    close(&mut world.executor, &cache, false);
    assert_eq!(world.on_disk(0), 2);
}

#[test]
fn a_read_over_several_ranges_is_cut_where_they_begin() {
    let mut world = World::new(1, 7);
    world.read(0, PART - LINE, 2 * LINE);
    assert_eq!(world.hosts[0].path.reads.load(Ordering::Relaxed), 2);
    world.read(0, 2 * PART, LINE);
    assert_eq!(world.hosts[0].path.reads.load(Ordering::Relaxed), 3);
}

/// Each host writes across the end of its range into that of the other.
#[test]
fn writes_into_each_others_ranges_do_not_wait_for_each_other() {
    let mut world = World::new(2, 8);
    for (host, offset) in [(0, PART - LINE), (1, PART)] {
        world.write(host, offset, &[1; 512]);
        world.grant(host);
        world.write(host, offset, &[2; 512]);
        assert_eq!(world.dirty_lines(host), 1);
    }
    // All of them are under way before the first arrives.
    world.unit.delay_ms.store(10, Ordering::Relaxed);
    let range = ByteRange { offset: PART - LINE, length: 2 * LINE };
    let mut pending: Vec<Completion> = Vec::new();
    for (host, is_write) in [(0, true), (1, true), (0, false), (1, false)] {
        let buffer = Buffer::copy_of(&[3 + host as u8; 2 * LINE as usize]);
        let request = match is_write {
            true => Request::write(range.offset, buffer, false),
            false => Request::write_zeroes(range.offset, range.length, false, true),
        };
        pending.push(world.hosts[host].cache.submit(request));
    }
    let done = Arc::new(AtomicU64::new(0));
    for completion in pending {
        let done = Arc::clone(&done);
        world.executor.spawn(async move {
            completion.await.result.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    for _ in 0..500 {
        world.executor.run_until_stalled();
        world.executor.clock().advance(Duration::from_millis(20));
    }
    assert_eq!(done.load(Ordering::Relaxed), 4);
    assert_eq!(world.read(0, range.offset, 512)[0], 0);
}

/// Each host changes and reads any range, and sees the last write of any host. Ranges change hands
/// as they are wanted; a small cache cleans dirty data in between. Now and then a host is killed:
/// its dirty data is there again when it comes back, unless another host wrote there meanwhile, and
/// then it is refused.
#[test]
fn hosts_that_write_back_by_turns_see_what_was_written_last() {
    let test = block::crash_test!();
    let mut all = (0, 0);
    for seed in test.seeds(0, 40, 1) {
        let _printed = test.on_panic(seed, None);
        let mut random = Random::new(seed);
        let mut world = World::new(2 + random.below(2) as usize, seed);
        let mut expected = vec![0; SIZE as usize];
        let mut delayed = 0;
        let (mut returned, mut refused) = (0, 0);
        for step in 0..300 {
            if random.chance(0.02) {
                let host = random.below(world.hosts.len() as u64) as usize;
                match world.crash(host, &mut random, &mut expected) {
                    Ok(bytes) => returned += bytes,
                    Err(()) => refused += 1,
                }
            }
            let host = random.below(world.hosts.len() as u64) as usize;
            let longest = if random.chance(0.1) { 2 * PART / 512 } else { 16 };
            let length = 512 * (1 + random.below(longest));
            let offset = 512 * random.below((SIZE - length) / 512 + 1);
            let (from, to) = (offset as usize, (offset + length) as usize);
            match random.below(10) {
                0..4 => {
                    let byte = 1 + (step % 250) as u8;
                    world.write(host, offset, &vec![byte; length as usize]);
                    expected[from..to].fill(byte);
                }
                4..8 => {
                    let found = world.read(host, offset, length);
                    let wrong = found.iter().zip(&expected[from..to]).position(|(found, right)| found != right);
                    assert_eq!(wrong, None, "step {step}, host {host}, bytes {from}..{to}");
                }
                8 => world.grant(host),
                _ => {
                    let zeroing = world.hosts[host].cache.write_zeroes(offset, length, false, true);
                    world.executor.block_on(zeroing).unwrap();
                    expected[from..to].fill(0);
                }
            }
            delayed = delayed.max(world.dirty_lines(host));
        }
        assert!(delayed > 0, "nothing was delayed");
        all = (all.0 + returned, all.1 + refused);
        for host in 0..world.hosts.len() {
            let cache = Arc::clone(&world.hosts[host].cache);
            close(&mut world.executor, &cache, false);
        }
        let found = read(&mut world.executor, &world.unit.disk, 0, SIZE);
        assert!(found == expected, "not all is there in the end");
    }
    println!("{} bytes came back after a crash, {} caches did not", all.0, all.1);
}
