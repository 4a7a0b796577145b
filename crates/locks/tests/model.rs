//! The lock table and the registrations against slow models, from seeds (`FOREBAY_SEED`,
//! `FOREBAY_SEEDS`).

mod common;

use std::collections::{BTreeMap, BTreeSet};

use base::random::Random;
use common::{TestServer, range};
use locks::identity::{CallbackNumber, ClientId, Generation, RequestId};
use locks::message::ToClient;
use locks::mode::Mode;
use locks::registrations::Registrations;
use locks::resource::Resource;

const CLIENTS: usize = 4;
const BLOCKS: u64 = 3;
const STEPS: u64 = 200;

/// Its number, its client, and the wanted locks.
type Request = (RequestId, ClientId, Vec<(u64, Mode)>);

/// Everything in lists, searched from the beginning each time.
#[derive(Default)]
struct Naive {
    held: Vec<(ClientId, u64, Mode)>,
    /// In order of arrival.
    waiting: Vec<Request>,
}

impl Naive {
    fn mode(&self, client: ClientId, block: u64) -> Option<Mode> {
        self.held.iter().find(|(of, at, _)| (*of, *at) == (client, block)).map(|(.., mode)| *mode)
    }

    fn set(&mut self, client: ClientId, block: u64, mode: Option<Mode>) {
        self.held.retain(|(of, at, _)| (*of, *at) != (client, block));
        self.held.extend(mode.map(|mode| (client, block, mode)));
    }

    /// Whether a request can have one of its blocks; `called` holds the holders that were called
    /// back for a block and have not answered.
    fn is_free(&self, index: usize, block: u64, mode: Mode, called: &BTreeSet<(ClientId, u64)>) -> bool {
        let client = self.waiting[index].1;
        if called.contains(&(client, block)) {
            return false;
        }
        let held = self.mode(client, block);
        if held.is_some_and(|held| held.covers(mode)) {
            return true;
        }
        let converts = |index: usize| {
            let (_, of, wanted) = &self.waiting[index];
            wanted.iter().any(|(at, mode)| {
                !called.contains(&(*of, *at)) && self.mode(*of, *at).is_some_and(|held| !held.covers(*mode))
            })
        };
        let excluded = self.held.iter().any(|(of, at, its)| *at == block && *of != client && its.conflicts(mode));
        let passed = self.waiting.iter().enumerate().any(|(other, (_, of, wanted))| {
            let is_first = (!converts(other), other) < (!converts(index), index);
            *of != client && is_first && wanted.iter().any(|(at, its)| *at == block && its.conflicts(mode))
        });
        !excluded && !passed
    }

    fn grant_all(&mut self, called: &BTreeSet<(ClientId, u64)>) -> BTreeSet<RequestId> {
        let mut granted = BTreeSet::new();
        let is_ready = |naive: &Self, index: usize| {
            naive.waiting[index].2.iter().all(|(block, mode)| naive.is_free(index, *block, *mode, called))
        };
        while let Some(index) = (0..self.waiting.len()).find(|index| is_ready(self, *index)) {
            let (request, client, wanted) = self.waiting.remove(index);
            for (block, mode) in wanted {
                let mode = self.mode(client, block).map_or(mode, |held| held.join(mode));
                self.set(client, block, Some(mode));
            }
            granted.insert(request);
        }
        granted
    }
}

struct Run {
    server: TestServer,
    naive: Naive,
    clients: Vec<ClientId>,
    called: BTreeMap<(ClientId, u64), (CallbackNumber, Option<Mode>)>,
    granted: BTreeSet<RequestId>,
}

impl Run {
    fn block(resource: Resource) -> u64 {
        let Resource::Metadata(block) = resource else { panic!("only blocks are asked for") };
        block
    }

    fn step(&mut self, random: &mut Random) {
        let client = self.clients[random.below(CLIENTS as u64) as usize];
        match random.below(3) {
            0 => self.ask(client, random),
            1 => self.unlock(client, random.below(BLOCKS)),
            _ => self.answer(random),
        }
        let called = self.called.keys().copied().collect();
        let mut granted = self.naive.grant_all(&called);
        self.take_mail();
        let told = std::mem::take(&mut self.granted);
        // A holder that this calls back is no longer ahead of others. Locks granted in this step
        // were called back after it.
        let fresh: BTreeSet<_> = self.naive.waiting.iter().filter(|(request, ..)| told.contains(request)).collect();
        let is_fresh = |at: &(ClientId, u64)| {
            fresh.iter().any(|(_, client, wanted)| *client == at.0 && wanted.iter().any(|(block, _)| *block == at.1))
        };
        let before = self.called.keys().copied().filter(|at| !is_fresh(at)).collect();
        granted.extend(self.naive.grant_all(&before));
        granted.extend(self.naive.grant_all(&self.called.keys().copied().collect()));
        assert_eq!(told, granted);
        self.compare();
    }

    fn ask(&mut self, client: ClientId, random: &mut Random) {
        let mut wanted = BTreeMap::new();
        for _ in 0..=random.below(2) {
            let mode = if random.chance(0.5) { Mode::M_S } else { Mode::M_X };
            wanted.insert(random.below(BLOCKS), mode);
        }
        let joined: Vec<_> = wanted
            .into_iter()
            .map(|(block, mode)| (block, self.naive.mode(client, block).map_or(mode, |held| held.join(mode))))
            .collect();
        let batch: Vec<_> = joined.iter().map(|(block, mode)| (Resource::Metadata(*block), *mode)).collect();
        let (request, answer) = self.server.ask(locks::identity::Owner::own(client), &batch);
        if matches!(answer.unwrap(), locks::message::Answer::Granted(_)) {
            self.granted.insert(request);
        }
        self.naive.waiting.push((request, client, joined));
    }

