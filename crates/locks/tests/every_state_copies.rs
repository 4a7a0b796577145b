//! Every state that two clients with caches, a stock initiator and the gate can reach over a
//! network that loses purges and reorders: no client uses a copy that is older than the last
//! answered change, and every change passes.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use base::clock::Instant;
use common::{manager_of_few_moments, range, registered};
use locks::fetches::FetchId;
use locks::gate::{Change, Passage};
use locks::holder::{Holder, HolderOutput};
use locks::identity::{ClientId, CommandId, Generation};
use locks::manager::{LockManager, Output};
use locks::message::{FromClient, Reply, ToClient};
use stateright::{Checker, Model, Property};

/// Count of changes of the block's content.
type Version = u8;

#[derive(Clone)]
struct Cluster {
    reads: u8,
    changes: u8,
    losses: u8,
    freezes: u8,
    ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Packet {
    Read(usize, CommandId),
    Data(usize, FetchId, Version, Option<Generation>),
    Mail(usize, ToClient),
    ToTarget(usize, FromClient),
}

impl Packet {
    fn to_client(&self) -> Option<usize> {
        match self {
            Self::Data(at, ..) | Self::Mail(at, _) => Some(*at),
            Self::Read(..) | Self::ToTarget(..) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    id: ClientId,
    holder: Holder,
    copy: Option<Version>,
    reads: u8,
    is_frozen: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: Instant,
    manager: LockManager,
    hosts: Vec<Host>,
    network: BTreeSet<Packet>,
    /// Reads that the target has received and not answered.
    reads: BTreeMap<CommandId, (usize, FetchId)>,
    under_way: BTreeSet<CommandId>,
    /// Changes by the writing client.
    own: BTreeMap<CommandId, FetchId>,
    fencing: BTreeSet<ClientId>,
    version: Version,
    command_last: u64,
    changes: u8,
    losses: u8,
    freezes: u8,
    ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Read(usize),
    /// A client changes the block, or a stock initiator.
    Change(Option<usize>),
    Commit(CommandId),
    Cancel(CommandId),
    Deliver(Packet),
    Lose(Packet),
    Freeze,
    Thaw,
    Fenced(ClientId),
    Tick,
}

impl State {
    fn command(&mut self) -> CommandId {
        self.command_last += 1;
        CommandId(self.command_last)
    }

    fn pass(&mut self, command: CommandId, passage: Passage) {
        match passage {
            Passage::Read(generation) => {
                let Some((at, fetch)) = self.reads.remove(&command) else { return };
                self.network.insert(Packet::Data(at, fetch, self.version, generation));
            }
            Passage::Change => drop(self.under_way.insert(command)),
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Fence(client, _) => drop(self.fencing.insert(client)),
                Output::Pass(command, passage) => self.pass(command, passage),
                _ => {}
            }
        }
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            while let Some(message) = self.manager.poll_message(host.id) {
                self.network.insert(Packet::Mail(at, message));
            }
            while let Some(output) = host.holder.poll_output() {
                match output {
                    HolderOutput::Send(message) => drop(self.network.insert(Packet::ToTarget(at, message))),
                    HolderOutput::Purge(_) | HolderOutput::Over(_) => host.copy = None,
                    _ => {}
                }
            }
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        self.network.remove(packet);
        match packet.clone() {
            Packet::Read(at, command) => {
                match self.manager.read(self.now, command, range(0, 1), Some(self.hosts[at].id)) {
                    Ok(Some(passage)) => self.pass(command, passage),
                    Ok(None) => {}
                    Err(_) => drop(self.reads.remove(&command)),
                }
            }
            Packet::Data(at, fetch, version, generation) => {
                let host = &mut self.hosts[at];
                if host.holder.end_fetch(fetch, generation) {
                    host.copy = Some(version);
                }
            }
            Packet::Mail(at, message) => {
                let host = &mut self.hosts[at];
                host.holder.handle_message(host.id, message);
            }
            Packet::ToTarget(_, message) => drop(self.manager.handle_message(self.now, message)),
        }
    }

    fn tick(&mut self) {
        let holders = self.hosts.iter().filter(|host| !host.is_frozen).filter_map(|host| host.holder.next_deadline());
        let Some(next) = holders.chain(self.manager.next_deadline()).min() else { return };
        self.now = self.now.max(next);
        let now = self.now;
        for host in self.hosts.iter_mut().filter(|host| !host.is_frozen && host.holder.client(now).is_some()) {
            let reply = self.manager.renew(now, host.id).map(|()| Reply::Done);
            host.holder.handle_reply(now, &FromClient::Renew(host.id), now, reply);
            host.holder.handle_timeout(now);
            // The renewal has arrived.
            let sent: Vec<_> = std::iter::from_fn(|| host.holder.poll_output()).collect();
            if sent.iter().any(|output| matches!(output, HolderOutput::Over(_))) {
                host.copy = None;
            }
        }
        self.manager.handle_timeout(now);
    }

    fn apply(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Read(at) => {
                let command = self.command();
                let host = &mut self.hosts[at];
                host.reads -= 1;
                let fetch = host.holder.begin_fetch(range(0, 1));
                self.reads.insert(command, (at, fetch));
                self.network.insert(Packet::Read(at, command));
            }
            Action::Change(at) => {
                self.changes -= 1;
                let by = at.map(|at| self.hosts[at].id);
                // Its own copy is dropped when it begins to write.
                let command = self.command();
                if let Some(at) = at {
                    self.hosts[at].copy = None;
                    self.own.insert(command, self.hosts[at].holder.begin_change(range(0, 1)));
                }
                let change = Change { range: range(0, 1), by, is_under_grant: false };
                if let Ok(Some(passage)) = self.manager.begin_change(now, command, change) {
                    self.pass(command, passage);
                }
            }
            Action::Commit(command) => {
                self.under_way.remove(&command);
                self.version += 1;
                let own = self.own.remove(&command);
                let generation = self.manager.end_change(now, command, own.is_some()).expect("it is under way");
                if let Some(change) = own
                    && self.hosts[1].holder.end_fetch(change, generation)
                {
                    self.hosts[1].copy = Some(self.version);
                }
            }
            Action::Cancel(command) => {
                let is_over = self.manager.cancel_command(now, command).is_ok();
                if let Some(change) = self.own.remove(&command).filter(|_| is_over) {
                    self.hosts[1].holder.end_fetch(change, None);
                }
            }
            Action::Deliver(packet) => self.deliver(&packet),
            Action::Lose(packet) => {
                self.network.remove(&packet);
                self.losses -= 1;
            }
            Action::Freeze => {
                self.hosts[0].is_frozen = true;
                self.freezes -= 1;
            }
            Action::Thaw => {
                self.hosts[0].is_frozen = false;
                self.hosts[0].holder.handle_timeout(now);
            }
            Action::Fenced(client) => {
                self.fencing.remove(&client);
                self.manager.fenced(now, client);
            }
            Action::Tick => {
                self.ticks -= 1;
                self.tick();
            }
        }
        self.drain();
    }

