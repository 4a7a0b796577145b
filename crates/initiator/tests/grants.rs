//! Ranges of a shared LUN that one host holds alone: another host's request for these blocks waits
//! until the first has written its dirty data to the target.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::grants::Right;
use block::memory::MemoryDevice;
use block::{Buffer, ByteRange, Copies, Device, Dropped, ErrorKind, Grants, Keeper};
use initiator::{InitiatorOptions, RemoteLun, State};
use logical_unit::{LifeSecret, SavedSharing, SharingOptions};
use support::sharing::{add_keeper, host, read, serve};
use support::{World, identity};

const MIB: u64 = 1 << 20;
const LEASE: Duration = Duration::from_secs(10);

/// Delays one write of one block: what it has of it, and how it brings that to the LUN.
struct Delaying {
    lun: Arc<RemoteLun>,
    place: ByteRange,
    clock: Arc<dyn Clock>,
    dirty: Mutex<Option<u8>>,
    /// How long cleaning takes, and in how many steps; each step is reported as progress.
    time: Mutex<(Duration, u32)>,
    was_dropped: AtomicBool,
}

const DIRTY: ByteRange = ByteRange { offset: 4096, length: 4096 };

impl Keeper for Delaying {
    fn revoke(&self, _: ByteRange) -> Dropped {
        self.was_dropped.store(true, Ordering::Relaxed);
        Box::pin(async {})
    }

    fn clean(&self, range: ByteRange) -> Dropped {
        let found = *self.dirty.lock().unwrap();
        let Some(byte) = found.filter(|_| range.overlaps(&self.place)) else { return Box::pin(async {}) };
        let (time, steps) = *self.time.lock().unwrap();
        let (lun, clock) = (Arc::clone(&self.lun), Arc::clone(&self.clock));
        let copies = lun.copies().unwrap();
        let place = self.place;
        let write = move || lun.write(place.offset, Buffer::copy_of(&[byte; 4096]), true);
        Box::pin(async move {
            for _ in 0..steps {
                clock.sleep(time / steps).await;
                copies.grants().unwrap().note_progress();
            }
            if steps == 0 {
                clock.sleep(time).await;
            }
            let used = copies.grants().unwrap().use_to_clean(place).expect("it is still held");
            write().await.unwrap();
            drop(used);
        })
    }

    fn is_dirty(&self, range: ByteRange) -> bool {
        range.overlaps(&self.place) && self.dirty.lock().unwrap().is_some()
    }
}

impl Delaying {
    fn over(world: &World, lun: &Arc<RemoteLun>, time: Duration, steps: u32) -> Arc<Self> {
        Self::at(DIRTY, world, lun, time, steps)
    }

    fn at(place: ByteRange, world: &World, lun: &Arc<RemoteLun>, time: Duration, steps: u32) -> Arc<Self> {
        let delaying = Arc::new(Self {
            lun: Arc::clone(lun),
            place,
            clock: Arc::new(world.clock.clone()),
            dirty: Mutex::default(),
            time: Mutex::new((time, steps)),
            was_dropped: AtomicBool::new(false),
        });
        add_keeper(lun, &delaying);
        delaying
    }

    /// A write that the LUN has not seen.
    fn write(&self, byte: u8) {
        let grants = grants(&self.lun);
        let used = grants.use_to_write(self.place).expect("it is held");
        *self.dirty.lock().unwrap() = Some(byte);
        assert!(used.is_good());
    }
}

fn copies(lun: &Arc<RemoteLun>) -> Copies {
    lun.copies().expect("it is shared")
}

fn grants(lun: &Arc<RemoteLun>) -> Grants {
    copies(lun).grants().expect("its target withholds").clone()
}

fn hold(world: &mut World, lun: &Arc<RemoteLun>, range: ByteRange) {
    hold_for(world, lun, range, Right::Change);
}

fn hold_for(world: &mut World, lun: &Arc<RemoteLun>, range: ByteRange, right: Right) {
    let grants = grants(lun);
    world.run(async move { grants.acquire(range, right).await });
}

