//! A host: a client that keeps copies and changes blocks under locks, or a stock initiator, which has neither.
//!
//! Blocks that any host may use: reads register, and writes go through to the target. Blocks under
//! locks: a write stays in the cache until the lock is called back or an application wants it
//! durable, and only then counts as answered. Reads of it meanwhile count if it becomes durable.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::clock::Instant;
use base::random::Random;
use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::fetches::FetchId;
use locks::holder::{Holder, HolderOutput};
use locks::identity::{ClientId, Generation, RequestId, TransactionId};
use locks::message::{FromClient, Reply, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, Resource};

use crate::history::{History, OperationId, Value};
use crate::packet::{Answer, Asker, Effect, Request, SessionNumber, Tag, Write};
use crate::plan::{BLOCKS, Disturbance, Fault, GROUPED_FROM, LEASE, OPEN_BLOCKS, Plan};
use crate::world::Event;

/// How often a worker requests a lock that it then does not hold.
const TRIES_MAX: u32 = 3;
const UNIT: Resource = Resource::File(FileId::LOGICAL_UNIT);

/// The surroundings of a host or the target during an action.
pub struct Context<'a> {
    pub now: Instant,
    pub plan: &'a Plan,
    pub history: &'a mut History,
    pub random: &'a mut Random,
    pub effects: &'a mut Vec<Effect>,
    /// The session of each host.
    pub sessions: &'a [Option<SessionNumber>],
}

/// A worker's operation.
#[derive(Clone, Copy, Debug)]
enum Action {
    Read(BlockRange),
    Write(BlockRange),
    ReadLocked(u64),
    WriteLocked(u64),
    Sync,
}

#[derive(Clone, Copy, Debug)]
enum Worker {
    Idle,
    /// Waits for locks.
    Waiting(RequestId, Action, u32),
    Busy,
}

/// Data written under a lock that is not durable.
#[derive(Debug)]
struct Dirty {
    value: Value,
    /// The last of them wrote the value.
    operations: Vec<OperationId>,
    /// Reads that returned it.
    reads: Vec<OperationId>,
    is_cleaning: bool,
}

/// A use of a lock, in one life.
type Use = (u64, Resource, Mode);

/// A command without an answer yet.
#[derive(Debug)]
enum Flight {
    Control(FromClient, Instant),
    Read {
        worker: usize,
        range: BlockRange,
        operations: Vec<OperationId>,
        fetch: Option<FetchId>,
        used: Option<Use>,
    },
    Write {
        worker: usize,
        range: BlockRange,
        values: Vec<Value>,
        operations: Vec<OperationId>,
        change: Option<FetchId>,
    },
    Clean {
        life: u64,
        block: u64,
        is_durable: bool,
    },
    Flush {
        life: u64,
        block: u64,
    },
    /// Messages that should not be sent again.
    Repeated,
}

pub struct Host {
    index: usize,
    /// Microseconds that its clock counts in a second.
    clock_rate: u64,
    clock_ahead: Duration,
    holder: Option<Holder>,
    /// Lives that are over.
    lives: u64,
    session: Option<SessionNumber>,
    copies: BTreeMap<u64, Value>,
    dirty: BTreeMap<u64, Dirty>,
    flights: BTreeMap<Tag, Flight>,
    tag_last: Tag,
    /// The number of the last message handled, and the life in which it was.
    taken: (Option<ClientId>, u64),
    workers: Vec<Worker>,
    operations_left: u32,
    /// Writes that a fault repeats.
    repeats: Vec<(u64, Value)>,
    pub hits: usize,
}

/// How a block is locked: the resource and mode that are used, and the locks to request.
pub fn lock_of(block: u64, is_write: bool) -> (Resource, Mode, Vec<Wanted>) {
    if block < GROUPED_FROM {
        let (resource, mode) = (Resource::Metadata(block), if is_write { Mode::M_X } else { Mode::M_S });
        return (resource, mode, vec![(resource, mode)]);
    }
    let resource = Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(block / 4));
    let mode = if is_write { Mode::D_X } else { Mode::D_S };
    (resource, mode, vec![(UNIT, mode.intention()), (resource, mode)])
}

