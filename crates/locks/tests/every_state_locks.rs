//! Every state that a few clients and the lock manager can reach over a network that loses and
//! reorders, where any client can freeze, for ever or until its lease is over: no two clients ever
//! believe that they hold conflicting locks, no write lands after its lock has passed on, and from
//! every state every client gets an answer.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use base::clock::Instant;
use common::{BLOCK, FILE, manager_of_few_moments, registered};
use locks::error::LockError;
use locks::holder::{Holder, HolderOutput};
use locks::identity::{ClientId, Owner, TransactionId};
use locks::manager::{LockManager, Output};
use locks::message::{FromClient, Reply, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::Resource;
use stateright::{Checker, Model, Property};

/// The requests of each client, one after the other.
type Script = &'static [&'static [Wanted]];

#[derive(Clone)]
struct Cluster {
    scripts: Vec<Script>,
    losses: u8,
    freezes: u8,
    ticks: u8,
    /// How often a request may be sent again.
    repeats: u8,
    /// Whether any client may freeze, or only the first.
    any_freezes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Packet {
    ToTarget(usize, Instant, FromClient),
    Reply(usize, Instant, FromClient, Result<Reply, LockError>),
    Mail(usize, ClientId, ToClient),
    /// A command that changes a block under a lock.
    Write(usize, ClientId),
    /// Its answer.
    Written(usize),
}

impl Packet {
    fn client(&self) -> usize {
        match self {
            Self::ToTarget(client, ..)
            | Self::Reply(client, ..)
            | Self::Mail(client, ..)
            | Self::Write(client, _)
            | Self::Written(client) => *client,
        }
    }

    fn is_from_client(&self) -> bool {
        matches!(self, Self::ToTarget(..) | Self::Write(..))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    id: ClientId,
    holder: Holder,
    asked: usize,
    is_frozen: bool,
    /// Whether it has the lock to write, and has not written.
    may_write: bool,
    is_writing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: Instant,
    manager: LockManager,
    hosts: Vec<Host>,
    network: BTreeMap<Packet, u8>,
    /// Writes that the target has taken and that have not landed.
    under_way: BTreeSet<usize>,
    fencing: BTreeSet<ClientId>,
    requests_sent: u8,
    losses: u8,
    freezes: u8,
    ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Ask(usize),
    Deliver(Packet),
    Lose(Packet),
    Freeze(usize),
    Thaw(usize),
    Write(usize),
    /// Sends unanswered requests again.
    Repeat(usize),
    Land(usize),
    Fenced(ClientId),
    Tick,
}

impl State {
    fn put(&mut self, packet: Packet) {
        *self.network.entry(packet).or_insert(0) += 1;
    }

    fn take(&mut self, packet: &Packet) {
        if let Some(count) = self.network.get_mut(packet) {
            *count -= 1;
        }
        self.network.retain(|_, count| *count > 0);
    }