fn one_host(world: &mut World) -> (Arc<MemoryDevice>, Arc<RemoteLun>) {
    let device = Arc::new(MemoryDevice::new(4 * MIB, identity("shared")));
    serve(world, device.clone(), SharingOptions { saved: kept().next_start(), ..SharingOptions::default() });
    let one = host(world, 1);
    (device, world.connect(one).unwrap())
}

fn hosts(world: &mut World) -> (Arc<MemoryDevice>, Arc<RemoteLun>, Arc<RemoteLun>) {
    let (device, one) = one_host(world);
    let two = host(world, 2);
    (device, one, world.connect(two).unwrap())
}

#[test]
fn what_others_read_or_write_comes_behind_what_was_written_under_a_grant() {
    for is_stock in [false, true] {
        let mut world = World::new(1);
        let (_, one, two) = hosts(&mut world);
        let delaying = Delaying::over(&world, &one, Duration::from_millis(5), 0);
        let options = world.options();
        let other = if is_stock { world.connect(options).unwrap() } else { two };
        hold(&mut world, &one, ByteRange { offset: 0, length: 512 });
        assert_eq!(one.status().sharing.unwrap().ranges_held, 1);
        assert_eq!(read(&mut world, &other, MIB), 0, "another range");
        assert!(!delaying.was_dropped.load(Ordering::Relaxed));
        delaying.write(7);
        assert_eq!(read(&mut world, &other, 4096), 7);
        assert!(delaying.was_dropped.load(Ordering::Relaxed), "and it keeps nothing");
        assert!(grants(&one).use_to_write(DIRTY).is_none());
        *delaying.dirty.lock().unwrap() = None;
        // It rests, and is asked for again later.
        hold(&mut world, &one, DIRTY);
        delaying.write(8);
        let write = other.write(4096, Buffer::copy_of(&[9; 512]), false);
        world.run(write).unwrap();
        assert_eq!((read(&mut world, &other, 4096), read(&mut world, &other, 4608)), (9, 8));
    }
}

#[test]
fn two_hosts_hold_a_range_by_turns() {
    let mut world = World::new(2);
    let (_, one, two) = hosts(&mut world);
    let (first, second) =
        (Delaying::over(&world, &one, Duration::ZERO, 0), Delaying::over(&world, &two, Duration::ZERO, 0));
    for byte in 1..4 {
        hold(&mut world, &one, DIRTY);
        first.write(byte);
        hold(&mut world, &two, DIRTY);
        assert!(grants(&one).use_to_write(DIRTY).is_none());
        *first.dirty.lock().unwrap() = None;
        assert_eq!(read(&mut world, &two, 4096), byte);
        second.write(byte + 100);
        hold(&mut world, &one, DIRTY);
        *second.dirty.lock().unwrap() = None;
        assert_eq!(read(&mut world, &one, 4096), byte + 100);
    }
}

/// A copy from before is none any more when another host writes under a grant.
#[test]
fn nobody_keeps_a_copy_of_what_another_host_holds_alone() {
    let mut world = World::new(3);
    let (_, one, two) = hosts(&mut world);
    let reader = Delaying::over(&world, &two, Duration::ZERO, 0);
    read(&mut world, &two, 4096);
    hold(&mut world, &one, DIRTY);
    assert!(reader.was_dropped.load(Ordering::Relaxed));
}

/// Cleaning takes longer than a callback may take, and less than one that is put off.
#[test]
fn who_gets_on_with_cleaning_has_more_time_and_who_does_not_is_fenced() {
    for steps in [10, 0] {
        let mut world = World::new(4);
        let (_, one, two) = hosts(&mut world);
        let delaying = Delaying::over(&world, &one, Duration::from_secs(25), steps);
        hold(&mut world, &one, DIRTY);
        delaying.write(7);
        let found = read(&mut world, &two, 4096);
        world.pass(Duration::from_secs(1));
        match steps {
            0 => assert_eq!((found, one.status().state), (0, State::Fenced)),
            _ => assert_eq!((found, one.status().state), (7, State::Online)),
        }
    }
}