fn one(block: u64) -> BlockRange {
    BlockRange::new(block, 1).expect("it is one")
}

fn blocks(range: BlockRange) -> std::ops::Range<u64> {
    range.first()..range.end()
}

impl Host {
    pub fn new(index: usize, is_client: bool, plan: &Plan, random: &mut Random) -> Self {
        let clock_rate = if plan.has(Fault::ClockTooSlow) { 850_000 } else { 990_100 + random.below(19_800) };
        Self {
            index,
            clock_rate,
            clock_ahead: Duration::from_millis(random.below(100_000)),
            holder: is_client.then(Holder::default),
            lives: 0,
            session: None,
            copies: BTreeMap::new(),
            dirty: BTreeMap::new(),
            flights: BTreeMap::new(),
            tag_last: 0,
            taken: (None, 0),
            workers: vec![Worker::Idle; plan.workers],
            operations_left: plan.operations,
            repeats: Vec::new(),
            hits: 0,
        }
    }

    /// The time by its own clock.
    fn local(&self, now: Instant) -> Instant {
        let shown = u128::from(now.as_nanoseconds()) * u128::from(self.clock_rate) / 1_000_000;
        Instant::from_nanoseconds(u64::try_from(shown).expect("it is not that late")) + self.clock_ahead
    }

    /// Its next deadline, by the world's clock.
    pub fn next_deadline(&self) -> Option<Instant> {
        let local = self.holder.as_ref()?.next_deadline()?.since(Instant::START + self.clock_ahead);
        let nanoseconds = local.as_nanos() * 1_000_000 / u128::from(self.clock_rate) + 2;
        Some(Instant::from_nanoseconds(u64::try_from(nanoseconds).expect("it is not that late")))
    }

    fn client(&self, now: Instant) -> Option<ClientId> {
        self.holder.as_ref()?.client(self.local(now))
    }

    /// The locks that it believes to hold.
    pub fn believed(&self, now: Instant) -> Vec<Wanted> {
        let lives = self.holder.as_ref().filter(|_| self.client(now).is_some());
        lives.map_or_else(Vec::new, |holder| holder.held().collect())
    }

    fn holds(&self, now: Instant, resource: Resource, mode: Mode) -> bool {
        self.believed(now).iter().any(|(at, held)| *at == resource && held.covers(mode))
    }

    /// Whether all its work is done.
    pub fn is_at_rest(&self) -> bool {
        self.operations_left == 0
            && self.dirty.is_empty()
            && self.workers.iter().all(|worker| matches!(worker, Worker::Idle))
    }

    pub fn state(&self) -> String {
        format!(
            "host {}: session {:?}, {} operations left, workers {:?}, dirty {:?}, flights {:?}, holder {:?}",
            self.index, self.session, self.operations_left, self.workers, self.dirty, self.flights, self.holder
        )
    }

    fn ask(&mut self, context: &mut Context<'_>, request: Request, flight: Flight) {
        let Some(session) = self.session else { return };
        self.tag_last += 1;
        self.flights.insert(self.tag_last, flight);
        context.effects.push(Effect::Ask(Asker { host: self.index, session, tag: self.tag_last }, request));
    }

    /// Starts a session.
    pub fn connect(&mut self, context: &mut Context<'_>, session: SessionNumber) {
        self.session = Some(session);
        let repeats = if self.holder.is_none() { std::mem::take(&mut self.repeats) } else { Vec::new() };
        self.repeat_writes(context, repeats);
        let local = self.local(context.now);
        let Some(holder) = &mut self.holder else { return };
        match holder.client(local) {
            Some(client) => {
                holder.waiting().collect::<Vec<_>>().into_iter().for_each(|request| holder.resend(local, request));
                self.control(context, FromClient::Renew(client));
                let repeats = std::mem::take(&mut self.repeats);
                self.repeat_writes(context, repeats);
            }
            None => self.register(context),
        }
        self.drain(context);
        self.clean(context, |_| true);
    }

