//! Our initiator and our target over links that delay, lose, stall and break, with a disk below whose cache is lost now and then. A model knows
//! what every block may hold: no effect of a write is lost, comes twice where that can be seen, or comes after one that was acknowledged later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::executor::Executor;
use base::random::Random;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{Buffer, Completion, Device, EventReceiver, Geometry, Identity, Operation, Request};
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions, RemoteLun};
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use sim::link::{Breaker, Cut, CutKind, LinkModel, link};
use target::{Addresses, Target, TargetServer, TargetServerOptions};

const IQN: &str = "iqn.2026-01.io.forebay:sim";
const BLOCK: u64 = 4096;
const SIZE_BYTES: u64 = 4 << 20;
const WRITERS: u64 = 6;
/// Blocks of one writer.
const REGION: u64 = 16;
const ROUNDS: u64 = 40;

/// What a block may hold.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    submitted: u64,
}

type Model = Arc<Mutex<Vec<Known>>>;

fn stamp(block: u64, version: u64) -> Vec<u8> {
    [block, version].map(u64::to_le_bytes).concat().into_iter().cycle().take(BLOCK as usize).collect()
}

/// Version of a block's content, which must be whole.
fn version(block: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let expected = if version == 0 { vec![0; bytes.len()] } else { stamp(block, version) };
    assert!(bytes == &expected[..], "block {block} is torn or another's");
    version
}

/// The disk's own view: every write that takes effect is looked at. Below everything that could reorder.
struct Witness {
    disk: CrashLayer,
    model: Model,
}

impl Device for Witness {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if let (Operation::Write { buffer, .. }, false) = (&request.operation, self.disk.power().is_lost()) {
            let first = request.offset / BLOCK;
            for (block, bytes) in (first..).zip(buffer.chunks(BLOCK as usize)) {
                let version = version(block, bytes);
                let known = self.model.lock().unwrap()[block as usize];
                assert!(
                    version >= known.acknowledged,
                    "block {block}: {version} takes effect after {}",
                    known.acknowledged
                );
                assert!(version <= known.submitted, "block {block}: nobody wrote {version}");
            }
        }
        self.disk.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.disk.subscribe()
    }
}

/// Links to whichever target is there.
struct Network {
    clock: Arc<dyn Clock>,
    workers: Workers,
    state: Mutex<NetworkState>,
}

struct NetworkState {
    server: Option<TargetServer>,
    links: Vec<Breaker>,
    random: Random,
    model: LinkModel,
    /// Links that will be cut.
    cuts_left: u32,
}

impl Connector for Network {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let mut state = self.state.lock().unwrap();
        let round_trip = state.model.delay * 2;
        let Some(server) = state.server.clone() else {
            return Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) });
        };
        let cut = (state.cuts_left > 0).then(|| draw_cut(&mut state.random));
        state.cuts_left = state.cuts_left.saturating_sub(1);
        let model = LinkModel { cut, ..state.model.clone() };
        let (near, far) = link(&self.clock, model, state.random.bits());
        state.links.push(near.breaker());
        let addresses = Addresses { local: "10.0.0.1:3260".to_owned(), peer: "10.0.0.2:1000".to_owned() };
        self.workers.spawn(async move {
            server.serve_connection(far, addresses).await;
        });
        let opened = self.clock.sleep(round_trip);
        Box::pin(async move {
            opened.await;
            Ok(Box::new(near) as BoxedStream)
        })
    }
}

/// Mostly at the border of a PDU, sometimes within one; in a login, or later.
fn draw_cut(random: &mut Random) -> Cut {
    let kind = [CutKind::Reset, CutKind::Reset, CutKind::Closed, CutKind::Closed, CutKind::Silent];
    let longest = if random.chance(0.2) { 8 } else { 150 };
    Cut {
        by_far_end: random.chance(0.5),
        pdus: random.below(longest),
        bytes: if random.chance(0.7) { 0 } else { 1 + random.below(100) },
        kind: kind[random.below(5) as usize],
    }
}

fn draw_model(random: &mut Random) -> LinkModel {
    LinkModel {
        delay: Duration::from_micros([5, 50, 300, 5000][random.below(4) as usize]),
        bytes_per_second: [10_000_000, 125_000_000, 1_250_000_000][random.below(3) as usize],
        loss: [0.0, 0.001, 0.02][random.below(3) as usize],
        stall: Duration::from_millis(1 + random.below(200)),
        cut: None,
    }
}