/// A request that waits for another host's cleaning waits as long as the target allows: no command
/// is aborted, no session ends, and no write has an unknown outcome.
#[test]
fn what_waits_for_another_hosts_cleaning_waits_for_as_long_as_that_may_take() {
    let mut world = World::new(13);
    let device = Arc::new(MemoryDevice::new(4 * MIB, identity("shared")));
    serve(&mut world, device, SharingOptions::default());
    let (one, two) = (host(&world, 1), host(&world, 2));
    let two = InitiatorOptions { command_timeout: Duration::from_secs(5), ..two };
    let (one, two) = (world.connect(one).unwrap(), world.connect(two).unwrap());
    let delaying = Delaying::over(&world, &one, Duration::from_secs(50), 20);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    let before = world.clock.now();
    let writes = [4096, 8192].map(|offset| two.write(offset, Buffer::copy_of(&[9; 512]), false));
    let beside = read(&mut world, &two, 4096 + 512);
    for write in writes {
        world.run(write).expect("it came behind what was cleaned");
    }
    assert!(world.clock.now().since(before) >= Duration::from_secs(50));
    let status = two.status();
    assert_eq!((beside, status.session_count, status.commands_retried), (7, 1, 0));
    assert_eq!((read(&mut world, &two, 4096), read(&mut world, &two, 4608)), (9, 7));
}

#[test]
fn a_lost_session_keeps_what_is_held() {
    let mut world = World::new(5);
    let (_, one, two) = hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    world.network.cut();
    assert_eq!(read(&mut world, &two, 4096), 7);
    assert_eq!(one.status().sharing.unwrap().lives, 1);
}

/// The saved state of a unit before its first start.
fn kept() -> SavedSharing {
    SavedSharing { secret: Some(LifeSecret::from_bytes([5; 32])), ..SavedSharing::default() }
}

/// A target that keeps what outlives it, and starts again.
fn start_again(world: &mut World, device: Arc<MemoryDevice>) {
    start_after(world, device, 1);
}

/// The same after so many starts; in none since the first one the time for reclaims came to its end.
fn start_after(world: &mut World, device: Arc<MemoryDevice>, boot_epoch: u32) {
    let saved = SavedSharing { longest_lease_ms: Some(10_000), may_lack_writes: true, ..kept() };
    let sharing = SharingOptions::default();
    let saved = SavedSharing { boot_epoch, reclaimable_from: 1, ..saved }.next_start();
    serve(world, device, SharingOptions { saved, ..sharing });
    world.network.cut();
}

#[test]
fn what_is_held_is_claimed_back_after_a_start_before_anybody_reads() {
    let mut world = World::new(6);
    let (device, one, _) = hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    start_again(&mut world, device);
    let options = world.options();
    let stock = world.connect(options).unwrap();
    let before = world.clock.now();
    assert_eq!(read(&mut world, &stock, 4096), 7);
    assert!(world.clock.now().since(before) > LEASE / 2, "who may reclaim is waited for");
    assert_eq!((one.status().state, one.status().sharing.unwrap().lives), (State::Online, 2));
}