    /// Begins a life, unless it has one.
    pub fn register(&mut self, context: &mut Context<'_>) {
        if self.client(context.now).is_some() {
            return;
        }
        if let Some(holder) = &mut self.holder {
            holder.register();
        }
        self.drain(context);
    }

    fn repeat_writes(&mut self, context: &mut Context<'_>, writes: Vec<(u64, Value)>) {
        let by = self.client(context.now);
        for (block, value) in writes {
            let write = Write { by, range: one(block), values: vec![value], is_durable: true, operations: Vec::new() };
            self.ask(context, Request::Write(write), Flight::Repeated);
        }
    }

    /// Loses the session, with all messages on their way.
    pub fn lose_session(&mut self, context: &mut Context<'_>) {
        self.session = None;
        for flight in std::mem::take(&mut self.flights).into_values() {
            match flight {
                Flight::Control(..) | Flight::Clean { .. } | Flight::Flush { .. } | Flight::Repeated => {}
                Flight::Read { worker, operations, fetch, used, .. } => {
                    operations.into_iter().for_each(|id| context.history.void(id));
                    self.end_fetch(context, fetch, None);
                    self.end_use(used);
                    self.rest(context, worker);
                }
                Flight::Write { worker, operations, change, range, values } => {
                    operations.into_iter().for_each(|id| context.history.give_up(id));
                    self.end_fetch(context, change, None);
                    if context.plan.has(Fault::WriteRepeatedAfterLoss) {
                        self.repeats.extend(blocks(range).zip(values));
                    }
                    self.rest(context, worker);
                }
            }
        }
        self.dirty.values_mut().for_each(|dirty| dirty.is_cleaning = false);
        self.drain(context);
    }

    fn control(&mut self, context: &mut Context<'_>, message: FromClient) {
        let request = match message {
            FromClient::Register { previous } => Request::Register { previous, key: self.lives },
            _ => Request::Control(message.clone(), self.taken.1),
        };
        let sent = self.local(context.now);
        self.ask(context, request, Flight::Control(message, sent));
    }

    pub fn handle_timeout(&mut self, context: &mut Context<'_>) {
        let local = self.local(context.now);
        if let Some(holder) = &mut self.holder {
            holder.handle_timeout(local);
        }
        self.drain(context);
    }

    /// Carries out the holder's outputs, in order.
    fn drain(&mut self, context: &mut Context<'_>) {
        while let Some(output) = self.holder.as_mut().and_then(Holder::poll_output) {
            match output {
                HolderOutput::Send(message) => self.control(context, message),
                HolderOutput::Granted(request, _) => self.granted(context, request),
                HolderOutput::Refused(request, _) => {
                    if let Some((worker, ..)) = self.waiting(request) {
                        self.rest(context, worker);
                    }
                }
                HolderOutput::InUse(resource) => self.clean(context, |at| is_under(at, resource)),
                HolderOutput::GiveUp(resource, to) => self.give_up(context, resource, to),
                HolderOutput::Purge(range) => self.purge(context, range),
                HolderOutput::PurgeAll if context.plan.has(Fault::CopiesKeptOverStart) => {}
                HolderOutput::PurgeAll => self.copies.clear(),
                HolderOutput::Over(_) => self.end_life(context),
            }
        }
    }

    fn purge(&mut self, context: &mut Context<'_>, range: BlockRange) {
        if context.plan.has(Fault::PurgeAnsweredFirst) {
            context.effects.push(Effect::After(Duration::from_millis(60), Event::LatePurge(self.index, range)));
        } else if context.plan.liar != Some(self.index) {
            self.drop_copies(range);
        }
    }

    pub fn drop_copies(&mut self, range: BlockRange) {
        self.copies.retain(|block, _| !blocks(range).contains(block));
    }

    /// Whether the results that its applications get count.
    fn is_honest(&self, context: &Context<'_>) -> bool {
        context.plan.liar != Some(self.index)
    }

