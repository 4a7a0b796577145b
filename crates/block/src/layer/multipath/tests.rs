//! Paths that go away and come back in virtual time, with stale writes that land as late as
//! possible.

use super::*;
use crate::device::DeviceExt;
use crate::event::{Event, EventHub};
use crate::memory::MemoryDevice;
use crate::request::{Operation, Response};
use base::buffer::Buffer;
use base::clock::{Clock, VirtualClock};
use base::executor::Executor;
use base::random::Random;
use std::sync::Mutex;
use std::time::Duration;

mod handing_on;
mod one_client;

/// How long a request waits for paths that are away.
const PATIENCE: Duration = Duration::from_secs(30);

/// A unit at its target, shared by the paths.
fn unit(is_volatile: bool) -> Arc<MemoryDevice> {
    let identity = Identity { target: "iqn.a".into(), unit: "naa.1".into(), serial: "1".into() };
    let mut geometry = Geometry::plain(64 << 10);
    geometry.is_write_cache_volatile = is_volatile;
    Arc::new(MemoryDevice::with_geometry(geometry, identity))
}

/// A session of a path: requests wait while it is away and are issued again when it is back. A
/// request that had left before may land at any moment until then, and not later.
struct Session {
    unit: Arc<MemoryDevice>,
    clock: VirtualClock,
    hub: EventHub,
    state: Mutex<SessionState>,
    workers: Workers,
}

struct SessionState {
    random: Random,
    is_away: bool,
    /// How long requests wait for it to come back.
    patience: Duration,
    /// Its target port is in standby: commands that move data are refused.
    is_standby: bool,
    /// What its next flush ends with.
    flush_error: Option<ErrorKind>,
    /// Counts its losses, so that a stale write knows whether its session is still the same.
    generation: u64,
    fua_writes: usize,
    discards: usize,
}

