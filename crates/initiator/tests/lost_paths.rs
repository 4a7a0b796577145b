//! Several paths of one client that are lost and come back, and requests that wait meanwhile: as long as any path lives
//! or may still come back, no read fails, and no write but one that may have been carried out.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock as _;
use base::random::Random;
use block::device::DeviceExt;
use block::layer::multipath::{Multipath, Policy};
use block::memory::MemoryDevice;
use block::{Buffer, ErrorKind, SharedDevice};
use initiator::{InitiatorOptions, RemoteLun, State};
use iscsi::pdu::Isid;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use support::load::{BLOCK, stamp, version};
use support::{IQN, World, identity};
use target::{Target, TargetServer, TargetServerOptions};

const MOMENT: Duration = Duration::from_millis(10);
/// How long requests wait for a path.
const TIME: Duration = Duration::from_secs(30);

/// A target whose LUN may be shared, in the place of the one before.
fn serve(world: &mut World, device: &SharedDevice, sharing: SharingOptions) {
    let clock = Arc::new(world.clock.clone());
    let options =
        LogicalUnitOptions { sharing: Some(sharing), clock: Some(clock.clone()), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(Arc::clone(device), options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(1 << 20, identity("shared")))
}

/// One path more of the client of `first`; its link is the next one.
fn path(world: &mut World, number: u32, first: Option<&Arc<RemoteLun>>) -> Arc<RemoteLun> {
    let options = InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        is_shared: true,
        has_other_paths: true,
        joins: first.and_then(|first| first.sharing_client()),
        replacement_timeout: TIME,
        ..world.options()
    };
    let path = world.connect(options).unwrap();
    let joining = Arc::clone(&path);
    world.run(async move { joining.joined().await }).unwrap();
    path
}

/// So many paths of one client.
fn paths(world: &mut World, count: u32) -> Vec<Arc<RemoteLun>> {
    let mut all: Vec<Arc<RemoteLun>> = Vec::new();
    for number in 0..count {
        let path = path(world, 1 + number, all.first());
        all.push(path);
    }
    all
}

/// The paths as one device.
fn over(world: &mut World, paths: &[Arc<RemoteLun>], policy: Policy) -> Arc<Multipath> {
    let paths = paths.iter().map(|path| Arc::clone(path) as SharedDevice).collect();
    let device = Arc::new(Multipath::new(paths, policy, TIME, Arc::new(world.clock.clone())).unwrap());
    let running = Arc::clone(&device);
    world.executor.spawn(async move { running.run().await });
    device
}

const POLICIES: [Policy; 2] = [Policy::Failover, Policy::RoundRobin];

/// Path 1 is lost with a read under way, which path 2 takes; that one is lost as well, after path 1 has come back.
#[test]
fn a_read_that_two_paths_lose_one_after_the_other_goes_by_the_one_that_is_back() {
    for policy in POLICIES {
        let mut world = World::new(1);
        serve(&mut world, &memory(), SharingOptions::default());
        let luns = paths(&mut world, 2);
        let device = over(&mut world, &luns, policy);
        world.network.freeze_one(0);
        world.network.freeze_one(1);
        let reading = device.read(0, Buffer::zeroed(512));
        world.pass(MOMENT);
        world.network.cut_one(0);
        world.pass(Duration::from_secs(1));
        assert_eq!((luns[0].status().state, luns[0].status().session_count), (State::Online, 2), "path 1 is back");
        world.network.cut_one(1);
        let read = world.run(reading);
        assert!(read.is_ok(), "{policy:?}: {:?}", read.map(drop));
        assert_eq!(luns[0].status().last_error.filter(|words| words.contains("goes on")), None, "nothing failed");
    }
}

/// Path 1 has been away for nearly as long as requests wait when path 2 is lost: they wait for path 2 then.
#[test]
fn a_request_waits_for_the_path_that_may_still_come_back() {
    for policy in POLICIES {
        let mut world = World::new(2);
        let disk = memory();
        serve(&mut world, &disk, SharingOptions::default());
        let luns = paths(&mut world, 2);
        let device = over(&mut world, &luns, policy);
        world.network.set_server(None);
        world.network.cut_one(0);
        world.pass(TIME - Duration::from_secs(1));
        world.network.cut_one(1);
        world.pass(MOMENT);
        let early = device.read(0, Buffer::zeroed(512));
        world.pass(TIME / 2);
        assert_eq!(luns[0].status().state, State::Failing);
        let late = device.read(0, Buffer::zeroed(512));
        world.pass(MOMENT);
        let first = SharingOptions::default();
        serve(&mut world, &disk, SharingOptions { saved: first.saved.next_start(), ..first });
        for read in [early, late] {
            let read = world.run(read);
            assert!(read.is_ok(), "{policy:?}: {:?}", read.map(drop));
        }
        world.network.set_server(None);
        world.network.cut();
        let waiting = device.read(0, Buffer::zeroed(512));
        let began = world.clock.now();
        let kind = world.run(waiting).unwrap_err().kind();
        let took = world.clock.now().since(began);
        assert!(kind.was_not_done() && (TIME..TIME + MOMENT).contains(&took), "{policy:?}: {kind:?} after {took:?}");
    }
}