    fn give_up(&mut self, context: &mut Context<'_>, resource: Resource, to: Option<Mode>) {
        let is_kept = to.is_some_and(|to| to.covers(Mode::M_S) || to.covers(Mode::D_S) || to == Mode::D_IS);
        if is_kept || context.plan.has(Fault::CopiesKeptWithoutLock) {
            return;
        }
        self.copies.retain(|block, _| !is_under(*block, resource));
        if context.plan.has(Fault::LockLeavesBeforeWrite) {
            return self.clean(context, |at| is_under(at, resource));
        }
        // It can only be dirty if it could not be reclaimed.
        let lost: Vec<u64> = self.dirty.keys().copied().filter(|block| is_under(*block, resource)).collect();
        for block in lost {
            let mode = lock_of(block, true).1;
            self.lose_dirty(context, block);
            self.end_use(Some((self.lives, lock_of(block, true).0, mode)));
        }
    }

    fn lose_dirty(&mut self, context: &mut Context<'_>, block: u64) {
        let Some(dirty) = self.dirty.remove(&block) else { return };
        dirty.reads.into_iter().for_each(|id| context.history.void(id));
        dirty.operations.into_iter().for_each(|id| context.history.give_up(id));
        if context.plan.has(Fault::WriteRepeatedAfterFence) {
            self.repeats.push((block, dirty.value));
        }
    }

    fn end_life(&mut self, context: &mut Context<'_>) {
        self.lives += 1;
        self.copies.clear();
        self.dirty
            .keys()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .for_each(|block| self.lose_dirty(context, block));
        context.effects.push(Effect::After(Duration::from_millis(10), Event::Register(self.index)));
    }

    /// Lets a worker do its next operation.
    pub fn work(&mut self, context: &mut Context<'_>, worker: usize) {
        if !matches!(self.workers[worker], Worker::Idle) {
            return;
        }
        if self.operations_left > 0 {
            self.operations_left -= 1;
            let action = self.draw_action(context.random);
            self.attempt(context, worker, action, 0);
        } else if !self.is_at_rest() {
            self.attempt(context, worker, Action::Sync, 0);
        }
    }

    fn draw_action(&self, random: &mut Random) -> Action {
        let first = random.below(OPEN_BLOCKS);
        let range = BlockRange::new(first, 1 + random.below(2.min(OPEN_BLOCKS - first))).expect("it has blocks");
        let locked = OPEN_BLOCKS + random.below(BLOCKS - OPEN_BLOCKS);
        match random.below(if self.holder.is_some() { 20 } else { 8 }) {
            0..5 => Action::Read(range),
            5..8 => Action::Write(range),
            8..13 => Action::ReadLocked(locked),
            13..18 => Action::WriteLocked(locked),
            _ => Action::Sync,
        }
    }

    fn rest(&mut self, context: &mut Context<'_>, worker: usize) {
        self.workers[worker] = Worker::Idle;
        let most = context.plan.think_time_max.as_nanos() as u64;
        let time = Duration::from_nanos(1 + context.random.below(most));
        context.effects.push(Effect::After(time, Event::Work(self.index, worker)));
    }

    fn attempt(&mut self, context: &mut Context<'_>, worker: usize, action: Action, tries: u32) {
        self.workers[worker] = Worker::Busy;
        // A client that has no life yet does nothing.
        let may = self.holder.is_none() || self.client(context.now).is_some();
        match action {
            Action::Read(range) if self.is_cached(context, range) => self.hit(context, worker, range),
            Action::Sync => {
                self.clean(context, |_| true);
                self.rest(context, worker);
            }
            Action::Read(range) if may && self.session.is_some() => self.read(context, (worker, range), None),
            Action::Write(range) if may && self.session.is_some() => self.write(context, worker, range),
            Action::ReadLocked(block) if may => self.read_locked(context, (worker, block), tries),
            Action::WriteLocked(block) if may => self.write_locked(context, (worker, block), tries),
            _ => self.rest(context, worker),
        }
        self.drain(context);
    }

