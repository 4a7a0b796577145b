//! Hosts, links, a target and its disk, on one clock and from one seed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::executor::Executor;
use base::random::Random;
use block::Geometry;
use block::completion::Workers;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::delay::Latency;
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions, RemoteLun};
use iscsi::negotiation::Offer;
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use sim::link::{Breaker, Cut, CutKind, FaultyLinkModel, link};
use target::{Addresses, Target, TargetServer, TargetServerOptions};

use crate::client::{OWN, SHARED, Worker};
use crate::disk::Disk;
use crate::model::{Model, UNIT};

const IQN: &str = "iqn.2026-01.io.forebay:sim";

/// All parameters of a world that its seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: usize,
    /// Workers of each client.
    pub(crate) workers: u64,
    pub(crate) rounds: u32,
    pub(crate) connections: u16,
    pub(crate) is_split: bool,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) link: FaultyLinkModel,
    /// Count of links that are cut somewhere.
    pub(crate) cuts: u32,
    pub(crate) is_volatile: bool,
    /// Longest latency of the disk.
    pub(crate) latency_us_max: u64,
    /// Most bytes that the target takes in one command.
    pub(crate) transfer_bytes_max: u32,
}

impl Plan {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let (header_digest, data_digest) = (random.chance(0.3), random.chance(0.3));
        Self {
            clients: 1 + random.below(3) as usize,
            workers: 1 + random.below(6),
            rounds: 20 + random.below(60) as u32,
            connections: 1 + random.below(6) as u16,
            is_split: random.chance(0.4),
            header_digest,
            data_digest,
            link: FaultyLinkModel {
                delay: Duration::from_micros([5, 50, 300, 5000][random.below(4) as usize]),
                bytes_per_second: [10_000_000, 125_000_000, 1_250_000_000][random.below(3) as usize],
                loss: [0.0, 0.001, 0.02][random.below(3) as usize],
                stall: Duration::from_millis(1 + random.below(200)),
                header_digest,
                data_digest,
                cut: None,
            },
            cuts: random.below(16) as u32,
            is_volatile: random.chance(0.6),
            latency_us_max: 10 + random.below(8000),
            transfer_bytes_max: if random.chance(0.3) { 4096 } else { 16 << 20 },
        }
    }
}

/// Links to the present target.
struct Network {
    clock: Arc<dyn Clock>,
    workers: Workers,
    state: Mutex<NetworkState>,
}

struct NetworkState {
    server: Option<TargetServer>,
    links: Vec<Breaker>,
    random: Random,
    model: FaultyLinkModel,
    /// Count of links that will still be cut.
    cuts_left: u32,
    /// The one link that is cut, by its number, and where.
    chosen: Option<(usize, Cut)>,
    opened: usize,
}

impl Connector for Network {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let mut state = self.state.lock().unwrap();
        let round_trip = state.model.delay * 2;
        let Some(server) = state.server.clone() else {
            return Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) });
        };
        let (near, far) = link(&self.clock, state.next_model(), state.random.bits());
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

impl NetworkState {
    fn next_model(&mut self) -> FaultyLinkModel {
        let number = self.opened;
        self.opened += 1;
        let mut cut = self.chosen.filter(|(chosen, _)| *chosen == number).map(|(_, cut)| cut);
        if self.cuts_left > 0 && self.random.chance(0.7) {
            self.cuts_left -= 1;
            cut = Some(draw_cut(&mut self.random));
        }
        FaultyLinkModel { cut, ..self.model.clone() }
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

pub(crate) struct World {
    executor: Executor,
    clock: VirtualClock,
    workers: Workers,
    network: Arc<Network>,
    plan: Plan,
    seed: u64,
    pub(crate) model: Model,
    pub(crate) disk: Disk,
    /// Count of tasks of hosts that have not ended.
    busy: Rc<Cell<usize>>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Self {
        let mut executor = Executor::new(seed);
        let clock = executor.clock();
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let units = SHARED.end + plan.clients as u64 * OWN;
        let model = Model::new(units);
        let latency = Latency::Between(Duration::from_micros(10), Duration::from_micros(plan.latency_us_max));
        let geometry = Geometry {
            is_write_cache_volatile: plan.is_volatile,
            transfer_bytes_max: plan.transfer_bytes_max,
            ..Geometry::plain(units * UNIT)
        };
        let medium = CrashLayer::on(&Power::new(), units * UNIT, seed).with_geometry(geometry);
        let disk = Disk::new(medium, Arc::new(clock.clone()), &workers, latency, &model);
        let state = NetworkState {
            server: None,
            links: Vec::new(),
            random: Random::new(seed ^ 0x11e7),
            model: plan.link.clone(),
            cuts_left: plan.cuts,
            chosen: None,
            opened: 0,
        };
        let network = Network { clock: Arc::new(clock.clone()), workers: workers.clone(), state: Mutex::new(state) };
        let network = Arc::new(network);
        Self { executor, clock, workers, network, plan, seed, model, disk, busy: Rc::default() }
    }

    /// A target over the disk as it is now.
    pub(crate) fn serve(&mut self) {
        let unit = LogicalUnit::new(Arc::new(self.disk.for_target()), LogicalUnitOptions::default());
        self.workers.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let offer = Offer { max_connections: 16, ..Offer::target() };
        let options = TargetServerOptions { offer: Some(offer), ..TargetServerOptions::default() };
        let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], options, clock);
        self.network.state.lock().unwrap().server = Some(server);
    }