    /// Lets both ends do all that is due.
    fn drain(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            if let Output::Fence(client, _) = output {
                self.fencing.insert(client);
            }
        }
        for at in 0..self.hosts.len() {
            let id = self.hosts[at].id;
            while let Some(message) = self.manager.poll_message(id) {
                self.put(Packet::Mail(at, id, message));
            }
            while let Some(output) = self.hosts[at].holder.poll_output() {
                if matches!(output, HolderOutput::Send(FromClient::Lock { .. })) {
                    self.requests_sent += 1;
                }
                match output {
                    HolderOutput::Send(message) => self.put(Packet::ToTarget(at, self.now, message)),
                    HolderOutput::Granted(_, locks) => {
                        let may_write = locks.iter().any(|lock| lock.resource == BLOCK && lock.mode == Mode::M_X);
                        self.hosts[at].may_write |= may_write;
                    }
                    HolderOutput::GiveUp(BLOCK, _) | HolderOutput::Over(_) => self.hosts[at].may_write = false,
                    _ => {}
                }
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        self.take(&packet);
        let now = self.now;
        match packet {
            Packet::ToTarget(at, sent, message) => {
                let reply = self.manager.handle_message(now, message.clone());
                // A reply without news need not be sent.
                if !matches!(reply, Ok(Reply::Done | Reply::Queued) | Err(LockError::NotHeld(_))) {
                    self.put(Packet::Reply(at, sent, message, reply));
                }
            }
            Packet::Reply(at, sent, message, reply) => self.hosts[at].holder.handle_reply(now, &message, sent, reply),
            Packet::Mail(at, id, message) => self.hosts[at].holder.handle_message(id, message),
            Packet::Write(at, id) => {
                if self.manager.check_life(now, id).is_ok() {
                    self.under_way.insert(at);
                } else {
                    self.put(Packet::Written(at));
                }
            }
            Packet::Written(at) => {
                self.hosts[at].is_writing = false;
                self.hosts[at].holder.end_use(BLOCK, Mode::M_X);
            }
        }
    }

    fn tick(&mut self) {
        let holders = self.hosts.iter().filter(|host| !host.is_frozen).filter_map(|host| host.holder.next_deadline());
        let Some(next) = holders.chain(self.manager.next_deadline()).min() else { return };
        self.now = self.now.max(next);
        let now = self.now;
        for host in self.hosts.iter_mut().filter(|host| !host.is_frozen) {
            // Renewals of a client that is not frozen always arrive.
            if host.holder.client(now).is_some() {
                let reply = self.manager.renew(now, host.id).map(|()| Reply::Done);
                host.holder.handle_reply(now, &FromClient::Renew(host.id), now, reply);
            }
            host.holder.handle_timeout(now);
            while let Some(output) = host.holder.poll_output() {
                if matches!(output, HolderOutput::Over(_)) {
                    host.may_write = false;
                }
            }
        }
        self.manager.handle_timeout(now);
    }

    fn apply(&mut self, action: Action, scripts: &[Script]) {
        let now = self.now;
        match action {
            Action::Ask(at) => {
                let host = &mut self.hosts[at];
                host.holder.request(now, TransactionId::OWN, scripts[at][host.asked].to_vec());
                host.asked += 1;
            }
            Action::Deliver(packet) => self.deliver(packet),
            Action::Lose(packet) => {
                self.take(&packet);
                self.losses -= 1;
            }
            Action::Freeze(at) => {
                self.hosts[at].is_frozen = true;
                self.freezes -= 1;
            }
            Action::Thaw(at) => {
                self.hosts[at].is_frozen = false;
                self.hosts[at].holder.handle_timeout(now);
            }
            Action::Write(at) => {
                let host = &mut self.hosts[at];
                host.may_write = false;
                if host.holder.begin_use(now, BLOCK, Mode::M_X) {
                    host.is_writing = true;
                    let id = host.id;
                    self.put(Packet::Write(at, id));
                }
            }
            Action::Repeat(at) => {
                let holder = &mut self.hosts[at].holder;
                holder.waiting().collect::<Vec<_>>().into_iter().for_each(|request| holder.resend(now, request));
            }
            Action::Land(at) => {
                self.under_way.remove(&at);
                self.put(Packet::Written(at));
            }
            Action::Fenced(client) => {
                self.fencing.remove(&client);
                let ended = self.hosts.iter().position(|host| host.id == client);
                if let Some(at) = ended.filter(|at| self.under_way.remove(at)) {
                    self.put(Packet::Written(at));
                }
                self.manager.fenced(now, client);
            }
            Action::Tick => {
                self.ticks -= 1;
                self.tick();
            }
        }
        self.drain();
    }

    /// Whether time may pass: messages of clients that are not frozen arrive before.
    fn is_quiet(&self) -> bool {
        self.network.keys().all(|packet| self.hosts[packet.client()].is_frozen)
    }

    /// Whether no two clients believe in conflicting locks, and no write can land that another's
    /// lock excludes.
    fn is_safe(&self) -> bool {
        let believed = |at: usize| {
            let holder = &self.hosts[at].holder;
            holder.client(self.now).into_iter().flat_map(|_| holder.held())
        };
        let all = 0..self.hosts.len();
        all.clone().all(|a| {
            all.clone().filter(|b| a != *b).all(|b| {
                let conflict =
                    |(resource, mode): Wanted| believed(b).any(|(other, its)| other == resource && its.conflicts(mode));
                let writes = self.under_way.contains(&a).then_some((BLOCK, Mode::M_X));
                !believed(a).chain(writes).any(conflict)
            })
        })
    }

    /// Whether from now on, without further faults, all waiting requests are granted or refused.
    fn comes_to_rest(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..400 {
            let waits = |host: &Host| {
                !host.is_frozen && host.holder.client(state.now).is_some() && host.holder.waiting().next().is_some()
            };
            let next = state
                .network
                .keys()
                .find(|packet| packet.is_from_client() || !state.hosts[packet.client()].is_frozen)
                .cloned();
            if let Some(packet) = next {
                state.apply(Action::Deliver(packet), &[]);
            } else if let Some(at) = state.under_way.first().copied() {
                state.apply(Action::Land(at), &[]);
            } else if let Some(client) = state.fencing.first().copied() {
                state.apply(Action::Fenced(client), &[]);
            } else if state.manager.table().tickets().next().is_none() && !state.hosts.iter().any(waits) {
                return true;
            } else {
                for at in 0..state.hosts.len() {
                    let now = state.now;
                    let requests: Vec<_> = state.hosts[at].holder.waiting().collect();
                    state.requests_sent = 0;
                    if !state.hosts[at].is_frozen {
                        requests.into_iter().for_each(|request| state.hosts[at].holder.resend(now, request));
                    }
                }
                state.drain();
                state.ticks = 1;
                state.apply(Action::Tick, &[]);
            }
        }
        false
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (mut manager, now) = manager_of_few_moments();
        let host = |manager: &mut LockManager| {
            let (id, holder) = registered(manager, now);
            Host { id, holder, asked: 0, is_frozen: false, may_write: false, is_writing: false }
        };
        let hosts = self.scripts.iter().map(|_| host(&mut manager)).collect();
        let Self { losses, freezes, ticks, .. } = *self;
        let (network, under_way, fencing) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        vec![State { now, manager, hosts, network, under_way, fencing, requests_sent: 0, losses, freezes, ticks }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, host) in state.hosts.iter().enumerate() {
            if host.is_frozen {
                // Until its lease is over a frozen client is merely slow, like the network.
                if host.holder.next_deadline().is_some() && host.holder.client(state.now).is_none() {
                    actions.push(Action::Thaw(at));
                }
                continue;
            }
            let is_alive = host.holder.client(state.now).is_some();
            if is_alive && host.asked < self.scripts[at].len() && host.holder.waiting().next().is_none() {
                actions.push(Action::Ask(at));
            }
            if is_alive && host.may_write && !host.is_writing {
                actions.push(Action::Write(at));
            }
            if self.losses > state.losses && state.is_quiet() && is_alive && host.holder.waiting().next().is_some() {
                actions.push(Action::Repeat(at));
            }
            // Where only one freezes, the scripts begin with it.
            if state.freezes > 0 && (at == 0 || self.any_freezes) {
                actions.push(Action::Freeze(at));
            }
        }
        for packet in state.network.keys() {
            if packet.is_from_client() || !state.hosts[packet.client()].is_frozen {
                actions.push(Action::Deliver(packet.clone()));
            }
            if state.losses > 0 && !matches!(packet, Packet::Write(..) | Packet::Written(_)) {
                actions.push(Action::Lose(packet.clone()));
            }
        }
        actions.extend(state.under_way.iter().copied().map(Action::Land));
        actions.extend(state.fencing.iter().copied().map(Action::Fenced));
        if state.ticks > 0 && state.is_quiet() {
            actions.push(Action::Tick);
        }
    }

    /// A callback that overtakes the grant that it concerns lets the request be sent again, and the
    /// next one may do so, too.
    fn within_boundary(&self, state: &State) -> bool {
        let asked: usize = self.scripts.iter().map(|script| script.len()).sum();
        usize::from(state.requests_sent) <= asked + usize::from(self.repeats)
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(action, &self.scripts);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all_asked = |model: &Cluster, state: &State| {
            state
                .hosts
                .iter()
                .zip(&model.scripts)
                .all(|(host, script)| host.asked == script.len() && host.holder.waiting().next().is_none())
        };
        let mut properties = vec![
            Property::always("nobody believes what conflicts", |_, state: &State| state.is_safe()),
            Property::always("everybody gets an answer", |_, state: &State| {
                !state.network.is_empty() || state.comes_to_rest()
            }),
            Property::sometimes("all is done", all_asked),
        ];
        // It takes three moments: the lease at the client, the one at the target, and the next grant.
        if self.freezes > 0 && self.ticks > 2 {
            properties.push(Property::sometimes("a client is fenced and another has its lock", |_, state: &State| {
                let fenced: BTreeSet<ClientId> = state.manager.clients().fenced().collect();
                let owner = |client: ClientId| state.manager.table().grants_of(Owner::own(client)).next().is_some();
                !fenced.is_empty() && state.hosts.iter().any(|host| owner(host.id))
            }));
        }
        properties
    }
}

fn check(name: &str, cluster: Cluster) {
    let checker = cluster.checker().spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them different, depth {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

const READ: &[Wanted] = &[(BLOCK, Mode::M_S)];
const CHANGE: &[Wanted] = &[(BLOCK, Mode::M_X)];
const OTHER: Resource = Resource::Metadata(4);
const CHANGE_OTHER: &[Wanted] = &[(OTHER, Mode::M_X)];
const BOTH_BLOCKS: &[Wanted] = &[(BLOCK, Mode::M_X), (OTHER, Mode::M_S)];
const BOTH: &[Wanted] = &[(BLOCK, Mode::M_X), (FILE, Mode::D_S)];

#[test]
fn three_clients_over_a_network_that_loses_a_message() {
    let scripts: Vec<Script> = vec![&[READ], &[BOTH], &[CHANGE_GROUP]];
    check(
        "three clients, a loss",
        Cluster { scripts, losses: 1, freezes: 0, ticks: 1, repeats: 1, any_freezes: false },
    );
}

const GROUP: Resource = Resource::Group(locks::resource::FileId(7), locks::resource::GroupIndex(0));
const CHANGE_GROUP: &[Wanted] = &[(FILE, Mode::D_IX), (GROUP, Mode::D_X)];

#[test]
fn three_clients_of_which_one_freezes_or_dies() {
    let scripts: Vec<Script> = vec![&[CHANGE], &[CHANGE], &[READ]];
    check(
        "three clients, a death",
        Cluster { scripts, losses: 0, freezes: 1, ticks: 3, repeats: 1, any_freezes: false },
    );
}

/// Two resources, a message that may be lost, and any of three clients may die: one waits for both,
/// one holds one, one wants one.
#[test]
fn three_clients_and_two_resources_where_any_message_is_lost_and_any_client_dies() {
    let scripts: Vec<Script> = vec![&[BOTH_BLOCKS], &[READ], &[CHANGE_OTHER]];
    check(
        "three clients, two resources, a loss and a death",
        Cluster { scripts, losses: 1, freezes: 1, ticks: 3, repeats: 0, any_freezes: true },
    );
}

#[test]
fn two_clients_that_upgrade_and_may_freeze_over_a_network_that_loses() {
    let scripts: Vec<Script> = vec![&[READ, CHANGE], &[READ, CHANGE]];
    check(
        "two that upgrade, a loss and a death",
        Cluster { scripts, losses: 1, freezes: 1, ticks: 3, repeats: 1, any_freezes: false },
    );
}