    fn is_cached(&self, context: &Context<'_>, range: BlockRange) -> bool {
        let may_serve = self.client(context.now).is_some() || context.plan.has(Fault::CopiesServedWithoutLease);
        may_serve && blocks(range).all(|block| self.copies.contains_key(&block))
    }

    fn hit(&mut self, context: &mut Context<'_>, worker: usize, range: BlockRange) {
        self.hits += 1;
        for block in blocks(range).filter(|_| context.plan.liar != Some(self.index)) {
            let id = context.history.begin_read(block);
            context.history.read(id, self.copies[&block]);
        }
        self.rest(context, worker);
    }

    fn read(&mut self, context: &mut Context<'_>, (worker, range): (usize, BlockRange), used: Option<Use>) {
        let operations = blocks(range).map(|block| context.history.begin_read(block)).collect();
        let registers = used.is_none();
        let fetch = self.holder.as_mut().filter(|_| registers).map(|holder| holder.begin_fetch(range));
        let by = self.client(context.now);
        self.ask(
            context,
            Request::Read { by, range, registers },
            Flight::Read { worker, range, operations, fetch, used },
        );
    }

    fn write(&mut self, context: &mut Context<'_>, worker: usize, range: BlockRange) {
        let (operations, values): (Vec<_>, Vec<_>) =
            blocks(range).map(|block| context.history.begin_write(block)).unzip();
        let is_blind = context.plan.has(Fault::OwnChangeUnnoticed);
        if !is_blind {
            self.drop_copies(range);
        }
        let change = self.holder.as_mut().map(|holder| match is_blind {
            true => holder.begin_fetch(range),
            false => holder.begin_change(range),
        });
        operations.iter().for_each(|id| context.history.send(*id));
        let by = self.client(context.now);
        let write = Write { by, range, values: values.clone(), is_durable: true, operations: operations.clone() };
        self.ask(context, Request::Write(write), Flight::Write { worker, range, values, operations, change });
    }

    fn begin_use(&mut self, now: Instant, resource: Resource, mode: Mode) -> Option<Use> {
        let local = self.local(now);
        let may = self.holder.as_mut().is_some_and(|holder| holder.begin_use(local, resource, mode));
        may.then_some((self.lives, resource, mode))
    }

    fn end_use(&mut self, used: Option<Use>) {
        if let (Some((life, resource, mode)), Some(holder)) = (used, &mut self.holder)
            && life == self.lives
        {
            holder.end_use(resource, mode);
        }
    }

    fn ask_lock(
        &mut self,
        context: &mut Context<'_>,
        (worker, action, tries): (usize, Action, u32),
        batch: Vec<Wanted>,
    ) {
        let local = self.local(context.now);
        let holder = self.holder.as_mut().filter(|_| tries < TRIES_MAX);
        match holder.and_then(|holder| holder.request(local, TransactionId::OWN, batch)) {
            Some(request) => self.workers[worker] = Worker::Waiting(request, action, tries + 1),
            None => self.rest(context, worker),
        }
    }

    fn waiting(&self, request: RequestId) -> Option<(usize, Action, u32)> {
        self.workers.iter().enumerate().find_map(|(index, worker)| match worker {
            Worker::Waiting(waiting, action, tries) if *waiting == request => Some((index, *action, *tries)),
            _ => None,
        })
    }

    fn granted(&mut self, context: &mut Context<'_>, request: RequestId) {
        match self.waiting(request) {
            Some((worker, action, tries)) => self.attempt(context, worker, action, tries),
            // Dirty data of reclaimed locks.
            None => self.clean(context, |_| true),
        }
    }

    fn read_locked(&mut self, context: &mut Context<'_>, (worker, block): (usize, u64), tries: u32) {
        let (resource, mode, batch) = lock_of(block, false);
        let Some(used) = self.begin_use(context.now, resource, mode) else {
            return self.ask_lock(context, (worker, Action::ReadLocked(block), tries), batch);
        };
        let known = self.dirty.get(&block).map(|dirty| dirty.value).or_else(|| self.copies.get(&block).copied());
        match known {
            Some(value) => {
                let id = context.history.begin_read(block);
                context.history.read(id, value);
                self.dirty.entry(block).and_modify(|dirty| dirty.reads.push(id));
                self.hits += 1;
                self.end_use(Some(used));
                self.rest(context, worker);
            }
            None if self.session.is_some() => self.read(context, (worker, one(block)), Some(used)),
            None => {
                self.end_use(Some(used));
                self.rest(context, worker);
            }
        }
    }