/// The session is lost, and the target ends again, before what is claimed is granted.
#[test]
fn what_is_held_is_claimed_back_after_several_starts_one_behind_the_other() {
    let mut world = World::new(17);
    let (device, one) = one_host(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    start_after(&mut world, device.clone(), 1);
    let lives_and_ranges = || one.status().sharing.map(|sharing| (sharing.lives, sharing.ranges_held)).unwrap();
    while lives_and_ranges() != (2, 1) {
        world.pass(Duration::from_millis(1));
    }
    // What the link had carried when the range was granted again.
    let bytes: u64 = world.network.traffic().iter().map(|(sent, received)| sent + received).sum();
    let mut unclaimed = 0;
    for (start, bytes_less) in (2..).zip([20, 80, 140, 200, 260]) {
        let connects = world.network.connect_count();
        world.network.cut_next_after(bytes - bytes_less);
        start_after(&mut world, device.clone(), start);
        while world.network.connect_count() == connects {
            world.pass(Duration::from_millis(1));
        }
        world.pass(Duration::from_millis(20));
        unclaimed += u32::from(lives_and_ranges() == (u64::from(start) + 1, 0));
    }
    assert!(unclaimed >= 2, "{unclaimed} starts ended between a registration and what was claimed by it");
    start_after(&mut world, device, 7);
    let options = world.options();
    let stock = world.connect(options).unwrap();
    assert_eq!(read(&mut world, &stock, 4096), 7);
    assert_eq!(one.status().state, State::Online);
}

/// Others may have it, and what is dirty must not go over theirs.
#[test]
fn what_was_written_under_a_lease_that_is_over_is_the_end_of_the_client() {
    let mut world = World::new(7);
    let (device, one, two) = hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    world.network.freeze();
    let options = host(&world, 3);
    let third = world.connect(options).unwrap();
    let late = one.write(4096, Buffer::copy_of(&[7; 4096]), false);
    drop(two);
    assert_eq!(read(&mut world, &third, 4096), 0);
    assert!(grants(&one).use_to_write(DIRTY).is_none() || !copies(&one).may_use());
    world.network.cut();
    world.run(late).unwrap_err();
    world.pass(Duration::from_secs(3));
    assert_eq!(one.status().state, State::Fenced);
    let error = world.run(one.write(0, Buffer::zeroed(512), false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert_eq!(read(&mut world, &third, 4096), 0);
    assert_eq!(world.run(device.read(4096, Buffer::zeroed(512))).unwrap()[0], 0);
}

/// The target did not fence it: it was away itself.
#[test]
fn a_lease_that_ended_while_the_target_was_away_ends_the_client_where_something_is_dirty() {
    let mut world = World::new(12);
    let (device, one, _) = hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_millis(100));
    // What was about to be sent keeps the range in use.
    let used = grants(&one).use_to_clean(DIRTY).unwrap();
    let cleaning = one.write(4096, Buffer::copy_of(&[7; 4096]), false);
    let over = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&over);
    world.workers.spawn(async move {
        noted.store(cleaning.await.is_err(), Ordering::Relaxed);
        drop(used);
    });
    world.pass(LEASE + Duration::from_secs(1));
    start_again(&mut world, device.clone());
    world.pass(Duration::from_secs(5));
    assert!(over.load(Ordering::Relaxed), "it failed");
    assert_eq!(one.status().state, State::Fenced);
    assert_eq!(world.run(device.read(4096, Buffer::zeroed(512))).unwrap()[0], 0);
}

/// The target is away for longer than a lease: no other host can have got a lock, but this host
/// cannot know that.
#[test]
fn a_lease_that_ended_with_nothing_dirty_costs_nothing() {
    let mut world = World::new(8);
    let (device, one, _) = hosts(&mut world);
    let _delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    world.network.set_server(None);
    world.network.cut();
    world.pass(LEASE * 2);
    assert!(!copies(&one).may_use());
    start_again(&mut world, device);
    world.pass(LEASE * 2);
    assert_eq!(one.status().state, State::Online);
    hold(&mut world, &one, DIRTY);
}

/// It said that the range is in use. The target was stopped meanwhile: there its lease goes on, and the callback, too.
#[test]
fn what_was_called_back_when_a_lease_ended_is_given_up() {
    let mut world = World::new(17);
    let (_, one, two) = hosts(&mut world);
    hold(&mut world, &one, DIRTY);
    let used = grants(&one).use_to_write(DIRTY).unwrap();
    let waiting = two.read(4096, Buffer::zeroed(512));
    world.pass(Duration::from_millis(100));
    world.clock.advance(LEASE + Duration::from_secs(3));
    world.pass(Duration::from_secs(1));
    assert!(!copies(&one).may_use(), "the range is in use");
    drop(used);
    world.pass(Duration::from_secs(1));
    let started = world.clock.now();
    world.run(waiting).unwrap();
    assert_eq!(world.clock.now(), started, "it is read by now");
    world.pass(LEASE * 7);
    for host in [&one, &two] {
        assert_eq!((host.status().state, copies(host).may_use()), (State::Online, true));
    }
}

#[test]
fn who_leaves_in_order_gives_back_what_is_held() {
    let mut world = World::new(9);
    let (_, one, two) = hosts(&mut world);
    hold(&mut world, &one, DIRTY);
    let closing = Arc::clone(&one);
    world.run(async move { closing.close().await }).unwrap();
    let before = world.clock.now();
    read(&mut world, &two, 4096);
    assert!(world.clock.now().since(before) < Duration::from_secs(1));
}

/// The ranges cannot be reclaimed, and the requests do not wait: another host may have written
/// there.
#[test]
fn what_waits_to_be_sent_is_not_sent_where_the_range_cannot_be_claimed_back() {
    let mut world = World::new(10);
    let (device, one, _) = hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_millis(100));
    let late = one.write(4096, Buffer::copy_of(&[7; 4096]), false);
    let saved = SavedSharing { boot_epoch: 1, reclaimable_from: 1, ..kept() }.next_start();
    serve(&mut world, device.clone(), SharingOptions { saved, ..SharingOptions::default() });
    world.run(late).unwrap_err();
    world.pass(Duration::from_secs(3));
    assert_eq!(one.status().state, State::Fenced);
    assert_eq!(world.run(device.read(4096, Buffer::zeroed(512))).unwrap()[0], 0);
}