impl Session {
    fn new(unit: &Arc<MemoryDevice>, clock: &VirtualClock, seed: u64, workers: &Workers) -> Arc<Self> {
        let state = SessionState {
            random: Random::new(seed),
            is_away: false,
            patience: Duration::from_secs(1000),
            is_standby: false,
            flush_error: None,
            generation: 0,
            fua_writes: 0,
            discards: 0,
        };
        Arc::new(Self {
            unit: Arc::clone(unit),
            clock: clock.clone(),
            hub: EventHub::new(),
            state: Mutex::new(state),
            workers: workers.clone(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SessionState> {
        self.state.lock().expect("no test panics with it")
    }

    fn leave(&self) {
        let mut state = self.lock();
        state.is_away = true;
        state.generation += 1;
        drop(state);
        self.hub.publish(&Event::Offline);
    }

    fn come_back(&self) {
        self.lock().is_away = false;
        self.hub.publish(&Event::Back);
    }

    fn draw(&self, below_us: u64) -> Duration {
        Duration::from_micros(self.lock().random.below(below_us))
    }

    /// Keeps a copy of a write that had left when its session was lost: the target may still carry
    /// it out, until the session is back.
    fn leave_behind(self: &Arc<Self>, offset: u64, bytes: Vec<u8>) {
        let session = Arc::clone(self);
        let lands_in = self.draw(200_000);
        let generation = self.lock().generation;
        self.workers.spawn(async move {
            session.clock.sleep(lands_in).await;
            let is_same_loss = {
                let state = session.lock();
                state.is_away && state.generation == generation
            };
            if is_same_loss {
                session.unit.write(offset, Buffer::copy_of(&bytes), false).await.expect("RAM does not fail");
            }
        });
    }

    async fn carry_out(self: Arc<Self>, mut request: Request) -> Response {
        let deadline = self.clock.now() + self.lock().patience;
        let mut has_left = false;
        loop {
            while self.lock().is_away {
                if self.clock.now() >= deadline {
                    let is_doubtful = has_left && request.is_mutation();
                    let kind = if is_doubtful { ErrorKind::OutcomeUnknown } else { ErrorKind::TimedOut };
                    return request.fail(kind);
                }
                self.clock.sleep(Duration::from_millis(1)).await;
            }
            let generation = self.lock().generation;
            self.clock.sleep(self.draw(3000)).await;
            if self.lock().is_standby {
                return request.fail(ErrorKind::NoAccess);
            }
            let is_flush = matches!(request.operation, Operation::Flush);
            if let Some(kind) = self.lock().flush_error.take_if(|_| is_flush) {
                return request.fail(kind);
            }
            if self.lock().generation == generation {
                return self.unit.submit(request).await;
            }
            has_left = true;
            if let Operation::Write { buffer, fua } = request.operation {
                self.leave_behind(request.offset, buffer.to_vec());
                request = Request::write(request.offset, buffer, fua);
            }
        }
    }
}

/// The device of a path over a session.
struct Reached(Arc<Session>);

impl Device for Reached {
    fn geometry(&self) -> Geometry {
        self.0.unit.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.unit.identity()
    }
    fn submit(&self, request: Request) -> Completion {
        {
            let mut state = self.0.lock();
            match request.operation {
                Operation::Write { fua: true, .. } | Operation::WriteZeroes { fua: true, .. } => state.fua_writes += 1,
                Operation::Discard { .. } => state.discards += 1,
                _ => {}
            }
        }
        Completion::task(&self.0.workers, Arc::clone(&self.0).carry_out(request))
    }
    fn subscribe(&self) -> EventReceiver {
        self.0.hub.subscribe()
    }
}

struct World {
    executor: Executor,
    clock: VirtualClock,
    unit: Arc<MemoryDevice>,
    sessions: Vec<Arc<Session>>,
    device: Arc<Multipath>,
}

fn world(seed: u64, policy: Policy, path_count: u64, is_volatile: bool) -> World {
    let mut executor = Executor::new(seed);
    let clock = executor.clock();
    let (unit, workers) = (unit(is_volatile), Workers::new());
    let sessions: Vec<_> =
        (0..path_count).map(|path| Session::new(&unit, &clock, seed * 10 + path, &workers)).collect();
    let paths = sessions.iter().map(|session| Arc::new(Reached(Arc::clone(session))) as SharedDevice).collect();
    let device =
        Arc::new(Multipath::new(paths, policy, PATIENCE, Arc::new(clock.clone())).expect("they lead to one unit"));
    executor.spawn(async move { workers.run().await });
    let running = Arc::clone(&device);
    executor.spawn(async move { running.run().await });
    World { executor, clock, unit, sessions, device }
}

fn request_counts(device: &Multipath) -> Vec<u64> {
    device.paths().iter().map(|path| path.request_count).collect()
}

#[test]
fn the_policy_chooses_among_the_best_paths() {
    let mut world = world(1, Policy::RoundRobin, 3, false);
    let read = |world: &mut World, count: usize| {
        for _ in 0..count {
            let device = Arc::clone(&world.device);
            world.executor.block_on(async move { device.read(0, Buffer::zeroed(512)).await }).expect("a path is there");
        }
        request_counts(&world.device)
    };
    assert_eq!(read(&mut world, 6), [2, 2, 2]);
    world.device.set_access(2, Access::NonOptimized);
    assert_eq!(read(&mut world, 4), [4, 4, 2]);
    world.sessions[0].leave();
    assert_eq!(read(&mut world, 2), [4, 6, 2]);
    world.sessions[1].leave();
    assert_eq!(read(&mut world, 1), [4, 6, 3], "a worse path is better than none");
    let mut world = self::world(1, Policy::Failover, 2, false);
    assert_eq!(read(&mut world, 3), [3, 0]);
    world.sessions[0].leave();
    assert_eq!(read(&mut world, 3), [3, 3]);
    world.sessions[0].come_back();
    assert_eq!(read(&mut world, 3), [6, 3]);
}

#[test]
fn what_was_not_done_goes_to_another_path() {
    let mut world = world(1, Policy::Failover, 2, false);
    let (device, first) = (Arc::clone(&world.device), Arc::clone(&world.sessions[0]));
    first.lock().patience = Duration::from_millis(5);
    let clock = world.clock.clone();
    world.executor.block_on(async move {
        // The request waits in a session that is lost without notice: nothing has left.
        first.lock().is_away = true;
        device.write(0, Buffer::copy_of(&[7; 512]), false).await.expect("the other path does it");
        assert!(clock.now().as_nanoseconds() >= 5_000_000);
        assert_eq!(device.read(0, Buffer::zeroed(512)).await.expect("as well")[..], [7; 512]);
    });
}

#[test]
fn what_a_standby_port_refuses_goes_to_another_path_and_comes_back_later() {
    let mut world = world(1, Policy::Failover, 2, false);
    let read = |world: &mut World| {
        let device = Arc::clone(&world.device);
        world.executor.block_on(async move { device.read(0, Buffer::zeroed(512)).await }).expect("a path is there");
        request_counts(&world.device)
    };
    assert_eq!(read(&mut world), [1, 0]);
    world.sessions[0].lock().is_standby = true;
    assert_eq!(read(&mut world), [2, 1], "refused, and done elsewhere");
    assert_eq!(world.device.paths()[0].access, Access::None);
    assert_eq!(read(&mut world), [2, 2], "it is not asked in vain again");
    world.sessions[0].lock().is_standby = false;
    world.device.set_access(0, Access::Optimized);
    assert_eq!(read(&mut world), [3, 2], "who asks the target groups finds out");
}

/// Between two states all ports may refuse commands for a moment, which is no error yet.
#[test]
fn a_change_of_states_is_waited_out_and_not_for_ever() {
    let mut world = world(1, Policy::RoundRobin, 2, false);
    let (device, sessions, clock) = (Arc::clone(&world.device), world.sessions.clone(), world.clock.clone());
    sessions.iter().for_each(|session| session.lock().is_standby = true);
    let (later, second) = (clock.clone(), Arc::clone(&sessions[1]));
    world.executor.spawn(async move {
        later.sleep(Duration::from_secs(7)).await;
        second.lock().is_standby = false;
    });
    world.executor.block_on(async move {
        device.write(0, Buffer::copy_of(&[7; 512]), false).await.expect("it is waited out");
        assert_eq!(clock.now().as_nanoseconds() / 1_000_000_000, 7);
        assert_eq!(device.read(0, Buffer::zeroed(512)).await.expect("it is open")[..], [7; 512]);
        sessions[1].lock().is_standby = true;
        let error = device.write(0, Buffer::zeroed(512), false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAccess);
        assert!(clock.now().as_nanoseconds() > 67_000_000_000);
    });
}

/// A write that may still land is not overtaken: its range is refused until its path is back.
#[test]
fn a_range_in_doubt_is_not_changed_until_its_path_is_back() {
    let mut world = world(3, Policy::Failover, 2, false);
    let (device, first, clock) = (Arc::clone(&world.device), Arc::clone(&world.sessions[0]), world.clock.clone());
    first.lock().patience = Duration::from_millis(50);
    world.executor.block_on(async move {
        let write = device.write(0, Buffer::copy_of(&[1; 512]), false);
        first.leave();
        assert_eq!(write.await.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(device.paths()[0].doubt_count, 1);
        let error = device.write(0, Buffer::copy_of(&[2; 1024]), false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("path 1"), "{error}");
        device.read(0, Buffer::zeroed(512)).await.expect("reads go on");
        device.write(512, Buffer::copy_of(&[2; 512]), false).await.expect("another range is free");
        first.come_back();
        device.write(0, Buffer::copy_of(&[3; 512]), false).await.expect("nothing can land any more");
        clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(device.read(0, Buffer::zeroed(512)).await.expect("it is there")[..], [3; 512]);
    });
}

#[test]
fn nothing_is_left_to_write_again_where_the_cache_is_volatile() {
    for (is_volatile, path_count, expected) in [(true, 2, (2, 0)), (true, 1, (0, 1)), (false, 2, (0, 1))] {
        let mut world = world(1, Policy::Failover, path_count, is_volatile);
        let device = Arc::clone(&world.device);
        world.executor.block_on(async move {
            device.write(0, Buffer::zeroed(512), false).await.expect("a path is there");
            device.discard(0, 4096).await.expect("a path is there");
        });
        let state = world.sessions[0].lock();
        assert_eq!((state.fua_writes, state.discards), expected);
    }
}

/// Flushes until one ends well. Returns how many failed before, and how.
fn flush_until_well(world: &mut World) -> Vec<ErrorKind> {
    let mut told = Vec::new();
    for _ in 0..4 {
        let device = Arc::clone(&world.device);
        match world.executor.block_on(async move { device.flush().await }) {
            Ok(()) => return told,
            Err(error) => told.push(error.kind()),
        }
    }
    panic!("no flush ends well: {told:?}");
}

#[test]
fn a_flush_goes_to_the_path_that_has_a_loss_to_tell() {
    for event in [Event::WritesLost, Event::Missed] {
        let mut world = world(1, Policy::Failover, 3, true);
        world.sessions[1].hub.publish(&event);
        assert_eq!(flush_until_well(&mut world), [], "the path has told of it, or had nothing to tell");
        assert_eq!(request_counts(&world.device), [0, 1, 0], "{event:?}");
        assert_eq!(flush_until_well(&mut world), []);
        assert_eq!(request_counts(&world.device), [1, 1, 0], "{event:?}");
    }
}

/// The path is away, or its port in standby, and a flush through another one ends well.
#[test]
fn what_a_path_cannot_tell_of_a_loss_the_next_flush_is_told_once() {
    for is_away in [true, false] {
        let mut world = world(1, Policy::Failover, 2, true);
        world.sessions[0].hub.publish(&Event::WritesLost);
        match is_away {
            true => world.sessions[0].leave(),
            false => world.sessions[0].lock().is_standby = true,
        }
        assert_eq!(flush_until_well(&mut world), [ErrorKind::OutcomeUnknown], "away: {is_away}");
    }
}

/// Its session tells the flush of it, which says nothing of the event.
#[test]
fn a_loss_that_a_path_has_told_is_not_told_by_another_one() {
    let mut world = world(1, Policy::Failover, 2, true);
    world.sessions[0].hub.publish(&Event::WritesLost);
    world.sessions[0].lock().flush_error = Some(ErrorKind::Media);
    let device = Arc::clone(&world.device);
    let error = world.executor.block_on(async move { device.flush().await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Media);
    world.sessions[0].leave();
    assert_eq!(flush_until_well(&mut world), []);
}

/// The answer may be that of a flush which was carried out before the loss.
#[test]
fn a_loss_that_a_path_reports_while_it_flushes_is_told_once() {
    let mut world = world(1, Policy::Failover, 2, true);
    let (device, first, clock) = (Arc::clone(&world.device), Arc::clone(&world.sessions[0]), world.clock.clone());
    let flushed = world.executor.block_on(async move {
        let reporting = async {
            clock.sleep(Duration::from_nanos(1)).await;
            first.hub.publish(&Event::WritesLost);
        };
        futures_util::future::join(device.flush(), reporting).await.0
    });
    world.sessions[0].leave();
    let later = flush_until_well(&mut world);
    assert_eq!(usize::from(flushed.is_err()) + later.len(), 1, "{flushed:?}, then {later:?}");
}

#[test]
fn two_units_are_no_paths() {
    let other = MemoryDevice::new(64 << 10, Identity { unit: "naa.2".into(), ..Identity::default() });
    let paths: Vec<SharedDevice> = vec![unit(false), Arc::new(other)];
    let error =
        Multipath::new(paths, Policy::Failover, PATIENCE, Arc::new(VirtualClock::new())).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn the_device_is_offline_when_no_path_is_left() {
    let mut world = world(1, Policy::Failover, 2, false);
    let receiver = world.device.subscribe();
    let mut after = |change: &dyn Fn(&[Arc<Session>])| {
        change(&world.sessions);
        world.executor.run_until_stalled();
        std::iter::from_fn(|| receiver.try_receive()).collect::<Vec<_>>()
    };
    after(&|_| {});
    assert_eq!(after(&|sessions| sessions[0].leave()), []);
    assert_eq!(after(&|sessions| sessions[1].leave()), [Event::Offline]);
    assert_eq!(after(&|sessions| sessions[0].come_back()), [Event::Back]);
    assert_eq!(after(&|sessions| sessions[0].hub.publish(&Event::IdentityChanged)), [Event::IdentityChanged]);
}

/// Writers on overlapping sectors while sessions come and go and leave stale writes behind: at the
/// end, and at every read in between, a sector holds the last acknowledged write.
fn nothing_is_overtaken(seed: u64, policy: Policy) {
    const SECTORS: u64 = 4;
    let mut world = world(seed, policy, 3, false);
    for (path, session) in world.sessions.iter().enumerate() {
        let (session, clock) = (Arc::clone(session), world.clock.clone());
        // Some sessions wait for their target for ever, others give up: then their writes are in
        // doubt, and are repeated by the writer.
        session.lock().patience = Duration::from_millis(if seed % 4 < 2 { 10 } else { 1_000_000 });
        let mut random = Random::new(seed * 100 + path as u64);
        world.executor.spawn(async move {
            for _ in 0..6 {
                clock.sleep(Duration::from_micros(random.below(40_000))).await;
                session.leave();
                clock.sleep(Duration::from_micros(random.below(120_000))).await;
                session.come_back();
            }
        });
    }
    let writers: Vec<_> = (0..SECTORS)
        .map(|sector| {
            let (device, done) = (Arc::clone(&world.device), Arc::new(Mutex::new(0u8)));
            let (result, again) = (Arc::clone(&done), world.clock.clone());
            world.executor.spawn(async move {
                for value in 1..=40u8 {
                    let offset = sector * 512;
                    while device.write(offset, Buffer::copy_of(&[value; 512]), false).await.is_err() {
                        again.sleep(Duration::from_millis(2)).await;
                    }
                    let read = loop {
                        match device.read(offset, Buffer::zeroed(512)).await {
                            Ok(read) => break read,
                            Err(_) => again.sleep(Duration::from_millis(2)).await,
                        }
                    };
                    assert_eq!(read[..], [value; 512], "seed {seed}, sector {sector}");
                    *result.lock().expect("no test panics with it") = value;
                }
            });
            done
        })
        .collect();
    world.executor.run();
    let unit = Arc::clone(&world.unit);
    for (sector, done) in writers.iter().enumerate() {
        assert_eq!(*done.lock().expect("no test panics with it"), 40, "seed {seed}: a writer is stuck");
        let read = base::executor::block_on(unit.read(sector as u64 * 512, Buffer::zeroed(512)));
        assert_eq!(read.expect("RAM does not fail")[..], [40; 512], "seed {seed}: a stale write landed");
    }
}

#[test]
fn a_stale_write_never_lands_over_a_newer_one() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 100, 1) {
        let _printed = test.on_panic(seed, None);
        nothing_is_overtaken(seed, if seed % 2 == 0 { Policy::RoundRobin } else { Policy::Failover });
    }
}