struct World {
    executor: Executor,
    clock: VirtualClock,
    workers: Workers,
    network: Arc<Network>,
    model: Model,
    disk: CrashLayer,
    latency: Latency,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut executor = Executor::new(seed);
        let clock = executor.clock();
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let mut random = Random::new(seed);
        let model = draw_model(&mut random);
        let latency = Latency::Between(Duration::from_micros(10), Duration::from_micros(10 + random.below(8000)));
        let disk = CrashLayer::on(&Power::new(), SIZE_BYTES, seed);
        let disk = if random.chance(0.4) { disk.write_through() } else { disk };
        let state = NetworkState { server: None, links: Vec::new(), cuts_left: random.below(12) as u32, model, random };
        let network = Network { clock: Arc::new(clock.clone()), workers: workers.clone(), state: Mutex::new(state) };
        let model = Arc::new(Mutex::new(vec![Known::default(); (WRITERS * REGION) as usize]));
        Self { executor, clock, workers, network: Arc::new(network), model, disk, latency }
    }

    /// A target over the disk as it is now.
    fn serve(&mut self) {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let witness = Arc::new(Witness { disk: self.disk.clone(), model: Arc::clone(&self.model) });
        let delays = Delays::all(self.latency);
        let device = DelayLayer::new(witness, Arc::clone(&clock), &self.workers, delays, 1);
        let unit = LogicalUnit::new(Arc::new(device), LogicalUnitOptions::default());
        self.workers.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
        self.network.state.lock().unwrap().server = Some(server);
    }

    /// The target's power fails; it comes back a little later, over what its disk kept.
    fn lose_power(&mut self, away: Duration, loss: Loss) {
        let links = {
            let mut state = self.network.state.lock().unwrap();
            state.server = None;
            std::mem::take(&mut state.links)
        };
        // What the target had sent may still arrive.
        links.iter().for_each(|link| link.cut(CutKind::Closed));
        self.disk.power().clone().lose();
        self.pass(away);
        self.disk = self.disk.after_power_loss_as(loss, &Power::new());
        self.serve();
    }

    fn connect(&mut self) -> Arc<RemoteLun> {
        let portal = Portal { host: "10.0.0.1".to_owned(), port: 3260 };
        let options = InitiatorOptions {
            isid: Some(Isid::random_format(1, 1)),
            initiator_name: "iqn.2026-01.io.forebay:initiator".to_owned(),
            clock: Arc::new(self.clock.clone()),
            replacement_timeout: Duration::from_secs(3600),
            retained_bytes_max: 256 << 10,
            ..InitiatorOptions::new(portal, IQN, 0)
        };
        for _ in 0..100 {
            let connector: Arc<dyn Connector> = Arc::clone(&self.network) as _;
            // A first connect is never tried twice: that is for us to do.
            if let Ok((lun, driver)) = self.executor.block_on(initiator::connect(options.clone(), connector)) {
                self.executor.spawn(driver);
                return lun;
            }
            self.pass(Duration::from_secs(1));
        }
        panic!("no session in a hundred attempts");
    }

    fn pass(&mut self, duration: Duration) {
        let clock = self.clock.clone();
        self.executor.block_on(async move { clock.sleep(duration).await });
    }
}

/// Writes, reads and flushes its own region. Nothing may fail: everything that breaks is mended in time.
async fn writer(lun: Arc<RemoteLun>, clock: VirtualClock, model: Model, seed: u64, number: u64) {
    let mut random = Random::new(seed * 31 + number);
    for round in 1..=ROUNDS {
        let first = number * REGION + random.below(REGION);
        let count = 1 + random.below(number * REGION + REGION - first);
        let blocks = first..first + count;
        if random.chance(0.6) {
            blocks.clone().for_each(|block| model.lock().unwrap()[block as usize].submitted = round);
            let bytes: Vec<u8> = blocks.clone().flat_map(|block| stamp(block, round)).collect();
            lun.write(first * BLOCK, Buffer::copy_of(&bytes), random.chance(0.2)).await.expect("a write");
            blocks.for_each(|block| model.lock().unwrap()[block as usize].acknowledged = round);
        } else if random.chance(0.6) {
            let bytes = lun.read(first * BLOCK, Buffer::zeroed((count * BLOCK) as usize)).await.expect("a read");
            for (block, bytes) in blocks.zip(bytes.chunks(BLOCK as usize)) {
                let expected = model.lock().unwrap()[block as usize].acknowledged;
                assert_eq!(version(block, bytes), expected, "block {block}: what is read is the last acknowledged");
            }
        } else {
            lun.flush().await.expect("a flush");
        }
        clock.sleep(Duration::from_micros(random.below(3000))).await;
    }
}

/// One history; what it ends with tells it from others.
fn run(seed: u64) -> (u64, u64, u64, u64) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    world.serve();
    let lun = world.connect();
    for number in 0..WRITERS {
        world.executor.spawn(writer(lun.clone(), world.clock.clone(), world.model.clone(), seed, number));
    }
    let mut random = Random::new(seed ^ 0x5eed);
    for _ in 0..random.below(4) {
        world.pass(Duration::from_micros(random.below(200_000)));
        let loss = if random.chance(0.5) { Loss::All } else { Loss::Seeded(random.bits()) };
        world.lose_power(Duration::from_micros(random.below(500_000)), loss);
    }
    // Every cut costs at most a keepalive, its answer and a back-off; every slow write its time.
    world.pass(Duration::from_secs(3600));
    let closing = {
        let lun = lun.clone();
        async move { lun.flush().await }
    };
    world.executor.block_on(closing).expect("everything is mended");
    let known = world.model.lock().unwrap().clone();
    for (block, known) in (0..).zip(known) {
        assert_eq!(known.acknowledged, known.submitted, "block {block}: somebody waits for ever");
        let bytes = world.disk.durable_bytes(block * BLOCK, BLOCK as usize);
        assert_eq!(version(block, &bytes), known.acknowledged, "block {block} is flushed");
    }
    let status = lun.status();
    (status.session_count, status.commands_sent, status.commands_retried, status.writes_replayed)
}

#[test]
fn no_effect_is_lost_or_comes_too_late() {
    let (mut sessions, mut retried, mut replayed) = (0, 0, 0);
    let seeds = sim::seeds(100);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let (session_count, _, commands_retried, writes_replayed) = run(seed);
        sessions += session_count;
        retried += commands_retried;
        replayed += writes_replayed;
    }
    println!("{count} seeds: {sessions} sessions, {retried} commands issued again, {replayed} writes again");
    assert!(count < 20 || (sessions > 2 * count && retried > count && replayed > count), "too little has broken");
}

#[test]
fn one_seed_is_one_history() {
    assert_eq!(run(3), run(3));
}