    /// The target's power fails; it comes back a little later, over the data that its disk kept.
    pub(crate) fn lose_power(&mut self, away: Duration, loss: Loss) {
        let links = {
            let mut state = self.network.state.lock().unwrap();
            state.server = None;
            std::mem::take(&mut state.links)
        };
        // PDUs that the target had sent may still arrive.
        links.iter().for_each(|link| link.cut(CutKind::Closed));
        self.disk.lose_power();
        self.pass(away);
        self.disk.regain_power(loss);
        self.serve();
    }

    /// Cuts one of all links so far, if it still exists.
    pub(crate) fn cut_one(&mut self, random: &mut Random) {
        let state = self.network.state.lock().unwrap();
        let kind = [CutKind::Reset, CutKind::Closed, CutKind::Silent][random.below(3) as usize];
        if !state.links.is_empty() {
            state.links[random.below(state.links.len() as u64) as usize].cut(kind);
        }
    }

    /// A host switches the write cache of the unit off or on, until the target begins anew; the
    /// answer is not awaited.
    pub(crate) fn switch_cache(&mut self, lun: &Arc<RemoteLun>, is_write_cache_enabled: bool) {
        let lun = Arc::clone(lun);
        self.disk.was_switched_on.fetch_or(is_write_cache_enabled, Ordering::Relaxed);
        self.executor.spawn(async move {
            // Either command may be lost with its session; and a unit without a cache refuses to
            // switch one on.
            let Ok(sensed) = lun.execute(&[0x1a, 0x08, 0x08, 0, 0xff, 0], &[], 0xff).await else { return };
            let mut list = sensed.data_in;
            let [mode_data_length, _, _, _, _, _, caching, ..] = &mut list[..] else { return };
            *mode_data_length = 0;
            *caching = if is_write_cache_enabled { *caching | 0x04 } else { *caching & !0x04 };
            drop(lun.execute(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0).await);
        });
    }

    /// Cuts one link, by its number in the order of opening, and no other.
    pub(crate) fn choose_cut(&mut self, number: usize, cut: Cut) {
        self.network.state.lock().unwrap().chosen = Some((number, cut));
    }

    /// PDUs that the ends of every link have sent, the near ends' first.
    pub(crate) fn pdus(&self) -> Vec<[u64; 2]> {
        self.network.state.lock().unwrap().links.iter().map(Breaker::pdus).collect()
    }

    pub(crate) fn attach(&mut self, client: usize) -> Arc<RemoteLun> {
        let portal = Portal { host: "10.0.0.1".to_owned(), port: 3260 };
        let options = InitiatorOptions {
            isid: Some(Isid::random_format(client as u32 + 1, 1)),
            initiator_name: format!("iqn.2026-01.io.forebay:host{client}"),
            clock: Arc::new(self.clock.clone()),
            replacement_timeout: Duration::from_secs(3600),
            retained_bytes_max: 64 << 10,
            connections: self.plan.connections,
            split: self.plan.is_split,
            header_digest: self.plan.header_digest,
            data_digest: self.plan.data_digest,
            ..InitiatorOptions::new(portal, IQN, 0)
        };
        for _ in 0..100 {
            let connector: Arc<dyn Connector> = Arc::clone(&self.network) as _;
            // The initiator never repeats a first connect: the caller has to.
            if let Ok((lun, driver)) = self.executor.block_on(initiator::connect(options.clone(), connector)) {
                self.executor.spawn(driver);
                return lun;
            }
            self.pass(Duration::from_secs(1));
        }
        panic!("no session in a hundred attempts");
    }

    /// Starts the tasks of a host.
    pub(crate) fn employ(&mut self, client: usize, lun: &Arc<RemoteLun>) {
        for number in 0..self.plan.workers {
            let worker = Worker {
                lun: Arc::clone(lun),
                clock: self.clock.clone(),
                model: self.model.clone(),
                disk: self.disk.clone(),
                client,
                random: Random::new(self.seed * 1000 + client as u64 * 100 + number),
            };
            let (busy, rounds) = (Rc::clone(&self.busy), self.plan.rounds);
            busy.set(busy.get() + 1);
            self.executor.spawn(async move {
                worker.run(rounds).await;
                busy.set(busy.get() - 1);
            });
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() > 0
    }

    pub(crate) fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        self.executor.block_on(future)
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        let clock = self.clock.clone();
        self.executor.block_on(async move { clock.sleep(duration).await });
    }
}