/// Each has as many writes under way as it may have, all of which wait for the other.
#[test]
fn what_is_called_back_is_written_beside_all_that_waits_for_others() {
    let mut world = World::new(11);
    let device = Arc::new(MemoryDevice::new(4 * MIB, identity("shared")));
    serve(&mut world, device, SharingOptions::default());
    let options = |number| InitiatorOptions { queue_depth: 8, ..host(&world, number) };
    let (one, two) = (options(1), options(2));
    let (one, two) = (world.connect(one).unwrap(), world.connect(two).unwrap());
    let other = ByteRange { offset: 2 * MIB, length: 4096 };
    let first = Delaying::over(&world, &one, Duration::from_millis(100), 0);
    let second = Delaying::at(other, &world, &two, Duration::from_millis(100), 0);
    hold(&mut world, &one, DIRTY);
    hold(&mut world, &two, other);
    first.write(7);
    second.write(8);
    let before = world.clock.now();
    let writes = |lun: &Arc<RemoteLun>, offset: u64| -> Vec<_> {
        (0..16).map(|block| lun.write(offset + block * 8192, Buffer::copy_of(&[1; 512]), false)).collect()
    };
    let all = [writes(&one, other.offset + 8192), writes(&two, DIRTY.offset + 8192)];
    for write in all.into_iter().flatten() {
        world.run(write).unwrap();
    }
    assert!(world.clock.now().since(before) < Duration::from_secs(5), "nobody waited for a deadline");
    assert_eq!((read(&mut world, &two, 4096), read(&mut world, &one, other.offset)), (7, 8));
}

/// Hosts of which one at a time holds the whole LUN.
fn whole_hosts(world: &mut World) -> (Arc<MemoryDevice>, Arc<RemoteLun>, Arc<RemoteLun>) {
    let device = Arc::new(MemoryDevice::new(4 * MIB, identity("shared")));
    serve(world, device.clone(), SharingOptions { saved: kept().next_start(), ..SharingOptions::default() });
    let [one, two] = [1, 2].map(|number| {
        let options = InitiatorOptions { holds_whole: true, ..host(world, number) };
        world.connect(options).unwrap()
    });
    (device, one, two)
}

const LAST: ByteRange = ByteRange { offset: 3 * MIB, length: 4096 };

/// They do not leave it to each other for a while, as they do with ranges: all their work waits for it.
#[test]
fn hosts_hold_the_whole_lun_by_turns() {
    let mut world = World::new(21);
    let (_, one, two) = whole_hosts(&mut world);
    let (first, second) =
        (Delaying::over(&world, &one, Duration::ZERO, 0), Delaying::at(LAST, &world, &two, Duration::ZERO, 0));
    let before = world.clock.now();
    for byte in 1..11 {
        hold(&mut world, &one, LAST);
        first.write(byte);
        hold(&mut world, &two, DIRTY);
        assert!(grants(&one).use_to_write(LAST).is_none(), "nothing of it is held any more");
        *first.dirty.lock().unwrap() = None;
        assert_eq!(read(&mut world, &two, 4096), byte);
        second.write(byte + 100);
        hold(&mut world, &one, LAST);
        *second.dirty.lock().unwrap() = None;
        assert_eq!(read(&mut world, &one, LAST.offset), byte + 100);
    }
    let took = world.clock.now().since(before);
    assert!((Duration::from_millis(300)..Duration::from_secs(1)).contains(&took), "{took:?} for 20 turns");
}