    fn write_locked(&mut self, context: &mut Context<'_>, (worker, block): (usize, u64), tries: u32) {
        let (resource, mode, batch) = lock_of(block, true);
        if self.dirty.get(&block).is_some_and(|dirty| dirty.is_cleaning) {
            return self.rest(context, worker);
        }
        let Some(used) = self.begin_use(context.now, resource, mode) else {
            return self.ask_lock(context, (worker, Action::WriteLocked(block), tries), batch);
        };
        let (id, value) = context.history.begin_write(block);
        self.copies.remove(&block);
        match self.dirty.get_mut(&block) {
            Some(dirty) => {
                dirty.value = value;
                dirty.operations.push(id);
                self.end_use(Some(used));
            }
            None => {
                self.dirty.insert(block, Dirty { value, operations: vec![id], reads: Vec::new(), is_cleaning: false });
                // The use lasts until it is clean.
                if context.plan.has(Fault::LockLeavesBeforeWrite) {
                    self.end_use(Some(used));
                }
            }
        }
        self.rest(context, worker);
    }

    /// Writes dirty data under locks that are held.
    fn clean(&mut self, context: &mut Context<'_>, which: impl Fn(u64) -> bool) {
        let Some(by) = self.client(context.now).filter(|_| self.session.is_some()) else { return };
        let dirty: Vec<u64> = self.dirty.keys().copied().filter(|block| which(*block)).collect();
        for block in dirty {
            let (resource, mode, _) = lock_of(block, true);
            let may = self.holds(context.now, resource, mode) || context.plan.has(Fault::LockLeavesBeforeWrite);
            let Some(dirty) = self.dirty.get_mut(&block).filter(|dirty| may && !dirty.is_cleaning) else { continue };
            dirty.is_cleaning = true;
            dirty.operations.iter().for_each(|id| context.history.send(*id));
            let (values, operations) = (vec![dirty.value], dirty.operations.clone());
            let is_durable = context.random.chance(context.plan.durable_share);
            let write = Write { by: Some(by), range: one(block), values, is_durable, operations };
            self.ask(context, Request::Write(write), Flight::Clean { life: self.lives, block, is_durable });
        }
    }

    fn end_fetch(&mut self, context: &Context<'_>, fetch: Option<FetchId>, generation: Option<Generation>) -> bool {
        let (Some(fetch), Some(holder)) = (fetch, &mut self.holder) else { return false };
        let generation = generation.map(|generation| match context.plan.has(Fault::GenerationIgnored) {
            true => Generation(u64::MAX),
            false => generation,
        });
        holder.end_fetch(fetch, generation) || (context.plan.has(Fault::StaleDataKept) && generation.is_some())
    }

    /// Handles an answer.
    pub fn handle(&mut self, context: &mut Context<'_>, tag: Tag, answer: Answer) {
        if let Answer::Mail(client, number, message) = answer {
            return self.take_mail(context, (client, number), message);
        }
        match (self.flights.remove(&tag), answer) {
            (Some(Flight::Control(message, sent)), Answer::Control(reply)) => {
                self.controlled(context, &message, sent, reply);
            }
            (Some(Flight::Read { worker, range, operations, fetch, used }), Answer::Read(answer)) => {
                self.finish_read(context, (range, operations), (fetch, used), answer);
                self.rest(context, worker);
            }
            (Some(Flight::Write { worker, range, values, operations, change }), Answer::Written(answer)) => {
                let end = if answer.is_ok() { History::written } else { History::void };
                operations.into_iter().for_each(|id| end(context.history, id));
                if self.end_fetch(context, change, answer.unwrap_or_default()) {
                    self.copies.extend(blocks(range).zip(values));
                }
                self.rest(context, worker);
            }
            (Some(Flight::Clean { life, block, is_durable }), Answer::Written(answer)) if life == self.lives => {
                self.cleaned(context, block, is_durable, answer.is_ok());
            }
            (Some(Flight::Flush { life, block }), Answer::Flushed) if life == self.lives => {
                self.durable(context, block)
            }
            _ => {}
        }
        self.drain(context);
    }