/// What an application does to a block of its own: writes, which it makes again when nobody knows whether they were
/// carried out, and reads between.
struct Application {
    device: Arc<Multipath>,
    block: u64,
    /// How many writes ended so that nobody knows.
    unknown: Rc<Cell<usize>>,
}

impl Application {
    async fn write(&self, round: u64) {
        loop {
            let bytes = Buffer::copy_of(&stamp(self.block, round));
            match self.device.write(self.block * BLOCK as u64, bytes, false).await {
                Ok(_) => return,
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    self.unknown.set(self.unknown.get() + 1);
                    let seen = self.read().await;
                    assert!([round - 1, round].contains(&seen), "block {}: {seen} in {round}", self.block);
                }
                Err(error) => panic!("block {}, write {round}: {error:?}", self.block),
            }
        }
    }

    async fn read(&self) -> u64 {
        let reading = self.device.read(self.block * BLOCK as u64, Buffer::zeroed(BLOCK));
        let bytes = reading.await.unwrap_or_else(|error| panic!("block {}: {error:?}", self.block));
        version(self.block, &bytes)
    }
}

/// A target is killed and started again under two paths, which are cut now and then besides.
fn outlive_restarts(seed: u64, policy: Policy) -> usize {
    const BLOCKS: u64 = 8;
    const ROUNDS: u64 = 150;
    let (mut world, mut random) = (World::new(seed), Random::new(seed));
    let (disk, mut sharing) = (memory(), SharingOptions::default());
    serve(&mut world, &disk, sharing.clone());
    let luns = paths(&mut world, 2);
    let device = over(&mut world, &luns, policy);
    let (unknown, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for block in 0..BLOCKS {
        let application = Application { device: Arc::clone(&device), block, unknown: Rc::clone(&unknown) };
        let (done, clock, mut random) = (Rc::clone(&done), world.clock.clone(), Random::new(seed ^ block << 32));
        world.executor.spawn(async move {
            for round in 1..=ROUNDS {
                application.write(round).await;
                assert_eq!(application.read().await, round, "block {block}");
                clock.sleep(Duration::from_millis(random.below(50))).await;
            }
            done.set(done.get() + 1);
        });
    }
    for _ in 0..4 {
        world.pass(Duration::from_millis(500 + random.below(1000)));
        world.network.set_server(None);
        world.network.cut();
        world.pass(Duration::from_millis(random.below(2000)));
        sharing = SharingOptions { saved: sharing.saved.next_start(), ..sharing };
        serve(&mut world, &disk, sharing.clone());
        for _ in 0..random.below(6) {
            world.pass(Duration::from_millis(random.below(400)));
            let links = world.network.traffic().len() as u64;
            if links > 0 {
                world.network.cut_one(random.below(links) as usize);
            }
        }
    }
    world.pass(Duration::from_secs(300));
    assert_eq!(done.get(), BLOCKS, "seed {seed}, {policy:?}: requests are left over");
    unknown.get()
}

#[test]
fn no_read_fails_where_a_target_starts_again_under_two_paths() {
    let mut unknown = 0;
    for seed in 0..10 {
        for policy in POLICIES {
            unknown += outlive_restarts(seed, policy);
        }
    }
    assert!(unknown > 0, "no write was under way when a path was lost");
}

/// Path 3 is cut. Path 1 is to take it from the client, which its slow link brings to the target after path 2 has done
/// it: that takes path 2 as well, whose reads are refused until it has joined again.
#[test]
fn what_a_path_that_was_taken_from_its_client_is_refused_waits_until_it_has_joined_again() {
    const LATE: Duration = Duration::from_millis(1500);
    let mut world = World::new(3);
    serve(&mut world, &memory(), SharingOptions::default());
    let clock = world.clock.clone();
    world.network.set_delay(Some((clock, LATE)));
    let mut luns = paths(&mut world, 1);
    world.network.set_delay(None);
    for number in 2..4 {
        let path = path(&mut world, number, luns.first());
        luns.push(path);
    }
    world.network.cut_one(2);
    let mut is_refused = false;
    for round in 0..800 {
        let retried = luns[1].status().commands_retried;
        let reads = (0..16).map(|block| luns[1].read(block * 512, Buffer::zeroed(512))).collect::<Vec<_>>();
        for read in reads {
            let read = world.run(read);
            assert!(read.is_ok(), "round {round}: {:?}", read.map(drop));
        }
        let again = luns[1].status().commands_retried - retried;
        is_refused |= again > 0;
        assert!(again <= 16, "round {round}: each is asked once more, not at once: {again}");
        world.pass(MOMENT);
    }
    assert!(is_refused, "the path was not taken from its client");
}