    /// Whether no client uses a copy that is older than the last answered change.
    fn is_coherent(&self) -> bool {
        let serves = |host: &Host| host.copy.filter(|_| host.holder.client(self.now).is_some());
        self.hosts.iter().filter_map(serves).all(|copy| copy >= self.version)
    }

    fn comes_to_rest(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..200 {
            let comes = |packet: &&Packet| packet.to_client().is_none_or(|at| !state.hosts[at].is_frozen);
            if let Some(packet) = state.network.iter().find(comes).cloned() {
                state.apply(Action::Deliver(packet));
            } else if let Some(command) = state.under_way.first().copied() {
                state.apply(Action::Commit(command));
            } else if let Some(client) = state.fencing.first().copied() {
                state.apply(Action::Fenced(client));
            } else if state.manager.gate().command_count() == 0 {
                return true;
            } else {
                state.ticks = 1;
                state.apply(Action::Tick);
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
            Host { id, holder, copy: None, reads: self.reads, is_frozen: false }
        };
        let hosts = vec![host(&mut manager), host(&mut manager)];
        vec![State {
            now,
            manager,
            hosts,
            network: BTreeSet::new(),
            reads: BTreeMap::new(),
            under_way: BTreeSet::new(),
            own: BTreeMap::new(),
            fencing: BTreeSet::new(),
            version: 0,
            command_last: 0,
            changes: self.changes,
            losses: self.losses,
            freezes: self.freezes,
            ticks: self.ticks,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, host) in state.hosts.iter().enumerate().filter(|(_, host)| !host.is_frozen) {
            let is_alive = host.holder.client(state.now).is_some();
            if is_alive && host.reads > 0 && !state.reads.values().any(|(of, _)| *of == at) {
                actions.push(Action::Read(at));
            }
        }
        if state.changes > 0 {
            actions.push(Action::Change(None));
            if state.hosts[1].holder.client(state.now).is_some() {
                actions.push(Action::Change(Some(1)));
            }
        }
        let frozen = &state.hosts[0];
        if state.freezes > 0 {
            actions.push(Action::Freeze);
        }
        if frozen.is_frozen && frozen.holder.next_deadline().is_some() && frozen.holder.client(state.now).is_none() {
            actions.push(Action::Thaw);
        }
        for packet in &state.network {
            if packet.to_client().is_none_or(|at| !state.hosts[at].is_frozen) {
                actions.push(Action::Deliver(packet.clone()));
            }
            if state.losses > 0 && matches!(packet, Packet::Mail(..) | Packet::ToTarget(..)) {
                actions.push(Action::Lose(packet.clone()));
            }
        }
        actions.extend(state.under_way.iter().copied().map(Action::Commit));
        // A change that waits can be given up.
        let waits = |command: &CommandId| !state.under_way.contains(command) && !state.reads.contains_key(command);
        if state.manager.gate().command_count() > state.under_way.len() {
            actions.extend((1..=state.command_last).map(CommandId).filter(waits).map(Action::Cancel));
        }
        actions.extend(state.fencing.iter().copied().map(Action::Fenced));
        let is_quiet =
            state.network.iter().all(|packet| packet.to_client().is_some_and(|at| state.hosts[at].is_frozen));
        if state.ticks > 0 && is_quiet {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody serves what is old", |_, state: &State| state.is_coherent()),
            Property::always("every command passes", |_, state: &State| {
                !state.network.is_empty() || state.comes_to_rest()
            }),
            Property::sometimes("a copy of what was changed is served", |_, state: &State| {
                state.version > 0 && state.hosts.iter().any(|host| host.copy == Some(state.version))
            }),
            Property::sometimes("a change is answered though a reader never was", |model: &Cluster, state: &State| {
                state.version > 0 && (model.freezes == 0 || state.hosts[0].is_frozen)
            }),
        ]
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

#[test]
fn two_readers_and_a_change_while_messages_are_lost_and_one_freezes() {
    check(
        "two readers, a change, a loss and a death",
        Cluster { reads: 1, changes: 1, losses: 1, freezes: 1, ticks: 3 },
    );
}

#[test]
fn two_readers_that_read_twice_and_a_change() {
    check("two readers that read twice, a change", Cluster { reads: 2, changes: 1, losses: 0, freezes: 0, ticks: 0 });
}

#[test]
fn two_readers_and_two_changes() {
    check("two readers, two changes", Cluster { reads: 1, changes: 2, losses: 0, freezes: 0, ticks: 0 });
}