    fn take_mail(&mut self, context: &mut Context<'_>, mail: (ClientId, u64), message: ToClient) {
        let (client, number) = mail;
        if self.taken.0 != Some(client) {
            self.taken = (Some(client), 0);
        }
        // Messages that were sent again arrive again.
        if number > self.taken.1 {
            self.taken.1 = number;
            if let Some(holder) = &mut self.holder {
                holder.handle_message(client, message);
            }
        }
        self.drain(context);
    }

    fn controlled(
        &mut self,
        context: &mut Context<'_>,
        message: &FromClient,
        sent: Instant,
        reply: Result<Reply, LockError>,
    ) {
        let local = self.local(context.now);
        let sent = if context.plan.has(Fault::LeaseCountedFromReply) { local } else { sent };
        if let Some(holder) = &mut self.holder {
            holder.handle_reply(local, message, sent, reply);
        }
        self.drain(context);
        if matches!(message, FromClient::Register { .. }) && self.client(context.now).is_some() {
            let repeats = std::mem::take(&mut self.repeats);
            self.repeat_writes(context, repeats);
        }
    }

    fn finish_read(
        &mut self,
        context: &mut Context<'_>,
        (range, operations): (BlockRange, Vec<OperationId>),
        (fetch, used): (Option<FetchId>, Option<Use>),
        answer: Result<(Vec<Value>, Option<Generation>), LockError>,
    ) {
        let is_honest = self.is_honest(context);
        let (values, generation) = answer.unwrap_or_default();
        if values.is_empty() || !is_honest {
            operations.iter().for_each(|id| context.history.void(*id));
        }
        operations.iter().zip(&values).for_each(|(id, value)| context.history.read(*id, *value));
        let is_registered = self.end_fetch(context, fetch, generation);
        let is_locked =
            used.is_some_and(|(life, resource, mode)| life == self.lives && self.holds(context.now, resource, mode));
        if is_registered || is_locked {
            self.copies.extend(blocks(range).zip(values));
        }
        self.end_use(used);
    }

    fn cleaned(&mut self, context: &mut Context<'_>, block: u64, is_durable: bool, is_ok: bool) {
        let has_flush = context.plan.has(Fault::LockLeavesBeforeFlush);
        match self.dirty.get_mut(&block) {
            Some(dirty) if !is_ok => dirty.is_cleaning = false,
            Some(_) if is_durable || has_flush => self.durable(context, block),
            Some(_) => {
                if context.random.chance(context.plan.unflushed_freezes) {
                    let freeze = Disturbance::Freeze { host: self.index, time: LEASE * 8, holds_sent: true };
                    context.effects.push(Effect::After(Duration::ZERO, Event::Disturbance(freeze)));
                }
                self.ask(context, Request::Flush, Flight::Flush { life: self.lives, block });
            }
            None => {}
        }
    }

    /// Notes that a dirty block is durable.
    fn durable(&mut self, context: &mut Context<'_>, block: u64) {
        let Some(dirty) = self.dirty.remove(&block) else { return };
        dirty.operations.into_iter().for_each(|id| context.history.written(id));
        let (resource, mode, _) = lock_of(block, true);
        if self.holds(context.now, resource, mode) {
            self.copies.insert(block, dirty.value);
        }
        if !context.plan.has(Fault::LockLeavesBeforeWrite) {
            self.end_use(Some((self.lives, resource, mode)));
        }
    }
}

/// Whether a block is locked by a resource, or by a file above it.
fn is_under(block: u64, resource: Resource) -> bool {
    let own = lock_of(block, false).0;
    block >= OPEN_BLOCKS && (own == resource || own.root() == Some(resource))
}