/// Two hosts that read the whole LUN; the tenures of both.
fn hold_to_read(world: &mut World, luns: [&Arc<RemoteLun>; 2]) -> [u64; 2] {
    luns.into_iter().for_each(|lun| hold_for(world, lun, LAST, Right::Read));
    luns.map(|lun| grants(lun).begin_use(LAST, Right::Read).expect("both have it").tenure())
}

/// Nothing is asked for or called back any more, however long they read.
#[test]
fn hosts_that_only_read_hold_the_whole_lun_together() {
    let mut world = World::new(25);
    let (_, one, two) = whole_hosts(&mut world);
    let writing = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    writing.write(7);
    let before = grants(&one).use_to_write(DIRTY).unwrap().tenure();
    hold_to_read(&mut world, [&one, &two]);
    assert_eq!(read(&mut world, &two, DIRTY.offset), 7, "it was cleaned before another host reads");
    assert!(!writing.was_dropped.load(Ordering::Relaxed), "and is read on");
    let uses = [&one, &two].map(|lun| grants(lun).begin_use(LAST, Right::Read).unwrap());
    let traffic = |lun: &Arc<RemoteLun>| lun.status().sharing.map(|sharing| (sharing.asks, sharing.callbacks));
    assert_eq!((traffic(&one), traffic(&two)), (Some((1, 1)), Some((1, 0))));
    world.pass(Duration::from_secs(60));
    assert_eq!((traffic(&one), traffic(&two)), (Some((1, 1)), Some((1, 0))), "nothing is asked for or called back");
    assert!(uses.iter().all(block::grants::Use::is_good));
    assert_eq!(uses[0].tenure(), before, "nobody changed anything between");
    assert!(grants(&two).use_to_write(LAST).is_none());
}

/// The one that is called back drops what it has, and asks anew: the lock manager cannot know whether it needs the one
/// to give up the other.
#[test]
fn two_hosts_that_read_the_whole_lun_and_both_want_to_change_it_do_not_wait_for_each_other() {
    for seed in 26..36 {
        let mut world = World::new(seed);
        let (_, one, two) = whole_hosts(&mut world);
        let keepers = [&one, &two].map(|lun| Delaying::over(&world, lun, Duration::ZERO, 0));
        for round in 0..5 {
            let tenures = hold_to_read(&mut world, [&one, &two]);
            let was_dropped = || keepers.each_ref().map(|keeper| keeper.was_dropped.swap(false, Ordering::Relaxed));
            was_dropped();
            let before = world.clock.now();
            [&one, &two].into_iter().for_each(|lun| grants(lun).want(LAST));
            hold(&mut world, &two, LAST);
            let dropped = was_dropped();
            assert_eq!(
                dropped.iter().filter(|dropped| **dropped).count(),
                1 + usize::from(dropped[1]),
                "{seed} {round}"
            );
            let tenure = grants(&two).use_to_write(LAST).unwrap().tenure();
            assert_eq!(tenure == tenures[1], !dropped[1], "who was first keeps what it has read");
            hold(&mut world, &one, LAST);
            assert!(was_dropped()[1] && grants(&one).use_to_write(LAST).unwrap().tenure() > tenures[0]);
            assert!(world.clock.now().since(before) < Duration::from_secs(1), "nobody waited for a deadline");
        }
    }
}

/// What it has read is still what is there.
#[test]
fn the_whole_lun_that_is_held_to_read_is_claimed_back_after_a_start() {
    let mut world = World::new(36);
    let (device, one, two) = whole_hosts(&mut world);
    hold_to_read(&mut world, [&one, &two]);
    let uses = [&one, &two].map(|lun| grants(lun).begin_use(LAST, Right::Read).unwrap());
    grants(&one).want(LAST);
    world.pass(Duration::from_millis(100));
    start_again(&mut world, device);
    world.pass(Duration::from_secs(15));
    assert!(uses.iter().all(block::grants::Use::is_good), "they were held all the time");
    drop(uses);
    hold(&mut world, &two, LAST);
    assert!(grants(&one).begin_use(LAST, Right::Read).is_none());
}