    fn unlock(&mut self, client: ClientId, block: u64) {
        if self.naive.mode(client, block).is_some() {
            self.server.unlock(client, Resource::Metadata(block), None).unwrap();
            self.naive.set(client, block, None);
            self.called.remove(&(client, block));
        }
    }

    fn answer(&mut self, random: &mut Random) {
        let count = self.called.len() as u64;
        let Some(nth) = (count > 0).then(|| random.below(count) as usize) else { return };
        let (&(client, block), &(number, to)) = self.called.iter().nth(nth).unwrap();
        self.server.done(client, number).unwrap();
        self.called.remove(&(client, block));
        self.naive.set(client, block, to);
    }

    fn take_mail(&mut self) {
        for client in self.clients.clone() {
            for message in self.server.mail(client) {
                match message {
                    ToClient::Granted { request, .. } => drop(self.granted.insert(request)),
                    ToClient::Callback { number, resource, to, .. } => {
                        let is_new = self.called.insert((client, Self::block(resource)), (number, to)).is_none();
                        assert!(is_new, "one callback of a lock at a time");
                    }
                    other => panic!("nobody defers, so nothing is refused: {other:?}"),
                }
            }
        }
    }

    fn compare(&self) {
        let held: BTreeSet<_> = self
            .server
            .manager
            .table()
            .all_grants()
            .map(|(owner, resource, grant)| (owner.client, Self::block(resource), grant.mode))
            .collect();
        assert_eq!(held, self.naive.held.iter().copied().collect());
        for (a, block, mode) in &held {
            let conflict = held.iter().find(|(b, at, its)| a != b && at == block && its.conflicts(*mode));
            assert_eq!(conflict, None);
        }
        let waits = |request: &RequestId| self.naive.waiting.iter().any(|(of, ..)| of == request);
        assert!(self.server.manager.table().tickets().all(|(_, ticket)| waits(&ticket.request)));
        assert_eq!(self.server.manager.table().tickets().count(), self.naive.waiting.len());
        // Every waiting request waits for a holder that was called back.
        assert!(self.naive.waiting.is_empty() || !self.called.is_empty(), "all wait, and nobody was called back");
    }
}

#[test]
fn grants_come_to_whom_a_slow_table_gives_them() {
    let test = block::crash_test!();
    for seed in test.seeds(1, 100, 1) {
        let _printed = test.on_panic(seed, None);
        let mut random = Random::new(seed);
        let mut server = TestServer::new();
        let clients = (0..CLIENTS).map(|_| server.client()).collect();
        let mut run =
            Run { server, naive: Naive::default(), clients, called: BTreeMap::new(), granted: BTreeSet::new() };
        (0..STEPS).for_each(|_| run.step(&mut random));
    }
}

#[test]
fn registrations_are_those_of_a_set_of_blocks() {
    let test = block::crash_test!();
    for seed in test.seeds(1, 100, 1) {
        let _printed = test.on_panic(seed, None);
        let mut random = Random::new(seed);
        let clients: Vec<_> = (1..4).map(ClientId::from_bits).collect();
        let mut registrations = Registrations::default();
        // The purge by which each registered block is leaving.
        let mut naive = BTreeMap::<(ClientId, u64), Option<Generation>>::new();
        let mut purges = Vec::new();
        for step in 0..STEPS {
            let client = clients[random.below(3) as usize];
            let blocks = range(random.below(30), 1 + random.below(8));
            let inside: Vec<u64> = (blocks.first()..blocks.end()).collect();
            match random.below(3) {
                0 => {
                    let leaves = |block: &u64| naive.get(&(client, *block)).is_some_and(Option::is_some);
                    let is_leaving = inside.iter().any(leaves);
                    assert_eq!(registrations.insert(client, blocks, usize::MAX), !is_leaving);
                    if !is_leaving {
                        naive.extend(inside.iter().map(|block| ((client, *block), None)));
                    }
                }
                1 if !purges.is_empty() => {
                    let (client, blocks, purge) = purges.swap_remove(random.below(purges.len() as u64) as usize);
                    registrations.remove(client, blocks, purge);
                    naive.retain(|(of, _), leaving| *of != client || *leaving != Some(purge));
                }
                _ => {
                    let purge = Generation(step);
                    let asked = registrations.begin_leaving(client, blocks, purge, usize::MAX);
                    let stays = |((of, block), leaving): &(&(ClientId, u64), &mut Option<Generation>)| {
                        *of == client && inside.contains(block) && leaving.is_none()
                    };
                    let staying = naive.iter_mut().filter(stays).map(|(_, leaving)| *leaving = Some(purge)).count();
                    assert_eq!(asked, (staying > 0).then_some(blocks));
                    purges.extend(asked.map(|asked| (client, asked, purge)));
                }
            }
            let all: Vec<_> = registrations.all().collect();
            assert_eq!(all.len(), registrations.count());
            let blocks: Vec<_> =
                all.iter().flat_map(|(of, blocks)| (blocks.first()..blocks.end()).map(|block| (*of, block))).collect();
            assert_eq!(blocks, naive.keys().copied().collect::<Vec<_>>());
            let oldest_is_there = naive.values().any(Option::is_none);
            assert_eq!(registrations.oldest().is_some(), oldest_is_there);
        }
    }
}