/// Also for who knows of no locks; and no copies of what was read are called back.
#[test]
fn whatever_others_ask_of_the_lun_comes_behind_what_was_written_while_it_was_held() {
    let mut world = World::new(22);
    let (_, one, two) = whole_hosts(&mut world);
    let delaying = Delaying::at(LAST, &world, &one, Duration::from_millis(5), 0);
    read(&mut world, &two, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    let options = world.options();
    let stock = world.connect(options).unwrap();
    assert_eq!(read(&mut world, &stock, LAST.offset), 7);
    assert_eq!(two.status().sharing.unwrap().purges, 0);
}

#[test]
fn the_whole_lun_is_claimed_back_after_a_start_and_nothing_is_written_before() {
    let mut world = World::new(23);
    let (device, one, _) = whole_hosts(&mut world);
    let delaying = Delaying::at(LAST, &world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    let used = grants(&one).use_to_write(DIRTY).unwrap();
    start_again(&mut world, device.clone());
    // What was under way when the session was lost is not written again unasked.
    while world.run(one.write(2 * MIB, Buffer::copy_of(&[5; 512]), true)).is_err() {
        world.pass(Duration::from_millis(10));
    }
    assert!(used.is_good(), "it was held all the time");
    assert_eq!(one.status().sharing.unwrap().lives, 2);
    drop(used);
    let options = world.options();
    let stock = world.connect(options).unwrap();
    assert_eq!(read(&mut world, &stock, LAST.offset), 7);
}

/// Wherever it would be written: another host may have changed anything.
#[test]
fn nothing_is_written_where_the_whole_lun_cannot_be_claimed_back() {
    let mut world = World::new(24);
    let (device, one, _) = whole_hosts(&mut world);
    let delaying = Delaying::over(&world, &one, Duration::ZERO, 0);
    hold(&mut world, &one, DIRTY);
    delaying.write(7);
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_millis(100));
    let late = one.write(LAST.offset, Buffer::copy_of(&[7; 4096]), false);
    let saved = SavedSharing { boot_epoch: 1, reclaimable_from: 1, ..kept() }.next_start();
    serve(&mut world, device.clone(), SharingOptions { saved, ..SharingOptions::default() });
    world.run(late).unwrap_err();
    world.pass(Duration::from_secs(3));
    assert_eq!(one.status().state, State::Fenced);
    assert_eq!(world.run(device.read(LAST.offset, Buffer::zeroed(512))).unwrap()[0], 0);
}

/// What waits at that moment was to be written under the lock of before: a mount that brings what it has committed to
/// its place has nothing dirty, and would write old blocks over those of others. So it is until the last use has ended:
/// it does not know yet that the lock is lost.
#[test]
fn what_waits_while_the_whole_lun_cannot_be_claimed_back_is_not_written_and_the_host_goes_on() {
    let mut world = World::new(25);
    let (device, one, _) = whole_hosts(&mut world);
    hold(&mut world, &one, LAST);
    let used = grants(&one).use_to_write(LAST).unwrap();
    world.network.set_server(None);
    world.network.cut();
    world.pass(Duration::from_millis(100));
    let write = |byte| one.write(LAST.offset, Buffer::copy_of(&[byte; 4096]), false);
    let late = write(7);
    let saved = SavedSharing { boot_epoch: 1, reclaimable_from: 1, ..kept() }.next_start();
    serve(&mut world, device.clone(), SharingOptions { saved, ..SharingOptions::default() });
    assert_eq!(world.run(late).unwrap_err().kind(), ErrorKind::Gone);
    assert!(!used.is_good());
    assert_eq!(world.run(write(8)).unwrap_err().kind(), ErrorKind::Gone, "of the same request");
    assert_eq!(world.run(device.read(LAST.offset, Buffer::zeroed(512))).unwrap()[0], 0);
    drop(used);
    hold(&mut world, &one, LAST);
    world.run(write(9)).unwrap();
    assert_eq!(world.run(device.read(LAST.offset, Buffer::zeroed(512))).unwrap()[0], 9);
}
